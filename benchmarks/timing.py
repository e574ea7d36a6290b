"""Times of several ways to do one thing, measured side by side: each round times them one after the other."""

from __future__ import annotations

import argparse
import gc
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

#: From these seconds on, a call needs no untimed warm-up: waking threads and filling caches is a small part.
LONG = 0.02

#: The most seconds to wait for threads to sleep.
WAIT = 0.3

#: A call slower than the quickest by the first factor is measured in the second number of rounds.
SLOW, FEW = 4.0, 3


def options_of(
    purpose: str,
    rounds: int,
    calls: int,
    arguments: list[str] | None,
    devices: Sequence[str] = ("cpu",),
    rows: Sequence[str] = (),
) -> argparse.Namespace:
    """The rounds, calls, device and rows that the command line asks for; prints what is measured with."""
    parser = argparse.ArgumentParser(description=purpose.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=rounds, help=f"rounds of each comparison ({rounds})")
    parser.add_argument("--calls", type=int, default=calls, help=f"calls of each function in a round ({calls})")
    if len(devices) > 1:
        parser.add_argument("--device", default=devices[0], choices=devices, help=f"where all compute ({devices[0]})")
    if rows:
        of = f"rows with these words in their names: {'; '.join(rows)}"
        parser.add_argument("--only", nargs="+", default=[""], metavar="WORD", help=of)
    options = parser.parse_args(arguments)
    if options.rounds < 2 or options.calls < 1:
        parser.error("--rounds is 2 or more, --calls 1 or more")
    print(f"NumPy {np.__version__}; medians of {options.rounds} rounds of {options.calls} calls, taking turns")
    return options


def seconds_of(function: Callable[[], Any], calls: int) -> float:
    """The seconds of a call, averaged over `calls` calls."""
    start = time.perf_counter()
    for _ in range(calls):
        function()
    return (time.perf_counter() - start) / calls


def _is_another_awake() -> bool:
    """Whether another thread of this process runs, on Linux."""
    for stat in Path("/proc/self/task").glob("*/stat"):
        try:
            number, _, rest = stat.read_text().partition(" (")
        except OSError:  # it has ended
            continue
        if int(number) != threading.get_native_id() and rest.rpartition(") ")[2].startswith("R"):
            return True
    return False


def until_asleep() -> None:
    """Wait until this process's other threads sleep: OpenBLAS's spin for 0.1 seconds after a product."""
    end = time.perf_counter() + WAIT
    while _is_another_awake() and time.perf_counter() < end:
        time.sleep(0.001)


def rounds_of(
    functions: Sequence[Callable[[], Any]],
    rounds: int,
    calls: int,
    pause: float = 0.0,
    limit: float = float("inf"),
    clock: Callable[[Callable[[], Any], int], float] = seconds_of,
) -> list[list[float]]:
    """The seconds of a call of each function, in each round; the functions take turns within a round.

    With a pause, the threads of one function go to sleep before the next function, whose first call is not counted if
    it is short; and long functions that are much slower than the quickest have few rounds. After `limit` seconds no
    new round begins. `clock` returns the seconds of a call, averaged over several.
    """
    times: list[list[float]] = [[] for _ in functions]
    seconds = [clock(function, 1) for function in functions]
    slow = [pause > 0 and each > SLOW * min(seconds) and each > LONG for each in seconds]
    gc.collect()
    gc.disable()
    try:
        end = time.perf_counter() + limit
        for number in range(rounds):
            if number >= FEW and time.perf_counter() > end:
                break
            for which in list(range(len(functions)))[:: 1 if number % 2 == 0 else -1]:
                if slow[which] and number >= FEW:
                    continue
                if pause:
                    time.sleep(pause)
                    until_asleep()
                    if seconds[which] < LONG:
                        functions[which]()
                times[which].append(clock(functions[which], calls))
    finally:
        gc.enable()
    return times


def report(title: str, names: Sequence[str], times: list[list[float]]) -> None:
    """Print each median, and its ratio to the first with the middle half of the rounds' own ratios."""
    print(f"\n{title}")
    base = statistics.median(times[0])
    for name, taken in zip(names, times, strict=True):
        median = statistics.median(taken)
        line = f"  {name:<44} {median * 1e6:9.3f} us"
        if taken is not times[0]:
            low, _, high = statistics.quantiles([t / b for t, b in zip(taken, times[0], strict=True)], n=4)
            line += f"   ratio {median / base:5.2f}  (middle half of the rounds: {low:.2f} to {high:.2f})"
        print(line)
