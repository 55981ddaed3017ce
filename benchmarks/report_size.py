"""The report of 320 runs: seconds, peak memory and size of the page.

python benchmarks/report_size.py [FOLDER]     # writes synthetic runs into a temporary folder unless one is given
"""

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="of runs")
    given = parser.parse_args().folder
    from synthetic import write_paper_sweep

    with tempfile.TemporaryDirectory() as folder:
        root = given or write_paper_sweep(Path(folder))
        started = time.perf_counter()
        from p3o.report import write_report

        page = write_report(root, Path(folder) / "report.html")
        seconds = time.perf_counter() - started
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        size = page.stat().st_size / 1e6
        print(f"{len(list(root.rglob('config.json')))} runs: {seconds:.1f} s, peak {peak:.0f} MiB, page {size:.2f} MB")


if __name__ == "__main__":
    main()
