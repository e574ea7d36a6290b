"""A fuzzer of programs: random statements on views that alias, in every way to run them, against NumPy op by op.

Each seed is a program of its own: tensors of several dtypes, strided, flipped, transposed and
broadcasting views of them, and statements that assign trees, update several views at once, call a function
again with other arguments or with those that it writes, differentiate, draw random numbers, or apply a function of the
registry, any that there is, amid other ops, by `jit`, by `vmap`, with its gradient, into memory of its own operands.
Products, convolutions, windows on several arrays, attention, recurrent networks and loops have random sizes and
options, and loops random steps.
After each statement the tensors are compared with NumPy's arrays. Arrays of other libraries are among arguments and
values, and objects of odd attributes are refused. Then a program of arrays (`optree.xp`) runs, of writes and views that
wait, and two writers save states to one path. The executors take turns in one process, a statement each.
``make fuzz ARGS="--seed 7 --seconds 600"`` begins at a seed; a failure prints its seed and program.
"""

from __future__ import annotations

import argparse
import operator
import random
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache, partial
from typing import Any
from unittest.mock import patch

import numpy as np
from harness import array_programs, savers
from harness.drawn import ALL_DTYPES, COMPLEX, SAME, Call, calls, specials, stretched
from harness.draws import DRAWS, FLOATS, STATES, Generator
from harness.foreign import ByArray, ByDLPack, ForeignArray, assert_refused
from harness.homes import home
from harness.narrow import of_any_dtype
from harness.random_calls import RANDOM
from harness.rig.install import rig, why_no_rig
from harness.trees import SMOOTH, USABLE, Exactness, assert_alike, assert_equal, run_by_numpy

from backends import gen_backend
from backends.cpu import in_blocks
from backends.cpu.codegen import printer
from backends.cpu.routines import attention, convolution, loops, products
from optree import OpTreeNode, check_grad, function, grad, jit, vmap
from optree.dtypes import can_cast, is_bfloat16, is_complex, is_floating, is_inexact
from optree.errors import BatchingError, DTypeError, NotFiniteError, OptreeError, ShapeError
from optree.registry import f
from optree.run.function import running_on
from optree.settings import override
from optree.testing.comparison import compare, scale_of
from optree.testing.conformance import check_gradient, check_second_gradient, weighted_sum
from optree.testing.examples import Runner, inputs_for
from optree.testing.random_trees import random_tree
from optree.tree.tensor import Tensor
from optree.tree.types import TensorType, as_dtype
from optree.tree.variable import Input

#: The shapes of a program's tensors: small ones, or such as vector loops, lanes and tiles leave a remainder of.
SHAPES = (
    ((4, 6), (6,), (4, 1), (2, 3, 4), ()),
    ((4, 6), (6,), (4, 1), (2, 3, 4), ()),
    ((21, 67), (67,), (21, 1), (3, 21, 67), ()),
    ((5, 515), (515,), (5, 1), (2, 5, 515), ()),
)

#: Maximum elements of a node of a program.
ELEMENTS = 1 << 13

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

#: The same, now and then: views of one element, and of none.
RARE_VIEWS: tuple[Callable[[Any], Any], ...] = (
    lambda x: x[:1] if x.ndim else x,
    lambda x: x[:0] if x.ndim else x,
    lambda x: x[..., 1:1] if x.ndim else x,
)


#: The least work of kernels, loops, attention, convolutions, windows and products, and of what NumPy runs in blocks,
#: that threads share.
LEAST_WORK = (
    (printer, "PARALLEL_WORK"),
    (printer, "LONG_WORK"),
    (loops, "LONG_WORK"),
    (attention, "ALONE"),
    (convolution, "ALONE"),
    (products, "SHARED"),
    (in_blocks, "BYTES"),
)

#: The most elements of operands by which derivatives are compared with differences.
DIFFERENCES = 120

#: Views of larger memory, and the memory's shape for that of the view: layouts that operands come in.
PLACES: tuple[tuple[Callable[[Any], Any], Callable[[Any], Any]], ...] = (
    (lambda x: x, lambda shape: shape),
    (lambda x: x.T, lambda shape: shape[::-1]),
    (lambda x: x[(slice(None, None, -2),) * x.ndim], lambda shape: tuple(2 * n for n in shape)),
    (lambda x: x[(slice(1, None),) * x.ndim], lambda shape: tuple(n + 1 for n in shape)),
    (lambda x: x[..., ::3].T if x.ndim else x, lambda shape: (*shape[:0:-1], *(3 * n for n in shape[:1]))),
)


def _from_numpy_to_kernels() -> Any:
    be = gen_backend("cpu", datatype=np.float64)
    be.when = be.when._replace(work=1 << 11)
    return be


@contextmanager
def _in_c() -> Iterator[None]:
    """Products and loops in C, however little there is to do, and one step of a loop in each call."""
    with patch.multiple(products, SMALL=1, SHARED=1), patch.multiple(loops, CALL=1):
        yield


@contextmanager
def _in_threads() -> Iterator[None]:
    """However little there is for each to do."""
    with ExitStack() as stack:
        stack.enter_context(override(num_threads=3))
        for module, name in LEAST_WORK:
            stack.enter_context(patch.object(module, name, 1))
        yield


#: The executors, each by a backend: compiled kernels, always, shared by threads, or where they pay, NumPy,
#: the GPU's calls on a stand-in for CuPy, and the GPU's code on simulated devices.
WAYS: dict[str, Callable[[], Any]] = {
    "kernels": lambda: gen_backend("cpu", datatype=np.float64, jit=True),
    "threads": lambda: gen_backend("cpu", datatype=np.float64, jit=True),
    "auto": _from_numpy_to_kernels,
    "numpy": lambda: gen_backend("cpu", datatype=np.float64, jit=False),
    "stand-in": lambda: home("stand-in", datatype=np.float64),
    "gpu": lambda: home("gpu", datatype=np.float64),
}

#: Under which settings executors run.
SETTINGS: dict[str, Callable[[], Any]] = {
    "kernels": _in_c,
    "threads": _in_threads,
}

#: One seed of how many runs by an executor that is slow: g++ compiles each kernel that is emulated, for seconds.
SELDOM = {"gpu": 25}

#: Python's operators in place, and NumPy's functions, of what is rounded as IEEE 754 says.
IN_PLACE = {
    "+": (operator.iadd, np.add),
    "-": (operator.isub, np.subtract),
    "*": (operator.imul, np.multiply),
    "/": (operator.itruediv, np.true_divide),
    "//": (operator.ifloordiv, np.floor_divide),
    "%": (operator.imod, np.remainder),
    "&": (operator.iand, np.bitwise_and),
    "|": (operator.ior, np.bitwise_or),
    "^": (operator.ixor, np.bitwise_xor),
}

#: Modes that functions run in, the usual one more often.
MODES = (None, None, "reference", "debug")

_backend = cache(lambda way: WAYS[way]())


class Program:
    """Tensors, the arrays that they are to equal, and the chance that all statements are drawn by."""

    def __init__(self, be: Any, seed: int) -> None:
        self.be, self.chance, self.said = be, random.Random(seed), []
        values = np.random.RandomState(seed)
        self.arrays, self.tensors = [], []
        special = self.chance.random() < 0.3
        for i, shape in enumerate(self.chance.choice(SHAPES) * 2):
            dtype = as_dtype(self.chance.choice([*ALL_DTYPES, *COMPLEX, *COMPLEX]))
            quarters = values.randint(-8, 9, shape) / 4
            array = np.array(quarters if is_inexact(dtype) else np.abs(np.rint(quarters))).astype(dtype)
            if is_complex(dtype):
                array += 1j * values.randint(-8, 9, shape) / 4
            elif special:
                array = np.where(values.uniform(size=shape) < 0.2, values.choice(specials(dtype), shape), array)
            self.arrays.append(array)
            self.tensors.append(be.array(array, dtype, f"t{i}"))

    def statement(self) -> None:
        on_trees = (self.assign, self.update, self.call, self.differentiate, self.put, self.add_in_place, self.beside)
        on_trees = (*on_trees, lambda: assert_refused(self.be, self.view()[0], self.chance, self.said))
        of_functions = (self.apply, self.apply, self.batch, self.slope, self.slopes, self.resize)
        self.chance.choice((*on_trees, *of_functions, self.draw))()
        for tensor, array in zip(self.tensors, self.arrays, strict=True):
            tensor.set(array)  # rounding does not add up from statement to statement

    def view(self) -> tuple[Any, Any]:
        """A random view of a tensor, and the same of its array."""
        i = self.chance.randrange(len(self.tensors))
        tensor, array = self.tensors[i], self.arrays[i]
        for view in self.chance.choices(VIEWS if self.chance.random() < 0.9 else RARE_VIEWS, k=2):
            tensor, array = view(tensor), view(array)
        return tensor, array

    def tree(self, leaves: Sequence[Any]) -> tuple[Any, Exactness]:
        exactness = Exactness()
        size = self.chance.randint(1, 8)
        return random_tree(self.chance.choice, leaves, size, USABLE, exactness.accepts, ELEMENTS), exactness

    def target(self, dtype: Any, shape: Any) -> tuple[Any, Any] | None:
        """A view that a value of this kind goes into without rounding."""
        for _ in range(20):
            tensor, array = self.view()
            if can_cast(dtype, array.dtype, "safe") and _broadcasts(shape, array.shape):
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
            for _ in range(self.chance.choice((0, 1, 3))):  # the tree is kept, what it reads may be what it wrote
                wanted, largest = run_by_numpy(tree)
                tensor[...] = tree
                self.written([(*made[:3], wanted, largest, made[-1])])

    def update(self) -> None:
        made = [found for found in (self.assignment() for _ in range(2)) if found is not None]
        if len(made) == 2 and np.shares_memory(made[0][1], made[1][1]):
            made.pop()
        if made:
            self.said.append("update " + ", ".join(f"{_name(t)}: {tree.pp()}" for t, _, tree, *_ in made))
            self.be.update([(t, _as_update(tree, t)) for t, _, tree, *_ in made])
            self.written(made)

    def written(self, made: Sequence[Any]) -> None:
        """Write what NumPy gives into the arrays, and compare every tensor."""
        for tensor, array, tree, wanted, largest, exact in made:
            got = tensor.get()
            expected = np.broadcast_to(wanted, array.shape).astype(array.dtype)
            assert_alike(got, expected, tree, max(largest, 1.0), exact, 64)
            array[...] = got  # as rounded there: all else has to be what it was, to the bit
        for i, (tensor, array) in enumerate(zip(self.tensors, self.arrays, strict=True)):
            assert_equal(tensor.get(), array, f"t{i}, which nothing wrote")

    def beside(self) -> None:
        """Trees that run together: of operands without dimensions, and of these beside one without elements."""
        numbers = [tensor for tensor in self.tensors if not tensor.ndim]
        one, first = self.tree(numbers)
        tensor = self.chance.choice([tensor for tensor in self.tensors if tensor.ndim])
        axis = self.chance.randrange(tensor.ndim)
        empty = tensor[(slice(None),) * axis + (slice(0),)]
        other, second = self.tree([empty, one, empty, self.view()[0]])
        trees = [(x, e) for x, e in ((one, first), (other, second)) if isinstance(x, OpTreeNode)]
        if not trees:
            return
        way = self.chance.choice(("evaluate", "update", *MODES))
        self.said.append(f"{[x.pp() for x, _ in trees]} together, by {way}, axis {axis} of {_name(tensor)} empty")
        run = self.repeated(way, lambda: [x for x, _ in trees])
        for _ in range(2):
            try:
                found = run()
            except NotFiniteError:
                assert way == "debug"
                return
            for got, (tree, exactness) in zip(found, trees, strict=True):
                wanted, largest = run_by_numpy(tree)
                exact = not exactness.is_rounded(tree)
                assert_alike(got.get(), np.asarray(wanted), tree, max(largest, 1.0), exact, 64)

    def call(self) -> None:
        """A function of two arguments and what else it reads, called with tensors, views and arrays."""
        (x, _), (y, _), (held, _) = self.view(), self.view(), self.view()
        state = self.chance.getstate()

        def build(one: Any, other: Any) -> tuple[Any, Exactness]:
            self.chance.setstate(state)
            return self.tree([one, other, held])

        inputs = [Input(TensorType(z.dtype, z.shape), name) for z, name in ((x, "x"), (y, "y"))]
        symbolic, _ = build(*inputs)
        if not isinstance(symbolic, OpTreeNode):
            return
        updates = self.updates_of(symbolic, build(x, y)[0])
        mode = self.chance.choice(MODES)
        self.said.append(f"function([x, y], {symbolic.pp()}, {[_name(t) for t, _ in updates]}, {mode})")
        # The first tensor names the backend.
        compiled = function(inputs, [held, symbolic], updates, on_unused_input="ignore", mode=mode)
        own = [z.raw() if isinstance(z.raw(), np.ndarray) else z for z in (x, y)]
        for values in (
            (x, y),
            (x.get() + x.dtype.type(1), y),
            (y, x) if y.type == x.type else (x, y.get()),
            (own[0], np.broadcast_to(np.max(y.get(), initial=y.dtype.type(0)), y.shape)),
            own,
            [self.foreign(z.get()) for z in (x, y)],
        ):
            arrays = [z.array if isinstance(z, ForeignArray) else z for z in values]
            operands = [self.be.array(z, z.dtype) if isinstance(z, np.ndarray) else z for z in arrays]
            tree, exactness = build(*operands)
            wanted, largest = run_by_numpy(tree)
            expected = [np.broadcast_to(wanted, t.shape).astype(t.dtype) for t, _ in updates]
            try:
                _, got = compiled(*values)
            except NotFiniteError:
                assert mode == "debug"
                return
            exact = not exactness.is_rounded(tree)
            assert_alike(got.get(), np.asarray(wanted), tree, max(largest, 1.0), exact, 64)
            for (target, _), value in zip(updates, expected, strict=True):
                assert_alike(target.get(), value, tree, max(largest, 1.0), exact, 64)

    def number(self) -> tuple[Any, Any]:
        """A value written at an index: a number, an array, a view of a tensor or a tree, and its value."""
        kind = self.chance.choice(("number", "array", "view", "tree", "foreign"))
        tensor, array = self.view()
        if kind == "number":
            number = self.chance.choice((0, 1, 3, True, 0.5, 2.0))
            return number, number
        if kind == "array":
            return array.copy(), array
        if kind == "foreign":
            return self.foreign(array), array
        # Its value now: the view may be of what is written.
        return (tensor if kind == "view" else f.copy(f.copy(tensor))), array

    def foreign(self, array: np.ndarray) -> ForeignArray:
        """Another library's array of these values."""
        return self.chance.choice((ByArray,) if is_bfloat16(array.dtype) else (ByArray, ByDLPack))(array)

    def index(self, shape: tuple[int, ...]) -> tuple[Any, Any]:
        """An index of an operand of a shape, or one that does not fit, and the same for an array."""
        draw = np.random.RandomState(self.chance.randrange(1 << 30))
        first = shape[0] if shape else 1
        few = (
            draw.randint(-first, max(first, 1), self.chance.choice(((), (1,), (3,), (2, 2))))
            if first
            else np.zeros(0, int)
        )
        mask = draw.uniform(size=shape) < 0.4
        index = self.chance.choice(
            (
                self.chance.randint(-first, first),
                slice(self.chance.randint(-2, 2), None, self.chance.choice((1, 2, -1))),
                ...,
                (..., self.chance.randint(-1, 2)),
                (..., None, slice(None, None, -2)),
                (slice(1, None), slice(None, -1)),
                few,
                few.tolist(),
                (..., few),
                (few, slice(None, None, 2)),
                (slice(1), few),
                mask if shape else ...,
                mask[:, 0] if mask.ndim > 1 and 0 not in shape else ...,
            )
        )
        if isinstance(index, np.ndarray) and self.chance.random() < 0.4:
            return self.be.array(index, index.dtype), index
        return index, index

    def put(self) -> None:
        """A value at an index, written and read, or an error where NumPy raises one."""
        tensor, array = self.view()
        (at, index), (value, numbers) = self.index(array.shape), self.number()
        is_unchecked = np.size(numbers) == 0 and np.ndim(numbers) > 1  # NumPy writes nothing at indices in any shape
        if is_unchecked or not _is_sure(numbers, array.dtype):
            return
        self.said.append(f"{_name(tensor)}[{index!r}] = {value!r}")
        with _refused_alike(
            lambda: array.__setitem__(index, np.array(numbers) if array is not numbers else numbers)
        ) as is_taken:
            tensor[at] = value
        self.written([])
        if is_taken and not (at is not index and index.dtype.kind == "b"):  # how much that one selects is not known
            found = tensor[at]
            assert_equal(found.asnumpyarray(), np.asarray(array[index]), "what was written there")

    def add_in_place(self) -> None:
        """An operation in place, whose result is assigned, or an error where NumPy raises one."""
        tensor, array = self.view()
        value, numbers = self.number()
        name = self.chance.choice(sorted(IN_PLACE))
        self.said.append(f"{_name(tensor)} {name}= {value!r}")

        def by_numpy() -> None:
            found = np.asarray(of_any_dtype(IN_PLACE[name][1])(array, numbers))
            if not can_cast(found.dtype, array.dtype, "same_kind"):
                raise TypeError(f"{found.dtype} into {array.dtype}")
            if found.ndim > array.ndim:  # an assignment drops leading axes of size 1
                raise ValueError(f"{found.shape} into {array.shape}")
            array[...] = found

        with _refused_alike(by_numpy):
            IN_PLACE[name][0](tensor, value)
        self.written([])

    def updates_of(self, symbolic: Any, tree: Any) -> list[tuple[Any, Any]]:
        """Some views that a function writes its output into: of an argument's memory, or of what it reads."""
        found: list[tuple[Any, Any]] = []
        for _ in range(self.chance.choice((0, 1, 2))):
            target = self.target(tree.dtype, tree.shape)
            if target is not None and not any(np.shares_memory(target[0].raw(), t.raw()) for t, _ in found):
                found.append((target[0], _as_update(symbolic, target[0])))
        return found

    def drawn(self, dtypes: Sequence[str] | None = None) -> tuple[Call, list[Any], Callable[..., Any]]:
        """A function of the registry, its operands' values, and what makes its tree, amid ops that change nothing."""
        examples = calls()
        if self.chance.random() < 0.5:
            call = self.chance.choice(RANDOM)(self.chance, dtypes is not None or self.chance.random() < 0.3)
        else:
            call = self.chance.choice(examples[self.chance.choice(sorted(examples))])
            if self.chance.random() < 0.5:
                call = stretched(call, self.chance)
        dtype = self.chance.choice([x for x in call.dtypes if x in (dtypes or call.dtypes)] or call.dtypes)
        values = call.example.draw(as_dtype(dtype))
        before = [self.chance.choice(SAME) if isinstance(x, np.ndarray) else SAME[0] for x in values]
        after = self.chance.choice(SAME)
        if self.chance.random() < 0.4:
            before, after = [SAME[0]] * len(values), SAME[0]
        self.said.append(f"{call.example} of {dtype}, amid {[SAME.index(x) for x in (*before, after)]}")
        return call, values, lambda *xs: after(call.example.tree([w(x) for w, x in zip(before, xs, strict=True)]))

    def placed(self, x: Any) -> Any:
        """A tensor of these values, in any layout; a number is itself."""
        if not isinstance(x, np.ndarray):
            return x
        view, room = self.chance.choice(PLACES)
        return view(self.be.zeros(room(x.shape), x.dtype)).set(x)

    def apply(self) -> None:
        """A function of the registry, run in one of many ways, on any layout."""
        call, values, build = self.drawn()
        operands = [self.placed(x) for x in values]
        try:
            tree = build(*operands)
        except DTypeError:
            return
        if tree.backend is None:  # of numbers alone
            return
        ways = (self.evaluated, self.written_into, self.written_over, self.as_function, self.jitted)
        run = self.chance.choice(ways)
        self.said.append(run.__name__)
        wanted = np.asarray(call.meaning(*values))
        for got in run(tree, build, operands, values):
            compare(got, wanted, call.example, run.__name__, ulps=call.ulps, scale=scale_of(call.example, values))

    def evaluated(self, tree: Any, build: Any, operands: Any, values: Any) -> Iterator[Any]:
        yield tree.asnumpyarray()
        yield self.be.evaluate([tree, f.copy(tree)])[1].get()

    def written_into(self, tree: Any, build: Any, operands: Any, values: Any) -> Iterator[Any]:
        for _ in range(2):
            target = self.placed(np.zeros(tree.shape, tree.dtype))
            target[...] = tree
            yield target.get()

    def written_over(self, tree: Any, build: Any, operands: Any, values: Any) -> Iterator[Any]:
        """Into memory that one of the operands is in, or a part of it."""
        places = [i for i, x in enumerate(values) if isinstance(x, np.ndarray) and operands[i].dtype == tree.dtype]
        if not places:
            return
        i = self.chance.choice(places)
        own, count, shift = values[i].size, tree.size, self.chance.choice((0, 0, 1, 5))
        memory = self.be.zeros((max(own, shift + count),), tree.dtype)
        given = list(operands)
        given[i] = memory[:own].reshape(values[i].shape).set(values[i])
        target = memory[shift : shift + count].reshape(tree.shape)
        before, found = memory.get(), build(*given)
        if self.chance.random() < 0.5:
            target[...] = found
        else:
            function([], [], [(target, found)])()
        yield target.get()
        after = memory.get()
        after[shift : shift + count] = before[shift : shift + count]
        assert_equal(after, before, "what is beside the target")

    def as_function(self, tree: Any, build: Any, operands: Any, values: Any) -> Iterator[Any]:
        inputs, mode = inputs_for(values), self.chance.choice(MODES)
        with running_on(self.be):
            own = [x for x in inputs if isinstance(x, Input)]
            compiled = function(own, build(*inputs), mode=mode, on_unused_input="ignore")
        for given in (operands, values):
            try:
                yield compiled(*(x for x, i in zip(given, inputs, strict=True) if isinstance(i, Input))).get()
            except NotFiniteError:
                assert mode == "debug"

    def resize(self) -> None:
        """A function of the registry as a function of open sizes, called with some and with others."""
        call, values, _ = self.drawn()
        dtypes = {x.dtype for x in values if isinstance(x, np.ndarray)}
        if len(dtypes) != 1:
            return
        other = stretched(call, self.chance)
        more = other.example.draw(*dtypes)
        inputs = [Input(TensorType(x.dtype, _open(x.shape))) if isinstance(x, np.ndarray) else x for x in values]
        own, count = [x for x in inputs if isinstance(x, Input)], self.be.zeros(())
        try:
            with running_on(self.be):
                tree = call.example.tree(inputs)
                compiled = function(own, tree, [(count, count + 1.0)], on_unused_input="ignore")
        except OptreeError:  # it depends on sizes
            return
        self.said.append(f"of open sizes, and {other.example}")
        calls, like = 0, [np.equal(np.shape(x), 1).tolist() for x in values]
        for each, given in ((call, values), (other, more), (call, values)):
            if like != [np.equal(np.shape(x), 1).tolist() for x in given]:
                continue
            wanted = np.asarray(each.meaning(*given))
            try:
                got = compiled(*(self.placed(x) for x in given if isinstance(x, np.ndarray))).get()
            except ShapeError:  # an axis that is broadcast has to be known
                return
            calls += 1
            scale = max(1.0, scale_of(each.example, given))  # terms of stretched examples may cancel to 0
            compare(got, wanted, each.example, "of open sizes", ulps=each.ulps, scale=scale)
            assert count.item() == calls

    def jitted(self, tree: Any, build: Any, operands: Any, values: Any) -> Iterator[Any]:
        compiled = jit(build, static_shapes=True)
        arrays = [self.be.xp.asarray(x) if isinstance(x, Tensor) else x for x in operands]
        for given in (operands, arrays):
            yield compiled(*given).get()

    def pair(self, call: Call, values: Sequence[Any]) -> tuple[Any, Any, Any] | None:
        """Operands that are batches of two, or the same for both; their axes, and the other example's values."""
        mapped = [isinstance(x, np.ndarray) and self.chance.random() < 0.8 for x in values]
        if not any(mapped):
            return None
        # Those that are given by a list may be sorted, or boxes.
        drawn = [isinstance(x, tuple) for x in call.example.operands]
        rolled = [np.roll(x, 1) if each and free else x for x, each, free in zip(values, mapped, drawn, strict=True)]
        pairs = zip(values, rolled, mapped, strict=True)
        operands = [self.placed(np.stack([one, other]) if each else one) for one, other, each in pairs]
        self.said.append(f"a batch of {mapped}")
        return operands, tuple(0 if each else None for each in mapped), rolled

    def batch(self) -> None:
        """A function of the registry by `vmap`, on a batch of two."""
        call, values, build = self.drawn()
        found = self.pair(call, values)
        if found is None:
            return
        operands, axes, other = found
        try:
            tree = vmap(build, axes)(*operands)
        except (DTypeError, BatchingError):
            return
        wanted = np.stack([np.asarray(call.meaning(*row)) for row in (values, other)])
        scale = 32 * max(1.0, scale_of(call.example, values))
        compare(tree.asnumpyarray(), wanted, call.example, "a batch", ulps=call.ulps, scale=scale)

    def slope(self) -> None:
        """The gradient of a function of the registry, by the executor, by the reference and by differences."""
        call, values, build = self.drawn(["float64", "complex128"])
        gradients = _gradients(call, values, build)
        inputs = inputs_for(values)
        found = gradients(*(self.placed(x) for x in values))
        if not found:
            return
        self.same_gradients(self.be.evaluate(found), Runner(gradients(*inputs), inputs)(values))
        size = sum(map(np.size, values))
        if call.is_smooth and size <= DIFFERENCES:
            check_gradient(call.example._replace(build=lambda *xs: build(*xs)))
        if call.is_smooth and size <= DIFFERENCES / 4:
            check_second_gradient(call.example._replace(build=lambda *xs: build(*xs)))

    def slopes(self) -> None:
        """The gradients of two examples by `vmap`, and by the reference one by one."""
        call, values, build = self.drawn(["float64", "complex128"])
        gradients = _gradients(call, values, build)
        inputs = inputs_for(values)
        trees = gradients(*inputs)
        found = self.pair(call, values) if trees else None
        if found is None:
            return
        operands, axes, other = found
        try:
            both = vmap(gradients, axes)(*operands)
        except BatchingError:
            return
        rows = (Runner(trees, inputs)(row) for row in (values, other))
        self.same_gradients(self.be.evaluate(both), [np.stack(each) for each in zip(*rows, strict=True)])

    def same_gradients(self, found: Sequence[Any], wanted: Sequence[Any]) -> None:
        for got, one in zip(found, wanted, strict=True):
            size = float(np.max(np.abs(one), initial=1.0, where=np.isfinite(one)))
            np.testing.assert_allclose(got.get(), one, rtol=1e-9, atol=1e-9 * size)

    def draw(self) -> None:
        """Two draws from a state on, one of them used twice, in one of many ways, and again."""
        names, state = self.chance.choices(sorted(DRAWS), k=2), self.chance.choice(STATES)
        shape, dtype = self.chance.choice(((), (0,), (1,), (5,), (4, 6), (3, 21, 67))), self.chance.choice(FLOATS)

        def build() -> list[Any]:
            one, other = (DRAWS[name].tree(self.be, shape, dtype) for name in names)
            return [one, one - one, other]

        generator = Generator(*state)
        self.be.rng_state.set(np.array(state, np.uint64))
        way = self.chance.choice(("evaluate", "update", "jit", *MODES))
        self.said.append(f"draws of {names}, {shape} {dtype}, from the state {state} on, by {way}")
        run = self.repeated(way, build)
        for _ in range(2):
            one, nothing, other = (x.get() for x in run())
            assert not nothing.any(), "a draw that is used twice is one"
            for name, got in zip(names, (one, other), strict=True):
                draw = DRAWS[name]
                compare(got, draw.value(generator, shape, dtype), name, "a draw", ulps=32, scale=draw.high)
                draw.check_moments(got)
        assert self.be.rng_state.get().tolist() == [generator.seed, generator.counter]

    def repeated(self, way: str | None, build: Callable[[], list[Any]]) -> Callable[[], Sequence[Any]]:
        """A function that computes trees anew in each call."""
        if way == "jit":
            return jit(build)
        trees = build()
        if way == "evaluate":
            return partial(self.be.evaluate, trees)
        if way != "update":
            return function([], trees, mode=way)
        targets = [self.placed(np.zeros(x.shape, x.dtype)) for x in trees]

        def update() -> list[Any]:
            self.be.update(list(zip(targets, trees, strict=True)))
            return targets

        return update

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


def _gradients(call: Call, values: Sequence[Any], build: Callable[..., Any]) -> Callable[..., list[Any]]:
    """From operands to the gradients of a function's weighted sum by those that are floats; none where it has none."""
    floating = [i for i, x in enumerate(values) if isinstance(x, np.ndarray) and x.dtype.kind in "fc"]

    def gradients(*xs: Any) -> list[Any]:
        if not call.example.takes_floats or not floating:
            return []
        try:
            tree = build(*xs)
        except DTypeError:  # it takes no complex numbers
            return []
        tree = f.real(tree) + f.imag(tree) if is_complex(tree.dtype) else tree
        if not is_floating(tree.dtype):
            return []
        return grad(weighted_sum(tree), [xs[i] for i in floating], disconnected_inputs="ignore")

    return gradients


@contextmanager
def _refused_alike(by_numpy: Callable[[], None]) -> Iterator[list[bool]]:
    """A block that raises an error of op-tree's where NumPy refuses something; otherwise what it gives is not empty."""
    taken: list[bool] = []
    try:
        by_numpy()
        taken.append(True)
    except (IndexError, ValueError, TypeError, OverflowError) as error:
        refusal = error
    try:
        yield taken
    except OptreeError:
        assert not taken, "NumPy takes it"
        return
    assert taken, f"NumPy refuses it: {refusal!r}"


def _is_sure(value: Any, dtype: np.dtype) -> bool:
    """Whether C says what these numbers are in a dtype."""
    array = np.asarray(value)
    if is_inexact(dtype) or dtype.kind == "b" or not is_inexact(array.dtype):
        return True
    wide = array.real.astype(np.float64)
    return bool(np.all((wide > -1 if dtype.kind == "u" else wide >= -100) & (wide <= 100)))


def _open(shape: tuple[int, ...]) -> tuple[int | None, ...]:
    """A shape whose sizes are known at the call, but for those that are 1."""
    return tuple(1 if n == 1 else None for n in shape)


def _name(tensor: Any) -> str:
    return f"{tensor.label}{tensor.shape}"


def _as_update(tree: Any, target: Any) -> Any:
    """A tree as the update of a tensor, which has the shape and kind of dtype of that."""
    tree = tree if tree.dtype == target.dtype else tree.astype(target.dtype)
    lead = max(tree.ndim - target.ndim, 0)
    tree = f.reshape(tree, tree.shape[lead:]) if lead else tree
    return tree if tree.shape == target.shape else f.broadcast_to(tree, target.shape)


def _broadcasts(shape: Any, target: Any) -> bool:
    try:
        return np.broadcast_shapes(shape, target) == tuple(target)
    except ValueError:
        return False


def run(seed: int, ways: Sequence[str] = tuple(WAYS), statements: int = 8) -> str | None:
    """A program of this seed by each executor, in turns; what went wrong, or None."""
    programs = {way: Program(_backend(way), seed) for way in ways}
    for step in range(statements + 1):
        for way, program in programs.items():
            try:
                with SETTINGS.get(way, nullcontext)():
                    if step < statements:
                        program.statement()
                    else:
                        program.said.append("a program of arrays")
                        array_programs.assert_alike(program.be.xp, seed, steps=20)
            except Exception:
                lines = "\n".join(program.said)
                return f"seed {seed}, {way}:\n{lines}\n{traceback.format_exc()}"
    try:
        savers.assert_whole(seed)
    except Exception:
        return f"seed {seed}, two writers:\n{traceback.format_exc()}"
    return None


def main() -> int:
    """Run programs until the time is up; 1 if one of them went wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=None, help="the first program's; by default a random one")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--ways", nargs="+", choices=WAYS, help="executors; by default all, the slow ones now and then")
    given = parser.parse_args()
    seed = random.randrange(10**6) if given.seed is None else given.seed
    first, failed, until = seed, 0, time.monotonic() + given.seconds
    known = [way for way in WAYS if way != "gpu" or why_no_rig() is None]
    while time.monotonic() < until:
        ways = given.ways or [way for way in known if seed % SELDOM.get(way, 1) == 0]
        simulated = rig().on() if "gpu" in ways else nullcontext()
        with simulated, warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            wrong = run(seed, ways)
        if wrong is not None:
            failed += 1
            print(wrong, flush=True)
        seed += 1
    print(f"{seed - first} programs from seed {first} on: {failed} went wrong")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
