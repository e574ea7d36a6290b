// In the place of CUDA's header of this name.
#include "cuda_on_cpu.h"
