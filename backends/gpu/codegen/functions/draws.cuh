template <int N, float (*DRAW)(unsigned long long, unsigned long long, long long)>
__device__ __forceinline__ Vector<float, N> drawn(unsigned long long seed, unsigned long long counter, long long i)
{
    const int blocks = (N + 3) / 4, from = (int)(i & 3);
    const long long start = i & ~3LL;
    float numbers[4 * blocks + 4] = {};
    #pragma unroll
    for (int j = 0; j < 4 * blocks; j++)
        numbers[j] = DRAW(seed, counter, start + (j & ~3) | j & 3);
    if (from + N > 4 * blocks) {
        #pragma unroll
        for (int j = 4 * blocks; j < 4 * blocks + 4; j++)
            numbers[j] = DRAW(seed, counter, start + (j & ~3) | j & 3);
    }
    #pragma unroll
    for (int j = 0; j < N + 1; j++)
        numbers[j] = from & 2 ? numbers[j + 2] : numbers[j];
    Vector<float, N> found;
    #pragma unroll
    for (int e = 0; e < N; e++)
        found.at[e] = from & 1 ? numbers[e + 1] : numbers[e];
    return found;
}
