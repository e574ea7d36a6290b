static void shared_loop(const void *state, int64_t begin, int64_t end, int64_t thread)
{
    (void)thread;
    const int64_t *const a = state;
    const int64_t n0 = a[2];
    const double v1 = *(const double *)(a + 5);
    const float *x0 = (const float *)a[0];
    float *x1 = (float *)a[1];
    const int64_t stop = end * 1024 < n0 ? end * 1024 : n0;
    #pragma omp simd
    for (int64_t i = begin * 1024; i < stop; i++)
    {
        const float v0 = x0[i];
        const float v2_1 = (float)v1;
        const float v2 = (float)(v0 * v2_1);
        x1[i] = v2;
    }
}

void kernel(const int64_t *a)
{
    const int64_t n0 = a[2];
    shared(shared_loop, a, (n0 + 1023) / 1024, a + 7);
}

#if defined __AVX512F__ && defined __GNUC__ && !defined __clang__
#pragma GCC target("prefer-vector-width=512")
#endif
static void shared_loop(const void *state, int64_t begin, int64_t end, int64_t thread)
{
    (void)thread;
    const int64_t *const a = state;
    const int64_t n0 = a[2];
    const double v1 = *(const double *)(a + 5);
    const float *x0 = (const float *)a[0];
    float *x1 = (float *)a[1];
    const int64_t stop = end * 1024 < n0 ? end * 1024 : n0;
    #pragma omp simd
    for (int64_t i = begin * 1024; i < stop; i++)
    {
        const float v0 = x0[i];
        const float v2 = (float)(tanh(v0));
        const float v3_1 = (float)v1;
        const float v3 = (float)(v2 + v3_1);
        x1[i] = v3;
    }
}

void kernel(const int64_t *a)
{
    const int64_t n0 = a[2];
    shared(shared_loop, a, (n0 + 1023) / 1024, a + 7);
}
