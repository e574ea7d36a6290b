"""Convolutional networks, forward and a training step, beside torch and JAX; each result is checked first.

A block is a formula, written once for all libraries. A training step is one call: forward, the gradients of all
weights, and the update. With ``--device gpu`` all libraries use the GPU, and a call includes a synchronisation.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from timing import rounds_of

import optree
from backends import gen_backend

RATE = 1e-3

#: The tolerance of float32 results, relative to the largest of them.
TOLERANCE = 2e-3

Call = Callable[[], Any]


class Block(NamedTuple):
    """A part of a network.

    Attributes
    ----------
    shape : tuple of int
        The images'.
    weights : list of tuple of int
        Shapes: of four numbers those of a convolution's filters, of one those of a norm's scale.
    formula : callable
        From a library's functions, images and weights to the value.
    """

    shape: tuple[int, ...]
    weights: list[tuple[int, ...]]
    formula: Callable[[Any, Any, Iterator[Any]], Any]


def _vgg(m: Any, x: Any, w: Iterator[Any]) -> Any:
    x = m.relu(m.conv(x, next(w), 1, 1, 1))
    x = m.relu(m.conv(x, next(w), 1, 1, 1))
    return m.pool(x, 2, 2, 0)


def _separable(m: Any, x: Any, w: Iterator[Any]) -> Any:
    for stride in (1, 2):
        x = m.relu(m.norm(m.conv(x, next(w), stride, 1, x.shape[1]), next(w)))
        x = m.relu(m.norm(m.conv(x, next(w), 1, 0, 1), next(w)))
    return x


def _basic(m: Any, x: Any, w: Iterator[Any], stride: int) -> Any:
    y = m.relu(m.norm(m.conv(x, next(w), stride, 1, 1), next(w)))
    y = m.norm(m.conv(y, next(w), 1, 1, 1), next(w))
    return m.relu(y + (m.norm(m.conv(x, next(w), stride, 0, 1), next(w)) if stride > 1 else x))


def _resnet(m: Any, x: Any, w: Iterator[Any]) -> Any:
    x = m.pool(m.relu(m.norm(m.conv(x, next(w), 2, 3, 1), next(w))), 3, 2, 1)
    for stage in range(4):
        for number in range(2):
            x = _basic(m, x, w, 2 if stage and not number else 1)
    return x


def _resnet_weights() -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = [(64, 3, 7, 7), (64,)]
    inputs = 64
    for stage in range(4):
        outputs = 64 << stage
        for number in range(2):
            found += [(outputs, inputs, 3, 3), (outputs,), (outputs, outputs, 3, 3), (outputs,)]
            if stage and not number:
                found += [(outputs, inputs, 1, 1), (outputs,)]
            inputs = outputs
    return found


BLOCKS = {
    "VGG-like block, 8 x 64 x 56 x 56": Block((8, 64, 56, 56), [(128, 64, 3, 3), (128, 128, 3, 3)], _vgg),
    "ResNet-18's layers, 16 x 3 x 64 x 64": Block((16, 3, 64, 64), _resnet_weights(), _resnet),
    "depthwise-separable block, 8 x 64 x 56 x 56": Block(
        (8, 64, 56, 56),
        [(64, 1, 3, 3), (64,), (128, 64, 1, 1), (128,), (128, 1, 3, 3), (128,), (128, 128, 1, 1), (128,)],
        _separable,
    ),
}


def on_host(x: Any) -> np.ndarray:
    """A library's array as NumPy's; a view if it is in host memory."""
    if hasattr(x, "detach"):
        return np.asarray(x.detach().cpu())
    return np.asarray(x.get() if hasattr(x, "get") else x)


def values_of(block: Block) -> tuple[np.ndarray, list[np.ndarray]]:
    """Images and weights."""
    rng = np.random.RandomState(0)
    weights = [
        rng.normal(0, (2 / np.prod(s[1:])) ** 0.5, s) if len(s) > 1 else rng.uniform(0.5, 1.5, s) for s in block.weights
    ]
    return rng.normal(size=block.shape).astype("float32"), [w.astype("float32") for w in weights]


# Libraries


class Ours:
    """op-tree: one function for each block."""

    name = "optree"

    def __init__(self, device: str) -> None:
        self.be = be = gen_backend(device, jit=True)
        self.functions = SimpleNamespace(
            conv=lambda x, w, stride, padding, groups: be.conv(x, w, stride=stride, padding=padding, groups=groups),
            relu=be.relu,
            pool=be.max_pool,
            norm=self._norm,
        )

    def _norm(self, x: Any, scale: Any) -> Any:
        be = self.be
        mean, variance = be.mean(x, axis=(0, 2, 3)), be.var(x, axis=(0, 2, 3))
        return (x - mean) / be.sqrt(variance + 1e-5) * be.reshape(scale, (1, -1, 1, 1))

    def ways(self, block: Block) -> tuple[Call, Call]:
        """The forward pass and the training step."""
        images, values = values_of(block)
        x = self.be.array(images)
        weights = [self.be.array(w, name=f"w{i}") for i, w in enumerate(values)]
        y = block.formula(self.functions, x, iter(weights))
        cost = self.be.mean(self.be.square(y))
        updates = {w: w - RATE * g for w, g in zip(weights, optree.grad(cost, weights), strict=True)}
        forward, step = optree.function([], y), optree.function([], cost, updates=updates)

        def done(*results: Any) -> list[Any]:
            self.be.synchronize()
            return [result.raw() for result in results]

        return lambda: done(forward()), lambda: done(step(), *weights)


class Torch:
    """PyTorch, op by op."""

    name = "torch"
    is_compiled = False

    def __init__(self, device: str) -> None:
        self.torch: Any = importlib.import_module("torch")
        self.device = "cuda" if device == "gpu" else device
        nn = self.torch.nn.functional
        self.functions = SimpleNamespace(
            conv=lambda x, w, stride, padding, groups: nn.conv2d(x, w, None, stride, padding, 1, groups),
            relu=nn.relu,
            pool=nn.max_pool2d,
            norm=lambda x, scale: nn.batch_norm(x, None, None, scale, None, True),
        )

    def ways(self, block: Block) -> tuple[Call, Call]:
        """The forward pass and the training step."""
        torch = self.torch
        images, values = values_of(block)
        x, *weights = (torch.from_numpy(a).to(self.device) for a in (images, *values))
        for w in weights:
            w.requires_grad_()

        def run(*weights: Any) -> Any:
            return block.formula(self.functions, x, iter(weights))

        run = torch.compile(run) if self.is_compiled else run

        def done(*results: Any) -> list[Any]:
            if self.device == "cuda":
                torch.cuda.synchronize()
            return list(results)

        def forward() -> Any:
            with torch.no_grad():
                return done(run(*weights))

        def step() -> Any:
            cost = run(*weights).square().mean()
            gradients = torch.autograd.grad(cost, weights)
            with torch.no_grad():
                torch._foreach_add_(weights, gradients, alpha=-RATE)
            return done(cost, *weights)

        return forward, step


class CompiledTorch(Torch):
    """PyTorch, compiled."""

    name = "torch.compile"
    is_compiled = True


class Jax:
    """JAX, compiled."""

    name = "jax"

    def __init__(self, device: str) -> None:
        self.jax: Any = importlib.import_module("jax")
        jnp, lax = self.jax.numpy, self.jax.lax

        def norm(x: Any, scale: Any) -> Any:
            mean, variance = x.mean((0, 2, 3), keepdims=True), x.var((0, 2, 3), keepdims=True)
            return (x - mean) / jnp.sqrt(variance + 1e-5) * scale.reshape(1, -1, 1, 1)

        self.functions = SimpleNamespace(
            conv=lambda x, w, stride, padding, groups: lax.conv_general_dilated(
                x, w, (stride, stride), ((padding, padding),) * 2, feature_group_count=groups
            ),
            relu=self.jax.nn.relu,
            pool=lambda x, size, stride, padding: lax.reduce_window(
                x,
                -jnp.inf,
                lax.max,
                (1, 1, size, size),
                (1, 1, stride, stride),
                ((0, 0),) * 2 + ((padding, padding),) * 2,
            ),
            norm=norm,
        )

    def ways(self, block: Block) -> tuple[Call, Call]:
        """The forward pass and the training step."""
        jax = self.jax
        images, values = values_of(block)
        x, state = jax.numpy.asarray(images), [[jax.numpy.asarray(w) for w in values]]
        run = jax.jit(lambda weights, x: block.formula(self.functions, x, iter(weights)))

        @jax.jit
        def descend(weights: Any, x: Any) -> Any:
            cost, gradients = jax.value_and_grad(lambda w: (run(w, x) ** 2).mean())(weights)
            return cost, [w - RATE * g for w, g in zip(weights, gradients, strict=True)]

        def step() -> Any:
            cost, state[0] = descend(state[0], x)
            return jax.block_until_ready([cost, *state[0]])

        return lambda: jax.block_until_ready([run(state[0], x)]), step


LIBRARIES = (Ours, Torch, CompiledTorch, Jax)


def same(results: Sequence[Any], wanted: Sequence[Any]) -> bool:
    """Whether results are equal but for their rounding."""
    pairs = zip(results, wanted, strict=True)
    return all(np.abs(a - b).max() <= TOLERANCE * max(np.abs(b).max(), 1e-6) for a, b in pairs)


def measure(name: str, block: Block, libraries: Sequence[Any], rounds: int) -> None:
    """Print the times of a block."""
    ways = [library.ways(block) for library in libraries]
    for i, what in enumerate(("forward", "training step")):
        calls, first = [], None
        for library, way in zip(libraries, ways, strict=True):
            try:
                results = [on_host(x).copy() for x in way[i]()]
            except Exception as error:  # no compiler, or an op that the library does not support
                print(f"{name}, {what}: {library.name} fails: {str(error).splitlines()[0][:80]}")
                continue
            first = first or results
            assert same(results, first), f"{library.name} computes something else than {libraries[0].name}"
            calls.append((library.name, way[i]))
        times = [statistics.median(each) for each in rounds_of([call for _, call in calls], rounds, 1)]
        listed = ", ".join(f"{label} {1e3 * t:.1f} ms" for (label, _), t in zip(calls, times, strict=True))
        best = min(times[1:], default=times[0])
        print(f"{name}, {what}: {listed}; {times[0] / best:.2f} of the fastest other", flush=True)


def measure_memory() -> None:
    """Print the memory of ResNet's first layer, divided by that of its operands and result."""
    be = gen_backend("cpu", jit=True)
    x, w = be.ones((8, 3, 224, 224)), be.ones((64, 3, 7, 7))
    y = be.empty((8, 64, 112, 112))
    tracemalloc.start()
    y[:] = be.conv(x, w, stride=2, padding=3)  # the first call, so that its caches count
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    held = sum(t.get().nbytes for t in (x, w, y))
    print(f"ResNet's first layer, 8 x 3 x 224 x 224: {(held + peak) / held:.2f} of its operands and result in memory")


def main(arguments: list[str] | None = None) -> None:
    """Measure every block with every library that is installed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="rounds of each comparison (7)")
    parser.add_argument("--only", default="", help="a part of the blocks' names")
    parser.add_argument("--device", default="cpu", choices=["cpu", "gpu"], help="where all libraries compute (cpu)")
    options = parser.parse_args(arguments)
    libraries = []
    for library in LIBRARIES:
        try:
            libraries.append(library(options.device))
        except ImportError as error:
            print(f"{library.name} is left out: {error}")
    for name, block in BLOCKS.items():
        if options.only in name:
            measure(name, block, libraries, options.rounds)
    if options.device == "cpu":
        measure_memory()


if __name__ == "__main__":
    main()
