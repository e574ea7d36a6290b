static void by_one(const int64_t *a)
{
    const int64_t n0 = a[4];
    const int64_t n1 = a[5];
    const int64_t s0_0 = a[6];
    const int64_t s1_0 = a[8];
    const int64_t s2_0 = a[10];
    const int64_t s3_0 = a[12];
    for (int64_t i0 = 0; i0 < n0; i0++)
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

static void by_many(const int64_t *a)
{
    const int threads = (int)a[15];
    const int64_t n0 = a[4];
    const int64_t n1 = a[5];
    const int64_t s0_0 = a[6];
    const int64_t s1_0 = a[8];
    const int64_t s2_0 = a[10];
    const int64_t s3_0 = a[12];
    #pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t i0 = 0; i0 < n0; i0++)
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
    const int threads = (int)a[15];
    if (threads > 1)
        by_many(a);
    else
        by_one(a);
}
