// kernel: grid (188, 1), block 256, shared 0

typedef int Index;
struct Join4 { __device__ double operator()(double x, double y) const { return x + y; } };

extern "C" __global__ void __launch_bounds__(256) kernel(
    const float *a0,
    const float *a1,
    const float *a2,
    float *a3,
    long long n0,
    long long n1,
    long long n2,
    long long s0_0,
    long long s0_2,
    long long s1_0,
    long long s1_2,
    long long s2_0,
    long long s3_0,
    long long m1)
{
    const int lane = threadIdx.x / 32, lanes = 8;
    const Index indices = (Index)n0 * (Index)n1, tiles = (indices + 31) / 32;
    const Index chunks = (Index)n2;
    const Index row = chunks;
    __shared__ double parts4[256];
    #pragma unroll 1
    for (Index p = blockIdx.x; p < tiles; p += gridDim.x)
    {
        const Index index = p * 32 + threadIdx.x % 32;
        const bool in_range = index < indices;
        const Index over1 = quotient((in_range ? index : 0), m1);
        const Index i1 = ((in_range ? index : 0) - over1 * (Index)n1);
        const Index i0 = over1;
        const Index until = in_range ? row : 0;
        const float *x0 = a0 + i0 * (Index)s0_0;
        const float *x1 = a1 + i0 * (Index)s1_0 + i1;
        const float *x2 = a2 + i0 * (Index)s2_0 + i1;
        float *x3 = a3 + i0 * (Index)s3_0 + i1;
        const float v2 = x2[0];
        double r4 = 0;
        for (Index b = 0 + lane; b < until; b += 64 * (Index)lanes)
        {
            const Index stop = b + 64 * (Index)lanes < until ? b + 64 * (Index)lanes : until;
            float p4[1];
            #pragma unroll
            for (int e = 0; e < 1; e++)
            {
                p4[e] = 0;
            }
            for (Index c = b; c < stop; c += 4 * (Index)lanes)
            {
                Vector<float, 1> b0[4];
                Vector<float, 1> b1[4];
                #pragma unroll
                for (int u = 0; u < 4; u++)
                {
                    const Index k = c + u * lanes;
                    const float *y0 = x0;
                    const float *y1 = x1;
                    const Index i = k;
                    if (k < stop)
                    {
                        b0[u].at[0] = y0[i * (Index)s0_2];
                        b1[u].at[0] = y1[i * (Index)s1_2];
                    }
                }
                #pragma unroll
                for (int u = 0; u < 4; u++)
                {
                    const Index k = c + u * lanes;
                    if (k < stop)
                    {
                        #pragma unroll
                        for (int e = 0; e < 1; e++)
                        {
                            const float v0 = b0[u].at[e];
                            const float v1 = b1[u].at[e];
                            const float v3 = (float)(v0 * v1);
                            p4[e] = p4[e] + v3;
                        }
                    }
                }
            }
            #pragma unroll
            for (int e = 0; e < 1; e++)
            {
                r4 = Join4()(r4, p4[e]);
            }
        }
        r4 = over_column(r4, Join4(), parts4, 32);
        const float v4 = (float)(r4);
        const float v5 = (float)(v4 + v2);
        const float v6 = (float)(tanh(v5));
        if (lane == 0 && in_range)
        {
            x3[0] = v6;
        }
    }
}
