
static inline cublasStatus_t gemm(cublasHandle_t blas, cublasOperation_t y_op, cublasOperation_t x_op, int columns, int rows,
    int inner, const $type *y, int y_lead, int64_t y_step, const $type *x, int x_lead, int64_t x_step, $type *out,
    int out_lead, int64_t out_step, int count)
{
    const $type one = 1, zero = 0;
    return cublas${letter}gemmStridedBatched(blas, y_op, x_op, columns, rows, inner, &one, y, y_lead, y_step, x, x_lead,
        x_step, &zero, out, out_lead, out_step, count);
}

/* Multiply the matrices of two stacks by cuBLAS. In a: addresses, sizes, strides in elements, and of the stack the rank,
   the sizes, and the strides in x, in y and in out. cuBLAS has matrices in the order of columns, so transposed here. */
static inline int multiply_$dtype(const int64_t *a, cublasHandle_t blas)
{
    const $type *x = (const $type *)(intptr_t)a[0], *y = (const $type *)(intptr_t)a[1];
    $type *out = ($type *)(intptr_t)a[2];
    const int64_t rows = a[3], columns = a[4], inner = a[5], rank = a[12], *sizes = a + 13;
    const int x_plain = (a[7] == 1 || inner == 1) && (a[6] >= inner || rows == 1);
    const int y_plain = (a[9] == 1 || columns == 1) && (a[8] >= columns || inner == 1);
    const int64_t x_lead = x_plain ? GREATER(a[6], inner) : GREATER(a[7], rows);
    const int64_t y_lead = y_plain ? GREATER(a[8], columns) : GREATER(a[9], inner);
    const int64_t last = rank - 1, batch = rank ? sizes[last] : 1;
    int64_t count = 1, at[3];
    for (int64_t axis = 0; axis < last; axis++)
        count *= sizes[axis];
    for (int64_t i = 0; i < count; i++) {
        int64_t rest = i;
        at[0] = at[1] = at[2] = 0;
        for (int64_t axis = last - 1; axis >= 0; rest /= sizes[axis], axis--)
            for (int64_t z = 0; z < 3; z++)
                at[z] += rest % sizes[axis] * sizes[(z + 1) * rank + axis];
        if (gemm(blas, y_plain ? CUBLAS_OP_N : CUBLAS_OP_T, x_plain ? CUBLAS_OP_N : CUBLAS_OP_T, (int)columns, (int)rows,
                 (int)inner, y + at[1], (int)y_lead, rank ? sizes[2 * rank + last] : 0, x + at[0], (int)x_lead,
                 rank ? sizes[rank + last] : 0, out + at[2], (int)GREATER(a[10], columns),
                 rank ? sizes[3 * rank + last] : 0, (int)batch) != CUBLAS_STATUS_SUCCESS)
            return 1;
    }
    return 0;
}
