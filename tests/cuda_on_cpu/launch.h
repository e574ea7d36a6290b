/* How kernels are launched: by harness/cuda.py where they are in its process, by server.cpp where not. */
#pragma once

#include "cuda_on_cpu.h"

namespace cuda_on_cpu {

struct Launch {
    unsigned grid[3], block[3], shared, order;
    uint64_t seed;
    double limit;  // after so many seconds of the processor's time, it is taken to wait for ever
};

// Runs a kernel by its number; what is wrong with it, or nullptr.
extern "C" __attribute__((visibility("default"))) const char *cuda_on_cpu_launch(unsigned, const Launch *, void **);

// A line for each kernel: the number of its source, its name, and its arguments' kinds, sizes and pointees.
extern "C" __attribute__((visibility("default"))) const char *cuda_on_cpu_kernels();

// Where threads' stacks lie: where another library's do, if that is given.
extern "C" __attribute__((visibility("default"))) unsigned char *cuda_on_cpu_stacks(unsigned char *);

}  // namespace cuda_on_cpu
