"""RandomMethods, the part of a backend that draws random numbers."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np

from backends.creation import Creation
from optree.dtypes import is_floating
from optree.errors import OperandError, ParameterError, ShapeError, brief, describe
from optree.locks import cached_property
from optree.registry import f
from optree.tree.tensor import Tensor
from optree.tree.types import as_dtype, promote
from optree.tree.variable import Variable, constant, in_dtype


class RandomMethods(Creation):
    """Random numbers as trees, and the two random states of a backend.

    Draws in trees use `rng_state` and a counter-based generator: element `i` of a draw
    depends on the seed, on the number of earlier draws, and on `i` (`optree.ops.philox`).
    Draws on the host use `rng`.

    A tree draws each time it runs. To use one draw in several assignments, assign it to a
    tensor first; within one assignment or function, a shared subtree is drawn once.

    A shape may be given as an operand, whose shape is used and, if it is floating and no
    dtype is given, its dtype, even if they are known only when a function is called.

    Attributes
    ----------
    rng : numpy.random.RandomState
    rng_state : Tensor
        uint64, ``[seed, counter]``; each draw advances the counter when it runs.
    """

    rng_state: Tensor
    _seed: Any
    _start: list[int]

    # The states

    def gen_rng(self, seed: int | None = None) -> np.random.RandomState:
        """Seed both states, without a seed from the system's entropy; returns `rng`.

        Raises
        ------
        ParameterError, OperandError
            If the seed is no unsigned integer of 32 bits.
        """
        self._seed_states(seed)
        return self.rng

    def _seed_states(self, seed: int | None) -> None:
        if seed is None:
            self._seed, counted = np.frombuffer(os.urandom(32), np.uint32), int.from_bytes(os.urandom(8), "little")
        else:
            self._seed = counted = _as_seed(seed)
        self._start = [counted, 0]
        if "rng_state" not in self.__dict__:
            self.rng_state = Tensor(self, self._from_host(self._start), "rng_state")
        self.rng_reset()

    @cached_property
    def rng(self) -> np.random.RandomState:
        """NumPy's generator for draws on the host, made at its first use, which imports `numpy.random`."""
        return np.random.RandomState(self._seed)

    def rng_reset(self) -> None:
        """Reset both states to those after the last `gen_rng`."""
        if "rng" in self.__dict__:
            self.rng.seed(self._seed)
        self._write_rng_state(self._start)

    def rng_get_state(self) -> dict[str, Any]:
        """Both states as plain data, for `rng_set_state`."""
        return {"rng": self.rng.get_state(), "rng_state": self.rng_state.get()}

    def rng_set_state(self, state: dict[str, Any]) -> None:
        """Restore the states that `rng_get_state` returned.

        Raises
        ------
        OperandError
            If `state` has another form; nothing has changed then.
        """
        if not isinstance(state, dict) or state.keys() != {"rng", "rng_state"}:
            raise OperandError(
                f"rng_set_state takes what rng_get_state gave, a dict of 'rng' and 'rng_state', not {state!r:.80}"
            )
        counter = np.asarray(state["rng_state"])
        if counter.shape != (2,) or counter.dtype.kind not in "iu" or (counter < 0).any():
            raise OperandError(f"rng_set_state: 'rng_state' is [seed, counter], not {state['rng_state']!r:.80}")
        try:
            np.random.RandomState(0).set_state(state["rng"])
        except (TypeError, ValueError, KeyError, IndexError) as error:
            raise OperandError(f"rng_set_state: 'rng' is no state of numpy.random.RandomState: {error}") from error
        self.rng.set_state(state["rng"])
        self._write_rng_state(counter)

    def _from_host(self, values: Any) -> Any:
        return self.from_host(np.array(values, np.uint64))

    def _write_rng_state(self, values: Any) -> None:
        # In place: existing trees contain this tensor.
        with self.active():
            self.rng_state.array[...] = self._from_host(values)

    # Draws

    def rand(self, shape: Any = None, dtype: Any = None, out: Tensor | None = None) -> Any:
        """Uniform numbers of [0, 1), multiples of 2**-24 (float16: 2**-11, bfloat16: 2**-8, float64: 2**-53).

        Parameters
        ----------
        shape : int, tuple of int, or operand
            By default the shape of `out`.
        dtype : dtype, optional
            A floating one; by default that of the operand given as the shape, or the backend's `datatype`.
        out : Tensor, optional
            The target: the numbers are written there at once, and it is returned.
        """
        return self._finish(self._draw("rand", shape, dtype, out), out)

    def uniform(
        self, low: Any = 0.0, high: Any = 1.0, size: Any = None, dtype: Any = None, out: Tensor | None = None
    ) -> Any:
        """Uniform numbers of [low, high). Both may be operands; `size` may then be left out.

        By rounding, `high` itself may occur.
        """
        low, high = _as_number(low, "uniform: low"), _as_number(high, "uniform: high")
        if isinstance(low, float) and isinstance(high, float) and low > high:
            raise ParameterError(f"uniform: low {low} is above high {high}")
        numbers = self._draw("rand", size, dtype, out, low, high)
        if not (isinstance(low, float) and isinstance(high, float) and (low, high) == (0.0, 1.0)):
            numbers = _scaled("uniform", numbers, low, high - low)
        return self._finish(numbers, out)

    def standard_normal(self, shape: Any = None, dtype: Any = None, out: Tensor | None = None) -> Any:
        """Numbers of the standard normal distribution; the parameters are those of `rand`."""
        return self._finish(self._draw("standard_normal", shape, dtype, out), out)

    def normal(
        self, loc: Any = 0.0, scale: Any = 1.0, size: Any = None, dtype: Any = None, out: Tensor | None = None
    ) -> Any:
        """Numbers of the normal distribution with mean `loc` and standard deviation `scale`.

        Both may be operands, with derivatives by them; `size` may then be left out.
        """
        loc, scale = _as_number(loc, "normal: loc"), _as_number(scale, "normal: scale")
        if isinstance(scale, float) and scale < 0:
            raise ParameterError(f"normal: a standard deviation is 0 or more, not {scale}")
        numbers = self._draw("standard_normal", size, dtype, out, loc, scale)
        if not (isinstance(loc, float) and isinstance(scale, float) and (loc, scale) == (0.0, 1.0)):
            numbers = _scaled("normal", numbers, loc, scale)
        return self._finish(numbers, out)

    def fill_normal(self, ary: Tensor, mean: Any = 0.0, stdv: Any = 1.0) -> Tensor:
        """Fill a tensor with normally distributed numbers, at once; returns it (neon's name)."""
        return self.normal(mean, stdv, out=ary)

    def make_binary_mask(self, out: Tensor, keepthresh: Any = 0.5) -> Tensor:
        """Fill a tensor with ones, with probability `keepthresh`, and zeros; returns it (neon's name)."""
        return self._finish(self._draw("rand", out, np.float32, None) < _as_chance(keepthresh, "keepthresh"), out)

    def dropout_mask(self, shape: Any, keep: Any = 0.5, dtype: Any = None, out: Tensor | None = None) -> Any:
        """A dropout mask: ``1 / keep`` with probability `keep`, else zero, so that x * mask has the expected value x.

        Parameters
        ----------
        shape : int, tuple of int, or operand
            The masked operand, for example: ``x * be.dropout_mask(x, 0.8)``.
        keep : number of (0, 1], or operand
        dtype, out
            As in `rand`.
        """
        keep = _as_chance(keep, "keep")
        like = self._like(shape, out)
        wanted = self._draw_dtype(dtype, like)
        mask = f.cast(f.rand(self.rng_state, like, dtype=np.dtype(np.float32)) < keep, wanted)
        return self._finish(in_dtype(mask * (1.0 / keep), wanted), out)

    def binarize(self, x: Any, out: Tensor | None = None, stochastic: bool = True) -> Any:
        """Each element as 1 or -1.

        It is 1 with probability (x + 1) / 2, clipped to [0, 1]; with ``stochastic=False``,
        where x >= 0. A nan becomes -1. The derivative is zero.
        """
        operand = x if isinstance(x, Variable) else self.array(x, getattr(x, "dtype", None))
        wanted = self._draw_dtype(None, operand)
        if stochastic:
            drawn = np.dtype(np.float64 if operand.dtype == np.float64 else np.float32)
            numbers = f.rand(self.rng_state, operand, dtype=drawn)
            is_one = numbers < in_dtype(operand, drawn) * 0.5 + 0.5
        else:
            is_one = operand >= 0
        return self._finish(f.cast(is_one, wanted) * 2.0 - 1.0, out)

    def stochastic_cast(self, x: Any, dtype: Any = np.float16, out: Tensor | None = None) -> Any:
        """Values cast to a lower precision by stochastic rounding."""
        return self._finish(f.stochastic_cast(self.rng_state, x, dtype=as_dtype(dtype)), out)

    # Helpers

    def _draw(self, op: str, shape: Any, dtype: Any, out: Tensor | None, *parameters: Any) -> Any:
        """Numbers of the standard distribution, of a shape, or of the parameters' broadcast shape."""
        operands = [p for p in parameters if isinstance(p, Variable)]
        if shape is None and out is None and operands:
            # Only the sum's shape is used.
            shape = f.add(*operands) if len({p.shape for p in operands}) > 1 else operands[0]
        like = self._like(shape, out)
        return getattr(f, op)(self.rng_state, like, dtype=self._draw_dtype(dtype, *(operands or [like])))

    def _like(self, shape: Any, out: Tensor | None) -> Variable:
        """An operand of a shape: the one given, or a tensor with one element in memory, of strides 0.

        It is a leaf, so that a plan serves every size.
        """
        shape = out if shape is None else shape
        if shape is None:
            raise OperandError("a random draw needs a shape or an operand of its shape; the shape () is one number")
        if isinstance(shape, Variable):
            return shape
        sizes = self._shape(shape)
        return Tensor(self, np.broadcast_to(self._element, sizes), f"shape{sizes}")

    @cached_property
    def _element(self) -> Any:
        """The memory of tensors that only have a shape."""
        return self.from_host(np.zeros((), bool))

    def _draw_dtype(self, dtype: Any, *operands: Variable) -> np.dtype:
        """The given dtype, else that of the floating operands, else the backend's."""
        if dtype is not None:
            return as_dtype(dtype)
        floating = [operand.dtype for operand in operands if is_floating(operand.dtype)]
        return promote(*floating) if floating else self.datatype

    def _finish(self, tree: Any, out: Tensor | None) -> Any:
        if out is None:
            return tree
        if not isinstance(out, Tensor):
            raise OperandError(f"random numbers are written into a tensor, not {describe(out)}")
        out[...] = tree
        return out


def _as_seed(seed: Any) -> int:
    if not hasattr(seed, "__index__"):
        raise OperandError(f"a seed is an integer or None, not {seed!r}")
    number = int(seed.__index__())
    if not 0 <= number < 2**32:
        raise ParameterError(f"a seed is from 0 to {2**32 - 1}, not {number}")
    return number


def _as_number(value: Any, what: str) -> Any:
    """An operand unchanged, or a finite number as a Python float, which is weak."""
    if isinstance(value, Variable):
        return value
    if isinstance(value, np.ndarray) and value.ndim:
        return constant(value)
    try:
        number = float(value)
    except (TypeError, ValueError):
        remedy = "; a shape goes into size=" if isinstance(value, list | tuple) else ""
        raise OperandError(f"{what} is a number or an operand, not {brief(value)}{remedy}") from None
    if not math.isfinite(number):
        raise ParameterError(f"{what} is finite, not {number}")
    return number


def _as_chance(value: Any, what: str) -> Any:
    """A probability above 0, or an operand of them."""
    chance = _as_number(value, what)
    if isinstance(chance, float) and not 0 < chance <= 1:
        raise ParameterError(f"{what} is a probability above 0 and up to 1, not {chance}")
    return chance


def _scaled(what: str, numbers: Variable, offset: Any, factor: Any) -> Any:
    tree = numbers * factor + offset
    if tree.shape != numbers.shape:
        raise ShapeError(
            f"{what}: parameters of {describe(offset)} and {describe(factor)} do not broadcast to the shape "
            f"{numbers.shape} that is drawn; leave size out to draw one number for each of them"
        )
    return in_dtype(tree, numbers.dtype)
