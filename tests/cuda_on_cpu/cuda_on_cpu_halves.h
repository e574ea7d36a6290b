/* float16 and bfloat16, as cuda_fp16.h and cuda_bf16.h give them.

   Arithmetic is done in float32 and rounded once: float32 has more than twice their bits, so that
   a sum, a product, a quotient and a root come out as if rounded from the exact value. */
#pragma once

namespace cuda_on_cpu {

template <int MANTISSA, int BIAS>
struct Raw { unsigned short x; };

template <int MANTISSA, int BIAS>
struct Narrow {
    uint16_t bits;

    static constexpr uint16_t INFINITE = (2 * BIAS + 1) << MANTISSA;

    Narrow() = default;
    template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
    Narrow(T x) : bits(rounded((double)x)) {}

    Narrow(Raw<MANTISSA, BIAS> raw) : bits(raw.x) {}
    operator Raw<MANTISSA, BIAS>() const { return {bits}; }

    static Narrow of_bits(uint16_t bits)
    {
        Narrow made;
        made.bits = bits;
        return made;
    }

    static uint16_t rounded(double x)  // to nearest, ties to even
    {
        const uint16_t sign = signbit(x) ? 0x8000 : 0;
        if (x != x) return 0x7fff;
        if (x == 0) return sign;
        if (isinf(x) || ilogb(x) > BIAS) return sign | INFINITE;
        const int least = 1 - BIAS, exponent = ilogb(x) < least ? least : ilogb(x);
        const unsigned mantissa = (unsigned)nearbyint(scalbn(fabs(x), MANTISSA - exponent));
        // Added, not joined: a mantissa that rounds up to the next power carries into the exponent.
        return sign | (uint16_t)(((unsigned)(exponent - least) << MANTISSA) + mantissa);
    }

    operator float() const
    {
        const int exponent = (bits & 0x7fff) >> MANTISSA, mantissa = bits & ((1 << MANTISSA) - 1);
        float x = ldexpf((float)mantissa, 1 - BIAS - MANTISSA);
        if (exponent == 2 * BIAS + 1)
            x = mantissa ? NAN : INFINITY;
        else if (exponent)
            x = ldexpf((float)(mantissa | 1 << MANTISSA), exponent - BIAS - MANTISSA);
        return bits & 0x8000 ? -x : x;
    }

    friend Narrow operator+(Narrow x, Narrow y) { return (float)x + (float)y; }
    friend Narrow operator-(Narrow x, Narrow y) { return (float)x - (float)y; }
    friend Narrow operator*(Narrow x, Narrow y) { return (float)x * (float)y; }
    friend Narrow operator/(Narrow x, Narrow y) { return (float)x / (float)y; }
    friend Narrow operator-(Narrow x) { return of_bits(x.bits ^ 0x8000); }
    friend Narrow &operator+=(Narrow &x, Narrow y) { return x = x + y; }
    friend Narrow &operator-=(Narrow &x, Narrow y) { return x = x - y; }
    friend Narrow &operator*=(Narrow &x, Narrow y) { return x = x * y; }
    friend Narrow &operator/=(Narrow &x, Narrow y) { return x = x / y; }
    friend bool operator==(Narrow x, Narrow y) { return (float)x == (float)y; }
    friend bool operator!=(Narrow x, Narrow y) { return (float)x != (float)y; }
    friend bool operator<(Narrow x, Narrow y) { return (float)x < (float)y; }
    friend bool operator>(Narrow x, Narrow y) { return (float)x > (float)y; }
    friend bool operator<=(Narrow x, Narrow y) { return (float)x <= (float)y; }
    friend bool operator>=(Narrow x, Narrow y) { return (float)x >= (float)y; }

    friend Narrow __hadd(Narrow x, Narrow y) { return x + y; }
    friend Narrow __hsub(Narrow x, Narrow y) { return x - y; }
    friend Narrow __hmul(Narrow x, Narrow y) { return x * y; }
    friend Narrow __hdiv(Narrow x, Narrow y) { return x / y; }
    friend Narrow __hneg(Narrow x) { return -x; }
    friend Narrow __habs(Narrow x) { return of_bits(x.bits & 0x7fff); }
    friend Narrow __hfma(Narrow x, Narrow y, Narrow z) { return (double)x * (double)y + (double)z; }
    friend Narrow __hmax(Narrow x, Narrow y) { return fmaxf(x, y); }
    friend Narrow __hmin(Narrow x, Narrow y) { return fminf(x, y); }
    friend Narrow hsqrt(Narrow x) { return sqrtf(x); }
    friend bool __hisnan(Narrow x) { return x != x; }
    friend int __hisinf(Narrow x) { return (x.bits & 0x7fff) == INFINITE ? (x.bits & 0x8000 ? -1 : 1) : 0; }
    friend bool __heq(Narrow x, Narrow y) { return x == y; }
    friend bool __hne(Narrow x, Narrow y) { return x < y || x > y; }
    friend bool __hlt(Narrow x, Narrow y) { return x < y; }
    friend bool __hgt(Narrow x, Narrow y) { return x > y; }
    friend bool __hle(Narrow x, Narrow y) { return x <= y; }
    friend bool __hge(Narrow x, Narrow y) { return x >= y; }
};

}  // namespace cuda_on_cpu

#define CUDA_ON_CPU_HALVES(T, T2, name, MANTISSA, BIAS)                                              \
    using T = cuda_on_cpu::Narrow<MANTISSA, BIAS>;                                                   \
    using T##_raw = cuda_on_cpu::Raw<MANTISSA, BIAS>;                                                \
    struct alignas(4) T2 { T x, y; };                                                                \
    static inline T __float2##name(float x) { return x; }                                            \
    static inline T __float2##name##_rn(float x) { return x; }                                       \
    static inline T __double2##name(double x) { return x; }                                          \
    static inline T __int2##name##_rn(int x) { return x; }                                           \
    static inline T __uint2##name##_rn(unsigned x) { return x; }                                     \
    static inline T __ll2##name##_rn(long long x) { return x; }                                      \
    static inline T __ull2##name##_rn(unsigned long long x) { return x; }                            \
    static inline float __##name##2float(T x) { return x; }                                          \
    static inline T __ushort_as_##name(unsigned short x) { return T::of_bits(x); }                   \
    static inline unsigned short __##name##_as_ushort(T x) { return x.bits; }                        \
    static inline T2 __floats2##name##2_rn(float x, float y) { return {x, y}; }                      \
    static inline T2 __float22##name##2_rn(float2 v) { return {v.x, v.y}; }                          \
    static inline float2 __##name##22float2(T2 v) { return {v.x, v.y}; }                             \
    static inline float __low2float(T2 v) { return v.x; }                                            \
    static inline float __high2float(T2 v) { return v.y; }                                           \
    static inline T2 __halves2##name##2(T x, T y) { return {x, y}; }                                 \
    static inline T2 __hadd2(T2 v, T2 w) { return {v.x + w.x, v.y + w.y}; }                          \
    static inline T2 __hmul2(T2 v, T2 w) { return {v.x * w.x, v.y * w.y}; }

CUDA_ON_CPU_HALVES(__half, __half2, half, 10, 15)
CUDA_ON_CPU_HALVES(__nv_bfloat16, __nv_bfloat162, bfloat16, 7, 127)
using half = __half;
using half2 = __half2;
using nv_bfloat16 = __nv_bfloat16;
using nv_bfloat162 = __nv_bfloat162;
