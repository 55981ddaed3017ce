"""How long an experiment would take, by the rough speeds of `p3o.speeds`."""

from p3o import speeds
from p3o.experiments.catalog import Experiment


def core_hours(experiment: Experiment) -> float:
    """Every run at full size, one after the other."""
    return (
        sum(
            speeds.seconds_per_step(cell.env, cell.algo, cell.suite == "atari") * cell.steps * len(cell.seeds)
            for cell in experiment.cells
        )
        / 3600
    )
