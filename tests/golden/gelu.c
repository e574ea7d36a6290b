static void by_one(const int64_t *a)
{
    const int64_t n0 = a[2];
    const double v1 = *(const double *)(a + 5);
    const double v2 = *(const double *)(a + 6);
    const double v3 = *(const double *)(a + 7);
    const float *x0 = (const float *)a[0];
    float *x1 = (float *)a[1];
    #pragma omp simd
    for (int64_t i = 0; i < n0; i++)
    {
        const float v0 = x0[i];
        const float v4_1 = (float)v1;
        const float v4 = (float)(v0 * v4_1);
        const float v5_1 = (float)v2;
        const float v5 = (float)(v0 * v5_1);
        const float v6 = (float)(erf(v5));
        const float v7_0 = (float)v3;
        const float v7 = (float)(v7_0 + v6);
        const float v8 = (float)(v4 * v7);
        x1[i] = v8;
    }
}

static void by_many(const int64_t *a)
{
    const int threads = (int)a[9];
    const int64_t n0 = a[2];
    const double v1 = *(const double *)(a + 5);
    const double v2 = *(const double *)(a + 6);
    const double v3 = *(const double *)(a + 7);
    const float *x0 = (const float *)a[0];
    float *x1 = (float *)a[1];
    #pragma omp parallel for simd schedule(static) num_threads(threads)
    for (int64_t i = 0; i < n0; i++)
    {
        const float v0 = x0[i];
        const float v4_1 = (float)v1;
        const float v4 = (float)(v0 * v4_1);
        const float v5_1 = (float)v2;
        const float v5 = (float)(v0 * v5_1);
        const float v6 = (float)(erf(v5));
        const float v7_0 = (float)v3;
        const float v7 = (float)(v7_0 + v6);
        const float v8 = (float)(v4 * v7);
        x1[i] = v8;
    }
}

void kernel(const int64_t *a)
{
    const int threads = (int)a[9];
    if (threads > 1)
        by_many(a);
    else
        by_one(a);
}
