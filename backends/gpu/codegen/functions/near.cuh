// Functions whose results are rounded to float16 or bfloat16: their relative errors are below 2^-15. Those of float16
// alone may flush numbers below 2^-126 and quotients by numbers above 2^126, which bfloat16 has and float16 has not.
#ifdef __CUDA_ARCH__
__device__ __forceinline__ float near_exp(float x)
{
    float found;
#ifdef __CUDA_BF16_TYPES_EXIST__
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(found) : "f"(x * 0.72134752f));
    return found * found; // which is not flushed
#else
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(found) : "f"(x * 1.44269504f));
    return found;
#endif
}

__device__ __forceinline__ float near_sqrt(float x)
{
    float found;
#ifdef __CUDA_BF16_TYPES_EXIST__
    asm("sqrt.approx.f32 %0, %1;" : "=f"(found) : "f"(x));
#else
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(found) : "f"(x));
#endif
    return found;
}

__device__ __forceinline__ float near_quotient(float x, float y)
{
    float found, scale = 1.0f;
#ifdef __CUDA_BF16_TYPES_EXIST__
    scale = fabs(y) > 0x1p64f ? 0x1p-64f : fabs(y) < 0x1p-64f ? 0x1p64f : 1.0f; // neither product is flushed
#endif
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(found) : "f"(y * scale));
    return x * scale * found;
}

__device__ __forceinline__ float near_log1p(float x)
{
    float found;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(found) : "f"(1.0f + x));
    float small = x * fmaf(x, -0.5f, 1.0f), large = found * 0.69314718f;
    asm volatile("" : "+f"(small), "+f"(large)); // both are computed, which is quicker than a branch
    return fabs(x) < 0.0093f ? small : large;
}

__device__ __forceinline__ float near_tanh(float x)
{
    float power, found;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * 2.88539008f));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(found) : "f"(power + 1.0f));
    float small = x * fmaf(x * x, -0.33333333f, 1.0f), large = fmaf(-2.0f, found, 1.0f);
    asm volatile("" : "+f"(small), "+f"(large));
    return fabs(x) < 0.09f ? small : large;
}
#else
__device__ __forceinline__ float near_exp(float x) { return exp(x); }
__device__ __forceinline__ float near_sqrt(float x) { return sqrt(x); }
__device__ __forceinline__ float near_quotient(float x, float y) { return x / y; }
__device__ __forceinline__ float near_log1p(float x) { return log1p(x); }
__device__ __forceinline__ float near_tanh(float x) { return tanh(x); }
#endif
