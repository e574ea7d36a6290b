#include <cuda_fp16.h>

__device__ __forceinline__ float from_half(__half x) { return __half2float(x); }
__device__ __forceinline__ __half to_half(float x) { return __float2half_rn(x); }
__device__ __forceinline__ __half to_half(double x) { return __double2half(x); }
template <class T> __device__ __forceinline__ __half to_half(T x) { return __float2half_rn((float)x); }
template <class T> __device__ __forceinline__ float rounded_half(T x) { return from_half(to_half(x)); }
__device__ __forceinline__ void store_pair(__half *to, float x, float y) { *(__half2 *)to = __floats2half2_rn(x, y); }
__device__ __forceinline__ void store_pair(__half *to, double x, double y) { to[0] = to_half(x), to[1] = to_half(y); }
