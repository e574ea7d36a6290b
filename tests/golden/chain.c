static void by_one(const int64_t *a)
{
    const int64_t n0 = a[5];
    const float *x0 = (const float *)a[0];
    const float *x1 = (const float *)a[1];
    const float *x2 = (const float *)a[2];
    const float *x3 = (const float *)a[3];
    float *x4 = (float *)a[4];
    #pragma omp simd
    for (int64_t i = 0; i < n0; i++)
    {
        const float v0 = x0[i];
        const float v1 = x1[i];
        const float v2 = x2[i];
        const float v3 = x3[i];
        const float v4 = (float)(v0 * v1);
        const float v5 = (float)(sin(v2));
        const float v6 = (float)(v3 * v5);
        const float v7 = (float)(v4 + v6);
        x4[i] = v7;
    }
}

static void by_many(const int64_t *a)
{
    const int threads = (int)a[12];
    const int64_t n0 = a[5];
    const float *x0 = (const float *)a[0];
    const float *x1 = (const float *)a[1];
    const float *x2 = (const float *)a[2];
    const float *x3 = (const float *)a[3];
    float *x4 = (float *)a[4];
    #pragma omp parallel for simd schedule(static) num_threads(threads)
    for (int64_t i = 0; i < n0; i++)
    {
        const float v0 = x0[i];
        const float v1 = x1[i];
        const float v2 = x2[i];
        const float v3 = x3[i];
        const float v4 = (float)(v0 * v1);
        const float v5 = (float)(sin(v2));
        const float v6 = (float)(v3 * v5);
        const float v7 = (float)(v4 + v6);
        x4[i] = v7;
    }
}

void kernel(const int64_t *a)
{
    const int threads = (int)a[12];
    if (threads > 1)
        by_many(a);
    else
        by_one(a);
}
