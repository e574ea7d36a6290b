struct stage0
{
    const int64_t *a;
    int64_t t;
};

static void stage0(const void *state, int64_t begin, int64_t end, int64_t thread)
{
    (void)thread;
    const struct stage0 *const given = state;
    const int64_t *const a = given->a;
    const int64_t n0 = a[2];
    const int64_t n1 = a[3];
    const int64_t s0_1 = a[5];
    char *const t0 = (char *)a[9];
    int64_t const t = given->t;
    double *const q3 = (double *)(t0);
    const int64_t c = t * 1024, m = n0 - c < 1024 ? n0 - c : 1024;
    const float *x0 = (const float *)a[0] + c;
    const int64_t least = (n1 + 63) / 64, fair = 65536 / m + 1;
    const int64_t size = least > fair ? least : fair;
    for (int64_t k = begin; k < end; k++)
    {
        double r3[1024];
        #pragma omp simd
        for (int64_t j = 0; j < m; j++)
        {
            r3[j] = 0;
        }
        const int64_t stop = (k + 1) * size < n1 ? (k + 1) * size : n1;
        {
            const float *y0 = x0;
            for (int64_t b = k * size; b < stop; b += 64)
            {
                const int64_t e = b + 64 < stop ? b + 64 : stop;
                float p3[1024];
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
                        const float v2 = (float)(v0 * v0);
                        p3[j] = p3[j] + v2;
                    }
                }
                #pragma omp simd
                for (int64_t j = 0; j < m; j++)
                {
                    r3[j] = r3[j] + p3[j];
                }
            }
        }
        #pragma omp simd
        for (int64_t j = 0; j < m; j++)
        {
            q3[k * 1024 + j] = r3[j];
        }
    }
}

void kernel(const int64_t *a)
{
    const int64_t n0 = a[2];
    const int64_t n1 = a[3];
    const double v1 = *(const double *)(a + 8);
    char *const t0 = (char *)a[9];
    double *const q3 = (double *)(t0);
    for (int64_t t = 0; t < ((n0 + 1023) / 1024); t++)
    {
        const int64_t c = t * 1024, m = n0 - c < 1024 ? n0 - c : 1024;
        float *x1 = (float *)a[1] + c;
        const int64_t least = (n1 + 63) / 64, fair = 65536 / m + 1;
        const int64_t size = least > fair ? least : fair;
        const int64_t parts = (n1 + size - 1) / size;
        double r3[1024];
        #pragma omp simd
        for (int64_t j = 0; j < m; j++)
        {
            r3[j] = 0;
        }
        const struct stage0 given0 = {a, t};
        shared(stage0, &given0, parts, a + 11);
        for (int64_t k = 0; k < parts; k++)
        {
            #pragma omp simd
            for (int64_t j = 0; j < m; j++)
            {
                r3[j] = r3[j] + q3[k * 1024 + j];
            }
        }
        float v3[1024];
        float v4[1024];
        #pragma omp simd
        for (int64_t j = 0; j < m; j++)
        {
            v3[j] = (float)(r3[j]);
            const float v4_1 = (float)v1;
            v4[j] = (float)(v3[j] * v4_1);
            x1[j] = v4[j];
        }
    }
}
