// kernel: grid (4096, 1), block 128, shared 0
// kernel: grid (1, 1), block 128, shared 0

typedef int Index;
struct Join7 { __device__ float operator()(float x, float y) const { return y > x || y != y ? y : x; } };
struct Join14 { __device__ double operator()(double x, double y) const { return x + y; } };
struct Join20 { __device__ double operator()(double x, double y) const { return x + y; } };
struct Join27 { __device__ double operator()(double x, double y) const { return x + y; } };

extern "C" __global__ void __launch_bounds__(256) kernel(
    const float *a0,
    const float *a1,
    float *a2,
    float *a3,
    long long n0,
    long long n1,
    long long s0_0,
    long long s1_0,
    long long s2_0,
    long long s3_0,
    double c2,
    double c3,
    double c4,
    double c5,
    double c6)
{
    const double v2 = (double)c2;
    const double v3 = (double)c3;
    const double v4 = (double)c4;
    const double v5 = (double)c5;
    const double v6 = (double)c6;
    const float v21_1 = (float)v5;
    const float v21 = (float)(v21_1);
    const float v22_1 = (float)v6;
    const float v22 = (float)(v21 / v22_1);
    const float v23 = (float)(-v22);
    const int lane = threadIdx.x, lanes = blockDim.x;
    const Index chunks = ((Index)n1 + 3) / 4;
    const Index row = chunks;
    __shared__ float parts7[32];
    __shared__ double parts14[32];
    __shared__ double parts20[32];
    for (Index p = blockIdx.x; p < (Index)n0; p += gridDim.x)
    {
        const Index i0 = p;
        const float *x0 = a0 + i0 * (Index)s0_0;
        const float *x1 = a1 + i0 * (Index)s1_0;
        float *x2 = a2 + i0 * (Index)s2_0;
        float *x3 = a3 + i0 * (Index)s3_0;
        Vector<float, 4> g0[2];
        Vector<float, 4> g1[2];
        Vector<float, 4> g13[2];
        float r7 = -INFINITY;
        {
            float p7[4];
            #pragma unroll
            for (int e = 0; e < 4; e++)
            {
                p7[e] = -INFINITY;
            }
            #pragma unroll
            for (int u = 0; u < 2; u++)
            {
                const Index k = lane + u * lanes;
                const float *y0 = x0;
                const Index i = k * 4;
                if (k < row)
                {
                    g0[u] = loaded<4>(y0 + i);
                }
            }
            #pragma unroll
            for (int u = 0; u < 2; u++)
            {
                const Index k = lane + u * lanes;
                if (k < row)
                {
                    #pragma unroll
                    for (int e = 0; e < 4; e++)
                    {
                        const float v0 = g0[u].at[e];
                        p7[e] = v0 > p7[e] || v0 != v0 ? v0 : p7[e];
                    }
                }
            }
            #pragma unroll
            for (int e = 0; e < 4; e++)
            {
                r7 = Join7()(r7, p7[e]);
            }
        }
        r7 = over_block(r7, Join7(), parts7);
        const float v7 = (float)(r7);
        const float v8_1 = (float)v2;
        const bool v8 = (bool)(v7 == v8_1);
        const float v9_1 = (float)v3;
        const float v9 = (float)(v8 != 0 ? v9_1 : v7);
        double r14 = 0;
        {
            float p14[4];
            #pragma unroll
            for (int e = 0; e < 4; e++)
            {
                p14[e] = 0;
            }
            #pragma unroll
            for (int u = 0; u < 2; u++)
            {
                const Index k = lane + u * lanes;
                if (k < row)
                {
                    #pragma unroll
                    for (int e = 0; e < 4; e++)
                    {
                        const float v0 = g0[u].at[e];
                        const bool v10 = (bool)(v0 == v9);
                        const float v11 = (float)(v0 - v9);
                        const float v12_1 = (float)v3;
                        const float v12 = (float)(v10 != 0 ? v12_1 : v11);
                        const float v13 = (float)(exp(v12));
                        p14[e] = p14[e] + v13;
                        g13[u].at[e] = v13;
                    }
                }
            }
            #pragma unroll
            for (int e = 0; e < 4; e++)
            {
                r14 = Join14()(r14, p14[e]);
            }
        }
        r14 = over_block(r14, Join14(), parts14);
        const float v14 = (float)(r14);
        const float v15_1 = (float)v3;
        const bool v15 = (bool)(v14 == v15_1);
        const float v16_1 = (float)v4;
        const float v16 = (float)(v15 != 0 ? v16_1 : v14);
        const float v17 = (float)(log(v16));
        double r20 = 0;
        double r27 = 0;
        {
            float p20[4];
            #pragma unroll
            for (int e = 0; e < 4; e++)
            {
                p20[e] = 0;
            }
            float p27[4];
            #pragma unroll
            for (int e = 0; e < 4; e++)
            {
                p27[e] = 0;
            }
            #pragma unroll
            for (int u = 0; u < 2; u++)
            {
                const Index k = lane + u * lanes;
                const float *y1 = x1;
                const Index i = k * 4;
                if (k < row)
                {
                    g1[u] = loaded<4>(y1 + i);
                }
            }
            #pragma unroll
            for (int u = 0; u < 2; u++)
            {
                const Index k = lane + u * lanes;
                if (k < row)
                {
                    #pragma unroll
                    for (int e = 0; e < 4; e++)
                    {
                        const float v0 = g0[u].at[e];
                        const float v1 = g1[u].at[e];
                        const bool v10 = (bool)(v0 == v9);
                        const float v11 = (float)(v0 - v9);
                        const float v12_1 = (float)v3;
                        const float v12 = (float)(v10 != 0 ? v12_1 : v11);
                        const float v18 = (float)(v12 - v17);
                        const float v19 = (float)(v1 * v18);
                        p20[e] = p20[e] + v19;
                        const float v24 = (float)(v23);
                        const float v25 = (float)(v24 * v1);
                        p27[e] = p27[e] + v25;
                    }
                }
            }
            #pragma unroll
            for (int e = 0; e < 4; e++)
            {
                r20 = Join20()(r20, p20[e]);
            }
            #pragma unroll
            for (int e = 0; e < 4; e++)
            {
                r27 = Join27()(r27, p27[e]);
            }
        }
        r20 = over_block(r20, Join20(), parts20);
        const float v20 = (float)(r20);
        r27 = over_block(r27, Join27(), parts14);
        const float v27 = (float)(r27);
        {
            #pragma unroll
            for (int u = 0; u < 2; u++)
            {
                const Index k = lane + u * lanes;
                float *y3 = x3;
                const Index i = k * 4;
                if (k < row)
                {
                    Vector<float, 4> w3;
                    #pragma unroll
                    for (int e = 0; e < 4; e++)
                    {
                        const float v1 = g1[u].at[e];
                        const float v13 = g13[u].at[e];
                        const float v24 = (float)(v23);
                        const float v25 = (float)(v24 * v1);
                        const float v26 = (float)(v13 / v16);
                        const float v28 = (float)(v26 * v27);
                        const float v29 = (float)(v25 - v28);
                        w3.at[e] = v29;
                    }
                    store(y3 + i, w3);
                }
            }
        }
        if (lane == 0)
        {
            x2[0] = v20;
        }
        if (p + gridDim.x < (Index)n0)
        {
            __syncthreads();
        }
    }
}

typedef int Index;
struct Join2 { __device__ double operator()(double x, double y) const { return x + y; } };

extern "C" __global__ void __launch_bounds__(256) kernel(
    const float *a0,
    float *a1,
    long long n0,
    double c1)
{
    const double v1 = (double)c1;
    const int lane = threadIdx.x, lanes = blockDim.x;
    const Index chunks = ((Index)n0 + 3) / 4;
    const Index row = chunks;
    __shared__ double parts2[32];
    for (Index p = blockIdx.x; p < 1; p += gridDim.x)
    {
        const float *x0 = a0;
        float *x1 = a1;
        double r2 = 0;
        {
            float p2[4];
            #pragma unroll
            for (int e = 0; e < 4; e++)
            {
                p2[e] = 0;
            }
            #pragma unroll
            for (int t = 0; t < 8; t += 4)
            {
                Vector<float, 4> b0[8];
                #pragma unroll
                for (int u = t; u < t + 4; u++)
                {
                    const Index k = lane + u * lanes;
                    const float *y0 = x0;
                    const Index i = k * 4;
                    if (k < row)
                    {
                        b0[u] = loaded<4>(y0 + i);
                    }
                }
                #pragma unroll
                for (int u = t; u < t + 4; u++)
                {
                    const Index k = lane + u * lanes;
                    if (k < row)
                    {
                        #pragma unroll
                        for (int e = 0; e < 4; e++)
                        {
                            const float v0 = b0[u].at[e];
                            p2[e] = p2[e] + v0;
                        }
                    }
                }
            }
            #pragma unroll
            for (int e = 0; e < 4; e++)
            {
                r2 = Join2()(r2, p2[e]);
            }
        }
        r2 = over_block(r2, Join2(), parts2);
        const float v2 = (float)(r2);
        const float v3 = (float)(-v2);
        const float v4_1 = (float)v1;
        const float v4 = (float)(v3 / v4_1);
        if (lane == 0)
        {
            x1[0] = v4;
        }
        if (p + gridDim.x < 1)
        {
            __syncthreads();
        }
    }
}
