static void shared_loop(const void *state, int64_t begin, int64_t end, int64_t thread)
{
    (void)thread;
    const int64_t *const a = state;
    const int64_t n0 = a[3];
    const double v2 = *(const double *)(a + 7);
    const float *x0 = (const float *)a[0];
    const float *x1 = (const float *)a[1];
    float *x2 = (float *)a[2];
    const int64_t stop = end * 1024 < n0 ? end * 1024 : n0;
    #pragma omp simd
    for (int64_t i = begin * 1024; i < stop; i++)
    {
        const float v0 = x0[i];
        const float v1 = x1[i];
        const _Bool v3 = (_Bool)(v0 > v1);
        const float v4_1 = (float)v2;
        const _Bool v4 = (_Bool)(v0 != v4_1);
        const _Bool v5 = (_Bool)(v3 != 0 && v4 != 0);
        const float v6 = (float)(sqrt(v0));
        const float v7 = (float)(-v1);
        const float v8 = (float)(v5 != 0 ? v6 : v7);
        x2[i] = v8;
    }
}

void kernel(const int64_t *a)
{
    const int64_t n0 = a[3];
    shared(shared_loop, a, (n0 + 1023) / 1024, a + 9);
}
