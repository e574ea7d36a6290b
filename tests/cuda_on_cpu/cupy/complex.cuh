/* CuPy's complex numbers, as far as kernels without any name them. */
#pragma once

#undef assert
#define assert(condition) ((void)0)

template <class T>
struct complex { T x, y; };
