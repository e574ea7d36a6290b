static void shared_loop(const void *state, int64_t begin, int64_t end, int64_t thread)
{
    (void)thread;
    const int64_t *const a = state;
    const int64_t n0 = a[4];
    const double v3 = *(const double *)(a + 9);
    const uint8_t *x0 = (const uint8_t *)a[0];
    const int64_t *x1 = (const int64_t *)a[1];
    const double *x2 = (const double *)a[2];
    double *x3 = (double *)a[3];
    const int64_t stop = end * 1024 < n0 ? end * 1024 : n0;
    #pragma omp simd
    for (int64_t i = begin * 1024; i < stop; i++)
    {
        const uint8_t v0 = x0[i];
        const int64_t v1 = x1[i];
        const double v2 = x2[i];
        const int64_t v4_0 = (int64_t)v0;
        const int64_t v4 = (int64_t)(v4_0 + v1);
        const float v5 = (float)(v4);
        const float v6_1 = (float)v3;
        const float v6 = (float)(v5 * v6_1);
        const double v7_0 = (double)v6;
        const double v7 = (double)(v7_0 + v2);
        x3[i] = v7;
    }
}

void kernel(const int64_t *a)
{
    const int64_t n0 = a[4];
    shared(shared_loop, a, (n0 + 1023) / 1024, a + 11);
}
