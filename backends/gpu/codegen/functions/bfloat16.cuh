#include <cuda_bf16.h>

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
