/* One call of $name, with the values that it gave in Python. */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "${name}.h"

$arrays

#define MEMORY(size) malloc(size)
#define FREE(memory) free(memory)
#define GIVEN(array) array

/* The number of elements that differ by more than a relative tolerance. */
#define DIFFERENT(found, expected, tolerance) \
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) { \
        const double x = found[i], y = expected[i]; \
        count += !(x == y || (x != x && y != y) || fabs(x - y) <= tolerance * (1 + fabs(y))); \
    }

int main(int argc, char **argv)
$body
