#if defined __AVX512F__ && defined __GNUC__ && !defined __clang__
#pragma GCC target("prefer-vector-width=512")
#endif
static inline __attribute__((always_inline)) void columns(const int64_t *const a, const float *y0, const float *y1, double *r4, const int64_t b, const int64_t e, const int64_t first, const int64_t c, const int64_t rows, const int64_t m)
{
    const int64_t s0_0 = a[7];
    const int64_t s0_2 = a[9];
    const int64_t s1_2 = a[12];
    y0 += first * s0_0 + 0;
    y1 += c;
    r4 += first * 32 + c;
    float p4[128];
    #pragma GCC unroll 4
    for (int64_t r = 0; r < rows; r++)
    {
        #pragma omp simd
        for (int64_t j = 0; j < m; j++)
        {
            const int64_t u = r * 32 + j;
            p4[u] = 0;
        }
    }
    for (int64_t i = b; i < e; i++)
    {
        const float *z0 = y0 + i * s0_2;
        const float *z1 = y1 + i * s1_2;
    #pragma GCC unroll 4
        for (int64_t r = 0; r < rows; r++)
        {
            #pragma omp simd
            for (int64_t j = 0; j < m; j++)
            {
                const int64_t u = r * 32 + j;
                const float v0 = z0[r * s0_0 + 0];
                const float v1 = z1[j];
                p4[u] = multiply_add(v0, v1, p4[u]);
            }
        }
    }
    #pragma GCC unroll 4
    for (int64_t r = 0; r < rows; r++)
    {
        #pragma omp simd
        for (int64_t j = 0; j < m; j++)
        {
            const int64_t u = r * 32 + j;
            r4[u] = r4[u] + p4[u];
        }
    }
}

static void accumulate(const int64_t *const a, const float *y0, const float *y1, double *r4, const int64_t b, const int64_t e, const int64_t rows, const int64_t m)
{
    int64_t first = 0;
    for (; first + 4 <= rows; first += 4)
    {
        int64_t c = 0;
        if (m == 32)
        {
            columns(a, y0, y1, r4, b, e, first, c, 4, 32);
            c += 32;
        }
        if (m & 16)
        {
            columns(a, y0, y1, r4, b, e, first, c, 4, 16);
            c += 16;
        }
        if (m & 8)
        {
            columns(a, y0, y1, r4, b, e, first, c, 4, 8);
            c += 8;
        }
        if (m & 4)
        {
            columns(a, y0, y1, r4, b, e, first, c, 4, 4);
            c += 4;
        }
        if (m & 2)
        {
            columns(a, y0, y1, r4, b, e, first, c, 4, 2);
            c += 2;
        }
        if (m & 1)
        {
            columns(a, y0, y1, r4, b, e, first, c, 4, 1);
            c += 1;
        }
    }
    for (; first + 1 <= rows; first += 1)
    {
        int64_t c = 0;
        if (m == 32)
        {
            columns(a, y0, y1, r4, b, e, first, c, 1, 32);
            c += 32;
        }
        if (m & 16)
        {
            columns(a, y0, y1, r4, b, e, first, c, 1, 16);
            c += 16;
        }
        if (m & 8)
        {
            columns(a, y0, y1, r4, b, e, first, c, 1, 8);
            c += 8;
        }
        if (m & 4)
        {
            columns(a, y0, y1, r4, b, e, first, c, 1, 4);
            c += 4;
        }
        if (m & 2)
        {
            columns(a, y0, y1, r4, b, e, first, c, 1, 2);
            c += 2;
        }
        if (m & 1)
        {
            columns(a, y0, y1, r4, b, e, first, c, 1, 1);
            c += 1;
        }
    }
}

static void shared_loop(const void *state, int64_t begin, int64_t end, int64_t thread)
{
    (void)thread;
    const int64_t *const a = state;
    const int64_t n0 = a[4];
    const int64_t n1 = a[5];
    const int64_t n2 = a[6];
    const int64_t s0_0 = a[7];
    const int64_t s3_0 = a[16];
    int64_t q = begin / ((n1 + 31) / 32);
    int64_t t = begin % ((n1 + 31) / 32);
    for (int64_t flat = begin; flat < end; flat++)
    {
        {
            const int64_t c = t * 32, left = n1 - c;
            const int64_t m = left < 32 ? left : 32;
            for (int64_t i0 = q * 4; i0 < (q + 1) * 4; i0 += 4)
            {
                const int64_t below = n0 - i0, rows = below < 4 ? below : 4;
                const float *x0 = (const float *)a[0] + i0 * s0_0;
                const float *x1 = (const float *)a[1] + c;
                const float *x2 = (const float *)a[2] + c;
                float *x3 = (float *)a[3] + i0 * s3_0 + c;
                double r4[128] = {0};
                {
                    const float *y0 = x0;
                    const float *y1 = x1;
                    for (int64_t b = 0; b < n2; b += 64)
                    {
                        const int64_t e = b + 64 < n2 ? b + 64 : n2;
                        accumulate(a, y0, y1, r4, b, e, rows, m);
                    }
                }
                float v4[128];
                float v5[128];
                float v6[128];
                for (int64_t r = 0; r < rows; r++)
                {
                    #pragma omp simd
                    for (int64_t j = 0; j < m; j++)
                    {
                        const int64_t u = r * 32 + j;
                        const float v2 = x2[j];
                        v4[u] = (float)(r4[u]);
                        v5[u] = (float)(v4[u] + v2);
                        v6[u] = (float)(tanh(v5[u]));
                        x3[r * s3_0 + j] = v6[u];
                    }
                }
            }
        }
        if (++t == ((n1 + 31) / 32))
        {
            t = 0;
            q++;
        }
    }
}

void kernel(const int64_t *a)
{
    const int64_t n0 = a[4];
    const int64_t n1 = a[5];
    shared(shared_loop, a, ((n0 + 3) / 4) * ((n1 + 31) / 32), a + 20);
}
