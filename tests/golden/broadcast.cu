// kernel: grid (1, 1), block 256, shared 0

typedef int Index;

extern "C" __global__ void __launch_bounds__(256) kernel(
    const float *a0,
    const float *a1,
    const float *a2,
    float *a3,
    long long n0,
    long long n1,
    long long s0_0,
    long long s1_0,
    long long s2_0,
    long long s3_0,
    long long m1)
{
    const int lanes = blockDim.x;
    const Index chunks = ((Index)n1 + 1) / 2;
    const Index total = chunks * (Index)n0;
    #pragma unroll 1
    for (Index c = (Index)blockIdx.x * lanes * 1 + threadIdx.x; c < total; c += (Index)gridDim.x * lanes * 1)
    {
        Vector<float, 2> b0[1];
        Vector<float, 2> b1[1];
        Vector<float, 2> b2[1];
        #pragma unroll
        for (int u = 0; u < 1; u++)
        {
            const Index k = c + u * lanes;
            const Index before = quotient(k, m1);
            const Index i0 = before;
            const float *x0 = a0 + i0 * (Index)s0_0;
            const float *x1 = a1 + i0 * (Index)s1_0;
            const float *x2 = a2 + i0 * (Index)s2_0;
            const Index i = (k - before * chunks) * 2;
            if (k < total)
            {
                b0[u] = loaded<2>(x0 + i);
                b1[u] = loaded<2>(x1 + i);
                #pragma unroll
                for (int e = 0; e < 2; e++)
                {
                    b2[u].at[e] = x2[0];
                }
            }
        }
        #pragma unroll
        for (int u = 0; u < 1; u++)
        {
            const Index k = c + u * lanes;
            const Index before = quotient(k, m1);
            const Index i0 = before;
            float *x3 = a3 + i0 * (Index)s3_0;
            const Index i = (k - before * chunks) * 2;
            if (k < total)
            {
                Vector<float, 2> w3;
                #pragma unroll
                for (int e = 0; e < 2; e++)
                {
                    const float v0 = b0[u].at[e];
                    const float v1 = b1[u].at[e];
                    const float v2 = b2[u].at[e];
                    const float v3 = (float)(v0 - v1);
                    const float v4 = (float)(v3 * v2);
                    w3.at[e] = v4;
                }
                store(x3 + i, w3);
            }
        }
    }
}
