
#ifdef __FP_FAST_FMAF
#define multiply_add(a, b, c) __builtin_fmaf(a, b, c)
#else
#define multiply_add(a, b, c) ((a) * (b) + (c))
#endif
#ifdef __FP_FAST_FMA
#define multiply_add_double(a, b, c) __builtin_fma(a, b, c)
#else
#define multiply_add_double(a, b, c) ((a) * (b) + (c))
#endif
