template <class T, class X, int N> __device__ __forceinline__ Vector<T, N> narrowed(const Vector<X, N> &x)
{
    Vector<T, N> found;
    #pragma unroll
    for (int e = 0; e < N; e += 2)
        store_pair(&found.at[e], x.at[e], x.at[e + 1]);
    return found;
}
