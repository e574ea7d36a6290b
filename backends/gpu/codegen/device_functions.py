"""The functions that CUDA kernels call, in CUDA C++."""

from __future__ import annotations

#: Vectorised loads and stores.
HEAD = """#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif

template <class T, int N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Vector { T at[N]; };

template <int N, class T> __device__ __forceinline__ Vector<T, N> loaded(const T *p)
{
    return *(const Vector<T, N> *)p;
}

template <int N, class T> __device__ __forceinline__ Vector<T, N> loaded(const T *p, int first, int count)
{
    if (first == 0 && count == N)
        return loaded<N>(p);
    Vector<T, N> found;
    #pragma unroll
    for (int e = 0; e < N; e++)
        found.at[e] = e >= first && e < count ? p[e] : T();
    return found;
}

template <int N, class T> __device__ __forceinline__ void store(T *p, const Vector<T, N> &values)
{
    *(Vector<T, N> *)p = values;
}

// Beside stores of single elements, NVRTC would split a plain one into these.
template <int N, class T> __device__ __forceinline__ void store_whole(T *p, const Vector<T, N> &values)
{
    if (sizeof(T) * N == 16)
        __stwb((uint4 *)p, *(const uint4 *)&values);
    else if (sizeof(T) * N == 8)
        __stwb((uint2 *)p, *(const uint2 *)&values);
    else
        store(p, values);
}

template <int N, class T> __device__ __forceinline__ void store(T *p, const Vector<T, N> &values, int first, int count)
{
    if (first == 0 && count == N)
        return store_whole(p, values);
    #pragma unroll
    for (int e = 0; e < N; e++)
        if (e >= first && e < count)
            p[e] = values.at[e];
}
"""

#: Conversions of narrow dtypes.
NARROW_CONVERSIONS = {
    "float16": """#include <cuda_fp16.h>

__device__ __forceinline__ float from_half(__half x) { return __half2float(x); }
__device__ __forceinline__ __half to_half(float x) { return __float2half_rn(x); }
__device__ __forceinline__ __half to_half(double x) { return __double2half(x); }
template <class T> __device__ __forceinline__ __half to_half(T x) { return __float2half_rn((float)x); }
template <class T> __device__ __forceinline__ float rounded_half(T x) { return from_half(to_half(x)); }
__device__ __forceinline__ void store_pair(__half *to, float x, float y) { *(__half2 *)to = __floats2half2_rn(x, y); }
__device__ __forceinline__ void store_pair(__half *to, double x, double y) { to[0] = to_half(x), to[1] = to_half(y); }
""",
    "bfloat16": """#include <cuda_bf16.h>

__device__ __forceinline__ float from_bfloat(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float rounded_bfloat(float x)
{
    // A pair: single numbers are converted by the slow pipe of capability 9.0, and shifted to be floats.
    const __nv_bfloat162 pair = __floats2bfloat162_rn(0.0f, x);
    return __uint_as_float(*(const unsigned int *)&pair);
}
__device__ __forceinline__ float rounded_bfloat(double x) { return __bfloat162float(__double2bfloat16(x)); }
template <class T> __device__ __forceinline__ float rounded_bfloat(T x) { return rounded_bfloat((double)x); }
template <class T> __device__ __forceinline__ __nv_bfloat16 to_bfloat(T x)
{
    return __ushort_as_bfloat16((unsigned short)(__float_as_uint(rounded_bfloat(x)) >> 16));
}
__device__ __forceinline__ void store_pair(__nv_bfloat16 *to, float x, float y)
{
    *(__nv_bfloat162 *)to = __floats2bfloat162_rn(x, y);
}
__device__ __forceinline__ void store_pair(__nv_bfloat16 *to, double x, double y)
{
    to[0] = to_bfloat(x), to[1] = to_bfloat(y);
}
""",
}

#: The conversion of a vector to a narrow dtype, by pairs: an instruction converts two floats.
NARROWED = """
template <class T, class X, int N> __device__ __forceinline__ Vector<T, N> narrowed(const Vector<X, N> &x)
{
    Vector<T, N> found;
    #pragma unroll
    for (int e = 0; e < N; e += 2)
        store_pair(&found.at[e], x.at[e], x.at[e + 1]);
    return found;
}
"""

#: Integer division by an invariant number, as multiplication and shift (`backends.gpu.kernel.divisor`).
QUOTIENT = """
__device__ __forceinline__ int quotient(int number, long long divisor)
{
    return (int)(__umulhi(2u * (unsigned int)number, (unsigned int)divisor) >> (int)(divisor >> 32));
}
"""

#: The numbers of a draw at consecutive indices: each block of four is made once.
DRAWS = """
template <int N, float (*DRAW)(unsigned long long, unsigned long long, long long)>
__device__ __forceinline__ Vector<float, N> drawn(unsigned long long seed, unsigned long long counter, long long i)
{
    const int blocks = (N + 3) / 4, from = (int)(i & 3);
    const long long start = i & ~3LL;
    float numbers[4 * blocks + 4] = {};
    #pragma unroll
    for (int j = 0; j < 4 * blocks; j++)
        numbers[j] = DRAW(seed, counter, start + (j & ~3) | j & 3);
    if (from + N > 4 * blocks) {
        #pragma unroll
        for (int j = 4 * blocks; j < 4 * blocks + 4; j++)
            numbers[j] = DRAW(seed, counter, start + (j & ~3) | j & 3);
    }
    #pragma unroll
    for (int j = 0; j < N + 1; j++)
        numbers[j] = from & 2 ? numbers[j + 2] : numbers[j];
    Vector<float, N> found;
    #pragma unroll
    for (int e = 0; e < N; e++)
        found.at[e] = from & 1 ? numbers[e + 1] : numbers[e];
    return found;
}
"""

#: Extremes of float32 that are nan where one operand is: an instruction from capability 8.0 on, and three before.
EXTREMES = "".join(
    f"""
__device__ __forceinline__ float {name}(float x, float y)
{{
#if __CUDA_ARCH__ >= 800
    float found;
    asm("{instruction}.NaN.f32 %0, %1, %2;" : "=f"(found) : "f"(x), "f"(y));
    return found;
#else
    return y {further} x || y != y ? y : x;
#endif
}}
"""
    for name, instruction, further in (("largest", "max", ">"), ("smallest", "min", "<"))
)

#: The function of an extreme, by the value that its reduction starts with.
EXTREME_OF = {"{lowest}": "largest({0}, {1})", "{highest}": "smallest({0}, {1})"}

#: Reductions across a team. No thread overwrites shared memory before all have read it: where two arrays alternate
#: (`part_arrays`), the reduction in between has a barrier; a block has one before its next outer index; and columns
#: are reduced one after the other.
TEAM_REDUCTIONS = {
    "warp": """
template <class T, class J> __device__ __forceinline__ T over_lanes(T x, J join, int lanes)
{
    #pragma unroll
    for (int offset = lanes / 2; offset > 0; offset /= 2)
        x = join(x, (T)__shfl_xor_sync(~0u, x, offset));
    return (T)__shfl_sync(~0u, x, 0, lanes);
}
""",
    "block": """
template <class T, class J> __device__ __forceinline__ T over_block(T x, J join, T *parts)
{
    const int warps = blockDim.x / 32;
    x = over_lanes(x, join, 32);
    if (threadIdx.x % 32 == 0)
        parts[threadIdx.x / 32] = x;
    __syncthreads();
    return over_lanes(parts[threadIdx.x & (warps - 1)], join, warps);
}
""",
    "columns": """
template <class T, class J> __device__ __forceinline__ T over_column(T x, J join, T *parts, int width)
{
    parts[threadIdx.x] = x;
    __syncthreads();
    for (int offset = blockDim.x / 2; offset >= width; offset /= 2) {
        if (threadIdx.x < offset)
            parts[threadIdx.x] = join(parts[threadIdx.x], parts[threadIdx.x + offset]);
        __syncthreads();
    }
    x = parts[threadIdx.x % width];
    __syncthreads();
    return x;
}
""",
}
