"""Rounding of float16 and bfloat16 in fused kernels: where a value is stored, not after each op."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from optree.compile.loopnest import Reduction, Statement
from optree.dtypes import FLOAT32, is_floating, is_narrow, wide_dtype


def rounded_when_stored(
    statements: Sequence[Statement | Reduction], dtypes: Sequence[np.dtype], levels: Sequence[str]
) -> tuple[list[Statement | Reduction], list[int]]:
    """A kernel's statements with float32 for narrow values, and the new number of each value.

    Values are rounded where a cast to a narrow dtype asks for it, and where they decide: in comparisons, truth values,
    casts to integers and indices of extremes. Another kernel may have the same value as it was stored. Casts that
    change nothing any more are left out, and so are statements that are equal without them, such as the mean of x
    beside that of its variance.

    `dtypes`, `levels`: the dtypes and levels of the values that come before those of the statements.
    """
    found, level_of, number_of = list(dtypes), list(levels), list(range(len(dtypes)))
    given = [*dtypes, *(s.dtype if isinstance(s, Statement) else s.result for s in statements)]
    made: dict[Statement | Reduction, int] = {}

    def number(s: Statement | Reduction, level: str) -> int:
        if s not in made:
            made[s] = len(found)
            found.append(s.dtype if isinstance(s, Statement) else s.result)
            level_of.append(level)
        return made[s]

    def operand(i: int, taken: np.dtype, stage: int) -> int:
        """The number of an operand that is taken in a dtype: a bool or an integer is of the rounded value."""
        new = number_of[i]
        if is_floating(taken) or not is_narrow(given[i]) or found[new] == given[i]:
            return new
        return number(Statement(0, "{0}", (new,), (found[new],), given[i], level_of[new], stage), level_of[new])

    used = {i for s in statements for i in (s.arguments if isinstance(s, Statement) else (s.argument,))}
    for s in statements:
        if isinstance(s, Reduction):
            is_rounded = s.value not in used or s.accumulator.replaces
            dtype, level = s.dtype if is_rounded else wide_dtype(s.dtype), "outer"
            s = s._replace(value=0, argument=operand(s.argument, s.dtype, s.stage), dtype=dtype)
        else:
            pairs = zip(s.arguments, s.loop, strict=True)
            level, arguments = s.level, tuple([operand(i, taken, s.stage) for i, taken in pairs])
            s = _unrounded(s, [found[i] for i in arguments], s.value in used)._replace(value=0, arguments=arguments)
            if _is_identity(s, found[arguments[0]]) and level_of[arguments[0]] == level:
                number_of.append(arguments[0])
                continue
        number_of.append(number(s, level))
    return [s._replace(value=value) for s, value in made.items()], number_of


def _unrounded(s: Statement, given: Sequence[np.dtype], is_used: bool) -> Statement:
    """A statement without the rounding to a narrow dtype of its operands, of some dtypes, and of its value."""
    if not is_floating(s.dtype):
        return s
    if s.expression == "{0}" and is_narrow(s.dtype) and not is_used and is_floating(given[0]):
        dtype = wide_dtype(given[0])  # the store rounds it
        return s._replace(loop=(dtype,) * len(s.loop), dtype=dtype)
    are_exact = [wide_dtype(dtype) == FLOAT32 or dtype.itemsize == 1 for dtype in given]
    pairs = zip(s.loop, are_exact, strict=True)
    loop = tuple([FLOAT32 if is_narrow(dtype) and is_exact else dtype for dtype, is_exact in pairs])
    is_cast = s.dtype not in s.loop and not all(dtype.itemsize == 1 for dtype in given)
    return s._replace(loop=loop, dtype=s.dtype if is_cast else wide_dtype(s.dtype))


def _is_identity(s: Statement, given: np.dtype) -> bool:
    """Whether a statement's value is its operand's, of some dtype, which is computed in float32."""
    return s.expression == "{0}" and s.dtype == wide_dtype(given) == FLOAT32 and {*s.loop} == {FLOAT32}
