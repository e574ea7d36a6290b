static inline __attribute__((always_inline)) void columns(const int64_t *const a, const int64_t i0, const int64_t c, const int64_t m)
{
    const int64_t n2 = a[6];
    const int64_t s0_0 = a[7];
    const int64_t s0_2 = a[9];
    const int64_t s1_0 = a[10];
    const int64_t s1_2 = a[12];
    const int64_t s2_0 = a[13];
    const int64_t s3_0 = a[16];
    const float *x0 = (const float *)a[0] + i0 * s0_0;
    const float *x1 = (const float *)a[1] + i0 * s1_0 + c;
    const float *x2 = (const float *)a[2] + i0 * s2_0 + c;
    float *x3 = (float *)a[3] + i0 * s3_0 + c;
    double r4[32];
    #pragma omp simd
    for (int64_t j = 0; j < m; j++)
    {
        r4[j] = 0;
    }
    {
        const float *y0 = x0;
        const float *y1 = x1;
        for (int64_t b = 0; b < n2; b += 64)
        {
            const int64_t e = b + 64 < n2 ? b + 64 : n2;
            float p4[32];
            #pragma omp simd
            for (int64_t j = 0; j < m; j++)
            {
                p4[j] = 0;
            }
            for (int64_t i = b; i < e; i++)
            {
                const float *z0 = y0 + i * s0_2;
                const float *z1 = y1 + i * s1_2;
                #pragma omp simd
                for (int64_t j = 0; j < m; j++)
                {
                    const float v0 = z0[0];
                    const float v1 = z1[j];
                    p4[j] = multiply_add(v0, v1, p4[j]);
                }
            }
            #pragma omp simd
            for (int64_t j = 0; j < m; j++)
            {
                r4[j] = r4[j] + p4[j];
            }
        }
    }
    float v4[32];
    float v5[32];
    float v6[32];
    #pragma omp simd
    for (int64_t j = 0; j < m; j++)
    {
        const float v2 = x2[j];
        v4[j] = (float)(r4[j]);
        v5[j] = (float)(v4[j] + v2);
        v6[j] = (float)(tanh(v5[j]));
        x3[j] = v6[j];
    }
}

static void shared_loop(const void *state, int64_t begin, int64_t end, int64_t thread)
{
    (void)thread;
    const int64_t *const a = state;
    const int64_t n1 = a[5];
    int64_t i0 = begin / ((n1 + 31) / 32);
    int64_t t = begin % ((n1 + 31) / 32);
    for (int64_t flat = begin; flat < end; flat++)
    {
        {
            int64_t c = t * 32;
            const int64_t m = n1 - c < 32 ? n1 - c : 32;
            if (m == 32)
                columns(a, i0, c, 32);
            if (m & 16)
            {
                columns(a, i0, c, 16);
                c += 16;
            }
            if (m & 8)
            {
                columns(a, i0, c, 8);
                c += 8;
            }
            if (m & 4)
            {
                columns(a, i0, c, 4);
                c += 4;
            }
            if (m & 2)
            {
                columns(a, i0, c, 2);
                c += 2;
            }
            if (m & 1)
            {
                columns(a, i0, c, 1);
                c += 1;
            }
        }
        if (++t == ((n1 + 31) / 32))
        {
            t = 0;
            i0++;
        }
    }
}

void kernel(const int64_t *a)
{
    const int64_t n0 = a[4];
    const int64_t n1 = a[5];
    shared(shared_loop, a, n0 * ((n1 + 31) / 32), a + 20);
}
