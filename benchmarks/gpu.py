"""Speed of kernels on a GPU, beside CuPy, torch and JAX, if installed (`pip install .[bench-gpu]`).

As `cpu.py`, but CUDA events measure the times. The output is a table, JSON and a chart, named after the card and the
day.
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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from chart import draw
from comparison import Faults, available, bandwidths, chosen, parser_of, report_bandwidths, rows_of, together
from device_peers import DEVICE_PEERS
from reductions import REDUCTIONS
from rows import ROWS
from startup import first_kernels
from timing import rounds_of, seconds_of
from workloads import ELEMENTWISE, Copy, Workload

from backends import gen_backend
from optree import OpTreeNode, function
from optree.errors import BackendError

WORKLOADS: tuple[type[Workload], ...] = (*ELEMENTWISE, *REDUCTIONS, *ROWS)

#: The numbers of elements measured for each dtype: an array of the largest takes 268 million bytes.
SIZES = {
    "float32": (1 << 10, 1 << 20, 1 << 26),
    "float64": (1 << 25,),
    "float16": (1 << 20, 1 << 27),
    "bfloat16": (1 << 20, 1 << 27),
}
QUICK = {"float32": (1 << 10, 1 << 18), "float16": (1 << 18,), "bfloat16": (1 << 18,)}

#: The number of elements from which arrays fit no cache, and memory's bandwidth is measured.
LARGE = 1 << 25

#: Minimum calls per round: the device is idle at the start, so the first call includes the latency of its launch.
LEAST_CALLS = 10

#: The elements of a small assignment, and its runs per synchronisation: so few that the launch queue never fills.
SMALL, CALLS = 1 << 10, 100


#: The rows of gpu.md's table by counts, by the titles of the workloads that they are of; and by how titles of rows
#: of one length begin.
COUNTED = {
    "a*b + c*sin(d)": "chain",
    "GELU + softplus": "activations",
    "Black-Scholes": "black scholes",
    "Adam, three results": "adam",
    "x.T + y": "transposed add",
    "sum": "total",
    "mean((x - y)**2)": "squared error",
    "sum of columns": "column sums",
    "sum of rows": "row sums",
    "batch norm over rows": "batch norm",
    "softmax of rows": "softmax-8192",
    "layer norm": "layer norm-8192",
}
OF_LENGTH = {"softmax of rows": "softmax", "layer norm": "layer norm"}


def predictions(table: str) -> dict[tuple[str, str], float]:
    """The shares of the memory's bandwidth that the table by counts has, by row and dtype."""
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("| ")]
    head = next(cells for cells in lines if cells[0] == "rows or arrays")
    shares = {dtype: head.index(dtype) for dtype in ("float32", "float16", "bfloat16")}
    return {
        (cells[0], dtype): float(cells[n].removesuffix(" %")) / 100
        for cells in lines[lines.index(head) + 1 :]
        if len(cells) == len(head)
        for dtype, n in shares.items()
    }


def with_predictions(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Bandwidths with what is predicted of them, `None` where the table has no such row; a copy is their unit."""
    known = predictions((Path(__file__).parent / "gpu.md").read_text())
    for row in found:
        of_rows = re.fullmatch(r"(.*), ([\d,]+) long", row["workload"])
        if of_rows:
            name = f"{OF_LENGTH.get(of_rows[1])}-{of_rows[2].replace(',', '')}"
        else:
            name = COUNTED.get(row["workload"], "")
        row["predicted"] = 1.0 if row["workload"] == Copy.title else known.get((name, row["dtype"]))
    return found


class DeviceClock:
    """Seconds by CUDA events, from an idle device to the end of all calls."""

    def __init__(self, cupy: Any) -> None:
        self._cuda = cupy.cuda

    def __call__(self, call: Callable[[], Any], calls: int) -> float:
        cuda = self._cuda
        stream, start, end = cuda.get_current_stream(), cuda.Event(), cuda.Event()
        cuda.Device().synchronize()
        start.record(stream)
        for _ in range(calls):
            call()
        if hasattr(call, "wait"):  # work on streams of its own
            call.wait()
        end.record(stream)
        end.synchronize()
        return cuda.get_elapsed_time(start, end) / 1e3 / calls


class HostClock:
    """Seconds that calls take on the host, while the device runs behind."""

    def __init__(self, cupy: Any) -> None:
        self._cuda = cupy.cuda

    def __call__(self, call: Callable[[], Any], calls: int) -> float:
        self._cuda.Device().synchronize()
        return seconds_of(call, calls)


def on_host(be: Any, rounds: int) -> dict[str, float]:
    """Host seconds of a small repeated assignment, and of the same in CuPy."""
    cupy = be.cupy
    x, y, z = be.full(SMALL, 2), be.full(SMALL, 3), be.empty(SMALL)
    a, b, c = (tensor.raw() for tensor in (x, y, z))
    tree, kept = x * y + 1, OpTreeNode.build("assign", z, x * y + 1)

    def anew() -> None:
        z[:] = x * y + 1

    def again() -> None:
        z[:] = tree

    def by_cupy() -> None:
        cupy.multiply(a, b, out=c)
        cupy.add(c, 1, out=c)

    ways = {
        "an assignment built anew": anew,
        "a tree kept and assigned again": again,
        "an assignment kept and executed again": kept.execute,
        "a function with an update": function([], updates={z: tree}),
        "CuPy, two calls": by_cupy,
    }
    times = rounds_of(list(ways.values()), rounds, CALLS, clock=HostClock(cupy))
    return {name: statistics.median(each) for name, each in zip(ways, times, strict=True)}


def report(result: dict[str, Any]) -> None:
    """Print the figures that are not rows of the table."""
    report_bandwidths(result["bandwidths"])
    print(f"\nMicroseconds of the host for an assignment of {SMALL:,} elements")
    for name, seconds in result["on the host"].items():
        print(f"  {name:<40}{seconds * 1e6:>9.1f}")
    print("\nMilliseconds of the first kernel, in processes of their own")
    for name, seconds in result["first kernels"].items():
        print(f"  {name:<40}{seconds * 1e3:>9.1f}")


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    """Options of the command line."""
    parser = parser_of(__doc__, list(SIZES), Path(__file__).parent / "results")
    parser.add_argument("--no-startup", action="store_true", help="leave out the first kernel of new processes")
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or (3 if options.quick else 15)
    return options


def main(arguments: list[str] | None = None) -> None:
    """Print the times, and the ratios of ours to the fastest of the others."""
    options = options_of(arguments)
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # else JAX takes most of the memory at once
    try:
        be: Any = gen_backend("gpu")
    except BackendError as error:
        sys.exit(f"nothing is measured without a GPU: {error}")
    properties = be.cupy.cuda.runtime.getDeviceProperties(be.device_id)
    card, date = properties["name"].decode(), datetime.date.today().isoformat()
    peers = available(DEVICE_PEERS, options)
    versions = {peer.name: peer.version for peer in peers}
    print(f"{card}; at most {options.rounds} rounds\n" + ", ".join(f"{name} {of}" for name, of in versions.items()))

    def time_of(calls_of: Sequence[Callable[[], Any]], calls: int) -> list[list[float]]:
        calls = max(calls, LEAST_CALLS)
        return rounds_of(calls_of, options.rounds, calls, limit=options.limit, clock=DeviceClock(be.cupy))

    path = options.output / f"gpu-{date}-{re.sub('[^a-z0-9]+', '-', card.lower()).strip('-')}"
    faults = Faults()
    rows = rows_of(chosen(WORKLOADS, QUICK if options.quick else SIZES, options), peers, time_of, faults)
    rows = together(path.with_suffix(".json"), rows)
    machine = {"card": card, "system": platform.system(), "python": platform.python_version()}
    result = {"date": date, "machine": machine, "versions": versions, "faults": faults, "rows": rows}
    result |= {"bandwidths": with_predictions(bandwidths(rows, LARGE)), "on the host": on_host(be, options.rounds)}
    result["first kernels"] = {} if options.no_startup else first_kernels(options.rounds)
    report(result)
    options.output.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    names = dict.fromkeys(name for row in rows for name in row["seconds"])
    draw(rows, list(names), f"{card}, {date}", path.with_suffix(".png"))
    print(f"\nWritten: {path}.json and .png")
    if faults:
        sys.exit(f"{len(faults)} went wrong, as it says above")


if __name__ == "__main__":
    main()
