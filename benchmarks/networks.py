"""Networks' layers and loops beside other libraries: forward, and with the derivatives by all operands, in float32.

torch runs eagerly and compiled, JAX compiled, NumPy forward alone. The libraries take turns in one process; ratios are
to op-tree. With ``--device gpu`` all libraries use the GPU, and a call includes a synchronisation.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from loops import ROWS as LOOPS
from sequences import ROWS as SEQUENCES
from sequences import Row, ours_of
from threadpoolctl import threadpool_limits
from timing import options_of, report, rounds_of

from backends import gen_backend
from optree.settings import thread_count

#: All rows: a file for each kind.
ROWS = (*SEQUENCES, *LOOPS)

#: The tolerance of results between libraries, relative to the largest element.
TOLERANCE = 2e-3

#: Seconds of warm-up, in which kernels are compiled and caches filled.
WARM = 1.0

#: Forward, and with derivatives unless a library has none.
Ways = Sequence[Callable[[], Any]]


def our_ways(row: Row, be: Any) -> Ways:
    """A row on a backend: forward, and with derivatives."""

    def done(call: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> Any:
            result = call()
            be.synchronize()
            return result

        return run

    forward, training = ours_of(row, be)
    return (forward, training) if be.name == "cpu" else (done(forward), done(training))


def torch_ways(row: Row, compiled: bool, is_on_gpu: bool) -> Ways:
    """The same in torch."""
    torch = importlib.import_module("torch")
    torch.set_num_threads(thread_count())
    device, wait = ("cuda", torch.cuda.synchronize) if is_on_gpu else ("cpu", lambda: None)
    operands = [torch.tensor(x, device=device, requires_grad=True) for x in row.operands()]
    formula = row.peers["torch"](torch)
    formula = torch.compile(formula) if compiled else formula

    def forward() -> Any:
        with torch.no_grad():
            value = formula(*operands)
        wait()
        return value

    def training() -> Any:
        value = formula(*operands)
        results = [value, *torch.autograd.grad((value * value).mean(), operands)]
        wait()
        return results

    return forward, training


def jax_ways(row: Row) -> Ways:
    """The same in JAX."""
    jax = importlib.import_module("jax")
    operands = [jax.numpy.asarray(x) for x in row.operands()]
    formula = row.peers["jax"](jax)

    def cost(*operands: Any) -> Any:
        value = formula(*operands)
        return (value * value).mean(), value

    forward = jax.jit(formula)
    both = jax.jit(jax.value_and_grad(cost, tuple(range(len(operands))), has_aux=True))

    def training() -> Any:
        (_, value), gradients = both(*operands)
        return jax.block_until_ready([value, *gradients])

    return lambda: jax.block_until_ready(forward(*operands)), training


def numpy_ways(row: Row) -> Ways:
    """The same in NumPy, without derivatives."""
    formula = row.peers["numpy"](np)
    return [partial(formula, *row.operands())]


def ways_of(row: Row, be: Any) -> Iterator[tuple[str, Ways]]:
    """A row in each installed library."""
    is_on_gpu = be.name == "gpu"
    yield "op-tree", our_ways(row, be)
    for name, library, make in (
        ("torch", "torch", lambda: torch_ways(row, False, is_on_gpu)),
        ("torch, compiled", "torch", lambda: torch_ways(row, True, is_on_gpu)),
        ("JAX", "jax", lambda: jax_ways(row)),
        ("NumPy", "numpy", lambda: numpy_ways(row)),
    ):
        if library not in row.peers:
            continue
        try:
            importlib.import_module(library)
        except ImportError:
            print(f"{name} is not installed: left out")
            continue
        yield name, make()


def as_array(x: Any) -> np.ndarray:
    """A library's array as NumPy's."""
    return np.asarray(x.get() if hasattr(x, "get") else x.detach().cpu() if hasattr(x, "detach") else x)


def check(row: Row, ways: dict[str, Ways]) -> None:
    """Refuse results that differ from op-tree's."""
    forward, training = ways["op-tree"]
    for name, (value, *derivatives) in ways.items():
        ours, theirs = (training(), derivatives[0]()) if derivatives else ([forward()], [value()])
        for x, y in zip(map(as_array, ours), map(as_array, theirs), strict=True):
            error = np.abs(x - y).max() / np.abs(x).max()
            assert error < TOLERANCE, f"{row.name}: {name} differs by {error:.1e}"


def main(arguments: list[str] | None = None) -> None:
    """Print the ratios."""
    options = options_of(
        __doc__, rounds=15, calls=1, arguments=arguments, devices=("cpu", "gpu"), rows=[row.name for row in ROWS]
    )
    be = gen_backend(options.device, jit=True)
    print(f"{thread_count()} threads; {be.info()}")
    with threadpool_limits(thread_count()):
        for row in ROWS:
            if not any(word.lower() in row.name.lower() for word in options.only):
                continue
            ways = dict(ways_of(row, be))
            check(row, ways)
            for which, what in enumerate(("forward", "with derivatives")):
                timed = {name: way[which] for name, way in ways.items() if which < len(way)}
                for function in timed.values():
                    end = time.perf_counter() + WARM
                    while time.perf_counter() < end:
                        function()
                times = rounds_of(list(timed.values()), options.rounds, options.calls)
                report(f"{row.name}, {what}", list(timed), times)


if __name__ == "__main__":
    main()
