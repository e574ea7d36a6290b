#if defined __AVX512F__ && defined __GNUC__ && !defined __clang__
#pragma GCC target("prefer-vector-width=512")
#endif
static void shared_loop(const void *state, int64_t begin, int64_t end, int64_t thread)
{
    (void)thread;
    const int64_t *const a = state;
    const int64_t n0 = a[2];
    const double v1 = *(const double *)(a + 5);
    const double v2 = *(const double *)(a + 6);
    const double v3 = *(const double *)(a + 7);
    const float *x0 = (const float *)a[0];
    float *x1 = (float *)a[1];
    const int64_t stop = end * 1024 < n0 ? end * 1024 : n0;
    #pragma omp simd
    for (int64_t i = begin * 1024; i < stop; i++)
    {
        const float v0 = x0[i];
        const float v4_1 = (float)v1;
        const float v4 = (float)(v0 * v4_1);
        const float v5_1 = (float)v2;
        const float v5 = (float)(v0 * v5_1);
        const float v6 = (float)(erf(v5));
        const float v7_0 = (float)v3;
        const float v7 = (float)(v7_0 + v6);
        const float v8 = (float)(v4 * v7);
        x1[i] = v8;
    }
}

void kernel(const int64_t *a)
{
    const int64_t n0 = a[2];
    shared(shared_loop, a, (n0 + 1023) / 1024, a + 9);
}
