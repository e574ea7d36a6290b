static void shared_loop(const void *state, int64_t begin, int64_t end, int64_t thread)
{
    (void)thread;
    const int64_t *const a = state;
    const int64_t n1 = a[5];
    const int64_t s0_0 = a[6];
    const int64_t s2_0 = a[10];
    const int64_t s3_0 = a[12];
    const double v3 = *(const double *)(a + 14);
    const float v1 = *(const float *)a[1];
    for (int64_t i0 = begin; i0 < end; i0++)
    {
        const float *x0 = (const float *)a[0] + i0 * s0_0;
        const float *x2 = (const float *)a[2] + i0 * s2_0;
        float *x3 = (float *)a[3] + i0 * s3_0;
        double r4 = 0;
        double r7 = 0;
        {
            const float *y0 = x0;
            for (int64_t b = 0; b < n1; b += 512)
            {
                const int64_t e = b + 512 < n1 ? b + 512 : n1;
                float p4 = 0;
                float p7 = 0;
                if (e - b == 512)
                {
                    float l4[32];
                    float l7[32];
                    #pragma omp simd
                    for (int64_t j = 0; j < 32; j++)
                    {
                        l4[j] = 0;
                        l7[j] = 0;
                    }
                    for (int64_t c = b; c < e; c += 32)
                    {
                        #pragma omp simd
                        for (int64_t j = 0; j < 32; j++)
                        {
                            const int64_t i = c + j;
                            const float v0 = y0[i];
                            l4[j] = l4[j] + v0;
                            l7[j] = l7[j] + v0;
                        }
                    }
                    #pragma omp simd
                    for (int64_t j = 0; j < 16; j++)
                    {
                        l4[j] += l4[j + 16];
                        l7[j] += l7[j + 16];
                    }
                    #pragma omp simd
                    for (int64_t j = 0; j < 8; j++)
                    {
                        l4[j] += l4[j + 8];
                        l7[j] += l7[j + 8];
                    }
                    p4 = (((l4[0] + l4[4]) + (l4[2] + l4[6])) + ((l4[1] + l4[5]) + (l4[3] + l4[7])));
                    p7 = (((l7[0] + l7[4]) + (l7[2] + l7[6])) + ((l7[1] + l7[5]) + (l7[3] + l7[7])));
                }
                else
                {
                    #pragma omp simd reduction(+ : p4) reduction(+ : p7)
                    for (int64_t i = b; i < e; i++)
                    {
                        const float v0 = y0[i];
                        p4 = p4 + v0;
                        p7 = p7 + v0;
                    }
                }
                r4 = r4 + p4;
                r7 = r7 + p7;
            }
        }
        const float v4 = (float)(r4 / ((double)n1));
        const float v7 = (float)(r7 / ((double)n1));
        const float v5 = (float)(v4);
        double r10 = 0;
        {
            const float *y0 = x0;
            for (int64_t b = 0; b < n1; b += 512)
            {
                const int64_t e = b + 512 < n1 ? b + 512 : n1;
                float p10 = 0;
                if (e - b == 512)
                {
                    float l10[32];
                    #pragma omp simd
                    for (int64_t j = 0; j < 32; j++)
                    {
                        l10[j] = 0;
                    }
                    for (int64_t c = b; c < e; c += 32)
                    {
                        #pragma omp simd
                        for (int64_t j = 0; j < 32; j++)
                        {
                            const int64_t i = c + j;
                            const float v0 = y0[i];
                            const float v8 = (float)(v0 - v7);
                            const float v9 = (float)(v8 * v8);
                            l10[j] = l10[j] + v9;
                        }
                    }
                    #pragma omp simd
                    for (int64_t j = 0; j < 16; j++)
                    {
                        l10[j] += l10[j + 16];
                    }
                    #pragma omp simd
                    for (int64_t j = 0; j < 8; j++)
                    {
                        l10[j] += l10[j + 8];
                    }
                    p10 = (((l10[0] + l10[4]) + (l10[2] + l10[6])) + ((l10[1] + l10[5]) + (l10[3] + l10[7])));
                }
                else
                {
                    #pragma omp simd reduction(+ : p10)
                    for (int64_t i = b; i < e; i++)
                    {
                        const float v0 = y0[i];
                        const float v8 = (float)(v0 - v7);
                        const float v9 = (float)(v8 * v8);
                        p10 = p10 + v9;
                    }
                }
                r10 = r10 + p10;
            }
        }
        const float v10 = (float)(r10);
        const float v11 = (float)(v10 / v1);
        const float v12_1 = (float)v3;
        const float v12 = (float)(v11 + v12_1);
        const float v13 = (float)(sqrt(v12));
        {
            const float *y0 = x0;
            const float *y2 = x2;
            float *y3 = x3;
            #pragma omp simd
            for (int64_t i = 0; i < n1; i++)
            {
                const float v0 = y0[i];
                const float v2 = y2[i];
                const float v6 = (float)(v0 - v5);
                const float v14 = (float)(v6 / v13);
                const float v15 = (float)(v14 * v2);
                y3[i] = v15;
            }
        }
    }
}

void kernel(const int64_t *a)
{
    const int64_t n0 = a[4];
    shared(shared_loop, a, n0, a + 16);
}
