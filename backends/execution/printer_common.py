"""What C and CUDA have in common: values as expressions, and how elements are accumulated."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from optree.compile.loopnest import LoopNest, Reduction, Statement
from optree.dtypes import is_floating, is_narrow

Lines = list[str]

#: From a dtype to the type that values of it are computed in.
Types = Callable[[np.dtype], str]


def statement(nest: LoopNest, made: Statement, type: Types, name: Callable[[int], str], declared: str) -> Lines:
    """A value, its arguments first converted to the dtypes that the op computes in.

    Parameters
    ----------
    name : callable
        From a value's number to what it is called.
    declared : str
        What the value is assigned to.
    """
    lines, names = [], []
    for i, (argument, dtype) in enumerate(zip(made.arguments, made.loop, strict=True)):
        found = name(argument)
        if nest.dtype_of(argument) != dtype:
            found = f"(int){found}" if nest.dtype_of(argument) == np.bool_ else found  # GCC takes no _Bool to vectors
            lines.append(f"const {type(dtype)} v{made.value}_{i} = {converted(found, dtype, type)};")
            found = f"v{made.value}_{i}"
        names.append(found)
    expression = made.expression.replace("(T)", f"({type(made.dtype)})").format(*names)
    return [*lines, f"{declared} = {converted(f'({expression})', made.dtype, type)};"]


#: What a narrow dtype, computed with in float32, is called in sources: ``from_half``, ``to_half``, ``rounded_half``.
NARROW = {"float16": "half", "bfloat16": "bfloat"}


def converted(expression: str, dtype: np.dtype, type: Types) -> str:
    """An expression in a dtype; a narrow one is a float that is rounded as one, from a double in one step."""
    return f"rounded_{NARROW[str(dtype)]}({expression})" if is_narrow(dtype) else f"({type(dtype)}){expression}"


def computed(dtype: np.dtype) -> np.dtype:
    """The dtype whose type holds values while they are computed with: for narrow ones float32."""
    return np.dtype("float32") if is_narrow(dtype) else dtype


def unpacked(expression: str, dtype: np.dtype) -> str:
    """What an array holds, as it is computed with."""
    return f"from_{NARROW[str(dtype)]}({expression})" if is_narrow(dtype) else expression


def packed(expression: str, dtype: np.dtype) -> str:
    """A value as an array holds it."""
    return f"to_{NARROW[str(dtype)]}({expression})" if is_narrow(dtype) else expression


def narrow_dtypes(nest: LoopNest) -> list[str]:
    """The names of the narrow dtypes that a nest reads, makes or writes."""
    taken = [dtype for made in nest.statements if isinstance(made, Statement) for dtype in made.loop]
    found = {str(dtype) for dtype in (*nest.reads, *taken, *(made.dtype for made in nest.statements))}
    return [name for name in NARROW if name in found]


def wide(reduction: Reduction) -> np.dtype:
    """What parts are accumulated in."""
    sums = reduction.accumulator.sums and is_floating(reduction.dtype)
    return np.dtype("float64") if sums else computed(reduction.dtype)


def initial(reduction: Reduction) -> str:
    """An accumulator's value of nothing."""
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


def element(nest: LoopNest, reduction: Reduction, type: Types, named: Callable[[int], str] = "v{}".format) -> str:
    """What a reduction takes of each element.

    Parameters
    ----------
    named : callable
        From a value's number to what it is called.
    """
    name = named(reduction.argument)
    return name if nest.dtype_of(reduction.argument) == reduction.dtype else converted(name, reduction.dtype, type)


def braced(lines: Lines) -> Lines:
    """A block of lines."""
    return ["{", *(f"    {line}" if line else line for line in lines), "}"]


# Functions that kernel expressions call, beside those of <math.h>


def functions_called(nest: LoopNest, qualifiers: str) -> Lines:
    """The functions that a nest's expressions call."""
    return [*integer_functions(nest, qualifiers), *random_functions(nest, qualifiers)]


#: Quotients of 64-bit integers, 0 by 0, by multiplication with the divisor's reciprocal, rounded down: compilers make
#: it before a loop of one divisor, and take the rest into vectors. What it gives is 2 too little at the most.
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


def integer_functions(nest: LoopNest, qualifiers: str) -> Lines:
    """The functions of integers that a nest calls."""
    called = any("quotient_of_" in s.expression for s in nest.statements if isinstance(s, Statement))
    return QUOTIENTS.format(qualifiers).splitlines() if called else []


# Random numbers

_ROUND = (
    "p = 0xD2511F53ULL * a, q = 0xCD9E8D57ULL * c;",
    "a = (unsigned int)(q >> 32) ^ b ^ k, b = (unsigned int)q;",
    "c = (unsigned int)(p >> 32) ^ d ^ l, d = (unsigned int)p;",
    "k += 0x9E3779B9U, l += 0xBB67AE85U;",
)


def random_functions(nest: LoopNest, qualifiers: str) -> Lines:
    """The functions of random numbers that a nest calls, of a draw's seed and counter and a place."""
    if not any("philox_" in s.expression for s in nest.statements if isinstance(s, Statement)):
        return []
    draw = "(unsigned long long seed, unsigned long long counter, long long i)"
    words = [
        "unsigned int a = (unsigned int)counter, b = (unsigned int)(counter >> 32), c = 0, d = 0;",
        "unsigned int k = (unsigned int)seed, l = (unsigned int)(seed >> 32);",
        "unsigned long long p, q;",
        *_ROUND * 10,
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
            lines += [f"{qualifiers} {head}", *braced(body), ""]
    return lines


def _float(number: np.float32) -> str:
    return f"{float(number).hex()}f"
