__device__ __forceinline__ float largest(float x, float y)
{
#if __CUDA_ARCH__ >= 800
    float found;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(found) : "f"(x), "f"(y));
    return found;
#else
    return y > x || y != y ? y : x;
#endif
}

__device__ __forceinline__ float smallest(float x, float y)
{
#if __CUDA_ARCH__ >= 800
    float found;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(found) : "f"(x), "f"(y));
    return found;
#else
    return y < x || y != y ? y : x;
#endif
}
