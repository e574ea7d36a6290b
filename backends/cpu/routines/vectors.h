/* SIMD vectors: types, loads and stores, for tiled products. */

#include <stdint.h>
#include <string.h>

/* The number type, and integers of its size: a driver defines DOUBLE as 1 for float64 and 0 for float32. */
#if DOUBLE
typedef double T;
typedef int64_t integer;
#else
typedef float T;
typedef int32_t integer;
#endif

/* a * b + c with one rounding, as in all matrix products. */
#if defined __clang__
#pragma clang fp contract(fast)
#elif defined __GNUC__
#pragma GCC optimize("fp-contract=fast", "no-gcse", "no-gcse-after-reload")
#endif

/* TILE: the number of rows whose sums, two vectors each, fit the registers. */
#if defined __AVX512F__
#define BYTES_OF_VECTORS 64
enum { TILE = 14 };
#elif defined __AVX__
#define BYTES_OF_VECTORS 32
enum { TILE = 6 };
#elif defined __aarch64__
#define BYTES_OF_VECTORS 16
enum { TILE = 14 };
#else
#define BYTES_OF_VECTORS 16
enum { TILE = 6 };
#endif
enum { BYTES = BYTES_OF_VECTORS, LANES = BYTES / sizeof(T) };

/* A text for each of at most 14 sums. They are variables: GCC takes a third longer for loops over arrays to unroll. */
#define EACH_SUM(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11) DO(12) DO(13)

typedef T vector __attribute__((vector_size(BYTES), aligned(sizeof(T)), may_alias));
typedef integer bits __attribute__((vector_size(BYTES)));
typedef int64_t word;
typedef void part(const void *state, int64_t begin, int64_t end, int64_t thread);
typedef void sharing(part *run, const void *state, int64_t count, int64_t threads);

static vector load(const T *from) { return *(const vector *)from; }
static void save(T *to, vector value) { *(vector *)to = value; }
static word least(word a, word b) { return a < b ? a : b; }
static word most(word a, word b) { return a > b ? a : b; }
