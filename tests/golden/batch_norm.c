static void shared_loop(const void *state, int64_t begin, int64_t end, int64_t thread)
{
    (void)thread;
    const int64_t *const a = state;
    const int64_t n0 = a[3];
    const int64_t n1 = a[4];
    const int64_t s0_1 = a[6];
    const int64_t s2_1 = a[10];
    const double v2 = *(const double *)(a + 11);
    const float v1 = *(const float *)a[1];
    for (int64_t t = begin; t < end; t++)
    {
        const int64_t c = t * 64, m = n0 - c < 64 ? n0 - c : 64;
        const float *x0 = (const float *)a[0] + c;
        float *x2 = (float *)a[2] + c;
        double r3[64];
        #pragma omp simd
        for (int64_t j = 0; j < m; j++)
        {
            r3[j] = 0;
        }
        {
            const float *y0 = x0;
            for (int64_t b = 0; b < n1; b += 64)
            {
                const int64_t e = b + 64 < n1 ? b + 64 : n1;
                float p3[64];
                #pragma omp simd
                for (int64_t j = 0; j < m; j++)
                {
                    p3[j] = 0;
                }
                for (int64_t i = b; i < e; i++)
                {
                    const float *z0 = y0 + i * s0_1;
                    #pragma omp simd
                    for (int64_t j = 0; j < m; j++)
                    {
                        const float v0 = z0[j];
                        p3[j] = p3[j] + v0;
                    }
                }
                #pragma omp simd
                for (int64_t j = 0; j < m; j++)
                {
                    r3[j] = r3[j] + p3[j];
                }
            }
        }
        float v3[64];
        #pragma omp simd
        for (int64_t j = 0; j < m; j++)
        {
            v3[j] = (float)(r3[j] / ((double)n1));
        }
        double r6[64];
        #pragma omp simd
        for (int64_t j = 0; j < m; j++)
        {
            r6[j] = 0;
        }
        {
            const float *y0 = x0;
            for (int64_t b = 0; b < n1; b += 64)
            {
                const int64_t e = b + 64 < n1 ? b + 64 : n1;
                float p6[64];
                #pragma omp simd
                for (int64_t j = 0; j < m; j++)
                {
                    p6[j] = 0;
                }
                for (int64_t i = b; i < e; i++)
                {
                    const float *z0 = y0 + i * s0_1;
                    #pragma omp simd
                    for (int64_t j = 0; j < m; j++)
                    {
                        const float v0 = z0[j];
                        const float v4 = (float)(v0 - v3[j]);
                        const float v5 = (float)(v4 * v4);
                        p6[j] = p6[j] + v5;
                    }
                }
                #pragma omp simd
                for (int64_t j = 0; j < m; j++)
                {
                    r6[j] = r6[j] + p6[j];
                }
            }
        }
        float v6[64];
        float v7[64];
        float v8[64];
        float v9[64];
        #pragma omp simd
        for (int64_t j = 0; j < m; j++)
        {
            v6[j] = (float)(r6[j]);
            v7[j] = (float)(v6[j] / v1);
            const float v8_1 = (float)v2;
            v8[j] = (float)(v7[j] + v8_1);
            v9[j] = (float)(sqrt(v8[j]));
        }
        {
            const float *y0 = x0;
            float *y2 = x2;
            for (int64_t i = 0; i < n1; i++)
            {
                const float *z0 = y0 + i * s0_1;
                float *z2 = y2 + i * s2_1;
                #pragma omp simd
                for (int64_t j = 0; j < m; j++)
                {
                    const float v0 = z0[j];
                    const float v4 = (float)(v0 - v3[j]);
                    const float v10 = (float)(v4 / v9[j]);
                    z2[j] = v10;
                }
            }
        }
    }
}

void kernel(const int64_t *a)
{
    const int64_t n0 = a[3];
    shared(shared_loop, a, ((n0 + 63) / 64), a + 13);
}
