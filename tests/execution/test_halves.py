"""float16 and bfloat16 in kernels: computed in float32, and rounded where a value is stored, or after each op."""

from __future__ import annotations

import ctypes
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.arrays import comparable
from harness.expressions import ulps_between
from harness.halves import CLOSE, EXACT, SIZES, exact_sums, halves, positive_numbers, sums, traps, wild

from backends import gen_backend, source
from backends.cpu.codegen.halves import narrow_functions
from backends.cpu.compiler import FLAGS, find_compiler
from backends.execution.printer_common import NARROW_NAMES
from optree import OpTreeNode, function, settings
from optree.compile.fusion import Kernel, fuse
from optree.compile.pipeline import decompose
from optree.compile.program import Sizes
from optree.dtypes import finfo, rounded


@pytest.fixture
def be() -> Any:
    """A backend that computes op by op."""
    return gen_backend("cpu", rng_seed=0, jit=False)


@pytest.fixture
def kernels() -> Any:
    """A backend that runs all it can as kernels."""
    if find_compiler() is None:
        pytest.skip("no C compiler")
    return gen_backend("cpu", rng_seed=0, jit=True)


@pytest.fixture(params=SIZES, ids=str)
def dtype(request: pytest.FixtureRequest) -> np.dtype:
    return request.param


def test_numbers_are_rounded_once(dtype: np.dtype) -> None:
    """To the nearest of all that there are, the even one of two, and half a unit beyond the largest to infinity."""
    values = np.abs(traps(dtype, "float64"))
    values = values[np.isfinite(values)]
    numbers = positive_numbers(dtype)
    numbers = np.append(numbers, 2 * numbers[-1] - numbers[-2])  # what stands for infinity
    above = np.searchsorted(numbers, values).clip(1, len(numbers) - 1)
    lower, upper = values - numbers[above - 1], numbers[above] - values
    nearest = np.where((upper < lower) | ((upper == lower) & (above % 2 == 0)), above, above - 1)
    np.testing.assert_array_equal(rounded(values, dtype).view(np.uint16), nearest)


@pytest.mark.matrix
@pytest.mark.parametrize("name", EXACT)
def test_rounded_after_each_op_values_are_numpys_to_the_bit(kernels: Any, be: Any, dtype: np.dtype, name: str) -> None:
    with settings.override(rounding="each"):
        found = EXACT[name](kernels, dtype)
    for ours, numpys in zip(found, EXACT[name](be, dtype), strict=True):
        assert ours.dtype == numpys.dtype
        ours, numpys = comparable(ours), comparable(numpys)
        np.testing.assert_array_equal(ours, numpys)
        np.testing.assert_array_equal(np.signbit(ours[ours == 0]), np.signbit(numpys[numpys == 0]))


@pytest.mark.matrix
@pytest.mark.parametrize("name", CLOSE)
def test_reductions_in_one_walk_and_several(kernels: Any, be: Any, dtype: np.dtype, name: str) -> None:
    unit = float(finfo(dtype).eps)
    for ours, numpys in zip(CLOSE[name](kernels, dtype), CLOSE[name](be, dtype), strict=True):
        assert ours.dtype == numpys.dtype == dtype
        ours, numpys = comparable(ours), comparable(numpys)
        np.testing.assert_allclose(ours, numpys, rtol=4 * unit, atol=2 * unit)


def test_a_kernel_rounds_where_it_stores(dtype: np.dtype) -> None:
    """To half a unit, and the errors of float32: so it is at least as accurate as NumPy, which rounds after each op."""
    be, chance = gen_backend("cpu", jit=True), np.random.RandomState(0)
    values = [chance.uniform(0.5, 2, (40, 67)).astype(dtype) for _ in range(4)]
    a, b, c, d = (be.array(x, dtype) for x in values)
    wide = [x.astype(np.float64) for x in values]
    exact = wide[0] * wide[1] + wide[2] * wide[3] - wide[0]
    _, found = function([], [a * b + c * d, a * b + c * d - a])()  # what is stored is used as it was before
    unit = np.ldexp(float(finfo(dtype).eps), np.frexp(exact)[1] - 1)
    error = np.abs(found.get().astype(np.float64) - exact)
    assert (error <= 0.5 * unit + 2.0**-20).all()
    with settings.override(rounding="each"):
        by_each_op = (a * b + c * d - a).asnumpyarray().astype(np.float64)
    assert np.abs(by_each_op - exact).max() > 1.5 * error.max()


def test_values_are_rounded_where_they_decide(dtype: np.dtype) -> None:
    """Another kernel may have the value as it was stored: a comparison with it, an index, or an integer is NumPy's."""
    be, numpy = gen_backend("cpu", jit=True), gen_backend("cpu", jit=False)
    x, y = halves(dtype, 0, 30, 50), halves(dtype, 1, 30, 50)
    least = float(positive_numbers(dtype)[1])  # a quarter of it is rounded to 0
    largest = rounded((x.astype(np.float32) * y.astype(np.float32)).max(axis=1, keepdims=True), dtype)
    trees = (
        lambda be, x, y, m: be.sum(x * y == m, axis=1),
        lambda be, x, y, m: be.where(x * y < m, x, y),
        lambda be, x, y, m: be.argmax(x * y, axis=1),
        lambda be, x, y, m: be.cast(x * y * 8, "int32"),
        lambda be, x, y, m: be.isinf(x * float(finfo(dtype).max)),
        lambda be, x, y, m: be.logical_and(x * least * 0.125, y),
        lambda be, x, y, m: be.any(x * least * 0.125, axis=1),
        lambda be, x, y, m: be.all(x * least * 0.125, axis=0),
        lambda be, x, y, m: be.where(be.logical_or(be.max(x, axis=1) * least * 0.125, be.any(x * m, axis=1)), x, y),
    )
    for tree in trees:
        ours, numpys = (
            tree(b, *(b.array(each, dtype) for each in (x, y, largest))).asnumpyarray() for b in (be, numpy)
        )
        np.testing.assert_array_equal(ours, numpys)


def test_a_cast_rounds_where_it_is_written(dtype: np.dtype) -> None:
    be = gen_backend("cpu", jit=True)
    x = halves(dtype, 0, 300)
    wide = be.array(x, dtype) * 0.5 * be.array(np.linspace(1, 2, 300), "float32")
    found = be.cast(be.cast(wide, dtype), "float32") - wide
    rounded_once = rounded(x.astype("f4") * np.float32(0.5) * np.linspace(1, 2, 300, dtype="f4"), dtype)
    np.testing.assert_array_equal((found + wide).asnumpyarray().astype(dtype), rounded_once)
    assert np.abs(found.asnumpyarray()).max() > 0


def test_the_mean_of_a_variance_is_computed_once(dtype: np.dtype) -> None:
    be = gen_backend("cpu")
    x = be.array(halves(dtype, 0, 5, 70), dtype)
    (text,) = source((x - be.mean(x, axis=1)) / be.sqrt(be.var(x, axis=1) + 1e-3))
    assert len(re.findall(r"double r\d+ = 0;", text)) == 2


def test_sums_are_rounded_once(kernels: Any, dtype: np.dtype) -> None:
    for ours, exact in zip(sums(kernels, dtype), exact_sums(dtype), strict=True):
        assert ours.dtype == dtype and ours.shape == exact.shape
        assert (ulps_between(ours, exact) <= 1).all()


@pytest.mark.matrix(least=1)
@pytest.mark.skipif(shutil.which("gcc") is None or platform.machine() != "x86_64", reason="GCC for x86-64 tells")
@pytest.mark.parametrize("flags", [["-mavx2"], ["-mavx2", "-mf16c"]], ids=" ".join)
def test_loops_are_vectorised(be: Any, dtype: np.dtype, flags: list[str], tmp_path: Path) -> None:
    """Narrow numbers and doubles into them, where a loop that is not would take ten times as long."""
    x, wide = be.array(halves(dtype, 0, 9), dtype), be.array(np.ones(9), "float64")
    for tree in (x * x + 0.5, be.cast(wide, dtype) - x, be.cast(x, "float64") * wide):
        (tmp_path / "kernel.c").write_text(source(tree)[0])
        command = [
            "gcc",
            *FLAGS,
            *flags,
            "-fopenmp-simd",
            "-fno-tree-sink",
            "-fno-thread-jumps",
            "-fopt-info-vec-optimized",
            "kernel.c",
            "-o",
            "kernel.so",
            "-lm",
        ]
        told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stderr
        assert told.count("loop vectorized using 32 byte vectors") >= 1, told


#: Loops over the conversions, on a number of lanes.
LANES = """
#include <math.h>
#include <stdint.h>
{conversions}
void widen(const half *x, float *y, int64_t n)
{{
#pragma omp simd simdlen({lanes})
    for (int64_t i = 0; i < n; i++)
        y[i] = from_half(x[i]);
}}
void narrow(const float *x, half *y, int64_t n)
{{
#pragma omp simd simdlen({lanes})
    for (int64_t i = 0; i < n; i++)
        y[i] = to_half(x[i]);
}}
"""


@pytest.mark.skipif(shutil.which("gcc") is None or platform.machine() != "x86_64", reason="GCC for x86-64")
@pytest.mark.parametrize("lanes", [1, 4, 8, 16])
def test_conversions_on_every_number_of_lanes(lanes: int, tmp_path: Path) -> None:
    """By instructions where the processor has them; elements beyond the last whole vector are scalar."""
    (tmp_path / "kernel.c").write_text(LANES.format(conversions=narrow_functions(["float16"]), lanes=lanes))
    command = ["gcc", *FLAGS, "-march=native", "-mprefer-vector-width=512", "-fopenmp-simd", "kernel.c"]
    subprocess.run([*command, "-o", "kernel.so"], cwd=tmp_path, check=True)
    library = ctypes.CDLL(str(tmp_path / "kernel.so"))
    bits = np.arange(1 << 16, dtype="uint16")
    numbers = bits.view("float16")
    midpoints = np.nextafter(numbers.astype("float32"), np.float32(np.inf)), numbers.astype("float32") * 1.00048828125
    for values in (numbers[5:], *midpoints):
        if values.dtype == np.float16:
            found = np.empty(values.size, "float32")
            library.widen(values.ctypes, found.ctypes, ctypes.c_int64(values.size))
        else:
            found = np.empty(values.size, "float16")
            library.narrow(values.ctypes, found.ctypes, ctypes.c_int64(values.size))
        with np.errstate(over="ignore"):
            wanted = values.astype(found.dtype)
        np.testing.assert_array_equal(found, wanted)
        np.testing.assert_array_equal(np.signbit(found), np.signbit(wanted))


def test_they_are_one_kernel(be: Any, dtype: np.dtype) -> None:
    name = NARROW_NAMES[str(dtype)]
    x, y = be.array(wild(dtype, 0, 5, 7), dtype), be.array(halves(dtype, 1, 5, 7), dtype)
    (text,) = source(be.softmax(be.cast(x, "float32") * y + 1e-3, axis=1))
    assert f"from_{name}(y" in text and f"to_{name}(v" not in text
    (text,) = source(be.exp(x) * y)
    assert f" = rounded_{name}(" not in text
    with settings.override(rounding="each"):
        (text,) = source(be.exp(x) * y)
    assert f"rounded_{name}((exp(v0)))" in text
    assert name not in source(be.ones((5, 7)) * 2)[0]


@pytest.mark.matrix(least=4)
@pytest.mark.parametrize("size", [1, 15, 16, 17, 255, 256, 257, 1023, 1025, 5000])
def test_float16_is_converted_in_blocks(size: int) -> None:
    """Of any number of whole vectors and more; what is both used and stored is used as it was before."""
    be = gen_backend("cpu", jit=True)
    values = halves(np.dtype("float16"), 3, 3, 2 * size)
    x, y, z = (be.array(row[:size], "float16") for row in values)
    a, b = values[0, :size], values[1, :size]
    tree = x * y + 0.1
    assert "widen_halves(" in source(tree)[0]
    root, both = function([], [be.abs(tree) * 3, tree])()
    wide = a.astype("float32") * b + np.float32(np.float16(0.1))
    np.testing.assert_array_equal(both.get(), wide.astype("float16"))
    np.testing.assert_array_equal(root.get(), (np.abs(wide) * 3).astype("float16"))
    mixed = be.array(np.linspace(1, 2, size), "float32")
    np.testing.assert_array_equal((x * mixed).asnumpyarray(), a * np.linspace(1, 2, size).astype("float32"))
    np.testing.assert_array_equal(be.cast(x * mixed, "float16").asnumpyarray(), (a * mixed.get()).astype("float16"))
    doubles = be.array(np.linspace(1, 2, size), "float64")
    np.testing.assert_array_equal(be.cast(doubles, "float16").asnumpyarray(), doubles.get().astype("float16"))
    z[:] = z - y
    np.testing.assert_array_equal(z.get(), values[2, :size] - b)
    strided = be.array(values, "float16")[:, ::2]
    np.testing.assert_array_equal((strided + 1).asnumpyarray(), values[:, ::2] + np.float16(1))
    np.testing.assert_array_equal((strided > x).asnumpyarray(), values[:, ::2] > a)
    target = be.zeros((3, 2 * size), dtype="float16")
    target[:, ::2] = strided * x
    np.testing.assert_array_equal(target.get()[:, ::2], values[:, ::2] * a)


def test_constants_of_float16_are_rounded_once() -> None:
    """And not converted in blocks for each element."""
    be = gen_backend("cpu", jit=True)
    for tree in (np.full_like(be.ones((3, 500), dtype="float16"), 1), be.ones((1, 500), dtype="float16") * 0.1):
        wanted = 1 if tree.shape == (3, 500) else np.float16(0.1)
        np.testing.assert_array_equal(tree.asnumpyarray(), np.full(tree.shape, wanted, "float16"))
    text = "".join(source(np.full_like(be.ones((3, 500), dtype="float16"), 1)))
    assert "round_to_halves(b" not in text


def test_they_are_copied_as_they_are(kernels: Any, dtype: np.dtype) -> None:
    """By NumPy, not by way of float32, which takes several times as long: nans too keep their bits."""
    bits = np.arange(1 << 16, dtype="uint16").reshape(256, 256)
    x, target = (kernels.array(array.view(dtype), dtype=dtype) for array in (bits, np.zeros_like(bits)))
    for value, wanted in ((x, bits), (x.T, bits.T), (x[3], np.broadcast_to(bits[3], bits.shape))):
        program = decompose(kernels.program([OpTreeNode.build("assign", target, value)]))
        assert not any(isinstance(step, Kernel) for step in fuse(program, Sizes(program)))
        target[:] = value
        np.testing.assert_array_equal(target.get().view("uint16"), wanted)
