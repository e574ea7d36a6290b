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
from optree.tree.types import DType, as_dtype, normalise_axis, promote
from optree.tree.variable import Variable, check_real, constant, in_dtype


class RandomMethods(Creation):
    """Random draws as trees, and the two random states of a backend.

    Draws in trees use `rng_state` and a counter-based generator: element `i` of a draw depends on the seed, on the
    number of earlier draws, and on `i` (`optree.ops.philox`). Draws on the host use `rng`.

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
        """Seed both states, from the system's entropy if `seed` is None; returns `rng`.

        Parameters
        ----------
        seed : int, optional

        Raises
        ------
        ParameterError, OperandError
            If the seed is no unsigned integer of 32 bits.

        Examples
        --------
        >>> _ = be.gen_rng(3)
        >>> first = be.rand((2,)).get()
        >>> _ = be.gen_rng(3)
        >>> bool((be.rand((2,)).get() == first).all())
        True
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
            self.rng_state = self.tensor_cls(self, self._from_host(self._start), "rng_state")
        self.rng_reset()

    @cached_property
    def rng(self) -> np.random.RandomState:
        """NumPy's generator for draws on the host, made at its first use, which imports `numpy.random`."""
        return np.random.RandomState(self._seed)

    def rng_reset(self) -> None:
        """Reset both states to those after the last `gen_rng`.

        Examples
        --------
        >>> _ = be.gen_rng(3)
        >>> first = be.rand((2,)).get()
        >>> be.rng_reset()
        >>> bool((be.rand((2,)).get() == first).all())
        True
        """
        if "rng" in self.__dict__:
            self.rng.seed(self._seed)
        self._write_rng_state(self._start)

    def rng_get_state(self) -> dict[str, Any]:
        """Both states as plain data, for `rng_set_state`.

        Examples
        --------
        >>> state = be.rng_get_state()
        >>> first = be.rand((2,)).get()
        >>> be.rng_set_state(state)
        >>> bool((be.rand((2,)).get() == first).all())
        True
        """
        return {"rng": self.rng.get_state(), "rng_state": self.rng_state.get()}

    def rng_set_state(self, state: dict[str, Any]) -> None:
        """Restore the states that `rng_get_state` returned.

        Parameters
        ----------
        state : dict
            Of `rng_get_state`.

        Raises
        ------
        OperandError
            If `state` has another form; nothing has changed then.

        Examples
        --------
        >>> state = be.rng_get_state()
        >>> be.rng_set_state(state)
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

    def _from_host(self, values: object) -> Any:
        return self.from_host(np.array(values, np.uint64))

    def _write_rng_state(self, values: object) -> None:
        # In place: existing trees contain this tensor.
        with self.active():
            self.rng_state.array[...] = self._from_host(values)

    # Draws

    def rand(self, shape: Any = None, dtype: DType = None, out: Tensor | None = None) -> Any:
        """Uniform numbers from [0, 1), multiples of 2**-24 (float16: 2**-11, bfloat16: 2**-8, float64: 2**-53).

        Examples
        --------
        >>> be.rand((2, 3)).shape
        (2, 3)
        """
        return self._finish(self._draw("rand", shape, dtype, out), out)

    def uniform(
        self, low: Any = 0.0, high: Any = 1.0, size: Any = None, dtype: DType = None, out: Tensor | None = None
    ) -> Any:
        """Uniform numbers from [low, high). Both may be operands; `size` may then be omitted.

        Because of rounding, `high` itself may occur.

        Examples
        --------
        >>> be.uniform(-1, 1, size=(2, 3)).shape
        (2, 3)
        """
        low, high = _as_number(low, "uniform: low"), _as_number(high, "uniform: high")
        if isinstance(low, float) and isinstance(high, float) and low > high:
            raise ParameterError(f"uniform: low {low} is above high {high}")
        numbers = self._draw("rand", size, dtype, out, low, high)
        return self._finish(_scaled("uniform", numbers, low, high - low), out)

    def standard_normal(self, shape: object = None, dtype: DType = None, out: Tensor | None = None) -> Any:
        """Numbers of the standard normal distribution; the parameters are those of `rand`.

        Examples
        --------
        >>> be.standard_normal((2, 3)).shape
        (2, 3)
        """
        return self._finish(self._draw("standard_normal", shape, dtype, out), out)

    def randn(self, *shape: Any, dtype: DType = None, out: Tensor | None = None) -> Any:
        """`standard_normal` of sizes that are arguments, as torch's; one shape or operand may be given, too.

        Parameters
        ----------
        shape : int, or one tuple or operand

        Examples
        --------
        >>> be.randn(2, 3).shape
        (2, 3)
        """
        sizes = shape if shape and all(isinstance(n, int) for n in shape) else shape[0] if len(shape) == 1 else shape
        return self.standard_normal(sizes, dtype, out)

    def normal(
        self, loc: object = 0.0, scale: object = 1.0, size: object = None, dtype: Any = None, out: Tensor | None = None
    ) -> Any:
        """Numbers of the normal distribution with mean `loc` and standard deviation `scale`.

        Both may be operands, by which it is differentiable; `size` may then be omitted.

        Examples
        --------
        >>> be.normal(1.0, 0.1, size=(2, 3)).shape
        (2, 3)
        """
        loc, scale = _as_number(loc, "normal: loc"), _as_magnitude(scale, "normal: scale", "a standard deviation")
        numbers = self._draw("standard_normal", size, dtype, out, loc, scale)
        return self._finish(_scaled("normal", numbers, loc, scale), out)

    def exponential(
        self, scale: object = 1.0, size: object = None, dtype: DType = None, out: Tensor | None = None
    ) -> Any:
        """Numbers of the exponential distribution of mean `scale`, differentiable by `scale` if it is an operand.

        Parameters
        ----------
        scale : number or operand
            The mean.

        Examples
        --------
        >>> be.exponential(2.0, size=(2, 3)).shape
        (2, 3)
        """
        scale = _as_magnitude(scale, "exponential: scale", "a mean")
        numbers = -f.log1p(-self._draw("rand", size, dtype, out, scale))
        return self._finish(_scaled("exponential", numbers, 0.0, scale), out)

    def standard_gamma(self, shape: object, size: object = None, dtype: DType = None, out: Tensor | None = None) -> Any:
        """Numbers of the gamma distribution of scale 1 for a shape parameter, or for each of an operand of them.

        Parameters
        ----------
        shape : number or operand
            The shape parameter.

        Examples
        --------
        >>> be.standard_gamma(2.0, size=(2, 3)).shape
        (2, 3)
        """
        shape = _as_magnitude(shape, "gamma: shape", "a shape parameter")
        if isinstance(shape, Variable):
            wanted = self._draw_dtype(dtype, shape)
            alpha = in_dtype(check_real(shape, "standard_gamma"), wanted)
            if size is not None or out is not None:
                alpha = f.broadcast_like(alpha, self._like(size, out))
        else:
            like = self._like(size, out)
            wanted = self._draw_dtype(dtype, like)
            alpha = f.broadcast_like(constant(np.asarray(shape, wanted)), like)
        return self._finish(f.standard_gamma(self.rng_state, alpha, dtype=wanted), out)

    def gamma(
        self, shape: object, scale: object = 1.0, size: object = None, dtype: DType = None, out: Tensor | None = None
    ) -> Any:
        """Numbers of the gamma distribution, by its shape parameter and scale; differentiable by the scale.

        Parameters
        ----------
        shape, scale : number or operand
            The shape parameter, and the scale.

        Examples
        --------
        >>> be.gamma(2.0, size=(2, 3)).shape
        (2, 3)
        """
        scale = _as_magnitude(scale, "gamma: scale", "a scale")
        if size is None and out is None and isinstance(scale, Variable):
            size = f.add(_as_number(shape, "gamma: shape"), scale)  # only its shape is used
        numbers = self.standard_gamma(shape, out if size is None else size, dtype)
        return self._finish(_scaled("gamma", numbers, 0.0, scale), out)

    def randint(
        self, low: object, high: object = None, size: object = None, dtype: DType = np.int64, out: Tensor | None = None
    ) -> Any:
        """Integers from [low, high); without `high`, from [0, low).

        Their probabilities are equal up to 2**-53 times their number.

        Parameters
        ----------
        low, high : int
            The bounds; the upper one is excluded.
        dtype : dtype
            An integer dtype.

        Examples
        --------
        >>> be.randint(0, 10, size=(2, 3)).shape
        (2, 3)
        """
        low, high = (0, low) if high is None else (low, high)
        first, end = (_as_integer(each, "randint") for each in (low, high))
        if isinstance(first, int) and isinstance(end, int) and not 0 < end - first <= 2**53:
            raise ParameterError(f"randint: [{first}, {end}) has no integers, or more than 2**53")
        numbers = self._draw("rand", size, np.float64, out, first, end)
        counted = in_dtype(f.floor(numbers * (end - first)), np.dtype("int64")) + first
        return self._finish(in_dtype(counted, as_dtype(dtype)), out)

    def permutation(self, x: object, axis: int = 0, out: Tensor | None = None) -> Any:
        """The elements of an operand along an axis in random order; for a number n, the integers below n.

        Parameters
        ----------
        x : int or operand
        axis : int

        Examples
        --------
        >>> sorted(be.permutation(3).get().tolist())
        [0, 1, 2]
        """
        if isinstance(x, Variable | np.ndarray) and np.ndim(x):
            x = x if isinstance(x, Variable) else constant(x)
            axis = normalise_axis(axis, x.ndim, "permutation")
            like = f.slice(x, tuple(slice(None) if i == axis else 0 for i in range(x.ndim)))
            return self._finish(f.take(x, self._order(like), axis=axis), out)
        return self._finish(self._order(self._like(_as_integer(x, "permutation"), None)), out)

    def choice(self, a: Any, size: Any = None, replace: bool = True, p: Any = None, out: Tensor | None = None) -> Any:
        """Random elements of a vector, or rows of a matrix; for a number n, random integers below n.

        Parameters
        ----------
        a : int or operand
        size : int, tuple of int, or operand
            The shape of the value.
        replace : bool
            Whether elements are drawn with replacement.
        p : vector, optional
            The probability of each element, up to a common factor.

        Examples
        --------
        >>> be.choice(be.array([1.0, 2.0, 3.0]), size=5).shape
        (5,)
        """
        rows = None if hasattr(a, "__index__") and not np.ndim(a) else self._rows(a)
        count = _as_integer(a, "choice") if rows is None else rows.shape[0]
        chances = None if p is None else in_dtype(self._rows(p), np.dtype("float64"))
        if chances is not None and (chances.ndim != 1 or chances.shape[0] != count):
            raise ShapeError(f"choice: {describe(chances)} is no probability for each of {count}")
        if count is None or count < 1:
            raise ShapeError(f"choice: the number of elements to pick from is known and 1 or more, not {count}")
        if not replace:
            picked = self._without_replacement(count, chances, self._like(size, out))
        elif chances is None:
            picked = self.randint(count, size=self._like(size, out))
        else:
            ends = f.cumsum(chances, 0)
            drawn = self._draw("rand", size, np.float64, out) * f.slice(ends, (-1,))
            picked = f.searchsorted(ends, drawn, "right")
        return self._finish(picked if rows is None else f.take(rows, picked, axis=0), out)

    def _without_replacement(self, count: int, chances: object, like: Variable) -> Any:
        """Distinct random integers below a count, in the shape of an operand."""
        if None in like.shape or like.size > count:
            raise ShapeError(f"choice: without replacement there are at most {count} elements, not {like.shape}")
        if chances is None:
            order = self._order(self._like(count, None))
        else:  # the minimum of exponential variables is each with a probability proportional to its rate
            order = f.argsort(self.exponential(1.0, count, np.float64) / chances, 0)
        return f.reshape(f.slice(order, (slice(0, like.size),)), like.shape)

    def _order(self, like: Variable) -> Any:
        """The indices of a vector in random order."""
        return f.argsort(f.rand(self.rng_state, like, dtype=np.dtype("float64")), 0)

    def _rows(self, values: object) -> Any:
        if isinstance(values, Variable):
            return values
        array = np.asarray(values)
        return self.array(array, array.dtype)

    def fill_normal(self, ary: Tensor, mean: object = 0.0, stdv: object = 1.0) -> Tensor:
        """Fill a tensor with normally distributed numbers, at once; returns it (neon's name).

        Parameters
        ----------
        ary : Tensor
        mean, stdv : number or operand

        Examples
        --------
        >>> be.fill_normal(be.empty((2, 3)), stdv=0.1).shape
        (2, 3)
        """
        return self.normal(mean, stdv, out=ary)

    def make_binary_mask(self, out: Tensor, keepthresh: object = 0.5) -> Tensor:
        """Fill a tensor with ones, with probability `keepthresh`, and zeros; returns it (neon's name).

        Parameters
        ----------
        out : Tensor
        keepthresh : number
            The probability of a one.

        Examples
        --------
        >>> be.make_binary_mask(be.empty((2, 3)), 0.8).shape
        (2, 3)
        """
        return self._finish(self._draw("rand", out, np.float32, None) < _as_chance(keepthresh, "keepthresh"), out)

    def dropout_mask(self, shape: Any, keep: Any = 0.5, dtype: DType = None, out: Tensor | None = None) -> Any:
        """A dropout mask: ``1 / keep`` with probability `keep`, else zero, so that x * mask has the expected value x.

        Parameters
        ----------
        shape : int, tuple of int, or operand
            The masked operand, for example: ``x * be.dropout_mask(x, 0.8)``.
        keep : number of (0, 1], or operand

        Examples
        --------
        >>> set(be.dropout_mask((100,), 0.5).get().tolist()) <= {0.0, 2.0}
        True
        """
        keep = _as_chance(keep, "keep")
        like = self._like(shape, out)
        wanted = self._draw_dtype(dtype, like)
        mask = f.cast(f.rand(self.rng_state, like, dtype=np.dtype(np.float32)) < keep, wanted)
        return self._finish(in_dtype(mask * (1.0 / keep), wanted), out)

    def binarize(self, x: object, out: Tensor | None = None, stochastic: bool = True) -> Any:
        """Each element as 1 or -1.

        It is 1 with probability (x + 1) / 2, clipped to [0, 1]; with ``stochastic=False``,
        where x >= 0. A nan becomes -1. The derivative is zero.

        Parameters
        ----------
        stochastic : bool
            Whether it is drawn, and not the sign.

        Examples
        --------
        >>> be.binarize(be.array([-2.0, 3.0]), stochastic=False).get()
        array([-1.,  1.], dtype=float32)
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

    def stochastic_cast(
        self, x: object, dtype: DType = np.float16, out: Tensor | None = None, bits: int | None = None
    ) -> Any:
        """Values cast to a lower precision by stochastic rounding; with `bits`, to as many bits of the mantissa.

        Parameters
        ----------
        dtype : dtype
            A floating dtype.
        bits : int, optional
            Bits of the mantissa.

        Examples
        --------
        >>> be.stochastic_cast(be.array([1.0, 0.1]), np.float16).dtype
        dtype('float16')
        """
        return self._finish(f.stochastic_cast(self.rng_state, x, dtype=as_dtype(dtype), bits=bits), out)

    # Helpers

    def _draw(self, op: str, shape: object, dtype: DType, out: Tensor | None, *parameters: Any) -> Any:
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
        return self.tensor_cls(self, np.broadcast_to(self._element, sizes), f"shape{sizes}")

    @cached_property
    def _element(self) -> Any:
        """The memory of tensors that only have a shape."""
        return self.from_host(np.zeros((), bool))

    def _draw_dtype(self, dtype: DType, *operands: Variable) -> np.dtype:
        """The given dtype, else that of the floating operands, else the backend's."""
        if dtype is not None:
            return as_dtype(dtype)
        floating = [operand.dtype for operand in operands if is_floating(operand.dtype)]
        return promote(*floating) if floating else self.datatype

    def _finish(self, tree: object, out: Tensor | None) -> Any:
        if out is None:
            return tree
        if not isinstance(out, Tensor):
            raise OperandError(f"random numbers are written into a tensor, not {describe(out)}")
        out[...] = tree
        return out


def _as_seed(seed: object) -> int:
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


def _as_magnitude(value: object, what: str, kind: str) -> Any:
    """An operand unchanged, or a number that is not negative."""
    number = _as_number(value, what)
    if isinstance(number, float) and number < 0:
        raise ParameterError(f"{what.partition(':')[0]}: {kind} is 0 or more, not {number}")
    return number


def _as_integer(value: Any, what: str) -> Any:
    """An operand as it is, or an integer as Python's."""
    if isinstance(value, Variable):
        return value
    if isinstance(value, bool) or not hasattr(value, "__index__") or np.ndim(value):
        raise OperandError(f"{what}: an integer is wanted, not {brief(value)}")
    return int(value.__index__())


def _as_chance(value: object, what: str) -> Any:
    """A probability above 0, or an operand of them."""
    chance = _as_number(value, what)
    if isinstance(chance, float) and not 0 < chance <= 1:
        raise ParameterError(f"{what} is a probability above 0 and up to 1, not {chance}")
    return chance


def _scaled(what: str, numbers: Variable, offset: object, factor: object) -> Any:
    if isinstance(offset, float) and isinstance(factor, float) and (offset, factor) == (0.0, 1.0):
        return numbers
    tree = numbers * factor + offset
    if tree.shape != numbers.shape:
        raise ShapeError(
            f"{what}: parameters of {describe(offset)} and {describe(factor)} do not broadcast to the shape "
            f"{numbers.shape} that is drawn; leave size out to draw one number for each of them"
        )
    return in_dtype(tree, numbers.dtype)
