/* Products of matrices, or of the matrices of stacks, in loops and exported programs. -DUSE_BLAS takes those of a library. */

#ifdef __GNUC__
#pragma GCC diagnostic ignored "-Wint-to-pointer-cast" /* of words of 64 bits, where pointers have 32 */
#endif
#if defined __GNUC__ && !defined __clang__ /* lanes that are not stored, and copies of more lanes than there are */
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wstringop-overflow"
#pragma GCC diagnostic ignored "-Wstringop-overread"
#endif
#include "products.c"

#ifdef USE_BLAS
#include <cblas.h>
#if DOUBLE
#define GEMM cblas_dgemm
#else
#define GEMM cblas_sgemm
#endif

/* Whether strides are those of a matrix in C order, with a leading dimension. */
static int is_matrix(word row, word column, word rows, word columns)
{
    return (column == 1 || columns == 1) && (row >= columns || rows == 1);
}
#endif

/* Addresses, sizes, and strides in elements. The sizes of the stack follow, and its strides in x, in y and in out. */
typedef struct {
    word x, y, out;
    word rows, columns, inner;
    word x_row, x_column, y_row, y_column, out_row, out_column;
    word scratch, threads, share, rank;
} product_call;

/* A product of fewer columns than this and than rows is computed transposed: a panel is two vectors wide. */
enum { NARROW = 32 };

/* The bytes of scratch memory of each thread. */
int64_t product_scratch(int64_t rows, int64_t columns, int64_t inner)
{
    return least(HELD, upwards(most(rows, columns), WIDTH) * WIDTH) * least(DEPTH, inner) * (word)sizeof(T);
}

static void multiply_one(const product_call *p, T *x, T *y, T *out)
{
    word matrices[] = {(word)(intptr_t)x, (word)(intptr_t)y, (word)(intptr_t)out};
    problem one = {p->share, p->threads, p->scratch, product_scratch(p->rows, p->columns, p->inner),
                   (word)(intptr_t)matrices, 1, p->rows, p->inner, p->columns,
                   p->x_row, p->x_column, p->y_row, p->y_column, p->out_row, p->out_column, 0, 0};
#ifdef USE_BLAS
    const int x_plain = is_matrix(p->x_row, p->x_column, p->rows, p->inner);
    const int y_plain = is_matrix(p->y_row, p->y_column, p->inner, p->columns);
    if (is_matrix(p->out_row, p->out_column, p->rows, p->columns) &&
        (x_plain || is_matrix(p->x_column, p->x_row, p->inner, p->rows)) &&
        (y_plain || is_matrix(p->y_column, p->y_row, p->columns, p->inner))) {
        GEMM(CblasRowMajor, x_plain ? CblasNoTrans : CblasTrans, y_plain ? CblasNoTrans : CblasTrans, (int)p->rows,
             (int)p->columns, (int)p->inner, 1, x, (int)(x_plain ? most(p->x_row, p->inner) : most(p->x_column, p->rows)),
             y, (int)(y_plain ? most(p->y_row, p->columns) : most(p->y_column, p->inner)), 0, out,
             (int)most(p->out_row, p->columns));
        return;
    }
#endif
    if (p->columns < least(NARROW, p->rows)) {
        matrices[0] = (word)(intptr_t)y, matrices[1] = (word)(intptr_t)x;
        one.rows = p->columns, one.columns = p->rows;
        one.x_row = p->y_column, one.x_column = p->y_row, one.y_row = p->x_column, one.y_column = p->x_row;
        one.out_row = p->out_column, one.out_column = p->out_row;
    }
    divide(&one);
    multiply(&one);
}

/* Multiply all matrices of two stacks, of which there is one where the rank is 0. */
void multiply_stacks(const int64_t *a)
{
    const product_call *p = (const product_call *)a;
    const word rank = p->rank, *const sizes = (const word *)(p + 1);
    word count = 1;
    for (word axis = 0; axis < rank; axis++)
        count *= sizes[axis];
    for (word i = 0; i < count; i++) {
        word at[3] = {0, 0, 0};
        for (word axis = rank - 1, rest = i; axis >= 0; rest /= sizes[axis], axis--)
            for (word z = 0; z < 3; z++)
                at[z] += rest % sizes[axis] * sizes[(z + 1) * rank + axis];
        multiply_one(p, (T *)(intptr_t)p->x + at[0], (T *)(intptr_t)p->y + at[1], (T *)(intptr_t)p->out + at[2]);
    }
}
