"""The paper's tables and figures as data: which runs each needs, what it shows, and which claims it can check.

An experiment is a list of cells; a cell is one algorithm on one task with all its seeds. Cells of several experiments
that are the same give the same jobs, so one folder of runs serves them all.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from p3o.algorithms import ALGORITHMS
from p3o.config import make_config
from p3o.errors import UserError, nearest
from p3o.experiments.reference import MUJOCO_TASKS, PAPER_STEPS, paper_tasks
from p3o.jobs import Job
from p3o.presets import preset_settings

CHECKPOINTS = {"mujoco": (1 / 3, 2 / 3, 1.0), "atari": (0.4, 0.8, 1.0)}  # shares of the run at which it is scored
CHANGED_SINCE_2019 = ("Ant", "Humanoid")  # tasks that `p3o.envs.mujoco_2019` has as they were
PAPER_SEEDS = {"mujoco": 10, "atari": 3}
# of observations and actions, and whether it is a game
KINDS = {"mujoco": ("vector", "gaussian", False), "atari": ("image", "categorical", True)}
MUJOCO_ALGORITHMS = ("p3o", "a2c", "a2cg", "ppo")
ATARI_ALGORITHMS = ("p3o", "a2c", "acer", "ppo")
FIGURE_GAMES = (  # the nine games whose curves are in the main text
    "BeamRider",
    "FishingDerby",
    "IceHockey",
    "Kangaroo",
    "KungFuMaster",
    "MsPacman",
    "Qbert",
    "RoadRunner",
    "StarGunner",
)


class Cell(NamedTuple):
    """One algorithm on one task, with the settings in which it departs from the preset `paper`."""

    suite: str
    task: str  # HalfCheetah, BeamRider
    algo: str
    variant: str = ""
    settings: dict[str, Any] = {}  # noqa: RUF012 - never changed

    @property
    def env(self) -> str:
        if self.suite == "atari":
            return f"{self.task}NoFrameskip-v4"
        return f"p3o/{self.task}-v2" if self.task in CHANGED_SINCE_2019 else f"{self.task}-v4"

    @property
    def steps(self) -> int:
        return PAPER_STEPS[self.suite]

    @property
    def seeds(self) -> range:
        return range(PAPER_SEEDS[self.suite])

    @property
    def label(self) -> str:
        return f"{self.algo} {self.variant}".strip()

    def config(self) -> Any:
        """The resolved settings."""
        preset = preset_settings(self.algo, "paper", *KINDS[self.suite])
        return make_config(ALGORITHMS[self.algo].config, preset, self.settings)

    def scaled(self, scale: float) -> int:
        """Steps of a run at a scale: at least one iteration."""
        return max(round(self.steps * scale), self.config().steps_per_iteration)

    def jobs(self, seeds: Iterable[int] | None = None, scale: float = 1.0) -> list[Job]:
        steps = self.scaled(scale)
        chosen = self.seeds if seeds is None else seeds
        return [Job(self.env, self.algo, steps, seed, "paper", self.variant, self.settings) for seed in chosen]


class Experiment(NamedTuple):
    """A table or figure of the paper."""

    name: str
    item: str  # where it is in the paper
    title: str
    shows: str
    claims: tuple[str, ...]
    cells: tuple[Cell, ...] = ()  # none: it needs no training

    def jobs(self, seeds: Sequence[int] | None = None, scale: float = 1.0) -> list[Job]:
        return [job for cell in self.cells for job in cell.jobs(seeds, scale)]


def checkpoints(cell: Cell, scale: float = 1.0) -> tuple[int, ...]:
    """The steps at which a run is scored."""
    return tuple(round(cell.scaled(scale) * share) for share in CHECKPOINTS[cell.suite])


def _grid(suite: str, tasks: Iterable[str], algos: Iterable[str]) -> tuple[Cell, ...]:
    algos = tuple(algos)
    return tuple(Cell(suite, task, algo) for task in tasks for algo in algos)


def _lambda_cells(games: Iterable[str], weights: Sequence[float]) -> tuple[Cell, ...]:
    """P3O with 1 − ESS and with fixed weights of the KL term."""
    fixed = [(f"lambda-{weight:g}", {"kl_coef": weight}) for weight in weights]
    return tuple(Cell("atari", game, "p3o", *change) for game in games for change in [("", {}), *fixed])


def _rollout_cells(games: Iterable[str], lengths: Sequence[int]) -> tuple[Cell, ...]:
    """P3O with and without GAE at several rollout lengths; GAE with 16 steps is the paper's own setting."""
    cells = []
    for game in games:
        for use_gae in (True, False):
            for length in lengths:
                parts = [] if use_gae else ["no-gae"]
                parts += [] if length == 16 else [f"steps-{length}"]
                settings: dict[str, Any] = {} if use_gae else {"use_gae": False}
                settings |= {} if length == 16 else {"num_steps": length}
                cells.append(Cell("atari", game, "p3o", "-".join(parts), settings))
    return tuple(cells)


MUJOCO_TABLE = _grid("mujoco", MUJOCO_TASKS, MUJOCO_ALGORITHMS)
ATARI_TABLE = _grid("atari", paper_tasks("atari"), ATARI_ALGORITHMS)

MUJOCO_CURVES = ("P3O ends highest on 8 of 8 MuJoCo tasks",)
ATARI_CURVES = (
    "of the nine games of Fig 5 P3O ends highest on 8 (ACER on StarGunner)",
    "at 40 % of training P3O is the best on 32 of 49 games",
)

_ALL = (
    Experiment(
        "mujoco-table",
        "Tables 2, 10; Fig 6",
        "Returns on eight MuJoCo tasks after 3M steps",
        "P3O, A2C, A2C with GAE and PPO, ten seeds each, scored at 1M, 2M and 3M steps.",
        (
            "P3O is the best of the four on 8 of 8 tasks",
            "of the five tasks with Q-Prop and IPG, P3O is the best on 4 (Q-Prop on Hopper)",
            "A2C without GAE is above A2CG on 8 of 8 tasks",
            "the median over tasks of P3O's score over PPO's is 2.04, over A2C's 2.23",
        ),
        MUJOCO_TABLE,
    ),
    Experiment(
        "atari-table",
        "Table 11",
        "Returns on 49 Atari games after 28M steps",
        "P3O, A2C, ACER and PPO, three seeds each, scored at 40, 80 and 100 % of training.",
        (
            "P3O beats A2C 43:3, ACER 33:13 and PPO 35:13 (ties apart)",
            "the median human-normalised score is 1.63 for P3O, 1.25 for PPO, 1.18 for ACER, 0.29 for A2C",
            "P3O, A2C and ACER score exactly 0 on Enduro and Freeway, where PPO does not",
        ),
        ATARI_TABLE,
    ),
    Experiment(
        "atari-wins",
        "Table 1",
        "Games won by each algorithm at 40, 80 and 100 % of training",
        "Counts of games on which an algorithm has the highest mean, from the runs of atari-table.",
        (
            "at 100 %: A2C 0, ACER 13, PPO 9, P3O 27 (PPO's 9 includes the all-zero tie on Venture)",
            "at 40 %: A2C 0, ACER 9, PPO 8, P3O 32",
            "at 80 %: A2C 0, ACER 11, PPO 10, P3O 28",
        ),
        ATARI_TABLE,
    ),
    Experiment(
        "acer-on-policy-loss",
        "Fig 1",
        "The on-policy part of ACER's loss during training",
        "ACER with c = 10 on five games; the paper names three, BeamRider and Qbert are our choice.",
        (
            "fewer than one in a thousand of the weights (1 − c/ρ)₊ are above zero, at every point of training",
            "ACER is the best of the four on Assault, Riverraid and Breakout",
        ),
        _grid("atari", ("Assault", "Riverraid", "Breakout", "BeamRider", "Qbert"), ("acer",)),
    ),
    Experiment(
        "effect-of-lambda",
        "Fig 2",
        "P3O with fixed and adaptive weights of the KL term",
        "λ = 0, 0.1, 0.5 and 1 − ESS on BeamRider and Qbert.",
        (
            "λ = 0.1 and 0.5 learn faster than λ = 0 on both games",
            "on Qbert 0.1 is above 0.5; on BeamRider 0.5 is at least 0.1",
            "1 − ESS is the best on BeamRider and a gain on Qbert; it ends at 11163 and 27619",
        ),
        _lambda_cells(("BeamRider", "Qbert"), (0.0, 0.1, 0.5)),
    ),
    Experiment(
        "evolution-of-ess",
        "Fig 3",
        "ESS, KL and entropy during training",
        "The logged quantities of P3O and of P3O with λ = 0; the paper does not name the games: those of Fig 2.",
        (
            "the ESS is about 0.85 for most of training",
            "the KL term is roughly constant over the last 80 % of training",
            "the entropy with λ = 0 is below that of P3O",
        ),
        _lambda_cells(("BeamRider", "Qbert"), (0.0,)),
    ),
    Experiment(
        "gae-and-rollout-length",
        "Fig 4",
        "P3O with and without GAE at several rollout lengths",
        "MsPacman and Gravitar with T = 5, 16, 20 and 32; the paper does not print its values of T.",
        (
            "with GAE P3O is above P3O without on both games",
            "longer rollouts help, up to about 20 steps",
            "with GAE and T = 16 it ends at 7516 and 988",
        ),
        _rollout_cells(("MsPacman", "Gravitar"), (5, 16, 20, 32)),
    ),
    Experiment(
        "curves",
        "Figs 5, 6, 7",
        "Training curves on all games and tasks: curves-mujoco and curves-atari",
        "The runs of atari-table and mujoco-table as curves.",
        ATARI_CURVES + MUJOCO_CURVES,
        ATARI_TABLE + MUJOCO_TABLE,
    ),
    Experiment(
        "curves-mujoco",
        "Fig 6",
        "Training curves on eight MuJoCo tasks",
        "The runs of mujoco-table as curves.",
        MUJOCO_CURVES,
        MUJOCO_TABLE,
    ),
    Experiment(
        "curves-atari",
        "Figs 5, 7",
        "Training curves on 49 Atari games",
        "The runs of atari-table as curves.",
        ATARI_CURVES,
        ATARI_TABLE,
    ),
    Experiment(
        "published-comparison",
        "text, Sec 4.2",
        "The paper's P3O against published off-policy scores",
        "The paper's own table against DDQN, C51, SIL and others, from published numbers alone.",
        ("P3O : DDQN is 32:17", "P3O : C51 is 18:30", "P3O : SIL is 26:22"),
    ),
    Experiment(
        "state-distribution-bound",
        "Lemma 4",
        "The bound on the gap of discounted state distributions",
        "The inequality on random tabular MDPs, solved exactly.",
        ("‖d_π − d_β‖₁ ≤ 2γ/(1−γ)² · sqrt(max_s KL(β‖π)) in every draw",),
    ),
)
EXPERIMENTS = {experiment.name: experiment for experiment in _ALL}


def find(name: str) -> Experiment:
    if name not in EXPERIMENTS:
        raise UserError(f"unknown experiment {name!r}{nearest(name, EXPERIMENTS)}; `p3o list experiments` shows them")
    return EXPERIMENTS[name]
