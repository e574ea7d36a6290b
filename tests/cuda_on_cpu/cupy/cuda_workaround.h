/* What NVRTC lacks of C++'s own library, and CuPy's headers take from CUDA's: here it is there. */
#pragma once

#include <limits>
#include <tuple>
#include <type_traits>
#include <utility>
