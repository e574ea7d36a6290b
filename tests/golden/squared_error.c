void kernel(const int64_t *a)
{
    const int64_t n0 = a[3];
    const float *x0 = (const float *)a[0];
    const float *x1 = (const float *)a[1];
    float *x2 = (float *)a[2];
    double r4 = 0;
    {
        const float *y0 = x0;
        const float *y1 = x1;
        for (int64_t b = 0; b < n0; b += 512)
        {
            const int64_t e = b + 512 < n0 ? b + 512 : n0;
            float p4 = 0;
            #pragma omp simd reduction(+ : p4)
            for (int64_t i = b; i < e; i++)
            {
                const float v0 = y0[i];
                const float v1 = y1[i];
                const float v2 = (float)(v0 - v1);
                const float v3 = (float)(v2 * v2);
                p4 = p4 + v3;
            }
            r4 = r4 + p4;
        }
    }
    const float v4 = (float)(r4 / ((double)n0));
    x2[0] = v4;
}
