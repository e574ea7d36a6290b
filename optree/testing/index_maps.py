"""Whether an op's index map is right: its value on an example, and on operands changed where it must not look."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from optree.dtypes import is_floating
from optree.op.index_map import Read
from optree.testing.comparison import expect
from optree.testing.examples import Example, Runner, inputs_for

#: The elements of a value whose reads are checked.
ELEMENTS = 3


def check_index_map(example: Example, op: Any, arrays: Sequence[np.ndarray], value: np.ndarray) -> None:
    """An op's value on an example's operands is what `op.index_map` says of it."""
    reads, found = op.index_map, [(n, read) for n, read in enumerate(op.index_map.reads) if n < len(arrays)]
    for n, read in found:
        expect(_moved(read, arrays[n], value), example, f"operand {n} is {read.kind}, and the value's elements differ")
    if reads.shape_of is not None:
        wanted = arrays[reads.shape_of].shape
        expect(value.shape == wanted, example, f"the value has the shape of operand {reads.shape_of}, not {wanted}")
    if reads.repeats is not None:
        wanted = _repeated(reads, arrays).astype(value.dtype)
        expect(np.array_equal(value, wanted), example, "its index map repeats an operand, and the value is another")
    if reads.broadcasts:
        wanted = np.broadcast_shapes(*(x.shape for x in arrays))
        expect(value.shape == wanted, example, f"operands are broadcast together, and {value.shape} is not {wanted}")
    for (left, axis), (right, other) in reads.equal_axes:
        sizes = [x.shape[max(at, -x.ndim)] for x, at in ((arrays[left], axis), (arrays[right], other))]
        expect(sizes[0] == sizes[1], example, "its index map contracts axes whose sizes differ")
    if not op.destroy_map:
        for n, read in found:
            _check_unread(example, n, read, arrays, value)


def _moved(read: Read, x: np.ndarray, value: np.ndarray) -> bool:
    """Whether the value's elements are an operand's, where a read says so."""
    if read.kind == "same":
        return np.array_equal(value, x)
    if read.kind == "permuted":
        return np.array_equal(value, x.transpose(read.axes))
    if read.kind == "reshaped":
        return np.array_equal(value, x.reshape(value.shape))
    if read.kind in ("selected", "flipped"):
        return np.unique(value).size == value.size and bool(np.isin(value, x).all())
    return True


def _repeated(reads: Any, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """The operand, or the flat indices, that a map repeats in the shape of another operand."""
    operand, like = reads.repeats
    shape = arrays[like].shape
    if operand is not None:
        x = arrays[operand]
        return np.broadcast_to(x.reshape(()) if x.size == 1 else x, shape)
    counted = reads.counted_axes(range(len(shape)))
    sizes = [size if axis in counted else 1 for axis, size in enumerate(shape)]
    return np.broadcast_to(np.arange(prod(sizes)).reshape(sizes), shape)


def _check_unread(example: Example, n: int, read: Read, arrays: Sequence[np.ndarray], value: np.ndarray) -> None:
    """An element of the value stays as it is when elements of an operand that it is not computed from change."""
    x = arrays[n]
    if not is_floating(x.dtype) or not x.size or not isinstance(example.operands[n], tuple):
        return
    for index, mask in _read_by(read, x, value):
        changed = list(arrays)
        changed[n] = np.where(mask, x, np.roll(x, 1))
        inputs = inputs_for(changed)
        (other,) = Runner([example.tree(inputs)], inputs)(changed)
        same = np.array_equal(other[index], value[index], equal_nan=is_floating(value.dtype))
        expect(same, example, f"operand {n} is {read.kind}, and the value's element {index} depends on others, too")


def _read_by(read: Read, x: np.ndarray, value: np.ndarray) -> Iterator[tuple[Any, np.ndarray]]:
    """Elements of the value, each with whether it is computed from each element of an operand."""
    if read.kind in ("shape", "like", "indexed"):
        yield (..., np.zeros(x.shape, bool))
        return
    if read.kind not in ("broadcast", "repeated", "windowed", "reduced"):
        return
    whole = range(x.ndim) if read.axes is None else [axis % x.ndim for axis in read.axes]
    for flat in np.linspace(0, value.size - 1, min(value.size, ELEMENTS)).astype(int):
        index = tuple(map(int, np.unravel_index(flat, value.shape)))
        yield index, _mask(read, x.shape, index, whole)


def _mask(read: Read, shape: tuple[int, ...], index: tuple[int, ...], whole: Sequence[int]) -> np.ndarray:
    """The elements that the value's element at an index is computed from."""
    mask, at = np.zeros(shape, bool), list(index)
    if read.kind in ("broadcast", "repeated"):
        mask[tuple(0 if size == 1 else i for size, i in zip(shape, at[len(at) - len(shape) :], strict=True))] = True
        return mask
    if len(at) < len(shape):  # the reduced axes are not the value's
        for axis in sorted(whole):
            at.insert(axis, 0)
    mask[tuple(slice(None) if axis in whole else i for axis, i in enumerate(at))] = True
    return mask
