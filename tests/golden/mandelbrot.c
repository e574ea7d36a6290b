#if defined __AVX512F__ && defined __GNUC__ && !defined __clang__
#pragma GCC target("prefer-vector-width=512")
#endif
typedef struct { float re, im; } complex64;

static inline complex64 complex64_of(float re, float im)
{
    const complex64 z = {re, im};
    return z;
}

static void shared_loop(const void *state, int64_t begin, int64_t end, int64_t thread)
{
    (void)thread;
    const int64_t *const a = state;
    const int64_t n0 = a[3];
    const double v2 = *(const double *)(a + 7);
    const complex64 *x0 = (const complex64 *)a[0];
    const complex64 *x1 = (const complex64 *)a[1];
    complex64 *x2 = (complex64 *)a[2];
    const int64_t stop = end * 1024 < n0 ? end * 1024 : n0;
    #pragma omp simd
    for (int64_t i = begin * 1024; i < stop; i++)
    {
        const complex64 v0 = x0[i];
        const complex64 v1 = x1[i];
        const float v3 = (float)(v0.re);
        const float v4 = (float)(v0.im);
        const float v5 = (float)(hypot(v3, v4));
        const float v6_1 = (float)v2;
        const _Bool v6 = (_Bool)(v5 > v6_1);
        const float v7 = (float)(v3 * v3);
        const float v8 = (float)(v4 * v4);
        const float v9 = (float)(v7 - v8);
        const float v10 = (float)(v3 * v4);
        const float v11 = (float)(v10 + v10);
        const float v12 = (float)(v1.re);
        const float v13 = (float)(v9 + v12);
        const float v14 = (float)(v1.im);
        const float v15 = (float)(v11 + v14);
        const float v16 = (float)(v6 != 0 ? v3 : v13);
        const float v17 = (float)(v6 != 0 ? v4 : v15);
        const complex64 v18 = (complex64_of(v16, v17));
        x2[i] = v18;
    }
}

void kernel(const int64_t *a)
{
    const int64_t n0 = a[3];
    shared(shared_loop, a, (n0 + 1023) / 1024, a + 9);
}
