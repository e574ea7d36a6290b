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

RACE = r"""
extern "C" __global__ void k(int *x) { x[threadIdx.x / 2] += 1; }
"""

BLOCKS_RACE = r"""
extern "C" __global__ void k(int *x) { if (threadIdx.x == 0) x[0] = 1; }
"""

WARP_RACE = r"""
extern "C" __global__ void k(int *x)
{
    __shared__ int s[64];
    s[threadIdx.x] = x[threadIdx.x];
    __syncwarp();
    x[threadIdx.x] = s[threadIdx.x ^ 1];
}
"""
