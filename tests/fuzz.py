"""A fuzzer of programs: random statements on views that alias, in every way to run them, against NumPy op by op.

Each seed is a program of its own: tensors of several dtypes, strided, flipped, transposed and
broadcasting views of them, and statements that assign trees, update several views at once, call a function
again with other arguments, or differentiate. After each statement the tensors are compared with
NumPy's arrays. Then a program of arrays (`optree.xp`) runs, of writes and views that wait.
``make fuzz ARGS="--seed 7 --seconds 600"`` begins at a seed; a failure prints its seed and program.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cache
from typing import Any

import numpy as np
from harness import array_programs
from harness.blocks import in_blocks
from harness.homes import home
from harness.trees import SMOOTH, USABLE, Exactness, assert_alike, run_by_numpy

from backends import gen_backend
from optree import OpTreeNode, check_grad, function
from optree.registry import f
from optree.testing.random_trees import random_tree
from optree.tree.types import TensorType
from optree.tree.variable import Input

DTYPES = "float64 float32 float16 int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool".split()

SHAPES = ((4, 6), (6,), (4, 1), (2, 3, 4), ())

#: Views of a tensor and of an array alike.
VIEWS: tuple[Callable[[Any], Any], ...] = (
    lambda x: x,
    lambda x: x.T,
    lambda x: x[::-1] if x.ndim else x,
    lambda x: x[..., ::2] if x.ndim else x,
    lambda x: x[1:] if x.ndim else x,
    lambda x: x[:-1] if x.ndim else x,
    lambda x: x[..., 1:3] if x.ndim else x,
    lambda x: x[:, None] if x.ndim == 1 else x,
)


@cache
def _backend(way: str) -> Any:
    if way == "stand-in":
        return home("stand-in", datatype=np.float64)
    return gen_backend("cpu", datatype=np.float64, jit=way == "kernels")


#: The executors: a context in which there is a backend of each.
WAYS: dict[str, Callable[[], Any]] = {
    "kernels": lambda: nullcontext(_backend("kernels")),
    "numpy": lambda: nullcontext(_backend("numpy")),
    "blocks": lambda: in_blocks(datatype=np.float64),
    "stand-in": lambda: nullcontext(_backend("stand-in")),
}


class Program:
    """Tensors, the arrays that they are to equal, and the chance that all statements are drawn by."""

    def __init__(self, be: Any, seed: int) -> None:
        self.be, self.chance, self.said = be, random.Random(seed), []
        values = np.random.RandomState(seed)
        self.arrays, self.tensors = [], []
        for i, shape in enumerate(SHAPES * 2):
            dtype = np.dtype(self.chance.choice(DTYPES))
            quarters = values.randint(-8, 9, shape) / 4
            array = np.array(quarters if dtype.kind == "f" else np.abs(np.rint(quarters))).astype(dtype)
            self.arrays.append(array)
            self.tensors.append(be.array(array, dtype, f"t{i}"))

    def statement(self) -> None:
        self.chance.choice((self.assign, self.assign, self.update, self.call, self.differentiate))()
        for tensor, array in zip(self.tensors, self.arrays, strict=True):
            tensor.set(array)  # rounding does not add up from statement to statement

    def view(self) -> tuple[Any, Any]:
        """A random view of a tensor, and the same of its array."""
        i = self.chance.randrange(len(self.tensors))
        tensor, array = self.tensors[i], self.arrays[i]
        for view in self.chance.choices(VIEWS, k=2):
            tensor, array = view(tensor), view(array)
        return tensor, array

    def tree(self, leaves: Sequence[Any]) -> tuple[Any, Exactness]:
        exactness = Exactness()
        return random_tree(self.chance.choice, leaves, self.chance.randint(1, 8), USABLE, exactness.accepts), exactness

    def target(self, dtype: Any, shape: Any) -> tuple[Any, Any] | None:
        """A view that a value of this kind goes into without rounding."""
        for _ in range(20):
            tensor, array = self.view()
            if array.size and np.can_cast(dtype, array.dtype, "safe") and _broadcasts(shape, array.shape):
                return tensor, array
        return None

    def assignment(self) -> Any:
        """A target, a tree, and what the target's array is to hold; None where nothing fits."""
        tree, exactness = self.tree([self.view()[0] for _ in range(4)])
        found = self.target(tree.dtype, tree.shape) if isinstance(tree, OpTreeNode) else None
        if found is None:
            return None
        wanted, largest = run_by_numpy(tree)
        return (*found, tree, wanted, largest, not exactness.is_rounded(tree))

    def assign(self) -> None:
        made = self.assignment()
        if made is not None:
            tensor, _, tree, *_ = made
            self.said.append(f"{_name(tensor)}[...] = {tree.pp()}")
            tensor[...] = tree
            self.written([made])

    def update(self) -> None:
        made = [found for found in (self.assignment() for _ in range(2)) if found is not None]
        if len(made) == 2 and np.shares_memory(made[0][1], made[1][1]):
            made.pop()
        if made:
            self.said.append("update " + ", ".join(f"{_name(t)}: {tree.pp()}" for t, _, tree, *_ in made))
            self.be.update([(t, tree) for t, _, tree, *_ in made])
            self.written(made)

    def written(self, made: Sequence[Any]) -> None:
        """Write what NumPy gives into the arrays, and compare every tensor."""
        for tensor, array, tree, wanted, largest, exact in made:
            got = tensor.get()
            expected = np.broadcast_to(wanted, array.shape).astype(array.dtype)
            assert_alike(got, expected, tree, max(largest, 1.0), exact, 64)
            array[...] = got  # as rounded there: all else has to be what it was, to the bit
        for i, (tensor, array) in enumerate(zip(self.tensors, self.arrays, strict=True)):
            np.testing.assert_array_equal(tensor.get(), array, err_msg=f"t{i}, which nothing wrote")

    def call(self) -> None:
        """A function of two arguments and what else it reads, called with tensors, views and arrays."""
        (x, _), (y, _), (held, _) = self.view(), self.view(), self.view()
        inputs = [Input(TensorType(z.dtype, z.shape), name) for z, name in ((x, "x"), (y, "y"))]
        state = self.chance.getstate()
        symbolic, _ = self.tree([*inputs, held])
        after = self.chance.getstate()
        if not isinstance(symbolic, OpTreeNode):
            return
        compiled = function(inputs, [symbolic, held], on_unused_input="ignore")  # held names the backend
        self.said.append(f"function([x, y], {symbolic.pp()})")
        for values in ((x, y), (x.get() + x.dtype.type(1), y), (x, y.get())):
            operands = [z if not isinstance(z, np.ndarray) else self.be.array(z, z.dtype) for z in values]
            self.chance.setstate(state)
            tree, exactness = self.tree([*operands, held])
            wanted, largest = run_by_numpy(tree)
            got, _ = compiled(*values)
            assert_alike(got.get(), np.asarray(wanted), tree, max(largest, 1.0), not exactness.is_rounded(tree), 64)
        self.chance.setstate(after)

    def differentiate(self) -> None:
        choices: list[int] = []

        def choose(options: Any) -> Any:
            choices.append(self.chance.randrange(len(options)))
            return options[choices[-1]]

        leaves = [self.be.array(self.chance.choice((0.5, -0.25, 1.0)) * np.ones(shape)) for shape in ((2, 3), (3,), ())]
        for i, leaf in enumerate(leaves):
            leaf.set(leaf.get() + np.random.RandomState(i).uniform(-0.2, 0.2, leaf.shape))
        size = self.chance.randint(1, 7)
        drawn = random_tree(choose, leaves, size, SMOOTH)
        self.said.append(f"check_grad of {drawn.pp() if isinstance(drawn, OpTreeNode) else 'a leaf'}")

        def again(*tensors: Any) -> Any:
            replay = iter(choices)
            tree = random_tree(lambda options: options[next(replay)], tensors, size, SMOOTH)
            return f.sum(f.tanh(tree)) + sum((f.sum(x * x) for x in tensors), 0.0)

        check_grad(again, leaves, rtol=1e-4, atol=1e-5)


def _name(tensor: Any) -> str:
    return f"{tensor.label}{tensor.shape}"


def _broadcasts(shape: Any, target: Any) -> bool:
    try:
        return np.broadcast_shapes(shape, target) == tuple(target)
    except ValueError:
        return False


def run(seed: int, ways: Sequence[str] = tuple(WAYS), statements: int = 6) -> str | None:
    """A program of this seed in each way; what went wrong, or None."""
    for way in ways:
        with WAYS[way]() as be:
            program = Program(be, seed)
            try:
                for _ in range(statements):
                    program.statement()
                program.said.append("a program of arrays")
                array_programs.assert_alike(be.xp, seed, steps=20)
            except Exception:
                lines = "\n".join(program.said)
                return f"seed {seed}, {way}:\n{lines}\n{traceback.format_exc()}"
    return None


def main() -> int:
    """Run programs until the time is up; 1 if one of them went wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=None, help="the first program's; by default a random one")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    given = parser.parse_args()
    seed = random.randrange(10**6) if given.seed is None else given.seed
    first, failed, until = seed, 0, time.monotonic() + given.seconds
    while time.monotonic() < until:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            wrong = run(seed, given.ways)
        if wrong is not None:
            failed += 1
            print(wrong, flush=True)
        seed += 1
    print(f"{seed - first} programs from seed {first} on, in {len(given.ways)} ways each: {failed} went wrong")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
