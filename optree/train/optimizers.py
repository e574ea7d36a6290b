"""Optimizers: SGD, RMSProp, Adagrad, Adadelta, Adam and its variants, LARS and Lion.

>>> import optree
>>> from backends import gen_backend
>>> be = gen_backend("cpu")
>>> w = be.array([1.0, -2.0], name="w")
>>> loss = be.sum(be.square(w))
>>> opt = Adam([w], 0.1)
>>> step = optree.function([], loss, updates=opt.updates(loss))
>>> step().item(), w.get(), sorted(opt.state)
(5.0, array([ 0.9, -1.9], dtype=float32), ['mean.w', 'power.beta1', 'power.beta2', 'square.w', 'step'])
"""

from __future__ import annotations

from typing import Any, ClassVar, Unpack

from optree.errors import ParameterError
from optree.op.parameters import complete
from optree.registry import f
from optree.train.counter import Number, Weights
from optree.train.optimizer import Numbers, Optimizer, Options, OptionsButDecay, is_used, number_in
from optree.tree.variable import Operand, as_variable


class SGD(Optimizer):
    """Stochastic gradient descent, optionally with (Nesterov) momentum.

    Parameters
    ----------
    momentum : number
        The decay of the running sum of gradients, which replaces the gradient.
    nesterov : bool
        Whether to use Nesterov momentum.

    Examples
    --------
    >>> w = be.array([1.0, 2.0])
    >>> opt = optree.train.SGD([w], rate=0.5, momentum=0.9)
    >>> step = optree.function([], updates=opt.updates(be.sum(be.square(w))))
    >>> step()
    >>> w.get()
    array([0., 0.], dtype=float32)
    """

    def __init__(
        self, weights: Weights, rate: Number, momentum: Number = 0.0, nesterov: bool = False, **options: Unpack[Options]
    ) -> None:
        self.nesterov = nesterov
        self.slots = ("momentum",) if is_used(momentum) else ()  # type: ignore[misc]
        if nesterov and not self.slots:
            raise ParameterError("SGD: nesterov estimates the gradient after the momentum's step, and momentum is 0")
        super().__init__(weights, rate, momentum=momentum, **options)

    def formula(self, w: Operand, g: Any, s: dict[str, Any], n: Numbers) -> tuple[Any, dict[str, Any]]:
        if not s:
            return w - n.rate * g, {}
        momentum = n.momentum * s["momentum"] + g
        return w - n.rate * (g + n.momentum * momentum if self.nesterov else momentum), {"momentum": momentum}


class RMSProp(Optimizer):
    """RMSProp: gradients divided by the root of their running mean square (Tieleman and Hinton, 2012).

    Parameters
    ----------
    decay : number
        The decay of the mean square.
    centered : bool
        Whether the running variance replaces the mean square.
    """

    def __init__(
        self,
        weights: Weights,
        rate: Number = 1e-2,
        decay: Number = 0.99,
        epsilon: Number = 1e-8,
        momentum: Number = 0.0,
        centered: bool = False,
        **options: Unpack[Options],
    ) -> None:
        self.slots = ("square", *(["mean"] if centered else []), *(["momentum"] if is_used(momentum) else []))  # type: ignore[misc]
        super().__init__(weights, rate, decay=decay, epsilon=epsilon, momentum=momentum, **options)

    def formula(self, w: Operand, g: Any, s: dict[str, Any], n: Numbers) -> tuple[Any, dict[str, Any]]:
        found = {"square": n.decay * s["square"] + n.rest("decay") * f.square(g)}
        spread = found["square"]
        if "mean" in s:
            found["mean"] = n.decay * s["mean"] + n.rest("decay") * g
            spread = f.maximum(spread - f.square(found["mean"]), 0)  # rounding may make it negative
        change = g / (f.sqrt(spread) + n.epsilon)
        if "momentum" in s:
            change = found["momentum"] = n.momentum * s["momentum"] + change
        return w - n.rate * change, found


class Adagrad(Optimizer):
    """Adagrad: gradients divided by the root of the sum of their squares (Duchi et al., 2011).

    Parameters
    ----------
    rate_decay : number
        The rate is divided by 1 + rate_decay * the number of earlier steps.
    initial_sum : float
        The initial value of the sums.
    """

    slots = ("squares",)

    def __init__(
        self,
        weights: Weights,
        rate: Number = 1e-2,
        rate_decay: Number = 0.0,
        initial_sum: float = 0.0,
        epsilon: Number = 1e-10,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(weights, rate, rate_decay=rate_decay, initial_sum=initial_sum, epsilon=epsilon, **options)

    def initial(self, slot: str, numbers: Numbers) -> float:
        return float(numbers.raw("initial_sum"))

    def formula(self, w: Operand, g: Any, s: dict[str, Any], n: Numbers) -> tuple[Any, dict[str, Any]]:
        squares = s["squares"] + f.square(g)
        rate = n.rate
        if n.has("rate_decay"):
            rate = rate / number_in(1 + self.step * n.raw("rate_decay"), g.dtype)
        return w - rate * g / (f.sqrt(squares) + n.epsilon), {"squares": squares}


class Adadelta(Optimizer):
    """Adadelta: gradients divided by their root mean square, times that of earlier changes (Zeiler, 2012).

    Parameters
    ----------
    decay, epsilon : number
    """

    slots = ("square", "change")

    def __init__(
        self,
        weights: Weights,
        rate: Number = 1.0,
        decay: Number = 0.9,
        epsilon: Number = 1e-6,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(weights, rate, decay=decay, epsilon=epsilon, **options)

    def formula(self, w: Operand, g: Any, s: dict[str, Any], n: Numbers) -> tuple[Any, dict[str, Any]]:
        square = n.decay * s["square"] + n.rest("decay") * f.square(g)
        change = f.sqrt(s["change"] + n.epsilon) / f.sqrt(square + n.epsilon) * g
        after = n.decay * s["change"] + n.rest("decay") * f.square(change)
        return w - n.rate * change, {"square": square, "change": after}


class Adam(Optimizer):
    """Adam: the bias-corrected mean of gradients, divided by the root of their mean square (Kingma and Ba, 2015)."""

    slots: ClassVar[tuple[str, ...]] = ("mean", "square")
    powers: ClassVar[tuple[str, ...]] = ("beta1", "beta2")

    def __init__(
        self,
        weights: Weights,
        rate: Number = 1e-3,
        beta1: Number = 0.9,
        beta2: Number = 0.999,
        epsilon: Number = 1e-8,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(weights, rate, beta1=beta1, beta2=beta2, epsilon=epsilon, **options)

    def _means(self, g: Any, s: dict[str, Any], n: Numbers) -> dict[str, Any]:
        return {
            "mean": n.beta1 * s["mean"] + n.rest("beta1") * g,
            "square": n.beta2 * s["square"] + n.rest("beta2") * f.square(g),
        }

    def _direction(self, found: dict[str, Any], n: Numbers) -> Any:
        root = f.sqrt(found["square"]) * (1 / f.sqrt(as_variable(n.correction("beta2"))))
        return found["mean"] / (root + n.epsilon)

    def formula(self, w: Operand, g: Any, s: dict[str, Any], n: Numbers) -> tuple[Any, dict[str, Any]]:
        found = self._means(g, s, n)
        return w - n.rate / n.correction("beta1") * self._direction(found, n), found


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019); the parameters are those of `Adam`.

    Parameters
    ----------
    weight_decay : number
        The part of the rate by which weights shrink.
    """

    is_decoupled = True

    def __init__(
        self,
        weights: Weights,
        rate: Number = 1e-3,
        beta1: Number = 0.9,
        beta2: Number = 0.999,
        epsilon: Number = 1e-8,
        weight_decay: Number = 1e-2,
        **options: Unpack[OptionsButDecay],
    ) -> None:
        super().__init__(weights, rate, beta1, beta2, epsilon, weight_decay=weight_decay, **options)


class Adamax(Adam):
    """Adam with the largest of the decayed absolute gradients in place of the root (Kingma and Ba, 2015).

    Parameters
    ----------
    beta1, beta2 : number
        The decay of the mean, and of the largest gradient.
    """

    slots = ("mean", "largest")
    powers = ("beta1",)

    def __init__(
        self,
        weights: Weights,
        rate: Number = 2e-3,
        beta1: Number = 0.9,
        beta2: Number = 0.999,
        epsilon: Number = 1e-8,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(weights, rate, beta1, beta2, epsilon, **options)

    def formula(self, w: Operand, g: Any, s: dict[str, Any], n: Numbers) -> tuple[Any, dict[str, Any]]:
        mean = n.beta1 * s["mean"] + n.rest("beta1") * g
        largest = f.maximum(n.beta2 * s["largest"], f.abs(g) + n.epsilon)
        # The quotient is 0 / 0 in gaps between packed weights and for zero gradients, if epsilon is 0.
        change = mean / f.where(f.eq(largest, 0), 1, largest)
        return w - n.rate / n.correction("beta1") * change, {"mean": mean, "largest": largest}


class LAMB(Adam):
    """LAMB: the step of Adam, with decay, scaled to the norm of each weight, for large batches (You et al., 2020).

    The parameters are those of `Adam`. Packed weights are updated one by one, because each needs its norm.

    Parameters
    ----------
    beta1, beta2, epsilon, weight_decay : number
        As in `AdamW`.
    """

    is_elementwise = False
    needs_norms = True
    decays = True

    def __init__(
        self,
        weights: Weights,
        rate: Number = 1e-3,
        beta1: Number = 0.9,
        beta2: Number = 0.999,
        epsilon: Number = 1e-6,
        weight_decay: Number = 1e-2,
        **options: Unpack[OptionsButDecay],
    ) -> None:
        super().__init__(weights, rate, beta1, beta2, epsilon, weight_decay=weight_decay, **options)

    def formula(self, w: Operand, g: Any, s: dict[str, Any], n: Numbers) -> tuple[Any, dict[str, Any]]:
        found = self._means(g, s, n)
        change = self._direction(found, n) / n.correction("beta1") + n.weight_decay * w
        return w - n.rate * _trust(n.norm(w), n.norm(change)) * change, found


class LARS(Optimizer):
    """LARS: momentum with gradients scaled to the norm of each weight, for large batches (You et al., 2017).

    Packed weights are updated one by one, because each needs its norm.

    Parameters
    ----------
    trust : number
        The norm of the change, relative to the weight's.
    """

    slots = ("momentum",)
    is_elementwise = False
    needs_norms = True
    decays = True

    def __init__(
        self, weights: Weights, rate: Number, momentum: Number = 0.9, trust: Number = 1e-3, **options: Unpack[Options]
    ) -> None:
        super().__init__(weights, rate, momentum=momentum, trust=trust, **options)

    def formula(self, w: Operand, g: Any, s: dict[str, Any], n: Numbers) -> tuple[Any, dict[str, Any]]:
        norm = n.norm(w)
        scale = _trust(n.trust * norm, n.norm(g) + n.weight_decay * norm)
        momentum = n.momentum * s["momentum"] + n.rate * scale * (g + n.weight_decay * w)
        return w - momentum, {"momentum": momentum}


class Lion(Optimizer):
    """Lion: steps of equal size for all elements, in the direction of a sign (Chen et al., 2023).

    Parameters
    ----------
    beta1, beta2 : number
        The weight of the mean gradient in the sign, and the decay of the mean.
    """

    slots = ("mean",)
    is_decoupled = True

    def __init__(
        self,
        weights: Weights,
        rate: Number = 1e-4,
        beta1: Number = 0.9,
        beta2: Number = 0.99,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(weights, rate, beta1=beta1, beta2=beta2, **options)

    def formula(self, w: Operand, g: Any, s: dict[str, Any], n: Numbers) -> tuple[Any, dict[str, Any]]:
        sign = f.sgn(n.beta1 * s["mean"] + n.rest("beta1") * g)
        return w - n.rate * sign, {"mean": n.beta2 * s["mean"] + n.rest("beta2") * g}


def _trust(above: Operand, below: Operand) -> Any:
    """The trust ratio: a quotient of norms, 1 where one of them is 0."""
    counts = f.logical_and(f.gt(above, 0), f.gt(below, 0))
    return f.where(counts, above / f.where(counts, below, 1), 1)


#: The example of an optimizer that has none of its own, for its help.
EXAMPLE = """
    Examples
    --------
    >>> w = be.array([1.0, 2.0])
    >>> opt = optree.train.{name}([w], rate=0.5)
    >>> step = optree.function([], updates=opt.updates(be.sum(be.square(w))))
    >>> step()
    >>> opt.step.item()
    1
    """

for _class in (RMSProp, Adagrad, Adadelta, Adam, AdamW, Adamax, LAMB, LARS, Lion):
    _class.__doc__ = f"{(_class.__doc__ or '').rstrip()}\n{EXAMPLE.format(name=_class.__name__)}"

complete("optimizers", __name__, globals())
