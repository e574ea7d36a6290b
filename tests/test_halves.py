"""float16 in kernels: computed in float32 and rounded after each operation, so that values are NumPy's."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.blocks import in_blocks
from harness.expressions import ulps_between
from harness.halves import CLOSE, EXACT, exact_sums, halves, sums, wild

from backends import gen_backend, source
from backends.kernels.compiler import FLAGS, find_compiler

pytestmark = pytest.mark.usefixtures("folder")


@pytest.fixture
def be() -> Any:
    """What computes op by op."""
    return gen_backend("cpu", rng_seed=0, jit=False)


@pytest.fixture(params=["compiled", "blocks"])
def kernels(request: pytest.FixtureRequest) -> Any:
    """A backend that runs all it can as kernels."""
    if request.param == "blocks":
        with in_blocks(1 << 12, num_threads=2, rng_seed=0) as backend:
            yield backend
    elif find_compiler() is None:
        pytest.skip("no C compiler")
    else:
        yield gen_backend("cpu", rng_seed=0, jit=True)


@pytest.mark.parametrize("name", EXACT)
def test_values_are_numpys_to_the_bit(kernels: Any, be: Any, name: str) -> None:
    for ours, numpys in zip(EXACT[name](kernels), EXACT[name](be), strict=True):
        assert ours.dtype == numpys.dtype
        np.testing.assert_array_equal(ours, numpys)
        np.testing.assert_array_equal(np.signbit(ours[ours == 0]), np.signbit(numpys[numpys == 0]))


@pytest.mark.parametrize("name", CLOSE)
def test_reductions_in_one_walk_and_several(kernels: Any, be: Any, name: str) -> None:
    for ours, numpys in zip(CLOSE[name](kernels), CLOSE[name](be), strict=True):
        assert ours.dtype == numpys.dtype == np.float16
        np.testing.assert_allclose(ours, numpys, rtol=4e-3, atol=2e-3)


def test_sums_are_rounded_once(kernels: Any) -> None:
    for ours, exact in zip(sums(kernels), exact_sums(), strict=True):
        assert ours.dtype == np.float16 and ours.shape == exact.shape
        assert (ulps_between(ours, exact) <= 1).all()


@pytest.mark.skipif(shutil.which("gcc") is None or platform.machine() != "x86_64", reason="GCC for x86-64 tells")
def test_loops_are_vectorised(be: Any, tmp_path: Path) -> None:
    """float16 and doubles into float16, where a loop that is not would take ten times as long."""
    x, wide = be.array(halves(0, 9), np.float16), be.array(np.ones(9), "float64")
    for tree in (x * x + 0.5, be.cast(wide, "float16") - x, be.cast(x, "float64") * wide):
        (tmp_path / "kernel.c").write_text(source(tree)[0])
        command = [
            "gcc",
            *FLAGS,
            "-mavx2",
            "-fopenmp-simd",
            "-fopt-info-vec-optimized",
            "kernel.c",
            "-o",
            "kernel.so",
            "-lm",
        ]
        told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stderr
        assert told.count("loop vectorized using 32 byte vectors") >= 1, told


def test_they_are_one_kernel(be: Any) -> None:
    x, y = be.array(wild(0, 5, 7), np.float16), be.array(halves(1, 5, 7), np.float16)
    (text,) = source(be.softmax(be.cast(x, "float32") * y + 1e-3, axis=1))
    assert "from_half(y" in text and "to_half(v" not in text
    (text,) = source(be.exp(x) * y)
    assert "rounded((exp(v0)))" in text and "to_half(v" in text
    assert "half" not in source(be.ones((5, 7)) * 2)[0]
