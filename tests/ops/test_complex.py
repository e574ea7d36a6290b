"""Complex numbers: values, refusals, parts, conversions and the gradients' convention.

The gradients of all ops that take complex numbers are compared with differences by `tests/ops/test_registry.py`.
"""

from __future__ import annotations

import pickle
import warnings
from functools import partial
from itertools import cycle, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from harness.cases import Case
from harness.composed import COMPOSED
from harness.each import for_each
from harness.emulated import Emulator
from harness.expected import MEANINGS
from harness.homes import home
from harness.numpy_calls import CALLS
from harness.op_examples import examples_for, has_examples

import optree
from backends import gen_backend
from backends.cpu.runtime import C
from optree import train
from optree.compile.fusion import Call, Kernel
from optree.compile.pipeline import lower
from optree.errors import DTypeError, GradientError, OptreeError, ShapeError
from optree.op.traits import ElementwiseOperator
from optree.ops.logic import Direction
from optree.registry import NUMPY_FUNCTIONS, OPS, f
from optree.testing import check_grad
from optree.testing.comparison import central_difference, compare
from optree.testing.examples import examples_of
from optree.tree.types import DTYPES, promote
from optree.tree.variable import Variable

COMPLEX = ("complex64", "complex128")

#: Calls of the ufuncs that `CALLS` does not have.
UFUNCS = [x for x in NUMPY_FUNCTIONS if isinstance(x, np.ufunc) and x not in CALLS]


@pytest.fixture(scope="module")
def be(home_kind: str) -> Any:
    return home(home_kind)


@pytest.fixture(scope="module")
def compiled() -> Any:
    return gen_backend("cpu", jit=True)


def drawn(*shape: int, seed: int = 0) -> np.ndarray:
    parts = np.random.default_rng(seed).normal(size=(2, *shape))
    return parts[0] + 1j * parts[1]


def quietly(function: Any, *args: Any) -> Any:
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*args)


def _is_refusal(error: DTypeError, name: str) -> bool:
    """Whether an error names the function that was called, and the way out."""
    return str(error).startswith((f"{name}:", "gt:")) and ("z.real" in str(error) or "astype" in str(error))


@for_each("name", [*COMPOSED, *filter(has_examples, OPS)], sampled=True)
def test_what_refuses_complex_numbers_names_the_function_and_the_way_out(name: str, be: Any) -> None:
    """A comparison in a case is refused before the function."""
    for each in COMPOSED.get(name) or examples_for(name):
        if isinstance(each, Case):
            is_shape = [isinstance(x, tuple) and all(isinstance(n, int) for n in x) for x in each.operands]
            values = [drawn(*x) if drawable else x for x, drawable in zip(each.operands, is_shape, strict=True)]
            values = [np.asarray(x) if isinstance(x, list) else x for x in values]
            call = partial(each.build, *(be.array(x, x.dtype) if isinstance(x, np.ndarray) else x for x in values))
        else:
            values = each.draw("complex128")
            call = partial(each.tree, [be.array(x, x.dtype) if isinstance(x, np.ndarray) else x for x in values])
        if any(np.iscomplexobj(x) for x in values):
            try:
                quietly(call)
            except DTypeError as error:
                assert _is_refusal(error, f.__getattr__(name).__name__), error


@for_each("name", sorted(MEANINGS))
def test_an_op_has_numpys_value_or_refuses_complex_numbers(name: str, be: Any) -> None:
    for example, dtype in zip(examples_of(OPS[name]), cycle(COMPLEX), strict=False):
        values = example.draw(dtype)
        if not any(np.iscomplexobj(x) for x in values):
            continue
        operands = [be.array(x, x.dtype) if isinstance(x, np.ndarray) else x for x in values]
        try:
            tree = quietly(example.tree, operands)
        except DTypeError as error:
            assert _is_refusal(error, name), error
            continue
        wanted = np.asarray(quietly(lambda: MEANINGS[name](*values, **example.op.props)))  # noqa: B023
        scale = float(np.max(np.abs(wanted), initial=0)) if np.isfinite(wanted).all() else 0.0
        compare(tree.asnumpyarray(), wanted, example, f"in {dtype}", ulps=16, scale=scale)


@for_each("function", [*CALLS, *UFUNCS])
def test_a_numpy_function_has_numpys_value_or_refuses_complex_numbers(function: Any, be: Any) -> None:
    """Composed functions too: a square that should be of the absolute value would show."""
    pair = [lambda x: function(x, x + 1), lambda x: function(2.0, x), lambda x: function(x, 2)]
    calls = CALLS.get(function) or (pair if function.nin == 2 else [function])
    refused = False
    for call, shape in product(calls, ((2, 3), (3, 3))):
        if shape == (3, 3) and not refused:  # of functions of square matrices
            continue
        z, refused = drawn(*shape), False
        try:
            got = quietly(call, be.array(z, "complex128"))
        except OptreeError as error:
            assert not isinstance(error, DTypeError) or "z.real" in str(error) or "astype" in str(error)
            refused = not isinstance(error, DTypeError)
            continue
        got, wanted = (
            [*x] if isinstance(x, tuple | list) and not isinstance(x, Variable) else [x]
            for x in (got, quietly(call, z))
        )
        assert len(got) == len(wanted)
        for each, other in zip(got, wanted, strict=True):
            each = each.get() if isinstance(each, Variable) else np.asarray(each)
            if isinstance(other, np.dtype):
                assert each == other
                continue
            assert each.dtype == np.asarray(other).dtype
            np.testing.assert_allclose(each, other, rtol=1e-10, atol=1e-12)


def test_promotion_is_numpys(be: Any) -> None:
    for left, right in [*product(DTYPES, COMPLEX), *product(COMPLEX, DTYPES)]:
        left, right = np.dtype(left), np.dtype(right)
        assert promote(left, right) == np.result_type(left, right)
        for function in (np.multiply, np.subtract, np.true_divide, np.power, np.equal, np.logical_or):
            if function is not np.subtract or left.kind != "b" != right.kind:
                wanted = function(np.ones(2, left), np.ones(2, right)).dtype
                assert function(be.ones(2, left), be.ones(2, right)).dtype == wanted, (function, left, right)
    for dtype in DTYPES:
        x, wanted = be.ones(2, dtype), np.ones(2, dtype)
        for tree, value in (
            (x * 2j, wanted * 2j),
            (1j + x, 1j + wanted),
            (x + np.complex64(1j), wanted + np.complex64(1j)),
        ):
            assert tree.dtype == value.dtype
            np.testing.assert_array_equal(tree.get(), value)


def test_parts_of_a_tensor_are_views_that_can_be_written(be: Any) -> None:
    z, x = be.array([1 + 2j, 3 - 1j], name="z"), be.array([5.0, 6.0])
    z.real[:] = z.imag * x
    assert z.get().tolist() == [10 + 2j, -6 - 1j]
    z.imag = 7
    z[0] = 1j
    z.real[1] += 1
    assert z.get().tolist() == [1j, -5 + 7j] and z.dtype == np.complex64
    assert x.real is x and x.imag.get().tolist() == [0, 0] and be.complex(x, 1.0).get().tolist() == [5 + 1j, 6 + 1j]
    assert be.complex(np.arange(2), np.float32(2)).dtype == np.complex128
    with pytest.raises(DTypeError, match="complex: it does not take complex"):
        be.complex(z, x)
    assert f"{z.at[1].item():.1f}" == "-5.0+7.0j" and complex(z[0]) == 1j
    assert "[ 0.+1.j, -5.+7.j]" in repr(z)


def test_a_lost_imaginary_part_is_warned_of_or_refused(be: Any) -> None:
    z, x = be.array([1 + 2j, 3 - 1j], name="z"), be.zeros(2, name="x")
    for line in (
        lambda: z.astype("float32").get(),
        lambda: x.__setitem__(slice(None), z * 1),
        lambda: z.astype(int).get(),
    ):
        for _ in range(2):  # each time: a cached application would be silent
            with pytest.warns(np.exceptions.ComplexWarning, match="imaginary part of (z|mul)"):
                line()
    assert x.get().tolist() == [1, 3] and z.astype(bool).get().all()
    for wrong in (
        lambda: x.__setitem__(0, 1j),
        lambda: x.fill(1j),
        lambda: be.array([1j], dtype="float32"),
        lambda: optree.TensorType("float32", ()).filter(1j),
        lambda: be.update([(x, z)]),
        lambda: be.var(z, out=be.zeros(1, "int32")),
        lambda: be.rms_norm(z),
        lambda: train.losses.mean_squared_error(z, z),
        lambda: train.LAMB([z], 0.1),
    ):
        with pytest.raises((DTypeError, OptreeError)):
            wrong()


def test_a_complex_number_fills_tensors_and_borders(be: Any) -> None:
    z = drawn(2, 2).astype("complex64")
    assert be.full(2, 1j).dtype == np.complex64 and be.full(2, 1j).get().tolist() == [1j, 1j]
    wanted = np.pad(z, 1, constant_values=1j)
    np.testing.assert_array_equal(np.pad(be.array(z), 1, constant_values=1j).get(), wanted)
    x = be.ones(2, name="x")
    y = x * x
    for wrong, words in (
        (lambda: np.pad(x, 1, constant_values=1j), "pad: 1j is complex"),
        (lambda: be.full(2, 1j, "float32"), "1j is complex"),
        (lambda: be.arange(3j), "arange: it does not take complex numbers"),
        (lambda: setattr(x, "imag", 1), "imag: x .* is real"),
        (lambda: optree.Lop(y, x, x * 1j), "eval_points: it does not take complex numbers"),
    ):
        with pytest.raises(OptreeError, match=words):
            wrong()


def test_rewrites_keep_complex_values(be: Any) -> None:
    """Rules of real numbers do not apply: log(sum(exp(x))), x * 1 of another dtype, x + 0.0."""
    z, x = be.array(drawn(3), "complex128"), be.array([1.0, -0.0, 2.0], "float64")
    values = z.get(), x.get()
    for build in (
        lambda n, z, x: n.log(n.sum(n.exp(z))),
        lambda n, z, x: x * (1 + 0j) + 0j,
        lambda n, z, x: n.log(1 + z) - (-z) * x,
        lambda n, z, x: (z * 2) * 4 + (z + 1) + 2,
        lambda n, z, x: n.abs(n.exp(1j * x)) ** 2 + n.square(n.real(z)),
        lambda n, z, x: (1 - n.tanh(z) ** 2) / z**-1 + z**0.5 + z**-1.5 + z**3,
    ):
        tree = build(np, z, x)
        got = optree.function([], tree)()
        for each in (tree.get(), got.get()):
            np.testing.assert_allclose(each, build(np, *values), rtol=1e-12)
            assert each.dtype == build(np, *values).dtype


#: Parts of operands of which all pairs are drawn.
SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 30.0, -30.0, 1e3, np.inf, -np.inf, np.nan)

#: The ops of one or two complex numbers that kernels have, by names; those of real ones have another op for `sgn`.
FORMULAS = {
    name: op
    for name in MEANINGS
    if issubclass(op := Direction if name == "sgn" else OPS[name], ElementwiseOperator)
    and op.by_parts is not ElementwiseOperator.by_parts
    and isinstance(op.numpy, np.ufunc)
}


def kernels_of(*trees: Any) -> list[str]:
    """The steps of a function of trees, but for views."""
    fused = lower(trees, C._replace(fixed=True), "program", "fusion")
    calls = [step for step in fused.steps if isinstance(step, Call)]
    views = [step for step in calls if fused.program.instructions[step.instruction].op.view_map]
    return [type(step).__name__ for step in fused.steps if step not in views]


@for_each("name", FORMULAS)
@pytest.mark.parametrize("dtype", COMPLEX)
def test_a_kernel_of_complex_numbers_has_numpys_value(name: str, dtype: str, compiled: Any) -> None:
    """Within 8 ulp of the absolute value; also of special values, but for signs that C99 leaves open."""
    op, eps = FORMULAS[name], np.finfo(dtype).eps
    grid = np.array([complex(x, y) for x, y in product(SPECIAL, SPECIAL)], dtype)
    spread = drawn(256) * np.exp(drawn(256, seed=1).real * 2)
    z = np.concatenate([grid, spread.astype(dtype)])
    values = [z] if op.operands == ("x",) else [np.repeat(z[::3], z.size), np.tile(z, z[::3].size)]
    tree = quietly(OPS[name].function, *(compiled.array(x, dtype) for x in values))
    assert kernels_of(tree) == ["Kernel"]
    ufunc: Any = op.numpy
    exact = [x.astype("G") for x in values] if name == "log1p" else values  # NumPy's is inexact near zero
    got, wanted = tree.get(), quietly(ufunc, *exact).astype(quietly(ufunc, *values).dtype)
    assert got.dtype == wanted.dtype
    if wanted.dtype == bool:
        np.testing.assert_array_equal(got, wanted)
        return
    known = np.logical_and.reduce([np.isfinite(x) for x in values]) & (name != "sgn")
    size = np.abs(wanted)
    for one, other in ((got.real, wanted.real), (got.imag, wanted.imag)):
        np.testing.assert_array_equal(np.isnan(one), np.isnan(other))
        np.testing.assert_array_equal(np.isinf(one), np.isinf(other))
        finite = np.isfinite(other) & np.isfinite(size)
        assert (np.abs(one[finite] - other[finite]) <= 8 * eps * size[finite]).all()
        signed = known & ((other != 0) | (one == 0)) & ~np.isnan(other) & (np.abs(other) >= 8 * eps * size)
        np.testing.assert_array_equal(np.signbit(one)[signed], np.signbit(other)[signed])


@pytest.mark.parametrize(
    "build",
    [
        lambda m, z, w, x: z * m.conj(w) - x / w + 2j,
        lambda m, z, w, x: m.where(x > 0, z, w * 2).T * 1j,
        lambda m, z, w, x: m.exp(1j * x) * x,
        lambda m, z, w, x: m.abs(z) ** 2 + m.abs(w * w),
        lambda m, z, w, x: m.var(z * x, axis=1),
        lambda m, z, w, x: (z - m.mean(z)) * w,
    ],
)
def test_a_complex_expression_is_one_kernel(build: Any, compiled: Any) -> None:
    values = drawn(64, 32), drawn(64, 32, seed=1), drawn(64, 32, seed=2).real
    operands = [compiled.array(x, x.dtype) for x in values]
    tree = build(np, *operands)
    assert kernels_of(tree).count("Kernel") == 1
    np.testing.assert_allclose(tree.get(), build(np, *values), rtol=1e-12)


def test_complex_kernels_in_cuda_have_numpys_value() -> None:
    be, dtype = Emulator().backend(), np.dtype("complex64")
    z, w = drawn(5, 7).astype(dtype), drawn(5, 7, seed=1).astype(dtype)
    for build in (
        lambda m, z, w: m.exp(z) / w.conj() + m.abs(w) ** 2,
        lambda m, z, w: m.sum(z[:, ::-1] * w, axis=1, keepdims=True) * z,
    ):
        tree = build(np, be.array(z, dtype), be.array(w, dtype))
        np.testing.assert_allclose(tree.get(), build(np, z, w), rtol=1e-5)


def test_kernels_of_complex_numbers_compute_no_more_than_they_need(compiled: Any) -> None:
    z, x = compiled.array(drawn(64, 32)), compiled.array(drawn(64).real)

    def functions(tree: Any) -> list[str]:
        fused = lower([tree], C._replace(fixed=True), "program", "fusion")
        names = [fused.program.instructions[index].op.name for step in fused.steps for index in step.instructions]
        return sorted(name for name in names if name in ("exp", "sin", "cos", "hypot", "sqrt", "log"))

    assert functions(np.exp(-2j * np.pi * x * x)) == ["cos", "sin"]
    assert functions(np.square(np.abs(z))) == []
    assert functions(optree.grad(compiled.sum(np.abs(z) ** 2 * 0.5), z)) == []
    w = compiled.array(drawn(64, 32, seed=1))
    fused = lower([np.fft.fft(z * w), z * w.T.T + np.conj(w)], C, "program", "fusion")
    writes = [i for step in fused.steps if isinstance(step, Kernel) for i in step.writes]
    assert writes and all(fused.program.type_of(i).dtype == z.dtype for i in writes)
    z[:] = z * w + 1
    np.testing.assert_allclose(z.get(), drawn(64, 32).astype("c8") * w.get() + 1, rtol=1e-5)


def test_the_gradient_is_the_direction_of_steepest_ascent(be: Any) -> None:
    w, goal = be.array(drawn(4), "complex128"), be.array(drawn(4, seed=1), "complex128")
    gradient = optree.grad(be.sum(be.abs(w - goal) ** 2), w)
    np.testing.assert_allclose(gradient.get(), 2 * (w.get() - goal.get()))  # torch's; JAX's is the conjugate
    x = w.real
    cost = be.sum(be.abs(x * goal) ** 2 + w.imag**2)
    np.testing.assert_allclose(optree.grad(cost, x).get(), 2 * x.get() * np.abs(goal.get()) ** 2)
    np.testing.assert_allclose(optree.grad(cost, w.imag).get(), 2 * w.get().imag)
    np.testing.assert_allclose(optree.grad(cost, w).get().imag, 2 * w.get().imag)
    np.testing.assert_array_equal(optree.grad(cost, w, convention="jax").get(), optree.grad(cost, w).get().conj())
    squares, given = w * goal, be.array(drawn(4, seed=2), "complex128")
    for convention, wanted in (("torch", goal.get().conj()), ("jax", goal.get())):
        known = optree.grad(None, w, known_grads={squares: given}, convention=convention)
        np.testing.assert_allclose(known.get(), given.get() * wanted)
    for wrong, words in (
        (lambda: optree.grad(be.sum(w), w), "the cost is real"),
        (lambda: optree.grad(cost, w, convention="numpy"), "convention is one of torch, jax"),
    ):
        with pytest.raises(GradientError, match=words):
            wrong()


def test_roots_are_numpys_with_derivatives(be: Any) -> None:
    for p in (drawn(5), drawn(4).real, np.array([2, -6, 4]), np.array([2.0, 1.0], "float32"), drawn(1)[[0, 0]]):
        given = be.array(p, p.dtype)
        np.testing.assert_allclose(np.roots(given).get(), np.roots(p), rtol=1e-6)
        if p.dtype.kind != "i" and p.dtype.itemsize > 4:
            check_grad(lambda p: np.sum(np.abs(np.roots(p) - 1j) ** 2), [given])
    with pytest.raises(ShapeError, match="roots: .* is no polynomial of degree 1 or more"):
        be.roots(be.ones(1))


def test_jacobians_of_holomorphic_functions_are_their_complex_derivatives(be: Any) -> None:
    values, step = drawn(3), 1e-6
    z, x = be.array(values, "complex128", name="z"), be.array(values.real, "float64", name="x")

    def value(n: Any, z: Any) -> Any:
        return n.sin(z) * n.sum(z**2) + n.where(n.abs(z) > 1, z, 2j)

    def differences(function: Any, at: np.ndarray) -> np.ndarray:
        ends = [[function(at + sign * step * e) for e in np.eye(3)] for sign in (1, -1)]
        return (np.array(ends[0]) - np.array(ends[1])).T / (2 * step)

    found = optree.jacobian(value(np, z), z, holomorphic=True).get()
    np.testing.assert_allclose(found, differences(lambda z: value(np, z), values), rtol=1e-7, atol=1e-8)
    second = optree.hessian(np.sum(np.sin(z) * z[0]), z, holomorphic=True).get()
    first = differences(lambda z: np.cos(z) * z[0] + np.array([np.sum(np.sin(z)), 0, 0]), values)
    np.testing.assert_allclose(second, first, rtol=1e-7, atol=1e-8)
    of_real = optree.jacobian(np.exp(1j * x) * np.sum(x), x)  # of both parts
    wanted = differences(lambda x: np.exp(1j * x) * np.sum(x), values.real)
    np.testing.assert_allclose(of_real.get(), wanted, rtol=1e-7, atol=1e-8)
    by_parts = optree.jacobian(np.abs(z) ** 2, [z.real, z.imag])
    for found, part in zip(by_parts, (values.real, values.imag), strict=True):
        np.testing.assert_allclose(found.get(), np.diag(2 * part))
    for wrong, words in (
        (lambda: optree.jacobian(z * z, z), r"z .* is complex: .* \[z.real, z.imag\] .* holomorphic=True"),
        (lambda: optree.jacobian(np.conj(z) * z, z, holomorphic=True), "conjugate .* is no holomorphic function"),
        (lambda: optree.jacobian(np.abs(z) * z, z, holomorphic=True), "abs .* is no holomorphic function"),
        (lambda: optree.jacobian(x * 1j, x, holomorphic=True), "x .* is real"),
        (lambda: optree.hessian(np.sum(np.abs(z) ** 2), z), "hessian: z .* is complex"),
    ):
        with pytest.raises(GradientError, match=words):
            wrong()


def test_rop_and_lop_are_adjoint(be: Any) -> None:
    z, v, u = (be.array(drawn(4, seed=i), "complex128") for i in range(3))

    def value(n: Any, z: Any) -> Any:
        return n.sin(z) * n.conj(z) + n.abs(z) * n.angle(z) + n.imag(z)

    along, back = optree.Rop(value(np, z), z, v).get(), optree.Lop(value(np, z), z, u).get()
    step = 1e-5
    ends = [value(np, z.get() + sign * step * v.get()) for sign in (1, -1)]
    np.testing.assert_allclose(along, (ends[0] - ends[1]) / (2 * step), rtol=1e-7)
    np.testing.assert_allclose(np.vdot(u.get(), along).real, np.vdot(back, v.get()).real)


def test_functions_of_parts_and_directions_have_numpys_values_and_derivatives(be: Any) -> None:
    z, v, x = drawn(5), drawn(3, seed=1), np.sort(drawn(5, seed=2).real)
    for function in (
        lambda z, v, x: np.convolve(z, v, "same") + np.convolve(v, z, "same"),
        lambda z, v, x: np.correlate(v, z, "full") + np.correlate(z * 1j, v, "full"),
        lambda z, v, x: np.interp(v.real, x, z, left=2j, right=1) * np.sign(v),
        lambda z, v, x: np.interp(v.real, x, z, period=1.5),
    ):
        tensors = be.array(z, "complex128"), be.array(v, "complex128"), be.array(x, "float64")
        np.testing.assert_allclose(function(*tensors).get(), function(z, v, x), rtol=1e-12)
        if be.name == "cpu":  # derivatives are trees, the same everywhere
            check_grad(lambda z, v: function(z, v, tensors[2]), tensors[:2])  # noqa: B023
    special = np.array([0, 1j, np.inf + 1j, complex(np.inf, np.inf), complex(np.nan, 1)])
    np.testing.assert_array_equal(np.sign(be.array(special, "complex128")).get(), quietly(np.sign, special))
    with pytest.raises(DTypeError, match="quantile"):
        np.quantile(be.array(x), be.array(z))


def test_an_optimizer_updates_the_parts_of_complex_weights_as_two(be: Any) -> None:
    values, goal = drawn(3), drawn(3, seed=1)
    for kind, options in (
        (train.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
        (train.Adam, {"clip_value": 0.3, "accumulate": 2, "average": 0.9}),
        (train.Adagrad, {"initial_sum": 0.3, "clip_global_norm": 0.5}),
        (train.RMSProp, {"centered": True, "loss_scale": "dynamic", "check_finite": True}),
    ):
        z = be.array(values, "complex128", name="z")
        parts = [be.array(part, "float64") for part in (values.real, values.imag)]
        for weights, w in (([z], z), (parts, be.complex(*parts))):
            cost = be.sum(be.abs(w * w - goal) ** 2) + be.sum(w.real**4)
            opt = kind(weights, 0.05, **options)
            step = optree.function([], cost, updates=opt.updates(cost))
            for _ in range(4):
                step()
        assert np.abs(z.get() - values).max() > 0.01
        np.testing.assert_allclose(z.get(), parts[0].get() + 1j * parts[1].get(), rtol=1e-12)
    z = be.array(values, "complex128", name="z")
    optree.function([], updates=train.SGD([z], 1.0, clip_norm=0.5).updates(be.sum(be.abs(z) ** 2) / 2))()
    np.testing.assert_allclose(z.get(), values - 0.5 * values / (np.linalg.norm(values) + 1e-6))
    with pytest.raises(DTypeError, match="LAMB: .* no complex weight z"):
        train.LAMB([z], 0.1)


def test_systems_of_equations_and_inverses(be: Any) -> None:
    values = [drawn(2, 3, 3), drawn(3, seed=1)]
    a, b = (be.array(x, "complex128") for x in values)
    for cost in (
        lambda a, b: np.sum(np.abs(np.linalg.solve(a, b)) ** 2),
        lambda a, b: np.sum(np.abs(np.linalg.inv(a)) ** 3) + np.linalg.norm(np.linalg.matrix_power(a, -2) @ b),
        lambda a, b: np.sum(np.abs(np.linalg.solve(np.real(a), b)) ** 2),
    ):
        tree = cost(a, b)
        np.testing.assert_allclose(tree.item(), cost(*values))
        for i, gradient in enumerate(optree.grad(tree, [a, b])):
            wanted = central_difference(lambda moved: float(cost(*moved)), values, i)  # noqa: B023
            np.testing.assert_allclose(gradient.get(), wanted, rtol=1e-6, atol=1e-8 * np.abs(wanted).max())


def test_a_loop_of_real_states_has_complex_values_inside(be: Any) -> None:
    x = be.array([[1.0, 2.0]], "float64")
    found, turned = f.scan(lambda s, _: (np.abs(s * (1 + 2j)), s * 1j), x, length=3)
    np.testing.assert_allclose(turned.get()[0], x.get() * 1j)
    np.testing.assert_allclose(optree.grad(np.sum(found), x).get(), 5**1.5)
    np.testing.assert_allclose(optree.grad(np.sum(np.abs(turned) ** 2), x).get(), x.get() * 2 * (1 + 5 + 25))
    with pytest.raises(DTypeError, match="scan: the step makes complex64 of state 0"):
        f.scan(lambda s, _: (s * 1j, s), be.ones(1, dtype="float32"), length=3)


def test_complex_tensors_are_saved_and_pickled(be: Any, home_kind: str, tmp_path: Path) -> None:
    for dtype in COMPLEX:
        z = be.array(drawn(2, 3), dtype)
        if home_kind != "stand-in":  # a pickle's backend is made anew
            np.testing.assert_array_equal(pickle.loads(pickle.dumps(z)).get(), z.get())
        train.save(tmp_path / "x.safetensors", {"z": z})
        other = be.zeros((2, 3), dtype)
        train.load(tmp_path / "x.safetensors", {"z": other})
        np.testing.assert_array_equal(other.get(), z.get(), strict=True)
        read = safetensors.numpy.load_file(tmp_path / "x.safetensors")["z"]  # without complex128, pairs of float64
        np.testing.assert_array_equal(read.view(dtype).reshape(2, 3), z.get())
        np.testing.assert_array_equal(train.read(tmp_path / "x.safetensors")["z"], z.get(), strict=True)
        shared = be.from_dlpack(z.raw())
        shared[0] = 1j
        assert (z.get()[0] == 1j).all()


def test_what_has_no_complex_numbers_says_so(be: Any) -> None:
    z = be.array([1j], name="z")
    alone = optree.distributed.init(be)
    for line, words in ((lambda: alone.all_reduce(z, "max"), r"all_reduce: there is no max of complex64; z\.real"),):
        with pytest.raises((DTypeError, TypeError), match=words):
            line()
    assert f.isnan(z).get().tolist() == [False]


def test_memory_is_planned_where_a_leaf_is_a_complex_number() -> None:
    be = gen_backend("cpu", jit="always")
    x = be.array(drawn(8, 8).real, "float64")
    cost = be.mean((np.abs(np.fft.fft2(np.exp(1j * x))) - 1) ** 2, keepdims=False)
    step = optree.function([], cost, updates=[(x, x - 0.1 * optree.grad(cost, x))])
    assert step().item() > step().item()
