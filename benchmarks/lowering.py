"""The time of lowering a large tree: the first run of a long chain of small operations, and of its gradient, by stage.

NumPy runs the plan (``jit=False``), so no C compiler is timed. A stage is a function named in STAGES; its time excludes
that of stages that it calls. "The rest" is the time outside of all stages, which includes the operations themselves.
Times are CPU times, so other processes hardly matter.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import optree
from backends import gen_backend

#: The stages from a tree to a plan: names of functions.
STAGES = ("flatten", "rewrite", "unalias_outputs", "schedule", "decompose", "compile")

#: The repeated link of the chain: each kind of op that rewriting and fusion handle, with values that stay near 1.
OPS: tuple[Callable[[Any, Any, Any], Any], ...] = (
    lambda be, x, y: x * y,
    lambda be, x, y: be.tanh(x),
    lambda be, x, y: x + y,
    lambda be, x, y: x * 0.5,
    lambda be, x, y: be.sin(x),
    lambda be, x, y: y - x,
)


class Clock:
    """Seconds by stage; a stage's time excludes that of inner stages."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inner = [0.0]

    def measure(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A wrapper of a function that measures its calls."""

        def measured(*args: Any, **kwargs: Any) -> Any:
            self._inner.append(0.0)
            start = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                taken = time.process_time() - start
                self.seconds[stage] = self.seconds.get(stage, 0.0) + taken - self._inner.pop()
                self._inner[-1] += taken

        return measured


def holders(name: str) -> Iterator[tuple[Any, Any]]:
    """The modules and classes that hold a function of this name, each with the function."""
    seen: set[int] = set()
    for module in [module for path, module in sys.modules.items() if path.split(".")[0] in ("optree", "backends")]:
        for holder in (module, *(each for each in vars(module).values() if isinstance(each, type))):
            found = vars(holder).get(name)
            if type(found) is type(holders) and id(holder) not in seen:
                seen.add(id(holder))
                yield holder, found


@contextmanager
def measured() -> Iterator[Clock]:
    """A context that measures every stage, in every module that imports it."""
    clock, patches = Clock(), []
    for stage in STAGES:
        patches += [patch.object(holder, stage, clock.measure(stage, found)) for holder, found in holders(stage)]
    for each in patches:
        each.start()
    try:
        yield clock
    finally:
        for each in patches:
            each.stop()


def chain(be: Any, x: Any, y: Any, count: int) -> Any:
    """A chain of operations, each on the one before it."""
    tree = x
    for number in range(count):
        tree = OPS[number % len(OPS)](be, tree, y)
    return tree


def first_run(title: str, count: int, run: Callable[[], Any]) -> float:
    """Time a first run and print the seconds of each stage; return the total."""
    gc.collect()
    with measured() as clock:
        start = time.process_time()
        run()
        whole = time.process_time() - start
    print(f"{title}: {whole:.2f} s, {whole / count * 1e3:.4f} ms for each of {count:,} operations")
    rest = whole - sum(clock.seconds.values())
    for stage, seconds in [*clock.seconds.items(), ("the rest", rest)]:
        print(f"  {stage:15} {seconds:8.3f} s  {seconds / count * 1e3:8.4f} ms an operation")
    return whole


def main(arguments: list[str] | None = None) -> None:
    """Measure the chain and its gradient."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--operations", type=int, default=75_000, help="the length of the chain (75,000)")
    parser.add_argument("--elements", type=int, default=8, help="of each array (8)")
    options = parser.parse_args(arguments)
    be = gen_backend("cpu", jit=False)
    x, y = be.ones(options.elements, name="x"), be.ones(options.elements, name="y")
    z = be.empty(options.elements, name="z")
    count = options.operations
    tree = chain(be, x, y, count)
    first_run("the chain", count, lambda: z.__setitem__(slice(None), tree))
    start = time.process_time()
    gradient = optree.grad(be.sum(chain(be, x, y, count)), x)
    print(f"to build the gradient: {time.process_time() - start:.2f} s")
    first_run("its gradient", count, lambda: z.__setitem__(slice(None), gradient))


if __name__ == "__main__":
    main()
