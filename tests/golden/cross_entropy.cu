// kernel: grid (4096, 1), block 256, shared 0
// kernel: grid (1, 1), block 128, shared 0

typedef int Index;
struct Join6 { __device__ float operator()(float x, float y) const { return largest(x, y); } };
struct Join15 { __device__ double operator()(double x, double y) const { return x + y; } };
struct Join16 { __device__ double operator()(double x, double y) const { return x + y; } };
struct Join25 { __device__ double operator()(double x, double y) const { return x + y; } };
struct Join32 { __device__ double operator()(double x, double y) const { return x + y; } };

extern "C" __global__ void __launch_bounds__(256) kernel(
    const float *a0,
    const float *a1,
    const float *a2,
    float *a3,
    float *a4,
    long long n0,
    long long n1,
    long long s0_0,
    long long s1_0,
    long long s3_0,
    long long s4_0,
    float c3,
    float c4,
    float c5)
{
    const float v3 = (float)c3;
    const float v4 = (float)c4;
    const float v5 = (float)c5;
    const float v2 = *a2;
    const int lane = threadIdx.x, lanes = blockDim.x;
    const Index chunks = ((Index)n1 + 3) / 4;
    const Index row = chunks;
    __shared__ float parts6[32];
    __shared__ double parts15[32];
    __shared__ double parts32[32];
    #pragma unroll 1
    for (Index p = blockIdx.x; p < (Index)n0; p += gridDim.x)
    {
        const Index i0 = p;
        const float *x0 = a0 + i0 * (Index)s0_0;
        const float *x1 = a1 + i0 * (Index)s1_0;
        float *x3 = a3 + i0 * (Index)s3_0;
        float *x4 = a4 + i0 * (Index)s4_0;
        Vector<float, 4> g0[1];
        Vector<float, 4> g1[1];
        Vector<float, 4> g13[1];
        float r6 = -INFINITY;
        double r32 = 0;
        {
            float p6[4];
            #pragma unroll
            for (int e = 0; e < 4; e++)
            {
                p6[e] = -INFINITY;
            }
            float p32[4];
            #pragma unroll
            for (int e = 0; e < 4; e++)
            {
                p32[e] = 0;
            }
            #pragma unroll
            for (int u = 0; u < 1; u++)
            {
                const Index k = lane + u * lanes;
                const float *y0 = x0;
                const float *y1 = x1;
                const Index i = k * 4;
                if (k < row)
                {
                    g0[u] = loaded<4>(y0 + i);
                    g1[u] = loaded<4>(y1 + i);
                }
            }
            #pragma unroll
            for (int u = 0; u < 1; u++)
            {
                const Index k = lane + u * lanes;
                if (k < row)
                {
                    #pragma unroll
                    for (int e = 0; e < 4; e++)
                    {
                        const float v0 = g0[u].at[e];
                        const float v1 = g1[u].at[e];
                        p6[e] = largest(p6[e], v0);
                        const float v26 = (float)(v2);
                        const float v27 = (float)(v26 * v1);
                        p32[e] = p32[e] + v27;
                    }
                }
            }
            #pragma unroll
            for (int e = 0; e < 4; e++)
            {
                r6 = Join6()(r6, p6[e]);
            }
            #pragma unroll
            for (int e = 0; e < 4; e++)
            {
                r32 = Join32()(r32, p32[e]);
            }
        }
        r6 = over_block(r6, Join6(), parts6);
        r32 = over_block(r32, Join32(), parts32);
        const float v6 = (float)(r6);
        const float v32 = (float)(r32);
        const bool v7 = (bool)(v6 == v3);
        const float v8 = (float)(v7 != 0 ? v4 : v6);
        double r15 = 0;
        double r16 = 0;
        {
            float p15[4];
            #pragma unroll
            for (int e = 0; e < 4; e++)
            {
                p15[e] = 0;
            }
            float p16[4];
            #pragma unroll
            for (int e = 0; e < 4; e++)
            {
                p16[e] = 0;
            }
            #pragma unroll
            for (int u = 0; u < 1; u++)
            {
                const Index k = lane + u * lanes;
                if (k < row)
                {
                    #pragma unroll
                    for (int e = 0; e < 4; e++)
                    {
                        const float v0 = g0[u].at[e];
                        const bool v9 = (bool)(v0 == v8);
                        const float v10 = (float)(v0 - v8);
                        const float v11 = (float)(v9 != 0 ? v4 : v10);
                        const bool v12 = (bool)(v11 == v4);
                        const float v13 = (float)(exp(v11));
                        const float v14 = (float)(v12 != 0 ? v4 : v13);
                        p15[e] = p15[e] + v14;
                        p16[e] = p16[e] + v13;
                        g13[u].at[e] = v13;
                    }
                }
            }
            #pragma unroll
            for (int e = 0; e < 4; e++)
            {
                r15 = Join15()(r15, p15[e]);
            }
            #pragma unroll
            for (int e = 0; e < 4; e++)
            {
                r16 = Join16()(r16, p16[e]);
            }
        }
        r15 = over_block(r15, Join15(), parts15);
        r16 = over_block(r16, Join16(), parts32);
        const float v15 = (float)(r15);
        const float v16 = (float)(r16);
        const float v17 = (float)(v16 - v15);
        const float v18 = (float)(rint(v17));
        const float v19 = (float)(v18 - v5);
        const float v20 = (float)((v19 < v4 ? v4 : v19) + (v4 != v4 ? v4 : (float)-0.0));
        const float v21 = (float)(v15 + v20);
        const float v22 = (float)(log1p(v21));
        const bool v28 = (bool)(v16 == v4);
        const float v29 = (float)(v28 != 0 ? v5 : v16);
        const float v30 = (float)((float)1 / v29);
        double r25 = 0;
        {
            float p25[4];
            #pragma unroll
            for (int e = 0; e < 4; e++)
            {
                p25[e] = 0;
            }
            #pragma unroll
            for (int u = 0; u < 1; u++)
            {
                const Index k = lane + u * lanes;
                float *y4 = x4;
                const Index i = k * 4;
                if (k < row)
                {
                    Vector<float, 4> w4;
                    #pragma unroll
                    for (int e = 0; e < 4; e++)
                    {
                        const float v0 = g0[u].at[e];
                        const float v1 = g1[u].at[e];
                        const float v13 = g13[u].at[e];
                        const bool v9 = (bool)(v0 == v8);
                        const float v10 = (float)(v0 - v8);
                        const float v11 = (float)(v9 != 0 ? v4 : v10);
                        const float v23 = (float)(v11 - v22);
                        const float v24 = (float)(v1 * v23);
                        p25[e] = p25[e] + v24;
                        const float v26 = (float)(v2);
                        const float v27 = (float)(v26 * v1);
                        const float v31 = (float)(v13 * v30);
                        const float v33 = (float)(v31 * v32);
                        const float v34 = (float)(v27 - v33);
                        w4.at[e] = v34;
                    }
                    store(y4 + i, w4);
                }
            }
            #pragma unroll
            for (int e = 0; e < 4; e++)
            {
                r25 = Join25()(r25, p25[e]);
            }
        }
        r25 = over_block(r25, Join25(), parts15);
        const float v25 = (float)(r25);
        if (lane == 0)
        {
            x3[0] = v25;
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
    float c1)
{
    const float v1 = (float)c1;
    const int lane = threadIdx.x, lanes = blockDim.x;
    const Index chunks = ((Index)n0 + 3) / 4;
    const Index row = chunks;
    __shared__ double parts2[32];
    #pragma unroll 1
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
        const float v4 = (float)(v3 / v1);
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
