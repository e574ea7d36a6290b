// kernel: grid (2048, 1), block 128, shared 0

typedef int Index;
struct Join4 { __device__ float operator()(float x, float y) const { return largest(x, y); } };
struct Join11 { __device__ double operator()(double x, double y) const { return x + y; } };

extern "C" __global__ void __launch_bounds__(128) kernel(
    const float *a0,
    float *a1,
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
    const int lane = threadIdx.x % 4, lanes = 4;
    const Index indices = (Index)n0, tiles = (indices + 31) / 32;
    const Index chunks = ((Index)n1 + 3) / 4;
    const Index row = chunks;
    #pragma unroll 1
    for (Index p = blockIdx.x; p < tiles; p += gridDim.x)
    {
        const Index index = p * 32 + threadIdx.x / 4;
        const bool in_range = index < indices;
        const Index i0 = (in_range ? index : 0);
        const Index until = in_range ? row : 0;
        const float *x0 = a0 + i0 * (Index)s0_0;
        float *x1 = a1 + i0 * (Index)s1_0;
        Vector<float, 4> g0[2];
        Vector<float, 4> g10[2];
        float r4 = -INFINITY;
        {
            float p4[4];
            #pragma unroll
            for (int e = 0; e < 4; e++)
            {
                p4[e] = -INFINITY;
            }
            #pragma unroll
            for (int u = 0; u < 2; u++)
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
            for (int u = 0; u < 2; u++)
            {
                const Index k = lane + u * lanes;
                if (k < until)
                {
                    #pragma unroll
                    for (int e = 0; e < 4; e++)
                    {
                        const float v0 = g0[u].at[e];
                        p4[e] = largest(p4[e], v0);
                    }
                }
            }
            #pragma unroll
            for (int e = 0; e < 4; e++)
            {
                r4 = Join4()(r4, p4[e]);
            }
        }
        r4 = over_lanes(r4, Join4(), 4);
        const float v4 = (float)(r4);
        const bool v5 = (bool)(v4 == v1);
        const float v6 = (float)(v5 != 0 ? v2 : v4);
        double r11 = 0;
        {
            float p11[4];
            #pragma unroll
            for (int e = 0; e < 4; e++)
            {
                p11[e] = 0;
            }
            #pragma unroll
            for (int u = 0; u < 2; u++)
            {
                const Index k = lane + u * lanes;
                if (k < until)
                {
                    #pragma unroll
                    for (int e = 0; e < 4; e++)
                    {
                        const float v0 = g0[u].at[e];
                        const bool v7 = (bool)(v0 == v6);
                        const float v8 = (float)(v0 - v6);
                        const float v9 = (float)(v7 != 0 ? v2 : v8);
                        const float v10 = (float)(exp(v9));
                        p11[e] = p11[e] + v10;
                        g10[u].at[e] = v10;
                    }
                }
            }
            #pragma unroll
            for (int e = 0; e < 4; e++)
            {
                r11 = Join11()(r11, p11[e]);
            }
        }
        r11 = over_lanes(r11, Join11(), 4);
        const float v11 = (float)(r11);
        const bool v12 = (bool)(v11 == v2);
        const float v13 = (float)(v12 != 0 ? v3 : v11);
        const float v14 = (float)((float)1 / v13);
        {
            #pragma unroll
            for (int u = 0; u < 2; u++)
            {
                const Index k = lane + u * lanes;
                float *y1 = x1;
                const Index i = k * 4;
                if (k < until)
                {
                    Vector<float, 4> w1;
                    #pragma unroll
                    for (int e = 0; e < 4; e++)
                    {
                        const float v10 = g10[u].at[e];
                        const float v15 = (float)(v10 * v14);
                        w1.at[e] = v15;
                    }
                    store(y1 + i, w1);
                }
            }
        }
    }
}
