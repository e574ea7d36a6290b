/* CUDA's runtime for exported functions, whose memory is the host's and whose kernels run by cuda_on_cpu. */
#pragma once

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "cuda_on_cpu.h"

enum cudaError_t { cudaSuccess, cudaErrorUnknown };
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost };
typedef struct CUstream_st *cudaStream_t;

cudaError_t cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **given, size_t shared, cudaStream_t stream);

static inline cudaError_t cudaMalloc(void **found, size_t size)
{
    return posix_memalign(found, 256, size) ? cudaErrorUnknown : cudaSuccess;
}

static inline cudaError_t cudaFree(void *memory)
{
    free(memory);
    return cudaSuccess;
}

static inline cudaError_t cudaMemcpy(void *to, const void *from, size_t size, cudaMemcpyKind)
{
    memcpy(to, from, size);
    return cudaSuccess;
}

template <class T> static inline cudaError_t cudaGetSymbolAddress(void **found, const T &symbol)
{
    *found = (void *)&symbol;
    return cudaSuccess;
}
