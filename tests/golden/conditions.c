static void by_one(const int64_t *a)
{
    const int64_t n0 = a[3];
    const double v2 = *(const double *)(a + 7);
    const float *x0 = (const float *)a[0];
    const float *x1 = (const float *)a[1];
    float *x2 = (float *)a[2];
    #pragma omp simd
    for (int64_t i = 0; i < n0; i++)
    {
        const float v0 = x0[i];
        const float v1 = x1[i];
        const _Bool v3 = (_Bool)(v0 > v1);
        const float v4_1 = (float)v2;
        const _Bool v4 = (_Bool)(v0 != v4_1);
        const _Bool v5 = (_Bool)(v3 != 0 && v4 != 0);
        const float v6 = (float)(sqrt(v0));
        const float v7 = (float)(-v1);
        const float v8 = (float)(v5 != 0 ? v6 : v7);
        x2[i] = v8;
    }
}

static void by_many(const int64_t *a)
{
    const int threads = (int)a[9];
    const int64_t n0 = a[3];
    const double v2 = *(const double *)(a + 7);
    const float *x0 = (const float *)a[0];
    const float *x1 = (const float *)a[1];
    float *x2 = (float *)a[2];
    #pragma omp parallel for simd schedule(static) num_threads(threads)
    for (int64_t i = 0; i < n0; i++)
    {
        const float v0 = x0[i];
        const float v1 = x1[i];
        const _Bool v3 = (_Bool)(v0 > v1);
        const float v4_1 = (float)v2;
        const _Bool v4 = (_Bool)(v0 != v4_1);
        const _Bool v5 = (_Bool)(v3 != 0 && v4 != 0);
        const float v6 = (float)(sqrt(v0));
        const float v7 = (float)(-v1);
        const float v8 = (float)(v5 != 0 ? v6 : v7);
        x2[i] = v8;
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
