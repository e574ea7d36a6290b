// stage0: grid (2, 264), block 256, shared 0
// stage1: grid (2, 264), block 256, shared 0
// stage2: grid (2, 264), block 256, shared 0

typedef int Index;
struct Join3 { __device__ double operator()(double x, double y) const { return x + y; } };
struct Join6 { __device__ double operator()(double x, double y) const { return x + y; } };

extern "C" __global__ void __launch_bounds__(256) stage0(
    const float *a0,
    const float *a1,
    float *a2,
    double *q3,
    double *q6,
    long long n0,
    long long n1,
    long long s0_1,
    long long s2_1,
    float c2,
    long long part,
    int parts)
{
    const int lane = threadIdx.x / 32, lanes = 8;
    const Index indices = (Index)(n0 / 4), tiles = (indices + 31) / 32;
    const Index chunks = (Index)n1;
    const Index row = chunks;
    const Index start = (Index)blockIdx.y * (Index)part;
    const Index end = start + (Index)part < row ? start + (Index)part : row;
    __shared__ double parts3[256];
    #pragma unroll 1
    for (Index p = blockIdx.x; p < tiles; p += gridDim.x)
    {
        const Index index = p * 32 + threadIdx.x % 32;
        const bool in_range = index < indices;
        const Index i0 = (in_range ? index : 0) * 4;
        const Index until = in_range ? end : start;
        const float *x0 = a0 + i0;
        double r3[4];
        #pragma unroll
        for (int e = 0; e < 4; e++)
        {
            r3[e] = 0;
        }
        for (Index b = start + lane; b < until; b += 64 * (Index)lanes)
        {
            const Index stop = b + 64 * (Index)lanes < until ? b + 64 * (Index)lanes : until;
            float p3[4];
            #pragma unroll
            for (int e = 0; e < 4; e++)
            {
                p3[e] = 0;
            }
            for (Index c = b; c < stop; c += 4 * (Index)lanes)
            {
                Vector<float, 4> b0[4];
                #pragma unroll
                for (int u = 0; u < 4; u++)
                {
                    const Index k = c + u * lanes;
                    const float *y0 = x0;
                    const Index i = k;
                    if (k < stop)
                    {
                        b0[u] = loaded<4>(y0 + i * (Index)s0_1);
                    }
                }
                #pragma unroll
                for (int u = 0; u < 4; u++)
                {
                    const Index k = c + u * lanes;
                    if (k < stop)
                    {
                        #pragma unroll
                        for (int e = 0; e < 4; e++)
                        {
                            const float v0 = b0[u].at[e];
                            p3[e] = p3[e] + v0;
                        }
                    }
                }
            }
            #pragma unroll
            for (int e = 0; e < 4; e++)
            {
                r3[e] = Join3()(r3[e], p3[e]);
            }
        }
        #pragma unroll
        for (int e = 0; e < 4; e++)
        {
            r3[e] = over_column(r3[e], Join3(), parts3, 32);
        }
        if (lane == 0 && in_range)
        {
            #pragma unroll
            for (int e = 0; e < 4; e++)
            {
                q3[((long long)index * 4 + e) * parts + blockIdx.y] = r3[e];
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(256) stage1(
    const float *a0,
    const float *a1,
    float *a2,
    double *q3,
    double *q6,
    long long n0,
    long long n1,
    long long s0_1,
    long long s2_1,
    float c2,
    long long part,
    int parts)
{
    const int lane = threadIdx.x / 32, lanes = 8;
    const Index indices = (Index)(n0 / 4), tiles = (indices + 31) / 32;
    const Index chunks = (Index)n1;
    const Index row = chunks;
    const Index start = (Index)blockIdx.y * (Index)part;
    const Index end = start + (Index)part < row ? start + (Index)part : row;
    __shared__ double parts3[256];
    __shared__ double parts6[256];
    #pragma unroll 1
    for (Index p = blockIdx.x; p < tiles; p += gridDim.x)
    {
        const Index index = p * 32 + threadIdx.x % 32;
        const bool in_range = index < indices;
        const Index i0 = (in_range ? index : 0) * 4;
        const Index until = in_range ? end : start;
        const float *x0 = a0 + i0;
        double r3[4];
        #pragma unroll
        for (int e = 0; e < 4; e++)
        {
            r3[e] = 0;
        }
        for (int k = lane; k < parts; k += lanes)
        {
            #pragma unroll
            for (int e = 0; e < 4; e++)
            {
                r3[e] = Join3()(r3[e], q3[((long long)index * 4 + e) * parts + k]);
            }
        }
        #pragma unroll
        for (int e = 0; e < 4; e++)
        {
            r3[e] = over_column(r3[e], Join3(), parts3, 32);
        }
        float v3[4];
        #pragma unroll
        for (int e = 0; e < 4; e++)
        {
            v3[e] = (float)(r3[e] / ((double)n1));
        }
        double r6[4];
        #pragma unroll
        for (int e = 0; e < 4; e++)
        {
            r6[e] = 0;
        }
        for (Index b = start + lane; b < until; b += 64 * (Index)lanes)
        {
            const Index stop = b + 64 * (Index)lanes < until ? b + 64 * (Index)lanes : until;
            float p6[4];
            #pragma unroll
            for (int e = 0; e < 4; e++)
            {
                p6[e] = 0;
            }
            for (Index c = b; c < stop; c += 4 * (Index)lanes)
            {
                Vector<float, 4> b0[4];
                #pragma unroll
                for (int u = 0; u < 4; u++)
                {
                    const Index k = c + u * lanes;
                    const float *y0 = x0;
                    const Index i = k;
                    if (k < stop)
                    {
                        b0[u] = loaded<4>(y0 + i * (Index)s0_1);
                    }
                }
                #pragma unroll
                for (int u = 0; u < 4; u++)
                {
                    const Index k = c + u * lanes;
                    if (k < stop)
                    {
                        #pragma unroll
                        for (int e = 0; e < 4; e++)
                        {
                            const float v0 = b0[u].at[e];
                            const float v4 = (float)(v0 - v3[e]);
                            const float v5 = (float)(v4 * v4);
                            p6[e] = p6[e] + v5;
                        }
                    }
                }
            }
            #pragma unroll
            for (int e = 0; e < 4; e++)
            {
                r6[e] = Join6()(r6[e], p6[e]);
            }
        }
        #pragma unroll
        for (int e = 0; e < 4; e++)
        {
            r6[e] = over_column(r6[e], Join6(), parts6, 32);
        }
        if (lane == 0 && in_range)
        {
            #pragma unroll
            for (int e = 0; e < 4; e++)
            {
                q6[((long long)index * 4 + e) * parts + blockIdx.y] = r6[e];
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(256) stage2(
    const float *a0,
    const float *a1,
    float *a2,
    double *q3,
    double *q6,
    long long n0,
    long long n1,
    long long s0_1,
    long long s2_1,
    float c2,
    long long part,
    int parts)
{
    const float v2 = (float)c2;
    const float v1 = *a1;
    const int lane = threadIdx.x / 32, lanes = 8;
    const Index indices = (Index)(n0 / 4), tiles = (indices + 31) / 32;
    const Index chunks = (Index)n1;
    const Index row = chunks;
    const Index start = (Index)blockIdx.y * (Index)part;
    const Index end = start + (Index)part < row ? start + (Index)part : row;
    __shared__ double parts3[256];
    __shared__ double parts6[256];
    #pragma unroll 1
    for (Index p = blockIdx.x; p < tiles; p += gridDim.x)
    {
        const Index index = p * 32 + threadIdx.x % 32;
        const bool in_range = index < indices;
        const Index i0 = (in_range ? index : 0) * 4;
        const Index until = in_range ? end : start;
        const float *x0 = a0 + i0;
        float *x2 = a2 + i0;
        double r3[4];
        #pragma unroll
        for (int e = 0; e < 4; e++)
        {
            r3[e] = 0;
        }
        for (int k = lane; k < parts; k += lanes)
        {
            #pragma unroll
            for (int e = 0; e < 4; e++)
            {
                r3[e] = Join3()(r3[e], q3[((long long)index * 4 + e) * parts + k]);
            }
        }
        #pragma unroll
        for (int e = 0; e < 4; e++)
        {
            r3[e] = over_column(r3[e], Join3(), parts3, 32);
        }
        float v3[4];
        #pragma unroll
        for (int e = 0; e < 4; e++)
        {
            v3[e] = (float)(r3[e] / ((double)n1));
        }
        double r6[4];
        #pragma unroll
        for (int e = 0; e < 4; e++)
        {
            r6[e] = 0;
        }
        for (int k = lane; k < parts; k += lanes)
        {
            #pragma unroll
            for (int e = 0; e < 4; e++)
            {
                r6[e] = Join6()(r6[e], q6[((long long)index * 4 + e) * parts + k]);
            }
        }
        #pragma unroll
        for (int e = 0; e < 4; e++)
        {
            r6[e] = over_column(r6[e], Join6(), parts6, 32);
        }
        float v6[4];
        float v7[4];
        float v8[4];
        float v9[4];
        #pragma unroll
        for (int e = 0; e < 4; e++)
        {
            v6[e] = (float)(r6[e]);
            v7[e] = (float)(v6[e] / v1);
            v8[e] = (float)(v7[e] + v2);
            v9[e] = (float)(sqrt(v8[e]));
        }
        for (Index c = start + lane; c < until; c += 4 * (Index)lanes)
        {
            Vector<float, 4> b0[4];
            #pragma unroll
            for (int u = 0; u < 4; u++)
            {
                const Index k = c + u * lanes;
                const float *y0 = x0;
                const Index i = k;
                if (k < until)
                {
                    b0[u] = loaded<4>(y0 + i * (Index)s0_1);
                }
            }
            #pragma unroll
            for (int u = 0; u < 4; u++)
            {
                const Index k = c + u * lanes;
                float *y2 = x2;
                const Index i = k;
                if (k < until)
                {
                    Vector<float, 4> w2;
                    #pragma unroll
                    for (int e = 0; e < 4; e++)
                    {
                        const float v0 = b0[u].at[e];
                        const float v4 = (float)(v0 - v3[e]);
                        const float v10 = (float)(v4 / v9[e]);
                        w2.at[e] = v10;
                    }
                    store(y2 + i * (Index)s2_1, w2);
                }
            }
        }
    }
}
