/* One call of $name, with the values that it gave in Python. */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <cuda_runtime_api.h>
#include "${name}.h"

$arrays

static void *device_memory(size_t size)
{
    void *found = NULL;
    return cudaMalloc(&found, size) == cudaSuccess ? found : NULL;
}

template <class T, size_t N> static T *given_array(const T (&values)[N])
{
    void *const found = device_memory(sizeof values);
    cudaMemcpy(found, values, sizeof values, cudaMemcpyHostToDevice);
    return (T *)found;
}

/* The number of elements that differ by more than a relative tolerance. */
template <class T, size_t N> static int different(const T *found, const T (&expected)[N], double tolerance)
{
    T *const values = (T *)malloc(sizeof expected);
    int count = cudaMemcpy(values, found, sizeof expected, cudaMemcpyDeviceToHost) != cudaSuccess;
    for (size_t i = 0; i < N; i++) {
        const double x = values[i], y = expected[i];
        count += !(x == y || (x != x && y != y) || fabs(x - y) <= tolerance * (1 + fabs(y)));
    }
    free(values);
    return count;
}

#define MEMORY(size) device_memory(size)
#define FREE(memory) cudaFree(memory)
#define GIVEN(array) given_array(array)
#define DIFFERENT(found, expected, tolerance) count += different(found, expected, tolerance);

int main(int argc, char **argv)
$body
