// kernel: grid (4096, 1), block 256, shared 20032

typedef int Index;
struct Join4 { __device__ float operator()(float x, float y) const { return largest(x, y); } };
struct Join11 { __device__ double operator()(double x, double y) const { return x + y; } };

extern "C" __global__ void __launch_bounds__(256) kernel(
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
    extern __shared__ __align__(16) unsigned char memory[];
    const int lane = threadIdx.x, lanes = blockDim.x;
    const Index chunks = ((Index)n1 + 3) / 4;
    const Index row = chunks;
    __shared__ float parts4[32];
    __shared__ double parts11[32];
    #pragma unroll 1
    for (Index p = blockIdx.x; p < (Index)n0; p += gridDim.x)
    {
        const Index i0 = p;
        const float *x0 = a0 + i0 * (Index)s0_0;
        float *x1 = a1 + i0 * (Index)s1_0;
        const Index padded = (row * 4 + 15) / 16 * 16;
        float *const g0 = (float *)(memory + padded * 0);
        float *const g10 = (float *)(memory + padded * 0);
        float r4 = -INFINITY;
        for (Index b = 0 + lane; b < row; b += 64 * (Index)lanes)
        {
            const Index stop = b + 64 * (Index)lanes < row ? b + 64 * (Index)lanes : row;
            float p4[4];
            #pragma unroll
            for (int e = 0; e < 4; e++)
            {
                p4[e] = -INFINITY;
            }
            for (Index c = b; c < stop; c += 4 * (Index)lanes)
            {
                Vector<float, 4> b0[4];
                #pragma unroll
                for (int u = 0; u < 4; u++)
                {
                    const Index k = c + u * lanes;
                    const float *y0 = x0;
                    const Index i = k * 4;
                    if (k < stop)
                    {
                        b0[u] = loaded<4>(y0 + i);
                    }
                }
                #pragma unroll
                for (int u = 0; u < 4; u++)
                {
                    const Index k = c + u * lanes;
                    if (k < stop)
                    {
                        *(Vector<float, 4> *)(g0 + k * 4) = b0[u];
                        #pragma unroll
                        for (int e = 0; e < 4; e++)
                        {
                            const float v0 = b0[u].at[e];
                            p4[e] = largest(p4[e], v0);
                        }
                    }
                }
            }
            #pragma unroll
            for (int e = 0; e < 4; e++)
            {
                r4 = Join4()(r4, p4[e]);
            }
        }
        r4 = over_block(r4, Join4(), parts4);
        const float v4 = (float)(r4);
        const bool v5 = (bool)(v4 == v1);
        const float v6 = (float)(v5 != 0 ? v2 : v4);
        double r11 = 0;
        for (Index b = 0 + lane; b < row; b += 64 * (Index)lanes)
        {
            const Index stop = b + 64 * (Index)lanes < row ? b + 64 * (Index)lanes : row;
            float p11[4];
            #pragma unroll
            for (int e = 0; e < 4; e++)
            {
                p11[e] = 0;
            }
            for (Index c = b; c < stop; c += 4 * (Index)lanes)
            {
                Vector<float, 4> b0[4];
                #pragma unroll
                for (int u = 0; u < 4; u++)
                {
                    const Index k = c + u * lanes;
                    if (k < stop)
                    {
                        b0[u] = *(Vector<float, 4> *)(g0 + k * 4);
                    }
                }
                #pragma unroll
                for (int u = 0; u < 4; u++)
                {
                    const Index k = c + u * lanes;
                    if (k < stop)
                    {
                        Vector<float, 4> o10;
                        #pragma unroll
                        for (int e = 0; e < 4; e++)
                        {
                            const float v0 = b0[u].at[e];
                            const bool v7 = (bool)(v0 == v6);
                            const float v8 = (float)(v0 - v6);
                            const float v9 = (float)(v7 != 0 ? v2 : v8);
                            const float v10 = (float)(exp(v9));
                            p11[e] = p11[e] + v10;
                            o10.at[e] = v10;
                        }
                        *(Vector<float, 4> *)(g10 + k * 4) = o10;
                    }
                }
            }
            #pragma unroll
            for (int e = 0; e < 4; e++)
            {
                r11 = Join11()(r11, p11[e]);
            }
        }
        r11 = over_block(r11, Join11(), parts11);
        const float v11 = (float)(r11);
        const bool v12 = (bool)(v11 == v2);
        const float v13 = (float)(v12 != 0 ? v3 : v11);
        const float v14 = (float)((float)1 / v13);
        for (Index c = 0 + lane; c < row; c += 4 * (Index)lanes)
        {
            Vector<float, 4> b10[4];
            #pragma unroll
            for (int u = 0; u < 4; u++)
            {
                const Index k = c + u * lanes;
                if (k < row)
                {
                    b10[u] = *(Vector<float, 4> *)(g10 + k * 4);
                }
            }
            #pragma unroll
            for (int u = 0; u < 4; u++)
            {
                const Index k = c + u * lanes;
                float *y1 = x1;
                const Index i = k * 4;
                if (k < row)
                {
                    Vector<float, 4> w1;
                    #pragma unroll
                    for (int e = 0; e < 4; e++)
                    {
                        const float v10 = b10[u].at[e];
                        const float v15 = (float)(v10 * v14);
                        w1.at[e] = v15;
                    }
                    store(y1 + i, w1);
                }
            }
        }
        if (p + gridDim.x < (Index)n0)
        {
            __syncthreads();
        }
    }
}
