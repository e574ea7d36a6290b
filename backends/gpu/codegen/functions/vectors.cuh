#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif

template <class T, int N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Vector { T at[N]; };

template <int N, class T> __device__ __forceinline__ Vector<T, N> loaded(const T *p)
{
    return *(const Vector<T, N> *)p;
}

template <int N, class T> __device__ __forceinline__ Vector<T, N> loaded(const T *p, int first, int count)
{
    if (first == 0 && count == N)
        return loaded<N>(p);
    Vector<T, N> found;
    #pragma unroll
    for (int e = 0; e < N; e++)
        found.at[e] = e >= first && e < count ? p[e] : T();
    return found;
}

template <int N, class T> __device__ __forceinline__ void store(T *p, const Vector<T, N> &values)
{
    *(Vector<T, N> *)p = values;
}

// Beside stores of single elements, NVRTC would split a plain one into these.
template <int N, class T> __device__ __forceinline__ void store_whole(T *p, const Vector<T, N> &values)
{
    if (sizeof(T) * N == 16)
        __stwb((uint4 *)p, *(const uint4 *)&values);
    else if (sizeof(T) * N == 8)
        __stwb((uint2 *)p, *(const uint2 *)&values);
    else
        store(p, values);
}

template <int N, class T> __device__ __forceinline__ void store(T *p, const Vector<T, N> &values, int first, int count)
{
    if (first == 0 && count == N)
        return store_whole(p, values);
    #pragma unroll
    for (int e = 0; e < N; e++)
        if (e >= first && e < count)
            p[e] = values.at[e];
}
