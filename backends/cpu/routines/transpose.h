/* Transposes of blocks and matrices in registers, after vectors.h. */

#if defined __has_builtin
#if __has_builtin(__builtin_shufflevector)
#define TURNS
#endif
#endif
#ifdef TURNS
/* turn: transposes a square block of vectors by shuffles; generated, `turn` of vectors.py. */
#include "turn.h"
#else
static void turn(vector *v)
{
    for (int i = 0; i < LANES; i++)
        for (int j = 0; j < i; j++) {
            const T held = v[i][j];
            v[i][j] = v[j][i], v[j][i] = held;
        }
}
#endif

/* The first elements of a vector, in pieces of constant sizes that overlap. */
static inline __attribute__((always_inline)) void copy_few(T *to, const T *from, word count)
{
    if (count >= 8)
        memcpy(to, from, 8 * sizeof(T)), memcpy(to + count - 8, from + count - 8, 8 * sizeof(T));
    else if (count >= 4)
        memcpy(to, from, 4 * sizeof(T)), memcpy(to + count - 4, from + count - 4, 4 * sizeof(T));
    else if (count >= 2)
        memcpy(to, from, 2 * sizeof(T)), memcpy(to + count - 2, from + count - 2, 2 * sizeof(T));
    else if (count)
        *to = *from;
}

/* Transpose: to[j * step + i] = from[i * stride + j]. */
static void transpose(const T *from, word stride, T *to, word step, word rows, word columns)
{
    for (word j = 0; j < columns; j += LANES) {
        const word width = least(LANES, columns - j);
        for (word i = 0; i < rows; i += LANES) {
            const word height = least(LANES, rows - i);
            vector block[LANES];
            if (width == LANES)
                for (int k = 0; k < LANES; k++)
                    block[k] = load(from + (i + least(k, height - 1)) * stride + j);
            else
                for (int k = 0; k < LANES; k++) {
                    T few[LANES];
                    copy_few(few, from + (i + least(k, height - 1)) * stride + j, width);
                    block[k] = load(few);
                }
            turn(block);
            if (height == LANES)
                for (int k = 0; k < LANES; k++) {
                    if (k < width)
                        save(to + (j + k) * step + i, block[k]);
                }
            else
                for (int k = 0; k < LANES; k++)
                    if (k < width) {
                        T few[LANES];
                        save(few, block[k]);
                        copy_few(to + (j + k) * step + i, few, height);
                    }
        }
    }
}
