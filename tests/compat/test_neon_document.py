"""The statements of neon's "Op-Tree" document, one by one, in our own words."""

from __future__ import annotations

import numpy as np
import pytest

from backends import gen_backend
from optree import OpTreeNode, Tensor


@pytest.fixture
def x0(be):
    return be.ones((2, 2), name="x0")


@pytest.fixture
def x1(be):
    return be.ones((2, 2), name="x1")


def test_minimal_example_prints_what_the_document_prints(capsys):
    be = gen_backend("cpu")
    x0 = be.ones((2, 2), name="x0")
    x1 = be.ones((2, 2), name="x1")
    f = x0 + x1
    f_val = be.empty((2, 2))
    f_val[:] = f
    print(f)
    print(f_val.get())
    tree, value = capsys.readouterr().out.split("\n", 1)
    assert tree == "({'shape': (2, 2), 'op': 'add'}, x0, x1)"
    assert value.split() == ["[[2.", "2.]", "[2.", "2.]]"]


def test_a_tree_is_a_tuple_of_op_and_two_operands(x0, x1):
    f = x0 + x1
    assert isinstance(f, OpTreeNode) and isinstance(f, tuple)
    assert len(f) == 3
    op, left, right = f
    assert op == {"shape": (2, 2), "op": "add"} and isinstance(op, dict)
    assert left is x0 and right is x1
    assert f[0] is op and f[1] is x0 and f[2] is x1 and f[-1] is x1


def test_a_reduction_keeps_its_axis_in_the_op_dict(be, x0):
    op = be.sum(x0, axis=1)[0]
    assert op["op"] == "sum" and op["axis"] == 1 and op["shape"] == (2, 1)


def test_a_node_of_one_operand_holds_none_for_the_other(be, x0):
    assert be.sqrt(x0)[1] is x0
    assert be.sqrt(x0)[2] is None


def test_operators_join_tensors_and_trees(x0, x1):
    t0, t1 = x0 + x1, x0 * x1
    for f in (x0 + x1, x0 + t0, t0 + x0, t0 + t1):
        assert type(f) is OpTreeNode
    np.testing.assert_array_equal((t0 + t1).asnumpyarray(), np.full((2, 2), 3.0))


@pytest.mark.parametrize(
    "build",
    [
        lambda x, y: x + y,
        lambda x, y: x - y,
        lambda x, y: x * y,
        lambda x, y: x / y,
        lambda x, y: x // y,
        lambda x, y: x % y,
        lambda x, y: x**y,
        lambda x, y: x @ y,
        lambda x, y: x == y,
        lambda x, y: x != y,
        lambda x, y: x < y,
        lambda x, y: x <= y,
        lambda x, y: x > y,
        lambda x, y: x >= y,
        lambda x, y: -x + abs(y),
    ],
)
def test_every_operator_builds_a_tree_with_numpys_value(be, build):
    a, b = np.array([[1.5, -2.0], [3.0, 4.0]]), np.array([[1.5, 2.0], [3.0, -1.0]])
    x, y = be.array(a, dtype="float64"), be.array(b, dtype="float64")
    f = build(x, y)
    assert type(f) is OpTreeNode
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(f.asnumpyarray(), build(a, b))
        np.testing.assert_array_equal(build(x + 0, y).asnumpyarray(), build(a, b))
        np.testing.assert_array_equal(build(x, y * 1).asnumpyarray(), build(a, b))


def test_backend_functions_return_trees(be, x0):
    f = be.mean(x0)
    assert type(f) is OpTreeNode
    assert f.asnumpyarray().item() == 1.0


def test_build_checks_and_infers(x0, x1):
    assert str(OpTreeNode.build("add", x0, x1)) == "({'shape': (2, 2), 'op': 'add'}, x0, x1)"


def test_build_with_out_runs_at_once(be):
    a = be.full((2, 2), 9.0, name="a")
    buffer = be.zeros((2, 2))
    assert OpTreeNode.build("sqrt", a, None, out=buffer) is buffer
    np.testing.assert_array_equal(buffer.get(), np.full((2, 2), 3.0))


def test_the_initialiser_checks_nothing(x0, x1):
    op_dict = {"op": "add", "shape": (7, 5), "note": "mine"}
    f = OpTreeNode(op_dict, x0, x1)
    assert f[0] == op_dict and f.shape == (7, 5)
    assert str(f) == "({'op': 'add', 'shape': (7, 5), 'note': 'mine'}, x0, x1)"


def test_a_node_from_the_initialiser_runs(be, x0, x1):
    value = be.empty((2, 2))
    value[:] = OpTreeNode({"op": "add", "shape": (2, 2)}, x0, x1)
    np.testing.assert_array_equal(value.get(), np.full((2, 2), 2.0))
    OpTreeNode({"op": "assign"}, value, OpTreeNode({"op": "mul"}, value, 3)).execute()
    np.testing.assert_array_equal(value.get(), np.full((2, 2), 6.0))


def test_assignment_is_an_assign_node_that_is_executed(be, x0, x1):
    f_val = be.zeros((2, 2), name="f_val")
    node = OpTreeNode.build("assign", f_val, x0 + x1)
    assert type(node) is OpTreeNode and node[0]["op"] == "assign" and node[1] is f_val
    assert node.execute() is f_val
    np.testing.assert_array_equal(f_val.get(), np.full((2, 2), 2.0))


def test_a_tree_is_immutable(x0, x1):
    f = x0 + x1
    with pytest.raises(TypeError):
        f[1] = x1
    with pytest.raises(TypeError, match="cannot be changed"):
        f[0]["op"] = "mul"
    assert f[0]["op"] == "add"


def test_the_post_order_stack_can_be_edited_and_rebuilt(be, x0, x1):
    x2 = be.full((2, 2), 5.0, name="x2")
    f = be.sin(x0 * x1) + x1
    stack = f.traverse([])
    assert isinstance(stack, list)
    assert [e["op"] if isinstance(e, dict) else e.label for e in stack] == ["x0", "x1", "mul", "sin", "x1", "add"]
    swapped = OpTreeNode.from_stack([x2 if entry is x1 else entry for entry in stack])
    assert str(swapped) == str(be.sin(x0 * x2) + x2)
    np.testing.assert_allclose(swapped.asnumpyarray(), np.sin(5.0, dtype="f4") + 5.0, rtol=1e-6)
    assert str(f) == str(be.sin(x0 * x1) + x1)


def test_every_inner_node_is_an_op_and_every_leaf_a_number_or_tensor(be, x0, x1):
    pending, leaves = [be.where(x0 > x1, x0 * 2, be.sqrt(x1) + 0.5)], []
    while pending:
        node = pending.pop()
        op, *children = node
        assert isinstance(op, dict) and len(children) == 2
        for child in children:
            if isinstance(child, OpTreeNode):
                pending.append(child)
            elif child is not None:
                leaves.append(child)
    assert all(isinstance(leaf, Tensor | int | float) for leaf in leaves)
    assert 2 in [leaf for leaf in leaves if type(leaf) is int]
