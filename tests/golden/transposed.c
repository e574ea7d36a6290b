/* Lanes of a vector: __builtin_shufflevector is in GCC since 12, and in Clang. */
#if defined __has_builtin
#if __has_builtin(__builtin_shufflevector)
#ifdef __AVX__
#define VECTOR 32
#else
#define VECTOR 16
#endif
#endif
#endif
typedef uint32_t bits4 __attribute__((may_alias));
#if defined VECTOR && VECTOR == 32
typedef uint32_t vector4 __attribute__((vector_size(32), aligned(4), may_alias));
static inline void block4(const bits4 *x, int64_t stride, bits4 *b)
{
    const vector4 a0 = *(const vector4 *)(x + 0 * stride);
    const vector4 a1 = *(const vector4 *)(x + 1 * stride);
    const vector4 a2 = *(const vector4 *)(x + 2 * stride);
    const vector4 a3 = *(const vector4 *)(x + 3 * stride);
    const vector4 a4 = *(const vector4 *)(x + 4 * stride);
    const vector4 a5 = *(const vector4 *)(x + 5 * stride);
    const vector4 a6 = *(const vector4 *)(x + 6 * stride);
    const vector4 a7 = *(const vector4 *)(x + 7 * stride);
    const vector4 b0 = __builtin_shufflevector(a0, a4, 0, 1, 2, 3, 8, 9, 10, 11);
    const vector4 b4 = __builtin_shufflevector(a0, a4, 4, 5, 6, 7, 12, 13, 14, 15);
    const vector4 b1 = __builtin_shufflevector(a1, a5, 0, 1, 2, 3, 8, 9, 10, 11);
    const vector4 b5 = __builtin_shufflevector(a1, a5, 4, 5, 6, 7, 12, 13, 14, 15);
    const vector4 b2 = __builtin_shufflevector(a2, a6, 0, 1, 2, 3, 8, 9, 10, 11);
    const vector4 b6 = __builtin_shufflevector(a2, a6, 4, 5, 6, 7, 12, 13, 14, 15);
    const vector4 b3 = __builtin_shufflevector(a3, a7, 0, 1, 2, 3, 8, 9, 10, 11);
    const vector4 b7 = __builtin_shufflevector(a3, a7, 4, 5, 6, 7, 12, 13, 14, 15);
    const vector4 c0 = __builtin_shufflevector(b0, b2, 0, 1, 8, 9, 4, 5, 12, 13);
    const vector4 c2 = __builtin_shufflevector(b0, b2, 2, 3, 10, 11, 6, 7, 14, 15);
    const vector4 c1 = __builtin_shufflevector(b1, b3, 0, 1, 8, 9, 4, 5, 12, 13);
    const vector4 c3 = __builtin_shufflevector(b1, b3, 2, 3, 10, 11, 6, 7, 14, 15);
    const vector4 c4 = __builtin_shufflevector(b4, b6, 0, 1, 8, 9, 4, 5, 12, 13);
    const vector4 c6 = __builtin_shufflevector(b4, b6, 2, 3, 10, 11, 6, 7, 14, 15);
    const vector4 c5 = __builtin_shufflevector(b5, b7, 0, 1, 8, 9, 4, 5, 12, 13);
    const vector4 c7 = __builtin_shufflevector(b5, b7, 2, 3, 10, 11, 6, 7, 14, 15);
    const vector4 d0 = __builtin_shufflevector(c0, c1, 0, 8, 2, 10, 4, 12, 6, 14);
    const vector4 d1 = __builtin_shufflevector(c0, c1, 1, 9, 3, 11, 5, 13, 7, 15);
    const vector4 d2 = __builtin_shufflevector(c2, c3, 0, 8, 2, 10, 4, 12, 6, 14);
    const vector4 d3 = __builtin_shufflevector(c2, c3, 1, 9, 3, 11, 5, 13, 7, 15);
    const vector4 d4 = __builtin_shufflevector(c4, c5, 0, 8, 2, 10, 4, 12, 6, 14);
    const vector4 d5 = __builtin_shufflevector(c4, c5, 1, 9, 3, 11, 5, 13, 7, 15);
    const vector4 d6 = __builtin_shufflevector(c6, c7, 0, 8, 2, 10, 4, 12, 6, 14);
    const vector4 d7 = __builtin_shufflevector(c6, c7, 1, 9, 3, 11, 5, 13, 7, 15);
    *(vector4 *)(b + 0 * 144) = d0;
    *(vector4 *)(b + 1 * 144) = d1;
    *(vector4 *)(b + 2 * 144) = d2;
    *(vector4 *)(b + 3 * 144) = d3;
    *(vector4 *)(b + 4 * 144) = d4;
    *(vector4 *)(b + 5 * 144) = d5;
    *(vector4 *)(b + 6 * 144) = d6;
    *(vector4 *)(b + 7 * 144) = d7;
}
#endif
#if defined VECTOR && VECTOR == 16
typedef uint32_t vector4 __attribute__((vector_size(16), aligned(4), may_alias));
static inline void block4(const bits4 *x, int64_t stride, bits4 *b)
{
    const vector4 a0 = *(const vector4 *)(x + 0 * stride);
    const vector4 a1 = *(const vector4 *)(x + 1 * stride);
    const vector4 a2 = *(const vector4 *)(x + 2 * stride);
    const vector4 a3 = *(const vector4 *)(x + 3 * stride);
    const vector4 b0 = __builtin_shufflevector(a0, a2, 0, 1, 4, 5);
    const vector4 b2 = __builtin_shufflevector(a0, a2, 2, 3, 6, 7);
    const vector4 b1 = __builtin_shufflevector(a1, a3, 0, 1, 4, 5);
    const vector4 b3 = __builtin_shufflevector(a1, a3, 2, 3, 6, 7);
    const vector4 c0 = __builtin_shufflevector(b0, b1, 0, 4, 2, 6);
    const vector4 c1 = __builtin_shufflevector(b0, b1, 1, 5, 3, 7);
    const vector4 c2 = __builtin_shufflevector(b2, b3, 0, 4, 2, 6);
    const vector4 c3 = __builtin_shufflevector(b2, b3, 1, 5, 3, 7);
    *(vector4 *)(b + 0 * 144) = c0;
    *(vector4 *)(b + 1 * 144) = c1;
    *(vector4 *)(b + 2 * 144) = c2;
    *(vector4 *)(b + 3 * 144) = c3;
}
#endif

static inline void transpose4(const bits4 *x, int64_t down, int64_t along, bits4 *b, int64_t rows, int64_t columns)
{
    int64_t m = 0, n = 0;
    #ifdef VECTOR
    m = down == 1 ? rows - rows % (VECTOR / 4) : 0, n = columns - columns % (VECTOR / 4);
    for (int64_t j = 0; m && j < n; j += VECTOR / 4)
    for (int64_t i = 0; i < m; i += VECTOR / 4)
        block4(x + i + j * along, along, b + i * 144 + j);
    #endif
    for (int64_t j = 0; j < columns; j++)
    for (int64_t i = j < n ? m : 0; i < rows; i++)
        b[i * 144 + j] = x[i * down + j * along];
}

static void shared_loop(const void *state, int64_t begin, int64_t end, int64_t thread)
{
    (void)thread;
    const int64_t *const a = state;
    const int64_t n0 = a[3];
    const int64_t n1 = a[4];
    const int64_t s0_0 = a[5];
    const int64_t s0_1 = a[6];
    const int64_t s1_0 = a[7];
    const int64_t s2_0 = a[9];
    int64_t k0 = begin / ((n1 + 127) / 128);
    int64_t k1 = begin % ((n1 + 127) / 128);
    for (int64_t flat = begin; flat < end; flat++)
    {
        {
            const int64_t t0 = k0 * 64;
            const int64_t t1 = k1 * 128;
            const int64_t m0 = n0 - t0 < 64 ? n0 - t0 : 64;
            const int64_t m1 = n1 - t1 < 128 ? n1 - t1 : 128;
            _Alignas(64) float b0[9216];
            transpose4((const bits4 *)a[0] + t0 * s0_0 + t1 * s0_1, s0_0, s0_1, (bits4 *)b0, m0, m1);
            for (int64_t i0 = t0; i0 < t0 + m0; i0++)
            {
                const float *x1 = (const float *)a[1] + i0 * s1_0 + t1;
                float *x2 = (float *)a[2] + i0 * s2_0 + t1;
                const float *x0 = b0 + (i0 - t0) * 144;
                #pragma omp simd
                for (int64_t i = 0; i < m1; i++)
                {
                    const float v0 = x0[i];
                    const float v1 = x1[i];
                    const float v2 = (float)(v0 * v0);
                    const float v3 = (float)(v2);
                    const float v4 = (float)(v3 + v1);
                    x2[i] = v4;
                }
            }
        }
        if (++k1 == ((n1 + 127) / 128))
        {
            k1 = 0;
            k0++;
        }
    }
}

void kernel(const int64_t *a)
{
    const int64_t n0 = a[3];
    const int64_t n1 = a[4];
    shared(shared_loop, a, ((n0 + 63) / 64) * ((n1 + 127) / 128), a + 12);
}
