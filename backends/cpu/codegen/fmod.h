
#if defined __x86_64__ && defined __AVX2__ && defined __FMA__ && defined __GNUC__ && !defined __clang__
#define FMOD_SYMBOL __attribute__((used, visibility("hidden")))
/* Of a type, with the suffix of its functions, an integer as wide, and the least quotient that is not near: 2 to BITS.
   GCC would leave loops over lanes scalar with another integer. */
#define FMOD_OF(T, S, WORD, BITS) \
    static inline WORD is_near_##T(T x, T y) \
    { \
        return fabs##S(x / y) < BITS; \
    } \
    static inline T near_##T(T x, T y) \
    { \
        const T q = trunc##S(x / y), r = __builtin_fma##S(-q, y, x); \
        const T less = __builtin_fma##S(copysign##S(1, q) - q, y, x); \
        const WORD is_over = (r != 0) & ((r < 0) != (x < 0)); \
        return q == 0 ? x : copysign##S(is_over ? less : r, x); \
    } \
    __attribute__((simd("notinbranch"), const, visibility("hidden"))) T fmod_of_##T(T, T); \
    FMOD_SYMBOL T fmod_of_##T##_alone(T, T) __asm__("fmod_of_" #T); \
    T fmod_of_##T##_alone(T x, T y) \
    { \
        return is_near_##T(x, y) ? near_##T(x, y) : fmod##S(x, y); \
    }
/* Its variant on vectors, by the letter of the processor's feature. */
#define FMOD_ON_VECTORS(T, S, WORD, LETTER, LANES) \
    typedef T T##_##LETTER __attribute__((vector_size(LANES * sizeof(T)))); \
    FMOD_SYMBOL T##_##LETTER fmod_of_##T##_##LETTER(T##_##LETTER, T##_##LETTER) \
        __asm__("_ZGV" #LETTER "N" #LANES "vv_fmod_of_" #T); \
    T##_##LETTER fmod_of_##T##_##LETTER(T##_##LETTER x, T##_##LETTER y) \
    { \
        T##_##LETTER r; \
        WORD far = 0; \
        for (int i = 0; i < LANES; i++) { \
            r[i] = near_##T(x[i], y[i]); \
            far |= !is_near_##T(x[i], y[i]); \
        } \
        for (int i = 0; far && i < LANES; i++) \
            r[i] = fmod##S(x[i], y[i]); \
        return r; \
    }
FMOD_OF(float, f, int, 0x1p24f)
FMOD_ON_VECTORS(float, f, int, b, 4)
FMOD_ON_VECTORS(float, f, int, c, 8)
FMOD_ON_VECTORS(float, f, int, d, 8)
FMOD_OF(double, , long long, 0x1p53)
FMOD_ON_VECTORS(double, , long long, b, 2)
FMOD_ON_VECTORS(double, , long long, c, 4)
FMOD_ON_VECTORS(double, , long long, d, 4)
#ifdef __AVX512F__
FMOD_ON_VECTORS(float, f, int, e, 16)
FMOD_ON_VECTORS(double, , long long, e, 8)
#endif
#undef fmod
#define fmod(x, y) _Generic((x), float: fmod_of_float, default: fmod_of_double)(x, y)
#endif
