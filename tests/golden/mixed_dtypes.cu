// kernel: grid (1, 1), block 256, shared 0

typedef int Index;

extern "C" __global__ void __launch_bounds__(256) kernel(
    const unsigned char *a0,
    const long long *a1,
    const double *a2,
    double *a3,
    long long n0,
    double c3)
{
    const double v3 = (double)c3;
    const Index chunks = ((Index)n0 + 1) / 2;
    for (Index c = (Index)blockIdx.x * blockDim.x + threadIdx.x; c < chunks; c += (Index)gridDim.x * blockDim.x)
    {
        const unsigned char *x0 = a0;
        const long long *x1 = a1;
        const double *x2 = a2;
        double *x3 = a3;
        const Index i = c * 2;
        const int count = (Index)n0 - i < 2 ? (int)((Index)n0 - i) : 2;
        const Vector<unsigned char, 2> b0 = loaded<2>(x0 + i, count);
        const Vector<long long, 2> b1 = loaded<2>(x1 + i, count);
        const Vector<double, 2> b2 = loaded<2>(x2 + i, count);
        Vector<double, 2> w3;
        #pragma unroll
        for (int e = 0; e < 2; e++)
        {
            const unsigned char v0 = b0.at[e];
            const long long v1 = b1.at[e];
            const double v2 = b2.at[e];
            const long long v4_0 = (long long)v0;
            const long long v4 = (long long)(v4_0 + v1);
            const float v5 = (float)(v4);
            const float v6_1 = (float)v3;
            const float v6 = (float)(v5 * v6_1);
            const double v7_0 = (double)v6;
            const double v7 = (double)(v7_0 + v2);
            w3.at[e] = v7;
        }
        store(x3 + i, w3, count);
    }
}
