"""What `p3o bench` found, told: a table, the facts beside it, what would help; or all of it as JSON."""

from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from p3o.bench import COLUMNS, Picture, Result
from p3o.device import available_cores
from p3o.provenance import machine, versions

FORMAT = 1  # of the JSON
LARGE_NETWORK = 1_000_000  # parameters, from which on a GPU has enough to do


def advice(picture: Picture, cores: int | None = None) -> list[str]:
    """What would make training faster, in words, most important first."""
    lines = []
    for reason in (_simulator_bound, _update_bound, _overhead_bound, _logging_bound):
        lines += reason(picture.results)
    cores = len(available_cores()) if cores is None else cores
    if cores > 1 and not _has_images(picture):
        lines.append(f"a run uses one core: {cores} runs at once on {cores} cores with `p3o sweep`")
    return lines


def _has_images(picture: Picture) -> bool:
    """Convolutions take all the cores that there are."""
    return any(r.has_images for r in picture.results)


def _names(results: list[Result]) -> str:
    return ", ".join(r.algo for r in results)


def _percent(shares: list[float]) -> str:
    low, high = round(100 * min(shares)), round(100 * max(shares))
    return f"{low} %" if low == high else f"{low} to {high} %"


def _is_simulator_bound(result: Result) -> bool:
    return result.shares["simulator"] >= 0.5


def _simulator_bound(results: list[Result]) -> list[str]:
    bound = [r for r in results if _is_simulator_bound(r)]
    if not bound:
        return []
    percent = _percent([r.shares["simulator"] for r in bound])
    return [
        f"{_names(bound)}: {percent} of the time is your environment's step: a faster environment is what would "
        "speed up a run; a GPU or a smaller network would not"
    ]


def _update_bound(results: list[Result]) -> list[str]:
    lines = []
    on_cpu = [r for r in results if r.device == "cpu" and not r.device_reason]
    bound = [r for r in on_cpu if r.shares["updating"] >= 0.4 and not _is_simulator_bound(r)]
    large = [r for r in bound if r.has_images or r.num_parameters >= LARGE_NETWORK]
    small = [r for r in bound if r not in large]
    if large:
        percent = _percent([r.shares["updating"] for r in large])
        lines.append(f"{_names(large)}: updates dominate ({percent}): a GPU may well speed up networks of this size")
    if small:
        percent = _percent([r.shares["updating"] for r in small])
        knobs = {"p3o": "off_policy_updates or replay_samples", "acer": "off_policy_updates", "ppo": "num_epochs"}
        names = [f"{knobs[r.algo]} ({r.algo})" for r in small if r.algo in knobs]
        fewer = f"; fewer come with a lower {', '.join(names)}, at a price in what is learnt" if names else ""
        lines.append(
            f"{_names(small)}: updates dominate ({percent}): for networks of this size a GPU gains little{fewer}"
        )
    return lines


def _overhead_bound(results: list[Result]) -> list[str]:
    def share(result: Result) -> float:
        return sum(result.shares[name] for name in ("acting", "normalising", "copying"))

    bound = [r for r in results if share(r) >= 0.4 and r.num_envs < 16]
    if not bound:
        return []
    return [
        f"{_names(bound)}: {_percent([share(r) for r in bound])} of the time is acting and bookkeeping around the "
        "steps, which costs little more for many environments than for one: try --set num_envs=16, and see what it "
        "does to learning"
    ]


def _logging_bound(results: list[Result]) -> list[str]:
    bound = [r for r in results if r.shares["logging"] >= 0.1]
    if not bound:
        return []
    return [
        f"{_names(bound)}: {_percent([r.shares['logging'] for r in bound])} of the time goes into files: a faster "
        "disk, or fewer checkpoints with --set checkpoint_every=100000"
    ]


def as_json(picture: Picture) -> dict[str, Any]:
    """The picture as plain data."""
    return {
        "format": FORMAT,
        "env": picture.env,
        "preset": picture.preset,
        "machine": machine() | {"usable_cores": len(available_cores())},
        "versions": versions(),
        "import_seconds": picture.import_seconds,
        "simulator_steps_per_second": picture.bare_steps_per_second,
        "algorithms": [_result_as_json(r) for r in picture.results],
        "skipped": picture.skipped,
        "advice": advice(picture),
    }


def _result_as_json(result: Result) -> dict[str, Any]:
    product = result.product
    entries = {k: v for k, v in result._asdict().items() if k not in ("parts", "product")}
    return entries | {
        "iteration_seconds": result.parts,
        "shares": result.shares,
        "matrix_product": None
        if product is None
        else {"gflops": product.gflops, "plain_gflops": product.plain_gflops, "share": product.share},
    }


def facts(picture: Picture) -> list[str]:
    """What is said beside the table."""
    lines = [
        f"simulator alone, random actions: {picture.bare_steps_per_second:,.0f} steps/s",
        f"start-up: {picture.import_seconds:.1f} s for imports, then "
        + ", ".join(f"{r.algo} {r.set_up_seconds:.1f} + {r.compile_seconds:.1f} s" for r in picture.results)
        + " to set up and compile (or to read from the compile cache)",
    ]
    lines += [f"{r.algo} learns on {r.device_reason}" for r in picture.results if r.device_reason]
    for r in picture.results:
        if r.product is not None:
            lines.append(
                f"{r.algo}: replayed updates multiply matrices at {r.product.gflops:.0f} GFLOP/s, "
                f"{r.product.share:.0%} of the {r.product.plain_gflops:.0f} that plain products of the shapes reach"
            )
    shortened = [r for r in picture.results if r.is_shortened]
    if shortened:
        what = ", ".join(f"{r.algo} {r.num_steps}" for r in shortened)
        lines.append(f"the environment is slow, so iterations were shortened for this bench (steps: {what})")
    lines += [f"{algo} was left out: {reason}" for algo, reason in picture.skipped.items()]
    return lines


def show(picture: Picture, console: Console) -> None:
    """A table on a terminal, else plain lines; then facts and advice."""
    title = f"{picture.env}, preset {picture.preset}, {'all cores' if _has_images(picture) else 'one thread'}"
    # The file is asked, not rich, which also says yes to FORCE_COLOR in a log.
    if console.file.isatty() and not console.is_dumb_terminal:
        console.print(table(picture.results, title))
        write: Callable[[str], Any] = lambda text: console.print(text, highlight=False, markup=False)  # noqa: E731
    else:
        write = lambda text: print(text, file=console.file)  # noqa: E731
        write(title)
        for r in picture.results:
            shares = ", ".join(f"{name} {share:.0%}" for name, share in r.shares.items())
            write(f"{r.algo} {r.num_envs}×{r.num_steps}: {r.steps_per_second:,.0f} steps/s; {shares}")
    for line in facts(picture):
        write(line)
    for line in advice(picture):
        write(f"→ {line}")


def table(results: list[Result], title: str) -> Table:
    drawn = Table(title=title, title_justify="left")
    drawn.add_column("algorithm")
    for name in ("envs × steps", "steps/s", *COLUMNS):
        drawn.add_column(name, justify="right")
    for r in results:
        largest = max(r.shares, key=lambda name: r.shares[name])
        cells = [f"[bold]{s:.0%}[/]" if name == largest else f"{s:.1%}" for name, s in r.shares.items()]
        drawn.add_row(r.algo, f"{r.num_envs} × {r.num_steps}", f"{r.steps_per_second:,.0f}", *cells)
    return drawn
