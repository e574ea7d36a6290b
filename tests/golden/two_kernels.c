static void by_one(const int64_t *a)
{
    const int64_t n0 = a[2];
    const double v1 = *(const double *)(a + 5);
    const float *x0 = (const float *)a[0];
    float *x1 = (float *)a[1];
    #pragma omp simd
    for (int64_t i = 0; i < n0; i++)
    {
        const float v0 = x0[i];
        const float v2_1 = (float)v1;
        const float v2 = (float)(v0 * v2_1);
        x1[i] = v2;
    }
}

static void by_many(const int64_t *a)
{
    const int threads = (int)a[7];
    const int64_t n0 = a[2];
    const double v1 = *(const double *)(a + 5);
    const float *x0 = (const float *)a[0];
    float *x1 = (float *)a[1];
    #pragma omp parallel for simd schedule(static) num_threads(threads)
    for (int64_t i = 0; i < n0; i++)
    {
        const float v0 = x0[i];
        const float v2_1 = (float)v1;
        const float v2 = (float)(v0 * v2_1);
        x1[i] = v2;
    }
}

void kernel(const int64_t *a)
{
    const int threads = (int)a[7];
    if (threads > 1)
        by_many(a);
    else
        by_one(a);
}

static void by_one(const int64_t *a)
{
    const int64_t n0 = a[2];
    const double v1 = *(const double *)(a + 5);
    const float *x0 = (const float *)a[0];
    float *x1 = (float *)a[1];
    #pragma omp simd
    for (int64_t i = 0; i < n0; i++)
    {
        const float v0 = x0[i];
        const float v2 = (float)(tanh(v0));
        const float v3_1 = (float)v1;
        const float v3 = (float)(v2 + v3_1);
        x1[i] = v3;
    }
}

static void by_many(const int64_t *a)
{
    const int threads = (int)a[7];
    const int64_t n0 = a[2];
    const double v1 = *(const double *)(a + 5);
    const float *x0 = (const float *)a[0];
    float *x1 = (float *)a[1];
    #pragma omp parallel for simd schedule(static) num_threads(threads)
    for (int64_t i = 0; i < n0; i++)
    {
        const float v0 = x0[i];
        const float v2 = (float)(tanh(v0));
        const float v3_1 = (float)v1;
        const float v3 = (float)(v2 + v3_1);
        x1[i] = v3;
    }
}

void kernel(const int64_t *a)
{
    const int threads = (int)a[7];
    if (threads > 1)
        by_many(a);
    else
        by_one(a);
}
