// kernel: grid (16384, 1), block 256, shared 0

typedef int Index;

extern "C" __global__ void __launch_bounds__(256) kernel(
    const float *a0,
    const float *a1,
    const float *a2,
    const float *a3,
    float *a4,
    long long n0)
{
    const int lanes = blockDim.x;
    const Index chunks = ((Index)n0 + 3) / 4;
    const Index total = chunks;
    #pragma unroll 1
    for (Index c = (Index)blockIdx.x * lanes * 1 + threadIdx.x; c < total; c += (Index)gridDim.x * lanes * 1)
    {
        Vector<float, 4> b0[1];
        Vector<float, 4> b1[1];
        Vector<float, 4> b2[1];
        Vector<float, 4> b3[1];
        #pragma unroll
        for (int u = 0; u < 1; u++)
        {
            const Index k = c + u * lanes;
            const float *x0 = a0;
            const float *x1 = a1;
            const float *x2 = a2;
            const float *x3 = a3;
            const Index i = k * 4;
            if (k < total)
            {
                b0[u] = loaded<4>(x0 + i);
                b1[u] = loaded<4>(x1 + i);
                b2[u] = loaded<4>(x2 + i);
                b3[u] = loaded<4>(x3 + i);
            }
        }
        #pragma unroll
        for (int u = 0; u < 1; u++)
        {
            const Index k = c + u * lanes;
            float *x4 = a4;
            const Index i = k * 4;
            if (k < total)
            {
                Vector<float, 4> w4;
                #pragma unroll
                for (int e = 0; e < 4; e++)
                {
                    const float v0 = b0[u].at[e];
                    const float v1 = b1[u].at[e];
                    const float v2 = b2[u].at[e];
                    const float v3 = b3[u].at[e];
                    const float v4 = (float)(v0 * v1);
                    const float v5 = (float)(sin(v2));
                    const float v6 = (float)(v3 * v5);
                    const float v7 = (float)(v4 + v6);
                    w4.at[e] = v7;
                }
                store(x4 + i, w4);
            }
        }
    }
}
