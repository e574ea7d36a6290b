// kernel: grid (1, 1), block 256, shared 0

typedef struct alignas(8) { float re, im; } complex64;

__device__ __forceinline__ complex64 complex64_of(float re, float im)
{
    const complex64 z = {re, im};
    return z;
}

typedef int Index;

extern "C" __global__ void __launch_bounds__(256) kernel(
    const complex64 *a0,
    const complex64 *a1,
    complex64 *a2,
    long long n0,
    float c2)
{
    const float v2 = (float)c2;
    const int lanes = blockDim.x;
    const Index chunks = ((Index)n0 + 1) / 2;
    const Index total = chunks;
    #pragma unroll 1
    for (Index c = (Index)blockIdx.x * lanes * 1 + threadIdx.x; c < total; c += (Index)gridDim.x * lanes * 1)
    {
        Vector<complex64, 2> b0[1];
        Vector<complex64, 2> b1[1];
        #pragma unroll
        for (int u = 0; u < 1; u++)
        {
            const Index k = c + u * lanes;
            const complex64 *x0 = a0;
            const complex64 *x1 = a1;
            const Index i = k * 2;
            const int count = (Index)n0 - i < 2 ? (int)((Index)n0 - i) : 2;
            if (k < total)
            {
                b0[u] = loaded<2>(x0 + i, 0, count);
                b1[u] = loaded<2>(x1 + i, 0, count);
            }
        }
        #pragma unroll
        for (int u = 0; u < 1; u++)
        {
            const Index k = c + u * lanes;
            complex64 *x2 = a2;
            const Index i = k * 2;
            const int count = (Index)n0 - i < 2 ? (int)((Index)n0 - i) : 2;
            if (k < total)
            {
                Vector<complex64, 2> w2;
                #pragma unroll
                for (int e = 0; e < 2; e++)
                {
                    const complex64 v0 = b0[u].at[e];
                    const complex64 v1 = b1[u].at[e];
                    const float v3 = (float)(v0.re);
                    const float v4 = (float)(v0.im);
                    const float v5 = (float)(hypot(v3, v4));
                    const bool v6 = (bool)(v5 > v2);
                    const float v7 = (float)(v3 * v3);
                    const float v8 = (float)(v4 * v4);
                    const float v9 = (float)(v7 - v8);
                    const float v10 = (float)(v3 * v4);
                    const float v11 = (float)(v10 + v10);
                    const float v12 = (float)(v1.re);
                    const float v13 = (float)(v9 + v12);
                    const float v14 = (float)(v1.im);
                    const float v15 = (float)(v11 + v14);
                    const float v16 = (float)(v6 != 0 ? v3 : v13);
                    const float v17 = (float)(v6 != 0 ? v4 : v15);
                    const complex64 v18 = (complex64_of(v16, v17));
                    w2.at[e] = v18;
                }
                store(x2 + i, w2, 0, count);
            }
        }
    }
}
