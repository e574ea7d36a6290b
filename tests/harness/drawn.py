"""Every function with examples, and NumPy's value of each: those that the fuzzer draws from, registered or composed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from math import prod
from random import Random
from typing import Any, NamedTuple

import numpy as np

from harness.composed import COMPOSED, composed_examples
from harness.expected import MEANINGS
from harness.linalg_cases import LINALG, linalg_examples
from harness.narrow import of_any_dtype
from optree.dtypes import finfo, is_floating, is_inexact
from optree.errors import OptreeError
from optree.registry import OPS, f
from optree.testing.examples import Example, examples_of, inputs_for

ALL_DTYPES = "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool".split()

#: Of a backend that has complex numbers, and of functions that take them.
COMPLEX = ["complex128", "complex64"]

#: Those that NumPy's linear algebra computes in float64; a matrix of small integers may be singular.
OF_MATRICES = ["float64"]


#: Other sizes of operands, and the most elements of one.
SIZES, ELEMENTS = (2, 3, 5, 8, 17, 33, 67, 130), 1 << 12


class Call(NamedTuple):
    """An example of a function, and its value on arrays of some dtypes, within some units in the last place.

    If it `is_smooth`, its numbers are chosen so that differences give its derivatives.
    """

    example: Example
    meaning: Callable[..., Any]
    dtypes: Sequence[str] = ALL_DTYPES
    ulps: float = 32
    is_smooth: bool = True


@cache
def calls() -> dict[str, list[Call]]:
    """The examples of every op that has a meaning, and of every composed function, by name."""
    found = {
        name: [
            Call(e, of_any_dtype(partial(MEANINGS[name], **e.op.props)), [*ALL_DTYPES, *(COMPLEX * 2)])
            for e in examples_of(op)
        ]
        for name, op in sorted(OPS.items())
        if name in MEANINGS
    }
    found |= {name: [Call(e, of_any_dtype(meaning)) for e, meaning in composed_examples(name)] for name in COMPOSED}
    return found | {name: [Call(*case, OF_MATRICES, 1e4) for case in linalg_examples(name)] for name in LINALG}


def stretched(call: Call, chance: Random) -> Call:
    """A call with other sizes of its operands, one for each, where it takes these; else the call itself."""
    example = call.example
    sizes = {n: chance.choice(SIZES) for n in {n for x in example.operands if isinstance(x, tuple) for n in x} - {0, 1}}
    operands = tuple(tuple(sizes.get(n, n) for n in x) if isinstance(x, tuple) else x for x in example.operands)
    ulps = call.ulps + sum(sizes.values())
    found = call._replace(example=example._replace(operands=operands), ulps=ulps, is_smooth=False)
    # The one overflows, and the other's order is the library's.
    is_alone = "exclusive_prod" in example.label or "partition" in example.label
    if is_alone or any(prod(x) > ELEMENTS for x in operands if isinstance(x, tuple)):
        return call
    try:
        values = found.example.draw(None if found.example.takes_floats else np.int64)
        tree = found.example.tree(inputs_for(values))
        value = np.asarray(call.meaning(*values))
    except (OptreeError, ValueError, IndexError, TypeError):  # a parameter, or a list of values, is of the other sizes
        return call
    return found if tree.shape == value.shape else call


def _arithmetic(x: Any) -> Any:
    """The operand by arithmetic without rounding, which no rule undoes."""
    if x.dtype.kind == "b":
        return f.logical_not(f.logical_xor(x, True))
    return (x * 0.5) * 2 if is_inexact(x.dtype) else (x - 1) + 1


#: Trees that are their operand, to the bit: fused arithmetic, moved elements, and steps of other kinds.
SAME: tuple[Callable[[Any], Any], ...] = (
    lambda x: x,
    _arithmetic,
    lambda x: np.flip(_arithmetic(np.flip(x))),
    lambda x: np.transpose(_arithmetic(np.transpose(x))),
    lambda x: np.reshape(_arithmetic(np.ravel(x)), x.shape),
    lambda x: np.transpose(f.copy(np.transpose(x))),
    lambda x: np.concatenate([x, x]).at[: x.shape[0]] if x.ndim else x,
    lambda x: np.take(x, np.arange(x.shape[-1]), axis=-1) if x.ndim else x,
    lambda x: np.repeat(x, 2, axis=0).at[::2] if x.ndim else x,
    lambda x: np.pad(x, 1).at[(slice(1, -1),) * x.ndim] if x.ndim else x,
    lambda x: np.max(np.stack([x, x]), axis=0) if x.dtype.kind != "c" else np.stack([x, x]).at[1],
    lambda x: np.broadcast_to(x, (3, *x.shape)).at[1],
    lambda x: np.where(np.equal(x, x), x, np.max(x) if x.dtype.kind != "c" else np.ravel(x).at[0]) if x.size else x,
)


def specials(dtype: np.dtype) -> np.ndarray:
    """Numbers of a dtype at which functions have limits of their own, or none."""
    if is_floating(dtype):
        numbers = [np.nan, np.inf, -np.inf, -0.0, float(finfo(dtype).smallest_subnormal)]
    else:
        numbers = [False, True] if dtype.kind == "b" else [np.iinfo(dtype).min, np.iinfo(dtype).max, 0]
    return np.array(numbers, dtype)
