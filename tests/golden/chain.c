#if defined __AVX512F__ && defined __GNUC__ && !defined __clang__
#pragma GCC target("prefer-vector-width=512")
#endif
static void shared_loop(const void *state, int64_t begin, int64_t end, int64_t thread)
{
    (void)thread;
    const int64_t *const a = state;
    const int64_t n0 = a[5];
    const float *x0 = (const float *)a[0];
    const float *x1 = (const float *)a[1];
    const float *x2 = (const float *)a[2];
    const float *x3 = (const float *)a[3];
    float *x4 = (float *)a[4];
    const int64_t stop = end * 1024 < n0 ? end * 1024 : n0;
    #pragma omp simd
    for (int64_t i = begin * 1024; i < stop; i++)
    {
        const float v0 = x0[i];
        const float v1 = x1[i];
        const float v2 = x2[i];
        const float v3 = x3[i];
        const float v4 = (float)(v0 * v1);
        const float v5 = (float)(sin(v2));
        const float v6 = (float)(v3 * v5);
        const float v7 = (float)(v4 + v6);
        x4[i] = v7;
    }
}

void kernel(const int64_t *a)
{
    const int64_t n0 = a[5];
    shared(shared_loop, a, (n0 + 1023) / 1024, a + 12);
}
