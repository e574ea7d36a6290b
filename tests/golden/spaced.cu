// kernel: grid (1, 1), block 256, shared 0

typedef int Index;

extern "C" __global__ void __launch_bounds__(256) kernel(
    const float *a0,
    const float *a1,
    long long a2,
    long long a3,
    float *a4,
    long long n0,
    long long n1,
    long long s2_0,
    long long s3_0,
    long long s4_0,
    long long o2,
    long long o3,
    long long low0,
    long long high0,
    long long m1)
{
    const int lanes = blockDim.x;
    const Index chunks = ((Index)n1 + 0) / 1;
    const Index total = chunks * (Index)n0;
    #pragma unroll 1
    for (Index c = (Index)blockIdx.x * lanes * 1 + threadIdx.x; c < total; c += (Index)gridDim.x * lanes * 1)
    {
        Vector<float, 1> b2[1];
        Vector<float, 1> b3[1];
        #pragma unroll
        for (int u = 0; u < 1; u++)
        {
            const Index k = c + u * lanes;
            const Index before = quotient(k, m1);
            const Index i0 = before;
            const Index quotient1 = (i0 + 2) / 3;
            const Index rest1 = (i0 + 2) % 3;
            const float *x2 = a0 + (Index)o2 + i0 * (Index)s2_0;
            const float *x3 = a1 + (Index)o3 + quotient1 * (Index)s3_0;
            const int is_in0 = (i0 >= (Index)low0) & (i0 < (Index)high0);
            const Index i = (k - before * chunks) * 1;
            if (k < total)
            {
                b2[u].at[0] = (((i + 0) % 2 < 1)) ? x2[(i + 0) / 2] : 0.0f;
                b3[u].at[0] = (is_in0 & (rest1 < 1)) ? x3[i] : 0.0f;
            }
        }
        #pragma unroll
        for (int u = 0; u < 1; u++)
        {
            const Index k = c + u * lanes;
            const Index before = quotient(k, m1);
            const Index i0 = before;
            float *x4 = a4 + i0 * (Index)s4_0;
            const Index i = (k - before * chunks) * 1;
            if (k < total)
            {
                Vector<float, 1> w4;
                #pragma unroll
                for (int e = 0; e < 1; e++)
                {
                    const float v2 = b2[u].at[e];
                    const float v3 = b3[u].at[e];
                    const float v4 = (float)(v2 + v3);
                    w4.at[e] = v4;
                }
                x4[i] = w4.at[0];
            }
        }
    }
}
