"""Speed of kernels on the CPU, beside NumPy and other installed libraries (`pip install .[bench]`).

Each library's results are first checked against NumPy's in float64. The libraries take turns in one process, and a
figure is the median of its rounds. Compilation is not timed, and results are written to existing memory where the
library can do that. The output is a table, JSON and a chart.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from chart import draw
from comparison import Faults, available, bandwidths, chosen, parser_of, report_bandwidths, rows_of
from peers import PEERS
from reductions import REDUCTIONS
from startup import BATCHES, compilations, first_results
from timing import rounds_of
from workloads import ELEMENTWISE, Workload

WORKLOADS: tuple[type[Workload], ...] = (*ELEMENTWISE, *REDUCTIONS)

#: The numbers of elements measured for each dtype, by default.
SIZES = {"float32": (1 << 10, 1 << 18, 1 << 22, 1 << 24), "float64": (1 << 18, 1 << 24)}
QUICK = {"float32": (1 << 10, 1 << 18)}

#: The number of elements from which arrays fit no cache, and memory's bandwidth is measured.
LARGE = 1 << 24

#: Seconds of pause between libraries: threads of the previous one may still spin and occupy a processor.
PAUSE = 0.003


def report(result: dict[str, Any]) -> None:
    """Print the figures that are not rows of the table."""
    report_bandwidths(result["bandwidths"])
    print("\nMilliseconds from import to the first result, in processes of their own")
    for name, seconds in result["first results"].items():
        print(f"  {name:<36}{seconds * 1e3:>9.1f}")
    counts = ", ".join(f"{count} {name}" for name, count in result["compilations"].items())
    print(f"\nCompiled for {BATCHES} sizes of a batch: {counts}")


def processor() -> str:
    """The processor's name."""
    try:
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()


def processors() -> int:
    """The number of processors that this process may run on: `taskset -c 0` leaves one."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    """Options of the command line."""
    parser = parser_of(__doc__, list(SIZES), Path("output"))
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or (3 if options.quick else 15)
    return options


def main(arguments: list[str] | None = None) -> None:
    """Print the times, and the ratios of ours to the fastest of the others."""
    options = options_of(arguments)
    peers, date, name = available(PEERS, options), datetime.date.today().isoformat(), processor()
    machine = {"processor": name, "processors": processors(), "load before": os.getloadavg()}
    machine |= {"system": platform.system(), "python": platform.python_version()}
    versions = {peer.name: peer.version for peer in peers}
    print(f"{processors()} processors ({name}), load {os.getloadavg()[0]:.1f}; at most {options.rounds} rounds")
    print(", ".join(f"{name} {version}" for name, version in versions.items()))
    workloads = chosen(WORKLOADS, QUICK if options.quick else SIZES, options)

    def time(functions: Sequence[Callable[[], Any]], calls: int) -> list[list[float]]:
        return rounds_of(functions, options.rounds, calls, PAUSE, options.limit)

    faults = Faults()
    rows = rows_of(workloads, peers, time, faults)
    result = {
        "date": date,
        "faults": faults,
        "machine": machine,
        "versions": versions,
        "rows": rows,
        "bandwidths": bandwidths(rows, LARGE),
    }
    result |= {"first results": first_results(options.rounds), "compilations": compilations()}
    report(result)
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / f"cpu-{date}-{processors()}x-{re.sub('[^a-z0-9]+', '-', name.lower()).strip('-')}"
    path.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    draw(rows, list(versions), f"{name}, {date}", path.with_suffix(".png"))
    print(f"\nWritten: {path}.json and .png")
    if faults:
        sys.exit(f"{len(faults)} went wrong, as it says above")


if __name__ == "__main__":
    main()
