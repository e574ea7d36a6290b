// kernel: grid (4096, 1), block 128, shared 0
// kernel: grid (1, 1), block 128, shared 0

typedef int Index;
struct Join7 { __device__ float operator()(float x, float y) const { return y > x || y != y ? y : x; } };
struct Join16 { __device__ double operator()(double x, double y) const { return x + y; } };
struct Join17 { __device__ double operator()(double x, double y) const { return x + y; } };
struct Join26 { __device__ double operator()(double x, double y) const { return x + y; } };
struct Join35 { __device__ double operator()(double x, double y) const { return x + y; } };

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
    const float v27_1 = (float)v5;
    const float v27 = (float)(v27_1);
    const float v28_1 = (float)v6;
    const float v28 = (float)(v27 / v28_1);
    const float v29 = (float)(-v28);
    const int lane = threadIdx.x, lanes = blockDim.x;
    const Index chunks = ((Index)n1 + 3) / 4;
    const Index row = chunks;
    __shared__ float parts7[32];
    __shared__ double parts16[32];
    __shared__ double parts17[32];
    for (Index p = blockIdx.x; p < (Index)n0; p += gridDim.x)
    {
        const Index i0 = p;
        const float *x0 = a0 + i0 * (Index)s0_0;
        const float *x1 = a1 + i0 * (Index)s1_0;
        float *x2 = a2 + i0 * (Index)s2_0;
        float *x3 = a3 + i0 * (Index)s3_0;
        Vector<float, 4> g0[2];
        Vector<float, 4> g1[2];
        Vector<float, 4> g14[2];
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
        double r16 = 0;
        double r17 = 0;
        {
            float p16[4];
            #pragma unroll
            for (int e = 0; e < 4; e++)
            {
                p16[e] = 0;
            }
            float p17[4];
            #pragma unroll
            for (int e = 0; e < 4; e++)
            {
                p17[e] = 0;
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
                        const float v13_1 = (float)v3;
                        const bool v13 = (bool)(v12 == v13_1);
                        const float v14 = (float)(exp(v12));
                        const float v15_1 = (float)v3;
                        const float v15 = (float)(v13 != 0 ? v15_1 : v14);
                        p16[e] = p16[e] + v15;
                        p17[e] = p17[e] + v14;
                        g14[u].at[e] = v14;
                    }
                }
            }
            #pragma unroll
            for (int e = 0; e < 4; e++)
            {
                r16 = Join16()(r16, p16[e]);
            }
            #pragma unroll
            for (int e = 0; e < 4; e++)
            {
                r17 = Join17()(r17, p17[e]);
            }
        }
        r16 = over_block(r16, Join16(), parts16);
        r17 = over_block(r17, Join17(), parts17);
        const float v16 = (float)(r16);
        const float v17 = (float)(r17);
        const float v18 = (float)(v17 - v16);
        const float v19 = (float)(rint(v18));
        const float v20_1 = (float)v4;
        const float v20 = (float)(v19 - v20_1);
        const float v21_1 = (float)v3;
        const float v21 = (float)(v20 < v21_1 || v21_1 != v21_1 ? v21_1 : v20);
        const float v22 = (float)(v16 + v21);
        const float v23 = (float)(log1p(v22));
        const float v32_1 = (float)v3;
        const bool v32 = (bool)(v17 == v32_1);
        const float v33_1 = (float)v4;
        const float v33 = (float)(v32 != 0 ? v33_1 : v17);
        double r26 = 0;
        double r35 = 0;
        {
            float p26[4];
            #pragma unroll
            for (int e = 0; e < 4; e++)
            {
                p26[e] = 0;
            }
            float p35[4];
            #pragma unroll
            for (int e = 0; e < 4; e++)
            {
                p35[e] = 0;
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
                        const float v24 = (float)(v12 - v23);
                        const float v25 = (float)(v1 * v24);
                        p26[e] = p26[e] + v25;
                        const float v30 = (float)(v29);
                        const float v31 = (float)(v30 * v1);
                        p35[e] = p35[e] + v31;
                    }
                }
            }
            #pragma unroll
            for (int e = 0; e < 4; e++)
            {
                r26 = Join26()(r26, p26[e]);
            }
            #pragma unroll
            for (int e = 0; e < 4; e++)
            {
                r35 = Join35()(r35, p35[e]);
            }
        }
        r26 = over_block(r26, Join26(), parts16);
        r35 = over_block(r35, Join35(), parts17);
        const float v26 = (float)(r26);
        const float v35 = (float)(r35);
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
                        const float v14 = g14[u].at[e];
                        const float v30 = (float)(v29);
                        const float v31 = (float)(v30 * v1);
                        const float v34 = (float)(v14 / v33);
                        const float v36 = (float)(v34 * v35);
                        const float v37 = (float)(v31 - v36);
                        w3.at[e] = v37;
                    }
                    store(y3 + i, w3);
                }
            }
        }
        if (lane == 0)
        {
            x2[0] = v26;
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
