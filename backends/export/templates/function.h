/* $name: a function exported by op-tree.

$described
$launches
   Arrays are contiguous, in C order$where, and do not overlap.
   Bools are bytes, 0 or 1. Several threads may call it at once, each with its own scratch memory$alone. */

#ifndef ${upper}_H
#define ${upper}_H

#include <stdint.h>$includes

#ifdef __cplusplus
extern "C" {
#endif

enum {
    ${upper}_OK,
    ${upper}_WRONG_SIZE,
    ${upper}_NULL_POINTER,
    ${upper}_SMALL_SCRATCH,
    ${upper}_WRONG_FILE,
    ${upper}_$status
};
$tensors
/* The bytes of scratch memory; -1 for a wrong size. */
int64_t ${name}_scratch($sizes);

/* Returns ${upper}_OK, or another of the codes. After ${upper}_$status, outputs and what is updated may be written in
   part, and after others nothing is. */
int ${name}($parameters);

#ifdef __cplusplus
}
#endif

#endif
