"""Random trees against NumPy run op by op, and their gradients against finite differences.

Hypothesis builds them from the registry and shrinks what fails to the smallest
tree that does. Each run draws the same trees; ``--hypothesis-profile=long``
draws others, and many more.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from harness.compiling import needs_compiler
from harness.expected import MEANINGS
from harness.homes import home
from hypothesis import given, settings
from hypothesis import strategies as st

from backends import gen_backend
from optree import OpTreeNode, check_grad
from optree.node import operands_of, post_order
from optree.program import flatten
from optree.random_trees import random_tree, usable_ops
from optree.reference import evaluate, value_of
from optree.registry import OPS, f
from optree.traits import ReductionOperator
from optree.variable import Variable

USABLE = [name for name in usable_ops() if name in MEANINGS]


def _names(listed: str) -> set[str]:
    return set(listed.split())


SHAPE_OPS = _names(
    "transpose reshape expand_dims squeeze flip broadcast_to slice concatenate repeat pad broadcast_like reshape_like"
)

#: Computed without rounding, or rounded as IEEE 754 says: alike to the bit wherever they run.
EXACT = SHAPE_OPS | _names(
    """neg abs sgn square reciprocal sqrt floor ceil trunc rint finite isnan isinf logical_not relu
    add sub mul div floor_divide mod maximum minimum eq ne lt le gt ge
    logical_and logical_or logical_xor where cast max min argmax argmin all any"""
)

#: What does not enlarge an error in its operands by much; the others take exact operands.
GENTLE = SHAPE_OPS | _names(
    """neg abs sin cos tanh sig arctan erf relu add sub mul maximum minimum sum mean max min
    softmax logsumexp matmul dot outer"""
)

#: Smooth everywhere, and with values and derivatives that stay small.
SMOOTH = sorted(
    (SHAPE_OPS | _names("add mul sub neg sin cos tanh sig arctan sum mean softmax logsumexp matmul dot outer"))
    & OPS.keys()
)

SHAPES = ((2, 3), (3,), (2, 1), (), (1, 3), (3, 2))


@pytest.fixture(scope="module")
def cpu(home_kind: str) -> Any:
    """One backend for all trees, so that plans are kept and met again."""
    return home(home_kind, datatype=np.float64)


@pytest.fixture(scope="module")
def kernels() -> Any:
    """A backend that runs all it can by kernels."""
    return gen_backend("cpu", datatype=np.float64, jit=True)


def _leaves(backend: Any, dtypes: Any, low: float = -2.0) -> list[Any]:
    """A tensor of each shape, of quarters: sums and products of a few are exact."""
    rng = np.random.RandomState(0)
    found = []
    for shape, dtype in zip(SHAPES, dtypes, strict=False):
        quarters = rng.randint(int(low * 4), 9, shape) / 4
        values = quarters if np.dtype(dtype).kind == "f" else np.abs(np.rint(quarters))
        found.append(backend.array(values.astype(dtype), dtype, f"leaf{len(found)}"))
    return found


class _Exactness:
    """Keeps ops that would enlarge a rounding error away from operands that have one."""

    def __init__(self) -> None:
        self.rounded: set[int] = set()
        self.kept: list[Any] = []

    def accepts(self, op: Any, operands: list[Any]) -> bool:
        if op.name == "pow" and any(x.dtype.kind in "iu" for x in operands):
            return False  # NumPy refuses negative powers of integers when it runs
        rounded = any(self.is_rounded(x) for x in operands)
        return op.name in GENTLE or not rounded

    def is_rounded(self, x: Any) -> bool:
        nodes = post_order([x], lambda y: operands_of(y) if isinstance(y, OpTreeNode) else ())
        return any(isinstance(y, OpTreeNode) and y.op.name not in EXACT for y in nodes)


def _run_by_numpy(tree: Any) -> tuple[Any, float]:
    """The tree's value, op by op by the ops' meanings, and the size of the largest number on the way."""
    values: dict[int, Any] = {}
    largest = 1.0
    for entry in post_order([tree], lambda x: operands_of(x) if isinstance(x, OpTreeNode) else ()):
        if isinstance(entry, OpTreeNode):
            operands = [values[id(x)] for x in operands_of(entry)]
            with np.errstate(all="ignore"):
                values[id(entry)] = np.asarray(MEANINGS[entry.op.name](*operands, **entry.op.props))
        else:
            values[id(entry)] = value_of(entry)
        found = np.asarray(values[id(entry)])
        if isinstance(entry, OpTreeNode):
            assert (found.shape, found.dtype) == (entry.shape, entry.dtype), entry.pp()
        if found.dtype.kind == "f":
            largest = max(largest, float(np.max(np.abs(found), initial=0.0, where=np.isfinite(found))))
    return values[id(tree)], largest


def _assert_alike(got: Any, wanted: Any, tree: Any, largest: float, exact: bool, ulps: float = 1e3) -> None:
    assert got.dtype == wanted.dtype, tree.pp()
    assert got.shape == wanted.shape, tree.pp()
    if exact or got.dtype.kind != "f":
        np.testing.assert_array_equal(got, wanted, err_msg=tree.pp())
        return
    eps = max(np.finfo(x.dtype).eps for x in _floats(tree))
    np.testing.assert_allclose(got, wanted, rtol=ulps * eps, atol=ulps * eps * largest, err_msg=tree.pp())


def _floats(tree: Any) -> list[Any]:
    found = post_order([tree], lambda x: operands_of(x) if isinstance(x, OpTreeNode) else ())
    return [x for x in found if isinstance(x, Variable) and x.dtype.kind == "f"]


DTYPES = st.tuples(*[st.sampled_from(["float64", "float32", "int32", "bool", "int64", "uint8"])] * len(SHAPES))


@given(data=st.data(), dtypes=DTYPES)
def test_a_random_tree_is_numpy_run_op_by_op(cpu: Any, data: Any, dtypes: Any) -> None:
    exactness = _Exactness()
    leaves = _leaves(cpu, dtypes)
    tree = random_tree(
        lambda options: data.draw(st.sampled_from(options)),
        leaves,
        data.draw(st.integers(1, 12)),
        USABLE,
        exactness.accepts,
    )
    if not isinstance(tree, OpTreeNode):
        return
    wanted, largest = _run_by_numpy(tree)
    exact = not exactness.is_rounded(tree)
    _assert_alike(tree.asnumpyarray(), wanted, tree, largest, exact)
    program = flatten([tree])
    (by_reference,) = evaluate(program, [value_of(leaf) for leaf in program.leaves])
    _assert_alike(np.asarray(by_reference), wanted, tree, largest, exact)
    target = cpu.empty(tree.shape[::-1], tree.dtype).T
    target[...] = tree
    _assert_alike(target.get(), wanted, tree, largest, exact)


@needs_compiler
@settings(max_examples=80)  # a compiler takes a tenth of a second for each kernel
@given(data=st.data(), dtypes=DTYPES, size=st.integers(3, 12))
def test_a_random_tree_by_compiled_kernels(kernels: Any, data: Any, dtypes: Any, size: int) -> None:
    """To the bit where all is exact, else within 4 units in the last place for each operation, of the largest value."""
    exactness = _Exactness()
    leaves = _leaves(kernels, dtypes)
    tree = random_tree(lambda options: data.draw(st.sampled_from(options)), leaves, size, USABLE, exactness.accepts)
    if not isinstance(tree, OpTreeNode):
        return
    wanted, largest = _run_by_numpy(tree)
    target = kernels.empty(tree.shape[::-1], tree.dtype).T
    target[...] = tree
    for got in (tree.asnumpyarray(), target.get()):
        _assert_alike(got, wanted, tree, largest, not exactness.is_rounded(tree), 4 * size)


@given(data=st.data(), place=st.integers(0, len(SHAPES) - 1))
def test_a_random_tree_written_into_a_leaf(cpu: Any, data: Any, place: int) -> None:
    """The right side is read before the left is written, wherever the left stands in it."""
    leaves = _leaves(cpu, ["float64"] * len(SHAPES))
    target = leaves[place]
    exactness = _Exactness()
    tree = random_tree(lambda options: data.draw(st.sampled_from(options)), leaves, 6, USABLE, exactness.accepts)
    if tree.dtype != np.float64 or not isinstance(tree, OpTreeNode):
        return
    for view in (target, target.T, target[..., ::-1] if target.ndim else target):
        before = target.get()
        wanted, largest = _run_by_numpy(tree)
        try:
            np.broadcast_to(wanted, view.shape)
        except ValueError:
            continue
        view[...] = tree
        _assert_alike(view.get(), np.broadcast_to(wanted, view.shape), tree, largest, not exactness.is_rounded(tree))
        target.set(before)


@given(data=st.data())
def test_the_gradient_of_a_random_smooth_tree(cpu: Any, data: Any) -> None:
    leaves = _leaves(cpu, ["float64"] * len(SHAPES), low=-1.0)
    choices: list[Any] = []

    def choose(options: Any) -> Any:
        choices.append(data.draw(st.integers(0, len(options) - 1)))
        return options[choices[-1]]

    size = data.draw(st.integers(1, 8))
    random_tree(choose, leaves, size, SMOOTH)

    def again(*tensors: Any) -> Any:
        replay = iter(choices)
        tree = random_tree(lambda options: options[next(replay)], tensors, size, SMOOTH)
        # Every leaf takes part, so that each has a derivative, if only of this.
        return f.sum(f.tanh(tree)) + sum((f.sum(x * x) for x in tensors), 0.0)

    check_grad(again, leaves, rtol=1e-5, atol=1e-5)


def test_every_op_that_can_be_in_a_random_tree_gets_into_one(cpu: Any) -> None:
    seen = set()
    leaves = _leaves(cpu, ["float64", "float64", "float64", "float64", "int32", "bool"])
    for seed in range(400):
        exactness = _Exactness()
        tree = random_tree(random.Random(seed).choice, leaves, 15, USABLE, exactness.accepts)
        nodes = post_order([tree], lambda x: operands_of(x) if isinstance(x, OpTreeNode) else ())
        seen |= {x.op.name for x in nodes if isinstance(x, OpTreeNode)}
    assert seen >= set(USABLE), f"never drawn: {sorted(set(USABLE) - seen)}"
    assert {name for name, op in OPS.items() if issubclass(op, ReductionOperator)} <= seen


def test_the_same_seed_makes_the_same_tree(cpu: Any) -> None:
    leaves = _leaves(cpu, ["float64"] * len(SHAPES))
    one, two = (random_tree(random.Random(7).choice, leaves, 12) for _ in range(2))
    assert str(one) == str(two)
    assert one.key() == two.key()
