// kernel: grid (512, 1), block 256, shared 16384

typedef int Index;
struct Join3 { __device__ double operator()(double x, double y) const { return x + y; } };
struct Join6 { __device__ double operator()(double x, double y) const { return x + y; } };

extern "C" __global__ void __launch_bounds__(256) kernel(
    const float *a0,
    const float *a1,
    float *a2,
    long long n0,
    long long n1,
    long long s0_1,
    long long s2_1,
    float c2)
{
    const float v2 = (float)c2;
    const float v1 = *a1;
    extern __shared__ __align__(16) unsigned char memory[];
    const int lane = threadIdx.x / 32, lanes = 8;
    const Index indices = (Index)n0, tiles = (indices + 31) / 32;
    const Index chunks = (Index)n1;
    const Index row = chunks;
    __shared__ double parts3[256];
    __shared__ double parts6[256];
    #pragma unroll 1
    for (Index p = blockIdx.x; p < tiles; p += gridDim.x)
    {
        const Index index = p * 32 + threadIdx.x % 32;
        const bool in_range = index < indices;
        const Index i0 = (in_range ? index : 0);
        const Index until = in_range ? row : 0;
        const float *x0 = a0 + i0;
        float *x2 = a2 + i0;
        const Index padded = (row * 32 + 15) / 16 * 16;
        float *const g0 = (float *)(memory + padded * 0);
        double r3 = 0;
        for (Index b = 0 + lane; b < until; b += 64 * (Index)lanes)
        {
            const Index stop = b + 64 * (Index)lanes < until ? b + 64 * (Index)lanes : until;
            float p3[1];
            #pragma unroll
            for (int e = 0; e < 1; e++)
            {
                p3[e] = 0;
            }
            for (Index c = b; c < stop; c += 16 * (Index)lanes)
            {
                Vector<float, 1> b0[16];
                #pragma unroll
                for (int u = 0; u < 16; u++)
                {
                    const Index k = c + u * lanes;
                    const float *y0 = x0;
                    const Index i = k;
                    if (k < stop)
                    {
                        b0[u].at[0] = y0[i * (Index)s0_1];
                    }
                }
                #pragma unroll
                for (int u = 0; u < 16; u++)
                {
                    const Index k = c + u * lanes;
                    if (k < stop)
                    {
                        *(Vector<float, 1> *)(g0 + (k * 32 + threadIdx.x % 32) * 1) = b0[u];
                        #pragma unroll
                        for (int e = 0; e < 1; e++)
                        {
                            const float v0 = b0[u].at[e];
                            p3[e] = p3[e] + v0;
                        }
                    }
                }
            }
            #pragma unroll
            for (int e = 0; e < 1; e++)
            {
                r3 = Join3()(r3, p3[e]);
            }
        }
        r3 = over_column(r3, Join3(), parts3, 32);
        const float v3 = (float)(r3 / ((double)n1));
        double r6 = 0;
        for (Index b = 0 + lane; b < until; b += 64 * (Index)lanes)
        {
            const Index stop = b + 64 * (Index)lanes < until ? b + 64 * (Index)lanes : until;
            float p6[1];
            #pragma unroll
            for (int e = 0; e < 1; e++)
            {
                p6[e] = 0;
            }
            for (Index c = b; c < stop; c += 16 * (Index)lanes)
            {
                Vector<float, 1> b0[16];
                #pragma unroll
                for (int u = 0; u < 16; u++)
                {
                    const Index k = c + u * lanes;
                    if (k < stop)
                    {
                        b0[u] = *(Vector<float, 1> *)(g0 + (k * 32 + threadIdx.x % 32) * 1);
                    }
                }
                #pragma unroll
                for (int u = 0; u < 16; u++)
                {
                    const Index k = c + u * lanes;
                    if (k < stop)
                    {
                        #pragma unroll
                        for (int e = 0; e < 1; e++)
                        {
                            const float v0 = b0[u].at[e];
                            const float v4 = (float)(v0 - v3);
                            const float v5 = (float)(v4 * v4);
                            p6[e] = p6[e] + v5;
                        }
                    }
                }
            }
            #pragma unroll
            for (int e = 0; e < 1; e++)
            {
                r6 = Join6()(r6, p6[e]);
            }
        }
        r6 = over_column(r6, Join6(), parts6, 32);
        const float v6 = (float)(r6);
        const float v7 = (float)(v6 / v1);
        const float v8 = (float)(v7 + v2);
        const float v9 = (float)(sqrt(v8));
        for (Index c = 0 + lane; c < until; c += 16 * (Index)lanes)
        {
            Vector<float, 1> b0[16];
            #pragma unroll
            for (int u = 0; u < 16; u++)
            {
                const Index k = c + u * lanes;
                if (k < until)
                {
                    b0[u] = *(Vector<float, 1> *)(g0 + (k * 32 + threadIdx.x % 32) * 1);
                }
            }
            #pragma unroll
            for (int u = 0; u < 16; u++)
            {
                const Index k = c + u * lanes;
                float *y2 = x2;
                const Index i = k;
                if (k < until)
                {
                    Vector<float, 1> w2;
                    #pragma unroll
                    for (int e = 0; e < 1; e++)
                    {
                        const float v0 = b0[u].at[e];
                        const float v4 = (float)(v0 - v3);
                        const float v10 = (float)(v4 / v9);
                        w2.at[e] = v10;
                    }
                    y2[i * (Index)s2_1] = w2.at[0];
                }
            }
        }
    }
}
