"""NVRTC without a driver: what it makes of good and of bad source."""

from __future__ import annotations

import pytest

from tests.harness.nvrtc import ARCHITECTURES, NvrtcError, compile_all, compile_cuda, needs_nvrtc, version

pytestmark = needs_nvrtc

SCALE = """
extern "C" __global__ void __launch_bounds__(256) scale(const float *__restrict__ x, float *__restrict__ y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2 * x[i];
}
"""

TWO = """
extern "C" __global__ void first(float *x) { x[threadIdx.x] += 1; }
extern "C" __global__ void second(double *x)
{
    __shared__ double s[32];
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = sin(s[31 - threadIdx.x]);
}
"""

HALVES = """
#include <cuda_fp16.h>
#include <cuda_bf16.h>
extern "C" __global__ void add(__half *x, const __nv_bfloat16 *y)
{
    x[threadIdx.x] = __float2half_rn(__half2float(x[threadIdx.x]) + __bfloat162float(y[threadIdx.x]));
}
"""

# 64 sums in 32 registers: some of them are kept in memory.
SPILLING = """
extern "C" __global__ void __launch_bounds__(1024, 2) spill(const float *x, float *y)
{
    float s[64];
    for (int j = 0; j < 64; j++) s[j] = x[threadIdx.x + 1024 * j];
    for (int k = 1; k < 9; k++) {
#pragma unroll
        for (int j = 0; j < 64; j++) s[j] = s[j] * s[(j + k) % 64] + x[threadIdx.x + j * k];
    }
    for (int j = 0; j < 64; j++) y[threadIdx.x + 1024 * j] = s[j];
}
"""


def test_the_versions_that_the_architectures_need() -> None:
    assert version() >= (12, 8)


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("source", [SCALE, TWO, HALVES])
def test_a_good_source_compiles(source: str, arch: str) -> None:
    compiled = compile_cuda(source, arch)
    assert compiled.cubin.startswith(b"\x7fELF")
    assert all(0 < usage.registers <= 255 and usage.spill_stores == 0 for usage in compiled.usage.values())


def test_many_are_compiled_in_their_order() -> None:
    named = [SCALE.replace("scale", f"scale{i}") for i in range(10)]
    assert [list(compiled.usage) for compiled in compile_all(named, "sm_90")] == [[f"scale{i}"] for i in range(10)]
    with pytest.raises(NvrtcError, match="scale3"):
        compile_all([*named[:3], named[3].replace("x[i]", "z[i]"), *named[4:]], "sm_90")


def test_each_kernels_usage_is_its_own() -> None:
    usage = compile_cuda(TWO).usage
    assert set(usage) == {"first", "second"}
    assert usage["second"].registers > usage["first"].registers
    assert (usage["first"].shared, usage["second"].shared) == (0, 256)


def test_spills_are_read() -> None:
    usage = compile_cuda(SPILLING).usage["spill"]
    assert usage.registers <= 32
    assert usage.spill_stores > 0 and usage.spill_loads > 0


def test_options_reach_the_compiler() -> None:
    named = SPILLING.replace("(1024, 2)", "(BOUNDS)")
    assert compile_cuda(named, options=["--define-macro=BOUNDS=1024, 2"]).usage == compile_cuda(SPILLING).usage


def test_an_error_gives_the_log_and_the_source() -> None:
    told = r'(?s)for sm_80.*kernel\.cu\(5\): error.*"z" is undefined.*\n {3}5 .*y\[i\] = 2'
    with pytest.raises(NvrtcError, match=told):
        compile_cuda(SCALE.replace("x[i]", "z[i]"), "sm_80")


@pytest.mark.parametrize("extra", ["int unused;", "if (threadIdx.x < 0u) return;", "y[0] = 1 / 0;"])
def test_a_warning_is_an_error(extra: str) -> None:
    with pytest.raises(NvrtcError, match=r"kernel\.cu\(5\): warning"):
        compile_cuda(SCALE.replace("if (i", f"{extra} if (i"))


def test_an_unknown_architecture_is_an_error() -> None:
    with pytest.raises(NvrtcError, match="sm_11"):
        compile_cuda(SCALE, "sm_11")
