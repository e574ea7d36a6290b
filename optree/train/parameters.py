"""Parameters of a model without a framework: named tensors in dicts or dataclasses, and the phase of a model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from optree.errors import OperandError, brief, describe
from optree.networks.windows import layout_of
from optree.registry import f
from optree.train import initializers
from optree.train.packing import Packed, packed
from optree.tree.tensor import Tensor


def parameters(be: Any, shapes: Any, initial: Any = None, dtype: Any = None) -> tuple[Any, Packed]:
    """New tensors for the shapes in a dict or a dataclass, named by their paths; and a list of them for an optimizer.

    Parameters
    ----------
    be : Backend
    shapes : dict or dataclass
        Its values are shapes, arrays of initial values, and dicts, dataclasses and lists of these. A tuple of integers,
        or an integer, is a shape.
    initial : callable, optional
        The initializer of shapes with two axes or more, one of `optree.train.initializers`; by default
        `glorot_uniform`. More than two axes are those of the weights of `be.conv`. Other shapes are filled with zeros.
    dtype : dtype, optional

    Returns
    -------
    tuple
        The dict or dataclass with tensors as values, and the tensors as a list, whose small ones are in one vector
        (`packed`).

    Raises
    ------
    OperandError
        If a value is neither a shape nor an array, or two tensors have one name.

    Examples
    --------
    >>> p, weights = parameters(be, {"w": (3, 2), "norm": {"gain": np.ones(2), "bias": 2}})
    >>> [w.name for w in weights], p["norm"]["gain"].get()
    (['w', 'norm.gain', 'norm.bias'], array([1., 1.], dtype=float32))
    """
    initial = initializers.glorot_uniform if initial is None else initial
    made: list[Tensor] = []
    _mapped(shapes, (), lambda name, given: made.append(_tensor(be, name, given, initial, dtype)))
    names = [x.name for x in made]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None or not names:
        raise OperandError(f"parameters: {'there are none' if twice is None else f'two tensors have the name {twice}'}")
    weights = packed(made)
    rest = iter(weights)
    return _mapped(shapes, (), lambda name, given: next(rest)), weights


def _mapped(x: Any, path: tuple[str, ...], leaf: Callable[[str, Any], Any]) -> Any:
    """The structure with a function's value for each leaf, given its name and itself."""
    if isinstance(x, Mapping):
        return {key: _mapped(each, (*path, str(key)), leaf) for key, each in x.items()}
    if isinstance(x, list):
        return [_mapped(each, (*path, str(i)), leaf) for i, each in enumerate(x)]
    if is_dataclass(x) and not isinstance(x, type):
        return replace(x, **{own.name: _mapped(getattr(x, own.name), (*path, own.name), leaf) for own in fields(x)})
    return leaf(".".join(path), x)


def _tensor(be: Any, name: str, given: Any, initial: Any, dtype: Any) -> Tensor:
    if isinstance(given, np.ndarray):
        return initializers.zeros(be, given.shape, dtype, name).set(given)
    shape = given if isinstance(given, tuple) else (given,)
    if not all(isinstance(size, int | np.integer) and not isinstance(size, bool) for size in shape):
        raise OperandError(
            f"parameters: {name or 'a parameter'} is a shape, an array of initial values, or a dict, list or dataclass "
            f"of these, not {brief(given)}"
        )
    if len(shape) < 2:
        return initializers.zeros(be, shape, dtype, name)
    takes_layout = len(shape) > 2 and "layout" in inspect.signature(initial).parameters
    layout = {"layout": layout_of(None, len(shape), "OI", f"parameters: {name}")} if takes_layout else {}
    return initial(be, shape, dtype=dtype, name=name, **layout)  # type: ignore[no-any-return]


class Phase:
    """Training or evaluation: the flag of a model written once, as a function of inputs and a phase.

    Dropout and batch norm are built for the phase, so that the tree of evaluation has neither masks nor statistics of
    a batch.

    Parameters
    ----------
    be : Backend
    training : bool

    Attributes
    ----------
    updates : dict
        In training, from the running statistics to their new values, for `optree.function`.

    Examples
    --------
    >>> x, mean, variance = be.array([[1.0], [3.0]]), be.zeros(1, name="mean"), be.ones(1, name="variance")
    >>> training, evaluation = Phase(be, training=True), Phase(be, training=False)
    >>> [phase.batch_norm(x, mean=mean, variance=variance).get()[0, 0].round(2) for phase in (training, evaluation)]
    [np.float32(-1.0), np.float32(1.0)]
    >>> be.update(training.updates), mean.get(), evaluation.updates
    (None, array([0.2], dtype=float32), {})
    """

    def __init__(self, be: Any, training: bool) -> None:
        if not isinstance(training, bool):
            raise OperandError(f"Phase: training is True or False when the tree is built, not {describe(training)}")
        self.backend, self.training = be, training
        self.updates: dict[Tensor, Any] = {}

    def __repr__(self) -> str:
        return f"Phase(training={self.training})"

    def dropout(self, x: Any, keep: Any = 0.5) -> Any:
        """In training, ``x * be.dropout_mask(x, keep)``; in evaluation, `x`.

        Parameters
        ----------
        x : operand
        keep : float or operand
            The probability that an element is kept.

        Examples
        --------
        >>> x = be.ones((2, 3))
        >>> Phase(be, training=False).dropout(x) is x
        True
        """
        return x * self.backend.dropout_mask(x, keep) if self.training else x

    def batch_norm(
        self, x: Any, gain: Any = None, bias: Any = None, mean: Any = None, variance: Any = None, **options: Any
    ) -> Any:
        """The value of `be.batch_norm`; in training, `updates` gets the new running statistics.

        Raises
        ------
        OperandError
            If in training a running statistic is not a tensor, or is used a second time.
        """
        found = f.batch_norm(x, gain, bias, mean, variance, training=self.training, **options)
        if self.training:
            for name, target, new in (("mean", mean, found.mean), ("variance", variance, found.variance)):
                if not isinstance(target, Tensor) or target in self.updates:
                    problem = "used twice in one phase" if isinstance(target, Tensor) else "no tensor"
                    raise OperandError(f"batch_norm: its running {name} is {problem}: {describe(target)}")
                self.updates[target] = new
        return found.value
