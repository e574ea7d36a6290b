"""Einstein's sums: what they are composed of, sizes that a call tells, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from optree import OpTreeNode, TensorType, function
from optree.errors import AxisError, OperandError, ShapeError
from optree.registry import f


def ops_of(tree):
    """The ops of a tree, from the leaves up."""
    return [entry["op"] for entry in tree.traverse() if isinstance(entry, dict)]


@pytest.mark.parametrize(
    ("subscripts", "shapes", "ops"),
    [
        ("ij,jk->ik", ((2, 3), (3, 4)), ["tensordot"]),
        ("bij,bjk->bik", ((2, 3, 4), (2, 4, 5)), ["matmul"]),
        ("bij,bkj->bik", ((2, 3, 4), (2, 5, 4)), ["transpose", "matmul"]),
        ("ij,ij->ij", ((2, 3), (2, 3)), ["mul"]),
        ("i,j->ij", ((2,), (3,)), ["expand_dims", "expand_dims", "mul"]),
        ("ij->ji", ((2, 3),), ["transpose"]),
        ("ij->ij", ((2, 3),), ["transpose"]),
        ("ij->j", ((2, 3),), ["sum"]),
    ],
)
def test_it_is_as_few_ops_as_it_takes(be, subscripts, shapes, ops):
    tree = be.einsum(subscripts, *(be.ones(shape) for shape in shapes))
    assert type(tree) is OpTreeNode and ops_of(tree) == ops


@pytest.mark.parametrize(
    ("subscripts", "types", "shapes"),
    [
        ("bi,ij->bj", ((None, 3), (3, 4)), ((5, 3), (3, 4))),
        ("bqd,bkd->bqk", ((None, 3, 4), (None, 5, 4)), ((2, 3, 4), (2, 5, 4))),
        ("bhqd,bhkd->bhqk", ((None, 2, None, 4), (None, 2, None, 4)), ((3, 2, 5, 4), (3, 2, 6, 4))),
        ("bij,bjkl->bikl", ((None, 2, 3), (None, 3, 4, 5)), ((6, 2, 3), (6, 3, 4, 5))),
        ("...i->...", ((None, 3),), ((7, 3),)),
    ],
)
def test_a_call_tells_sizes_that_are_open(be64, subscripts, types, shapes):
    inputs = [TensorType("float64", shape)(f"x{i}") for i, shape in enumerate(types)]
    values = [np.random.RandomState(0).normal(size=shape) for shape in shapes]
    found = function(inputs, f.einsum(subscripts, *inputs))(*values)
    np.testing.assert_allclose(found.get(), np.einsum(subscripts, *values), rtol=1e-12)


@pytest.mark.parametrize(
    ("subscripts", "shapes", "error", "said"),
    [
        ("ij,jk->ik", ((2, 3), (4, 5)), ShapeError, r"'j' .* of size 3 in x0 \(2, 3\) .* size 4 in x1"),
        ("ij,jk", ((2, 3),), OperandError, "subscripts for 2 operands, not 1"),
        ("ij", ((2, 3, 4),), AxisError, r"'ij' in 'ij' does not name the 3 axes of x0 \(2, 3, 4\)"),
        ("...ijk", ((2, 3),), AxisError, "does not name the 2 axes"),
        ("ij->ik", ((2, 3),), OperandError, "'k' is in the output .* twice, or in no operand"),
        ("ij->ii", ((2, 3),), OperandError, "'i' is in the output"),
        ("i1->i", ((2, 3),), OperandError, "'i1' in 'i1->i' is not of letters"),
        ("i...->i", ((2, 3),), OperandError, r"the axes of \.\.\. .* give the output a \.\.\. too"),
    ],
)
def test_what_cannot_be_is_an_error_that_says_why(be, subscripts, shapes, error, said):
    with pytest.raises(error, match=said):
        be.einsum(subscripts, *(be.ones(shape, name=f"x{i}") for i, shape in enumerate(shapes)))


def test_other_ways_to_call_numpys_are_refused(be):
    with pytest.raises(OperandError, match=r"subscripts are a text such as 'ij,jk->ik'"):
        np.einsum(be.ones((2, 3)), [0, 1])
    with pytest.raises(TypeError, match="does not take order"):
        np.einsum("ij", be.ones((2, 3)), order="F")


def test_out_is_written(be):
    x, out = be.ones((2, 3)), be.zeros((2, 2))
    assert be.einsum("ij,kj->ik", x, x, out=out) is out and out.tolist() == [[3.0, 3.0], [3.0, 3.0]]


@pytest.mark.parametrize(
    ("subscripts", "operands"),
    [
        ("i,k->k", [np.ones(3, bool), np.array([1.0, 2.0])]),
        ("i,k->k", [np.ones(3, bool), np.ones(2, bool)]),
        ("i,k->k", [np.full(3, 100, "int8"), np.full(2, 2, "int8")]),
        ("i,k->k", [np.full(3, 100, "int8"), np.full(2, 2, "int16")]),
        ("i,i,i->i", [np.full(2, 100, "int8"), np.full(2, 100, "int8"), np.full(2, 2, "int32")]),
        ("i,k->k", [np.full(3, 30000, "float16"), np.full(2, 0.1, "float16")]),
        ("i,i,i->", [np.full(3, 300, "float16"), np.full(3, 300, "float16"), np.full(3, 1e-4, "float16")]),
        ("i,i->i", [np.full(2, 3, "int16"), np.full(2, 0.5, "float16")]),
        ("ij,jk->ik", [np.full((2, 3), 200, "uint8"), np.full((3, 2), 200, "int64")]),
    ],
)
def test_operands_are_promoted_before_they_are_summed_or_multiplied(be, subscripts, operands):
    wanted = np.einsum(subscripts, *operands)
    found = be.einsum(subscripts, *(be.array(x, x.dtype) for x in operands)).asnumpyarray()
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(found, wanted, rtol=1e-3)


def test_a_single_product_of_halves_stays_one(be):
    x = be.ones((2, 3), "float16")
    assert ops_of(be.einsum("ij,kj->ik", x, x)) == ["tensordot"]
