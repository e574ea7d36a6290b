"""Random ops: counter-based draws from a backend's random state.

The state is a uint64 tensor ``[seed, counter]``, the first operand. A draw takes counter blocks
(`optree.ops.philox`) and advances the counter in place: the same tree, run again, gives new numbers, and
two draws in one tree differ. The `destroy_map` declares this: draws are not merged, and run in
post-order. A node that is used several times is drawn once.

The shape is that of another operand, so that it may be unknown until a function is called, and a plan
serves every size. Backends' methods (`backends.random`) supply the state, and take a shape instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar

import numpy as np

from optree.arrays import Array, portable
from optree.dtypes import finfo, is_floating, is_narrow
from optree.errors import DTypeError, OperandError
from optree.locks import Locked
from optree.op.index_map import LIKE, OPAQUE, SHAPE, IndexMap
from optree.op.traits import CompositeOperator, ElementwiseOperator, NonDifferentiableOperator, OrphanOperator
from optree.ops import philox
from optree.registry import f
from optree.tree.gradient_types import grad_not_implemented
from optree.tree.types import Shape, TensorType, as_dtype, promote
from optree.tree.variable import Variable

#: The type of a random state.
STATE = TensorType("uint64", (2,))

FLOAT64 = np.dtype("float64")

#: Held while a state is advanced: two threads never get the same blocks.
_advancing = Locked()


def take_blocks(state: np.ndarray, blocks: int) -> tuple[int, int]:
    """Advance the state by a number of blocks; the seed and counter before."""
    with _advancing.lock:
        seed, counter = int(state[0]), int(state[1])
        state[1] = (counter + blocks) & 0xFFFFFFFFFFFFFFFF
    return seed, counter


class RandomOperator(OrphanOperator):
    """A draw from a random state, the first operand, of the second operand's shape.

    It overwrites the state, and is therefore not merged or folded.
    """

    __props__: ClassVar[tuple[str, ...] | None] = ("dtype",)
    destroy_map = {None: [0]}
    draws = True

    #: The floating dtype of the value; None for the second operand's.
    dtype: Any = None

    def batch(self, inputs: Sequence[Any], batched: Sequence[bool]) -> Any:
        return self(*inputs)

    def bind(self, types: Sequence[TensorType], backend: object) -> Any:
        if types[0] is not STATE:
            raise OperandError(f"{self.name}: the first operand is a backend's be.rng_state, not one of {types[0]}")
        dtype = as_dtype(types[1].dtype if self.dtype is None else self.dtype)
        if not is_floating(dtype):
            known = "float16, bfloat16, float32 or float64"
            raise DTypeError(f"{self.name}: random numbers are {known}, not {dtype}; give dtype=")
        return self.make(dtype=dtype)

    def output_shape(self, *shapes: Shape) -> Shape:
        return shapes[1]

    def resolve_dtypes(self, *dtypes: np.dtype | type) -> tuple[np.dtype, ...]:
        return STATE.dtype, promote(dtypes[1]), self.dtype


class TakeBlocks(RandomOperator):
    """Advance the state by a draw of an operand's shape; the ``[seed, counter]`` before."""

    name = "take_blocks"
    index_map = IndexMap(OPAQUE, SHAPE)
    operands = ("state", "like")

    def output_shape(self, *shapes: Shape) -> Shape:
        return (2,)

    def resolve_dtypes(self, *dtypes: np.dtype | type) -> tuple[np.dtype, ...]:
        return STATE.dtype, promote(dtypes[1]), STATE.dtype

    @portable
    def numpy(self, state: Array, like: Array) -> Any:
        with _advancing.lock:
            begin, counter = state.copy(), state[1:]
            counter += np.uint64(philox.count_blocks(prod(np.shape(like)), self.dtype))
        return begin


class DrawnAt(ElementwiseOperator, NonDifferentiableOperator):
    """The numbers at flat indices of a draw that begins at a seed and counter.

    Attributes
    ----------
    normal : bool
        Whether the distribution is normal; otherwise uniform in [0, 1).
    dtype : dtype
        float32 or float64.
    """

    name = "drawn_at"
    operands = ("seed", "counter", "index")
    __props__ = ("normal", "dtype")
    normal: Any = False
    dtype: Any = np.dtype("float32")
    examples = (
        (([7], [2**40], [0, 1, 2, 3, 4, 5, 9]), {}),
        (([7], [2**40], [0, 1, 2, 3, 4, 5, 9]), {"dtype": np.dtype("float64")}),
        (([7], [3], [0, 1, 2, 3, 4, 5, 9]), {"normal": True}),
        (([7], [3], [0, 1, 2, 3]), {"normal": True, "dtype": np.dtype("float64")}),
    )

    def resolve_dtypes(self, *dtypes: np.dtype | type) -> tuple[np.dtype, ...]:
        return STATE.dtype, STATE.dtype, np.dtype("int64"), self.dtype

    def kernel(self, *dtypes: np.dtype) -> str | None:
        return f"philox_{'normal' if self.normal else 'uniform'}{self.dtype.itemsize * 8}({{0}}, {{1}}, {{2}})"

    def numpy(self, *arrays: Array) -> Any:
        seed, counter, index = np.broadcast_arrays(*(np.asarray(x) for x in arrays))
        found = np.empty(index.shape, self.dtype)
        for each in np.unique(seed):
            mine = seed == each
            found[mine] = philox.numbers_at(int(each), counter[mine], index[mine], self.normal, self.dtype)
        return found


class Draw(CompositeOperator, RandomOperator):
    """A draw whose numbers are functions of their flat index, which kernels compute."""

    index_map = IndexMap(OPAQUE, LIKE)
    operands = ("state", "like")

    def decompose(self, *inputs: Variable) -> Any:
        state, like = inputs
        if is_narrow(self.dtype):
            return None
        begin = f.take_blocks(state, like, dtype=self.dtype)
        seed, counter = (f.slice(begin, (i,)) for i in range(2))
        return DrawnAt.make(normal=self.name != "rand", dtype=self.dtype)(seed, counter, f.flat_indices(like))


class Rand(Draw):
    """Uniform random numbers in [0, 1), of an operand's shape."""

    name = "rand"

    def numpy(self, state: Array, like: Array) -> Any:
        return _draw(philox.uniform, state, np.shape(like), self.dtype)


class StandardNormal(Draw):
    """Standard normal random numbers, of an operand's shape."""

    name = "standard_normal"

    def numpy(self, state: Array, like: Array) -> Any:
        return _draw(philox.normal, state, np.shape(like), self.dtype)


class StandardGamma(RandomOperator):
    """Random numbers of the gamma distribution with scale 1, one for each shape parameter; not differentiable."""

    name = "standard_gamma"
    operands = ("state", "shape")

    def numpy(self, state: Array, shape: Array) -> Any:
        alpha = np.asarray(shape)
        begin = take_blocks(state, philox.count_gamma_blocks(alpha.size))
        return philox.gamma(*begin, alpha).astype(self.dtype)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        reason = "a draw is no smooth function of its shape parameter; its scale has a derivative"
        return [None, grad_not_implemented(self, 1, inputs[1], reason)]


class StochasticCast(RandomOperator):
    """The second operand in another floating dtype, by stochastic rounding.

    The expected value is the operand's. Values that the dtype represents exactly, infinities and nans are
    unchanged. A value between the largest finite number and the next power of two may
    round to infinity. The derivative is that of a cast.

    Attributes
    ----------
    bits : int or None
        The bits of the mantissa that are used, fewer than the dtype has; None for all.
    """

    name = "stochastic_cast"
    operands = ("state", "x")
    __props__ = ("dtype", "bits")
    dtype = np.dtype("float16")
    bits: int | None = None

    def bind(self, types: Sequence[TensorType], backend: object) -> Any:
        dtype = super().bind(types, backend).dtype
        most = finfo(dtype).nmant
        if self.bits is not None and (isinstance(self.bits, bool) or self.bits not in range(1, most + 1)):
            raise OperandError(f"stochastic_cast: bits are from 1 to the {most} of {dtype}, or None, not {self.bits!r}")
        return self.make(dtype=dtype, bits=None if self.bits is None else int(self.bits))

    def numpy(self, state: Array, x: Array) -> Any:
        exact = np.asarray(x, FLOAT64)
        return round_by_chance(exact, _draw(philox.uniform, state, exact.shape, FLOAT64), self.dtype, self.bits)

    def grad(self, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> Sequence[Any]:
        (delta,) = output_gradients
        return [None, delta]


def _draw(distribution: Any, state: np.ndarray, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    size = int(np.prod(shape, dtype=np.int64))
    return distribution(*take_blocks(state, philox.count_blocks(size, dtype)), shape, dtype)


def round_by_chance(x: np.ndarray, chance: np.ndarray, dtype: np.dtype, bits: int | None = None) -> np.ndarray:
    """Float64 values rounded to a dtype: away from zero where `chance`, in [0, 1), is below the remainder.

    With `bits`, to values whose mantissa has as many bits.
    """
    magnitude = np.abs(x)
    if bits is None:
        nearest = magnitude.astype(dtype)
        down = np.where(nearest > magnitude, np.nextafter(nearest, dtype.type(0)), nearest)
        up = np.nextafter(down, dtype.type(np.inf)).astype(FLOAT64)
    else:
        _, exponent = np.frexp(magnitude)
        # Below the least normal number, its neighbours have the spacing of the dtype's own.
        step = np.maximum(np.ldexp(1.0, exponent - 1 - bits), float(finfo(dtype).smallest_subnormal))
        down = np.floor(magnitude / step) * step
        up = down + step
    # Beyond the largest finite number, as if the exponent range continued.
    up = np.where(np.isinf(up) & np.isfinite(magnitude), np.ldexp(1.0, finfo(dtype).maxexp), up)
    part = (magnitude - down) / (up - down)  # exact: the divisor is a power of two
    return np.copysign(np.where(chance < part, up, down), x).astype(dtype)
