"""C of vectors of a processor's registers: loads, stores, and transposes, for kernels that tile products."""

from __future__ import annotations

#: The bytes of a number of each type, and the type of whole numbers of the same.
_SIZES = {"float": (4, "int32_t"), "double": (8, "int64_t")}

#: TILE is the number of rows for whose sums, each of two vectors, there are registers.
_VECTORS = """#include <stdint.h>
#include <string.h>

/* One rounding for a * b + c, as in every matrix product. */
#if defined __clang__
#pragma clang fp contract(fast)
#elif defined __GNUC__
#pragma GCC optimize("fp-contract=fast")
#endif

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

typedef T vector __attribute__((vector_size(BYTES), aligned(sizeof(T)), may_alias));
typedef BITS bits __attribute__((vector_size(BYTES)));
typedef int64_t word;
typedef void part(const void *state, int64_t begin, int64_t end, int64_t thread);
typedef void sharing(part *run, const void *state, int64_t count, int64_t threads);

static vector load(const T *from) { return *(const vector *)from; }
static void save(T *to, vector value) { *(vector *)to = value; }
static word least(word a, word b) { return a < b ? a : b; }
static word most(word a, word b) { return a > b ? a : b; }

"""

_TURN = """#if defined __has_builtin
#if __has_builtin(__builtin_shufflevector)
#define TURNS
#endif
#endif
#ifdef TURNS
"""

_TURN_BY_ELEMENTS = """
#else
static void turn(vector *v)
{
    for (int i = 0; i < LANES; i++)
        for (int j = 0; j < i; j++) {
            const T held = v[i][j];
            v[i][j] = v[j][i], v[j][i] = held;
        }
}
#endif
"""

_TRANSPOSE = """/* The first elements of a vector, in pieces of constant sizes that overlap. */
static inline __attribute__((always_inline)) void copy_few(T *to, const T *from, word count)
{
    if (count >= 8)
        memcpy(to, from, 8 * sizeof(T)), memcpy(to + count - 8, from + count - 8, 8 * sizeof(T));
    else if (count >= 4)
        memcpy(to, from, 4 * sizeof(T)), memcpy(to + count - 4, from + count - 4, 4 * sizeof(T));
    else if (count >= 2)
        memcpy(to, from, 2 * sizeof(T)), memcpy(to + count - 2, from + count - 2, 2 * sizeof(T));
    else if (count)
        *to = *from;
}

/* Transpose: to[j * step + i] = from[i * stride + j]. */
static void transpose(const T *from, word stride, T *to, word step, word rows, word columns)
{
    for (word j = 0; j < columns; j += LANES) {
        const word width = least(LANES, columns - j);
        for (word i = 0; i < rows; i += LANES) {
            const word height = least(LANES, rows - i);
            vector block[LANES];
            if (width == LANES)
                for (int k = 0; k < LANES; k++)
                    block[k] = load(from + (i + least(k, height - 1)) * stride + j);
            else
                for (int k = 0; k < LANES; k++) {
                    T few[LANES];
                    copy_few(few, from + (i + least(k, height - 1)) * stride + j, width);
                    block[k] = load(few);
                }
            turn(block);
            if (height == LANES)
                for (int k = 0; k < LANES; k++) {
                    if (k < width)
                        save(to + (j + k) * step + i, block[k]);
                }
            else
                for (int k = 0; k < LANES; k++)
                    if (k < width) {
                        T few[LANES];
                        save(few, block[k]);
                        copy_few(to + (j + k) * step + i, few, height);
                    }
        }
    }
}

"""


def vectors(number: str) -> str:
    """Vectors of numbers of a type T, ``"float"`` or ``"double"``."""
    _, bits = _SIZES[number]
    return f"typedef {number} T;\n{_VECTORS.replace('BITS bits', f'{bits} bits')}"


def transpose(number: str) -> str:
    """A function that transposes a matrix of T in registers, after `vectors`."""
    size, _ = _SIZES[number]
    return f"{_TURN}{_turn(size)}{_TURN_BY_ELEMENTS}{_TRANSPOSE}"


def _turn(size: int) -> str:
    """A function that transposes a square block of vectors, by shuffles of half of their lanes in each round."""
    lines = []
    for width in (64, 32, 16):
        lines += [f"#if BYTES_OF_VECTORS == {width}", *_turn_lanes(width // size), "#endif"]
    return "\n".join(lines)


def _turn_lanes(lanes: int) -> list[str]:
    lines, half, rows = (
        ["static inline __attribute__((always_inline)) void turn(vector *v)", "{"],
        lanes // 2,
        range(lanes),
    )
    while half:
        low = ", ".join(str(lanes + lane - half if lane & half else lane) for lane in rows)
        high = ", ".join(str(lanes + lane if lane & half else lane + half) for lane in rows)
        for i in rows:
            if not i & half:
                lines += [
                    f"    const vector a{half}_{i} = __builtin_shufflevector(v[{i}], v[{i + half}], {low});",
                    f"    v[{i + half}] = __builtin_shufflevector(v[{i}], v[{i + half}], {high});",
                    f"    v[{i}] = a{half}_{i};",
                ]
        half //= 2
    return [*lines, "}"]
