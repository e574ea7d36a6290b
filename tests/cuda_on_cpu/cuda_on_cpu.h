/* CUDA C++ kernels on the CPU: what a kernel's source sees when g++ compiles it.

   The threads of a block are fibres of one thread of the operating system (runtime.cpp), so that
   barriers and shuffles are real. This file gives the names that CUDA gives; what a barrier or a
   shuffle does, and what is refused, is the runtime's. */
#pragma once

#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <type_traits>
#include <utility>

#undef _GLIBCXX_USE_STD_SPEC_FUNCS  // of libstdc++: no kernel calls them, and they double what every compilation loads
#include <math.h>

// Vector types, aligned as CUDA aligns them: that is what -fsanitize=alignment checks.

#define CUDA_ON_CPU_VECTORS(T, name, align2, align4)                                                 \
    struct name##1 { T x; };                                                                         \
    struct alignas(align2) name##2 { T x, y; };                                                      \
    struct name##3 { T x, y, z; };                                                                   \
    struct alignas(align4) name##4 { T x, y, z, w; };                                                \
    static inline name##1 make_##name##1(T x) { return {x}; }                                        \
    static inline name##2 make_##name##2(T x, T y) { return {x, y}; }                                \
    static inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                        \
    static inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }

CUDA_ON_CPU_VECTORS(signed char, char, 2, 4)
CUDA_ON_CPU_VECTORS(unsigned char, uchar, 2, 4)
CUDA_ON_CPU_VECTORS(short, short, 4, 8)
CUDA_ON_CPU_VECTORS(unsigned short, ushort, 4, 8)
CUDA_ON_CPU_VECTORS(int, int, 8, 16)
CUDA_ON_CPU_VECTORS(unsigned int, uint, 8, 16)
CUDA_ON_CPU_VECTORS(long, long, 16, 16)
CUDA_ON_CPU_VECTORS(unsigned long, ulong, 16, 16)
CUDA_ON_CPU_VECTORS(long long, longlong, 16, 16)
CUDA_ON_CPU_VECTORS(unsigned long long, ulonglong, 16, 16)
CUDA_ON_CPU_VECTORS(float, float, 8, 16)
CUDA_ON_CPU_VECTORS(double, double, 16, 16)

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

// The runtime sets these each time that a thread goes on.
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
constexpr int warpSize = 32;

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __restrict__ __restrict
#define __grid_constant__
// __shared__ is defined for each source: see harness/cuda.py.

// Barriers and what warps exchange. __LINE__ tells threads that wait at different places.

namespace cuda_on_cpu {

enum Operation : unsigned { BARRIER, WARP_BARRIER, SHUFFLE, VOTE };

struct Sum { unsigned nonzero, all; };  // what a barrier knows of the predicates given to it

Sum block_barrier(unsigned line, bool predicate);
uint64_t warp_operation(Operation operation, unsigned line, unsigned mask, uint64_t value, int source);
void fence();
void before_atomic(void *address);
unsigned lane();

extern unsigned char dynamic_shared[];

template <class T>
T shuffle(unsigned line, unsigned mask, T value, int source, int width, bool inside)
{
    static_assert(sizeof(T) <= 8, "a shuffle exchanges 8 bytes at most");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof(T));
    bits = warp_operation(SHUFFLE, line, mask, bits, inside ? source : (int)lane());
    memcpy(&value, &bits, sizeof(T));
    return value;
}

template <class T>
T shfl(unsigned line, unsigned mask, T value, int source, int width = 32)
{
    const int first = lane() & ~(width - 1);
    return shuffle(line, mask, value, first + (source & (width - 1)), width, true);
}

template <class T>
T shfl_up(unsigned line, unsigned mask, T value, unsigned delta, int width = 32)
{
    const int source = (int)lane() - (int)delta;
    return shuffle(line, mask, value, source, width, source >= (int)(lane() & ~(width - 1)));
}

template <class T>
T shfl_down(unsigned line, unsigned mask, T value, unsigned delta, int width = 32)
{
    const int source = (int)lane() + (int)delta;
    return shuffle(line, mask, value, source, width, source < (int)(lane() & ~(width - 1)) + width);
}

template <class T>
T shfl_xor(unsigned line, unsigned mask, T value, int bits, int width = 32)
{
    const int source = (int)lane() ^ bits;  // an earlier segment may be read, a later one may not
    return shuffle(line, mask, value, source, width, source < (int)(lane() & ~(width - 1)) + width);
}

inline void warp_barrier(unsigned line, unsigned mask = 0xffffffffu)
{
    warp_operation(WARP_BARRIER, line, mask, 0, 0);
}

inline unsigned vote(unsigned line, unsigned mask, bool predicate)
{
    return (unsigned)warp_operation(VOTE, line, mask, predicate, 0);
}

}  // namespace cuda_on_cpu

#define __syncthreads() ((void)cuda_on_cpu::block_barrier(__LINE__, false))
#define __syncthreads_count(p) ((int)cuda_on_cpu::block_barrier(__LINE__, (p)).nonzero)
#define __syncthreads_or(p) ((int)(cuda_on_cpu::block_barrier(__LINE__, (p)).nonzero != 0))
#define __syncthreads_and(p) ((int)cuda_on_cpu::block_barrier(__LINE__, (p)).all)
#define __syncwarp(...) cuda_on_cpu::warp_barrier(__LINE__ __VA_OPT__(,) __VA_ARGS__)
#define __shfl_sync(...) cuda_on_cpu::shfl(__LINE__, __VA_ARGS__)
#define __shfl_up_sync(...) cuda_on_cpu::shfl_up(__LINE__, __VA_ARGS__)
#define __shfl_down_sync(...) cuda_on_cpu::shfl_down(__LINE__, __VA_ARGS__)
#define __shfl_xor_sync(...) cuda_on_cpu::shfl_xor(__LINE__, __VA_ARGS__)
#define __ballot_sync(mask, p) cuda_on_cpu::vote(__LINE__, (mask), (p))
#define __any_sync(mask, p) ((int)(cuda_on_cpu::vote(__LINE__, (mask), (p)) != 0))
#define __all_sync(mask, p) ((int)(cuda_on_cpu::vote(__LINE__, (mask), !(p)) == 0))
#define __threadfence_block() cuda_on_cpu::fence()
#define __threadfence() cuda_on_cpu::fence()
#define __threadfence_system() cuda_on_cpu::fence()

// Atomics order nothing but themselves, as on the GPU: what they guard needs a fence.

namespace cuda_on_cpu {

template <class T, class F>
T atomic(T *address, F next)
{
#ifdef __SANITIZE_THREAD__
    before_atomic(address);
#endif
    T old, made;
    __atomic_load(address, &old, __ATOMIC_RELAXED);
    do
        made = next(old);
    while (!__atomic_compare_exchange(address, &old, &made, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return old;
}

template <class T>
using Same = std::enable_if_t<true, T>;  // the pointer alone says what an atomic's type is

}  // namespace cuda_on_cpu

#define CUDA_ON_CPU_ATOMIC(name, expression)                                                         \
    template <class T>                                                                               \
    static inline T atomic##name(T *address, cuda_on_cpu::Same<T> value)                             \
    {                                                                                                \
        return cuda_on_cpu::atomic(address, [&](T old) { return (T)(expression); });                 \
    }

CUDA_ON_CPU_ATOMIC(Add, old + value)
CUDA_ON_CPU_ATOMIC(Sub, old - value)
CUDA_ON_CPU_ATOMIC(Exch, value)
CUDA_ON_CPU_ATOMIC(Min, old < value ? old : value)
CUDA_ON_CPU_ATOMIC(Max, old > value ? old : value)
CUDA_ON_CPU_ATOMIC(And, old & value)
CUDA_ON_CPU_ATOMIC(Or, old | value)
CUDA_ON_CPU_ATOMIC(Xor, old ^ value)
CUDA_ON_CPU_ATOMIC(Inc, old >= value ? 0 : old + 1)
CUDA_ON_CPU_ATOMIC(Dec, old == 0 || old > value ? value : old - 1)

template <class T>
static inline T atomicCAS(T *address, cuda_on_cpu::Same<T> compare, cuda_on_cpu::Same<T> value)
{
    return cuda_on_cpu::atomic(address, [&](T old) { return old == compare ? value : old; });
}

// Loads and stores that say how to cache.

#define CUDA_ON_CPU_LOAD(name)                                                                       \
    template <class T>                                                                               \
    static inline T name(const T *address) { return *address; }
#define CUDA_ON_CPU_STORE(name)                                                                      \
    template <class T>                                                                               \
    static inline void name(T *address, cuda_on_cpu::Same<T> value) { *address = value; }

CUDA_ON_CPU_LOAD(__ldg)
CUDA_ON_CPU_LOAD(__ldca)
CUDA_ON_CPU_LOAD(__ldcg)
CUDA_ON_CPU_LOAD(__ldcs)
CUDA_ON_CPU_LOAD(__ldlu)
CUDA_ON_CPU_LOAD(__ldcv)
CUDA_ON_CPU_STORE(__stwb)
CUDA_ON_CPU_STORE(__stcg)
CUDA_ON_CPU_STORE(__stcs)
CUDA_ON_CPU_STORE(__stwt)

// Bits.

template <class To, class From>
static inline To cuda_on_cpu_bits(From from)
{
    static_assert(sizeof(To) == sizeof(From), "the same bits");
    To to;
    memcpy(&to, &from, sizeof(To));
    return to;
}

static inline float __uint_as_float(unsigned x) { return cuda_on_cpu_bits<float>(x); }
static inline float __int_as_float(int x) { return cuda_on_cpu_bits<float>(x); }
static inline unsigned __float_as_uint(float x) { return cuda_on_cpu_bits<unsigned>(x); }
static inline int __float_as_int(float x) { return cuda_on_cpu_bits<int>(x); }
static inline double __longlong_as_double(long long x) { return cuda_on_cpu_bits<double>(x); }
static inline long long __double_as_longlong(double x) { return cuda_on_cpu_bits<long long>(x); }
static inline int __double2hiint(double x) { return (int)(__double_as_longlong(x) >> 32); }
static inline int __double2loint(double x) { return (int)__double_as_longlong(x); }
static inline double __hiloint2double(int high, int low)
{
    return __longlong_as_double((long long)((uint64_t)(uint32_t)high << 32 | (uint32_t)low));
}

static inline unsigned __umulhi(unsigned x, unsigned y) { return (unsigned)((uint64_t)x * y >> 32); }
static inline int __mulhi(int x, int y) { return (int)((int64_t)x * y >> 32); }
static inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y)
{
    return (unsigned long long)((unsigned __int128)x * y >> 64);
}
static inline long long __mul64hi(long long x, long long y) { return (long long)((__int128)x * y >> 64); }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline unsigned __brev(unsigned x)
{
    unsigned reversed = 0;
    for (int bit = 0; bit < 32; bit++) reversed |= (x >> bit & 1) << (31 - bit);
    return reversed;
}
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift)
{
    return (unsigned)((((uint64_t)high << 32 | low) << (shift & 31)) >> 32);
}
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift)
{
    return (unsigned)(((uint64_t)high << 32 | low) >> (shift & 31));
}

// Mathematics: <math.h> gives sinf and the overloads of sin. The rest is here; the quick ones are exact here.

#define CUDA_ON_CPU_MINMAX(T)                                                                        \
    static inline T min(T x, T y) { return x < y ? x : y; }                                          \
    static inline T max(T x, T y) { return x > y ? x : y; }

CUDA_ON_CPU_MINMAX(int)
CUDA_ON_CPU_MINMAX(unsigned)
CUDA_ON_CPU_MINMAX(long)
CUDA_ON_CPU_MINMAX(unsigned long)
CUDA_ON_CPU_MINMAX(long long)
CUDA_ON_CPU_MINMAX(unsigned long long)
static inline float min(float x, float y) { return fminf(x, y); }
static inline float max(float x, float y) { return fmaxf(x, y); }
static inline double min(double x, double y) { return fmin(x, y); }
static inline double max(double x, double y) { return fmax(x, y); }

// CUDA's names: the C library has functions of the same since glibc 2.42.
#define rsqrtf cuda_rsqrtf
#define rsqrt cuda_rsqrt
static inline float rsqrtf(float x) { return (float)(1 / sqrt((double)x)); }
static inline double rsqrt(double x) { return 1 / sqrt(x); }
static inline float rsqrt(float x) { return rsqrtf(x); }
static inline float rcbrtf(float x) { return (float)(1 / cbrt((double)x)); }
static inline double rcbrt(double x) { return 1 / cbrt(x); }
static inline float __saturatef(float x) { return x > 0 ? (x < 1 ? x : 1.0f) : 0.0f; }
// The C library has declared these names for itself.
#define __expf expf
#define __exp10f exp10f
#define __logf logf
#define __log2f log2f
#define __log10f log10f
#define __sinf sinf
#define __cosf cosf
#define __tanf tanf
#define __powf powf
static inline float __fdividef(float x, float y) { return x / y; }

#define CUDA_ON_CPU_ROUNDED(T, f)                                                                    \
    static inline T __##f##add_rn(T x, T y) { return x + y; }                                        \
    static inline T __##f##sub_rn(T x, T y) { return x - y; }                                        \
    static inline T __##f##mul_rn(T x, T y) { return x * y; }                                        \
    static inline T __##f##div_rn(T x, T y) { return x / y; }                                        \
    static inline T __##f##sqrt_rn(T x) { return sqrt(x); }                                          \
    static inline T __##f##rcp_rn(T x) { return 1 / x; }

CUDA_ON_CPU_ROUNDED(float, f)
CUDA_ON_CPU_ROUNDED(double, d)
static inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
static inline double __fma_rn(double x, double y, double z) { return fma(x, y, z); }

// From real numbers to integers: towards zero or to the nearest; what does not fit saturates, a nan is 0.

namespace cuda_on_cpu {

template <class To, class From>
To saturated(From x)
{
    constexpr To least = (To)-1 < 0 ? (To)(1ull << (8 * sizeof(To) - 1)) : 0, most = (To)~least;
    if (x != x) return 0;
    return x <= (From)least ? least : x >= (From)most ? most : (To)x;
}

}  // namespace cuda_on_cpu

#define CUDA_ON_CPU_TO_INTEGER(From, from, To, to)                                                   \
    static inline To __##from##2##to##_rz(From x) { return cuda_on_cpu::saturated<To>(trunc(x)); }   \
    static inline To __##from##2##to##_rn(From x) { return cuda_on_cpu::saturated<To>(rint(x)); }    \
    static inline To __##from##2##to##_rd(From x) { return cuda_on_cpu::saturated<To>(floor(x)); }   \
    static inline To __##from##2##to##_ru(From x) { return cuda_on_cpu::saturated<To>(ceil(x)); }

CUDA_ON_CPU_TO_INTEGER(float, float, int, int)
CUDA_ON_CPU_TO_INTEGER(float, float, unsigned, uint)
CUDA_ON_CPU_TO_INTEGER(float, float, long long, ll)
CUDA_ON_CPU_TO_INTEGER(float, float, unsigned long long, ull)
CUDA_ON_CPU_TO_INTEGER(double, double, int, int)
CUDA_ON_CPU_TO_INTEGER(double, double, unsigned, uint)
CUDA_ON_CPU_TO_INTEGER(double, double, long long, ll)
CUDA_ON_CPU_TO_INTEGER(double, double, unsigned long long, ull)

static inline float __double2float_rn(double x) { return (float)x; }
static inline float __int2float_rn(int x) { return (float)x; }
static inline float __uint2float_rn(unsigned x) { return (float)x; }
static inline float __ll2float_rn(long long x) { return (float)x; }
static inline float __ull2float_rn(unsigned long long x) { return (float)x; }
static inline double __int2double_rn(int x) { return x; }
static inline double __uint2double_rn(unsigned x) { return x; }
static inline double __ll2double_rn(long long x) { return (double)x; }
static inline double __ull2double_rn(unsigned long long x) { return (double)x; }

#include "cuda_on_cpu_halves.h"
#include "cuda_on_cpu_tiles.h"

// What the runtime knows of a kernel.

namespace cuda_on_cpu {

struct Argument {
    char kind;         // p: pointer, f: real number, i, u: integer, b: bool, s: anything else, by value
    unsigned size;
    unsigned pointee;  // the size of what a pointer points to; 1 if that does not matter
};

struct Kernel {
    const char *name;
    unsigned source;                        // the number of its source
    void (*call)(void **arguments);
    const Argument *arguments;
    unsigned count;
    unsigned char *shared, *shared_end;     // the static shared memory of its source
};

template <class T>
constexpr Argument argument()
{
    if constexpr (std::is_pointer_v<T>) {
        using Pointee = std::remove_pointer_t<T>;
        if constexpr (std::is_void_v<Pointee>) return {'p', sizeof(T), 1};
        else return {'p', sizeof(T), sizeof(Pointee)};
    } else {
        const char integer = std::is_same_v<T, bool> ? 'b' : std::is_signed_v<T> ? 'i' : 'u';
        return {std::is_floating_point_v<T> ? 'f' : std::is_integral_v<T> ? integer : 's', sizeof(T), 0};
    }
}

template <auto FUNCTION>
struct Entry;

template <class... T, void (*FUNCTION)(T...)>
struct Entry<FUNCTION> {
    static constexpr Argument arguments[] = {argument<std::remove_cv_t<T>>()..., {}};

    template <size_t... PLACE>
    static void unpack(void **given, std::index_sequence<PLACE...>)
    {
        FUNCTION(*(std::remove_cv_t<T> *)given[PLACE]...);
    }

    static void call(void **given) { unpack(given, std::index_sequence_for<T...>()); }

    static constexpr Kernel kernel(const char *name, unsigned source, unsigned char *shared, unsigned char *end)
    {
        return {name, source, call, arguments, sizeof...(T), shared, end};
    }
};

extern const Kernel kernels[];  // ends with one without a name

}  // namespace cuda_on_cpu
