static void shared_loop(const void *state, int64_t begin, int64_t end, int64_t thread)
{
    (void)thread;
    const int64_t *const a = state;
    const int64_t n1 = a[5];
    const int64_t n2 = a[6];
    const int64_t s0_0 = a[7];
    const int64_t s0_1 = a[8];
    const int64_t s1_0 = a[10];
    const int64_t s1_1 = a[11];
    const int64_t s2_0 = a[13];
    const int64_t s2_1 = a[14];
    const int64_t s3_0 = a[16];
    const int64_t s3_1 = a[17];
    int64_t i0 = begin / n1;
    int64_t i1 = begin % n1;
    for (int64_t flat = begin; flat < end; flat++)
    {
        {
            const float *x0 = (const float *)a[0] + i0 * s0_0 + i1 * s0_1;
            const float *x1 = (const float *)a[1] + i0 * s1_0 + i1 * s1_1;
            const float *x2 = (const float *)a[2] + i0 * s2_0 + i1 * s2_1;
            float *x3 = (float *)a[3] + i0 * s3_0 + i1 * s3_1;
            #pragma omp simd
            for (int64_t i = 0; i < n2; i++)
            {
                const float v0 = x0[i];
                const float v1 = x1[0];
                const float v2 = x2[i];
                const float v3 = (float)((v0 < v1 ? v1 : v0) + (v1 != v1 ? v1 : (float)-0.0));
                const float v4 = (float)(v3 / v2);
                x3[i] = v4;
            }
        }
        if (++i1 == n1)
        {
            i1 = 0;
            i0++;
        }
    }
}

void kernel(const int64_t *a)
{
    const int64_t n0 = a[4];
    const int64_t n1 = a[5];
    shared(shared_loop, a, n0 * n1, a + 20);
}
