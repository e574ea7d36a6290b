"""Losses: trees of one element, from the outputs of a network and their targets.

Each loss is composed of ops that fuse: the loss of a batch and its gradient are one kernel, followed by the mean.
Classification losses take logits instead of probabilities, so that none overflows. Losses of float16 and bfloat16
operands are computed in float32.

`reduce` is ``'mean'`` (the mean over the examples that have a loss, weighted if there are weights), ``'sum'``, or
``'none'`` (each loss). An integer label that names no class makes the loss and its gradient nan. With `check_labels`
it also raises an AxisError that names the first such label, before anything is written. By default labels are checked
on the CPU only, because on a GPU the host would wait for the device.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from optree.dtypes import wide_dtype
from optree.errors import DTypeError, ParameterError, ShapeError, describe
from optree.instead import instead
from optree.op.parameters import complete
from optree.ops.shape import strong
from optree.registry import f
from optree.run.function import last_backend
from optree.tree.types import may_equal, normalise_axis
from optree.tree.variable import Operand, Variable, check_real, in_dtype, variable_of

REDUCTIONS = ("mean", "sum", "none")


def __getattr__(name: str) -> Any:
    raise AttributeError(f"module 'optree.train.losses' has no attribute {name!r}{instead('losses', name)}")


def cross_entropy(
    scores: Operand,
    labels: Operand,
    weights: Operand | None = None,
    smoothing: Operand = 0.0,
    ignored: int | None = None,
    axis: int = -1,
    reduce: str = "mean",
    check_labels: bool | None = None,
) -> Any:
    """The softmax cross entropy of logits and labels.

    Parameters
    ----------
    scores : Variable
        The logits; `axis` is the axis of classes.
    labels : Variable
        Integer labels, of the scores' shape without that axis; or probabilities, of the scores' shape.
    weights : Variable or array, optional
        A factor for each class; with integer labels the mean is weighted by them.
    smoothing : number
        The share of each label that is spread evenly over all classes.
    ignored : int, optional
        A label whose examples have no loss and are left out of the mean.
    check_labels : bool, optional
        Whether a label that names no class raises when it runs; by default on the CPU.

    Raises
    ------
    ShapeError, DTypeError, ParameterError
        If the labels do not fit the scores, or a parameter is invalid; AxisError for a wrong label.

    Examples
    --------
    >>> scores, labels = be.array([[2.0, 0.0], [0.0, 0.0]]), be.array(np.array([0, 1]))
    >>> round(cross_entropy(scores, labels).item(), 4)
    0.41
    """
    scores, labels = _operand(scores, "cross_entropy: the scores"), _operand(labels, "cross_entropy: the labels")
    axis = normalise_axis(axis, scores.ndim, "cross_entropy")
    kept = (*scores.shape[:axis], *scores.shape[axis + 1 :])
    if labels.dtype.kind in "iu":
        if not may_equal(labels.shape, kept):
            raise ShapeError(f"cross_entropy: {describe(labels)} is not of the shape {kept} of labels for the scores")
        labels = _checked("cross_entropy: the label", labels, _classes(scores, axis), check_labels, scores, ignored)
        scores = scores if axis == scores.ndim - 1 else f.moveaxis(scores, axis, -1)
        return _of_integers(scores, labels, weights, smoothing, ignored, reduce)
    if labels.dtype.kind == "b":
        raise DTypeError(f"cross_entropy: labels are integers or probabilities, not {describe(labels)}")
    if not may_equal(labels.shape, scores.shape):
        raise ShapeError(f"cross_entropy: {describe(labels)} is not of the shape {scores.shape} of the scores")
    if ignored is not None:
        raise ParameterError("cross_entropy: ignored is a label, and these are probabilities")
    shares = _smoothed(labels, smoothing, _classes(scores, axis))
    shares = shares if weights is None else shares * _along(weights, scores, axis)
    each = -f.sum(f.log_softmax(scores, axis=axis) * shares, axis=axis, keepdims=False)
    return _reduced(each, reduce, "cross_entropy")


def _of_integers(
    scores: Variable, labels: Variable, weights: object, smoothing: Any, ignored: int | None, reduce: str
) -> Any:
    """The cross entropy of integer labels and scores whose last axis is the classes."""
    classes = _classes(scores, -1)
    factors = None if weights is None else _along(weights, scores, scores.ndim - 1)
    labels = f.expand_dims(labels, -1)  # the reductions below keep the axis of classes
    is_ignored = None if ignored is None else f.eq(labels, np.int64(ignored))
    each = f.cross_entropy(scores, labels if is_ignored is None else f.where(is_ignored, np.int64(0), labels))
    share: Any = None if is_ignored is None else f.cast(f.logical_not(is_ignored), each.dtype)
    if factors is not None:  # selected by comparison instead of a gather, which would not fuse
        is_right = f.eq(labels, np.arange(classes))
        share = f.sum(f.where(is_right, f.broadcast_like(factors, scores), 0), axis=-1)
        each = share * each
    if isinstance(smoothing, Variable) or smoothing:
        logarithm, total = f.logsumexp(scores, axis=-1), classes
        if factors is not None:
            scores, total = scores * factors, f.sum(factors)
        spread = (logarithm * total - f.sum(scores, axis=-1)) / classes
        each = (1 - smoothing) * each + smoothing * spread
    if is_ignored is not None:
        each, share = f.where(is_ignored, 0, each), f.where(is_ignored, 0, share)
    each, share = (x if x is None else f.squeeze(x, -1) for x in (each, share))
    return _reduced(each, reduce, "cross_entropy", share)


#: The logarithm used for a probability of 0: finite, so that derivatives and sums of thousands of them are finite.
NEVER = -1e30


def ctc(
    scores: Operand,
    labels: Operand,
    input_lengths: object,
    label_lengths: object,
    blank: int = 0,
    reduce: str = "mean",
    zero_infinity: bool = False,
    check_labels: bool | None = None,
) -> Any:
    """The connectionist temporal classification loss (Graves et al., 2006).

    It is minus the log probability of the labels, summed over all alignments by a loop over the steps. An alignment
    assigns a label or a blank to each step; merging repeated labels and then removing blanks gives its labels.

    Parameters
    ----------
    scores : Variable
        Logits, or logarithms of probabilities, of shape (steps, batch, classes).
    labels : Variable
        Integers of shape (batch, maximum number of labels); elements beyond an example's length are ignored.
    input_lengths, label_lengths : Variable or array
        Integers of shape (batch,): the numbers of steps and of labels of each example.
    blank : int
        The class of blanks.
    reduce : {'mean', 'sum', 'none'}
        The mean is over examples; torch's also divides each loss by its number of labels first.
    zero_infinity : bool
        Whether the loss is 0 instead of infinite if the steps are too few for any alignment. Its gradient is 0.
    check_labels : bool, optional
        Whether an invalid label or length raises at run time instead of giving nan; by default on the CPU.

    Raises
    ------
    ShapeError, DTypeError, ParameterError
        If shapes do not fit, labels or lengths are not integers, or `blank` is no class; AxisError for wrong values.

    Examples
    --------
    >>> scores = be.zeros((3, 1, 2))  # three steps of a blank or a 1: of 8 alignments, 6 give one 1
    >>> loss = ctc(scores, np.array([[1]]), np.array([3]), np.array([1]))
    >>> round(float(np.exp(-loss.item())) * 8, 4)
    6.0
    """
    scores, labels = _operand(scores, "ctc: the scores"), _integers(labels, "ctc: labels")
    steps, counts = _integers(input_lengths, "ctc: input_lengths"), _integers(label_lengths, "ctc: label_lengths")
    _check_ctc(scores, labels, steps, counts, blank)
    labels, steps, counts = _checked_ctc(scores, labels, steps, counts, blank, check_labels)
    steps, counts = f.expand_dims(steps, 1), f.expand_dims(counts, 1)
    used = f.lt(_columns(labels), counts)
    is_class = f.logical_and(f.logical_and(f.ge(labels, 0), f.lt(labels, scores.shape[2])), f.ne(labels, blank))
    is_valid = f.all(f.logical_or(f.logical_not(used), is_class), axis=1, keepdims=False)
    for length, most in ((steps, f.count(scores, 0)), (counts, f.count(labels, 1))):
        fits = f.logical_and(f.ge(length, 0), f.le(length, f.cast(most, np.int64)))
        is_valid = f.logical_and(is_valid, f.squeeze(fits, 1))
    scores = scores * f.expand_dims(f.where(is_valid, f.cast(1, scores.dtype), np.nan), 1)  # so is the gradient
    states = _ctc_states(f.where(f.logical_and(used, is_class), labels, blank), blank)
    each = -_log_probability(f.log_softmax(scores, axis=-1), states, steps, counts, blank)
    each = f.where(f.gt(each, -NEVER / 2), 0.0 if zero_infinity else np.inf, each)
    return _reduced(f.where(is_valid, each, np.nan), reduce, "ctc")


def _checked_ctc(
    scores: Variable, labels: Variable, steps: Variable, counts: Variable, blank: int, check: bool | None
) -> tuple[Variable, Variable, Variable]:
    """The labels and lengths of `ctc`, with run-time checks of their values."""
    longest, most = scores.shape[0], labels.shape[1]
    if longest is not None:
        steps = _checked("ctc: the input length", steps, longest + 1, check, scores, kind="lengths")
    if most is not None:
        counts = _checked("ctc: the label length", counts, most + 1, check, scores, kind="lengths")
    if scores.shape[2] > 1:  # elements beyond a length are not checked
        used = f.lt(_columns(labels), f.expand_dims(counts, 1))
        right = f.where(used, labels, np.int64(0 if blank else 1))
        labels = _checked("ctc: the label", right, scores.shape[2], check, scores, blank=blank)
    return labels, steps, counts


def _log_probability(shares: Variable, states: Variable, steps: Variable, counts: Variable, blank: int) -> Variable:
    """The log probability of each example's sequence of states; `NEVER` or less if it is impossible."""
    skips = f.logical_and(f.ne(states, blank), f.ne(states, _shifted(_shifted(states, blank), blank)))
    times = f.expand_dims(f.flat_indices(f.sum(shares, axis=(1, 2), keepdims=False)), (1, 2))
    # Select the states' classes once for all steps, and mark the steps beyond an example's length by a number that is
    # no logarithm. A mask for each row would split the loop over a step's elements into a short loop for each row.
    given = f.maximum(f.take_along_axis(shares, f.expand_dims(states, 0), axis=-1), NEVER)
    given = f.where(f.lt(times, f.expand_dims(steps, 0)), given, -NEVER)

    def step(alpha: Variable, given: Operand) -> Any:
        before = _shifted(alpha, NEVER)
        reached = f.logaddexp(f.logaddexp(alpha, before), f.where(skips, _shifted(before, NEVER), NEVER)) + given
        return f.where(f.gt(given, -NEVER / 2), alpha, reached), None

    columns = _columns(states)
    first = f.where(f.eq(columns, 0), f.cast(0, shares.dtype), f.cast(NEVER, shares.dtype))
    alpha, _ = f.scan(step, f.broadcast_like(first, states), given)
    beyond = columns - 2 * counts  # the last label, or the blank after it
    is_end = f.logical_and(f.le(beyond, 0), f.ge(beyond, -1))
    return f.logsumexp(f.where(is_end, alpha, NEVER), axis=1, keepdims=False)


def _check_ctc(scores: Variable, labels: Variable, steps: Variable, counts: Variable, blank: int) -> None:
    """Raise an error if the shapes of `ctc`'s operands do not fit, or its blank is no class."""
    if scores.ndim != 3 or scores.shape[2] is None:
        raise ShapeError(
            f"ctc: the scores are of shape (steps, batch, classes), the number of classes known, not {describe(scores)}"
        )
    batch, classes = scores.shape[1:]
    if labels.ndim != 2 or not may_equal(labels.shape[:1], (batch,)):
        raise ShapeError(
            f"ctc: labels are of shape (batch, most labels), a row for each of {batch}, not {describe(labels)}"
        )
    for name, lengths in (("input_lengths", steps), ("label_lengths", counts)):
        if lengths.ndim != 1 or not may_equal(lengths.shape, (batch,)):
            raise ShapeError(f"ctc: {name} are one for each of {batch} examples, not {describe(lengths)}")
    if isinstance(blank, bool) or not isinstance(blank, int) or not 0 <= blank < classes:
        raise ParameterError(f"ctc: blank is one of the {classes} classes, 0 to {classes - 1}, not {blank!r}")


def _ctc_states(labels: Variable, blank: int) -> Variable:
    """The labels with blanks inserted before, between and after them."""
    twice = f.repeat(labels, 2, axis=1)
    is_label = f.eq(f.mod(_columns(twice), 2), 0)
    return f.pad(f.where(is_label, twice, blank), ((0, 0), (1, 0)), blank)


def _shifted(x: Variable, first: Operand) -> Variable:
    """The columns of a matrix shifted right by one, with `first` in the first column."""
    return f.pad(f.slice(x, (slice(None), slice(-1))), ((0, 0), (1, 0)), first)


def _columns(x: Variable) -> Variable:
    """The index of each column of a matrix."""
    return f.flat_indices(f.any(x, axis=0, keepdims=True))


def _integers(given: object, what: str) -> Variable:
    """An integer operand as int64; DTypeError for others."""
    found = strong(given, what)
    if found.dtype.kind not in "iu":
        raise DTypeError(f"{what} are integers, not {describe(found)}")
    return in_dtype(found, np.dtype(np.int64))


def binary_cross_entropy(
    scores: Any,
    labels: Any,
    weights: Operand | None = None,
    positive: Operand = 1.0,
    smoothing: Operand = 0.0,
    reduce: str = "mean",
    check_labels: bool | None = None,
) -> Any:
    """The binary cross entropy of logits: the cross entropy of their logistic function.

    Parameters
    ----------
    scores : Variable
        Logits.
    labels : Variable
        Probabilities, or bools or integers of 0 and 1, of the scores' shape.
    weights : Variable or array, optional
        A factor for each loss, of their shape or broadcast.
    positive : number or Variable
        A factor of the term of positive labels.
    smoothing : number
        The share of each label that is spread over both classes.
    check_labels : bool, optional
        Whether an integer label other than 0 and 1 raises at run time; by default on the CPU.
    """
    scores, labels = _pair("binary_cross_entropy", scores, labels, (0, 1), check_labels)
    labels = _smoothed(labels, smoothing, 2)
    each = f.softplus(scores) - labels * scores
    if isinstance(positive, Variable) or positive != 1.0:
        each = (1 - labels) * f.softplus(scores) + positive * labels * f.softplus(-scores)
    return _reduced(_weighted(each, weights), reduce, "binary_cross_entropy")


def focal(
    scores: Operand,
    labels: Operand,
    gamma: Operand = 2.0,
    alpha: Any = 0.25,
    weights: Operand | None = None,
    reduce: str = "mean",
    check_labels: bool | None = None,
) -> Any:
    """The focal loss ``alpha * (1 - p)**gamma * -log(p)``, p the probability of the label (Lin et al., 2017).

    Parameters
    ----------
    scores, labels : Variable
        See `binary_cross_entropy`.
    gamma : number
        The exponent of 1 - p.
    alpha : number or None
        The factor of positive labels; negative labels have the factor 1 - alpha.
    weights, reduce, check_labels
        See `binary_cross_entropy`.
    """
    scores, labels = _pair("focal", scores, labels, (0, 1), check_labels)
    entropy = f.softplus(scores) - labels * scores
    missed = f.sig(scores) * (1 - labels) + f.sig(-scores) * labels
    # The base is bounded away from 0, where a power with a gamma below 1 has an infinite derivative.
    each = entropy * f.exp(gamma * f.log(f.maximum(missed, np.finfo(np.float32).tiny)))
    if alpha is not None:
        each = each * (alpha * labels + (1 - alpha) * (1 - labels))
    return _reduced(_weighted(each, weights), reduce, "focal")


def mean_squared_error(values: Operand, targets: Operand, weights: Operand | None = None, reduce: str = "mean") -> Any:
    """The squared differences of values and targets, reduced.

    Examples
    --------
    >>> optree.train.losses.mean_squared_error(be.array([1.0, 2.0]), np.array([0.0, 4.0])).item()
    2.5
    """
    values, targets = _pair("mean_squared_error", values, targets)
    return _reduced(_weighted(f.square(values - targets), weights), reduce, "mean_squared_error")


def mean_absolute_error(values: Operand, targets: Operand, weights: Operand | None = None, reduce: str = "mean") -> Any:
    """The absolute differences of values and targets, reduced.

    Examples
    --------
    >>> optree.train.losses.mean_absolute_error(be.array([1.0, 2.0]), np.array([0.0, 4.0])).item()
    1.5
    """
    values, targets = _pair("mean_absolute_error", values, targets)
    return _reduced(_weighted(f.abs(values - targets), weights), reduce, "mean_absolute_error")


def huber(
    values: Operand, targets: Operand, delta: Any = 1.0, weights: Operand | None = None, reduce: str = "mean"
) -> Any:
    """The Huber loss: half the square of a difference up to `delta`, and linear beyond.

    Parameters
    ----------
    delta : number
        The difference beyond which the loss is linear.

    Examples
    --------
    >>> optree.train.losses.huber(be.array([1.0, 2.0]), np.array([0.0, 5.0]), reduce="none").get()
    array([0.5, 2.5], dtype=float32)
    """
    values, targets = _pair("huber", values, targets)
    error = values - targets
    near = f.maximum(f.minimum(error, delta), -delta)  # no absolute value, whose second derivative at 0 is 0
    return _reduced(_weighted(near * (error - near / 2), weights), reduce, "huber")


def hinge(
    scores: Operand,
    labels: Operand,
    margin: Operand = 1.0,
    weights: Operand | None = None,
    reduce: str = "mean",
    check_labels: bool | None = None,
) -> Any:
    """The hinge loss of scores for labels of -1 and 1: ``max(0, margin - label * score)``.

    With `check_labels`, by default on the CPU, other integer labels raise at run time.

    Parameters
    ----------
    scores, labels : operand
        Of equal shapes; labels are -1 or 1.
    margin : operand
        The least product of score and label without a loss.
    check_labels : bool, optional

    Examples
    --------
    >>> optree.train.losses.hinge(be.array([0.5, 2.0]), np.array([1, -1]), reduce="none").get()
    array([0.5, 3. ], dtype=float32)
    """
    scores, labels = _pair("hinge", scores, labels, (-1, 1), check_labels)
    return _reduced(_weighted(f.relu(margin - labels * scores), weights), reduce, "hinge")


def kl_divergence(scores: Operand, probabilities: Operand, axis: int = -1, reduce: str = "mean") -> Any:
    """The Kullback-Leibler divergence of the softmax of scores from probabilities, along an axis.

    Probabilities of 0 add nothing. The mean is over the other axes.

    Parameters
    ----------
    scores : operand
        Logits.
    probabilities : operand
        Of the same shape, with a sum of 1 along the axis.

    Examples
    --------
    >>> optree.train.losses.kl_divergence(be.zeros((1, 2)), np.array([[0.5, 0.5]])).item()
    0.0
    """
    scores, probabilities = _pair("kl_divergence", scores, probabilities)
    is_there = f.gt(probabilities, 0)
    logarithms = f.log(f.where(is_there, probabilities, 1)) - f.log_softmax(scores, axis=axis)
    terms = f.where(is_there, probabilities * logarithms, 0)
    return _reduced(f.sum(terms, axis=axis, keepdims=False), reduce, "kl_divergence")


def _operand(given: object, what: str) -> Variable:
    """An operand, cast to float32 if it is narrower: the loss is computed in that, and its gradient rounded once."""
    found = check_real(variable_of(given, what), what)
    return in_dtype(found, wide_dtype(found.dtype))


def _pair(
    what: str,
    values: Operand,
    targets: Operand,
    classes: tuple[int, int] | None = None,
    check_labels: bool | None = None,
) -> tuple[Variable, Variable]:
    """Values and targets of equal shapes, the targets cast to the values' dtype; labels outside `classes` are nan."""
    values, targets = _operand(values, f"{what}: the values"), _operand(targets, f"{what}: the targets")
    if not may_equal(targets.shape, values.shape):
        raise ShapeError(f"{what}: {describe(targets)} is not of the shape of {describe(values)}")
    if classes is None or targets.dtype.kind not in "iu":
        return values, in_dtype(targets, values.dtype)
    targets = _checked(f"{what}: the label", targets, classes, check_labels, values)
    is_class = f.logical_or(*(f.eq(targets, np.int64(each)) for each in classes))
    return values, f.where(is_class, in_dtype(targets, values.dtype), np.nan)


def _checked(
    what: str,
    labels: Variable,
    classes: int | tuple[int, ...],
    check: bool | None,
    scores: Variable,
    ignored: int | None = None,
    **options: Any,
) -> Variable:
    """Labels with a run-time check that each names a class; on a GPU only if requested."""
    if check is None:
        home = next((x.backend for x in (scores, labels) if x.backend is not None), None) or last_backend()
        check = home is None or home.name == "cpu"
    return f.check_labels(labels, classes=classes, ignored=ignored, what=what, **options) if check else labels


def _classes(scores: Variable, axis: int) -> int:
    classes = scores.shape[axis]
    if classes is None:
        raise ShapeError(f"cross_entropy: the number of classes, axis {axis} of {describe(scores)}, is to be known")
    return int(classes)


def _along(weights: object, scores: Variable, axis: int) -> Variable:
    """The factors of the classes, shaped to broadcast along the axis of classes."""
    factors = _operand(weights, "cross_entropy: the weights")
    if factors.shape != (scores.shape[axis],):
        raise ShapeError(
            f"cross_entropy: the weights are one for each class, {scores.shape[axis]}, not {factors.shape}"
        )
    others = tuple(i for i in range(scores.ndim) if i != axis)
    return f.cast(f.expand_dims(factors, others) if others else factors, scores.dtype)


def _smoothed(labels: object, smoothing: Any, classes: int) -> Any:
    if not isinstance(smoothing, Variable) and smoothing == 0:
        return labels
    return labels * (1 - smoothing) + smoothing / classes


def _weighted(each: Variable, weights: object) -> Any:
    return each if weights is None else each * f.cast(_operand(weights, "the weights of a loss"), each.dtype)


def _reduced(each: Any, reduce: str, what: str, total: object = None) -> Any:
    """The reduced losses; the mean divides by `total` if that is given."""
    if reduce not in REDUCTIONS:
        raise ParameterError(f"{what}: reduce is 'mean', 'sum' or 'none', not {reduce!r}")
    if reduce == "none":
        return each
    if reduce == "sum":
        return f.sum(each, keepdims=False)
    if 0 in each.shape:
        raise ShapeError(f"{what}: the mean over no examples is nan; leave empty batches out, or take reduce='sum'")
    if total is None:
        return f.mean(each, keepdims=False)
    return f.sum(each, keepdims=False) / f.sum(f.cast(total, each.dtype), keepdims=False)


complete("losses", __name__, globals())
