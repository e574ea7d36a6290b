"""Dialects of the printer: a language's types and qualifiers, and the source that all languages share."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from optree.compile.loopnest import LoopNest, Reduction, Statement
from optree.dtypes import is_floating, is_narrow, wide_dtype
from optree.records import NamedTuple

Lines = list[str]

#: The names of narrow dtypes, which are computed in float32, in sources: ``from_half``, ``to_half``, ``rounded_half``.
NARROW_NAMES = {"float16": "half", "bfloat16": "bfloat"}


class Dialect(NamedTuple):
    """The types and qualifiers of a C-like language.

    Attributes
    ----------
    types : mapping of str
        From a dtype's name to the type of an array's elements.
    byte : str
        The type in which bools are read from arrays and accumulated.
    inline : str
        The qualifiers of a helper function.
    cast : str
        The cast to the type of indices, where sizes and strides have another.
    upper_product : str
        The function of the upper half of a product of 32 bits, where that is quicker than a product of 64.
    """

    types: Mapping[str, str]
    byte: str
    inline: str
    cast: str = ""
    upper_product: str = ""

    def type_of(self, dtype: np.dtype) -> str:
        """The type in which values of a dtype are computed."""
        return self.types[str(wide_dtype(dtype))]

    def read_type(self, dtype: np.dtype) -> str:
        """The type in which an array's elements are read."""
        return self.byte if dtype == np.bool_ else self.types[str(dtype)]

    def part_type(self, reduction: Reduction) -> str:
        """The type of a partial accumulator."""
        return self.read_type(wide_dtype(reduction.dtype))

    def converted(self, expression: str, dtype: np.dtype) -> str:
        """An expression, converted to a dtype; for a narrow one, a float rounded to its precision at once."""
        if is_narrow(dtype):
            return f"rounded_{NARROW_NAMES[str(dtype)]}({expression})"
        return f"({self.type_of(dtype)}){expression}"


def unpacked(expression: str, dtype: np.dtype) -> str:
    """An array's element, converted to its compute dtype."""
    return f"from_{NARROW_NAMES[str(dtype)]}({expression})" if is_narrow(dtype) else expression


def packed(expression: str, dtype: np.dtype) -> str:
    """A float, rounded to an array's element."""
    return f"to_{NARROW_NAMES[str(dtype)]}({expression})" if is_narrow(dtype) else expression


def narrow_dtypes(nest: LoopNest) -> list[str]:
    """The names of the narrow dtypes of a nest's values."""
    arguments = [dtype for s in nest.statements if isinstance(s, Statement) for dtype in s.loop]
    found = {str(dtype) for dtype in (*nest.arrays, *arguments, *(s.dtype for s in nest.statements))}
    return [name for name in NARROW_NAMES if name in found]


def accumulator_dtype(reduction: Reduction) -> np.dtype:
    """The dtype of a reduction's accumulator: float64 for sums of floats."""
    sums = reduction.accumulator.sums and is_floating(reduction.dtype)
    return np.dtype("float64") if sums else wide_dtype(reduction.dtype)


def initial_value(reduction: Reduction) -> str:
    """An accumulator's initial value."""
    dtype = reduction.dtype
    if is_floating(dtype):
        lowest, highest = "-INFINITY", "INFINITY"
    elif dtype.kind == "b":
        lowest, highest = "0", "1"
    else:
        limits, suffix = np.iinfo(dtype), {"int64": "LL", "uint64": "ULL"}.get(str(dtype), "")
        lowest = f"(-{limits.max}{suffix} - 1)" if dtype.kind == "i" else "0"
        highest = f"{limits.max}{suffix}"
    return reduction.accumulator.start.format(lowest=lowest, highest=highest)


def literal(number: Any, dtype: np.dtype) -> str:
    """A Python number as a constant of a dtype that has it, but for narrow floats."""
    if is_floating(dtype):
        if number != number:
            return "(INFINITY - INFINITY)"
        if abs(number) == np.inf:
            return "INFINITY" if number > 0 else "-INFINITY"
        return repr(float(dtype.type(number))) + "f" * (dtype == np.float32)
    if dtype.kind == "b":
        return str(int(bool(number)))
    suffix = {"int64": "LL", "uint64": "ULL"}.get(str(dtype), "u" * (dtype == np.uint32))
    return f"({number + 1}{suffix} - 1)" if number == np.iinfo(dtype).min and number else f"{int(number)}{suffix}"


def grouped(expression: str) -> str:
    """An expression as a factor."""
    return f"({expression})" if " " in expression else expression


def braced(lines: Lines) -> Lines:
    """Lines, indented in braces."""
    return ["{", *(f"    {line}" if line else line for line in lines), "}"]


_DECLARATION = re.compile(r"\s*(?:const )?(?:(?:unsigned|signed|long) )*\w+(?:<[^>]*>)? \*?(?:const )?\w+ = [^;]*;")

#: The declaration of an array of columns' values, or an assignment to it.
_OF_COLUMNS = re.compile(r"\s*[\w ]+ (v\d+)\[\d+\];|\s*(v\d+)\[\w\] = .*;")

#: The head of a loop or branch, and a pragma that belongs to it.
_HEAD, _PRAGMA = re.compile(r"\s*(for|if) "), re.compile(r"\s*#pragma (unroll|omp simd)")


def without_unused(lines: Lines) -> Lines:
    """Dead-code elimination: lines without unused declarations and assignments, and without empty loops."""
    named: set[str] = set()
    live: Lines = []
    for line in reversed(lines):
        is_needed = True
        if line.endswith(";"):
            if _DECLARATION.fullmatch(line):
                is_needed = not named.isdisjoint(re.findall(r"(\w+) = ", line))
            elif found := _OF_COLUMNS.fullmatch(line):
                is_needed = (found[1] or found[2]) in named
        elif _HEAD.match(line) and [each.strip() for each in live[-2:]] == ["}", "{"]:
            is_needed = False
            del live[-2:]
        elif _PRAGMA.match(line):
            is_needed = bool(_HEAD.match(live[-1]))
        if is_needed:
            named.update(re.findall(r"\w+", line))
            live.append(line)
    return live[::-1]


# Functions that kernel expressions call, beside those of <math.h>


def functions_called(nest: LoopNest, dialect: Dialect) -> Lines:
    """The functions that a nest's expressions call."""
    return [*integer_functions(nest, dialect), *random_functions(nest, dialect)]


#: Quotients of 64-bit integers, rounded down, and 0 for a divisor of 0. The product with the divisor's reciprocal is at
#: most 2 too small. Compilers hoist the reciprocal out of a loop with one divisor, and vectorise the rest.
QUOTIENTS = """
{0} unsigned long long upper_product(unsigned long long a, unsigned long long b)
{{
    const unsigned long long low = a & 0xffffffffu, high = a >> 32, right = b & 0xffffffffu, left = b >> 32;
    const unsigned long long first = low * left + (low * right >> 32), second = high * right + (first & 0xffffffffu);
    return high * left + (first >> 32) + (second >> 32);
}}

{0} unsigned long long quotient_of_uint64(unsigned long long a, unsigned long long b)
{{
    const unsigned long long near = upper_product(a, ~0ULL / (b + (b == 0))), rest = a - near * b;
    const unsigned long long found = near + (rest >= b) + ((rest >= b) & (rest - b >= b));
    return b == 0 ? 0 : found;
}}

{0} long long quotient_of_int64(long long a, long long b)
{{
    const unsigned long long divisor = b < 0 ? 0ULL - (unsigned long long)b : (unsigned long long)b;
    const unsigned long long size = a < 0 ? 0ULL - (unsigned long long)a : (unsigned long long)a;
    const unsigned long long falls = (a != 0) & ((a < 0) != (b < 0)) & (b != 0);
    return (long long)(quotient_of_uint64(size - falls, divisor) ^ (0 - falls));
}}
"""


def integer_functions(nest: LoopNest, dialect: Dialect) -> Lines:
    """The functions of integers that a nest calls."""
    called = any("quotient_of_" in s.expression for s in nest.statements if isinstance(s, Statement))
    return QUOTIENTS.format(dialect.inline).splitlines() if called else []


# Random numbers

#: A round of Philox, by products of 64 bits and by the halves of products of 32.
_ROUND = (
    "p = 0xD2511F53ULL * a, q = 0xCD9E8D57ULL * c;",
    "a = (unsigned int)(q >> 32) ^ b ^ k, b = (unsigned int)q;",
    "c = (unsigned int)(p >> 32) ^ d ^ l, d = (unsigned int)p;",
    "k += 0x9E3779B9U, l += 0xBB67AE85U;",
)
_ROUND_BY_HALVES = (
    "p = {upper}(0xD2511F53U, a), q = {upper}(0xCD9E8D57U, c), r = 0xD2511F53U * a;",
    "a = q ^ b ^ k, b = 0xCD9E8D57U * c;",
    "c = p ^ d ^ l, d = r;",
    "k += 0x9E3779B9U, l += 0xBB67AE85U;",
)


def random_functions(nest: LoopNest, dialect: Dialect) -> Lines:
    """The Philox functions that a nest calls, of a draw's seed and counter and a flat index."""
    if not any("philox_" in s.expression for s in nest.statements if isinstance(s, Statement)):
        return []
    draw = "(unsigned long long seed, unsigned long long counter, long long i)"
    upper = dialect.upper_product
    words = [
        "unsigned int a = (unsigned int)counter, b = (unsigned int)(counter >> 32), c = 0, d = 0;",
        "unsigned int k = (unsigned int)seed, l = (unsigned int)(seed >> 32);",
        "unsigned int p, q, r;" if upper else "unsigned long long p, q;",
        *([line.format(upper=upper) for line in _ROUND_BY_HALVES] if upper else _ROUND) * 10,
        "return half ? (unsigned long long)d << 32 | c : (unsigned long long)b << 32 | a;",
    ]
    uniform32 = [
        "const unsigned long long pair = philox_pair(seed, counter + (unsigned long long)(i >> 2), i >> 1 & 1);",
        "return (float)(int)((unsigned int)(i & 1 ? pair >> 32 : pair) >> 8) * 0x1p-24f;",
    ]
    uniform64 = [
        "const unsigned long long pair = philox_pair(seed, counter + (unsigned long long)(i >> 1), i & 1);",
        "return (double)(long long)(pair >> 11) * 0x1p-53;",
    ]
    normal32 = [
        "const unsigned long long pair = philox_pair(seed, counter + (unsigned long long)(i >> 2), i >> 1 & 1);",
        "const float radius = sqrt(log((float)(unsigned int)pair * 0x1p-32f + 0x1p-33f) * -2.0f);",
        f"const float angle = (float)(int)(unsigned int)(pair >> 32) * {_float(np.float32(np.pi * 2.0**-31))};",
        "const float x = cos(angle), y = sin(angle);",
        "return radius * (i & 1 ? y : x);",
    ]
    normal64 = [
        "const unsigned long long block = counter + (unsigned long long)(i >> 1);",
        "const double first = (double)(long long)(philox_pair(seed, block, 0) >> 11);",
        "const double second = (double)(long long)(philox_pair(seed, block, 1) >> 11);",
        f"const double angle = second * {np.pi * 2.0**-52!r} - {np.pi!r};",
        "const double x = cos(angle), y = sin(angle);",
        "return sqrt(log((first + 1.0) * 0x1p-53) * -2.0) * (i & 1 ? y : x);",
    ]
    pair = "unsigned long long philox_pair(unsigned long long seed, unsigned long long counter, long long half)"
    bodies = {
        "": (pair, words),
        "philox_uniform32": (f"float philox_uniform32{draw}", uniform32),
        "philox_uniform64": (f"double philox_uniform64{draw}", uniform64),
        "philox_normal32": (f"float philox_normal32{draw}", normal32),
        "philox_normal64": (f"double philox_normal64{draw}", normal64),
    }
    called = {name for s in nest.statements if isinstance(s, Statement) for name in bodies if name in s.expression}
    lines: Lines = []
    for name in bodies:
        if name in called:
            head, body = bodies[name]
            lines += [f"{dialect.inline} {head}", *braced(body), ""]
    return lines


def _float(number: np.float32) -> str:
    return f"{float(number).hex()}f"
