// kernel: grid (4096, 1), block 128, shared 16384

typedef int Index;
struct Join5 { __device__ double operator()(double x, double y) const { return x + y; } };
struct Join8 { __device__ double operator()(double x, double y) const { return x + y; } };

extern "C" __global__ void __launch_bounds__(128) kernel(
    const float *a0,
    const float *a1,
    const float *a2,
    const float *a3,
    float *a4,
    long long n0,
    long long n1,
    long long s0_0,
    long long s2_0,
    long long s3_0,
    long long s4_0,
    double c4,
    int width)
{
    const double v4 = (double)c4;
    const float v1 = *a1;
    extern __shared__ __align__(16) unsigned char memory[];
    const int lane = threadIdx.x % width, lanes = width, teams = blockDim.x / width;
    const Index chunks = ((Index)n1 + 3) / 4;
    const Index row = chunks;
    for (Index p = (Index)blockIdx.x * teams + threadIdx.x / width; p < (Index)n0; p += (Index)gridDim.x * teams)
    {
        const Index i0 = p;
        const float *x0 = a0 + i0 * (Index)s0_0;
        const float *x2 = a2 + i0 * (Index)s2_0;
        const float *x3 = a3 + i0 * (Index)s3_0;
        float *x4 = a4 + i0 * (Index)s4_0;
        const Index padded = (row * 4 + 15) / 16 * 16;
        float *const g0 = (float *)(memory + threadIdx.x / width * padded * 4 + padded * 0);
        double r5 = 0;
        for (Index b = 0 + lane; b < row; b += 64 * (Index)lanes)
        {
            const Index stop = b + 64 * (Index)lanes < row ? b + 64 * (Index)lanes : row;
            float p5[4];
            #pragma unroll
            for (int e = 0; e < 4; e++)
            {
                p5[e] = 0;
            }
            for (Index c = b; c < stop; c += lanes)
            {
                const float *y0 = x0;
                const Index i = c * 4;
                const int count = (Index)n1 - i < 4 ? (int)((Index)n1 - i) : 4;
                const Vector<float, 4> b0 = loaded<4>(y0 + i, count);
                *(Vector<float, 4> *)(g0 + c * 4) = b0;
                #pragma unroll
                for (int e = 0; e < 4; e++)
                {
                    const float v0 = b0.at[e];
                    if (e < count) p5[e] = p5[e] + v0;
                }
            }
            #pragma unroll
            for (int e = 0; e < 4; e++)
            {
                r5 = Join5()(r5, p5[e]);
            }
        }
        r5 = over_lanes(r5, Join5(), width);
        const float v5 = (float)(r5 / ((double)n1));
        double r8 = 0;
        for (Index b = 0 + lane; b < row; b += 64 * (Index)lanes)
        {
            const Index stop = b + 64 * (Index)lanes < row ? b + 64 * (Index)lanes : row;
            float p8[4];
            #pragma unroll
            for (int e = 0; e < 4; e++)
            {
                p8[e] = 0;
            }
            for (Index c = b; c < stop; c += lanes)
            {
                const Index i = c * 4;
                const int count = (Index)n1 - i < 4 ? (int)((Index)n1 - i) : 4;
                const Vector<float, 4> b0 = *(Vector<float, 4> *)(g0 + c * 4);
                #pragma unroll
                for (int e = 0; e < 4; e++)
                {
                    const float v0 = b0.at[e];
                    const float v6 = (float)(v0 - v5);
                    const float v7 = (float)(v6 * v6);
                    if (e < count) p8[e] = p8[e] + v7;
                }
            }
            #pragma unroll
            for (int e = 0; e < 4; e++)
            {
                r8 = Join8()(r8, p8[e]);
            }
        }
        r8 = over_lanes(r8, Join8(), width);
        const float v8 = (float)(r8);
        const float v9 = (float)(v8 / v1);
        const float v10_1 = (float)v4;
        const float v10 = (float)(v9 + v10_1);
        const float v11 = (float)(sqrt(v10));
        for (Index c = 0 + lane; c < row; c += lanes)
        {
            const float *y2 = x2;
            const float *y3 = x3;
            float *y4 = x4;
            const Index i = c * 4;
            const int count = (Index)n1 - i < 4 ? (int)((Index)n1 - i) : 4;
            const Vector<float, 4> b0 = *(Vector<float, 4> *)(g0 + c * 4);
            const Vector<float, 4> b2 = loaded<4>(y2 + i, count);
            const Vector<float, 4> b3 = loaded<4>(y3 + i, count);
            Vector<float, 4> w4;
            #pragma unroll
            for (int e = 0; e < 4; e++)
            {
                const float v0 = b0.at[e];
                const float v2 = b2.at[e];
                const float v3 = b3.at[e];
                const float v6 = (float)(v0 - v5);
                const float v12 = (float)(v6 / v11);
                const float v13 = (float)(v12 * v2);
                const float v14 = (float)(v13 + v3);
                w4.at[e] = v14;
            }
            store(y4 + i, w4, count);
        }
    }
}
