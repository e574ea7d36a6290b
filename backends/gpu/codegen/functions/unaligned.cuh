// Elements from an unaligned address, of the two aligned accesses that have them, where a row has both.
// `x`: the row; `size`: the number of its elements; `i`: the index of the first element, a multiple of N but for `shift`.
template <int N, class T, class I>
__device__ __forceinline__ Vector<T, N> unaligned(const T *x, I i, I size, int shift)
{
    Vector<T, N> found;
    const int before = ((unsigned)(unsigned long long)x / sizeof(T) - shift) % N, bytes = before * sizeof(T);
    const I start = i - before;
    if (start < 0 || start + 2 * N > size) {
        #pragma unroll
        for (int e = 0; e < N; e++)
            found.at[e] = i + e >= 0 && i + e < size ? x[i + e] : T();
        return found;
    }
    const uint4 low = *(const uint4 *)(x + start), high = *(const uint4 *)(x + start + N);
    unsigned words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    #pragma unroll
    for (int w = 0; w < 6; w++)
        words[w] = bytes & 8 ? words[w + 2] : words[w];
    #pragma unroll
    for (int w = 0; w < 5; w++)
        words[w] = bytes & 4 ? words[w + 1] : words[w];
    #pragma unroll
    for (int w = 0; w < 4; w++)
        words[w] = __funnelshift_r(words[w], words[w + 1], bytes % 4 * 8);
    *(uint4 *)&found = make_uint4(words[0], words[1], words[2], words[3]);
    return found;
}
