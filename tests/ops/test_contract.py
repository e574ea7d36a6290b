"""The Op contract: types, applications, and ops in the style of each document."""

from __future__ import annotations

import gc
import pickle
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import ref

import numpy as np
import pytest
from harness.compiling import needs_compiler
from harness.ops import DoubleOp, double

from backends import gen_backend, source
from optree import Apply, Constant, Op, TensorType, constant, function, grad, xp
from optree.compile.program import flatten
from optree.compile.reference import evaluate
from optree.errors import DefinitionError, OperandError, ShapeError
from optree.op.traits import ElementwiseOperator, FloatOperator, NonDifferentiableOperator, UnaryOperator
from optree.registry import OPS
from optree.testing import check_op
from optree.tree.gradient_types import is_disconnected
from optree.tree.node import OpTreeNode

int64, float64 = TensorType("int64", ()), TensorType("float64", ())


def value_of(tree: Any, *values: Any) -> Any:
    return evaluate(flatten([tree]), values)[0]


@pytest.fixture
def be() -> Any:
    return gen_backend("cpu", datatype=np.float64)


# An op built on an instance (Theano, "Making arithmetic Ops on double")


def multiplication(wraps_constants: bool) -> Op:
    mul = Op()

    def make_node(x: Any, y: Any) -> Apply:
        if wraps_constants:
            x, y = (Constant(double, v) if isinstance(v, int | float) else v for v in (x, y))
        if x.type != double or y.type != double:
            raise TypeError("mul only works on doubles")
        return Apply(mul, [x, y], [double()])

    def perform(node: Any, inputs: Any, output_storage: Any) -> None:
        x, y = inputs
        (z,) = output_storage
        z[0] = x * y

    mul.make_node = make_node
    mul.perform = perform
    return mul


def test_an_op_on_an_instance():
    mul = multiplication(wraps_constants=False)
    x, y = double("x"), double("y")
    z = mul(x, y)
    assert value_of(z, 5.6, 6.7) == 37.519999999999996
    assert (z.type, str(z)) == (double, "({'op': 'Op'}, x, y)")
    with pytest.raises(AttributeError, match="'int' object has no attribute 'type'"):
        mul(x, 2)


def test_an_op_that_wraps_constants():
    z = multiplication(wraps_constants=True)(double("x"), 2)
    assert value_of(z, 10.0, 2.0) == 20.0
    assert isinstance(z.owner.inputs[1], Constant) and z.owner.inputs[1].value == 2.0


def test_a_parametrised_class():
    def plus(x: float, y: float) -> float:
        return x + y

    def total(*args: float) -> float:
        return sum(args)

    add, add4 = DoubleOp("add", plus, 2), DoubleOp("add4", total, 4)
    x, y = double("x"), double("y")
    assert add == DoubleOp("add", plus, 2) and hash(add) == hash(DoubleOp("add", plus, 2)) and add != add4
    assert value_of(add(x, y), 5.0, 6.0) == 11.0
    assert value_of(add4(x, y, x, 1), 2.0, 3.0, 1.0) == 8.0
    assert len(flatten([add4(x, add(x, y), add(x, y), 1)]).instructions) == 2  # equal ops on equal inputs merge
    assert str(add(x, y)).startswith("({'op': 'add', 'name': 'add', 'fn': ")


# Applications (Aesara, "How to make Ops")


class Int64Add(Op):
    """The sum of two scalars of int64."""

    __props__ = ()

    def make_node(self, x: Any, y: Any) -> Apply:
        x, y = (constant(v) if isinstance(v, int) else v for v in (x, y))
        if any(getattr(v, "type", None) != int64 for v in (x, y)):
            raise TypeError("an int64 scalar is wanted")
        return Apply(op=self, inputs=[x, y], outputs=[int64()])

    def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
        x, y = inputs
        (z,) = output_storage
        z[0] = x + y


def test_applications_of_variables_numbers_and_both():
    add = Int64Add()
    for inputs in ((int64(), int64()), (1, 2), (int64(), 79)):
        node = add.make_node(*inputs)
        assert node.op is add and [x.type for x in node.inputs] == [int64, int64]
        (out,) = node.outputs
        assert (out.owner, out.index, out.type) == (node, 0, int64)
        again = add.make_node(*node.inputs)
        assert [x.type for x in again.outputs] == [int64] and again.inputs == node.inputs
    with pytest.raises(TypeError, match="int64"):
        add.make_node(float64(), int64())


def test_perform_by_hand():
    add, storage = Int64Add(), [None]
    add.perform(add.make_node(int64(), int64()), (3, 7), (storage,))
    assert storage == [10]


def test_an_application_takes_variables_only():
    with pytest.raises(OperandError, match="input of an Apply is a variable, not 3"):
        Apply(Int64Add(), [3], [int64()])


def test_built_in_ops_have_applications_too(be):
    x = be.ones((2, 3), name="x")
    node = be.sum(x, axis=1)
    apply = node.owner
    assert apply.op.axis == 1 and apply.inputs == [x] and apply.outputs[0] is node and node.index == 0
    again = apply.op.make_node(*apply.inputs)
    assert again.outputs[0].key() == node.key()
    assert x.owner is None and x.index is None


def test_types_alone_make_nodes(be):
    class Norm(Op):
        __props__ = ()
        itypes = (TensorType("float64", (None,)),)
        otypes = (TensorType("float64", ()),)

        def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
            output_storage[0][0] = np.sqrt((inputs[0] ** 2).sum())

    x = be.array([3.0, 4.0], name="x")
    assert Norm()(x).asnumpyarray() == 5.0
    assert Norm()(np.array([5.0, 12.0])).type == TensorType("float64", ())
    with pytest.raises(OperandError, match=r"x \(2, 2\) float64.*TensorType\(float64, \(None,\)\)"):
        Norm()(be.ones((2, 2), name="x"))
    with pytest.raises(OperandError, match="2 were given"):
        Norm()(x, x)


def test_an_op_without_nodes_says_what_to_write(be):
    class Nothing(Op):
        __props__ = ()

    with pytest.raises(DefinitionError, match="write make_node, or give itypes and otypes, or take a trait"):
        Nothing()(be.ones(2))


# Several outputs


class SumAndDifference(Op):
    """x + y and x - y."""

    __props__ = ()

    def make_node(self, x: Any, y: Any) -> Apply:
        return Apply(self, [x, y], [x.type(), y.type()])

    def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
        x, y = inputs
        output_storage[0][0], output_storage[1][0] = x + y, x - y

    def grad(self, inputs: Any, output_gradients: Any) -> Any:
        total, difference = output_gradients
        if is_disconnected(difference):
            return [total, total]
        return [difference, -difference] if is_disconnected(total) else [total + difference, total - difference]


def test_several_outputs_in_trees_and_gradients(be):
    x, y = be.array([1.0, 2.0], name="x"), be.array([3.0, 5.0], name="y")
    total, difference = SumAndDifference()(x, y)
    assert (total.index, difference.index) == (0, 1)
    assert total.owner is difference.owner and total.owner.outputs[1] is difference
    np.testing.assert_array_equal((total * difference).asnumpyarray(), [-8.0, -21.0])
    for cost, expected in (
        (total * difference, [[2.0, 4.0], [-6.0, -10.0]]),
        (total, [[1, 1], [1, 1]]),
        (difference, [[1, 1], [-1, -1]]),
    ):
        found = [g.asnumpyarray() for g in grad(be.sum(cost), [x, y])]
        np.testing.assert_array_equal(found, expected)
    assert OpTreeNode.from_stack(total.traverse()).key() == total.key()


def test_a_default_output(be):
    class Half(SumAndDifference):
        default_output = 1

    np.testing.assert_array_equal(Half()(be.ones(2), be.ones(2)).asnumpyarray(), [0.0, 0.0])


@pytest.mark.parametrize(
    ("fill", "message"),
    [
        (lambda cells: None, "left the cell of output 0 empty"),
        (lambda cells: cells[0].append(1.0), "resized the cell of output 0"),
        (lambda cells: cells[0].__setitem__(0, 3), "gave output 0 a value that its type refuses: a float is wanted"),
    ],
)
def test_wrong_cells_are_found(fill, message):
    class Wrong(DoubleOp):
        def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
            fill(output_storage)

    tree = Wrong("wrong", None, 1)(double("x"))
    with pytest.raises(DefinitionError, match=f"wrong.*{message}"):
        value_of(tree, 1.0)


class Counted(Op):
    """The numbers below `found`, which it says to be `promised`."""

    __props__ = ("promised", "found")

    def __init__(self, promised: int, found: int) -> None:
        self.promised, self.found = promised, found

    def make_node(self, x):
        return Apply(self, [x], [TensorType("float64", (self.promised,))()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = np.arange(float(self.found))


@needs_compiler
@pytest.mark.parametrize(("promised", "found"), [(2000, 3), (3, 2), (2, 3), (3, 1)])
def test_a_kernel_reads_no_element_beyond_a_value_that_is_shorter_than_promised(promised, found):
    be = gen_backend("cpu", datatype="float64", jit=True)
    value = Counted(promised, found)(be.ones(2)) * 2 + be.ones(promised)
    with pytest.raises(ShapeError, match=f"than its type says: sizes {found} and {promised} meet"):
        value.get()


def test_a_thunk_of_ones_own(be):
    class Twice(Op):
        __props__ = ()
        itypes = otypes = (TensorType("float64", (None,)),)

        def make_thunk(self, node: Any, storage_map: Any, compute_map: Any, no_recycling: Any, impl: Any = None) -> Any:
            (x,), (y,) = node.inputs, node.outputs

            def thunk() -> None:
                storage_map[y][0] = storage_map[x][0] * 2
                compute_map[y][0] = True

            return thunk

    tree = Twice()(be.array([1.0, 2.0]))
    np.testing.assert_array_equal(tree.asnumpyarray(), [2.0, 4.0])
    np.testing.assert_array_equal((tree + 1).asnumpyarray(), [3.0, 5.0])


def test_a_shared_op_cannot_be_changed(be):
    x = be.ones(2)
    for op in ((x + 1).op, be.sum(x, axis=0).op, (x + 1).op.__copy__()):
        with pytest.raises(DefinitionError, match="cannot be changed"):
            op.name = "other"
        with pytest.raises(DefinitionError, match="cannot be changed"):
            op.axis = 1
    assert (x + 1).op.name == "add"
    own = type((x + 1).op)()
    own.note = "mine"
    assert own.note == "mine" and own == (x + 1).op


def test_an_op_of_ones_own_takes_attributes():
    class Scaled(Op):
        __props__ = ("factor",)
        factor = 1

        def __init__(self, factor):
            self.factor = factor
            self.seen = []

    op = Scaled(3)
    op.comment = "later"
    assert (op.factor, op.seen, op.comment) == (3, [], "later") and op == Scaled(3)


class Power(Op):
    """x to a power, which it is not given under its parameter's name."""

    __props__ = ("power",)

    def __init__(self, square_root_of: float) -> None:
        self.power = square_root_of**2

    def make_node(self, x: Any) -> Apply:
        return Apply(self, [x], [x.type()])

    def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
        output_storage[0][0] = inputs[0] ** self.power


def _doubled(node: Any, inputs: Any, output_storage: Any) -> None:
    output_storage[0][0] = inputs[0] * 2


def test_ops_pickle_by_their_attributes(be):
    x = be.array([3.0])
    op = pickle.loads(pickle.dumps(Power(2)))
    assert op == Power(2) and op(x).asnumpyarray() == [81.0]
    bare = Op()
    bare.perform = _doubled
    assert pickle.loads(pickle.dumps(bare)).perform is _doubled
    assert pickle.loads(pickle.dumps(be.sum(x, axis=0).op)) is be.sum(x, axis=0).op


def test_a_value_follows_from_fill(be):
    class Halved(UnaryOperator, FloatOperator, NonDifferentiableOperator):
        def output_shape(self, *shapes: Any) -> Any:
            return shapes[0]

        def fill(self, out: Any, *arrays: Any) -> None:
            np.multiply(arrays[0], 0.5, out=out)

    x = be.array([[2.0, 4.0], [6.0, 8.0]])
    np.testing.assert_array_equal(Halved()(x).asnumpyarray(), [[1.0, 2.0], [3.0, 4.0]])
    z = be.zeros((2, 2))
    z.T[:] = Halved()(x)
    np.testing.assert_array_equal(z.get(), [[1.0, 3.0], [2.0, 4.0]])


def test_a_kernel_alone_is_no_value(be):
    class Bell(UnaryOperator, ElementwiseOperator, FloatOperator):
        kernel = "exp(-{0} * {0})"

    with pytest.raises(DefinitionError, match="Bell: write numpy or fill, or perform"):
        Bell()(be.ones(2)).asnumpyarray()


@pytest.mark.parametrize("name", [None, "broken_kernel"])
@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        ("{1} * 2", "kernel '{1} * 2' does not take its operands: {0} is x, "),
        ("{foo}", "kernel '{foo}' does not take its operands: {0} is x, "),
        ("{0} * {", "kernel '{0} * {' does not take its operands: {0} is x, and C's own braces are doubled "),
        ("{0.real}", "kernel '{0.real}'"),
        (
            np.cos,
            "kernel is a C expression such as '{0} * {0}', or a method kernel(self, *dtypes) that returns one, not",
        ),
        (5, "kernel is a C expression such as '{0} * {0}', or a method kernel(self, *dtypes) that returns one, not 5"),
    ],
)
def test_a_kernel_that_takes_no_operands_is_refused_where_it_is_defined(name: Any, kernel: Any, message: str) -> None:
    parts = {"kernel": kernel, "numpy": np.square, "grad": lambda self, inputs, output_gradients: output_gradients}
    bases = (UnaryOperator, ElementwiseOperator, FloatOperator)
    with pytest.raises(DefinitionError, match=f"^Broken: {re.escape(message)}"):
        type("Broken", bases, parts if name is None else {**parts, "name": name})
    assert "broken_kernel" not in OPS
    for fine in ("{0} * {0}", "({{ 2 }}, {0})", None, property(lambda self: "{0} * 2")):
        type("Fine", bases, {**parts, "kernel": fine})


@needs_compiler
def test_a_kernel_that_depends_on_dtypes_or_parameters_is_a_method() -> None:
    class Scaled(UnaryOperator, ElementwiseOperator, NonDifferentiableOperator):
        __props__ = ("factor",)
        factor = 2

        def kernel(self, *dtypes: np.dtype) -> str | None:
            return f"{{0}} * {self.factor}" if dtypes[0].kind == "f" else None

        def numpy(self, x: Any) -> Any:
            return np.multiply(x, self.factor)

    be, x = gen_backend("cpu", jit=True), np.arange(4.0)
    tree = Scaled(factor=3)(be.array(x)) + Scaled()(be.array(x, dtype="float64"))
    np.testing.assert_array_equal(tree.get(), 5 * x)
    assert "* 3" in source(Scaled(factor=3)(be.array(x)) + 1)[0]
    assert not any("* 3" in text for text in source(Scaled(factor=3)(be.array([1, 2], dtype="int64")) + 1))


def test_make_node_given_what_has_no_type_says_so_and_what_to_give(be):
    class Plain(Op):
        __props__ = ()

        def make_node(self, x: Any, y: Any) -> Apply:
            return Apply(self, [x, y], [x.type(), y.type()])

    class Wrong(Plain):
        def make_node(self, x: Any, y: Any) -> Apply:
            return x.nothing_of_the_kind

    x = be.ones(3, name="x")
    for i, given in enumerate([(np.ones(3), x), (x, [1.0]), (2.0, x)]):
        place = i % 2
        with pytest.raises(OperandError, match=rf"Plain: make_node asks input {place}.* for its type") as caught:
            Plain()(*given)
        assert "be.array" in str(caught.value) and "optree.constant" in str(caught.value)
        with pytest.raises(OperandError, match=rf"Plain: make_node asks input {place}.* for its type"):
            Plain().make_node(*given)
    assert Plain()(constant(np.ones(3)), constant(2.0))
    with pytest.raises(
        OperandError, match=r"Plain: make_node asks input 0.*x\.tensor is that of an array of optree\.xp"
    ):
        Plain()(xp.asarray([1.0]), x)

    class Untyped(Plain):
        def make_node(self, x: Any, y: Any) -> Apply:
            return Apply(self, [np.asarray(y)], [x.type()])

    class Own(Plain):
        def make_node(self, x: Any, y: Any) -> Apply:
            made = np.asarray(y) * 2
            return Apply(self, [made], [made.type()])

    with pytest.raises(OperandError, match=r"asks an array or number of its own, array\(\[2\.\]\).*optree\.constant"):
        Own()(x, [1.0])
    with pytest.raises(OperandError, match=r"an input of an Apply is a variable.*optree\.constant\(x\) makes one"):
        Untyped()(x, [1.0])
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        Wrong()(x, x)


class Blur(Op):
    """x times sigma, which its parameters do not name."""

    __props__: Any = ()

    def __init__(self, sigma: float) -> None:
        self.sigma = sigma

    def make_node(self, x: Any) -> Apply:
        return Apply(self, [x], [x.type()])

    def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
        output_storage[0][0] = inputs[0] * self.sigma

    def grad(self, inputs: Any, output_gradients: Any) -> Any:
        return [output_gradients[0] * self.sigma]


class BlurByTraits(UnaryOperator, ElementwiseOperator, FloatOperator):
    """The same, whose __props__ are the trait's."""

    def __init__(self, sigma: float) -> None:
        self.sigma = sigma

    def numpy(self, x: Any) -> Any:
        return x * self.sigma

    def grad(self, inputs: Any, output_gradients: Any) -> Any:
        return [output_gradients[0] * self.sigma]


@pytest.mark.parametrize("base", [Blur, BlurByTraits])
def test_an_attribute_that_props_do_not_name_is_warned_about_once(be: Any, base: Any) -> None:
    """Each op runs with its own, and is compiled by itself."""
    kind, x = type("Own", (base,), {}), be.ones(3)
    remedy = r".* __props__ = \('sigma',\).* self._sigma if it .* a counter or a cache"
    with pytest.warns(UserWarning, match=rf"Own: its attribute sigma is not in __props__{remedy}") as caught:
        trees = [kind(1.0)(x), kind(3.0)(x), kind(3.0)(x), kind(1.0)(x)]
    assert [(each.filename, len(caught)) for each in caught] == [(__file__, 1)]
    assert [tree.tolist() for tree in trees] == [[n] * 3 for n in (1.0, 3.0, 3.0, 1.0)]
    assert (trees[0] + trees[1]).tolist() == [4.0] * 3 and trees[1].op == trees[2].op
    assert [y.get().tolist() for y in function([], [trees[0], trees[1]])()] == [[1.0] * 3, [3.0] * 3]
    assert grad(be.sum(trees[0]) + be.sum(trees[1]), x).tolist() == [4.0] * 3
    before = be.compiles
    assert kind(3.0)(x).tolist() == trees[2].tolist() == [3.0] * 3 and be.compiles == before + 1


@pytest.mark.parametrize("base", [Blur, BlurByTraits])
def test_ops_are_told_apart_by_props_or_by_identity(be: Any, base: Any, recwarn: Any) -> None:
    x = be.ones(3)
    named = type("Named", (base,), {"__props__": ("sigma",), "sigma": 1.0})
    assert (named(1.0)(x) + named(3.0)(x)).tolist() == [4.0, 4.0, 4.0]
    alone = type("Alone", (base,), {"__props__": None})  # equal to itself alone
    assert (alone(1.0)(x) + alone(3.0)(x)).tolist() == [4.0, 4.0, 4.0]
    assert not recwarn.list


def test_ops_may_count_and_cache_as_theanos_tutorials_do(be: Any) -> None:
    class Counting(Blur):
        __props__ = ("sigma",)

        def __init__(self, sigma: float) -> None:
            super().__init__(sigma)
            self.count, self.cache = 0, {}

        def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
            self.count += 1
            self.cache[self.count] = super().perform(node, inputs, output_storage)

    x, first = be.ones(2), Counting(3.0)
    with pytest.warns(UserWarning, match="Counting: its attribute cache is not in __props__"):
        assert first(x).tolist() == [3.0, 3.0]
    second = Counting(3.0)
    assert (first(x) + second(x)).tolist() == [6.0, 6.0] and (second(x) - second(x + 1)).tolist() == [-3.0, -3.0]
    assert first.count > 1
    with pytest.warns(UserWarning):
        assert check_op(type("Mine", (Counting,), {})(2.0), [np.ones(3)]) is None


def test_ops_with_unlisted_attributes_are_not_kept(be: Any) -> None:
    kind = type("Gone", (Blur,), {})
    with pytest.warns(UserWarning):
        op = kind(2.0)
        op(be.ones(2)).tolist()
    gone = ref(op)
    be.plans.clear()
    del op
    gc.collect()
    assert gone() is None


def test_what_an_op_remembers_begins_with_an_underscore(be: Any) -> None:
    class Remembering(Blur):
        __props__ = ("sigma",)

        def __init__(self, sigma: float) -> None:
            super().__init__(sigma)
            self._half = sigma / 2

        def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
            self.runs = getattr(self, "runs", 0) + 1  # set after it was used, it tells no op from another
            output_storage[0][0] = inputs[0] * self._half * 2

    x, op = be.ones(3), Remembering(3.0)
    assert op(x).tolist() == op(op(x) / 3).tolist() == [3.0, 3.0, 3.0]


class InSlots(Blur):
    __slots__ = ("width",)
    __props__ = ("sigma",)

    def __init__(self, sigma: float, width: float) -> None:
        self.sigma, self.width = sigma, width


def test_an_attribute_in_slots_is_warned_about_too(be: Any) -> None:
    with pytest.warns(UserWarning, match=r"InSlots: its attribute width is not in __props__"):
        assert InSlots(3.0, 2.0)(be.ones(2)).tolist() == [3.0, 3.0]


def test_a_cached_property_is_no_parameter(be: Any) -> None:
    class Table(Blur):
        __props__ = ("sigma",)

        @cached_property
        def table(self) -> Any:
            return self.sigma * 2

    op = Table(3.0)
    assert op.table == 6.0
    assert op(be.ones(2)).tolist() == [3.0, 3.0]


class Interrupting(type(Blur)):
    """A class of ops that another thread uses for the first time whenever a name is looked for on the class."""

    def __getattr__(cls, name: str) -> Any:
        for op in cls.made:
            vars(op)["_cache"] = vars(op)["is_checked"] = True
        raise AttributeError(name)


def test_an_op_may_be_used_by_another_thread_while_it_is_checked(be: Any) -> None:
    class Used(Blur, metaclass=Interrupting):
        __props__ = ("sigma",)
        made: list[Any] = []

        def __init__(self, sigma: float) -> None:
            self.sigma = sigma
            self.made.append(self)

    assert Used(3.0)(be.ones(2)).tolist() == [3.0, 3.0]


def test_an_op_may_be_a_frozen_dataclass(be: Any) -> None:
    @dataclass(frozen=True)
    class Frozen(Blur):
        sigma: float = 1.0
        __props__ = ("sigma",)

    assert (Frozen(1.0)(be.ones(2)) + Frozen(3.0)(be.ones(2))).tolist() == [4.0, 4.0]


@pytest.mark.parametrize("sigma", [[1.0], np.ones(2000), (np.ones(2000), 1)], ids=["list", "array", "array in a tuple"])
def test_a_parameter_without_a_hash_is_refused_by_name(be: Any, sigma: Any) -> None:
    named = type("Named", (Blur,), {"__props__": ("sigma",)})
    with pytest.raises(DefinitionError, match=r"Named: its parameter sigma is .* has no hash.* give a tuple"):
        named(sigma)(be.ones(3))


def test_check_op_checks_the_op_that_it_is_given(be: Any) -> None:
    seen = set()

    class Seen(BlurByTraits):
        __props__ = ("sigma",)

        def numpy(self, x: Any) -> Any:
            seen.add(self.sigma)
            return x * np.asarray(self.sigma, np.result_type(x, np.float16))

    check_op(Seen(2.0))
    with pytest.warns(UserWarning, match="Own: its attribute sigma is not in __props__"):
        check_op(type("Own", (Seen,), {"__props__": ()})(3.0))
    assert seen == {2.0, 3.0}
