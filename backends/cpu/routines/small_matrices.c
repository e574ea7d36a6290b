/* Linear algebra of small matrices in a loop: by LU factors with partial pivoting, as LAPACK's, computed in double. */

#include <math.h>
#include <stdint.h>

typedef int64_t word;

enum { SIDE = 32, COLUMNS = 32 };

/* A stack of matrices: the address, and the strides of the stack, rows and columns in elements. */
typedef struct { word at, stack, row, column; } matrices;

/* x has size rows and columns; y, of solve alone, has the columns that out has. */
typedef struct {
    word failed; /* set where a matrix is singular, or not positive definite */
    word count, size, columns;
    matrices x, y, out, other;
} problem;

#define EACH_MATRIX(p) \
    for (word stack = 0; stack < (p)->count; stack++)
#define AT(m, i, j) ((T *)(m).at)[stack * (m).stack + (i) * (m).row + (j) * (m).column]

static void load(const matrices *x, word stack, word size, double *to)
{
    for (word i = 0; i < size; i++)
        for (word j = 0; j < size; j++)
            to[i * size + j] = AT(*x, i, j);
}

/* Replace a by its factors, with the row that each step swapped; the sign of the permutation, 0 for a singular a. */
static int factor(double *a, word size, word *swapped)
{
    int sign = 1, is_regular = 1;
    for (word k = 0; k < size; k++) {
        word pivot = k;
        for (word i = k + 1; i < size; i++)
            if (fabs(a[i * size + k]) > fabs(a[pivot * size + k]))
                pivot = i;
        swapped[k] = pivot;
        if (pivot != k) {
            sign = -sign;
            for (word j = 0; j < size; j++) {
                const double kept = a[k * size + j];
                a[k * size + j] = a[pivot * size + j];
                a[pivot * size + j] = kept;
            }
        }
        if (a[k * size + k] == 0) {
            is_regular = 0;
            continue;
        }
        for (word i = k + 1; i < size; i++) {
            const double by = a[i * size + k] /= a[k * size + k];
            for (word j = k + 1; j < size; j++)
                a[i * size + j] -= by * a[k * size + j];
        }
    }
    return is_regular ? sign : 0;
}

static double determinant(double *a, word size)
{
    word swapped[SIDE];
    double found = factor(a, size, swapped);
    for (word k = 0; k < size; k++)
        found *= a[k * size + k];
    return found;
}

/* Solve by the factors, for some columns of b with rows of COLUMNS elements. */
static void substitute(const double *a, word size, const word *swapped, double *b, word columns)
{
    for (word k = 0; k < size; k++)
        for (word j = 0; j < columns; j++) {
            const double kept = b[k * COLUMNS + j];
            b[k * COLUMNS + j] = b[swapped[k] * COLUMNS + j];
            b[swapped[k] * COLUMNS + j] = kept;
        }
    for (word i = 0; i < size; i++)
        for (word k = 0; k < i; k++)
            for (word j = 0; j < columns; j++)
                b[i * COLUMNS + j] -= a[i * size + k] * b[k * COLUMNS + j];
    for (word i = size - 1; i >= 0; i--) {
        for (word k = i + 1; k < size; k++)
            for (word j = 0; j < columns; j++)
                b[i * COLUMNS + j] -= a[i * size + k] * b[k * COLUMNS + j];
        for (word j = 0; j < columns; j++)
            b[i * COLUMNS + j] /= a[i * size + i];
    }
}

static void solved(problem *p, int is_inverse)
{
    EACH_MATRIX(p) {
        double a[SIDE * SIDE], b[SIDE * COLUMNS];
        word swapped[SIDE];
        load(&p->x, stack, p->size, a);
        if (!factor(a, p->size, swapped))
            p->failed = 1;
        for (word first = 0; first < p->columns; first += COLUMNS) {
            const word columns = p->columns - first < COLUMNS ? p->columns - first : COLUMNS;
            for (word i = 0; i < p->size; i++)
                for (word j = 0; j < columns; j++)
                    b[i * COLUMNS + j] = is_inverse ? i == first + j : AT(p->y, i, first + j);
            substitute(a, p->size, swapped, b, columns);
            for (word i = 0; i < p->size; i++)
                for (word j = 0; j < columns; j++)
                    AT(p->out, i, first + j) = b[i * COLUMNS + j];
        }
    }
}

int64_t inv(problem *p) { solved(p, 1); return 0; }

int64_t solve(problem *p) { solved(p, 0); return 0; }

int64_t det(problem *p)
{
    EACH_MATRIX(p) {
        double a[SIDE * SIDE];
        load(&p->x, stack, p->size, a);
        AT(p->out, 0, 0) = determinant(a, p->size);
    }
    return 0;
}

/* The sign, and the logarithm of the absolute value. */
int64_t slogdet(problem *p)
{
    EACH_MATRIX(p) {
        double a[SIDE * SIDE], total = 0;
        word swapped[SIDE];
        load(&p->x, stack, p->size, a);
        double sign = factor(a, p->size, swapped);
        for (word k = 0; k < p->size; k++) {
            const double pivot = a[k * p->size + k];
            sign *= pivot < 0 ? -1 : pivot == pivot ? 1 : pivot;
            total += log(fabs(pivot));
        }
        AT(p->out, 0, 0) = sign;
        AT(p->other, 0, 0) = sign == 0 ? -INFINITY : total;
    }
    return 0;
}

/* The signed determinants of what remains without a row and a column; nan, if an element is not finite. */
int64_t cofactors(problem *p)
{
    const word size = p->size, rest = size - 1;
    EACH_MATRIX(p) {
        double a[SIDE * SIDE], minor[SIDE * SIDE], total = 0;
        load(&p->x, stack, size, a);
        for (word i = 0; i < size * size; i++)
            total += a[i] - a[i];
        for (word row = 0; row < size; row++)
            for (word column = 0; column < size; column++) {
                for (word i = 0; i < rest; i++)
                    for (word j = 0; j < rest; j++)
                        minor[i * rest + j] = a[(i + (i >= row)) * size + j + (j >= column)];
                const double found = determinant(minor, rest);
                AT(p->out, row, column) = ((row + column) % 2 ? -found : found) + (size > 1 ? total : 0);
            }
    }
    return 0;
}

/* The lower triangle; of x the lower half is read. */
int64_t cholesky(problem *p)
{
    const word size = p->size;
    EACH_MATRIX(p) {
        double l[SIDE * SIDE];
        load(&p->x, stack, size, l);
        for (word j = 0; j < size; j++) {
            double left = l[j * size + j];
            for (word k = 0; k < j; k++)
                left -= l[j * size + k] * l[j * size + k];
            if (!(left > 0))
                p->failed = 1;
            const double root = l[j * size + j] = sqrt(left);
            for (word i = j + 1; i < size; i++) {
                double found = l[i * size + j];
                for (word k = 0; k < j; k++)
                    found -= l[i * size + k] * l[j * size + k];
                l[i * size + j] = found / root;
            }
        }
        for (word i = 0; i < size; i++)
            for (word j = 0; j < size; j++)
                AT(p->out, i, j) = j > i ? 0 : l[i * size + j];
    }
    return 0;
}
