static void by_one(const int64_t *a)
{
    const int64_t n0 = a[4];
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
    for (int64_t i0 = 0; i0 < n0; i0++)
    for (int64_t i1 = 0; i1 < n1; i1++)
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
            const float v3 = (float)(v0 >= v1 || v0 != v0 ? v0 : v1);
            const float v4 = (float)(v3 / v2);
            x3[i] = v4;
        }
    }
}

static void by_many(const int64_t *a)
{
    const int threads = (int)a[20];
    const int64_t n0 = a[4];
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
    #pragma omp parallel for collapse(2) schedule(static) num_threads(threads)
    for (int64_t i0 = 0; i0 < n0; i0++)
    for (int64_t i1 = 0; i1 < n1; i1++)
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
            const float v3 = (float)(v0 >= v1 || v0 != v0 ? v0 : v1);
            const float v4 = (float)(v3 / v2);
            x3[i] = v4;
        }
    }
}

void kernel(const int64_t *a)
{
    const int threads = (int)a[20];
    if (threads > 1)
        by_many(a);
    else
        by_one(a);
}
