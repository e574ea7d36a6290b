// kernel: grid (4096, 1), block 128, shared 0

typedef int Index;
struct Join5 { __device__ float operator()(float x, float y) const { return largest(x, y); } };
struct Join12 { __device__ float operator()(float x, float y) const { return x + y; } };

extern "C" __global__ void __launch_bounds__(128) kernel(
    const __half *a0,
    __half *a1,
    long long n0,
    long long n1,
    long long s0_0,
    long long s1_0,
    double c1,
    double c2,
    double c3)
{
    const double v1 = (double)c1;
    const double v2 = (double)c2;
    const double v3 = (double)c3;
    const int lane = threadIdx.x % 32, lanes = 32;
    const Index indices = (Index)n0, tiles = (indices + 3) / 4;
    const Index chunks = ((Index)n1 + 14) / 8;
    const Index row = chunks;
    #pragma unroll 1
    for (Index p = blockIdx.x; p < tiles; p += gridDim.x)
    {
        const Index index = p * 4 + threadIdx.x / 32;
        const bool in_range = index < indices;
        const Index i0 = (in_range ? index : 0);
        const Index until = in_range ? row : 0;
        const __half *x0 = a0 + i0 * (Index)s0_0;
        __half *x1 = a1 + i0 * (Index)s1_0;
        const int shift = (int)((unsigned long long)x0 / 2 % 8);
        Vector<__half, 8> g0[4];
        Vector<float, 8> g11[4];
        float r5 = -INFINITY;
        {
            float p5[8];
            #pragma unroll
            for (int e = 0; e < 8; e++)
            {
                p5[e] = -INFINITY;
            }
            #pragma unroll
            for (int u = 0; u < 4; u++)
            {
                const Index k = lane + u * lanes;
                const __half *y0 = x0;
                const Index i = k * 8 - shift;
                const int count = (Index)n1 - i < 8 ? (int)((Index)n1 - i) : 8;
                const int first = i < 0 ? (int)-i : 0;
                if (k < until)
                {
                    g0[u] = loaded<8>(y0 + i, first, count);
                }
            }
            #pragma unroll
            for (int u = 0; u < 4; u++)
            {
                const Index k = lane + u * lanes;
                const Index i = k * 8 - shift;
                const int count = (Index)n1 - i < 8 ? (int)((Index)n1 - i) : 8;
                const int first = i < 0 ? (int)-i : 0;
                if (k < until)
                {
                    #pragma unroll
                    for (int e = 0; e < 8; e++)
                    {
                        const float v0 = from_half(g0[u].at[e]);
                        const float v4 = (float)(v0);
                        if (e >= first && e < count) p5[e] = largest(p5[e], v4);
                    }
                }
            }
            #pragma unroll
            for (int e = 0; e < 8; e++)
            {
                r5 = Join5()(r5, p5[e]);
            }
        }
        r5 = over_lanes(r5, Join5(), 32);
        const float v5 = (float)(r5);
        const float v6_1 = (float)v1;
        const bool v6 = (bool)(v5 == v6_1);
        const float v7_1 = (float)v2;
        const float v7 = (float)(v6 != 0 ? v7_1 : v5);
        float r12 = 0;
        {
            float p12[8];
            #pragma unroll
            for (int e = 0; e < 8; e++)
            {
                p12[e] = 0;
            }
            #pragma unroll
            for (int u = 0; u < 4; u++)
            {
                const Index k = lane + u * lanes;
                const Index i = k * 8 - shift;
                const int count = (Index)n1 - i < 8 ? (int)((Index)n1 - i) : 8;
                const int first = i < 0 ? (int)-i : 0;
                if (k < until)
                {
                    #pragma unroll
                    for (int e = 0; e < 8; e++)
                    {
                        const float v0 = from_half(g0[u].at[e]);
                        const float v4 = (float)(v0);
                        const bool v8 = (bool)(v4 == v7);
                        const float v9 = (float)(v4 - v7);
                        const float v10_1 = (float)v2;
                        const float v10 = (float)(v8 != 0 ? v10_1 : v9);
                        const float v11 = (float)(exp(v10));
                        if (e >= first && e < count) p12[e] = p12[e] + v11;
                        g11[u].at[e] = v11;
                    }
                }
            }
            #pragma unroll
            for (int e = 0; e < 8; e++)
            {
                r12 = Join12()(r12, p12[e]);
            }
        }
        r12 = over_lanes(r12, Join12(), 32);
        const float v12 = (float)(r12);
        const float v13_1 = (float)v2;
        const bool v13 = (bool)(v12 == v13_1);
        const float v14_1 = (float)v3;
        const float v14 = (float)(v13 != 0 ? v14_1 : v12);
        const float v15 = (float)((float)1 / v14);
        {
            #pragma unroll
            for (int u = 0; u < 4; u++)
            {
                const Index k = lane + u * lanes;
                __half *y1 = x1;
                const Index i = k * 8 - shift;
                const int count = (Index)n1 - i < 8 ? (int)((Index)n1 - i) : 8;
                const int first = i < 0 ? (int)-i : 0;
                if (k < until)
                {
                    Vector<__half, 8> w1;
                    #pragma unroll
                    for (int e = 0; e < 8; e++)
                    {
                        const float v11 = g11[u].at[e];
                        const float v16 = (float)(v11 * v15);
                        const __half h17 = to_half((v16));
                        w1.at[e] = h17;
                    }
                    store(y1 + i, w1, first, count);
                }
            }
        }
    }
}
