"""check_op on inputs: registered ops and ops in each style pass; a broken one is named with its clause."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from harness.ops import DoubleOp, double

from backends import gen_backend
from optree import Apply, ComputationOp, Constant, Op, TensorType, Type, function
from optree.errors import BackendError, DefinitionError, OptreeError
from optree.op.traits import ElementwiseOperator, FloatOperator, NonDifferentiableOperator, UnaryOperator
from optree.registry import f
from optree.run.function import last_backend
from optree.testing import check_op
from optree.testing.conformance import check_gradient
from optree.testing.examples import Example
from optree.tree.gradient_types import is_disconnected
from tests.harness.compiling import needs_compiler

VECTOR = TensorType("float64", (None,))
X, Y = np.array([0.3, -1.2, 2.0]), np.array([1.5, 0.4, -0.7])


class Polar(Op):
    """The length and angle of points, with all that an op may claim."""

    __props__ = ("scale",)

    def __init__(self, factor: float = 2.0) -> None:
        self.scale = factor

    def make_node(self, x: Any, y: Any) -> Apply:
        return Apply(self, [x, y], [x.type(), x.type()])

    def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
        x, y = inputs
        output_storage[0][0], output_storage[1][0] = self.scale * np.hypot(x, y), np.arctan2(y, x)

    def infer_shape(self, node: Any, shapes: Any) -> Any:
        return [shapes[0], shapes[0]]

    def grad(self, inputs: Any, output_gradients: Any) -> Any:
        (x, y), square = inputs, f.square(inputs[0]) + f.square(inputs[1])
        by_x, by_y = [], []
        length, angle = output_gradients
        if not is_disconnected(length):
            by_x.append(length * self.scale * x / f.sqrt(square))
            by_y.append(length * self.scale * y / f.sqrt(square))
        if not is_disconnected(angle):
            by_x.append(-1.0 * angle * y / square)
            by_y.append(angle * x / square)
        return [by_x[0] + by_x[-1] if by_x[1:] else by_x[0], by_y[0] + by_y[-1] if by_y[1:] else by_y[0]]

    def R_op(self, inputs: Any, eval_points: Any) -> Any:
        (x, y), (dx, dy) = inputs, (0.0 if point is None else point for point in eval_points)
        square = f.square(x) + f.square(y)
        return [self.scale * (x * dx + y * dy) / f.sqrt(square), (x * dy - y * dx) / square]


class AddedInPlace(Op):
    """x + y, written over x."""

    __props__ = ()
    destroy_map = {0: [0]}
    itypes, otypes = (VECTOR, VECTOR), (VECTOR,)

    def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
        inputs[0] += inputs[1]
        output_storage[0][0] = inputs[0]

    def grad(self, inputs: Any, output_gradients: Any) -> Any:
        return [output_gradients[0], output_gradients[0]]


class Product(DoubleOp):
    """The product of two doubles."""

    def grad(self, inputs: Any, output_gradients: Any) -> Any:
        (x, y), (delta,) = inputs, output_gradients
        return [self(delta, y), self(x, delta)]


class Bell(UnaryOperator, ElementwiseOperator, FloatOperator):
    """exp(-x * x), by its traits."""

    kernel = "exp(-{0} * {0})"

    def numpy(self, x: Any) -> Any:
        return np.exp(-x * x)

    def grad(self, inputs: Any, output_gradients: Any) -> Any:
        return [output_gradients[0] * -2.0 * inputs[0] * self(inputs[0])]


class Scaled(ComputationOp):
    """x times a factor."""

    def __init__(self, x: Any, factor: float = 2.0) -> None:
        super().__init__(x)
        self.factor = factor

    def transform(self, transformer: Any, x: Any) -> Any:
        return transformer.multiply(x, self.factor)

    def generate_adjoints(self, adjoints: Any, delta: Any, x: Any) -> None:
        x.generate_add_delta(adjoints, delta * self.factor)


def _product(x: float, y: float) -> float:
    return x * y


SOUND = [
    (Polar(3.0), [X, Y]),
    (Polar(), [X.astype(np.float32), Y.astype(np.float32)]),
    (AddedInPlace(), [X, Y]),
    (AddedInPlace, [[1, 2], [3, 4]]),
    (Product("product", _product, 2), [Constant(double, 5.6), Constant(double, 6.7)]),
    (Product("product", _product, 2), [Constant(double, 5.6), 2]),
    (Bell, [X]),
    (Scaled, [X]),
    ("dot", [np.ones((2, 3)), np.ones((3, 4))]),
    ("take", [X, np.array([0, 2])]),
]


@pytest.mark.parametrize(("op", "inputs"), SOUND, ids=lambda x: str(getattr(x, "__name__", x))[:20])
def test_sound_ops_of_every_style(op: Any, inputs: Any) -> None:
    check_op(op, inputs)


def changed(base: Any, **attributes: Any) -> Any:
    return type("Broken", (base,), attributes)


def wrong_gradient(self: Any, inputs: Any, output_gradients: Any) -> Any:
    return [output_gradients[0] * 1.01, output_gradients[0]]


def outputs_of_another_type(self: Any, x: Any, y: Any) -> Apply:
    kind = x.type if x.name == "x0" and not hasattr(x, "seen") else y.type
    made = getattr(self, "_count", 0)
    self._count = made + 1
    return Apply(self, [x, y], [kind() if made == 0 else TensorType("float32", (3,))()] * 2)


BROKEN = [
    (changed(Polar, __props__=("absent",)), "lists absent, which are no attributes of it"),
    (changed(Polar, __hash__=lambda self: id(self), __eq__=lambda self, other: True), "has another hash"),
    (changed(Polar, __eq__=lambda self, other: False, __hash__=object.__hash__), "not equal to itself"),
    (changed(Polar, __str__=lambda self: f"Broken {id(self)}"), "prints differently"),
    (changed(Polar, make_node=lambda self, x, y: [x, y]), "make_node returns an Apply"),
    (changed(Polar, make_node=outputs_of_another_type), "make_node on its own inputs gives outputs"),
    (
        changed(Polar, make_node=lambda self, x, y: Apply(self, [x, y * 1.0], [x.type(), x.type()])),
        "replaces them",
    ),
    (changed(Polar, default_output=2), "default_output is 2, of 2 outputs"),
    (changed(AddedInPlace, destroy_map={1: [0]}), "destroy_map names output 1, of 1"),
    (changed(AddedInPlace, destroy_map={0: [2]}), r"destroy_map names inputs \[2\], of 2"),
    (changed(AddedInPlace, destroy_map={}), "changed input 0"),
    (changed(Polar, infer_shape=lambda self, node, shapes: [(1,), (1,)]), "infer_shape says"),
    (changed(Polar, connection_pattern=lambda self, node: [True]), "connection_pattern is a list of 2 lists of 2"),
    (changed(Polar, do_constant_folding=lambda self, node: None), "do_constant_folding gives a bool"),
    (changed(Polar, flops=lambda self, inputs, outputs: -1), "flops gives a count"),
    (changed(AddedInPlace, grad=wrong_gradient), "the gradient by x0 is wrong at element"),
    (changed(AddedInPlace, grad=lambda self, inputs, deltas: deltas), "returns a list of 2 gradients"),
    (changed(AddedInPlace, R_op=lambda self, inputs, points: [points[0]]), "R_op of .* along x1 is wrong"),
    (changed(Polar, connection_pattern=lambda self, node: [[True, True], [True, False]]), "connection_pattern"),
]


@pytest.mark.parametrize(("op", "says"), BROKEN, ids=lambda x: x if isinstance(x, str) else "")
def test_a_broken_clause_is_named(op: Any, says: str) -> None:
    with pytest.raises((OptreeError, AssertionError), match=f"(?s)Broken.*{says}|{says}.*Broken") as caught:
        check_op(op(), [X, Y])
    assert caught.type is DefinitionError or "Broken" in str(caught.value)


class Forgetful(Polar):
    """Forgets its parameter when it is pickled."""

    def __reduce__(self) -> Any:
        return Forgetful, ()


def test_an_op_that_changes_when_it_is_pickled_is_found() -> None:
    with pytest.raises(DefinitionError, match="Forgetful.*not equal to itself when it has been pickled"):
        check_op(Forgetful(5.0), [X, Y])


def test_inputs_need_values_and_a_type_that_takes_them() -> None:
    with pytest.raises(OptreeError, match=r"input 0 needs a value, which x .* does not have"):
        check_op(Bell, [VECTOR("x")])
    with pytest.raises(OptreeError, match="dimensions"):
        check_op(AddedInPlace, [X, math.pi])


def test_an_op_on_a_type_that_is_equal_to_nothing_else() -> None:
    class Text(Type):
        def filter(self, value: Any, strict: bool = False, allow_downcast: bool | None = None) -> Any:
            return str(value)

    class Upper(Op):
        __props__ = ()
        itypes = otypes = (Text(),)

        def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
            output_storage[0][0] = inputs[0].upper()

    check_op(Upper(), ["tree"])


@needs_compiler
def test_a_kernel_that_computes_another_value_is_found() -> None:
    backend = gen_backend("cpu", jit=True)  # the one that functions without tensors run on
    check_op(Bell, [X])
    with pytest.raises(DefinitionError, match="Broken: in a function of mode 'default' it gives"):
        check_op(changed(Bell, kernel="exp({0} * {0})"), [X])
    assert backend.jit is True


@needs_compiler
@pytest.mark.parametrize(("kernel", "says"), [("cos({0})", "its kernel gives"), ("sinn({0})", "sinn")])
def test_a_kernel_is_compiled_though_the_backend_would_not(kernel: str, says: str) -> None:
    """On small operands, a backend that compiles where it pays runs NumPy."""

    class Sine(UnaryOperator, ElementwiseOperator, FloatOperator, NonDifferentiableOperator):
        numpy = np.sin

    Sine.kernel = kernel
    with pytest.raises(OptreeError, match=says) as found:
        check_op(Sine(), [gen_backend("cpu").ones(3)])
    assert "The compiled kernel returns the values of `perform`" in found.value.__notes__[-1]


@needs_compiler
def test_an_op_is_checked_on_the_backend_of_its_tensors() -> None:
    compiling = gen_backend("cpu", jit=True)
    last = gen_backend("cpu", jit=False)
    with pytest.raises(DefinitionError, match="in a function of mode 'default' it gives"):
        check_op(changed(Bell, kernel="exp({0} * {0})"), [compiling.array(X)])
    assert last_backend() is last
    check_op(changed(Bell, kernel="exp({0} * {0})"), [last.array(X)])
    with pytest.raises(BackendError, match="check_op: "):
        check_op("add", [compiling.array(X), last.array(X)])


def test_a_gradient_near_a_pole_is_right() -> None:
    # Differences of the usual step are off by 1e-5 of it.
    check_gradient(Example(lambda x: 1 / x, ((2, 3),), (0.003, 0.006), "reciprocal"))


@needs_compiler
def test_a_users_kernel_and_perform_run_between_fused_parts() -> None:
    backend = gen_backend("cpu", jit=True)
    x, vector = VECTOR("x"), np.linspace(-1, 1, 40)
    fused = function([x], AddedInPlace()(Bell()(x * 2) + 1, x) * x - 1)
    np.testing.assert_allclose(fused(vector).get(), (np.exp(-4 * vector**2) + 1 + vector) * vector - 1, atol=1e-15)
    kernels = backend.stats()["kernels"]
    assert kernels["hits"] + kernels["disk_hits"] + kernels["misses"] > 0
