"""The base class of optimizers: state, groups, clipping, decay, accumulation, averages, master weights, loss scaling.

A subclass writes its formula once, on trees. It applies to one weight, or to a vector of many made by
`optree.train.packed`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from difflib import get_close_matches
from numbers import Real
from typing import Any, ClassVar, TypedDict

import numpy as np

from optree.autodiff.api import grad
from optree.dtypes import is_complex, is_inexact, is_narrow, real_dtype, wide_dtype
from optree.errors import DisconnectedError, DTypeError, OperandError, OptreeError, ParameterError, describe
from optree.instead import instead
from optree.records import NamedTuple
from optree.registry import f
from optree.train.clipping import bounded, number_in, shrinking, sum_of_squares
from optree.train.counter import Number, StepCounter, Weights, check_schedule
from optree.train.packing import Arena, Packed
from optree.tree.printing import as_html
from optree.tree.tensor import Tensor
from optree.tree.variable import Variable, check_same_backend, in_dtype, variable_of


class NonFiniteError(OptreeError, FloatingPointError):
    """Raised if the loss or a gradient has a nan or an infinity."""


class LossScale(NamedTuple):
    """Dynamic loss scaling: a factor of the loss that prevents underflow of float16 gradients, adapted on the device.

    A step with non-finite gradients is skipped, and the factor is reduced. It grows after `every` finite steps in a
    row. Compute the loss in float32, for example from scores cast to it: in float16 the factor itself may overflow.

    Attributes
    ----------
    initial : float
    growth, backoff : float
        The multipliers of the factor when it grows and when it is reduced.
    every : int
        The number of finite steps in a row after which the factor grows.
    """

    initial: float = 2.0**16
    growth: float = 2.0
    backoff: float = 0.5
    every: int = 2000


class OptionsButDecay(TypedDict, total=False):
    """The options of optimizers that have a `weight_decay` of their own; see `Optimizer`."""

    decoupled: bool | None
    clip_value: Number | None
    clip_norm: Number | None
    clip_global_norm: Number | None
    accumulate: Number
    average: Number | None
    loss_scale: LossScale | Number | str | None
    check_finite: bool
    shard: Any


class Options(OptionsButDecay, total=False):
    """The options of every optimizer."""

    weight_decay: Number


class Optimizer:
    """The base class of optimizers: groups, clipping, decay, accumulation, averages, master weights and loss scaling.

    Every number may be a Python number, an input of the function, a tensor or another tree of one element, or a
    function of the step (`optree.train.schedules`), which receives the counter on the device. Changing the value of an
    input or a tensor compiles nothing. Integer numbers may be trees too.

    Parameters
    ----------
    weights : list of Tensor, or list of dict
        One kernel updates all small weights of `optree.train.packed`; other weights have a kernel each. A group is a
        dict of ``"weights"`` and the numbers that differ for them: ``{"weights": [b], "rate": 0.1}``. The real and the
        imaginary part of a complex weight are updated as two weights, as torch's; its norm is that of both.
    rate : number
        The learning rate.
    weight_decay : number
        The L2 penalty: weight_decay * w is added to the gradient. If `decoupled`, each step instead multiplies the
        weights by 1 - rate * weight_decay.
    decoupled : bool, optional
        Whether weight decay is decoupled from the gradient; by default True for AdamW and Lion.
    clip_value, clip_norm, clip_global_norm : number, optional
        The maximum absolute value of a gradient's elements, the maximum norm of each weight's gradient, and the
        maximum norm of all gradients together.
    accumulate : number
        The number of calls whose gradients are averaged for one step.
    average : number, optional
        The decay of an exponential moving average of the weights: see `averages`.
    loss_scale : LossScale, number or 'dynamic', optional
        A factor of the loss; gradients are divided by it again. ``'dynamic'`` is ``LossScale()``.
    check_finite : bool
        Whether the device records the first step at which the loss or a gradient is not finite: see `check`.
    shard : optree.distributed.Group, optional
        The processes that train together. Each stores a part of the state and updates that part of the weights (ZeRO
        stage 1). All ranks construct the optimizer; their weights are set to rank 0's.

    Attributes
    ----------
    weights : list of Tensor
    state : dict of str to Tensor
        The tensors that steps update besides the weights, such as ``"mean.w1"``. With `shard`, this rank's part.
    shards : dict of str to Shard
        The sharded tensors of the state.
    step : Tensor
        The number of steps taken, of int64.

    Raises
    ------
    OperandError, DTypeError
        If a weight is no floating or complex tensor or is given twice, a group has an unknown number, or the formula
        needs whole weights and `shard` is given.
    ParameterError
        If an option is unknown, or a number has an invalid value.
    """

    #: The names of the formula's state tensors, which have the shape of a weight.
    slots: ClassVar[tuple[str, ...]] = ()
    #: The numbers whose powers the formula uses by `Numbers.correction`.
    powers: ClassVar[tuple[str, ...]] = ()
    #: Whether each element is updated independently, so that weights may be packed into one vector.
    is_elementwise: ClassVar[bool] = True
    #: Whether `weight_decay` is decoupled from the gradients.
    is_decoupled: ClassVar[bool] = False
    #: Whether the formula applies `weight_decay` itself.
    decays: ClassVar[bool] = False
    #: Whether a formula that is not elementwise needs only the norms of whole weights, by `Numbers.norm`.
    needs_norms: ClassVar[bool] = False
    _repr_html_ = as_html

    def __new__(cls, *args: Any, **options: Any) -> Optimizer:
        made = [vars(each)["__init__"] for each in cls.__mro__[:-1] if "__init__" in vars(each)]
        known = {name for each in made for name in inspect.signature(each).parameters} - {"self"}
        for name in options.keys() - known:
            near = get_close_matches(name, known, n=1)
            meant = instead("option", name) or (f"; did you mean {near[0]}?" if near else "")
            raise ParameterError(f"{cls.__name__}: there is no option {name!r}{meant}; help({cls.__name__}) lists them")
        return super().__new__(cls)

    def __init__(
        self,
        weights: Weights,
        rate: Number,
        *,
        weight_decay: Number = 0.0,
        decoupled: bool | None = None,
        clip_value: Number | None = None,
        clip_norm: Number | None = None,
        clip_global_norm: Number | None = None,
        accumulate: Number = 1,
        average: Number | None = None,
        loss_scale: LossScale | Number | str | None = None,
        check_finite: bool = False,
        shard: Any = None,
        **numbers: Any,
    ) -> None:
        self.decoupled = self.is_decoupled if decoupled is None else decoupled
        self._clip = clip_value, clip_norm, clip_global_norm
        self._average: Any = average
        self._accumulate, self._checks = accumulate, check_finite
        if isinstance(loss_scale, str) and loss_scale != "dynamic":
            raise ParameterError(f"{self}: loss_scale is a number, a LossScale or 'dynamic', not {loss_scale!r}")
        self._scale = LossScale() if isinstance(loss_scale, str) else loss_scale
        for name, value in (
            ("clip_value", clip_value),
            ("clip_norm", clip_norm),
            ("clip_global_norm", clip_global_norm),
        ):
            _check(self, name, value, "above 0", lambda x: x > 0)
        if not isinstance(self._scale, LossScale):
            _check(self, "loss_scale", self._scale, "above 0", lambda x: x > 0)
        _check(self, "average", average, "from 0 to 1", lambda x: 0 <= x <= 1)
        _check(self, "accumulate", accumulate, "an integer of 1 or more", lambda x: x >= 1 and x % 1 == 0)
        groups = self._groups_of(weights, {"rate": rate, "weight_decay": weight_decay, **numbers})
        self.weights: list[Tensor] = [weight for members, _ in groups for weight in members]
        self.backend = self._checked_backend()
        self.names = _unique([weight.name for weight in self.weights])
        self.state: dict[str, Tensor] = {}
        self.shards: dict[str, Shard] = {}
        self._group = self._checked_group(shard)
        self.step = self._scalar("step", 0, "int64", StepCounter)
        self._groups = [
            Numbers(self, given, "" if len(groups) == 1 else f".{i}") for i, (_, given) in enumerate(groups)
        ]
        self._units = self._units_of([members for members, _ in groups])
        self._make_state()

    def _groups_of(self, weights: Any, numbers: dict[str, Any]) -> list[tuple[list[Tensor], dict[str, Any]]]:
        """The weights and the numbers of each group."""
        if isinstance(weights, Variable) or not isinstance(weights, Sequence) or not weights:
            remedy = f"; {self}([x], ...) is of one tensor" if isinstance(weights, Variable) else ""
            raise OperandError(f"{self}: weights are a list of tensors or of groups, not {describe(weights)}{remedy}")
        if not isinstance(weights[0], Mapping):
            return [(weights if isinstance(weights, Packed) else list(weights), numbers)]
        found = []
        for group in weights:
            if not isinstance(group, Mapping) or "weights" not in group:
                raise OperandError(f"{self}: a group is a dict of 'weights' and numbers, not {describe(group)}")
            own = {name: value for name, value in group.items() if name != "weights"}
            unknown = sorted(own.keys() - numbers.keys())
            if unknown:
                raise OperandError(f"{self}: a group has no {unknown[0]!r}; its numbers are {', '.join(numbers)}")
            members = group["weights"]
            found.append((members if isinstance(members, Packed) else list(members), {**numbers, **own}))
        return found

    def _checked_backend(self) -> Any:
        for i, weight in enumerate(self.weights):
            if not isinstance(weight, Tensor):
                raise OperandError(f"{self}: a weight is a tensor, not {describe(weight)}")
            if not is_inexact(weight.dtype):
                raise DTypeError(f"{self}: a weight is floating or complex, and {describe(weight)} is not")
            if is_complex(weight.dtype) and not self.is_elementwise:
                raise DTypeError(
                    f"{self}: its formula is not elementwise, and takes no complex weight {describe(weight)}"
                )
            if any(weight is other for other in self.weights[:i]):
                raise OperandError(f"{self}: {describe(weight)} is given twice")
        return check_same_backend(self, self.weights)

    def _check_is_group(self, parameter: str, given: Any) -> None:
        if not hasattr(given, "equalize"):
            raise OperandError(
                f"{self}: {parameter} is a group of processes, from optree.distributed.init, not {describe(given)}"
            )

    def _checked_group(self, shard: Any) -> Any:
        """The checked group of `shard`, after all ranks have received rank 0's weights."""
        if shard is None:
            return None
        if not (self.is_elementwise or self.needs_norms):
            raise OperandError(
                f"{self}: its formula needs whole weights, and shard= has parts of them; a formula that needs their "
                "norms alone takes them by n.norm(...), and says needs_norms = True"
            )
        self._check_is_group("shard", shard)
        if shard.backend is not self.backend:
            raise OperandError(f"{self}: the weights are on {self.backend}, and shard={shard} is of {shard.backend}")
        shard.equalize(self.weights)
        return shard

    def _units_of(self, groups: Sequence[list[Tensor]]) -> list[Unit]:
        """The units of update: each vector of packed weights, and each other weight."""
        found, first = [], 0
        packs = self.is_elementwise and self._clip[1] is None
        for number, members in enumerate(groups):
            arenas = members.arenas if packs and isinstance(members, Packed) else []
            alone = set(range(len(members))).difference(*(numbers for _, numbers in arenas))
            for arena, numbers in arenas:
                found.append(Unit(self, [first + i for i in numbers], number, arena))
            found += [Unit(self, [first + i], number, None) for i in sorted(alone)]
            first += len(members)
        return found

    def _make_state(self) -> None:
        """Allocate the state."""
        if isinstance(self._scale, LossScale):
            self._scalar("loss_scale", self._scale.initial, "float32")
            self._scalar("good_steps", 0, "int64")
        if self._accumulates:
            self._scalar("batch", 0, "int64")
        for unit in self._units:
            unit.make_slots(
                [
                    *(["master"] if unit.is_narrow else []),
                    *(["average"] if self._average is not None else []),
                    *(["sum"] if self._accumulates else []),
                    *self.slots,
                ]
            )
        if self._checks:
            self.state["not_finite"] = self.backend.full(len(self.weights) + 1, -1, dtype="int64", name="not_finite")

    @property
    def _accumulates(self) -> bool:
        return isinstance(self._accumulate, Variable) or self._accumulate != 1

    def _scalar(self, name: str, value: Any, dtype: str, kind: Any = None) -> Tensor:
        """Add a new scalar tensor to the state."""
        found = self.backend.full((), value, dtype=dtype, name=name)
        if kind is not None and type(found) is Tensor:
            found = kind(self.backend, found.array, name)
        self.state[name] = found
        return found  # type: ignore[no-any-return]

    def initial(self, slot: str, numbers: Numbers) -> float:
        """The initial value of a slot of the formula."""
        return 0.0

    def formula(self, w: Variable, g: Any, s: dict[str, Any], n: Numbers) -> tuple[Any, dict[str, Any]]:
        """The updated weights and slots, as trees of the weights, gradients, slots and numbers."""
        raise NotImplementedError

    @property
    def rate(self) -> Any:
        """The learning rate of the next step, as a number or a tree; with several groups, that of the first."""
        return self._groups[0].raw("rate")

    @property
    def averages(self) -> dict[Tensor, Any]:
        """From each weight to its moving average: ``optree.function([x], scores, givens=opt.averages)``.

        With `shard`, the averages are trees that all ranks must run.

        Raises
        ------
        ParameterError
            If the optimizer was constructed without `average`.
        """
        if self._average is None:
            raise ParameterError(f"{self} has no averages; {self}(..., average=0.999) keeps them")
        if self._group is None:
            return {x: self.state[f"average.{name}"] for x, name in zip(self.weights, self.names, strict=True)}
        found: dict[Tensor, Any] = {}
        wholes = self._unsharded([unit.slots["average"] for unit in self._units])
        for unit, whole in zip(self._units, wholes, strict=True):
            parts = zip(unit.members, unit.parts_of(whole), strict=True)
            found.update({x: f.reshape(part, x.shape) for x, part in parts})
        return found

    def whole_state(self) -> dict[str, Any]:
        """The unsharded state. With `shard`, all ranks call this method, and the values are NumPy arrays."""
        if self._group is None:
            return dict(self.state)
        found: dict[str, Any] = {name: x.get() for name, x in self.state.items() if name not in self.shards}
        for unit in self._units:
            for slot, vector in unit.slots.items():
                whole = self._group.unsharded([vector], [unit.target.shape])[0].astensor()
                for name, x, part in zip(unit.names, unit.members, unit.parts_of(whole), strict=True):
                    found[f"{slot}.{name}"] = part.astensor().get().reshape(x.shape)
        return {name: found[name] for name in self.state}

    def updates(
        self, loss: Any, gradients: Sequence[Any] | None = None, over: Any = None, count: Any = None
    ) -> dict[Tensor, Any]:
        """The updates of one optimization step, for `optree.function`.

        Parameters
        ----------
        loss : Variable
            A tree of one element.
        gradients : list of Variable, optional
            The gradients of the weights, in order; by default those of the loss.
        over : optree.distributed.Group, optional
            The processes that train together, each on its part of a batch. Gradients are averaged over all of them,
            and weights and state are set to rank 0's now. With `shard`, it can only be that group, the default.
        count : number or tree of one element, optional
            With `over`, the number of examples in this rank's loss, if it may differ between ranks.

        Returns
        -------
        dict
            From the weights and state tensors to their new values, as trees.

        Raises
        ------
        OperandError
            If the loss is no tree, or gradients are not one for each weight, or `over` is not the group of `shard`.
        """
        if self._group is not None and over is not None and over is not self._group:
            raise OperandError(f"{self}: over is {over}, and the state is sharded by another group, {self._group}")
        over = self._group if over is None else over
        if over is not None:
            self._check_is_group("over", over)
        loss = variable_of(loss, f"{self}: the loss")
        trees = self._gradients(loss, gradients)
        found: dict[Tensor, Any] = {}
        given = [unit.gradient([trees[i] for i in unit.numbers]) for unit in self._units]
        if over is not None:
            self._equalize(over)
            given = over.averaged(given, count) if self._group is None else over.averaged_shards(given, count)
            loss = over.mean(loss, count) if self._checks else loss
        given, is_last = self._accumulated(self._unscaled(given), found)
        goes = is_last
        if isinstance(self._scale, LossScale):
            is_finite = self._on_all(_all_finite(given))
            found.update(self._scale_after(self._scale, is_finite, is_last))
            goes = is_finite if is_last is None else f.logical_and(is_last, is_finite)
        after = [unit.after(g, goes) for unit, g in zip(self._units, self._clipped(given), strict=True)]
        wholes = self._unsharded([new for new, _ in after])
        # Last weights first: a backward pass computes their gradients first, and trees run in the order of updates.
        for unit, whole, (_, slots) in reversed(list(zip(self._units, wholes, after, strict=True))):
            found.update({**slots, unit.target: whole})
        for numbers in self._groups:
            found.update({t: _chosen(goes, new, t) for t, new in numbers.powers_after().items()})
        found[self.step] = _chosen(goes, self.step + 1, self.step)
        if self._checks:  # last, because it needs the first weights' gradients first
            found.update(self._first_not_finite(loss, given))
        return found

    def _equalize(self, over: Any) -> None:
        """Set all ranks' weights and state to rank 0's; check that a sharded state is of one step."""
        if self._group is not None:
            over.check_equal([self.step])
        over.equalize([*self.weights, *(x for name, x in self.state.items() if name not in self.shards)])

    def _unsharded(self, values: list[Any]) -> list[Any]:
        """The whole values of all units, gathered from all ranks if the optimizer is sharded."""
        if self._group is None:
            return values
        found: list[Any] = self._group.unsharded(values, [unit.target.shape for unit in self._units])
        return found

    def _on_all(self, flags: Any) -> Any:
        """Flags of this rank's part, combined over all ranks."""
        return flags if self._group is None else self._group.all_reduce(flags, "min")

    def _norm(self, trees: Sequence[Any]) -> Any:
        """The norm of all elements of trees, over all ranks if the optimizer is sharded."""
        total = sum_of_squares(trees)
        return f.sqrt(total if self._group is None else self._group.all_reduce(total))

    def _gradients(self, loss: Variable, gradients: Sequence[Any] | None) -> list[Any]:
        """The gradient of the scaled loss for each weight."""
        if gradients is not None:
            if len(gradients) != len(self.weights):
                raise OperandError(f"{self}: {len(gradients)} gradients for {len(self.weights)} weights")
            return list(gradients)
        factor = self._factor()
        if factor is not None:
            wide = in_dtype(loss, wide_dtype(loss.dtype))
            loss = wide * number_in(factor, wide.dtype)
        try:
            return list(grad(loss, self.weights))
        except DisconnectedError as error:
            raise DisconnectedError(
                f"{self}: {error}; the loss is computed from the tensors that the optimizer has, and train.packed and "
                "copies make new ones: build the network of opt.weights"
            ) from error

    def _factor(self) -> Any:
        """The current loss scale, or None."""
        return self.state["loss_scale"] if isinstance(self._scale, LossScale) else self._scale

    def _unscaled(self, given: list[Any]) -> list[Any]:
        factor = self._factor()
        if factor is None:
            return given
        return [g / number_in(factor, g.dtype) for g in given]

    def _accumulated(self, given: list[Any], found: dict[Tensor, Any]) -> tuple[list[Any], Any]:
        """The mean gradients of the batches so far, and whether the step is due; None if it always is."""
        if not self._accumulates:
            return given, None
        batch, count = self.state["batch"], self._accumulate
        is_last = f.ge(batch + 1, np.int64(count) if type(count) is int else count)
        sums = []
        for unit, g in zip(self._units, given, strict=True):
            slot = unit.slots["sum"]
            sums.append(slot + g / number_in(count, g.dtype))
        for unit, total in reversed(list(zip(self._units, sums, strict=True))):
            found[unit.slots["sum"]] = f.where(is_last, f.fill_like(total, 0), total)
        found[batch] = f.where(is_last, 0, batch + 1)
        return sums, is_last

    def _scale_after(self, scale: LossScale, is_finite: Variable, is_last: Variable) -> dict[Tensor, Any]:
        factor, good = self.state["loss_scale"], self.state["good_steps"]
        grows = f.ge(good + 1, np.int64(scale.every))
        risen = f.where(grows, factor * scale.growth, factor)
        after = f.where(is_finite, risen, factor * scale.backoff)
        count = f.where(f.logical_and(is_finite, f.logical_not(grows)), good + 1, 0)
        return {factor: _chosen(is_last, after, factor), good: _chosen(is_last, count, good)}

    def _clipped(self, given: list[Any]) -> list[Any]:
        value, norm, all_norm = self._clip
        if value is not None:
            given = [bounded(g, number_in(value, real_dtype(g.dtype))) for g in given]
        if norm is not None:
            given = [g * shrinking(self._norm([g]), norm) for g in given]
        if all_norm is not None:
            factor = shrinking(self._norm(given), all_norm)
            given = [g * number_in(factor, g.dtype) for g in given]
        return given

    def _first_not_finite(self, loss: Variable, given: Sequence[Any]) -> dict[Tensor, Any]:
        """Update the record of the first step at which the loss and each gradient were not finite, -1 if never."""
        first = self.state["not_finite"]
        flags: list[Any] = [None] * len(self.weights)
        for unit, g in zip(self._units, given, strict=True):
            begin = 0 if self._group is None else self._group.shard_range(unit.target.size)[0]
            for number, part in zip(unit.numbers, unit.parts_of(g, begin), strict=True):
                flags[number] = f.all(f.finite(part), keepdims=False)
        flags.insert(0, f.all(f.finite(loss), keepdims=False))
        is_good = self._on_all(f.stack(flags))
        return {first: f.where(f.logical_or(is_good, f.ge(first, np.int64(0))), first, self.step)}

    def check(self) -> None:
        """Raise an error if the loss or a gradient was not finite in any step; waits for the device.

        Raises
        ------
        NonFiniteError
            Names the first step and the trees that were not finite.
        ParameterError
            If the optimizer was constructed without `check_finite`.
        """
        if not self._checks:
            raise ParameterError(f"{self} has not looked; {self}(..., check_finite=True) does")
        steps = self.state["not_finite"].get()
        bad = np.flatnonzero(steps >= 0)
        if bad.size:
            first = steps[bad].min()
            trees = ["the loss", *(f"the gradient of {name}" for name in self.names)]
            listed = ", ".join(trees[i] for i in bad if steps[i] == first)
            raise NonFiniteError(f"a nan or an infinity, for the first time at step {first}: in {listed}")

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{instead('optimizer', name)}")

    def __deepcopy__(self, memo: dict[int, Any]) -> Optimizer:
        """An optimizer of copied weights with its own state: ``w, opt = copy.deepcopy((w, opt))``."""
        if self._group is not None:
            raise OperandError(
                f"{self}: the state of shard={self._group} is of all ranks and is not copied; make another optimizer "
                "of the copied weights, or use optree.train.save and load"
            )
        copied = object.__new__(type(self))
        memo[id(self)] = copied
        vars(copied).update((name, deepcopy(value, memo)) for name, value in vars(self).items())
        return copied

    def __str__(self) -> str:
        return type(self).__name__

    def __repr__(self) -> str:
        return f"{self} of {len(self.weights)} weights"


class Numbers:
    """The numbers of a group, as attributes and methods for formulas: ``n.rate``, ``n.rest("beta1")``."""

    def __init__(self, optimizer: Optimizer, given: dict[str, Any], suffix: str) -> None:
        self._optimizer, self._given, self._dtype, self._size = optimizer, given, np.dtype(np.float32), 0
        for name, value in given.items():
            if name in optimizer.powers:
                _check(optimizer, name, value, "from 0 to below 1", lambda x: 0 <= x < 1)
            else:
                _check(optimizer, name, value, "0 or more", lambda x: x >= 0)
        self._powers = {name: optimizer._scalar(f"power.{name}{suffix}", 1.0, "float64") for name in optimizer.powers}

    def of(self, dtype: np.dtype, size: int) -> Numbers:
        """Set the dtype of the numbers and the number of weight elements on this rank; returns self."""
        self._dtype, self._size = dtype, size
        return self

    def raw(self, name: str) -> Any:
        """A number without a cast; a schedule becomes a tree."""
        value = self._given[name]
        if not callable(value) or isinstance(value, Variable):
            return value
        # Schedules count in floats: no kernel compares integers with Python integers, which may be huge.
        return value(f.cast(self._optimizer.step, np.dtype(np.float64)))

    def has(self, name: str) -> bool:
        """Whether a number is not a plain zero or None."""
        return is_used(self._given[name])

    def __getattr__(self, name: str) -> Any:
        # copy and pickle ask for attributes before `_given` is set.
        given = self.__dict__.get("_given", {})
        if name not in given:
            raise AttributeError(f"the optimizer has no number {name!r}; its numbers are {', '.join(given)}")
        return number_in(self.raw(name), self._dtype)

    def norm(self, x: Any) -> Any:
        """The norm of a tree of the weight's shape, over all ranks if it is sharded."""
        return self._optimizer._norm([f.slice(x, (slice(self._size),)) if x.size > self._size else x])

    def rest(self, name: str) -> Any:
        """1 - number, computed before the cast to the weights' dtype."""
        return number_in(1 - self.raw(name), self._dtype)

    def correction(self, name: str) -> Any:
        """1 - number ** steps, the bias correction, where steps includes the current one."""
        return number_in(1 - self._powers[name] * self.raw(name), self._dtype)

    def powers_after(self) -> dict[Tensor, Any]:
        """The updates of the powers."""
        return {tensor: tensor * self.raw(name) for name, tensor in self._powers.items()}


class Shard(NamedTuple):
    """The part of a weight's state tensor that this rank stores.

    Attributes
    ----------
    tensor : Tensor
        The part, a vector.
    begin : int
        The index of its first element in the flattened weight.
    shape : tuple of int
        The shape of the weight.
    """

    tensor: Tensor
    begin: int
    shape: tuple[int, ...]

    @property
    def dtype(self) -> np.dtype:
        return self.tensor.dtype

    def set(self, whole: np.ndarray) -> None:
        """Set the part from the values of a whole weight."""
        self.tensor.set(whole.reshape(-1)[self.begin : self.begin + self.tensor.size])


class Unit:
    """One application of the formula: to a weight or a packed vector, or to this rank's part of it if sharded.

    `numbers`: the indices of its weights in the optimizer's.
    `target`: Tensor.
    `dtype`: the dtype of the computation, float32 or wider.
    `slots`: dict of str to Tensor.
    """

    def __init__(self, optimizer: Optimizer, numbers: list[int], group: int, arena: Arena | None) -> None:
        self.optimizer, self.numbers, self.arena, self.group = optimizer, numbers, arena, group
        self.members = [optimizer.weights[i] for i in numbers]
        self.names = [optimizer.names[i] for i in numbers]
        self.target = self.members[0] if arena is None else arena.flat
        self.is_narrow = is_narrow(self.target.dtype)
        self.dtype = np.dtype(np.float32) if self.is_narrow else self.target.dtype
        self.slots: dict[str, Tensor] = {}
        self._arenas: list[Arena] = []
        if arena is not None:  # the vector of gradients is no state: each step overwrites it
            self._gradient = Arena(optimizer.backend, arena.shapes, self.target.dtype, "gradient")
            self._parts = self._gradient.tensors(self.names)

    def make_slots(self, names: Sequence[str]) -> None:
        """Allocate slots of the weights' shapes, and add them to the state by weight."""
        be, state = self.optimizer.backend, self.optimizer.state
        for slot in names:
            listed = [f"{slot}.{name}" for name in self.names]
            if self.optimizer._group is not None:
                self._make_shard(slot, listed)
                continue
            if self.arena is None:
                self.slots[slot] = be.zeros(self.target.shape, self.dtype, listed[0])
                parts = [self.slots[slot]]
            else:
                arena = Arena(be, self.arena.shapes, self.dtype, slot)
                self._arenas.append(arena)
                self.slots[slot] = arena.flat
                parts = arena.tensors(listed)
            state.update(zip(listed, parts, strict=True))
            if slot in ("master", "average"):
                for part, weight in zip(parts, self.members, strict=True):
                    part[...] = f.cast(weight, self.dtype)
            self._fill(slot)

    def _make_shard(self, slot: str, names: Sequence[str]) -> None:
        """Allocate this rank's part of a slot."""
        optimizer, group = self.optimizer, self.optimizer._group
        begin, end = group.shard_range(self.target.size)
        length = -(-self.target.size // group.size)
        vector = self.slots[slot] = optimizer.backend.zeros(length, self.dtype, f"{slot} of rank {group.rank}")
        if slot in ("master", "average"):
            vector[...] = f.cast(group.shard(self.target), self.dtype)
        self._fill(slot)
        starts = [0] if self.arena is None else self.arena.starts
        for name, start, x in zip(names, starts, self.members, strict=True):
            first, last = (min(max(i, start), start + x.size) for i in (begin, end))
            part = optimizer.backend.over(vector.array[first - begin : last - begin], name)
            optimizer.state[name], optimizer.shards[name] = part, Shard(part, first - start, x.shape)

    def _fill(self, slot: str) -> None:
        """Initialize a slot of the formula."""
        if slot in self.optimizer.slots:
            initial = self.optimizer.initial(slot, self.optimizer._groups[self.group])
            if initial:
                self.slots[slot].fill(complex(initial, initial) if is_complex(self.dtype) else initial)

    def gradient(self, trees: Sequence[Any]) -> Any:
        """The gradient of the target, in the dtype of the computation."""
        tree = trees[0] if self.arena is None else self._gradient.joined(trees, self._parts)
        return in_dtype(tree, self.dtype)

    def parts_of(self, tree: Any, begin: int = 0) -> list[Any]:
        """The part of each weight in a tree of the target's elements from index `begin`."""
        if self.arena is None:
            return [tree]
        ends = zip(self.arena.starts, self.members, strict=True)
        found = []
        for start, x in ends:
            first, last = (min(max(i - begin, 0), tree.size) for i in (start, start + x.size))
            found.append(f.slice(tree, (slice(first, last),)))
        return found

    def after(self, g: Any, goes: Any) -> tuple[Any, dict[Tensor, Any]]:
        """The updated target and slots for a gradient; unchanged where `goes` is false."""
        optimizer = self.optimizer
        w: Any = self.target
        size = w.size
        if optimizer._group is not None:
            begin, end = optimizer._group.shard_range(size)
            w, size = optimizer._group.shard(w), end - begin
        n = optimizer._groups[self.group].of(real_dtype(self.dtype), size)
        w = start = self.slots["master"] if self.is_narrow else w
        if n.has("weight_decay") and not optimizer.decays:
            if optimizer.decoupled:
                start = w * (1 - n.rate * n.weight_decay)
            else:
                g = g + n.weight_decay * w
        new, slots = self._formula(start, g, {name: self.slots[name] for name in optimizer.slots}, n)
        if optimizer._average is not None:
            decay, average = optimizer._average, self.slots["average"]
            slots["average"] = number_in(decay, self.dtype) * average + number_in(1 - decay, self.dtype) * new
        found = {self.slots[name]: _chosen(goes, value, self.slots[name]) for name, value in slots.items()}
        new = _chosen(goes, new, w)
        if self.is_narrow:
            found[self.slots["master"]] = new
        return f.cast(new, self.target.dtype) if self.is_narrow else new, found

    def _formula(self, w: Any, g: Any, slots: dict[str, Any], n: Numbers) -> tuple[Any, dict[str, Any]]:
        """The optimizer's formula; complex weights are two real ones, as torch has them."""
        formula = self.optimizer.formula
        if not is_complex(self.dtype):
            return formula(w, g, slots, n)
        (re, of_re), (im, of_im) = (
            formula(part(w), part(g), {name: part(x) for name, x in slots.items()}, n) for part in (f.real, f.imag)
        )
        return f.complex(re, im), {name: f.complex(of_re[name], of_im[name]) for name in of_re}


def _check(optimizer: Optimizer, name: str, value: Any, kind: str, holds: Callable[[Any], bool]) -> None:
    """Raise ParameterError for an invalid number of an optimizer; values on the device are not checked."""
    if callable(value) and not isinstance(value, Variable):
        check_schedule(f"{optimizer}: {name}", value)
        return
    if (value is None and name != "rate") or isinstance(value, Variable):
        return
    if not isinstance(value, Real | np.generic):
        raise ParameterError(f"{optimizer}: {name} is a number, a tree or a schedule, not {describe(value)}")
    if not (math.isfinite(value) and holds(value)):
        raise ParameterError(f"{optimizer}: {name} is {kind}, not {value}")


def is_used(number: Any) -> bool:
    """Whether a number of an optimizer is not a plain zero or None."""
    return number is not None and (isinstance(number, Variable) or callable(number) or number != 0)


def _chosen(goes: Any, new: Variable, old: Variable) -> Any:
    return new if goes is None else f.where(goes, new, old)


def _all_finite(trees: Sequence[Any]) -> Any:
    """Whether all elements of all trees are finite."""
    found: Any = None
    for tree in reversed(trees):
        flag = f.all(f.finite(tree), keepdims=False)
        found = flag if found is None else f.logical_and(found, flag)
    return found


def _unique(names: Sequence[str | None]) -> list[str]:
    """A unique name for each weight, from its own name or its index."""
    found: list[str] = []
    for number, name in enumerate(names):
        own = name or f"weight{number}"
        found.append(own if own not in found and names.count(name) == 1 else f"{own}_{number}")
    return found
