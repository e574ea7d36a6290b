/* $name: see ${name}.h.

   -DOPTREE_THREADS=n, with OpenMP, shares large kernels among n threads; -DOPTREE_PORTABLE uses scalar functions alone. */

#include "${name}.h"
#include <stdio.h>
#include <string.h>

#ifdef __GNUC__
#pragma GCC diagnostic ignored "-Wunknown-pragmas" /* of OpenMP, where it is off */
#pragma GCC diagnostic ignored "-Wint-to-pointer-cast" /* of words of 64 bits, where pointers have 32 */
#endif
#ifdef __clang__
#pragma clang diagnostic ignored "-Wpass-failed" /* of loops that it does not vectorise */
#pragma clang diagnostic ignored "-Wunused-function" /* of inline functions, as GCC does */
#pragma clang diagnostic ignored "-Wunknown-warning-option"
#pragma clang diagnostic ignored "-Wbitwise-conditional-parentheses" /* of conditions that are vectors */
#endif
$functions
/* The maximum number of threads that share a kernel's work; more than one needs OpenMP. */
#ifndef OPTREE_THREADS
#define OPTREE_THREADS 1
#endif

/* The number of threads for an amount of work, in instructions. */
#define THREADS(work) ((work) >= 1048576 ? OPTREE_THREADS : 1)

/* The address of the function that shares work. */
#define SHARE ((int64_t)(intptr_t)share)

/* Kernels take numbers as words: to compilers each is a function of its own. */
#if defined __GNUC__ && !defined __clang__
#define KERNEL __attribute__((noipa))
#else
#define KERNEL __attribute__((noinline))
#endif

$words
static inline double number_at(const int64_t *word)
{
    double number;
    memcpy(&number, word, sizeof number);
    return number;
}

/* Divide indices among threads. */
static inline void share(part *run, const void *state, int64_t count, int64_t threads)
{
#ifdef _OPENMP
#pragma omp parallel for num_threads((int)threads) schedule(static, 1)
    for (int64_t thread = 0; thread < threads; thread++)
        run(state, count * thread / threads, count * (thread + 1) / threads, thread);
#else
    (void)threads;
    run(state, 0, count, 0);
#endif
}

$kernels
$arrays
$entry