#if defined __AVX512F__ && defined __GNUC__ && !defined __clang__
#pragma GCC target("prefer-vector-width=512")
#endif
static char zeros[2097152];

static void shared_loop(const void *state, int64_t begin, int64_t end, int64_t thread)
{
    (void)thread;
    const int64_t *const a = state;
    const int64_t n1 = a[15];
    const int64_t n2 = a[16];
    const int64_t n3 = a[17];
    const int64_t s1_0 = a[22];
    const int64_t s1_1 = a[23];
    const int64_t s1_2 = a[24];
    const int64_t s2_0 = a[26];
    const int64_t s2_1 = a[27];
    const int64_t s2_2 = a[28];
    const int64_t s3_0 = a[30];
    const int64_t s3_1 = a[31];
    const int64_t s3_2 = a[32];
    const int64_t s4_0 = a[34];
    const int64_t s4_1 = a[35];
    const int64_t s4_2 = a[36];
    const int64_t s5_0 = a[38];
    const int64_t s5_1 = a[39];
    const int64_t s5_2 = a[40];
    const int64_t s6_0 = a[42];
    const int64_t s6_1 = a[43];
    const int64_t s6_2 = a[44];
    const int64_t s7_0 = a[46];
    const int64_t s7_1 = a[47];
    const int64_t s7_2 = a[48];
    const int64_t s13_0 = a[70];
    const int64_t s13_1 = a[71];
    const int64_t s13_2 = a[72];
    const int64_t o7 = a[74];
    const int64_t o9 = a[76];
    const int64_t o11 = a[78];
    const int64_t low0 = a[80];
    const int64_t high0 = a[81];
    const int64_t low1 = a[82];
    const int64_t high1 = a[83];
    const int64_t low2 = a[84];
    const int64_t high2 = a[85];
    const int64_t low3 = a[86];
    const int64_t high3 = a[87];
    int64_t i0 = begin / (n1 * ((n2 + 3) / 4));
    int64_t i1 = begin / ((n2 + 3) / 4) % n1;
    int64_t q = begin % ((n2 + 3) / 4);
    for (int64_t flat = begin; flat < end; flat++)
    {
        {
            const int64_t i2 = q * 4, below = n2 - i2;
            const int64_t rows = below < 4 ? below : 4;
            const float *x1 = (const float *)a[1] + i0 * s1_0 + i1 * s1_1 + i2 * s1_2;
            const float *x2 = (const float *)a[2] + i0 * s2_0 + i1 * s2_1 + i2 * s2_2;
            const float *x3 = (const float *)a[3] + i0 * s3_0 + i1 * s3_1 + i2 * s3_2;
            const float *x4 = (const float *)a[4] + i0 * s4_0 + i1 * s4_1 + i2 * s4_2;
            const float *x5 = (const float *)a[5] + i0 * s5_0 + i1 * s5_1 + i2 * s5_2;
            const float *x6 = (const float *)a[6] + i0 * s6_0 + i1 * s6_1 + i2 * s6_2;
            const float *x7 = (const float *)a[0] + o7 + i0 * s7_0 + i1 * s7_1 + i2 * s7_2;
            const float *x9 = x7 + (o9 - o7);
            const float *x11 = x7 + (o11 - o7);
            float *x13 = (float *)a[13] + i0 * s13_0 + i1 * s13_1 + i2 * s13_2;
            const int64_t after1 = 1 < rows ? 1 : rows - 1;
            const int64_t after2 = 2 < rows ? 2 : rows - 1;
            const int64_t after3 = 3 < rows ? 3 : rows - 1;
            const int is_in0 = (i2 >= low0) & (i2 < high0);
            const int is_in3 = (i2 >= low3) & (i2 < high3);
            const int is_in3_1 = ((i2 + after1) >= low3) & ((i2 + after1) < high3);
            const int is_in3_2 = ((i2 + after2) >= low3) & ((i2 + after2) < high3);
            const int is_in3_3 = ((i2 + after3) >= low3) & ((i2 + after3) < high3);
            const float *y7 = is_in0 ? x7 : (const float *)(zeros + 1048576);
            const float *y8 = y7 + 1;
            const float *y9 = x9;
            const float *y10 = y9 + 1;
            const float *y11 = is_in3 ? x11 : (const float *)(zeros + 1048576);
            const float *y11r1 = is_in3_1 ? x11 + after1 * s7_2 : (const float *)(zeros + 1048576);
            const float *y11r2 = is_in3_2 ? x11 + after2 * s7_2 : (const float *)(zeros + 1048576);
            const float *y11r3 = is_in3_3 ? x11 + after3 * s7_2 : (const float *)(zeros + 1048576);
            const float *y12 = y11 + 1;
            const float *y12r1 = y11r1 + 1;
            const float *y12r2 = y11r2 + 1;
            const float *y12r3 = y11r3 + 1;
            float *x13r1 = x13 + after1 * s13_2;
            float *x13r2 = x13 + after2 * s13_2;
            float *x13r3 = x13 + after3 * s13_2;
            const float v1 = x1[0];
            const float v2 = x2[0];
            const float v3 = x3[0];
            const float v4 = x4[0];
            const float v5 = x5[0];
            const float v6 = x6[0];
            int64_t from = 0, to = n3;
            from = from > low1 ? from : low1, to = to < high1 ? to : high1;
            from = from > low2 ? from : low2, to = to < high2 ? to : high2;
            from = (from + 15) / 16 * 16;
            to = from + (to - from) / 16 * 16;
            if (to - from < 8 || !(rows == 4))
                from = to = 0;
            const int64_t limit0 = high1;
            const int64_t limit1 = high2;
            for (int64_t c = from; c < to; c += 16)
            {
                #pragma omp simd
                for (int64_t i = c; i < c + 16; i++)
                {
                    const float v7 = y7[i];
                    const float v13 = (float)(v7 * v1);
                    const float v8 = y8[i];
                    const float v15 = (float)(multiply_add(v8, v2, v13));
                    const float v9 = y9[i];
                    const float v13r1 = (float)(v9 * v1);
                    const float v10 = y10[i];
                    const float v15r1 = (float)(multiply_add(v10, v2, v13r1));
                    const float v17 = (float)(multiply_add(v9, v3, v15));
                    const float v19 = (float)(multiply_add(v10, v4, v17));
                    const float v11 = y11[i];
                    const float v13r2 = (float)(v11 * v1);
                    const float v12 = y12[i];
                    const float v15r2 = (float)(multiply_add(v12, v2, v13r2));
                    const float v17r1 = (float)(multiply_add(v11, v3, v15r1));
                    const float v19r1 = (float)(multiply_add(v12, v4, v17r1));
                    const float v21 = (float)(multiply_add(v11, v5, v19));
                    const float v23 = (float)(multiply_add(v12, v6, v21));
                    const float v11r1 = y11r1[i];
                    const float v13r3 = (float)(v11r1 * v1);
                    const float v12r1 = y12r1[i];
                    const float v15r3 = (float)(multiply_add(v12r1, v2, v13r3));
                    const float v17r2 = (float)(multiply_add(v11r1, v3, v15r2));
                    const float v19r2 = (float)(multiply_add(v12r1, v4, v17r2));
                    const float v21r1 = (float)(multiply_add(v11r1, v5, v19r1));
                    const float v23r1 = (float)(multiply_add(v12r1, v6, v21r1));
                    const float v11r2 = y11r2[i];
                    const float v17r3 = (float)(multiply_add(v11r2, v3, v15r3));
                    const float v12r2 = y12r2[i];
                    const float v19r3 = (float)(multiply_add(v12r2, v4, v17r3));
                    const float v21r2 = (float)(multiply_add(v11r2, v5, v19r2));
                    const float v23r2 = (float)(multiply_add(v12r2, v6, v21r2));
                    const float v11r3 = y11r3[i];
                    const float v21r3 = (float)(multiply_add(v11r3, v5, v19r3));
                    const float v12r3 = y12r3[i];
                    const float v23r3 = (float)(multiply_add(v12r3, v6, v21r3));
                    x13[i] = v23;
                    x13r1[i] = v23r1;
                    x13r2[i] = v23r2;
                    x13r3[i] = v23r3;
                }
            }
            for (int side = 0; side < 2; side++)
            {
                const int64_t lower = side ? to : 0, upper = side ? n3 : from;
                #pragma omp simd
                for (int64_t i = lower; i < upper; i++)
                {
                    const float v7 = (i >= low1) & (i < limit0) ? y7[i] : 0.0f;
                    const float v13 = (float)(v7 * v1);
                    const float v8 = (i >= low2) & (i < limit1) ? y8[i] : 0.0f;
                    const float v15 = (float)(multiply_add(v8, v2, v13));
                    const float v9 = (i >= low1) & (i < limit0) ? y9[i] : 0.0f;
                    const float v13r1 = (float)(v9 * v1);
                    const float v10 = (i >= low2) & (i < limit1) ? y10[i] : 0.0f;
                    const float v15r1 = (float)(multiply_add(v10, v2, v13r1));
                    const float v17 = (float)(multiply_add(v9, v3, v15));
                    const float v19 = (float)(multiply_add(v10, v4, v17));
                    const float v11 = (i >= low1) & (i < limit0) ? y11[i] : 0.0f;
                    const float v13r2 = (float)(v11 * v1);
                    const float v12 = (i >= low2) & (i < limit1) ? y12[i] : 0.0f;
                    const float v15r2 = (float)(multiply_add(v12, v2, v13r2));
                    const float v17r1 = (float)(multiply_add(v11, v3, v15r1));
                    const float v19r1 = (float)(multiply_add(v12, v4, v17r1));
                    const float v21 = (float)(multiply_add(v11, v5, v19));
                    const float v23 = (float)(multiply_add(v12, v6, v21));
                    const float v11r1 = (i >= low1) & (i < limit0) ? y11r1[i] : 0.0f;
                    const float v13r3 = (float)(v11r1 * v1);
                    const float v12r1 = (i >= low2) & (i < limit1) ? y12r1[i] : 0.0f;
                    const float v15r3 = (float)(multiply_add(v12r1, v2, v13r3));
                    const float v17r2 = (float)(multiply_add(v11r1, v3, v15r2));
                    const float v19r2 = (float)(multiply_add(v12r1, v4, v17r2));
                    const float v21r1 = (float)(multiply_add(v11r1, v5, v19r1));
                    const float v23r1 = (float)(multiply_add(v12r1, v6, v21r1));
                    const float v11r2 = (i >= low1) & (i < limit0) ? y11r2[i] : 0.0f;
                    const float v17r3 = (float)(multiply_add(v11r2, v3, v15r3));
                    const float v12r2 = (i >= low2) & (i < limit1) ? y12r2[i] : 0.0f;
                    const float v19r3 = (float)(multiply_add(v12r2, v4, v17r3));
                    const float v21r2 = (float)(multiply_add(v11r2, v5, v19r2));
                    const float v23r2 = (float)(multiply_add(v12r2, v6, v21r2));
                    const float v11r3 = (i >= low1) & (i < limit0) ? y11r3[i] : 0.0f;
                    const float v21r3 = (float)(multiply_add(v11r3, v5, v19r3));
                    const float v12r3 = (i >= low2) & (i < limit1) ? y12r3[i] : 0.0f;
                    const float v23r3 = (float)(multiply_add(v12r3, v6, v21r3));
                    x13[i] = v23;
                    if (1 < rows) x13r1[i] = v23r1;
                    if (2 < rows) x13r2[i] = v23r2;
                    if (3 < rows) x13r3[i] = v23r3;
                }
            }
        }
        if (++q == ((n2 + 3) / 4))
        {
            q = 0;
            if (++i1 == n1)
            {
                i1 = 0;
                i0++;
            }
        }
    }
}

void kernel(const int64_t *a)
{
    const int64_t n0 = a[14];
    const int64_t n1 = a[15];
    const int64_t n2 = a[16];
    shared(shared_loop, a, n0 * n1 * ((n2 + 3) / 4), a + 89);
}
