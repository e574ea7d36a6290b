static void shared_loop(const void *state, int64_t begin, int64_t end, int64_t thread)
{
    (void)thread;
    const int64_t *const a = state;
    const int64_t n1 = a[9];
    const int64_t n2 = a[10];
    const int64_t s1_0 = a[14];
    const int64_t s1_1 = a[15];
    const int64_t s1_2 = a[16];
    const int64_t s7_0 = a[32];
    const int64_t s7_1 = a[33];
    const int64_t o1 = a[35];
    const int64_t o2 = a[36];
    const int64_t o3 = a[37];
    const int64_t o4 = a[38];
    const int64_t o5 = a[39];
    const int64_t o6 = a[40];
    const int64_t low0 = a[41];
    const int64_t high0 = a[42];
    const int64_t low1 = a[43];
    const int64_t high1 = a[44];
    const int64_t low2 = a[45];
    const int64_t high2 = a[46];
    const double v7 = *(const double *)(a + 47);
    int64_t i0 = begin / n1;
    int64_t i1 = begin % n1;
    for (int64_t flat = begin; flat < end; flat++)
    {
        {
            const float *x1 = (const float *)a[0] + o1 + i0 * s1_0 + i1 * s1_1;
            const float *x2 = x1 + (o2 - o1);
            const float *x3 = x1 + (o3 - o1);
            const float *x4 = x1 + (o4 - o1);
            const float *x5 = x1 + (o5 - o1);
            const float *x6 = x1 + (o6 - o1);
            float *x7 = (float *)a[7] + i0 * s7_0 + i1 * s7_1;
            const int is_in0 = (i1 >= low0) & (i1 < high0);
            const int is_in2 = (i1 >= low2) & (i1 < high2);
            int64_t from = 0, to = n2;
            from = from > low1 ? from : low1, to = to < high1 ? to : high1;
            if (to - from < 8 || !(is_in0) || !(is_in2))
                from = to = 0;
            const int64_t limit0 = is_in0 ? high1 : 0;
            const int64_t limit1 = is_in0 ? n2 : 0;
            const int64_t limit2 = is_in2 ? high1 : 0;
            const int64_t limit3 = is_in2 ? n2 : 0;
            #pragma omp simd
            for (int64_t i = from; i < to; i++)
            {
                const float v1 = x1[i * s1_2];
                const float v2 = x2[i * s1_2];
                const float v3 = x3[i * s1_2];
                const float v4 = x4[i * s1_2];
                const float v5 = x5[i * s1_2];
                const float v6 = x6[i * s1_2];
                const _Bool v8 = (_Bool)(v1 != v1);
                const _Bool v9 = (_Bool)(v2 != v2);
                const _Bool v10 = (_Bool)(v8 != 0 || v9 != 0);
                const _Bool v11 = (_Bool)(v3 != v3);
                const _Bool v12 = (_Bool)(v4 != v4);
                const _Bool v13 = (_Bool)(v11 != 0 || v12 != 0);
                const _Bool v14 = (_Bool)(v10 != 0 || v13 != 0);
                const _Bool v15 = (_Bool)(v5 != v5);
                const _Bool v16 = (_Bool)(v6 != v6);
                const _Bool v17 = (_Bool)(v15 != 0 || v16 != 0);
                const _Bool v18 = (_Bool)(v14 != 0 || v17 != 0);
                const _Bool v19 = (_Bool)(v2 > v1);
                const float v20 = (float)(v19 != 0 ? v2 : v1);
                const _Bool v21 = (_Bool)(v3 > v20);
                const float v22 = (float)(v21 != 0 ? v3 : v20);
                const _Bool v23 = (_Bool)(v4 > v22);
                const float v24 = (float)(v23 != 0 ? v4 : v22);
                const _Bool v25 = (_Bool)(v5 > v24);
                const float v26 = (float)(v25 != 0 ? v5 : v24);
                const _Bool v27 = (_Bool)(v6 > v26);
                const float v28 = (float)(v27 != 0 ? v6 : v26);
                const float v29_1 = (float)v7;
                const float v29 = (float)(v18 != 0 ? v29_1 : v28);
                const float v30 = (float)(v29 > 0 || v29 != v29 ? v29 : (float)0);
                x7[i] = v30;
            }
            for (int side = 0; side < 2; side++)
            {
                const int64_t lower = side ? to : 0, upper = side ? n2 : from;
                #pragma omp simd
                for (int64_t i = lower; i < upper; i++)
                {
                    const float v1 = (i >= low1) & (i < limit0) ? x1[i * s1_2] : -INFINITY;
                    const float v2 = i < limit1 ? x2[i * s1_2] : -INFINITY;
                    const float v3 = i < limit1 ? x3[i * s1_2] : -INFINITY;
                    const float v4 = (i >= low1) & (i < limit2) ? x4[i * s1_2] : -INFINITY;
                    const float v5 = i < limit3 ? x5[i * s1_2] : -INFINITY;
                    const float v6 = i < limit3 ? x6[i * s1_2] : -INFINITY;
                    const _Bool v8 = (_Bool)(v1 != v1);
                    const _Bool v9 = (_Bool)(v2 != v2);
                    const _Bool v10 = (_Bool)(v8 != 0 || v9 != 0);
                    const _Bool v11 = (_Bool)(v3 != v3);
                    const _Bool v12 = (_Bool)(v4 != v4);
                    const _Bool v13 = (_Bool)(v11 != 0 || v12 != 0);
                    const _Bool v14 = (_Bool)(v10 != 0 || v13 != 0);
                    const _Bool v15 = (_Bool)(v5 != v5);
                    const _Bool v16 = (_Bool)(v6 != v6);
                    const _Bool v17 = (_Bool)(v15 != 0 || v16 != 0);
                    const _Bool v18 = (_Bool)(v14 != 0 || v17 != 0);
                    const _Bool v19 = (_Bool)(v2 > v1);
                    const float v20 = (float)(v19 != 0 ? v2 : v1);
                    const _Bool v21 = (_Bool)(v3 > v20);
                    const float v22 = (float)(v21 != 0 ? v3 : v20);
                    const _Bool v23 = (_Bool)(v4 > v22);
                    const float v24 = (float)(v23 != 0 ? v4 : v22);
                    const _Bool v25 = (_Bool)(v5 > v24);
                    const float v26 = (float)(v25 != 0 ? v5 : v24);
                    const _Bool v27 = (_Bool)(v6 > v26);
                    const float v28 = (float)(v27 != 0 ? v6 : v26);
                    const float v29_1 = (float)v7;
                    const float v29 = (float)(v18 != 0 ? v29_1 : v28);
                    const float v30 = (float)(v29 > 0 || v29 != v29 ? v29 : (float)0);
                    x7[i] = v30;
                }
            }
        }
        if (++i1 == n1)
        {
            i1 = 0;
            i0++;
        }
    }
}

void kernel(const int64_t *a)
{
    const int64_t n0 = a[8];
    const int64_t n1 = a[9];
    shared(shared_loop, a, n0 * n1, a + 49);
}
