template <class T, class J> __device__ __forceinline__ T over_block(T x, J join, T *parts)
{
    const int warps = blockDim.x / 32;
    x = over_lanes(x, join, 32);
    if (threadIdx.x % 32 == 0)
        parts[threadIdx.x / 32] = x;
    __syncthreads();
    return over_lanes(parts[threadIdx.x & (warps - 1)], join, warps);
}
