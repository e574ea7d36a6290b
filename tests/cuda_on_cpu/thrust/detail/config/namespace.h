/* Thrust's namespace, in which CuPy's complex numbers are. */
#pragma once

#define THRUST_NAMESPACE_BEGIN namespace thrust {
#define THRUST_NAMESPACE_END }
