"""CUDA kernels as a person would write them: what tests/cuda_on_cpu is tested with."""

from __future__ import annotations

# One block a row; the row is read three times.
SOFTMAX = r"""
typedef long long int64_t;
#define MINUS_INFINITY __int_as_float(0xff800000)

static __device__ __forceinline__ float largest(float x)
{
    for (int offset = 16; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
    return x;
}

static __device__ __forceinline__ float total(float x)
{
    for (int offset = 16; offset > 0; offset /= 2) x += __shfl_down_sync(0xffffffffu, x, offset);
    return x;
}

extern "C" __global__ void __launch_bounds__(256)
softmax(const float *__restrict__ x, float *__restrict__ y, int64_t n)
{
    __shared__ float parts[32];
    const float *row = x + blockIdx.x * n;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    float top = MINUS_INFINITY, sum = 0;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) top = fmaxf(top, row[i]);
    top = largest(top);
    if (lane == 0) parts[warp] = top;
    __syncthreads();
    top = largest(lane < warps ? parts[lane] : MINUS_INFINITY);
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) sum += expf(row[i] - top);
    sum = total(sum);
    __syncthreads();
    if (lane == 0) parts[warp] = sum;
    __syncthreads();
    if (warp == 0) {
        sum = total(lane < warps ? parts[lane] : 0.0f);
        if (lane == 0) parts[0] = sum;
    }
    __syncthreads();
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) y[blockIdx.x * n + i] = expf(row[i] - top) / parts[0];
}
"""

# A block takes 32 columns; its rows of threads join through dynamic shared memory.
COLUMNS = r"""
extern "C" __global__ void columns(const double *__restrict__ x, double *__restrict__ y, int rows, int count)
{
    extern __shared__ double tile[];
    const int column = blockIdx.x * 32 + threadIdx.x;
    double sum = 0;
    if (column < count)
        for (int row = threadIdx.y; row < rows; row += blockDim.y) sum += x[row * count + column];
    tile[threadIdx.y * 33 + threadIdx.x] = sum;
    __syncthreads();
    for (int half = blockDim.y / 2; half > 0; half /= 2) {
        if (threadIdx.y < half) tile[threadIdx.y * 33 + threadIdx.x] += tile[(threadIdx.y + half) * 33 + threadIdx.x];
        __syncthreads();
    }
    if (threadIdx.y == 0 && column < count) y[column] = tile[threadIdx.x];
}
"""

# The block that comes last adds up what the others have left.
TWO_STAGES = r"""
extern "C" __global__ void add_up(const float *x, float *parts, unsigned *finished, float *y, int n)
{
    __shared__ float s[128];
    __shared__ bool last;
    float sum = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += x[i];
    s[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        sum = 0;
        for (int i = 0; i < blockDim.x; i++) sum += s[i];
        parts[blockIdx.x] = sum;
        __threadfence();
        last = atomicInc(finished, gridDim.x - 1) == gridDim.x - 1;  // the last leaves it 0
    }
    __syncthreads();
    if (last && threadIdx.x == 0) {
        __threadfence();
        sum = 0;
        for (int i = 0; i < gridDim.x; i++) sum += parts[i];
        *y = sum;
    }
}
"""

# 16 bytes at once, and the rest one by one.
COPY = r"""
extern "C" __global__ void copy(const float *__restrict__ x, float *__restrict__ y, unsigned n)
{
    const unsigned first = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;
    for (unsigned i = first; i < n / 4; i += step) {
        const float4 v = ((const float4 *)x)[i];
        ((float4 *)y)[i] = make_float4(v.x, v.y, v.z, v.w);
    }
    for (unsigned i = n / 4 * 4 + first; i < n; i += step) y[i] = x[i];
}
"""

# What a warp does without shared memory.
WARPS = r"""
extern "C" __global__ void warps(const int *x, int *sums, unsigned *ballots, int *neighbours)
{
    const int lane = threadIdx.x & 31, mine = x[threadIdx.x];
    const unsigned half = lane < 16 ? 0x0000ffffu : 0xffff0000u;
    int sum = mine;
    for (int offset = 8; offset > 0; offset >>= 1) sum += __shfl_down_sync(half, sum, offset, 16);
    sums[threadIdx.x] = __shfl_sync(half, sum, 0, 16);
    ballots[threadIdx.x] = __ballot_sync(0xffffffffu, mine > 0);
    neighbours[threadIdx.x] = __shfl_up_sync(0xffffffffu, mine, 1);
}
"""

HALVES = r"""
#include <cuda_fp16.h>
#include <cuda_bf16.h>

extern "C" __global__ void halves(const __half *x, const __half *y, __half *z, __nv_bfloat16 *b, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    z[i] = __float2half_rn(__half2float(x[i]) * __half2float(y[i]));
    b[i] = __float2bfloat16_rn(__half2float(x[i] + y[i]));
}
"""

# One struct by value, as launchers like it.
STRUCT = r"""
struct Axis { const double *x; int step; };
struct Given { Axis axes[2]; double *y; float scale; signed char sign; };

extern "C" __global__ void scale(Given given, int n)
{
    const int i = threadIdx.x;
    if (i >= n) return;
    double sum = 0;
    for (const Axis &axis : given.axes) sum += axis.x[i * axis.step];
    given.y[i] = given.sign * given.scale * sum;
}
"""

# What has a name of its own in CUDA. Each result stands for itself: see FUNCTIONS in test_cuda_on_cpu.py.
FUNCTIONS = r"""
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;

extern "C" __global__ void functions(const double *x, double *y)
{
    const float f = (float)x[0];
    const uint32_t u = 0xdeadbeefu;
    int i = 0;
    y[i++] = __umulhi(u, 0xd2511f53u);
    y[i++] = (double)(__umul64hi(0xfedcba9876543210ull, 1ull << 40));
    y[i++] = __popc(u) + 100 * __clz(0xff) + 10000 * __ffs(48);
    y[i++] = __brev(6u);
    y[i++] = __uint_as_float(0x7f800000u);
    y[i++] = __float_as_uint(f);
    y[i++] = __longlong_as_double(0x3ff8000000000000ll);
    y[i++] = __float2int_rz(1e20f) + (double)__float2uint_rn(-3.0f) + (double)__double2ll_rn(-2.5);
    y[i++] = (double)__double2ll_rz(1e300);
    y[i++] = min(3, -4) + max(2.5f, f) + min(1.5, 2.5) + max(7u, 9u) + (double)max(1ll, 5ll);
    y[i++] = rsqrtf(f) - rsqrt((double)f) < 1e-7;
    y[i++] = sin(f) == sinf(f);
    y[i++] = fmaf(f, f, 1) + fma(x[0], x[0], 1.0) + __fadd_rn(f, 1) + __dmul_rn(x[0], 3);
    y[i++] = copysign(2.0, -x[0]) + fabsf(-f) + rint(2.5) + (signbit(-f) != 0) + (isnan(f) != 0);
    y[i++] = __ldg(x) + __ldcs(x);
    y[i++] = make_uint4(1, 2, 3, 4).w + make_float2(f, 2).y + sizeof(double4);
    y[i++] = __funnelshift_l(u, 1u, 8) + (double)__mulhi(-5, 1 << 30);
    y[i++] = warpSize + blockDim.y + gridDim.z;
    __shared__ unsigned counter;
    counter = 5;
    y[i++] = atomicAdd(&counter, 3u);
    y[i++] = atomicMax(&counter, 20u);
    y[i++] = atomicCAS(&counter, 20u, 1u);
    y[i++] = counter;
}
"""

# Each with a fault, and what is said of it.
DIVERGENT_BARRIER = r"""
extern "C" __global__ void k(int *x)
{
    if (threadIdx.x < 40) __syncthreads();
    x[threadIdx.x] = 1;
}
"""

TWO_BARRIERS = r"""
extern "C" __global__ void k(int *x)
{
    if (threadIdx.x < 32)
        __syncthreads();
    else
        __syncthreads();
    x[threadIdx.x] = 1;
}
"""

ENDED_LANES = r"""
extern "C" __global__ void k(int *x)
{
    if (threadIdx.x >= 20) return;
    x[threadIdx.x] = __shfl_xor_sync(0xffffffffu, x[threadIdx.x], 1);
}
"""

OTHER_MASKS = r"""
extern "C" __global__ void k(int *x)
{
    x[threadIdx.x] = __shfl_down_sync(threadIdx.x & 1 ? 0xffffffffu : 0x55555555u, x[threadIdx.x], 2);
}
"""

DISAGREEING_MASKS = r"""
extern "C" __global__ void k(int *x)
{
    if (threadIdx.x < 3) x[threadIdx.x] = __shfl_sync(threadIdx.x == 0 ? 3u : 7u, x[threadIdx.x], 0);
}
"""

NOT_IN_MASK = r"""
extern "C" __global__ void k(int *x)
{
    x[threadIdx.x] = __shfl_down_sync(0x0000ffffu, x[threadIdx.x], 1);
}
"""

MISALIGNED = r"""
extern "C" __global__ void k(int *x)
{
    const int4 v = *(const int4 *)(x + 1);
    x[0] = v.w;
}
"""

STATIC_OVERRUN = r"""
extern "C" __global__ void k(int *x)
{
    __shared__ int s[64];
    s[threadIdx.x + 1] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = s[threadIdx.x];
}
"""

# As STATIC_OVERRUN, behind a pointer: the array's length is not seen.
HIDDEN_OVERRUN = r"""
extern "C" __global__ void k(int *x)
{
    __shared__ int s[64];
    int *p = s + threadIdx.x;
    p[1] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = p[0];
}
"""

DYNAMIC_OVERRUN = r"""
extern "C" __global__ void k(int *x)
{
    extern __shared__ int s[];
    s[threadIdx.x + 1] = x[threadIdx.x];
}
"""

OVERRUN = r"""
extern "C" __global__ void k(int *x) { x[threadIdx.x + 1] = 1; }
"""

WILD = r"""
extern "C" __global__ void k(int *x) { x[(long long)threadIdx.x << 40] = 1; }
"""

DIVISION = r"""
extern "C" __global__ void k(int *x) { x[0] = 7 / (x[0] - x[0]); }
"""

ENDLESS = r"""
extern "C" __global__ void k(int *x)
{
    while (*(volatile int *)x == 0) {
    }
}
"""

DEEP = r"""
extern "C" __global__ void k(int *x)
{
    volatile int room[100000];
    for (int i = 0; i < 100000; i++) room[i] = x[0];
}
"""

RACE = r"""
extern "C" __global__ void k(int *x) { x[threadIdx.x / 2] += 1; }
"""

# The first thread waits at the second barrier when the other leaves the first.
RACE_BETWEEN = r"""
extern "C" __global__ void k(int *x)
{
    __syncthreads();
    if (threadIdx.x == 0) x[0] = 1;
    if (threadIdx.x == 1) x[1] = x[0];
    __syncthreads();
}
"""

BLOCKS_RACE = r"""
extern "C" __global__ void k(int *x) { if (threadIdx.x == 0) x[0] = 1; }
"""

WARP_RACE_BETWEEN = RACE_BETWEEN.replace("__syncthreads", "__syncwarp")

WARP_RACE = r"""
extern "C" __global__ void k(int *x)
{
    __shared__ int s[64];
    s[threadIdx.x] = x[threadIdx.x];
    __syncwarp();
    x[threadIdx.x] = s[threadIdx.x ^ 1];
}
"""


def without_each(text: str, source: str) -> list[str]:
    """The source with each occurrence of a text left out in turn."""
    parts = source.split(text)
    return [text.join(parts[:i]) + text.join(parts[i:]) for i in range(1, len(parts))]
