// kernel: grid (16384, 1), block 256, shared 0

typedef int Index;

extern "C" __global__ void __launch_bounds__(256) kernel(
    const float *a0,
    const float *a1,
    const float *a2,
    const float *a3,
    float *a4,
    long long n0)
{
    const Index chunks = ((Index)n0 + 3) / 4;
    for (Index c = (Index)blockIdx.x * blockDim.x + threadIdx.x; c < chunks; c += (Index)gridDim.x * blockDim.x)
    {
        const float *x0 = a0;
        const float *x1 = a1;
        const float *x2 = a2;
        const float *x3 = a3;
        float *x4 = a4;
        const Index i = c * 4;
        const int count = (Index)n0 - i < 4 ? (int)((Index)n0 - i) : 4;
        const Vector<float, 4> b0 = loaded<4>(x0 + i, count);
        const Vector<float, 4> b1 = loaded<4>(x1 + i, count);
        const Vector<float, 4> b2 = loaded<4>(x2 + i, count);
        const Vector<float, 4> b3 = loaded<4>(x3 + i, count);
        Vector<float, 4> w4;
        #pragma unroll
        for (int e = 0; e < 4; e++)
        {
            const float v0 = b0.at[e];
            const float v1 = b1.at[e];
            const float v2 = b2.at[e];
            const float v3 = b3.at[e];
            const float v4 = (float)(v0 * v1);
            const float v5 = (float)(sin(v2));
            const float v6 = (float)(v3 * v5);
            const float v7 = (float)(v4 + v6);
            w4.at[e] = v7;
        }
        store(x4 + i, w4, count);
    }
}
