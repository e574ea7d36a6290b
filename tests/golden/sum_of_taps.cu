// kernel: grid (1, 1), block 128, shared 0

typedef int Index;
struct Join5 { __device__ double operator()(double x, double y) const { return x + y; } };

extern "C" __global__ void __launch_bounds__(128) kernel(
    const float *a0,
    const float *a1,
    long long a2,
    long long a3,
    float *a4,
    long long n0,
    long long n1,
    long long s2_0,
    long long s3_0,
    long long s4_0,
    long long o2,
    long long o3,
    long long low0,
    long long high0,
    long long low1,
    long long high1)
{
    const int lane = threadIdx.x % 16, lanes = 16;
    const Index indices = (Index)n0, tiles = (indices + 7) / 8;
    const Index chunks = ((Index)n1 + 0) / 1;
    const Index row = chunks;
    #pragma unroll 1
    for (Index p = blockIdx.x; p < tiles; p += gridDim.x)
    {
        const Index index = p * 8 + threadIdx.x / 16;
        const bool in_range = index < indices;
        const Index i0 = (in_range ? index : 0);
        const Index until = in_range ? row : 0;
        const float *x2 = a0 + (Index)o2 + i0 * (Index)s2_0;
        const float *x3 = a1 + (Index)o3 + i0 * (Index)s3_0;
        float *x4 = a4 + i0 * (Index)s4_0;
        double r5 = 0;
        {
            float p5[1];
            #pragma unroll
            for (int e = 0; e < 1; e++)
            {
                p5[e] = 0;
            }
            Vector<float, 1> b2[1];
            Vector<float, 1> b3[1];
            #pragma unroll
            for (int u = 0; u < 1; u++)
            {
                const Index k = lane + u * lanes;
                const float *y2 = x2;
                const float *y3 = x3;
                const int is_in0 = (i0 >= (Index)low0) & (i0 < (Index)high0);
                const Index i = k * 1;
                if (k < until)
                {
                    b2[u].at[0] = (is_in0 & (i >= (Index)low1) & (i < (Index)high1)) ? y2[i] : 0.0f;
                    b3[u].at[0] = (((i + 0) % 2 < 1)) ? y3[(i + 0) / 2] : 0.0f;
                }
            }
            #pragma unroll
            for (int u = 0; u < 1; u++)
            {
                const Index k = lane + u * lanes;
                if (k < until)
                {
                    #pragma unroll
                    for (int e = 0; e < 1; e++)
                    {
                        const float v2 = b2[u].at[e];
                        const float v3 = b3[u].at[e];
                        const float v4 = (float)(v2 * v3);
                        p5[e] = p5[e] + v4;
                    }
                }
            }
            #pragma unroll
            for (int e = 0; e < 1; e++)
            {
                r5 = Join5()(r5, p5[e]);
            }
        }
        r5 = over_lanes(r5, Join5(), 16);
        const float v5 = (float)(r5);
        if (lane == 0 && in_range)
        {
            x4[0] = v5;
        }
    }
}
