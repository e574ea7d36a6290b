void kernel(const int64_t *a)
{
    const int64_t n0 = a[3];
    const int threads = (int)a[7];
    const float *x0 = (const float *)a[0];
    const float *x1 = (const float *)a[1];
    float *x2 = (float *)a[2];
    double r4 = 0;
    enum { PARTS = 1024 };
    const int64_t least = (n0 + PARTS - 1) / PARTS;
    const int64_t size = least > 65536 ? least : 65536;
    const int64_t parts = (n0 + size - 1) / size;
    double q4[PARTS];
    #pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t k = 0; k < parts; k++) {
        const float *y0 = x0;
        const float *y1 = x1;
        double r4 = 0;
        const int64_t end = (k + 1) * size < n0 ? (k + 1) * size : n0;
        for (int64_t b = k * size; b < end; b += 512) {
            const int64_t e = b + 512 < end ? b + 512 : end;
            float p4 = 0;
            #pragma omp simd reduction(+ : p4)
            for (int64_t i = b; i < e; i++) {
                const float v0 = y0[i];
                const float v1 = y1[i];
                const float v2 = (float)(v0 - v1);
                const float v3 = (float)(v2 * v2);
                p4 = p4 + v3;
            }
            r4 = r4 + p4;
        }
        q4[k] = r4;
    }
    for (int64_t k = 0; k < parts; k++) {
        r4 = r4 + q4[k];
    }
    const float v4 = (float)(r4 / ((double)n0));
    x2[0] = v4;
}
