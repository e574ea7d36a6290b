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
