/* Tiles of matrices of halves: copies into shared memory, and products on tensor cores with sums in float32.

   A tile in shared memory has rows of COLUMNS + 8 elements, so that the eight rows that a warp loads together are in
   different banks. A warp holds 16 rows and 8 columns of a product in 4 registers of each lane: of the rows lane / 4
   and lane / 4 + 8, the columns lane % 4 * 2 and the next. */

#ifdef __CUDA_ARCH__

/* Copies 16 bytes into shared memory, or zeros; complete after `wait_for_copies`. */
__device__ __forceinline__ void copy_async(void *to, const void *from, bool is_inside)
{
#if __CUDA_ARCH__ >= 800
    const unsigned int address = (unsigned int)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(address), "l"(__cvta_generic_to_global(from)), "r"(is_inside ? 16 : 0) : "memory");
#else
    *(uint4 *)to = is_inside ? *(const uint4 *)from : make_uint4(0, 0, 0, 0);
#endif
}

__device__ __forceinline__ void commit_copies()
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/* Waits for this thread's copies, except for those of the last PENDING commits. */
template <int PENDING> __device__ __forceinline__ void wait_for_copies()
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" :: "n"(PENDING) : "memory");
#endif
}

/* Loads four matrices of 8 by 8 elements: each lane gives the address of one row. */
__device__ __forceinline__ void load_matrices(unsigned int (&x)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"((unsigned int)__cvta_generic_to_shared(row)) : "memory");
}

__device__ __forceinline__ void load_matrices_transposed(unsigned int (&x)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"((unsigned int)__cvta_generic_to_shared(row)) : "memory");
}

/* Adds the product of 16 by 16 and 16 by 8 elements of type T. */
template <class T>
__device__ __forceinline__ void multiply(float (&c)[4], const unsigned int (&a)[4], unsigned int b0, unsigned int b1);

#ifdef __CUDA_FP16_TYPES_EXIST__
template <> __device__ __forceinline__ void multiply<__half>(
    float (&c)[4], const unsigned int (&a)[4], unsigned int b0, unsigned int b1)
{
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(b0));
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[2]), "r"(a[3]), "r"(b1));
#endif
}
#endif

#ifdef __CUDA_BF16_TYPES_EXIST__
template <> __device__ __forceinline__ void multiply<__nv_bfloat16>(
    float (&c)[4], const unsigned int (&a)[4], unsigned int b0, unsigned int b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#endif

#endif

/* Copies a tile of a matrix into shared memory by all threads, with zeros outside of `rows` and `columns`. */
template <int ROWS, int COLUMNS, int THREADS, class T>
__device__ __forceinline__ void copy_tile(T *tile, const T *from, long long stride, long long rows, long long columns)
{
    const int last_row = rows < ROWS ? (int)rows : ROWS, last_column = columns < COLUMNS ? (int)columns : COLUMNS;
    #pragma unroll
    for (int k = 0; k < (ROWS * COLUMNS / 8 + THREADS - 1) / THREADS; k++) {
        const int at = k * THREADS + threadIdx.x, row = at / (COLUMNS / 8), column = at % (COLUMNS / 8) * 8;
        const bool is_inside = row < last_row && column < last_column;
        if (ROWS * COLUMNS / 8 % THREADS == 0 || row < ROWS)
            copy_async(tile + row * (COLUMNS + 8) + column, is_inside ? from + row * stride + column : from, is_inside);
    }
}

/* c += a b^T: of a warp's rows `a`, and rows `b` of K elements each. */
template <int K, class T, int M, int N>
__device__ __forceinline__ void multiply_rows(float (&c)[M][N][4], const T *a, const T *b)
{
    const int lane = threadIdx.x % 32;
    a += lane % 16 * (K + 8) + lane / 16 * 8, b += (lane / 16 * 8 + lane % 8) * (K + 8) + lane / 8 % 2 * 8;
    #pragma unroll
    for (int k = 0; k < K; k += 16) {
        unsigned int left[M][4], right[4];
        #pragma unroll
        for (int m = 0; m < M; m++)
            load_matrices(left[m], a + m * 16 * (K + 8) + k);
        #pragma unroll
        for (int n = 0; n < N; n += 2) {
            load_matrices(right, b + n * 8 * (K + 8) + k);
            #pragma unroll
            for (int m = 0; m < M; m++) {
                multiply<T>(c[m][n], left[m], right[0], right[1]);
                multiply<T>(c[m][n + 1], left[m], right[2], right[3]);
            }
        }
    }
}

/* c += a b: of products `a`, rounded to T, and K rows `b` of 8 N elements each. */
template <class T, int M, int K, int N>
__device__ __forceinline__ void multiply_products(float (&c)[M][N][4], const float (&a)[M][K][4], const T *b)
{
    const int lane = threadIdx.x % 32, pitch = 8 * N + 8;
    b += lane % 16 * pitch + lane / 16 * 8;
    #pragma unroll
    for (int k = 0; k < K; k += 2) {
        unsigned int left[M][4], right[4];
        #pragma unroll
        for (int m = 0; m < M; m++)
            #pragma unroll
            for (int i = 0; i < 4; i++)
                store_pair((T *)&left[m][i], a[m][k + i / 2][i % 2 * 2], a[m][k + i / 2][i % 2 * 2 + 1]);
        #pragma unroll
        for (int n = 0; n < N; n += 2) {
            load_matrices_transposed(right, b + k * 8 * pitch + n * 8);
            #pragma unroll
            for (int m = 0; m < M; m++) {
                multiply<T>(c[m][n], left[m], right[0], right[1]);
                multiply<T>(c[m][n + 1], left[m], right[2], right[3]);
            }
        }
    }
}

/* Stores a warp's rows, times a factor. */
template <class T, int M, int N>
__device__ __forceinline__ void store_products(
    T *to, const float (&c)[M][N][4], float factor, long long stride, long long rows, long long columns)
{
    const int lane = threadIdx.x % 32, column = lane % 4 * 2;
    #pragma unroll
    for (int m = 0; m < M; m++)
        #pragma unroll
        for (int h = 0; h < 2; h++) {
            const int row = m * 16 + h * 8 + lane / 4;
            #pragma unroll
            for (int n = 0; n < N; n++)
                if (row < rows && n * 8 + column < columns)
                    store_pair(to + row * stride + n * 8 + column, c[m][n][2 * h] * factor, c[m][n][2 * h + 1] * factor);
        }
}
