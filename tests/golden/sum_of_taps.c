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
    const int64_t low1 = a[21];
    const int64_t high1 = a[22];
    for (int64_t i0 = begin; i0 < end; i0++)
    {
        const float *x2 = (const float *)a[0] + o2 + i0 * s2_0;
        const float *x3 = (const float *)a[1] + o3 + i0 * s3_0;
        float *x4 = (float *)a[4] + i0 * s4_0;
        double r5 = 0;
        {
            const float *y2 = x2;
            const float *y3 = x3;
            for (int64_t b = 0; b < n1; b += 512)
            {
                const int64_t e = b + 512 < n1 ? b + 512 : n1;
                float p5 = 0;
                const int is_in0 = (i0 >= low0) & (i0 < high0);
                int64_t first = (b + 1) / 2 * 2 - 0, final = (e + 0) / 2 * 2 - 0;
                if (final < first)
                    first = final = b;
                int64_t from = first, to = final;
                from = from > low1 ? from : low1, to = to < high1 ? to : high1;
                from = (from + 1) / 2 * 2 - 0, to = (to + 0) / 2 * 2 - 0;
                if (to - from < 8 || !(is_in0))
                    from = to = first;
                const int64_t limit0 = is_in0 ? high1 : 0;
                #pragma omp simd reduction(+ : p5)
                for (int64_t c = (from + 0) / 2; c < (to + 0) / 2; c++)
                {
                    {
                        const int64_t i = c * 2 + 0 - 0;
                        const float v2 = y2[i];
                        const float v3 = y3[c + 0];
                        const float v4 = (float)(v2 * v3);
                        p5 = p5 + v4;
                    }
                    {
                        const int64_t i = c * 2 + 1 - 0;
                        const float v2 = y2[i];
                        const float v3 = 0.0f;
                        const float v4 = (float)(v2 * v3);
                        p5 = p5 + v4;
                    }
                }
                for (int side = 0; side < 2; side++)
                {
                    const int64_t lower = side ? to : first, upper = side ? final : from;
                    #pragma omp simd reduction(+ : p5)
                    for (int64_t c = (lower + 0) / 2; c < (upper + 0) / 2; c++)
                    {
                        {
                            const int64_t i = c * 2 + 0 - 0;
                            const float v2 = (i >= low1) & (i < limit0) ? y2[i] : 0.0f;
                            const float v3 = y3[c + 0];
                            const float v4 = (float)(v2 * v3);
                            p5 = p5 + v4;
                        }
                        {
                            const int64_t i = c * 2 + 1 - 0;
                            const float v2 = (i >= low1) & (i < limit0) ? y2[i] : 0.0f;
                            const float v3 = 0.0f;
                            const float v4 = (float)(v2 * v3);
                            p5 = p5 + v4;
                        }
                    }
                }
                for (int side = 0; side < 2; side++)
                {
                    const int64_t lower = side ? final : b, upper = side ? e : first;
                    #pragma omp simd reduction(+ : p5)
                    for (int64_t i = lower; i < upper; i++)
                    {
                        const float v2 = is_in0 & (i >= low1) & (i < high1) ? y2[i] : 0.0f;
                        const float v3 = ((i + 0) % 2 < 1) ? y3[(i + 0) / 2] : 0.0f;
                        const float v4 = (float)(v2 * v3);
                        p5 = p5 + v4;
                    }
                }
                r5 = r5 + p5;
            }
        }
        const float v5 = (float)(r5);
        x4[0] = v5;
    }
}

void kernel(const int64_t *a)
{
    const int64_t n0 = a[5];
    shared(shared_loop, a, n0, a + 24);
}
