"""How fast kernels on the CPU are, beside NumPy and what else is installed (`pip install .[bench]`).

The results of each way are checked against NumPy's in float64 first. The ways
take turns in one process; a figure is the median of its rounds. What a way
needs to be at its best is done before: it is compiled, and gives its result
into memory that is there where it can. Writes a table, JSON and a picture.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from chart import draw
from peers import PEERS, NumPy, Peer
from reductions import REDUCTIONS
from startup import BATCHES, compilations, first_results
from timing import rounds_of
from workloads import ELEMENTWISE, Copy, Workload

WORKLOADS: tuple[type[Workload], ...] = (*ELEMENTWISE, *REDUCTIONS)

#: Which numbers of elements are measured in which dtype where the command line does not say.
SIZES = {"float32": (1 << 10, 1 << 18, 1 << 22, 1 << 24), "float64": (1 << 18, 1 << 24)}
QUICK = {"float32": (1 << 10, 1 << 18)}

#: Arrays of so many elements fit no cache: what they take is memory's time.
LARGE = 1 << 24

#: The relative and absolute error that a result may have: what tells another formula from long sums in float32.
TOLERANCES = {"float32": (5e-4, 5e-6), "float64": (1e-9, 1e-11)}

#: Seconds between ways: the threads of the last one spin for a while before they sleep, and would take a processor.
PAUSE = 0.003


def measured(workload: Workload, peers: list[Peer], rounds: int, limit: float) -> dict[str, list[float]]:
    """The seconds of each way that this workload has, in each round, its results checked before."""
    run, results = NumPy().way(type(workload)(workload.elements, np.float64), [])
    run()
    expected = [np.asarray(x) for x in results()]
    shapes = [x.shape for x in expected]
    relative, absolute = TOLERANCES[str(workload.dtype)]
    bounds = [relative * np.abs(x) + absolute * max(1.0, float(np.abs(x).max())) for x in expected]
    names, functions = [], []
    for peer in peers:
        if peer.name in workload.without or not _has(workload, peer.name):
            continue
        run, results = peer.way(workload, shapes)
        run()
        for got, wanted, bound in zip(results(), expected, bounds, strict=True):
            if not (np.abs(np.reshape(got, wanted.shape) - wanted) <= bound).all():
                raise AssertionError(f"{workload.title}, {workload.elements} {workload.dtype}: {peer.name} is wrong")
        names.append(peer.name)
        functions.append(run)
    calls = min(100, max(1, (1 << 21) // workload.elements))
    return dict(zip(names, rounds_of(functions, rounds, calls, PAUSE, limit), strict=True))


def _has(workload: Workload, name: str) -> bool:
    """Whether a workload says how a library does it; those that are not named take the formula."""
    return getattr(type(workload), name, None) is not getattr(Workload, name, Workload)


def chosen(options: argparse.Namespace) -> Iterator[Workload]:
    """The workloads that are asked for, each made when its turn comes."""
    words = [word.lower() for word in options.only]
    names = [f"{cls.__name__} {cls.title}".lower() for cls in WORKLOADS]
    if unknown := [word for word in words if not any(word in name for name in names)]:
        sys.exit(f"there is no workload with {unknown[0]!r} in its name; there are {', '.join(names)}")
    for cls in WORKLOADS:
        if words and not any(word in f"{cls.__name__} {cls.title}".lower() for word in words):
            continue
        for dtype, usual in (QUICK if options.quick else SIZES).items():
            for elements in cls.sizes(options.sizes or usual):
                if dtype in options.dtypes:
                    yield cls(elements, dtype)


def rows_of(options: argparse.Namespace, peers: list[Peer]) -> list[dict[str, Any]]:
    """Measure what is asked for, and print each row as it comes."""
    names = [peer.name for peer in peers]
    head = "".join(f"{name:>11}" for name in names)
    print(f"\nMedians in microseconds\n{'':<26}{'elements':>11}{'':>9}{head}   ours/fastest   by least times")
    rows: list[dict[str, Any]] = []
    for workload in chosen(options):
        title, elements, dtype = workload.title, workload.elements, str(workload.dtype)
        times = measured(workload, peers, options.rounds, options.limit)
        seconds, least = ({name: of(each) for name, each in times.items()} for of in (statistics.median, min))
        row = {"workload": title, "elements": elements, "dtype": dtype, "seconds": seconds, "least": least}
        row |= {"ratio": ratio(seconds), "ratio of least": ratio(least)}
        row["bytes"] = workload.moved * elements * workload.dtype.itemsize
        rows.append(row)
        cells = "".join(f"{seconds[name] * 1e6:>11.1f}" if name in seconds else f"{'-':>11}" for name in names)
        ratios = f"{row['ratio']:>15.2f}{row['ratio of least']:>17.2f}"
        print(f"{title:<26}{elements:>11,}{dtype:>9}{cells}{ratios}", flush=True)
    return rows


def ratio(seconds: dict[str, float]) -> float:
    """Our time over that of the fastest other."""
    return seconds["optree"] / min(each for name, each in seconds.items() if name != "optree")


def bandwidths(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Bytes a second of what moves much memory, over those of the fastest copy of as many elements, by least times."""
    copies = {}
    for row in rows:
        if row["workload"] == Copy.title and row["elements"] >= LARGE:
            name = min(row["least"], key=row["least"].get)
            copies[row["elements"], row["dtype"]] = name, row["bytes"] / row["least"][name]
    found = []
    for row in rows:
        name, best = copies.get((row["elements"], row["dtype"]), ("", 0))
        if name and row["bytes"]:
            rate = row["bytes"] / row["least"]["optree"]
            found.append({**{key: row[key] for key in ("workload", "elements", "dtype")}, "rate": rate})
            found[-1] |= {"copy": best, "copied by": name, "share": rate / best}
    return found


def report(result: dict[str, Any]) -> None:
    """Print what stands beside the rows."""
    print("\nBytes read and written in a second, from 2^24 elements on")
    for row in result["bandwidths"]:
        where = f"{row['workload']:<26}{row['elements']:>11,}{row['dtype']:>9}"
        print(f"  {where}{row['rate'] / 1e9:>9.1f} GB/s, {row['share']:.0%} of the copy's by {row['copied by']}")
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
    """How many processors this process may run on: `taskset -c 0` leaves one."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def available(options: argparse.Namespace) -> list[Peer]:
    """The libraries that are asked for and installed."""
    found: list[Peer] = []
    for cls in PEERS:
        if options.peers is not None and cls.name not in (*options.peers, "numpy", "optree"):
            continue
        try:
            found.append(cls())
        except ImportError as error:
            print(f"{cls.name}: not installed, left out (pip install .[bench]): {error}")
    return found


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    """What is asked for on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few sizes and rounds, to see that everything works")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="WORD", help="workloads with these words in their names"
    )
    parser.add_argument("--peers", nargs="*", help="libraries beside NumPy (all that are installed)")
    parser.add_argument("--sizes", type=int, nargs="+", help="numbers of elements")
    parser.add_argument("--dtypes", nargs="+", default=list(SIZES), choices=SIZES, help="dtypes (both)")
    parser.add_argument("--rounds", type=int, help="rounds of each comparison at the most (15, or 3 with --quick)")
    parser.add_argument("--limit", type=float, default=4.0, help="seconds after which no new round of a row begins (4)")
    parser.add_argument("--output", type=Path, default=Path("output"), help="where JSON and the picture go (output)")
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or (3 if options.quick else 15)
    return options


def main(arguments: list[str] | None = None) -> None:
    """Print the times, and the ratios of ours to the fastest of the others."""
    options = options_of(arguments)
    peers, date, name = available(options), datetime.date.today().isoformat(), processor()
    machine = {"processor": name, "processors": processors(), "load before": os.getloadavg()}
    machine |= {"system": platform.system(), "python": platform.python_version()}
    versions = {peer.name: peer.version for peer in peers}
    print(f"{processors()} processors ({name}), load {os.getloadavg()[0]:.1f}; at most {options.rounds} rounds")
    print(", ".join(f"{name} {version}" for name, version in versions.items()))
    rows = rows_of(options, peers)
    result = {"date": date, "machine": machine, "versions": versions, "rows": rows, "bandwidths": bandwidths(rows)}
    result |= {"first results": first_results(options.rounds), "compilations": compilations()}
    report(result)
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / f"cpu-{date}-{processors()}x-{re.sub('[^a-z0-9]+', '-', name.lower()).strip('-')}"
    path.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    draw(rows, list(versions), f"{name}, {date}", path.with_suffix(".png"))
    print(f"\nWritten: {path}.json and .png")


if __name__ == "__main__":
    main()
