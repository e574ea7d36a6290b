static void shared_loop(const void *state, int64_t begin, int64_t end, int64_t thread)
{
    (void)thread;
    const int64_t *const a = state;
    const int64_t n0 = a[8];
    const double v5 = *(const double *)(a + 17);
    const double v6 = *(const double *)(a + 18);
    const double v7 = *(const double *)(a + 19);
    const double v8 = *(const double *)(a + 20);
    const double v9 = *(const double *)(a + 21);
    const float v3 = *(const float *)a[3];
    const float *x0 = (const float *)a[0];
    const float *x1 = (const float *)a[1];
    const float *x2 = (const float *)a[2];
    const float *x4 = (const float *)a[4];
    float *x5 = (float *)a[5];
    float *x6 = (float *)a[6];
    float *x7 = (float *)a[7];
    const int64_t stop = end * 1024 < n0 ? end * 1024 : n0;
    #pragma omp simd
    for (int64_t i = begin * 1024; i < stop; i++)
    {
        const float v0 = x0[i];
        const float v1 = x1[i];
        const float v2 = x2[i];
        const float v4 = x4[i];
        const float v10_0 = (float)v5;
        const float v10 = (float)(v10_0 * v0);
        const float v11_0 = (float)v6;
        const float v11 = (float)(v11_0 * v1);
        const float v12 = (float)(v10 + v11);
        const float v13_0 = (float)v7;
        const float v13 = (float)(v13_0 * v2);
        const float v14_0 = (float)v8;
        const float v14 = (float)(v14_0 * v1);
        const float v15 = (float)(v14 * v1);
        const float v16 = (float)(v13 + v15);
        const float v17 = (float)(v3 * v12);
        const float v18 = (float)(sqrt(v16));
        const float v19_1 = (float)v9;
        const float v19 = (float)(v18 + v19_1);
        const float v20 = (float)(v17 / v19);
        const float v21 = (float)(v4 - v20);
        x5[i] = v12;
        x6[i] = v16;
        x7[i] = v21;
    }
}

void kernel(const int64_t *a)
{
    const int64_t n0 = a[8];
    shared(shared_loop, a, (n0 + 1023) / 1024, a + 23);
}
