// kernel: grid (4096, 1), block 512, shared 232064

typedef int Index;
struct Join4 { __device__ float operator()(float x, float y) const { return largest(x, y); } };
struct Join11 { __device__ double operator()(double x, double y) const { return x + y; } };

extern "C" __global__ void __launch_bounds__(512) kernel(
    const float *a0,
    float *a1,
    long long n0,
    long long n1,
    long long s0_0,
    long long s1_0,
    float c1,
    float c2,
    float c3,
    long long held)
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
        const Index padded = ((Index)held * 4 + 15) / 16 * 16;
        float *const g0 = (float *)(memory + padded * 0);
        const auto base_of = [&](const float r4)
        {
            const float v4 = (float)(r4);
            const bool v5 = (bool)(v4 == v1);
            const float v6 = (float)(v5 != 0 ? v2 : v4);
            return v6;
        };
        float r4 = -INFINITY;
        double r11 = 0;
        float row_base = base_of(r4);
        for (Index b = 0 + lane; b < row; b += 64 * (Index)lanes)
        {
            const Index stop = b + 64 * (Index)lanes < row ? b + 64 * (Index)lanes : row;
            float t11 = 0;
            float base = row_base;
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
                        if (k < (Index)held)
                        {
                            *(Vector<float, 4> *)(g0 + k * 4) = b0[u];
                        }
                        #pragma unroll
                        for (int e = 0; e < 4; e++)
                        {
                            const float v0 = b0[u].at[e];
                            r4 = largest(r4, v0);
                        }
                    }
                }
                const float v6 = base_of(r4);
                t11 = (t11 == 0 || base == v6 ? t11 : t11 * exp(base - v6));
                base = v6;
                float p11 = 0;
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
                            const bool v7 = (bool)(v0 == v6);
                            const float v8 = (float)(v0 - v6);
                            const float v9 = (float)(v7 != 0 ? v2 : v8);
                            const float v10 = (float)(exp(v9));
                            p11 = p11 + v10;
                        }
                    }
                }
                t11 = t11 + p11;
            }
            r11 = Join11()((r11 == 0 || row_base == base ? r11 : r11 * exp(row_base - base)), t11);
            row_base = base;
        }
        r4 = over_block(r4, Join4(), parts4);
        const float v4 = (float)(r4);
        const bool v5 = (bool)(v4 == v1);
        const float v6 = (float)(v5 != 0 ? v2 : v4);
        r11 = (r11 == 0 || row_base == v6 ? r11 : r11 * exp(row_base - v6));
        r11 = over_block(r11, Join11(), parts11);
        const float v11 = (float)(r11);
        const bool v12 = (bool)(v11 == v2);
        const float v13 = (float)(v12 != 0 ? v3 : v11);
        const float v14 = (float)((float)1 / v13);
        for (Index c = 0 + lane; c < row; c += 4 * (Index)lanes)
        {
            Vector<float, 4> b0[4];
            #pragma unroll
            for (int u = 0; u < 4; u++)
            {
                const Index k = c + u * lanes;
                const float *y0 = x0;
                const Index i = k * 4;
                if (k < row)
                {
                    if (k < (Index)held)
                    {
                        b0[u] = *(Vector<float, 4> *)(g0 + k * 4);
                    }
                    else
                    {
                        b0[u] = loaded<4>(y0 + i);
                    }
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
                        const float v0 = b0[u].at[e];
                        const bool v7 = (bool)(v0 == v6);
                        const float v8 = (float)(v0 - v6);
                        const float v9 = (float)(v7 != 0 ? v2 : v8);
                        const float v10 = (float)(exp(v9));
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
