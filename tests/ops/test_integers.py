"""Operands of integers and bools: values and gradients of every function are those of the same numbers as floats."""

from __future__ import annotations

import operator
import zlib
from itertools import cycle, product
from typing import Any

import numpy as np
import pytest
from harness.composed import COMPOSED, composed_examples
from harness.each import for_each
from harness.op_examples import examples_for, has_own_examples

from backends import gen_backend, source
from optree import grad
from optree.dtypes import finfo, is_complex, is_floating
from optree.errors import DTypeError
from optree.op.examples import examples_in
from optree.op.traits import ElementwiseOperator, FloatOperator
from optree.registry import OPS, f
from optree.testing.conformance import weighted_sum
from optree.testing.examples import Example, Runner, examples_of, inputs_for
from optree.tree.types import DTYPES, TensorType
from optree.tree.variable import Input, Variable

WHOLE = [dtype for dtype in DTYPES if dtype.kind in "biu"]

EXAMPLES = [(name, example) for name, op in sorted(OPS.items()) if examples_in(op).cases for example in examples_of(op)]
EXAMPLES += [
    (name, example)
    for name, op in OPS.items()
    if issubclass(op, ElementwiseOperator) and not examples_in(op).cases
    for example in examples_of(op)[:2]
]
EXAMPLES += [(name, example) for name in COMPOSED for example, _ in composed_examples(name)]

#: Examples on dtypes in turn, two each: `test_promise` has every dtype of each.
IN_TURN = [
    (example, (np.dtype(first), np.dtype(second)))
    for (_, example), (first, second) in zip(
        EXAMPLES,
        cycle([("int8", "uint32"), ("bool", "int16"), ("int64", "uint8"), ("bool", "uint16"), ("int32", "uint64")]),
        strict=False,
    )
]

#: Cases that multiply their operand by a number that makes integers wrap, as they do in NumPy, before all else.
WRAPPING = {"softplus#1", "log_sigmoid#1"}


def _values(example: Example, dtype: np.dtype) -> list[Any]:
    """The operands' values, those of floats as small integers or bools."""
    rng, least = np.random.RandomState(zlib.crc32(str(example).encode())), {"b": 0, "u": 1}.get(dtype.kind, -3)
    return [
        rng.randint(least, 2 if dtype.kind == "b" else 4, shape).astype(dtype) if isinstance(shape, tuple) else drawn
        for shape, drawn in zip(example.operands, example.draw(), strict=True)
    ]


def _near(got: Any, wanted: Any, dtype: np.dtype, what: str) -> None:
    unit = 8 * float(finfo(dtype).eps)
    size = np.max(np.abs(wanted), initial=1.0, where=np.isfinite(wanted))
    with np.errstate(over="ignore"):  # beyond the largest float16 it is inf
        wanted = np.asarray(wanted).astype(dtype)
    np.testing.assert_allclose(np.asarray(got, float), wanted.astype(float), unit, unit * size, err_msg=what)


def _check(build: Any, values: list[Any], what: str) -> None:
    """Compare the value of a function of integers, and its gradient, with those on the same numbers as float64."""
    whole = [i for i, x in enumerate(values) if isinstance(x, np.ndarray) and not is_floating(x.dtype)]
    inputs = inputs_for(values)
    try:
        tree = build(*inputs)
    except DTypeError:
        return
    if not isinstance(tree, Variable) or not is_floating(tree.dtype):
        return
    wide = [x.astype(float) if i in whole else x for i, x in enumerate(values)]
    floats = inputs_for(wide)
    reference = build(*floats)
    with np.errstate(all="ignore"):
        _near(Runner([tree], inputs)(values)[0], Runner([reference], floats)(wide)[0], tree.dtype, what)
        found, wanted = (
            Runner(grad(weighted_sum(cost), [at[i] for i in whole], disconnected_inputs="ignore"), at)(given)
            for cost, at, given in ((tree.astype("float64"), inputs, values), (reference, floats, wide))
        )
        for got, want in zip(found, wanted, strict=True):
            _near(got, want, tree.dtype, f"the gradient of {what}")


@for_each(("example", "dtypes"), IN_TURN, sampled=True)
def test_small_integers_are_what_they_are_as_floats(example: Example, dtypes: Any) -> None:
    operands = [i for i, x in enumerate(example.operands) if isinstance(x, tuple)]
    if not operands or example.label in WRAPPING:
        return
    for dtype in dtypes:
        values = _values(example, dtype)
        kept = {i: x for i, x in enumerate(values) if i not in operands}

        def build(*given: Any, kept: Any = kept, count: int = len(values)) -> Any:
            rest = iter(given)
            return example.tree([kept[i] if i in kept else next(rest) for i in range(count)])

        _check(build, [values[i] for i in operands], f"{example} of {dtype}")


#: Elementwise functions of floating values, and how many operands each has.
FLOATING = {
    **{
        name: len(op.operands or "xy")
        for name, op in sorted(OPS.items())
        if issubclass(op, ElementwiseOperator) and issubclass(op, FloatOperator)
    },
    **dict.fromkeys(("log_sigmoid", "softplus", "fabs"), 1),
}


@for_each(("name", "dtype"), product(FLOATING, WHOLE), sampled=True)
def test_the_values_of_extremes_are_what_they_are_as_floats(name: str, dtype: np.dtype) -> None:
    points = [0, 1] if dtype.kind == "b" else [np.iinfo(dtype).min, np.iinfo(dtype).max, 0, 3]
    values = [x.ravel() for x in np.meshgrid(*[np.array(points, dtype)] * FLOATING[name])]
    inputs = inputs_for(values)
    tree = getattr(f, name)(*inputs)
    with np.errstate(all="ignore"):
        floats = [x.astype(tree.dtype) for x in values]
        at = inputs_for(floats)
        (wanted,) = Runner([getattr(f, name)(*at)], at)(floats)
        (got,) = Runner([tree], inputs)(values)
    np.testing.assert_array_equal(got, wanted)


CONDITIONED = [name for name, op in sorted(OPS.items()) if has_own_examples(op)]


@for_each("name", [*CONDITIONED, *COMPOSED], sampled=True)
def test_a_condition_within_a_cost_is_flat(name: str) -> None:
    """A factor made of x > 1 alone counts as a constant in a derivative by x."""
    for example in examples_for(name)[:3]:
        values = example.draw()
        inputs = inputs_for(values)
        x = Input(TensorType("float64", ()), "x")
        shapes = zip(inputs, example.operands, strict=True)
        given = [(at > 1) & (x > 1) if isinstance(shape, tuple) else at for at, shape in shapes]
        try:
            tree = example.tree(given)
        except DTypeError:
            continue
        if not isinstance(tree, Variable) or is_complex(tree.dtype):  # of complex numbers there is no cost
            continue
        gradient = grad(f.sum(tree * x), x)
        with np.errstate(all="ignore"):
            got, constant = Runner([gradient, f.sum(f.cast(tree, np.float64))], [*inputs, x])([*values, np.array(2.0)])
        np.testing.assert_allclose(got, constant, rtol=1e-3)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_quotients_and_remainders_by_numbers_are_exact(dtype: str) -> None:
    limits, be = np.iinfo(dtype), gen_backend("cpu", jit=True)
    rng = np.random.default_rng(3)
    near = np.array([limits.min, limits.min + 1, limits.max - 1, limits.max, 0, 1, 2, 7], dtype)
    x = np.concatenate([near, rng.integers(limits.min, limits.max, 20_000, dtype, endpoint=True)])
    numbers = [3, 7, 10, 49, 127, limits.max, limits.max - 1, 0, 1] + ([-1, -3, limits.min] if limits.min else [])
    # Of multiples, quotients that are rounded down fail.
    multiples = np.multiply.outer(np.array([3, 7, 49, 127], dtype), x[:2000]).ravel()
    x = np.concatenate([x, multiples - np.array(1, dtype), multiples])
    quotients, remainders = be.empty(x.shape, dtype), be.empty(x.shape, dtype)
    tensor = be.array(x, dtype)
    for number in numbers:
        quotients[:], remainders[:] = tensor // number, tensor % number
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(quotients.get(), x // np.dtype(dtype).type(number))
            np.testing.assert_array_equal(remainders.get(), x % np.dtype(dtype).type(number))


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int64", "uint64"])
def test_comparisons_with_numbers_are_numpys(dtype: str) -> None:
    """With numbers beyond the dtype too, which bools' comparisons refuse; and they are fused."""
    array, be = np.array([0, 1, 127, 5]).astype(dtype), gen_backend("cpu", jit=True)
    x = be.array(array, dtype)
    assert len(source((x > 3) & (x <= 5) | (x == 0))) == 1
    for number in (0, 1, -1, 200, 2**63 - 1, 2**63, 2**64 - 1, 2**70, -(2**70)):
        for compare in (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne):
            for i in range(2):
                try:
                    wanted = compare(*(array, number)[:: 1 - 2 * i])
                except OverflowError:
                    with pytest.raises(OverflowError):
                        compare(*(x, number)[:: 1 - 2 * i])
                else:
                    np.testing.assert_array_equal(compare(*(x, number)[:: 1 - 2 * i]).asnumpyarray(), wanted)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
def test_reciprocals_are_a_kernel_and_numpys_of_zero_too(dtype):
    be = gen_backend("cpu", jit=True)
    values = np.array([0, 1, 2, 100, 1, 0, 3] + [-1, -2] * (dtype[0] == "i"), dtype)
    with np.errstate(all="ignore"):
        wanted = np.reciprocal(values)
    tree = np.reciprocal(be.array(values, dtype))
    assert len(source(tree)) == 1
    found = tree.asnumpyarray()
    assert found.dtype == wanted.dtype and found.tolist() == wanted.tolist()
