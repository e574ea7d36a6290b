// kernel: grid (1, 1), block 256, shared 0

typedef int Index;

extern "C" __global__ void __launch_bounds__(256) kernel(
    const unsigned char *a0,
    const long long *a1,
    const double *a2,
    double *a3,
    long long n0,
    float c3)
{
    const float v3 = (float)c3;
    const int lanes = blockDim.x;
    const Index chunks = ((Index)n0 + 1) / 2;
    const Index total = chunks;
    #pragma unroll 1
    for (Index c = (Index)blockIdx.x * lanes * 1 + threadIdx.x; c < total; c += (Index)gridDim.x * lanes * 1)
    {
        Vector<unsigned char, 2> b0[1];
        Vector<long long, 2> b1[1];
        Vector<double, 2> b2[1];
        #pragma unroll
        for (int u = 0; u < 1; u++)
        {
            const Index k = c + u * lanes;
            const unsigned char *x0 = a0;
            const long long *x1 = a1;
            const double *x2 = a2;
            const Index i = k * 2;
            const int count = (Index)n0 - i < 2 ? (int)((Index)n0 - i) : 2;
            if (k < total)
            {
                b0[u] = loaded<2>(x0 + i, 0, count);
                b1[u] = loaded<2>(x1 + i, 0, count);
                b2[u] = loaded<2>(x2 + i, 0, count);
            }
        }
        #pragma unroll
        for (int u = 0; u < 1; u++)
        {
            const Index k = c + u * lanes;
            double *x3 = a3;
            const Index i = k * 2;
            const int count = (Index)n0 - i < 2 ? (int)((Index)n0 - i) : 2;
            if (k < total)
            {
                Vector<double, 2> w3;
                #pragma unroll
                for (int e = 0; e < 2; e++)
                {
                    const unsigned char v0 = b0[u].at[e];
                    const long long v1 = b1[u].at[e];
                    const double v2 = b2[u].at[e];
                    const long long v4_0 = (long long)v0;
                    const long long v4 = (long long)(v4_0 + v1);
                    const float v5 = (float)(v4);
                    const float v6 = (float)(v5 * v3);
                    const double v7_0 = (double)v6;
                    const double v7 = (double)(v7_0 + v2);
                    w3.at[e] = v7;
                }
                store(x3 + i, w3, 0, count);
            }
        }
    }
}
