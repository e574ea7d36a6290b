static void shared_loop(const void *state, int64_t begin, int64_t end, int64_t thread)
{
    (void)thread;
    const int64_t *const a = state;
    const int64_t n1 = a[5];
    const int64_t s0_0 = a[6];
    const int64_t s1_0 = a[8];
    const int64_t s2_0 = a[10];
    const int64_t s3_0 = a[12];
    for (int64_t i0 = begin; i0 < end; i0++)
    {
        const float *x0 = (const float *)a[0] + i0 * s0_0;
        const float *x1 = (const float *)a[1] + i0 * s1_0;
        const float *x2 = (const float *)a[2] + i0 * s2_0;
        float *x3 = (float *)a[3] + i0 * s3_0;
        #pragma omp simd
        for (int64_t i = 0; i < n1; i++)
        {
            const float v0 = x0[i];
            const float v1 = x1[i];
            const float v2 = x2[0];
            const float v3 = (float)(v0 - v1);
            const float v4 = (float)(v3 * v2);
            x3[i] = v4;
        }
    }
}

void kernel(const int64_t *a)
{
    const int64_t n0 = a[4];
    shared(shared_loop, a, n0, a + 15);
}
