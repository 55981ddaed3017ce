"""`p3o reproduce EXPERIMENT OUT`: the runs of a table or figure, then its table beside the paper's."""

import sys
from collections.abc import Sequence
from pathlib import Path

from p3o import checkpoint
from p3o.errors import UserError
from p3o.experiments import catalog
from p3o.sweeps.schedule import FORMAT, INDEX

TABLES = {"published-comparison": "comparison.csv", "state-distribution-bound": "bound.csv"}
WITHOUT_TRAINING = tuple(TABLES)


def reproduce(
    name: str,
    out: Path,
    seeds: Sequence[int] | None = None,
    scale: float = 1.0,
    workers: int | None = None,
    ray: str | None = None,
) -> int:
    """Run an experiment and write its table; returns the exit code. Called again, it goes on where it stopped."""
    experiment = catalog.find(name)
    if not 0 < scale <= 1:
        raise UserError(f"--scale {scale:g}: a number above 0 and at most 1 is needed")
    _check_folder(name, out)
    if name in WITHOUT_TRAINING:
        _compute(name, out, seeds is not None or scale != 1 or workers is not None or ray is not None)
        print(out)
        return 0
    from p3o import sweep

    about = {"experiment": name, "scale": scale}
    result = sweep.run(experiment.jobs(seeds, scale), out, workers=workers, ray=ray, about=about)
    if result.stopped is not None:
        print(out)
        return 128 + int(result.stopped)
    _write(experiment, out, seeds, scale)
    print(out)
    return 1 if result.failed else 0


def _check_folder(name: str, out: Path) -> None:
    """Refuse a folder with the summary of another experiment, which would be lost."""
    held = None
    if (out / INDEX).exists():
        held = checkpoint.read_json(out / INDEX, "a sweep", FORMAT).get("experiment")
    elif (out / "summary.md").exists():
        held = next((each for each in WITHOUT_TRAINING if (out / TABLES[each]).exists()), "another experiment")
    if held not in (None, name):
        raise UserError(f"{out} holds {held}; choose another folder for {name}")


def _write(experiment: catalog.Experiment, out: Path, seeds: Sequence[int] | None, scale: float) -> None:
    """The experiment's table; the page beside it is the sweep's."""
    from p3o.experiments import scores, tables

    results = scores.collect(experiment, out, seeds, scale)
    try:
        files = tables.write(experiment, results, out, scale)
    except OSError as error:
        raise UserError(f"{error.filename or out} cannot be written: {error.strerror}") from None
    for file in files:
        print(f"written: {file}", file=sys.stderr)


def _compute(name: str, out: Path, has_options: bool) -> None:
    """An experiment without training."""
    from p3o.experiments import published, state_bound

    if has_options:
        raise UserError(f"{name} trains nothing: it takes no --seeds, --scale, --workers or --ray")
    try:
        out.mkdir(parents=True, exist_ok=True)
        files = published.write(out) if name == "published-comparison" else state_bound.write(out)
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error.strerror}") from None
    print((out / "summary.md").read_text(encoding="utf-8"), end="")
    for file in files:
        print(f"written: {file}", file=sys.stderr)
