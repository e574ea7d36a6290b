/* Attention and its gradient, by tiles of scores in the cache. A row of a tile is a key, and a vector holds queries.

   So keys and values are read as they are stored, and maxima and sums over keys are elementwise. Only arrays with a row
   for each query are transposed, panel by panel, once for all keys. A driver defines GRADIENT and provides the vector
   functions (vector_math.py). */

#include "vector_math.h"
#include "vectors.h"
#include "panels.h"
#include "column.h"

/* The operands: queries, keys and values first, and the mask last. */
enum { OPERANDS = GRADIENT ? 7 : 4 };

/* The number of keys in a tile. */
enum { KEYS = 128, MASK = OPERANDS - 1 };

/* Strides are in elements, of the rows and columns of each operand. */
typedef struct {
    word share, threads, scratch, scratch_size;
    word x[OPERANDS], out[3]; /* addresses */
    word queries, keys, features, width, panels, causal, mask_bytes; /* bytes of an element: 0 without a mask */
    word row[OPERANDS], column[OPERANDS];
    double scale;
    word axes, leading[]; /* the sizes of the leading axes, then each operand's strides along them */
} attention;

static word heads(const attention *p)
{
    word count = 1;
    for (word axis = 0; axis < p->axes; axis++)
        count *= p->leading[axis];
    return count;
}

/* The operand addresses of one head. */
static void find(const attention *p, word head, const T **x)
{
    word at[OPERANDS] = {0};
    for (word axis = p->axes; axis--; head /= p->leading[axis])
        for (int i = 0; i < OPERANDS; i++)
            at[i] += head % p->leading[axis] * p->leading[(i + 1) * p->axes + axis];
    for (int i = 0; i < OPERANDS; i++)
        x[i] = (const T *)(p->x[i] + at[i] * (i == MASK ? p->mask_bytes : (word)sizeof(T)));
}

/* Transpose a panel of queries, or of an array with a row for each query; columns beyond the last query are 0. */
static void across(const attention *p, int operand, const T *from, word features, word lanes, T factor, T *to)
{
    for (word i = 0; i < WIDTH; i++)
        for (word f = 0; f < features; f++)
            to[f * WIDTH + i] = i < lanes ? from[i * p->row[operand] + f * p->column[operand]] * factor : 0;
}

/* Element r, i of a tile of scores is that of key first + r and query i of a panel. */
static void hide(const attention *p, const T *mask, T *scores, word pitch, word rows, word first, word query)
{
    const word size = p->mask_bytes, step = p->row[MASK] * size, lanes = least(p->queries - query, WIDTH);
    for (word r = 0; size && r < rows; r++) {
        const char *at = (const char *)mask + query * step + (first + r) * p->column[MASK] * size;
        T *to = scores + r * pitch, added[WIDTH] = {0};
        int32_t chosen[WIDTH] = {0};
        if (size == 1) {
            for (word i = 0; i < lanes; i++)
                chosen[i] = at[i * step];
            for (int i = 0; i < WIDTH; i++)
                to[i] = chosen[i] ? to[i] : -INFINITY;
        } else {
            for (word i = 0; i < lanes; i++)
                added[i] = *(const T *)(at + i * step);
            for (int i = 0; i < WIDTH; i++)
                to[i] += added[i];
        }
    }
    for (word r = 0; p->causal && r < rows; r++)
        for (word i = 0; i < least(first + r - query, WIDTH); i++)
            scores[r * pitch + i] = -INFINITY;
    for (word r = 0; r < rows; r++) /* the padding beyond the last query: 0 times an infinite key would be nan */
        for (word i = lanes; i < WIDTH; i++)
            scores[r * pitch + i] = -INFINITY;
}

/* The number of columns of a panel. */
int64_t panel_width(const void *unused) { return WIDTH; }

#if GRADIENT
#include "attention_gradient.c"
#else
#include "attention_forward.c"
#endif
