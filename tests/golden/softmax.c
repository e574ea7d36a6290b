#pragma omp declare reduction(join1 : float : omp_out = omp_in > omp_out ? omp_in : omp_out) initializer(omp_priv = -INFINITY)
static void shared_loop(const void *state, int64_t begin, int64_t end, int64_t thread)
{
    (void)thread;
    const int64_t *const a = state;
    const int64_t n1 = a[3];
    const int64_t s0_0 = a[4];
    const int64_t s1_0 = a[6];
    char *const t0 = (char *)a[8];
    const int64_t thread_stride = a[9];
    float *const w3 = (float *)(t0 + thread * thread_stride);
    for (int64_t i0 = begin; i0 < end; i0++)
    {
        const float *x0 = (const float *)a[0] + i0 * s0_0;
        float *x1 = (float *)a[1] + i0 * s1_0;
        float r1 = -INFINITY;
        {
            const float *y0 = x0;
            for (int64_t b = 0; b < n1; b += 4096)
            {
                const int64_t e = b + 4096 < n1 ? b + 4096 : n1;
                float p1 = -INFINITY;
                int f1 = 0;
                #pragma omp simd reduction(join1 : p1) reduction(| : f1)
                for (int64_t i = b; i < e; i++)
                {
                    const float v0 = y0[i];
                    p1 = v0 > p1 ? v0 : p1;
                    f1 |= v0 != v0;
                }
                p1 = f1 ? NAN : p1;
                r1 = p1 > r1 || p1 != p1 ? p1 : r1;
            }
        }
        const float v1 = (float)(r1);
        double r4 = 0;
        {
            const float *y0 = x0;
            float *const g3 = w3;
            for (int64_t b = 0; b < n1; b += 512)
            {
                const int64_t e = b + 512 < n1 ? b + 512 : n1;
                float p4 = 0;
                #pragma omp simd reduction(+ : p4)
                for (int64_t i = b; i < e; i++)
                {
                    const float v0 = y0[i];
                    const float v2 = (float)(v0 - v1);
                    const float v3 = (float)(exp(v2));
                    p4 = p4 + v3;
                    g3[i] = v3;
                }
                r4 = r4 + p4;
            }
        }
        const float v4 = (float)(r4);
        {
            float *y1 = x1;
            float *const g3 = w3;
            #pragma omp simd
            for (int64_t i = 0; i < n1; i++)
            {
                const float v3 = g3[i];
                const float v5 = (float)(v3 / v4);
                y1[i] = v5;
            }
        }
    }
}

void kernel(const int64_t *a)
{
    const int64_t n0 = a[2];
    shared(shared_loop, a, n0, a + 10);
}
