// kernel: grid (4096, 1), block 128, shared 0

typedef int Index;
struct Join5 { __device__ double operator()(double x, double y) const { return x + y; } };
struct Join8 { __device__ double operator()(double x, double y) const { return x + y; } };

extern "C" __global__ void __launch_bounds__(128) kernel(
    const float *a0,
    const float *a1,
    const float *a2,
    const float *a3,
    float *a4,
    long long n0,
    long long n1,
    long long s0_0,
    long long s2_0,
    long long s3_0,
    long long s4_0,
    float c4)
{
    const float v4 = (float)c4;
    const float v1 = *a1;
    const int lane = threadIdx.x % 32, lanes = 32;
    const Index indices = (Index)n0, tiles = (indices + 3) / 4;
    const Index chunks = ((Index)n1 + 3) / 4;
    const Index row = chunks;
    #pragma unroll 1
    for (Index p = blockIdx.x; p < tiles; p += gridDim.x)
    {
        const Index index = p * 4 + threadIdx.x / 32;
        const bool in_range = index < indices;
        const Index i0 = (in_range ? index : 0);
        const Index until = in_range ? row : 0;
        const float *x0 = a0 + i0 * (Index)s0_0;
        const float *x2 = a2 + i0 * (Index)s2_0;
        const float *x3 = a3 + i0 * (Index)s3_0;
        float *x4 = a4 + i0 * (Index)s4_0;
        Vector<float, 4> g0[8];
        double r5 = 0;
        {
            float p5[4];
            #pragma unroll
            for (int e = 0; e < 4; e++)
            {
                p5[e] = 0;
            }
            #pragma unroll
            for (int u = 0; u < 8; u++)
            {
                const Index k = lane + u * lanes;
                const float *y0 = x0;
                const Index i = k * 4;
                if (k < until)
                {
                    g0[u] = loaded<4>(y0 + i);
                }
            }
            #pragma unroll
            for (int u = 0; u < 8; u++)
            {
                const Index k = lane + u * lanes;
                if (k < until)
                {
                    #pragma unroll
                    for (int e = 0; e < 4; e++)
                    {
                        const float v0 = g0[u].at[e];
                        p5[e] = p5[e] + v0;
                    }
                }
            }
            #pragma unroll
            for (int e = 0; e < 4; e++)
            {
                r5 = Join5()(r5, p5[e]);
            }
        }
        r5 = over_lanes(r5, Join5(), 32);
        const float v5 = (float)(r5 / ((double)n1));
        double r8 = 0;
        {
            float p8[4];
            #pragma unroll
            for (int e = 0; e < 4; e++)
            {
                p8[e] = 0;
            }
            #pragma unroll
            for (int u = 0; u < 8; u++)
            {
                const Index k = lane + u * lanes;
                if (k < until)
                {
                    #pragma unroll
                    for (int e = 0; e < 4; e++)
                    {
                        const float v0 = g0[u].at[e];
                        const float v6 = (float)(v0 - v5);
                        const float v7 = (float)(v6 * v6);
                        p8[e] = p8[e] + v7;
                    }
                }
            }
            #pragma unroll
            for (int e = 0; e < 4; e++)
            {
                r8 = Join8()(r8, p8[e]);
            }
        }
        r8 = over_lanes(r8, Join8(), 32);
        const float v8 = (float)(r8);
        const float v9 = (float)(v8 / v1);
        const float v10 = (float)(v9 + v4);
        const float v11 = (float)(sqrt(v10));
        {
            #pragma unroll
            for (int t = 0; t < 8; t += 2)
            {
                Vector<float, 4> b2[8];
                Vector<float, 4> b3[8];
                #pragma unroll
                for (int u = t; u < t + 2; u++)
                {
                    const Index k = lane + u * lanes;
                    const float *y2 = x2;
                    const float *y3 = x3;
                    const Index i = k * 4;
                    if (k < until)
                    {
                        b2[u] = loaded<4>(y2 + i);
                        b3[u] = loaded<4>(y3 + i);
                    }
                }
                #pragma unroll
                for (int u = t; u < t + 2; u++)
                {
                    const Index k = lane + u * lanes;
                    float *y4 = x4;
                    const Index i = k * 4;
                    if (k < until)
                    {
                        Vector<float, 4> w4;
                        #pragma unroll
                        for (int e = 0; e < 4; e++)
                        {
                            const float v0 = g0[u].at[e];
                            const float v2 = b2[u].at[e];
                            const float v3 = b3[u].at[e];
                            const float v6 = (float)(v0 - v5);
                            const float v12 = (float)(v6 / v11);
                            const float v13 = (float)(v12 * v2);
                            const float v14 = (float)(v13 + v3);
                            w4.at[e] = v14;
                        }
                        store(y4 + i, w4);
                    }
                }
            }
        }
    }
}
