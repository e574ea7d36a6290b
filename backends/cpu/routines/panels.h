/* Tiles of products; included after vectors.h. `column` multiplies any number of rows by a panel of WIDTH columns. */

/* The unrolling of the inner loop, which amortises its overhead, and the distance of prefetches in rows of y. */
enum { WIDTH = 2 * LANES, STEPS = TILE < 12 ? 2 : 1, AHEAD = 8 };

/* Strides in elements; rows of y and out are contiguous. */
typedef struct { word x_row, x_column, y_row, out_row; } strides;

#define SUMS(r) vector left##r = {0}, right##r = {0};
#define MULTIPLIED(r) \
    if (r < R) { \
        const T factor = at[r * x_row]; \
        left##r += left * factor, right##r += right * factor; \
    }
#define ADDED(r) \
    if (r < R) \
        left##r += load(out + r * out_row), right##r += load(out + r * out_row + LANES);
#define SAVED(r) \
    if (r < R) \
        save(out + r * out_row, left##r), save(out + r * out_row + LANES, right##r);
#define STEP(i) \
    { \
        const T *row = y + (i) * y_row, *later = row + AHEAD * y_row, *at = x + (i) * x_column; \
        __builtin_prefetch(later); \
        if (BYTES > 32) \
            __builtin_prefetch(later + LANES); \
        const vector left = load(row), right = load(row + LANES); \
        EACH_SUM(MULTIPLIED) \
    }

/* out[r, j] (+)= sum over k of x[r, k] * y[k, j], of R rows and WIDTH columns, in registers. */
static inline __attribute__((always_inline)) void product(word x_row, word x_column, word y_row, word out_row,
                                                          const T *x, const T *y, T *out, word inner, int adds,
                                                          const int R)
{
    EACH_SUM(SUMS)
    word k = 0;
    for (; k + STEPS <= inner; k += STEPS, x += STEPS * x_column, y += STEPS * y_row) {
        STEP(0)
        if (STEPS > 1)
            STEP(1)
    }
    if (STEPS > 1 && k < inner)
        STEP(0)
    if (adds) {
        EACH_SUM(ADDED)
    }
    EACH_SUM(SAVED)
}

#define ROWS(R, X_ROW, X_COLUMN) \
    case R: \
        if (R <= TILE) \
            product(X_ROW, X_COLUMN, p->y_row, p->out_row, x, y, out, inner, adds, R <= TILE ? R : 1); \
        return;

/* The product of at most TILE rows and a panel. Constant strides of x are the fastest. */
#define TILES(name, X_ROW, X_COLUMN) \
    static void name(const strides *p, const T *x, const T *y, T *out, word inner, int adds, int rows) \
    { \
        switch (rows) { \
            ROWS(1, X_ROW, X_COLUMN) ROWS(2, X_ROW, X_COLUMN) ROWS(3, X_ROW, X_COLUMN) ROWS(4, X_ROW, X_COLUMN) \
            ROWS(5, X_ROW, X_COLUMN) ROWS(6, X_ROW, X_COLUMN) ROWS(7, X_ROW, X_COLUMN) ROWS(8, X_ROW, X_COLUMN) \
            ROWS(9, X_ROW, X_COLUMN) ROWS(10, X_ROW, X_COLUMN) ROWS(11, X_ROW, X_COLUMN) \
            ROWS(12, X_ROW, X_COLUMN) ROWS(13, X_ROW, X_COLUMN) ROWS(14, X_ROW, X_COLUMN) \
        } \
    }
