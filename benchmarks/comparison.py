"""Compare libraries: check the results of each workload, time the libraries in turns, and print the ratios."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from peers import NumPy, Peer
from workloads import Copy, Workload

#: The relative and absolute tolerance of results: above the rounding of long float32 sums, below a wrong formula.
TOLERANCES = {"float32": (5e-4, 5e-6), "float64": (1e-9, 1e-11), "float16": (1e-2, 5e-3), "bfloat16": (5e-2, 4e-2)}

#: The dtypes of two bytes, which only workloads that `has_halves` take.
HALVES = ("float16", "bfloat16")

#: From this number of elements on, a call is measured once per round; smaller calls are repeated.
ONCE = 1 << 21

#: From functions and how often each is called in a round to the seconds of a call in each round.
Timer = Callable[[Sequence[Callable[[], Any]], int], list[list[float]]]


class Faults(list[str]):
    """Failures. Each is printed at once, and a long run continues without the failed workload."""

    def add(self, text: str) -> None:
        """Note a fault."""
        print(f"WRONG: {text}", flush=True)
        self.append(text)


def checked(workload: Workload, peers: Sequence[Peer], faults: Faults) -> dict[str, Callable[[], Any]]:
    """Each library's function for a workload, if it has one, after a check against NumPy in float64."""
    run, results = NumPy().way(type(workload)(workload.elements, np.float64), [])
    run()
    expected = [np.asarray(x) for x in results()]
    shapes = [x.shape for x in expected]
    relative, absolute = TOLERANCES[str(workload.dtype)]
    bounds = [relative * np.abs(x) + absolute * max(1.0, float(np.abs(x).max())) for x in expected]
    ways = {}
    for peer in peers:
        if peer.name in workload.without or not _has(workload, peer.name):
            continue
        what = f"{workload.title}, {workload.elements} {workload.dtype}: {peer.name}"
        try:
            run, results = peer.way(workload, shapes)
            run()
            found = zip(results(), expected, bounds, strict=True)
            is_right = all(
                (np.abs(np.reshape(got, wanted.shape) - wanted) <= bound).all() for got, wanted, bound in found
            )
        except peer.refusals as error:
            _note(f"{workload.title}: {peer.name} cannot do it, left out: {str(error)[:120]}")
        except Exception as error:
            faults.add(f"{what} fails: {type(error).__name__}: {str(error)[:300]}")
        else:
            if is_right:
                ways[peer.name] = run
            else:
                faults.add(f"{what} is wrong")
    return ways


@cache
def _note(text: str) -> None:
    """Print it, once."""
    print(text)


def _has(workload: Workload, name: str) -> bool:
    """Whether a workload has a method for a library; libraries without methods use the formula."""
    return getattr(type(workload), name, None) is not getattr(Workload, name, Workload)


def chosen(
    workloads: Sequence[type[Workload]], usual: Mapping[str, Sequence[int]], options: argparse.Namespace
) -> Iterator[Workload]:
    """The chosen workloads, made one at a time; `usual` has the default sizes of each dtype."""
    words = [word.lower() for word in options.only]
    names = [f"{cls.__name__} {cls.title}".lower() for cls in workloads]
    if unknown := [word for word in words if not any(word in name for name in names)]:
        sys.exit(f"there is no workload with {unknown[0]!r} in its name; there are {', '.join(names)}")
    for cls in workloads:
        if words and not any(word in f"{cls.__name__} {cls.title}".lower() for word in words):
            continue
        for dtype, sizes in usual.items():
            for elements in cls.sizes(options.sizes or sizes):
                if dtype in options.dtypes and (cls.has_halves or dtype not in HALVES):
                    yield cls(elements, dtype)


def rows_of(workloads: Iterable[Workload], peers: Sequence[Peer], time: Timer, faults: Faults) -> list[dict[str, Any]]:
    """Measure workloads and print each row at once; workloads that op-tree fails are left out."""
    names = [peer.name for peer in peers]
    head = "".join(f"{name:>12}" for name in names)
    print(f"\nMedians in microseconds\n{'':<32}{'elements':>11}{'':>9}{head}   ours/fastest   by least times")
    rows: list[dict[str, Any]] = []
    for workload in workloads:
        title, elements, dtype = workload.title, workload.elements, str(workload.dtype)
        ways = checked(workload, peers, faults)
        if "optree" not in ways:
            continue
        calls = min(100, max(1, ONCE // elements))
        times = dict(zip(ways, time(list(ways.values()), calls), strict=True))
        seconds, least = ({name: of(each) for name, each in times.items()} for of in (statistics.median, min))
        row = {"workload": title, "elements": elements, "dtype": dtype, "seconds": seconds, "least": least}
        row |= {"ratio": ratio(seconds), "ratio of least": ratio(least)}
        row["bytes"] = workload.moved * elements * workload.dtype.itemsize
        rows.append(row)
        cells = "".join(f"{seconds[name] * 1e6:>12.1f}" if name in seconds else f"{'-':>12}" for name in names)
        ratios = f"{row['ratio']:>15.2f}{row['ratio of least']:>17.2f}"
        print(f"{title:<32}{elements:>11,}{dtype:>9}{cells}{ratios}", flush=True)
    return rows


def together(path: Path, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge rows with those of an earlier run's JSON, so that a long run can be done in parts."""

    def which(row: dict[str, Any]) -> tuple[Any, ...]:
        return row["workload"], row["elements"], row["dtype"]

    now = set(map(which, rows))
    earlier = json.loads(path.read_text())["rows"] if path.exists() else []
    return [*(row for row in earlier if which(row) not in now), *rows]


def ratio(seconds: Mapping[str, float]) -> float:
    """op-tree's time divided by that of the fastest other library."""
    return seconds["optree"] / min((each for name, each in seconds.items() if name != "optree"), default=float("nan"))


def bandwidths(rows: Sequence[dict[str, Any]], large: int) -> list[dict[str, Any]]:
    """The bandwidth of each large workload divided by that of the fastest copy of its size, by minimum times."""
    copies = {}
    for row in rows:
        if row["workload"] == Copy.title and row["elements"] >= large:
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


def report_bandwidths(found: Sequence[dict[str, Any]]) -> None:
    """Print them."""
    print("\nBytes read and written in a second, of arrays that fit no cache")
    for row in found:
        where = f"{row['workload']:<32}{row['elements']:>11,}{row['dtype']:>9}"
        said = f", predicted {row['predicted']:.0%}" if row.get("predicted") else ""
        print(f"  {where}{row['rate'] / 1e9:>9.1f} GB/s, {row['share']:.0%} of the copy's by {row['copied by']}{said}")


def available(classes: Iterable[type[Peer]], options: argparse.Namespace) -> list[Peer]:
    """The libraries that are asked for and installed."""
    found: list[Peer] = []
    for cls in classes:
        if options.peers is not None and cls.name not in (*options.peers, "numpy", "optree"):
            continue
        try:
            found.append(cls())
        except ImportError as error:
            print(f"{cls.name}: left out: {error}")
    return found


def parser_of(purpose: str, dtypes: Iterable[str], output: Path) -> argparse.ArgumentParser:
    """A parser with the options of all comparisons."""
    parser = argparse.ArgumentParser(description=purpose.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few sizes and rounds, to see that everything works")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="WORD", help="workloads with these words in their names"
    )
    parser.add_argument("--peers", nargs="*", help="libraries to measure beside (all that are installed)")
    parser.add_argument("--sizes", type=int, nargs="+", help="numbers of elements")
    parser.add_argument("--dtypes", nargs="+", default=list(dtypes), choices=dtypes, help="dtypes (all)")
    parser.add_argument("--rounds", type=int, help="rounds of each comparison at the most (15, or 3 with --quick)")
    parser.add_argument("--limit", type=float, default=4.0, help="seconds after which no new round of a row begins (4)")
    parser.add_argument("--output", type=Path, default=output, help=f"where JSON and the picture go ({output})")
    return parser
