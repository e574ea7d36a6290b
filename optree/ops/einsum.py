"""Einstein summation, composed of transposes and products."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from optree.dtypes import wide_dtype
from optree.errors import AxisError, OperandError, ShapeError, describe
from optree.ops.shape import sizes_for_reshape
from optree.registry import f, function, numpy_function
from optree.tree.types import promote, weak_dtype
from optree.tree.variable import Operand, Variable, any_neon, as_operand, in_dtype, number_of, spec_of, variable_of

#: Subscripts of the axes of an ellipsis, from the last.
HIDDEN = "0123456789"


@function()
def einsum(subscripts: Any, *operands: Operand) -> Any:
    """Einstein summation: ``einsum("bij,bjk->bik", x, y)``.

    Subscripts that the output lacks are summed over; without ``->`` it has those that occur once, in alphabetical
    order. ``...`` are any axes, broadcast together. Operands are contracted pairwise from left to right, in their
    common dtype; intermediate values of float16 and bfloat16 are float32.

    Examples
    --------
    >>> x = be.array([[1, 2], [3, 4]])
    >>> be.einsum("ij,ij->i", x, x).asnumpyarray(), be.einsum("ii", x).asnumpyarray()
    (array([ 5., 25.], dtype=float32), array(5., dtype=float32))
    """
    if not isinstance(subscripts, str):
        raise OperandError(f"einsum: subscripts are a text such as 'ij,jk->ik', not {describe(subscripts)}")
    values = [variable_of(x, "einsum") for x in operands]
    if any_neon(values):
        raise OperandError(
            "einsum: in neon's mode axes stay, where letters go; be.dot, be.sum and be.transpose keep them"
        )
    terms, output = _parsed(subscripts, values)
    _check_sizes(subscripts, values, terms)
    common = promote(*(weak_dtype(spec_of(as_operand(x, "einsum"))) for x in operands))
    # Cast first: intermediate sums may overflow narrow dtypes.
    values = [
        x if number_of(x) is not None else in_dtype(x, _intermediate_dtype(common, terms, output)) for x in values
    ]
    joined, letters = _summed(*_diagonal(values[0], terms[0]), set(output).union(*terms[1:]))
    for i, (x, term) in enumerate(zip(values[1:], terms[1:], strict=True), 2):
        needed = set(output).union(*terms[i:])
        other = _summed(*_diagonal(x, term), needed | set(letters))
        joined, letters = _joined((joined, letters), other, needed)
    joined = in_dtype(joined, common)
    order = tuple(letters.index(letter) for letter in output)
    is_in_order = order == tuple(range(len(order))) and joined is not values[0]  # a node, not the operand itself
    return joined if is_in_order else f.transpose(joined, order)


def _intermediate_dtype(common: np.dtype, terms: Sequence[str], output: str) -> np.dtype:
    """The dtype of intermediate values: wide if there are several steps, so that none rounds."""
    others = [set(output).union(*terms[:i], *terms[i + 1 :]) for i in range(len(terms))]
    sums = any(not set(term) <= other for term, other in zip(terms, others, strict=True))
    return wide_dtype(common) if len(terms) > 2 or (sums and len(terms) > 1) else common


@numpy_function(np.einsum)
def _numpy_einsum(operands: Sequence[Operand], optimize: object = False) -> Any:
    """`einsum` with the parameters of `numpy.einsum`; `optimize` is ignored."""
    return einsum(*operands)


def _parsed(subscripts: str, operands: Sequence[Variable]) -> tuple[list[str], str]:
    """The subscripts of each operand and of the output, with ellipses expanded."""
    left, arrow, right = subscripts.replace(" ", "").partition("->")
    terms = left.split(",")
    for term in [*terms, right]:
        if not re.fullmatch(r"[a-zA-Z]*(\.\.\.)?[a-zA-Z]*", term):
            raise OperandError(f"einsum: {term!r} in {subscripts!r} is not of letters, with one ... at most")
    if len(terms) != len(operands):
        raise OperandError(f"einsum: {subscripts!r} has subscripts for {len(terms)} operands, not {len(operands)}")
    spelt = [_spelt(term, x, subscripts) for term, x in zip(terms, operands, strict=True)]
    most = max(("".join(letter for letter in term if letter in HIDDEN) for term in spelt), key=len)
    if not arrow:
        letters = "".join(spelt)
        return spelt, most + "".join(sorted(x for x in set(letters) if x.isalpha() and letters.count(x) == 1))
    if most and "..." not in right:
        raise OperandError(f"einsum: the axes of ... in {subscripts!r} are not summed over; give the output a ... too")
    output = right.replace("...", most)
    for letter in output:
        if output.count(letter) > 1 or letter not in "".join(spelt):
            raise OperandError(f"einsum: {letter!r} is in the output of {subscripts!r} twice, or in no operand")
    return spelt, output


def _spelt(term: str, x: Variable, subscripts: str) -> str:
    """A term with its ellipsis expanded, a letter for each axis."""
    letters = term.replace("...", "")
    hidden = x.ndim - len(letters)
    if hidden < 0 or (hidden and "..." not in term) or hidden > len(HIDDEN):
        raise AxisError(f"einsum: {term!r} in {subscripts!r} does not name the {x.ndim} axes of {describe(x)}")
    return term.replace("...", HIDDEN[:hidden][::-1])


def _check_sizes(subscripts: str, operands: Sequence[Variable], terms: Sequence[str]) -> None:
    found: dict[str, tuple[int, Variable]] = {}
    for x, term in zip(operands, terms, strict=True):
        for letter, size in zip(term, x.shape, strict=True):
            known, first = found.setdefault(letter, (size, x))
            if known != size and None not in (known, size) and not (letter in HIDDEN and 1 in (known, size)):
                raise ShapeError(
                    f"einsum: {letter!r} in {subscripts!r} is of size {known} in {describe(first)}, and of size {size} "
                    f"in {describe(x)}"
                )
            if known is None or (letter in HIDDEN and known == 1):
                found[letter] = (size, x)


def _diagonal(x: Variable, term: str) -> tuple[Variable, str]:
    """The diagonals of an operand along repeated letters, and its term without them."""
    for letter in term:
        while term.count(letter) > 1:
            i, j = term.index(letter), term.rindex(letter)
            size = x.shape[i]
            if size is None or x.shape[j] is None:
                raise ShapeError(f"einsum: {letter!r} is repeated for {describe(x)}, so its size must be known")
            others = [axis for axis in range(x.ndim) if axis not in (i, j)]
            last = f.transpose(x, (*others, i, j))
            rows = f.reshape(last, (*sizes_for_reshape(last.shape[: len(others)], x, "einsum"), size * size))
            x = f.slice(rows, (Ellipsis, slice(None, None, size + 1)))
            term = "".join(term[axis] for axis in others) + letter
    return x, term


def _summed(x: Variable, term: str, needed: set[str]) -> tuple[Variable, str]:
    """An operand summed over the letters that are not needed."""
    axes = tuple(i for i, letter in enumerate(term) if letter not in needed)
    left = "".join(letter for letter in term if letter in needed)
    if not axes:
        return x, term
    return in_dtype(f.sum(x, axis=axes, keepdims=False), x.dtype), left  # np.sum widens integers, np.einsum does not


def _joined(first: tuple[Variable, str], second: tuple[Variable, str], needed: set[str]) -> tuple[Variable, str]:
    """The product of two operands, contracted over their common letters that are not needed."""
    (x, left), (y, right) = first, second
    both = [letter for letter in left if letter in right]
    stacked, summed = ([letter for letter in both if (letter in needed) == keep] for keep in (True, False))
    rows, columns = ([letter for letter in term if letter not in both] for term in (left, right))
    found = "".join([*stacked, *rows, *columns])
    if not summed:
        return _spread(x, left, found) * _spread(y, right, found), found
    if stacked and not (rows or columns):  # a product of matrices for each number
        order = found + "".join(summed)
        x, y = (in_dtype(given, wide_dtype(given.dtype)) for given in (x, y))  # no product is rounded to a narrow dtype
        return _summed(_spread(x, left, order) * _spread(y, right, order), order, set(found))
    if not stacked:
        axes = tuple(left.index(letter) for letter in summed), tuple(right.index(letter) for letter in summed)
        return f.tensordot(x, y, axes), found
    a, b = _as_matrices(x, left, stacked, rows, summed), _as_matrices(y, right, stacked, summed, columns)
    product = f.matmul(a, b)
    sizes = [x.shape[left.index(letter)] for letter in rows] + [y.shape[right.index(letter)] for letter in columns]
    if len(rows) == len(columns) == 1:
        return product, found
    stack = [n if m == 1 else m for n, m in zip(*(_of(v, t, stacked) for v, t in ((x, left), (y, right))), strict=True)]
    return f.reshape(product, sizes_for_reshape([*stack, *sizes], product, "einsum")), found


def _of(x: Variable, term: str, letters: Sequence[str]) -> list[Any]:
    """The sizes of some of an operand's axes."""
    return [x.shape[term.index(letter)] for letter in letters]


def _spread(x: Variable, term: str, found: str) -> Variable:
    """An operand with an axis for each letter, of size 1 for those that it lacks."""
    own = [letter for letter in found if letter in term]
    order = tuple(term.index(letter) for letter in own)
    x = f.transpose(x, order) if order != tuple(range(x.ndim)) else x
    new = tuple(i for i, letter in enumerate(found) if letter not in term)
    return f.expand_dims(x, new) if new else x


def _as_matrices(
    x: Variable, term: str, stacked: Sequence[str], rows: Sequence[str], columns: Sequence[str]
) -> Variable:
    """An operand as a stack of matrices, with its row letters merged into one axis, and its column letters."""
    x = _spread(x, term, "".join([*stacked, *rows, *columns]))
    if len(rows) == len(columns) == 1:
        return x
    sizes = list(x.shape)
    middle = len(stacked) + len(rows)
    merged = [_product(sizes[len(stacked) : middle]), _product(sizes[middle:])]
    return f.reshape(x, sizes_for_reshape([*sizes[: len(stacked)], *merged], x, "einsum"))


def _product(sizes: Sequence[Any]) -> Any:
    return None if None in sizes else int(np.prod(sizes, dtype=np.int64))
