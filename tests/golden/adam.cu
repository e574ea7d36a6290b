// kernel: grid (1, 1), block 256, shared 0

typedef int Index;

extern "C" __global__ void __launch_bounds__(256) kernel(
    const float *a0,
    const float *a1,
    const float *a2,
    const float *a3,
    const float *a4,
    float *a5,
    float *a6,
    float *a7,
    long long n0,
    float c5,
    float c6,
    float c7,
    float c8,
    float c9)
{
    const float v5 = (float)c5;
    const float v6 = (float)c6;
    const float v7 = (float)c7;
    const float v8 = (float)c8;
    const float v9 = (float)c9;
    const float v3 = *a3;
    const int lanes = blockDim.x;
    const Index chunks = ((Index)n0 + 3) / 4;
    const Index total = chunks;
    #pragma unroll 1
    for (Index c = (Index)blockIdx.x * lanes * 1 + threadIdx.x; c < total; c += (Index)gridDim.x * lanes * 1)
    {
        Vector<float, 4> b0[1];
        Vector<float, 4> b1[1];
        Vector<float, 4> b2[1];
        Vector<float, 4> b4[1];
        #pragma unroll
        for (int u = 0; u < 1; u++)
        {
            const Index k = c + u * lanes;
            const float *x0 = a0;
            const float *x1 = a1;
            const float *x2 = a2;
            const float *x4 = a4;
            const Index i = k * 4;
            if (k < total)
            {
                b0[u] = loaded<4>(x0 + i);
                b1[u] = loaded<4>(x1 + i);
                b2[u] = loaded<4>(x2 + i);
                b4[u] = loaded<4>(x4 + i);
            }
        }
        #pragma unroll
        for (int u = 0; u < 1; u++)
        {
            const Index k = c + u * lanes;
            float *x5 = a5;
            float *x6 = a6;
            float *x7 = a7;
            const Index i = k * 4;
            if (k < total)
            {
                Vector<float, 4> w5;
                Vector<float, 4> w6;
                Vector<float, 4> w7;
                #pragma unroll
                for (int e = 0; e < 4; e++)
                {
                    const float v0 = b0[u].at[e];
                    const float v1 = b1[u].at[e];
                    const float v2 = b2[u].at[e];
                    const float v4 = b4[u].at[e];
                    const float v10 = (float)(v5 * v0);
                    const float v11 = (float)(v6 * v1);
                    const float v12 = (float)(v10 + v11);
                    const float v13 = (float)(v7 * v2);
                    const float v14 = (float)(v8 * v1);
                    const float v15 = (float)(v14 * v1);
                    const float v16 = (float)(v13 + v15);
                    const float v17 = (float)(v3 * v12);
                    const float v18 = (float)(sqrt(v16));
                    const float v19 = (float)(v18 + v9);
                    const float v20 = (float)(v17 / v19);
                    const float v21 = (float)(v4 - v20);
                    w5.at[e] = v12;
                    w6.at[e] = v16;
                    w7.at[e] = v21;
                }
                store(x5 + i, w5);
                store(x6 + i, w6);
                store(x7 + i, w7);
            }
        }
    }
}
