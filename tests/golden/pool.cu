// kernel: grid (1, 1), block 256, shared 0

typedef int Index;

extern "C" __global__ void __launch_bounds__(256) kernel(
    const float *a0,
    long long a1,
    long long a2,
    long long a3,
    long long a4,
    long long a5,
    long long a6,
    float *a7,
    long long n0,
    long long n1,
    long long n2,
    long long s1_0,
    long long s1_1,
    long long s1_2,
    long long s7_0,
    long long s7_1,
    long long o1,
    long long o2,
    long long o3,
    long long o4,
    long long o5,
    long long o6,
    long long low0,
    long long high0,
    long long low1,
    long long high1,
    long long low2,
    long long high2,
    float c7,
    long long m1,
    long long m2)
{
    const float v7 = (float)c7;
    const int lanes = blockDim.x;
    const Index chunks = ((Index)n2 + 0) / 1;
    const Index total = chunks * (Index)n0 * (Index)n1;
    #pragma unroll 1
    for (Index c = (Index)blockIdx.x * lanes * 1 + threadIdx.x; c < total; c += (Index)gridDim.x * lanes * 1)
    {
        Vector<float, 1> b1[1];
        Vector<float, 1> b2[1];
        Vector<float, 1> b3[1];
        Vector<float, 1> b4[1];
        Vector<float, 1> b5[1];
        Vector<float, 1> b6[1];
        #pragma unroll
        for (int u = 0; u < 1; u++)
        {
            const Index k = c + u * lanes;
            const Index before = quotient(k, m2);
            const Index over1 = quotient(before, m1);
            const Index i1 = before - over1 * (Index)n1;
            const Index i0 = over1;
            const float *x1 = a0 + (Index)o1 + i0 * (Index)s1_0 + i1 * (Index)s1_1;
            const float *x2 = x1 + ((Index)o2 - (Index)o1);
            const float *x3 = x1 + ((Index)o3 - (Index)o1);
            const float *x4 = x1 + ((Index)o4 - (Index)o1);
            const float *x5 = x1 + ((Index)o5 - (Index)o1);
            const float *x6 = x1 + ((Index)o6 - (Index)o1);
            const int is_in0 = (i1 >= (Index)low0) & (i1 < (Index)high0);
            const int is_in2 = (i1 >= (Index)low2) & (i1 < (Index)high2);
            const Index i = (k - before * chunks) * 1;
            if (k < total)
            {
                b1[u].at[0] = (is_in0 & (i >= (Index)low1) & (i < (Index)high1)) ? x1[i * (Index)s1_2] : -INFINITY;
                b2[u].at[0] = (is_in0) ? x2[i * (Index)s1_2] : -INFINITY;
                b3[u].at[0] = (is_in0) ? x3[i * (Index)s1_2] : -INFINITY;
                b4[u].at[0] = (is_in2 & (i >= (Index)low1) & (i < (Index)high1)) ? x4[i * (Index)s1_2] : -INFINITY;
                b5[u].at[0] = (is_in2) ? x5[i * (Index)s1_2] : -INFINITY;
                b6[u].at[0] = (is_in2) ? x6[i * (Index)s1_2] : -INFINITY;
            }
        }
        #pragma unroll
        for (int u = 0; u < 1; u++)
        {
            const Index k = c + u * lanes;
            const Index before = quotient(k, m2);
            const Index over1 = quotient(before, m1);
            const Index i1 = before - over1 * (Index)n1;
            const Index i0 = over1;
            float *x7 = a7 + i0 * (Index)s7_0 + i1 * (Index)s7_1;
            const Index i = (k - before * chunks) * 1;
            if (k < total)
            {
                Vector<float, 1> w7;
                #pragma unroll
                for (int e = 0; e < 1; e++)
                {
                    const float v1 = b1[u].at[e];
                    const float v2 = b2[u].at[e];
                    const float v3 = b3[u].at[e];
                    const float v4 = b4[u].at[e];
                    const float v5 = b5[u].at[e];
                    const float v6 = b6[u].at[e];
                    const bool v8 = (bool)(v1 != v1);
                    const bool v9 = (bool)(v2 != v2);
                    const bool v10 = (bool)(v8 != 0 || v9 != 0);
                    const bool v11 = (bool)(v3 != v3);
                    const bool v12 = (bool)(v4 != v4);
                    const bool v13 = (bool)(v11 != 0 || v12 != 0);
                    const bool v14 = (bool)(v10 != 0 || v13 != 0);
                    const bool v15 = (bool)(v5 != v5);
                    const bool v16 = (bool)(v6 != v6);
                    const bool v17 = (bool)(v15 != 0 || v16 != 0);
                    const bool v18 = (bool)(v14 != 0 || v17 != 0);
                    const bool v19 = (bool)(v2 > v1);
                    const float v20 = (float)(v19 != 0 ? v2 : v1);
                    const bool v21 = (bool)(v3 > v20);
                    const float v22 = (float)(v21 != 0 ? v3 : v20);
                    const bool v23 = (bool)(v4 > v22);
                    const float v24 = (float)(v23 != 0 ? v4 : v22);
                    const bool v25 = (bool)(v5 > v24);
                    const float v26 = (float)(v25 != 0 ? v5 : v24);
                    const bool v27 = (bool)(v6 > v26);
                    const float v28 = (float)(v27 != 0 ? v6 : v26);
                    const float v29 = (float)(v18 != 0 ? v7 : v28);
                    const float v30 = (float)(v29 > 0 || v29 != v29 ? v29 : (float)0);
                    w7.at[e] = v30;
                }
                x7[i] = w7.at[0];
            }
        }
    }
}
