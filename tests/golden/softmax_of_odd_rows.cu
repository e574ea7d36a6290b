// kernel: grid (4096, 1), block 128, shared 0

typedef int Index;
struct Join4 { __device__ float operator()(float x, float y) const { return largest(x, y); } };
struct Join11 { __device__ float operator()(float x, float y) const { return x + y; } };

extern "C" __global__ void __launch_bounds__(128) kernel(
    const __half *a0,
    __half *a1,
    long long n0,
    long long n1,
    long long s0_0,
    long long s1_0,
    float c1,
    float c2,
    float c3)
{
    const float v1 = (float)c1;
    const float v2 = (float)c2;
    const float v3 = (float)c3;
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
        Vector<float, 8> g10[4];
        float r4 = -INFINITY;
        {
            float p4[8];
            #pragma unroll
            for (int e = 0; e < 8; e++)
            {
                p4[e] = -INFINITY;
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
                        if (e >= first && e < count) p4[e] = largest(p4[e], (float)v0);
                    }
                }
            }
            #pragma unroll
            for (int e = 0; e < 8; e++)
            {
                r4 = Join4()(r4, p4[e]);
            }
        }
        r4 = over_lanes(r4, Join4(), 32);
        const float v4 = (float)(r4);
        const bool v5 = (bool)(v4 == v1);
        const float v6 = (float)(v5 != 0 ? v2 : v4);
        float r11 = 0;
        {
            float p11[8];
            #pragma unroll
            for (int e = 0; e < 8; e++)
            {
                p11[e] = 0;
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
                        const bool v7 = (bool)(v0 == v6);
                        const float v8 = (float)(v0 - v6);
                        const float v9 = (float)(v7 != 0 ? v2 : v8);
                        const float v10 = (float)(near_exp(v9));
                        if (e >= first && e < count) p11[e] = p11[e] + v10;
                        g10[u].at[e] = v10;
                    }
                }
            }
            #pragma unroll
            for (int e = 0; e < 8; e++)
            {
                r11 = Join11()(r11, p11[e]);
            }
        }
        r11 = over_lanes(r11, Join11(), 32);
        const float v11 = (float)(r11);
        const bool v12 = (bool)(v11 == v2);
        const float v13 = (float)(v12 != 0 ? v3 : v11);
        const float v14 = (float)((float)1 / v13);
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
                    Vector<float, 8> w1;
                    #pragma unroll
                    for (int e = 0; e < 8; e++)
                    {
                        const float v10 = g10[u].at[e];
                        const float v15 = (float)(v10 * v14);
                        w1.at[e] = v15;
                    }
                    store(y1 + i, narrowed<__half>(w1), first, count);
                }
            }
        }
    }
}
