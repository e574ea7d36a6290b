/* digits: a function exported by op-tree.

   n0: the size of axis 0 of x, from 1 to 2147483648
   x: float32 (n0, 64)
   out: float32 (n0, 10), written
   scratch: digits_scratch(n0) bytes of memory

   Arrays are contiguous, in C order, and do not overlap. Bools are bytes, 0 or 1. Several threads may call it at once,
   each with its own scratch memory. */

#ifndef DIGITS_H
#define DIGITS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { DIGITS_OK, DIGITS_WRONG_SIZE, DIGITS_NULL_POINTER, DIGITS_SMALL_SCRATCH, DIGITS_WRONG_FILE };

/* The function's tensors. */
typedef struct {
    const float *w1; /* float32 (64, 64) */
    const float *b1; /* float32 (64) */
    const float *w2; /* float32 (64, 10) */
    const float *b2; /* float32 (10) */
} digits_tensors;

/* Their values. */
void digits_weights(digits_tensors *tensors);

/* The bytes of scratch memory; -1 for a wrong size. */
int64_t digits_scratch(int64_t n0);

/* Returns DIGITS_OK, or another of the codes; then nothing is written. */
int digits(const digits_tensors *tensors, int64_t n0, const float *x, float *out, void *scratch, int64_t scratch_size);

#ifdef __cplusplus
}
#endif

#endif
