template <class T, class J> __device__ __forceinline__ T over_lanes(T x, J join, int lanes)
{
    #pragma unroll
    for (int offset = lanes / 2; offset > 0; offset /= 2)
        x = join(x, (T)__shfl_xor_sync(~0u, x, offset));
    return (T)__shfl_sync(~0u, x, 0, lanes);
}
