"""Nodes from a user's view: building, printing, walking, editing, keys, copies, size."""

from __future__ import annotations

import copy
import gc
import pickle
import tracemalloc
import weakref

import numpy as np
import pytest
from harness.calls import calls_of
from harness.each import for_each
from harness.op_examples import examples_for, has_examples

from backends import gen_backend
from optree import Input, Op, OpTreeNode, TensorType, constant
from optree.errors import OperandError, UnknownOpError
from optree.registry import OPS, f
from optree.testing.examples import inputs_for
from optree.tree.node import Shared


def of(be, value, name=None, dtype="float64"):
    return be.array(np.asarray(value), dtype=dtype, name=name)


# Printing


def test_an_unnamed_tensor_prints_its_identity(be):
    x = be.ones((2,))
    assert str(x + 1) == f"({{'shape': (2,), 'op': 'add'}}, tensor-{id(x):#x}, 1)"
    assert x.label.startswith("tensor-0x")


def test_numbers_print_as_python_writes_them(be):
    x = be.ones((2,), name="x")
    assert str(x * np.float32(2)).endswith("x, 2.0)")
    assert str(0.5 * x).endswith("0.5, x)")
    assert str(True * x).endswith("True, x)")


def test_parameters_stand_in_the_op_dict(be):
    x = be.ones((2, 3), name="x")
    assert str(be.sum(x, axis=-1)) == "({'shape': (2, 1), 'op': 'sum', 'axis': 1, 'keepdims': True}, x, None)"


def test_repr_is_str_and_an_input_and_a_constant_print_their_names():
    x = Input(TensorType("float32", (None, 3)), name="x")
    node = x + constant(np.ones(3), name="c")
    assert repr(node) == str(node) == "({'shape': (None, 3), 'op': 'add'}, x, c)"


def test_pp_writes_a_line_a_node_and_a_shared_subtree_once(be):
    x = be.ones((2,), name="x")
    y = be.sin(x)
    assert (y * y + 1).pp().splitlines() == [
        "add (2,) float32",
        "  mul (2,) float32",
        "    sin (2,) float32",
        "      x",
        "    sin (see line 3)",
        "  1",
    ]


# Walks


def test_traverse_marks_a_shared_subtree_and_from_stack_shares_it_again(be):
    x = be.ones((2,), name="x")
    y = be.sin(x)
    f = y * y
    stack = f.traverse()
    assert stack[0] is x and stack[1] == y[0] and stack[2] is stack[3] and stack[4] == f[0]
    rebuilt = OpTreeNode.from_stack(stack)
    assert rebuilt[1] is rebuilt[2]
    assert str(rebuilt) == str(f) and rebuilt.key() == f.key()


def test_traverse_appends_to_the_list_it_is_given(be):
    stack = ["before"]
    x = be.ones((2,))
    node = x + 1
    assert node.traverse(stack) is stack
    assert stack == ["before", stack[1], 1, node[0]] and stack[1] is x


def test_an_operation_on_the_stack_may_be_replaced_by_a_dict(be):
    x, y = of(be, [3.0, 4.0], "x"), of(be, [1.0, 2.0], "y")
    stack = (x + y).traverse()
    stack[-1] = {"op": "mul"}
    np.testing.assert_array_equal(OpTreeNode.from_stack(stack).asnumpyarray(), [3.0, 8.0])
    stack[-1] = {"op": "sum", "axis": 0, "keepdims": False}
    np.testing.assert_array_equal(OpTreeNode.from_stack(stack[1:]).asnumpyarray(), 3.0)


def test_a_rebuilt_tree_is_checked_and_inferred_again(be):
    x, y = of(be, np.ones((2, 3)), "x"), of(be, np.ones((4, 3)), "y")
    stack = be.sum(x * 2, axis=0).traverse()
    rebuilt = OpTreeNode.from_stack([y if e is x else e for e in stack])
    assert rebuilt.shape == (1, 3) and rebuilt[1].shape == (4, 3)
    with pytest.raises(ValueError, match="add"):
        OpTreeNode.from_stack([x, y, {"op": "add"}])


@pytest.mark.parametrize(
    ("stack", "message"),
    [
        ([1, {"op": "add"}], "add takes 2 operands off the stack, which holds 1"),
        ([1, 2], "leaves one tree, not 2"),
        ([], "leaves one tree, not 0"),
        ([Shared(), 1], "marks the tree before it"),
    ],
)
def test_a_stack_that_is_no_tree_is_refused(stack, message):
    with pytest.raises(OperandError, match=message):
        OpTreeNode.from_stack(stack)


def test_an_unknown_op_on_the_stack_is_named():
    with pytest.raises(UnknownOpError, match=r"'hadd'.*add"):
        OpTreeNode.from_stack([1, 2, {"op": "hadd"}])


def test_nested_lists_can_be_edited_and_made_a_tree_again(be):
    x, y, z = (of(be, [1.0, 2.0], name) for name in "xyz")
    f = be.sin(x + y) * 2
    nested = OpTreeNode.optree_to_list(f)
    assert nested[0] == f[0] and type(nested[0]) is dict and nested[2] == 2
    assert nested[1][1][1] is x and nested[1][2] is None
    assert str(OpTreeNode.list_to_optree(nested)) == str(f)
    assert str(OpTreeNode.list_to_optree([{"op": "sin"}, [{"op": "add"}, x, y]])) == str(f[1])
    nested[1][1][2] = z
    nested[1][0]["op"] = "cos"
    assert str(OpTreeNode.list_to_optree(nested)) == str(be.cos(x + z) * 2)


def test_nested_lists_keep_what_is_shared(be):
    x = be.ones((2,))
    y = be.sin(x)
    nested = OpTreeNode.optree_to_list(y * y)
    assert nested[1] is nested[2]
    rebuilt = OpTreeNode.list_to_optree(nested)
    assert rebuilt[1] is rebuilt[2]


def test_a_tree_of_three_operands_stays_binary_and_comes_back(be):
    x, y = of(be, [1.0, -2.0], "x"), of(be, [3.0, 4.0], "y")
    f = be.where(x > 0, x, y)
    assert f[2][0] == {"op": "args"} and f[2][1] is x and f[2][2] is y
    assert len(f.inputs) == 3
    np.testing.assert_array_equal(f.asnumpyarray(), [1.0, 4.0])
    for again in (OpTreeNode.from_stack(f.traverse()), OpTreeNode.list_to_optree(OpTreeNode.optree_to_list(f))):
        assert str(again) == str(f) and again.key() == f.key()


def test_build_takes_operands_beyond_two_as_a_chain(be):
    x, y = of(be, [1.0, -2.0], "x"), of(be, [3.0, 4.0], "y")
    chain = OpTreeNode({"op": "args"}, x, y)
    np.testing.assert_array_equal(OpTreeNode.build("where", x > 0, chain).asnumpyarray(), [1.0, 4.0])


# Nodes as tuples


def test_a_node_is_indexed_like_a_tuple_by_any_integer(be):
    x = be.ones((2,), name="x")
    f = x + 1
    assert f[np.int64(1)] is x and f[-2] is x
    with pytest.raises(IndexError):
        f[3]
    with pytest.raises(TypeError, match=r"be\.slice"):
        f[0:2]


def test_nodes_hash_by_identity_and_serve_as_keys(be):
    x = be.ones((2,))
    f, g = x + 1, x + 1
    assert {f: "f", g: "g"}[g] == "g"


def test_a_node_has_no_truth_value(be):
    x, y = be.ones((2,), name="x"), be.ones((2,), name="y")
    for expression in (lambda: bool(x == y), lambda: bool(x), lambda: not (x + y), lambda: 0 < x < 1):
        with pytest.raises(TypeError, match="asnumpyarray"):
            expression()


def test_shape_dtype_and_transpose_of_a_node(be):
    f = be.ones((2, 3, 4)) + 1
    assert (f.shape, f.dtype, f.ndim, f.size) == ((2, 3, 4), np.dtype("f4"), 3, 24)
    assert f.T.shape == (4, 3, 2) and f.transpose(0, 2, 1).shape == (2, 4, 3) == f.transpose((0, 2, 1)).shape
    assert f.backend is be and f.astype("int32").dtype == np.int32


def test_a_node_of_one_element_is_a_number_when_asked(be):
    total = be.sum(of(be, [1.5, 2.0]))
    assert float(total) == total.item() == 3.5 and int(total) == 3
    with pytest.raises(ValueError, match="2 elements"):
        float(of(be, [1.5, 2.0]) + 1)


def test_values_of_a_node(be):
    x = of(be, [1.0, 2.0], "x")
    array, tensor = (x + 1).asnumpyarray(), (x + 1).astensor()
    assert type(array) is np.ndarray and type(tensor) is type(x)
    np.testing.assert_array_equal(array, [2.0, 3.0])
    np.testing.assert_array_equal(tensor.get(), [2.0, 3.0])
    np.testing.assert_array_equal((x + 1).execute().get(), [2.0, 3.0])


# Keys


def key_of(build, *shapes, dtype="float32"):
    be = gen_backend("cpu")
    return build(*(be.ones(shape, dtype=dtype) for shape in shapes)).key()


def test_a_key_has_neither_sizes_nor_numbers_values_nor_names():
    for other in [
        key_of(lambda x, y: x * y + 2.5, (5, 9), (5, 9)),
        key_of(lambda x, y: x * y + 0.5, (2, 3), (2, 3)),
        key_of(lambda x, y: x * y + 2.5, (2, 3), (2, 3)),
    ]:
        assert other == key_of(lambda x, y: x * y + 2.5, (2, 3), (2, 3))


@pytest.mark.parametrize(
    "other",
    [
        lambda: key_of(lambda x, y: x * y + 2.5, (2, 3), (2, 3), dtype="float64"),
        lambda: key_of(lambda x, y: x * y + 2.5, (2, 3), (1, 3)),
        lambda: key_of(lambda x, y: x * y + 2.5, (2, 3), (3,)),
        lambda: key_of(lambda x, y: x * x + 2.5, (2, 3), (2, 3)),
        lambda: key_of(lambda x, y: x * y + 2, (2, 3), (2, 3)),
        lambda: key_of(lambda x, y: x + y * 2.5, (2, 3), (2, 3)),
        lambda: key_of(lambda x, y: (x * y) * 2.5, (2, 3), (2, 3)),
        lambda: key_of(lambda x, y: x * y + np.float32(2.5), (2, 3), (2, 3)),
        lambda: key_of(lambda x, y: (x + 2.5) * y, (2, 3), (2, 3)),
    ],
)
def test_a_key_has_dtypes_the_broadcast_pattern_ops_structure_and_sharing(other):
    assert other() != key_of(lambda x, y: x * y + 2.5, (2, 3), (2, 3))


def test_a_key_has_parameters(be):
    x = be.ones((3, 3))
    assert be.sum(x, axis=0).key() != be.sum(x, axis=1).key()
    assert be.sum(x, axis=-1).key() == be.sum(x, axis=1).key()


def test_a_key_tells_a_shared_subtree_from_a_repeated_one(be):
    x = be.ones((2,))
    y = be.sin(x)
    assert (y + y).key() != (be.sin(x) + be.sin(x)).key()
    assert (y + y).key() == (y + y).key()


# Numbers


NUMBERS = [2, 3.5, True]
NUMBERS += [np.float32(2), np.float64(2), np.float16(2), np.int8(2), np.int64(2), np.bool_(True), np.uint8(2)]


@pytest.mark.parametrize("number", NUMBERS, ids=lambda n: type(n).__name__)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "bool"])
def test_numbers_stand_on_either_side_and_promote_as_numpys_do(be, number, dtype):
    array = np.array([[1, 2], [0, 4]]).astype(dtype)
    x = of(be, array, dtype=dtype)
    for operand, expected in [(x, array), (x + array.astype("i1"), array + array.astype("i1"))]:
        for build in (
            lambda a, n: a * n,
            lambda a, n: n * a,
            lambda a, n: a + n,
            lambda a, n: n + a,
            lambda a, n: n - (a + a.astype("float32")),
        ):
            tree, value = build(operand, number), build(expected, number)
            assert tree.dtype == value.dtype
            np.testing.assert_array_equal(tree.asnumpyarray(), value, strict=True)


def test_small_arrays_stand_on_either_side(be):
    a, b = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([10.0, 20.0])
    x = of(be, a, "x", dtype="float32")
    for tree, value in [(x + b, a + b), (b + x, b + a), (b - x * 2, b - a * 2), (x * b[:, None], a * b[:, None])]:
        assert type(tree) is OpTreeNode and tree.dtype == np.float64
        np.testing.assert_array_equal(tree.asnumpyarray(), value)


def test_an_array_in_a_tree_is_copied(be):
    b = np.array([1.0, 2.0])
    f = be.zeros((2,)) + b
    b[:] = 9
    np.testing.assert_array_equal(f.asnumpyarray(), [1.0, 2.0])


# Copies


def test_a_type_and_an_op_copy_to_themselves_and_pickle(be):
    kind = TensorType("float32", (2, None))
    assert copy.copy(kind) is kind and copy.deepcopy(kind) is kind and pickle.loads(pickle.dumps(kind)) is kind
    for node in (be.sum(be.ones((2, 3)), axis=1), be.ones((2,)) + 1, be.cast(be.ones((2,)), "int8")):
        op = node.op
        assert copy.copy(op) is op and copy.deepcopy(op) is op and pickle.loads(pickle.dumps(op)) == op


def test_a_node_copies_to_itself_for_it_cannot_change(be):
    f = be.ones((2,)) + 1
    assert copy.copy(f) is f


def test_a_deep_copy_of_a_tree_has_tensors_of_its_own(be):
    x = of(be, [1.0, 2.0], "x")
    y = be.sin(x)
    f = y * y + x
    g = copy.deepcopy(f)
    assert str(g) == str(f) and g.key() == f.key()
    assert g[2] is not x and g[2] is g[1][1][1] and g[1][1] is g[1][2]
    before = f.asnumpyarray()
    x[:] = 7
    np.testing.assert_array_equal(g.asnumpyarray(), before)


def test_a_tree_of_inputs_and_constants_pickles():
    x = Input(TensorType("float64", (2,)), "x")
    y = x * np.array([1.0, 2.0])
    f = y * y + 3
    g = pickle.loads(pickle.dumps(f))
    assert str(g) == str(f) and g.key() == f.key() and g.shape == (2,)


def test_a_tensor_copies_its_memory(be):
    x = of(be, [1.0, 2.0], "x")
    for y in (copy.copy(x), copy.deepcopy(x)):
        y[:] = 5
        assert y.name == "x" and y.backend is be
    np.testing.assert_array_equal(x.get(), [1.0, 2.0])


def test_a_backend_copies_as_itself(be):
    model = {"be": be, "w": be.ones(3)}
    be.evaluate([model["w"] * 2])
    copied = copy.deepcopy(model)
    assert copied["be"] is be and copy.copy(be) is be
    assert copied["w"] is not model["w"] and copied["w"].backend is be


# Size


def chain(be, x, n):
    for _ in range(n):
        x = be.sin(x) if _ % 2 else x + 1
    return x


def diamond(x, levels):
    for _ in range(levels):
        x = x * x + x
    return x


def test_a_long_chain_of_ops(be):
    n = 10_000
    x = of(be, [0.5, 1.5], "x")
    f = chain(be, x, n)
    value = np.array([0.5, 1.5])
    for i in range(n):
        value = np.sin(value) if i % 2 else value + 1
    np.testing.assert_allclose(f.asnumpyarray(), value, rtol=1e-12)
    stack = f.traverse()
    assert len(stack) == 1.5 * n + 1
    assert len(f.key()) < 5 * n
    assert OpTreeNode.from_stack(stack).key() == f.key()
    assert OpTreeNode.list_to_optree(OpTreeNode.optree_to_list(f)).key() == f.key()
    assert len(f.pp().splitlines()) == 1.5 * n + 1
    assert str(f).count("'op'") <= 1000
    assert pickle.loads(pickle.dumps(chain(be, Input(TensorType("float32", (2,))), n))).shape == (2,)
    assert copy.deepcopy(f).key() == f.key()


def test_a_diamond_of_64_levels(be):
    x = of(be, [1e-3, -1e-3], "x")
    f = diamond(x, 64)
    np.testing.assert_allclose(f.asnumpyarray(), diamond(np.array([1e-3, -1e-3]), 64), rtol=1e-12)
    assert len(f.traverse()) < 400
    assert len(f.key()) < 400
    assert len(f.pp().splitlines()) < 400
    assert len(str(f)) < 200_000
    assert OpTreeNode.from_stack(f.traverse()).key() == f.key()
    assert OpTreeNode.list_to_optree(OpTreeNode.optree_to_list(f)).key() == f.key()
    assert copy.deepcopy(f).key() == f.key()


def test_calls_are_linear_in_the_number_of_nodes(cpu):
    def calls(n):
        x = of(cpu, [0.5], "x")

        def run():
            f = chain(cpu, x, n)
            f.key(), f.traverse(), f.pp(), f.asnumpyarray()

        return len(calls_of(run))

    calls(100)
    assert calls(2_000) < 4.1 * calls(500)


def test_a_released_tree_dies_with_its_tensors_at_once(be):
    gc.collect()
    gc.disable()
    try:
        x = be.ones((100,), name="x")
        tensor, constant = weakref.ref(x), np.ones(100)
        f = be.sin(x) * constant + x
        value = f.astensor()
        held = weakref.ref(f[1][2].value)
        f.key(), str(f), f.traverse(), f.pp()
        del f, x
        assert tensor() is None and held() is None
        assert value.shape == (100,)
    finally:
        gc.enable()


def test_repeated_assignment_leaves_memory_flat(cpu):
    x, w = cpu.ones((64,), name="x"), cpu.ones((64,), name="w")

    def run(n):
        for i in range(n):
            w[:] = cpu.sin(x) * 0.5 + w * (i * 1e-6)
            w[2:5] = x[2:5] + float(i)
            w[:] = np.ones(64)

    run(200)
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    run(3400)
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert after - before < 20_000


def test_an_unnamed_op_can_be_rebuilt(be):
    class Twice(Op):
        operands = ("x",)
        __props__ = ()

        def output_shape(self, *shapes):
            return shapes[0]

        def numpy(self, x):
            return x * 2

    f = Twice()(be.ones((2,))) + 1
    assert f.asnumpyarray().tolist() == [3.0, 3.0]
    assert OpTreeNode.from_stack(f.traverse()).key() == f.key()


@for_each("name", sorted(filter(has_examples, OPS)))
def test_every_ops_nodes_pickle_and_copy(name):
    for example in examples_for(name):
        tree = example.tree(inputs_for(example.draw()))
        for again in (pickle.loads(pickle.dumps(tree)), copy.deepcopy(tree)):
            assert again.key() == tree.key() and again.type is tree.type and again[0] == tree[0]


def test_loops_and_attention_pickle_and_copy():
    x = Input(TensorType("float64", (2, 3, 4)), "x")
    final, outputs = f.scan(lambda h, row: (h + row, h * row), np.zeros((3, 4)), x)
    for tree in (f.attention(x, x, x), final, outputs):
        for again in (pickle.loads(pickle.dumps(tree)), copy.deepcopy(tree)):
            assert again.key() == tree.key() and again.type is tree.type and again[0] == tree[0]
