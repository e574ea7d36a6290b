"""Random trees: their leaves, what may be in them, and what NumPy makes of them op by op."""

from __future__ import annotations

from typing import Any

import numpy as np

from harness.expected import MEANINGS
from harness.narrow import of_any_dtype
from optree import OpTreeNode
from optree.compile.reference import value_of
from optree.dtypes import finfo, is_bfloat16, is_inexact
from optree.registry import OPS
from optree.testing.random_trees import usable_ops
from optree.tree.node import operands_of, post_order
from optree.tree.variable import Variable, is_complex_operand

USABLE = [name for name in usable_ops() if name in MEANINGS]


def _names(listed: str) -> set[str]:
    return set(listed.split())


SHAPE_OPS = _names(
    "transpose reshape expand_dims squeeze flip broadcast_to slice concatenate repeat pad broadcast_like reshape_like"
)

#: Computed without rounding, or rounded as IEEE 754 says: alike to the bit wherever they run.
EXACT = (
    SHAPE_OPS
    | {None}
    | _names(  # parts of complex numbers have no names
        """conjugate neg abs sgn square reciprocal sqrt floor ceil trunc rint finite isnan isinf logical_not relu
    add sub mul div floor_divide mod maximum minimum eq ne lt le gt ge
    logical_and logical_or logical_xor where cast max min argmax argmin sort argsort all any"""
    )
)

#: What does not enlarge an error in its operands by much; the others take exact operands.
GENTLE = SHAPE_OPS | _names(
    """conjugate neg abs sin cos tanh sig arctan erf relu add sub mul maximum minimum sum mean max min sort cumsum
    softmax logsumexp matmul dot"""
)

#: Of these, what is rounded where numbers are complex.
ROUNDED = _names("abs sgn square reciprocal sqrt mul div")

#: Smooth everywhere, and with values and derivatives that stay small.
SMOOTH = sorted(
    (SHAPE_OPS | _names("add mul sub neg sin cos tanh sig arctan sum mean cumsum softmax logsumexp matmul dot"))
    & OPS.keys()
)

SHAPES = ((2, 3), (3,), (2, 1), (), (1, 3), (3, 2))


def leaves_of(backend: Any, dtypes: Any, low: float = -2.0) -> list[Any]:
    """A tensor of each shape, of quarters: sums and products of a few are exact."""
    rng = np.random.RandomState(0)
    found = []
    for shape, dtype in zip(SHAPES, dtypes, strict=False):
        quarters = rng.randint(int(low * 4), 9, shape) / 4
        values = quarters if np.dtype(dtype).kind == "f" else np.abs(np.rint(quarters))
        found.append(backend.array(values.astype(dtype), dtype, f"leaf{len(found)}"))
    return found


class Exactness:
    """Keeps ops that would enlarge a rounding error away from operands that have one."""

    def __init__(self) -> None:
        self.rounded: set[int] = set()
        self.kept: list[Any] = []

    def accepts(self, op: Any, operands: list[Any]) -> bool:
        if op.name == "pow" and any(x.dtype.kind in "iu" for x in operands):
            return False  # NumPy refuses negative powers of integers when it runs
        if op.name == "reciprocal" and operands[0].dtype.kind in "biu":
            return False  # of 0, NumPy gives another integer than CuPy, and another in each dtype
        rounded = any(self.is_rounded(x) for x in operands)
        return op.name in GENTLE or not rounded

    def is_rounded(self, x: Any) -> bool:
        nodes = post_order([x], lambda y: operands_of(y) if isinstance(y, OpTreeNode) else ())
        return any(
            isinstance(y, OpTreeNode)
            and (y.op.name not in EXACT or (y.op.name in ROUNDED and any(map(is_complex_operand, operands_of(y)))))
            for y in nodes
        )


def run_by_numpy(tree: Any) -> tuple[Any, float]:
    """The tree's value, op by op by the ops' meanings, and the size of the largest number on the way."""
    values: dict[int, Any] = {}
    largest = 1.0
    for entry in post_order([tree], lambda x: operands_of(x) if isinstance(x, OpTreeNode) else ()):
        if isinstance(entry, OpTreeNode):
            operands = [values[id(x)] for x in operands_of(entry)]
            meaning = of_any_dtype(MEANINGS.get(entry.op.name) or entry.op.numpy)  # of a part, which has no name
            with np.errstate(all="ignore"):
                values[id(entry)] = np.asarray(meaning(*operands, **entry.op.props))
        else:
            values[id(entry)] = value_of(entry)
        found = np.asarray(values[id(entry)])
        if isinstance(entry, OpTreeNode):
            assert (found.shape, found.dtype) == (entry.shape, entry.dtype), entry.pp()
        wide = np.abs(_wide(found))
        largest = max(largest, float(np.max(wide, initial=0.0, where=np.isfinite(wide))))
    return values[id(tree)], largest


def assert_alike(got: Any, wanted: Any, tree: Any, largest: float, exact: bool, ulps: float = 1e3) -> None:
    assert got.dtype == wanted.dtype, tree.pp()
    assert got.shape == wanted.shape, tree.pp()
    if exact or not is_inexact(got.dtype):
        assert_equal(got, wanted, tree.pp())
        return
    eps = float(max(finfo(dtype).eps for dtype in [got.dtype, *(x.dtype for x in _floats(tree))]))
    got, wanted = _wide(got), _wide(wanted)
    np.testing.assert_allclose(got, wanted, rtol=ulps * eps, atol=ulps * eps * largest, err_msg=tree.pp())


def assert_equal(got: Any, wanted: Any, message: str) -> None:
    """Each number is the other's, and a nan where that is one."""
    if is_bfloat16(got.dtype) and is_bfloat16(wanted.dtype):  # whose nans NumPy's testing does not know
        got, wanted = got.astype(np.float32), wanted.astype(np.float32)
    np.testing.assert_array_equal(got, wanted, err_msg=message)


def _wide(x: Any) -> Any:
    return x.astype(np.result_type(x.dtype, np.float64) if x.dtype.kind == "c" else np.float64)


def _floats(tree: Any) -> list[Any]:
    found = post_order([tree], lambda x: operands_of(x) if isinstance(x, OpTreeNode) else ())
    return [x for x in found if isinstance(x, Variable) and is_inexact(x.dtype)]
