"""Gradients where a function has none of its own, or where a formula breaks: chosen values.

Elsewhere gradients are compared with differences (test_registry.py).
"""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest
from harness.expected import MEANINGS

import optree
from backends import gen_backend
from optree import Autodiff, grad
from optree.registry import OPS, f

INF, NAN = np.inf, np.nan

#: name, operands, the gradient of the sum of the value for each operand.
KINKS: list[tuple[str, list[Any], list[Any]]] = [
    ("maximum", [[1.0, 2.0, 3.0], [2.0, 2.0, 2.0]], [[0, 0.5, 1], [1, 0.5, 0]]),
    ("minimum", [[1.0, 2.0, 3.0], [2.0, 2.0, 2.0]], [[1, 0.5, 0], [0, 0.5, 1]]),
    ("maximum", [[INF, -INF, INF], [0.0, 0.0, INF]], [[1, 0, 0.5], [0, 1, 0.5]]),
    ("minimum", [[INF, -INF, INF], [0.0, 0.0, INF]], [[0, 1, 0.5], [1, 0, 0.5]]),
    ("maximum", [[0.0, -0.0], [-0.0, 0.0]], [[0.5, 0.5], [0.5, 0.5]]),
    ("abs", [[-2.0, -0.0, 0.0, 3.0, INF, -INF]], [[-1, 0, 0, 1, 1, -1]]),
    ("relu", [[-2.0, 0.0, -0.0, 3.0, INF, -INF]], [[0, 0, 0, 1, 1, 0]]),
    ("sgn", [[-2.0, 0.0, 3.0]], [[0, 0, 0]]),
    ("floor", [[-2.0, 0.5, 3.0]], [[0, 0, 0]]),
    ("sqrt", [[0.0, 4.0, INF]], [[INF, 0.25, 0]]),
    ("square", [[0.0, -3.0]], [[0, -6]]),
    ("reciprocal", [[2.0, INF, -INF]], [[-0.25, 0, 0]]),
    ("log", [[0.0, INF]], [[INF, 0]]),
    ("exp", [[-INF, 0.0, INF]], [[0, 1, INF]]),
    ("tanh", [[-INF, 0.0, INF, 400.0, -400.0]], [[0, 1, 0, 0, 0]]),
    ("sig", [[-INF, 0.0, INF, 800.0, -800.0]], [[0, 0.25, 0, 0, 0]]),
    ("erf", [[-INF, INF, 40.0]], [[0, 0, 0]]),
    ("arctan", [[-INF, INF, 0.0]], [[0, 0, 1]]),
    ("pow", [[INF, INF, INF], [2.0, 1.0, -1.0]], [[INF, 1, 0], [INF, INF, 0]]),
    ("pow", [[0.0, 0.0, 2.0, -2.0], [2.0, 1.0, 0.0, 2.0]], [[0, 1, 0, -4], [0, 0, np.log(2), NAN]]),
    ("hypot", [[3.0, 0.0], [4.0, 2.0]], [[0.6, 0], [0.8, 1]]),
    ("hypot", [[INF, -INF, 2.0, 0.0], [1.0, 0.0, -INF, 0.0]], [[1, -1, 0, 0], [0, 0, -1, 0]]),
    ("hypot", [[INF, -INF], [INF, INF]], [[0.5**0.5, -(0.5**0.5)], [0.5**0.5, 0.5**0.5]]),
    ("arctan2", [[INF, 1.0, INF], [1.0, -INF, INF]], [[0, 0, 0], [0, 0, 0]]),
    ("exp2", [[-INF, INF]], [[0, INF]]),
    ("expm1", [[-INF, INF]], [[0, INF]]),
    ("log2", [[INF]], [[0]]),
    ("log10", [[INF]], [[0]]),
    ("log1p", [[INF]], [[0]]),
    ("safelog", [[-INF, 0.0, INF]], [[0, 0, 0]]),
    ("sinh", [[-INF, INF]], [[INF, INF]]),
    ("cosh", [[-INF, INF]], [[-INF, INF]]),
    ("arcsinh", [[-INF, INF]], [[0, 0]]),
    ("arccosh", [[INF]], [[0]]),
    ("sig2", [[-INF, INF, 0.0]], [[0, 0, np.log(2) / 4]]),
    ("tanh2", [[-INF, INF, 0.0]], [[0, 0, np.log(2)]]),
    ("sech2", [[-INF, INF, 0.0, 800.0]], [[0, 0, 0, 0]]),
    ("logaddexp", [[INF, -INF, 0.0, 900.0], [0.0, 0.0, 0.0, -900.0]], [[1, 0, 0.5, 1], [0, 1, 0.5, 0]]),
    ("logaddexp", [[INF, -INF, INF, -INF], [INF, -INF, -INF, INF]], [[0.5, 0.5, 1, 0], [0.5, 0.5, 0, 1]]),
    ("softplus", [[-INF, INF, 0.0, 900.0]], [[0, 1, 0.5, 1]]),
    ("log_sigmoid", [[-INF, INF, 0.0, 900.0]], [[1, 0, 0.5, 0]]),
    ("add", [[INF, -INF], [1.0, INF]], [[1, 1], [1, 1]]),
    ("sub", [[INF, INF], [1.0, INF]], [[1, 1], [-1, -1]]),
    ("neg", [[INF]], [[-1]]),
    ("mul", [[INF, 2.0], [3.0, 4.0]], [[3, 4], [INF, 2]]),
    ("div", [[1.0, INF], [INF, 2.0]], [[0, 0.5], [0, -INF]]),
    ("where", [[1.0, 0.0, NAN], [INF, NAN, 1.0], [NAN, 5.0, 2.0]], [[0, 0, 0], [1, 0, 1], [0, 1, 0]]),
    ("max", [[1.0, 3.0, 3.0, 2.0]], [[0, 0.5, 0.5, 0]]),
    ("min", [[1.0, 3.0, 1.0, 1.0]], [[1 / 3, 0, 1 / 3, 1 / 3]]),
    ("max", [[INF, 1.0, -INF]], [[1, 0, 0]]),
    ("max", [[-INF, -INF]], [[0.5, 0.5]]),
    ("prod", [[0.0, 2.0, 3.0]], [[6, 0, 0]]),
    ("prod", [[0.0, 0.0, 3.0]], [[0, 0, 0]]),
    ("norm", [[0.0, 0.0]], [[0, 0]]),
    ("norm", [[3.0, -4.0]], [[0.6, -0.8]]),
    ("norm", [[INF, 1.0]], [[1, 0]]),
    ("norm", [[-INF, 1.0, INF]], [[-(0.5**0.5), 0, 0.5**0.5]]),
    ("norm", [[1e-200, 0.0]], [[1, 0]]),
    ("norm", [[3e200, 4e200]], [[0.6, 0.8]]),
    ("norm", [[5e-324, 0.0]], [[1, 0]]),
    ("logsumexp", [[1000.0, 1000.0]], [[0.5, 0.5]]),
    ("logsumexp", [[-INF, 0.0]], [[0, 1]]),
    ("logsumexp", [[INF, 0.0, INF]], [[0.5, 0, 0.5]]),
    ("log_softmax", [[-INF, 0.0]], [[1, -1]]),
    ("prod", [[INF, 2.0]], [[2, INF]]),
    ("min", [[INF, 1.0, -INF]], [[0, 0, 1]]),
    ("std", [[2.0, 2.0]], [[0, 0]]),
    ("sum", [[INF, -INF, NAN]], [[1, 1, 1]]),
    ("mean", [[INF, NAN]], [[0.5, 0.5]]),
]


@pytest.fixture(scope="module")
def cpu() -> Any:
    """A backend of float64."""
    return gen_backend("cpu", datatype=np.float64)


@pytest.mark.parametrize(("name", "operands", "wanted"), KINKS, ids=[f"{i}-{k[0]}" for i, k in enumerate(KINKS)])
def test_gradient_at_a_kink(name: str, operands: Any, wanted: Any, cpu: Any) -> None:
    tensors = [cpu.array(x) for x in operands]
    gradients = grad(cpu.sum(f.__dict__[name](*tensors)), tensors)
    for i, (gradient, right) in enumerate(zip(gradients, wanted, strict=True)):
        np.testing.assert_allclose(gradient.asnumpyarray(), right, rtol=1e-12, atol=1e-300, err_msg=f"operand {i}")


#: Where a function has a second derivative of 0 at infinity.
FLAT_AT_INFINITY = """sqrt reciprocal log log2 log10 log1p safelog tanh tanh2 sech2 sig sig2 erf arctan arcsinh arccosh
    softplus log_sigmoid abs relu"""


@pytest.mark.parametrize("name", FLAT_AT_INFINITY.split())
def test_second_derivative_at_infinity(name: str, cpu: Any) -> None:
    ends = [INF] if name in ("sqrt", "log", "log2", "log10", "log1p", "arccosh") else [INF, -INF]
    x = cpu.array(ends)
    first = grad(cpu.sum(f.__dict__[name](x)), x)
    np.testing.assert_array_equal(grad(cpu.sum(first), x).asnumpyarray(), np.zeros(len(ends)))


@pytest.mark.parametrize("name", ["hypot", "arctan2", "logaddexp"])
def test_second_derivative_by_two_operands_at_infinity(name: str, cpu: Any) -> None:
    x, y = cpu.array([INF, -INF, 2.0, INF]), cpu.array([2.0, 0.5, -INF, INF])
    for first in grad(cpu.sum(f.__dict__[name](x, y)), [x, y]):
        for second in grad(cpu.sum(first), [x, y]):
            np.testing.assert_array_equal(second.asnumpyarray()[:3], np.zeros(3))
            assert np.isfinite(second.asnumpyarray()).all()


def test_second_derivatives_at_equal_infinities_are_finite_and_nan_where_an_operand_is_nan(cpu: Any) -> None:
    x, y = cpu.array([INF, -INF, NAN, 1.0]), cpu.array([INF, -INF, 1.0, NAN])
    firsts = grad(cpu.sum(cpu.logaddexp(x, y)), [x, y])
    seconds = [second for first in firsts for second in grad(cpu.sum(first), [x, y])]
    for found in (*firsts, *seconds):
        np.testing.assert_array_equal(np.isnan(found.asnumpyarray()), [False, False, True, True])
    for number in (INF, -INF):
        z = cpu.array([-INF, 0.0, INF])
        first = grad(cpu.sum(cpu.logaddexp(z, number)), z)
        np.testing.assert_array_equal(first.asnumpyarray(), [0, 0, 0.5] if number > 0 else [0.5, 1, 1])
        assert np.isfinite(grad(cpu.sum(first), z).asnumpyarray()).all()


#: name, operands, the second derivative of the sum of the value along each operand.
CURVED: list[tuple[str, list[Any], list[Any]]] = [
    ("softplus", [[0.0, -0.0]], [[0.25, 0.25]]),
    ("log_sigmoid", [[0.0, -0.0]], [[-0.25, -0.25]]),
    ("logaddexp", [[0.0, 3.5, -1e300], [0.0, 3.5, -1e300]], [[0.25] * 3, [0.25] * 3]),
    ("logaddexp2", [[0.0, 3.5], [0.0, 3.5]], [[np.log(2) / 4] * 2, [np.log(2) / 4] * 2]),
    ("sinc", [[0.0]], [[-(np.pi**2) / 3]]),
    ("square", [[0.0]], [[2.0]]),
    ("logsumexp", [[1.0, 1.0]], [[0.25 - 0.25, 0.25 - 0.25]]),  # of the sum of the gradient, which is 1
    ("hypot", [[0.0], [2.0]], [[0.5], [0.0]]),
    ("pow", [[0.0], [2.0]], [[2.0], [0.0]]),
]


@pytest.mark.parametrize(("name", "operands", "wanted"), CURVED, ids=[f"{i}-{k[0]}" for i, k in enumerate(CURVED)])
def test_second_derivative_where_a_comparison_changes(name: str, operands: Any, wanted: Any, cpu: Any) -> None:
    tensors = [cpu.array(x) for x in operands]
    for x, right in zip(tensors, wanted, strict=True):
        second = grad(cpu.sum(grad(cpu.sum(f.__dict__[name](*tensors)), x)), x)
        np.testing.assert_allclose(second.asnumpyarray(), right, rtol=1e-14, atol=1e-14)


def test_the_gradient_of_logaddexp_is_exact_for_far_numbers(cpu: Any) -> None:
    x = np.array([0.0, 1.0, 40.0, 700.0, 1e4, 1e308])
    for dtype in (np.float64, np.float32):
        gaps = x[:-1].astype(dtype)
        a, b = cpu.array(gaps, dtype), cpu.zeros(gaps.shape, dtype)
        for first, sign in zip(grad(cpu.sum(cpu.logaddexp(a, b)), [a, b]), (-1, 1), strict=True):
            with mpmath.workdps(50):
                wanted = [float(1 / (1 + mpmath.exp(sign * mpmath.mpf(float(gap))))) for gap in gaps]
            wanted = np.array(wanted).astype(dtype)
            tiny = np.finfo(dtype).tiny
            np.testing.assert_allclose(first.asnumpyarray(), wanted, rtol=8 * np.finfo(dtype).eps, atol=tiny)


@pytest.mark.parametrize("ord", [2, 4, 6])
def test_even_norms_have_all_derivatives_where_an_element_is_0(ord: int, cpu: Any) -> None:
    x = cpu.array([0.0, 2.0])
    found: Any = cpu.norm(x, axis=0, ord=ord, keepdims=False)
    for _ in range(ord):
        found = f.slice(grad(found, x), 0)  # of (t**p + 2**p) ** (1/p) at 0, p times
    np.testing.assert_allclose(found.asnumpyarray(), math.factorial(ord - 1) * 2.0 ** (1 - ord), rtol=1e-12)


@pytest.mark.parametrize("p", [2, 4])
def test_even_pools_have_all_derivatives_where_an_element_is_0(p: int, cpu: Any) -> None:
    x = cpu.array([[[0.0, 2.0]]])
    found: Any = cpu.sum(cpu.lp_pool(x, 2, p=p))
    for _ in range(p):
        found = f.slice(grad(found, x), (0, 0, 0))
    np.testing.assert_allclose(found.asnumpyarray(), math.factorial(p - 1) * 2.0 ** (1 - p), rtol=1e-12)


def test_mixed_second_derivatives_of_an_interpolation_are_symmetric_at_its_points(cpu: Any) -> None:
    x, y = cpu.array([1.0, 0.0, 3.0, 2.0]), cpu.array([0.0, 5.0, 7.0, 20.0])
    found = cpu.sum(cpu.interp(x, np.array([0.0, 1.0, 2.0, 3.0]), y), keepdims=False)
    by_x, by_y = grad(found, [x, y])
    np.testing.assert_array_equal(by_x.asnumpyarray(), [2, 5, 13, 13])
    weights = cpu.array([1.0, -2.0, 4.0, 0.5])
    along = grad(cpu.sum(by_y * weights, keepdims=False), x).asnumpyarray()
    np.testing.assert_array_equal(along, optree.Rop(by_x, y, weights).asnumpyarray())


def test_correlations_of_equal_rows_have_second_derivatives(cpu: Any) -> None:
    row = np.array([1.0, 2.0, 4.0])
    x = cpu.array(np.stack([row, row]))
    first = grad(f.slice(cpu.corrcoef(x), (0, 1)), x)
    second = grad(f.slice(first, (0, 0)), x).asnumpyarray()[0, 0]
    centred = row - row.mean()
    total = centred @ centred
    np.testing.assert_allclose(second, -(1 - 1 / 3 - centred[0] ** 2 / total) / total, rtol=1e-9)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_norms_of_every_size(dtype: Any, cpu: Any) -> None:
    info = np.finfo(dtype)
    sizes = np.array([info.smallest_subnormal, info.tiny, 1e-30, 1e-20, 1.0, 1e20, 1e30, info.max / 8], dtype)
    x = cpu.array(np.array([3, 0, 4], dtype) * sizes[:, None], dtype)
    norm = cpu.norm(x, axis=1, keepdims=False)
    np.testing.assert_allclose(norm.asnumpyarray() / sizes, 5, rtol=4 * info.eps)
    wanted = [[0.6, 0, 0.8]] * len(sizes)
    np.testing.assert_allclose(grad(cpu.sum(norm), x).asnumpyarray(), wanted, rtol=4 * info.eps)


@pytest.mark.parametrize("bound", [0.0, 1.0])
def test_clip_shares_evenly_at_its_bounds(bound: float, cpu: Any) -> None:
    x = cpu.array([bound, 0.5, -7.0, 7.0])
    np.testing.assert_array_equal(grad(cpu.sum(cpu.clip(x, 0.0, 1.0)), x).asnumpyarray(), [0.5, 1, 0, 0])


@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_a_tie_with_itself_is_counted_once(name: str, cpu: Any) -> None:
    x = cpu.array([1.0, -2.0])
    np.testing.assert_array_equal(grad(cpu.sum(f.__dict__[name](x, x)), x).asnumpyarray(), [1, 1])


@pytest.mark.parametrize("name", ["max", "min"])
def test_ties_are_shared_within_each_group(name: str, cpu: Any) -> None:
    x = cpu.array([[1.0, 1.0, 1.0], [2.0, 5.0, 5.0]])
    by_rows = grad(cpu.sum(f.__dict__[name](x, axis=1)), x).asnumpyarray()
    third = [1 / 3, 1 / 3, 1 / 3]
    np.testing.assert_allclose(by_rows, [third, [0, 0.5, 0.5] if name == "max" else [1, 0, 0]])
    everything = grad(cpu.sum(f.__dict__[name](x)), x).asnumpyarray()
    np.testing.assert_allclose(everything, [[0, 0, 0], [0, 0.5, 0.5]] if name == "max" else [third, [0, 0, 0]])


@pytest.mark.parametrize(
    ("name", "operands", "wanted"),
    [
        ("where", [[0.0, 1.0], [1.0, 1.0], [1.0, 1.0]], [[0, 0], [0, INF], [INF, 0]]),
        ("maximum", [[1.0, 2.0], [2.0, 1.0]], [[0, INF], [INF, 0]]),
        ("minimum", [[1.0, 2.0], [2.0, 1.0]], [[INF, 0], [0, INF]]),
        ("relu", [[-1.0, 2.0]], [[0, INF]]),
        ("safelog", [[1e-30, 2.0]], [[0, INF]]),
        ("max", [[1.0, 2.0]], [[0, INF]]),
        ("min", [[1.0, 2.0]], [[INF, 0]]),
        ("floor", [[1.5, 2.5]], [[0, 0]]),
    ],
)
def test_an_infinite_delta_reaches_only_what_was_chosen(name: str, operands: Any, wanted: Any, cpu: Any) -> None:
    tensors = [cpu.array(x) for x in operands]
    tree = f.__dict__[name](*tensors)
    gradients = Autodiff(tree, cpu, next_error=cpu.full(tree.shape, INF)).get_grad_asnumpyarray(tensors)
    np.testing.assert_array_equal(gradients, wanted)


@pytest.mark.parametrize("zeros", [1, 2, 3])
def test_a_product_with_zeros_has_second_derivatives(zeros: int, cpu: Any) -> None:
    values = np.array([0.0] * zeros + [2.0, 3.0, 5.0])[:4]
    x = cpu.array(values)
    first = grad(cpu.prod(x, keepdims=False), x)
    second = [grad(first_i, x).asnumpyarray() for first_i in (f.slice(first, i) for i in range(4))]
    wanted = [[0.0 if i == j else np.prod(np.delete(values, [i, j])) for j in range(4)] for i in range(4)]
    np.testing.assert_allclose(second, wanted)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_gradients_far_out_stay_finite(dtype: Any, cpu: Any) -> None:
    x = cpu.array(np.array([-300.0, -90.0, -20.0, 0.0, 20.0, 90.0, 300.0], dtype), dtype)
    for name in ("sig", "tanh", "relu", "erf", "arctan", "softmax", "log_softmax", "logsumexp"):
        gradient = grad(cpu.sum(f.__dict__[name](x)), x).asnumpyarray()
        assert np.isfinite(gradient).all(), f"{name}: {gradient}"


#: mpmath's functions of those that NumPy lacks, or that are made to be exact where a formula would not be.
EXACT = {
    "erf": mpmath.erf,
    "sig": lambda x: 1 / (1 + mpmath.exp(-x)),
    "sech2": lambda x: 1 / mpmath.cosh(x) ** 2,
    "sig2": lambda x: 1 / (1 + mpmath.power(2, -x)),
    "tanh2": lambda x: (mpmath.power(4, x) - 1) / (mpmath.power(4, x) + 1),
    "expm1": mpmath.expm1,
    "log1p": mpmath.log1p,
    "safelog": lambda x: mpmath.log(max(x, mpmath.exp(-50))),
}


@pytest.mark.parametrize("name", EXACT)
def test_values_to_the_last_places(name: str, cpu: Any) -> None:
    points = np.array([-700.0, -30, -5.5, -1, -0.3, -1e-3, -1e-9, -1e-200, 1e-200, 1e-9, 1e-3, 0.3, 1, 5.5, 30, 700])
    if name in ("log1p", "safelog"):
        points = points[points > -1]
    for backend_says in (f.__dict__[name](cpu.array(points)).asnumpyarray(), MEANINGS[name](points)):
        with mpmath.workdps(400):
            wanted = np.array([float(EXACT[name](mpmath.mpf(x))) for x in points])
        np.testing.assert_allclose(backend_says, wanted, rtol=8 * np.finfo(float).eps, atol=5e-324)


def test_every_op_without_numpys_is_told_by_mpmath() -> None:
    by_formula = {name for name, meaning in MEANINGS.items() if meaning.__name__ == "meaning" and name in OPS}
    elementwise = by_formula & {"erf", "sig", "sig2", "sech2", "tanh2", "safelog"}
    assert elementwise <= EXACT.keys()


def test_the_softmax_of_a_number_is_1(be64: Any) -> None:
    for x in (be64.array(np.float64(0.25)), be64.array([0.25])[0]):
        assert be64.softmax(x).asnumpyarray() == 1 and be64.log_softmax(x).asnumpyarray() == 0
        assert be64.log_softmax(x + 1).shape == ()


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_logarithm_of_a_softmax_near_1_is_exact(dtype: str, jit: bool) -> None:
    be = gen_backend("cpu", jit=jit)
    rows = np.array([[0, -20, -INF], [5, 5, -30], [3, 2.5, 2], [-40, -25, -INF], [1e4, 1e4 - 20, 0]], dtype)
    with mpmath.workdps(50):
        found = [[mpmath.mpf(float(x)) for x in row] for row in rows]
        wanted = [[x - mpmath.log(mpmath.fsum(map(mpmath.exp, row))) for x in row] for row in found]
        wanted = np.array([[float(x) for x in row] for row in wanted])
    got = be.log_softmax(be.array(rows, dtype), axis=1).asnumpyarray()
    np.testing.assert_allclose(got, wanted.astype(dtype), rtol=4 * np.finfo(dtype).eps)
    many = np.where(np.arange(3_000_000) < 2_500_000, 0, -1).astype(dtype)  # ties beyond what a total tells apart
    share = -np.log(2_500_000 + 500_000 * np.exp(-1))
    found = be.log_softmax(be.array(many, dtype)).asnumpyarray()[0]
    np.testing.assert_allclose(found, share, 8 * np.finfo(dtype).eps)
