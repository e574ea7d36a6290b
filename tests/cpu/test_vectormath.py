"""The C library's vector functions, as `VECTOR_MATH` declares them: special values and accuracy."""

from __future__ import annotations

import ctypes

import mpmath
import numpy as np
import pytest

from backends.cpu.codegen.vector_math import FIRST, LATER, VECTOR_MATH
from backends.cpu.compiler import compile_source
from tests.harness.compiling import needs_compiler

pytestmark = needs_compiler

#: In units in the last place.
BOUND = 4.0

TWO = ("pow", "atan2", "hypot")
EXACT = {
    "exp2": lambda x: mpmath.power(2, x),
    "log2": lambda x: mpmath.log(x, 2),
    "pow": mpmath.power,
    "log10": mpmath.log10,
    **{name: getattr(mpmath, name) for name in "log1p expm1 erf erfc cbrt atan2 hypot".split()},
    **{name: getattr(mpmath, name) for name in "sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh".split()},
    "exp": mpmath.exp,
    "log": mpmath.log,
}
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 3.0, -3.0, 1e5, 1e10, -1e10]


def function(name, dtype):
    """A function of C over arrays."""
    kind, suffix = ("float", "f") if dtype == np.float32 else ("double", "")
    inputs = ["x", "y"][: 1 + (name in TWO)]
    parameters = "".join(f", const {kind} *restrict {x}" for x in inputs)
    source = f"""{VECTOR_MATH}
void f({kind} *restrict z{parameters}, long n) {{
    #pragma omp simd
    for (long i = 0; i < n; i++) z[i] = {name}{suffix}({", ".join(f"{x}[i]" for x in inputs)});
}}
"""
    call = compile_source(source, "f", (ctypes.c_void_p,) * (1 + len(inputs)) + (ctypes.c_long,))

    def run(*arrays):
        z = np.empty_like(arrays[0])
        call(z.ctypes.data, *(x.ctypes.data for x in arrays), z.size)
        return z

    return run


def expected(name, dtype, *arrays):
    """The scalar function's values: those of the C library, one number at a time."""
    library = ctypes.CDLL(None)
    scalar = getattr(library, name + ("f" if dtype == np.float32 else ""))
    c = ctypes.c_float if dtype == np.float32 else ctypes.c_double
    scalar.argtypes, scalar.restype = [c] * len(arrays), c
    return np.array([scalar(*map(float, row)) for row in zip(*arrays, strict=True)], dtype)


@pytest.mark.matrix
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", [*FIRST, *LATER, *TWO])
def test_special_values_are_those_of_the_scalar_functions(name, dtype):
    info = np.finfo(dtype)
    small = [
        info.tiny,
        -info.tiny,
        info.smallest_subnormal,
        -info.smallest_subnormal,
        info.tiny / 3,
        info.max,
        info.min,
    ]
    x = np.array([*SPECIAL, *small], dtype)
    arrays = [x] if name not in TWO else [a.ravel() for a in np.meshgrid(x, x)]
    arrays = [np.repeat(a, 16) for a in arrays]  # each value in each place of a vector
    got, wanted = function(name, dtype)(*arrays), expected(name, dtype, *arrays)
    assert np.array_equal(np.isnan(got), np.isnan(wanted))
    whole = ~np.isfinite(wanted) | (wanted == 0)
    assert np.array_equal(got[whole], wanted[whole], equal_nan=True)
    signed = whole & ~np.isnan(wanted)
    assert np.array_equal(np.signbit(got[signed]), np.signbit(wanted[signed]))
    rest = ~whole
    near = np.abs(got[rest] - wanted[rest]) / BOUND
    assert np.all(near <= np.spacing(np.minimum(np.abs(wanted[rest]), info.max / 2)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", [*FIRST, *LATER, *TWO])
def test_values_are_accurate(name, dtype):
    rng = np.random.default_rng(0)
    within = 1.0 if name in ("asin", "acos", "atanh") else 20.0
    lowest = 1.0 if name == "acosh" else 0.0 if name in ("log", "log2", "log10", "log1p", "pow", "cbrt") else -within
    arrays = [rng.uniform(lowest, within, 160).astype(dtype) for _ in range(1 + (name in TWO))]
    if name in ("sin", "cos", "tan"):  # arguments that take every bit of pi
        arrays[0][::4] *= np.asarray(10.0 ** rng.uniform(0, 30, 40), dtype)
    got = function(name, dtype)(*arrays)
    with mpmath.workprec(400):
        exact = [EXACT[name](*map(float, row)) for row in zip(*arrays, strict=True)]
        units = np.spacing(np.abs(np.array([float(value) for value in exact], dtype)))
        errors = [abs(mpmath.mpf(float(g)) - e) / float(u) for g, e, u in zip(got, exact, units, strict=True)]
    assert max(errors) <= BOUND
