/* $name: see ${name}.h. */

#include "${name}.h"
#include "${name}_kernels.cuh"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef __CUDACC__
#pragma nv_diag_suppress 177 /* of inline functions that are not called */
#endif

$words

/* The number of parts of a size that hold it. */
#define PARTS(size, part) (((size) + (part) - 1) / (part))

/* The multiplier for division by an invariant number: a factor of 32 bits, and above it a shift. */
static inline int64_t divisor(int64_t number)
{
    int64_t shift = 0;
    while (INT64_C(1) << shift < number)
        shift++;
    return ((INT64_C(1) << (31 + shift)) + number - 1) / number | shift << 32;
}

/* Launch a kernel: each parameter is the first bytes of its word. */
template <size_t N>
static int launch(const void *kernel, int64_t blocks, int threads, cudaStream_t stream, const int64_t (&words)[N])
{
    void *given[N];
    for (size_t i = 0; i < N; i++)
        given[i] = (void *)(words + i);
    return cudaLaunchKernel(kernel, dim3((unsigned)blocks), dim3((unsigned)threads), given, 0, stream) != cudaSuccess;
}
$products
$arrays
$entry
