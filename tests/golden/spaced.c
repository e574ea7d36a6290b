static void shared_loop(const void *state, int64_t begin, int64_t end, int64_t thread)
{
    (void)thread;
    const int64_t *const a = state;
    const int64_t n1 = a[6];
    const int64_t s2_0 = a[11];
    const int64_t s3_0 = a[13];
    const int64_t s4_0 = a[15];
    const int64_t o2 = a[17];
    const int64_t o3 = a[18];
    const int64_t low0 = a[19];
    const int64_t high0 = a[20];
    for (int64_t i0 = begin; i0 < end; i0++)
    {
        const int64_t quotient1 = (i0 + 2) / 3;
        const int64_t rest1 = (i0 + 2) % 3;
        const float *x2 = (const float *)a[0] + o2 + i0 * s2_0;
        const float *x3 = (const float *)a[1] + o3 + quotient1 * s3_0;
        float *x4 = (float *)a[4] + i0 * s4_0;
        const int is_in0 = (i0 >= low0) & (i0 < high0);
        int64_t first = (0 + 1) / 2 * 2 - 0, final = (n1 + 0) / 2 * 2 - 0;
        if (final < first)
            first = final = 0;
        int64_t from = first, to = final;
        from = (from + 1) / 2 * 2 - 0, to = (to + 0) / 2 * 2 - 0;
        if (to - from < 0 || !(is_in0 & (rest1 < 1)))
            from = to = first;
        const int64_t limit0 = is_in0 & (rest1 < 1) ? final : 0;
        #pragma omp simd
        for (int64_t c = (from + 0) / 2; c < (to + 0) / 2; c++)
        {
            {
                const int64_t i = c * 2 + 0 - 0;
                const float v2 = x2[c + 0];
                const float v3 = x3[i];
                const float v4 = (float)(v2 + v3);
                x4[i] = v4;
            }
            {
                const int64_t i = c * 2 + 1 - 0;
                const float v2 = 0.0f;
                const float v3 = x3[i];
                const float v4 = (float)(v2 + v3);
                x4[i] = v4;
            }
        }
        for (int side = 0; side < 2; side++)
        {
            const int64_t lower = side ? to : first, upper = side ? final : from;
            #pragma omp simd
            for (int64_t c = (lower + 0) / 2; c < (upper + 0) / 2; c++)
            {
                {
                    const int64_t i = c * 2 + 0 - 0;
                    const float v2 = x2[c + 0];
                    const float v3 = i < limit0 ? x3[i] : 0.0f;
                    const float v4 = (float)(v2 + v3);
                    x4[i] = v4;
                }
                {
                    const int64_t i = c * 2 + 1 - 0;
                    const float v2 = 0.0f;
                    const float v3 = i < limit0 ? x3[i] : 0.0f;
                    const float v4 = (float)(v2 + v3);
                    x4[i] = v4;
                }
            }
        }
        for (int side = 0; side < 2; side++)
        {
            const int64_t lower = side ? final : 0, upper = side ? n1 : first;
            #pragma omp simd
            for (int64_t i = lower; i < upper; i++)
            {
                const float v2 = ((i + 0) % 2 < 1) ? x2[(i + 0) / 2] : 0.0f;
                const float v3 = is_in0 & (rest1 < 1) ? x3[i] : 0.0f;
                const float v4 = (float)(v2 + v3);
                x4[i] = v4;
            }
        }
    }
}

void kernel(const int64_t *a)
{
    const int64_t n0 = a[5];
    shared(shared_loop, a, n0, a + 22);
}
