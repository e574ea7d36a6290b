"""Losses equal NumPy's in float64, their gradients differences, and torch's where there is one; each is few kernels."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from harness.compiling import needs_compiler
from harness.each import for_each
from harness.homes import home

import optree
from backends import gen_backend, launches, source
from backends.cpu.routines import loops
from optree import TensorType
from optree.errors import AxisError, DTypeError, OptreeError, ParameterError, ShapeError
from optree.registry import f
from optree.testing.branch_points import check_branch_points
from optree.testing.examples import Example
from optree.train import losses

be = gen_backend("cpu")
rng = np.random.default_rng(0)
SCORES = rng.normal(size=(6, 5)) * 3
LABELS = np.array([0, 4, 2, 2, 1, 3])
SHARES = rng.dirichlet(np.ones(5), size=6)
FACTORS = np.linspace(0.5, 2.0, 5)


def log_softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    shifted = x - x.max(axis, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))


def entropies(smoothing: float = 0.0, factors: Any = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """The cross entropy of each row, and its weight in the mean."""
    factors = np.broadcast_to(factors, 5)
    right = np.eye(5)[LABELS] * (1 - smoothing) + smoothing / 5
    return -(log_softmax(SCORES) * right * factors).sum(1), factors[LABELS]


def check(loss: Any, expected: float, *values: np.ndarray) -> None:
    """A loss of float64 tensors: its value, and its gradient by differences."""
    tensors = [be.array(v, dtype="float64") for v in values]
    assert loss(*tensors).item() == pytest.approx(expected, rel=1e-12)
    optree.check_grad(loss, tensors)


def test_cross_entropy_of_integers() -> None:
    labels = be.array(LABELS)
    each, _ = entropies()
    check(lambda x: losses.cross_entropy(x, labels), each.mean(), SCORES)
    check(lambda x: losses.cross_entropy(x, labels, reduce="sum"), each.sum(), SCORES)
    np.testing.assert_allclose(
        losses.cross_entropy(be.array(SCORES, dtype="float64"), labels, reduce="none").get(), each, rtol=1e-12
    )
    for smoothing in (0.0, 0.1):
        each, share = entropies(smoothing, FACTORS)
        expected = each.sum() / share.sum()
        check(lambda x, s=smoothing: losses.cross_entropy(x, labels, FACTORS, s), expected, SCORES)
    each, _ = entropies(0.2)
    check(lambda x: losses.cross_entropy(x, labels, smoothing=0.2), each.mean(), SCORES)


def test_labels_that_are_ignored_have_no_part() -> None:
    labels = be.array(np.where(LABELS == 2, -1, LABELS))
    kept = LABELS != 2
    each, share = entropies()
    check(lambda x: losses.cross_entropy(x, labels, ignored=-1), each[kept].mean(), SCORES)
    each, share = entropies(0.1, FACTORS)
    expected = each[kept].sum() / share[kept].sum()
    check(lambda x: losses.cross_entropy(x, labels, FACTORS, 0.1, ignored=-1), expected, SCORES)


def test_a_label_of_no_class_is_nan_and_no_silent_loss() -> None:
    scores = be.array(SCORES)
    for wrong in (-1, 5):
        labels = be.array(np.where(LABELS == 2, wrong, LABELS))
        for options in ({}, {"weights": FACTORS}, {"smoothing": 0.1}, {"ignored": -100}):
            loss = losses.cross_entropy(scores, labels, **options, check_labels=False)
            slopes = optree.grad(loss, scores).asnumpyarray()
            assert np.isnan(loss.item())
            np.testing.assert_array_equal(np.isnan(slopes), np.repeat(LABELS == 2, 5).reshape(-1, 5))
            each = losses.cross_entropy(scores, labels, **options, reduce="none", check_labels=False).get()
            np.testing.assert_array_equal(np.isnan(each), LABELS == 2)


#: Losses of integer labels that name no class, and what the error says of them.
MISNAMED = {
    "cross_entropy": (
        lambda x, **o: losses.cross_entropy(x, np.array([0, 1, 3, 2]), **o),
        "the label 3 at row 2 is none of the 3 classes, 0 to 2",
    ),
    "cross_entropy from 1": (
        lambda x, **o: losses.cross_entropy(x, np.array([1, 2, 3, -1], np.int8), **o),
        "the label 3 at row 2",
    ),
    "cross_entropy ignored": (
        lambda x, **o: losses.cross_entropy(x, np.array([0, -1, -2, 2]), ignored=-1, **o),
        "the label -2 at row 2",
    ),
    "cross_entropy along": (
        lambda x, **o: losses.cross_entropy(x, np.array([0, 4, 1]), axis=0, **o),
        "the label 4 at row 1 is none of the 4 classes",
    ),
    "cross_entropy of places": (
        lambda x, **o: losses.cross_entropy(x.reshape(2, 2, 3), np.array([[0, 1], [2, 9]], np.uint64), **o),
        "the label 9 at (1, 1)",
    ),
    "binary_cross_entropy": (
        lambda x, **o: losses.binary_cross_entropy(x, np.full((4, 3), 2), **o),
        "the label 2 at (0, 0) is none of the classes 0 and 1",
    ),
    "focal": (lambda x, **o: losses.focal(x, np.eye(4, 3, dtype=int) - 1, **o), "the label -1 at (0, 1)"),
    "hinge": (
        lambda x, **o: losses.hinge(x, np.eye(4, 3, dtype=np.uint8), **o),
        "the label 0 at (0, 1) is none of the classes -1 and 1",
    ),
    "ctc": (
        lambda x, **o: losses.ctc(x.reshape(4, 1, 3), np.array([[1, 3]]), [4], [2], **o),
        "the label 3 at (0, 1) is none of the 3 classes",
    ),
    "ctc of a blank": (
        lambda x, **o: losses.ctc(x.reshape(4, 1, 3), np.array([[1, 0]]), [4], [2], **o),
        "the label 0 at (0, 1) is the blank",
    ),
    "ctc of a length": (
        lambda x, **o: losses.ctc(x.reshape(4, 1, 3), np.array([[1, 2]]), [5], [2], **o),
        "the input length 5 at row 0 is none of the 5 lengths, 0 to 4",
    ),
    "ctc of a label length": (
        lambda x, **o: losses.ctc(x.reshape(4, 1, 3), np.array([[1, 2]]), [4], [-1], **o),
        "the label length -1 at row 0 is none of the 3 lengths",
    ),
}


#: With kernels, one case of each loss: labels are checked before a kernel reads them.
CASES = [*((name, False) for name in MISNAMED), *((name, True) for name in MISNAMED if " " not in name)]


@for_each(("name", "jit"), CASES, sampled=True)
def test_an_integer_that_names_no_class_raises_and_writes_nothing_or_is_nan_with_its_gradient(
    name: str, jit: bool
) -> None:
    made, says = MISNAMED[name]
    own = gen_backend("cpu", jit=jit)
    x = own.array(np.random.RandomState(0).normal(size=(4, 3)), "float64", name="x")
    for options in ({}, {"check_labels": True}):
        loss = made(x, **options)
        step = optree.function([], loss, updates={x: x - optree.grad(loss, x)})
        before = x.get()
        for run in (loss.item, step):
            with pytest.raises(AxisError) as caught:
                run()
            assert says in str(caught.value) and str(caught.value).startswith(name.split()[0] + ":")
        np.testing.assert_array_equal(x.get(), before)
    silent = made(x, check_labels=False)
    assert np.isnan(silent.item()) and np.isnan(optree.grad(silent, x).asnumpyarray()).any()


def test_labels_are_checked_on_a_gpu_where_that_is_asked_for() -> None:
    gpu = home("stand-in")
    x, wrong = gpu.array(np.zeros((2, 3))), gpu.array(np.array([0, 3]))
    assert np.isnan(losses.cross_entropy(x, wrong).item())
    checked = losses.cross_entropy(x, wrong, check_labels=True)
    for run in (checked.item, *[optree.function([], checked)] * 3):  # captured, and replayed
        with pytest.raises(AxisError, match="the label 3 at row 1"):
            run()


def test_a_check_of_labels_adds_no_kernel() -> None:
    x, y = TensorType("float32", (None, 10))("x"), TensorType("int64", (None,))("y")
    found = []
    for check_labels in (True, False):
        loss = losses.cross_entropy(x, y, check_labels=check_labels)
        found.append(len(source(optree.function([x, y], [loss, optree.grad(loss, x)]))))
    assert found[0] == found[1]


def test_cross_entropy_of_probabilities_and_along_another_axis() -> None:
    expected = -(log_softmax(SCORES) * SHARES).sum(1)
    shares = be.array(SHARES, dtype="float64")
    check(lambda x: losses.cross_entropy(x, shares), expected.mean(), SCORES)
    check(
        lambda x, p: losses.cross_entropy(x, p, axis=0),
        -(log_softmax(SCORES.T, 0) * SHARES.T).sum(0).mean(),
        SCORES.T,
        SHARES.T,
    )
    smooth = SHARES * 0.9 + 0.1 / 5
    weighted = -(log_softmax(SCORES) * smooth * FACTORS).sum(1)
    check(lambda x: losses.cross_entropy(x, shares, FACTORS, 0.1), weighted.mean(), SCORES)
    images = np.stack([SCORES, SCORES[::-1]]).transpose(0, 2, 1)  # batch, classes, places
    labels = np.stack([LABELS, LABELS[::-1]])
    check(lambda x: losses.cross_entropy(x, be.array(labels), axis=1), entropies()[0].mean(), images)


def test_large_scores_overflow_nowhere() -> None:
    x = be.array(SCORES * 1e4)
    labels, signs = be.array(LABELS), be.array(SHARES > 0.2)
    for loss in (
        losses.cross_entropy(x, labels),
        losses.binary_cross_entropy(x, signs),
        losses.focal(x, signs),
        losses.kl_divergence(x, be.array(SHARES)),
    ):
        value, slope = be.evaluate([loss, optree.grad(loss, x)])
        assert np.isfinite(value.get()).all() and np.isfinite(slope.get()).all()


SIGNS = (SHARES > 0.2).astype(float)


def logistic(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def binary(labels: np.ndarray, positive: float = 1.0) -> np.ndarray:
    return -(positive * labels * np.log(logistic(SCORES)) + (1 - labels) * np.log(logistic(-SCORES)))


def test_binary_cross_entropy_and_focal() -> None:
    signs = be.array(SIGNS, dtype="float64")
    check(lambda x, y: losses.binary_cross_entropy(x, y), binary(SHARES).mean(), SCORES, SHARES)
    check(lambda x: losses.binary_cross_entropy(x, signs, FACTORS), (binary(SIGNS) * FACTORS).mean(), SCORES)
    check(lambda x: losses.binary_cross_entropy(x, signs, positive=3.0), binary(SIGNS, 3.0).mean(), SCORES)
    check(lambda x: losses.binary_cross_entropy(x, signs, smoothing=0.1), binary(SIGNS * 0.9 + 0.05).mean(), SCORES)
    right = np.where(SIGNS == 1, logistic(SCORES), logistic(-SCORES))
    for gamma in (2.0, 0.5):
        expected = np.where(SIGNS == 1, 0.25, 0.75) * (1 - right) ** gamma * -np.log(right)
        check(lambda x, g=gamma: losses.focal(x, signs, g), expected.mean(), SCORES)
    check(lambda x: losses.focal(x, signs, 0.0, None), binary(SIGNS).mean(), SCORES)


def test_losses_of_values() -> None:
    apart = SCORES - SHARES
    check(losses.mean_squared_error, (apart**2).mean(), SCORES, SHARES)
    check(losses.mean_absolute_error, np.abs(apart).mean(), SCORES, SHARES)
    size = np.abs(apart)
    expected = np.where(size < 1.5, apart**2 / 2, 1.5 * (size - 0.75))
    check(lambda x, y: losses.huber(x, y, 1.5), expected.mean(), SCORES, SHARES)
    signs = be.array(2 * SIGNS - 1, dtype="float64")
    check(lambda x: losses.hinge(x, signs), np.maximum(0, 1 - SCORES * (2 * SIGNS - 1)).mean(), SCORES)


def test_the_divergence_ignores_probabilities_of_zero() -> None:
    shares = SHARES * SIGNS
    shares /= shares.sum(1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        expected = np.nansum(shares * (np.log(shares) - log_softmax(SCORES)), axis=1).mean()
    p = be.array(shares, dtype="float64")
    check(lambda x: losses.kl_divergence(x, p), expected, SCORES)


def test_the_second_derivative_of_a_logistic_regression_where_newtons_method_starts() -> None:
    x, y = be.array(rng.normal(size=(8, 3)), "float64"), be.array(rng.integers(0, 2, 8))
    w = be.zeros(3, "float64")
    found = optree.hessian(losses.binary_cross_entropy(be.dot(x, w), y, reduce="sum"), w)
    np.testing.assert_allclose(found.asnumpyarray(), x.get().T @ x.get() / 4, rtol=1e-14)


HITS = np.array([[1.0, 0.0, 0.25], [0.0, 1.0, 0.5]])
OF_TIES = {
    "cross_entropy": lambda x: losses.cross_entropy(x, np.array([0, 2])),
    "smoothed": lambda x: losses.cross_entropy(x, np.array([0, 2]), FACTORS[:3], 0.1),
    "of_shares": lambda x, y: losses.cross_entropy(x, f.softmax(y, axis=-1)),
    "binary_cross_entropy": lambda x: losses.binary_cross_entropy(x, HITS),
    "of_factors": lambda x: losses.binary_cross_entropy(x, HITS, positive=2.0, smoothing=0.1),
    "focal": lambda x: losses.focal(x, HITS),
    "mean_squared_error": losses.mean_squared_error,
    "mean_absolute_error": losses.mean_absolute_error,
    "huber": losses.huber,
    "huber_of_a_bound": lambda x, y: losses.huber(x, y, 0.3),
    "hinge": lambda x: losses.hinge(x, np.sign(HITS - 0.4)),
    "kl_divergence": lambda x: losses.kl_divergence(x, HITS),
    "ctc": lambda x: losses.ctc(f.stack([x, 2 * x, -x, x]), np.array([[1, 1], [2, 0]]), np.array([4, 3]), [2, 1]),
}


@pytest.mark.parametrize("name", OF_TIES)
def test_higher_derivatives_where_scores_are_equal_or_zero(name: str) -> None:
    count = 2 if name in ("of_shares", "mean_squared_error", "mean_absolute_error", "huber", "huber_of_a_bound") else 1
    check_branch_points(Example(OF_TIES[name], ((2, 3),) * count, (-1.5, 1.5), name), orders=2)


def test_the_second_derivative_of_huber_is_1_within_its_bound_and_0_beyond() -> None:
    x = be.array([0.0, -0.0, 0.9, -0.9, 1.1, -1.1], "float64")
    loss = losses.huber(x, be.zeros(6, "float64"), reduce="sum")
    first = optree.grad(loss, x)
    np.testing.assert_array_equal(first.asnumpyarray(), [0, 0, 0.9, -0.9, 1, -1])
    np.testing.assert_array_equal(optree.grad(f.sum(first), x).asnumpyarray(), [1, 1, 1, 1, 0, 0])


def test_those_of_torch() -> None:
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    x, y, z = torch.tensor(SCORES), torch.tensor(LABELS), torch.tensor(SHARES)
    ours, labels, shares = be.array(SCORES, dtype="float64"), be.array(LABELS), be.array(SHARES, dtype="float64")
    w = torch.tensor(FACTORS)
    pairs = [
        (functional.cross_entropy(x, y), losses.cross_entropy(ours, labels)),
        (
            functional.cross_entropy(x, y, weight=w, ignore_index=2, label_smoothing=0.1),
            losses.cross_entropy(ours, labels, FACTORS, 0.1, ignored=2),
        ),
        (functional.cross_entropy(x, z, label_smoothing=0.1), losses.cross_entropy(ours, shares, smoothing=0.1)),
        (
            functional.binary_cross_entropy_with_logits(x, z, pos_weight=w),
            losses.binary_cross_entropy(ours, shares, positive=be.array(FACTORS, dtype="float64")),
        ),
        (functional.huber_loss(x, z, delta=0.7), losses.huber(ours, shares, 0.7)),
        (functional.kl_div(x.log_softmax(1), z, reduction="batchmean"), losses.kl_divergence(ours, shares)),
        (functional.l1_loss(x, z), losses.mean_absolute_error(ours, shares)),
    ]
    for theirs, mine in pairs:
        assert mine.item() == pytest.approx(theirs.item(), rel=1e-12)


X, Y, Z = (
    TensorType("float32", (None, 10))("x"),
    TensorType("int64", (None,))("y"),
    TensorType("float32", (None, 10))("z"),
)


@pytest.mark.parametrize(
    "loss",
    [
        losses.cross_entropy(X, Y),
        losses.cross_entropy(X, Y, smoothing=0.1),
        losses.cross_entropy(X, Z, smoothing=0.1),
        losses.binary_cross_entropy(X, Z, positive=2.0),
        losses.focal(X, Z),
        losses.mean_squared_error(X, Z),
        losses.huber(X, Z),
        losses.hinge(X, Z),
        losses.kl_divergence(X, Z),
    ],
)
def test_a_loss_and_its_gradient_are_one_kernel_and_the_mean(loss: Any) -> None:
    with_gradient = optree.function([X, Y, Z], [loss, optree.grad(loss, X)], on_unused_input="ignore")
    assert len(launches(with_gradient)) <= 2


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: losses.cross_entropy(X, TensorType("int64", (None, 3))("l")), ShapeError, "not of the shape"),
        (lambda: losses.cross_entropy(X, TensorType("float32", (None, 9))("l")), ShapeError, "not of the shape"),
        (lambda: losses.cross_entropy(X, TensorType("bool", (None, 10))("l")), DTypeError, "integers or probabilities"),
        (lambda: losses.cross_entropy(X, Z, ignored=1), ParameterError, "ignored is a label"),
        (lambda: losses.cross_entropy(X, Y, weights=np.ones(3)), ShapeError, "one for each class, 10"),
        (lambda: losses.cross_entropy(X, Y, reduce="average"), ParameterError, "'mean', 'sum' or 'none'"),
        (lambda: losses.cross_entropy(TensorType("float32", (None, None))("x"), Y), ShapeError, "is to be known"),
        (lambda: losses.huber(X, Y), ShapeError, "huber: y"),
    ],
)
def test_what_does_not_fit_is_refused(make: Any, error: type[OptreeError], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


def test_narrow_losses_are_reduced_in_float32() -> None:
    x = be.full((4096, 2), 10.0, dtype="float16")
    loss = losses.cross_entropy(x, be.array(np.zeros(4096, np.int64)), reduce="sum")
    assert loss.dtype == np.float32 and loss.item() == pytest.approx(4096 * np.log(2), rel=1e-3)


def probability(scores: np.ndarray, labels: Any, blank: int) -> float:
    """Of all alignments of an example's steps, the sum of those that merge to the labels."""
    shares = np.exp(log_softmax(scores))
    total = 0.0
    for path in itertools.product(range(scores.shape[1]), repeat=len(scores)):
        merged = [x for i, x in enumerate(path) if (i == 0 or x != path[i - 1]) and x != blank]
        if merged == list(labels):
            total += float(np.prod([shares[i, x] for i, x in enumerate(path)]))
    return total


@pytest.mark.parametrize("blank", [0, 2])
def test_ctc_is_the_sum_over_all_alignments(blank: int) -> None:
    classes = [x for x in range(4) if x != blank]
    a, b, c = classes
    labels = np.array([[a, b, 9], [a, a, 9], [b, -1, 9], [7, 7, 7], [a, b, c], [a, a, a]])
    counts, steps = np.array([2, 2, 1, 0, 3, 3]), np.array([4, 4, 2, 3, 3, 4])
    scores = np.random.default_rng(blank).normal(size=(4, 6, 4)) * 2
    wanted = np.array(
        [probability(scores[:n, i], labels[i, :m], blank) for i, (n, m) in enumerate(zip(steps, counts, strict=True))]
    )
    with np.errstate(divide="ignore"):
        wanted = -np.log(wanted)
    assert np.isinf(wanted).tolist() == [False] * 5 + [True]
    t = be.array(scores, "float64")
    given = labels, steps, counts, blank
    np.testing.assert_allclose(losses.ctc(t, *given, reduce="none").asnumpyarray(), wanted, rtol=1e-12)
    assert losses.ctc(t, *given).item() == np.inf
    assert losses.ctc(t, *given, zero_infinity=True).item() == pytest.approx(wanted[:5].sum() / 6, rel=1e-12)
    # Of logarithms of probabilities the loss is the same, and what is beyond the steps of an example has no part.
    beyond = np.arange(4)[:, None] >= steps
    known = be.array(np.where(beyond[..., None], rng.normal(size=scores.shape), log_softmax(scores)), "float64")
    np.testing.assert_allclose(losses.ctc(known, *given, reduce="none").asnumpyarray(), wanted, rtol=1e-12)
    slopes = optree.grad(losses.ctc(known, *given, reduce="sum"), known).asnumpyarray()
    assert (slopes[beyond] == 0).all() and (slopes[:, 5] == 0).all() and np.isfinite(slopes).all()


def test_the_gradient_of_ctc_is_that_of_differences() -> None:
    labels = [
        be.array(x, "int64") for x in (np.array([[1, 1], [2, 1], [1, 0]]), np.array([3, 3, 2]), np.array([2, 2, 1]))
    ]
    scores = rng.normal(size=(3, 3, 3))
    x = be.array(scores, "float64")
    step = optree.function([x], losses.ctc(x, *labels, reduce="sum"))
    slopes = optree.grad(losses.ctc(x, *labels, reduce="sum"), x).asnumpyarray()
    for i in range(scores.size):
        by = np.zeros(scores.size)
        by[i] = 1e-5
        up, down = (step(scores + sign * by.reshape(scores.shape)).item() for sign in (1, -1))
        assert slopes.flat[i] == pytest.approx((up - down) / 2e-5, rel=1e-6, abs=1e-9)


def test_ctc_of_scores_that_are_infinite_or_far_apart_stays_a_number() -> None:
    scores = np.array([[[0.0, 1000.0, -np.inf]], [[0.0, -1000.0, -np.inf]], [[3.0, 2.0, -np.inf]]])
    t = be.array(scores, "float32")
    given = np.array([[1]]), [3], [1]
    loss = losses.ctc(t, *given)
    assert loss.item() == pytest.approx(-np.log(probability(scores[:, 0], [1], 0)), rel=1e-5)
    assert np.isfinite(optree.grad(loss, t).asnumpyarray()).all()
    assert losses.ctc(t, np.array([[2]]), [3], [1]).item() == np.inf
    many = be.array(rng.normal(size=(300, 1, 5)), "float32")
    value = losses.ctc(many, np.array([[1, 1, 2, 4]]), [300], [4])
    wide = losses.ctc(many.astype("float64"), np.array([[1, 1, 2, 4]]), [300], [4])
    assert value.item() == pytest.approx(wide.item(), rel=1e-5)


def test_ctc_gives_nan_of_what_names_no_class_and_refuses_what_does_not_fit() -> None:
    t = be.array(rng.normal(size=(3, 4, 3)), "float64")
    labels, lengths = np.array([[1, 2], [1, 0], [1, 3], [-1, 1]]), np.array([2, 2, 2, 2])
    each = losses.ctc(t, labels, np.array([3, 3, 3, 3]), lengths, reduce="none", check_labels=False).asnumpyarray()
    assert np.isfinite(each[0]) and np.isnan(each[1:]).all()
    each = losses.ctc(
        t, np.ones((4, 2), int), [3, 4, 3, -1], [1, 1, 3, 1], reduce="none", check_labels=False
    ).asnumpyarray()
    assert np.isfinite(each[0]) and np.isnan(each[1:]).all()
    with pytest.raises(ShapeError, match=r"scores are of shape \(steps, batch, classes\)"):
        losses.ctc(t.reshape(12, 3), labels, lengths, lengths)
    with pytest.raises(ShapeError, match="labels are of shape"):
        losses.ctc(t, labels[:2], lengths, lengths)
    with pytest.raises(ShapeError, match="label_lengths are one for each of 4 examples"):
        losses.ctc(t, labels, lengths, lengths[:3])
    with pytest.raises(DTypeError, match="input_lengths are integers"):
        losses.ctc(t, labels, lengths * 1.0, lengths)
    with pytest.raises(ParameterError, match="blank is one of the 3 classes"):
        losses.ctc(t, labels, lengths, lengths, blank=3)


@pytest.mark.parametrize("columns", [0, 1, 3])
def test_ctc_of_examples_without_labels_is_the_blanks_probability(columns: int) -> None:
    scores = rng.normal(size=(4, 2, 3))
    t = be.array(scores, "float64")
    loss = losses.ctc(t, np.ones((2, columns), np.int64), np.array([4, 3]), np.array([0, 0]), reduce="none")
    blanks = -log_softmax(scores)[..., 0]
    np.testing.assert_allclose(loss.asnumpyarray(), [blanks[:, 0].sum(), blanks[:3, 1].sum()], rtol=1e-12)
    shares = np.exp(log_softmax(scores))
    slopes = shares - [1, 0, 0]
    slopes[3, 1] = 0
    np.testing.assert_allclose(optree.grad(f.sum(loss), t).asnumpyarray(), slopes, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_ctc_of_narrow_scores_is_computed_in_float32(dtype: str) -> None:
    t = be.array(rng.normal(size=(30, 3, 5)), dtype)
    given = rng.integers(1, 5, (3, 6)), np.array([30, 25, 28]), np.array([6, 4, 0])
    loss = losses.ctc(t, *given, reduce="sum")
    exact = t.astype("float64")
    wide = losses.ctc(exact, *given, reduce="sum")
    assert loss.dtype == np.float32 and loss.item() == pytest.approx(wide.item(), rel=1e-5)
    slopes, wanted = optree.grad(loss, t), optree.grad(wide, exact)
    unit = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24}[dtype]
    found = slopes.asnumpyarray().astype("float64")
    assert slopes.dtype == t.dtype
    np.testing.assert_allclose(found, wanted.asnumpyarray(), rtol=unit, atol=4e-5)


def test_second_derivatives_of_ctc() -> None:
    x = be.array(rng.normal(size=(4, 2, 3)), "float64")

    def slopes(x: Any) -> Any:
        return optree.grad(
            losses.ctc(x, np.array([[1, 1], [2, 0]]), np.array([4, 3]), np.array([2, 1]), reduce="sum"), x
        )

    optree.check_grad(lambda x: f.sum(f.square(slopes(x))), [x])


@needs_compiler
def test_ctc_and_its_gradient_run_in_c(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = list[int]()
    in_one_call = loops.BoundLoop.run

    def noted(self: Any, *args: Any) -> Any:
        counts.append(self.length)
        return in_one_call(self, *args)

    monkeypatch.setattr(loops.BoundLoop, "run", noted)
    t = gen_backend("cpu", jit=True).array(rng.normal(size=(30, 3, 5)))
    loss = losses.ctc(t, np.ones((3, 4), np.int64), np.array([30, 25, 28]), np.array([4, 2, 0]), reduce="sum")
    value, slopes = optree.function([], [loss, optree.grad(loss, t)])()
    assert np.isfinite(value.get()) and np.isfinite(slopes.get()).all()
    assert counts == [30, 30]


def test_ctc_in_a_function_serves_all_sizes() -> None:
    x = optree.Input(TensorType("float64", (None, None, 3)))
    labels = optree.Input(TensorType("int64", (None, None)))
    steps, counts = (optree.Input(TensorType("int64", (None,))) for _ in range(2))
    step = optree.function([x, labels, steps, counts], losses.ctc(x, labels, steps, counts, reduce="none"))
    for time, given in ((3, [[1, 2], [2, 2]]), (5, [[1, 1, 2]])):
        known = np.array(given)
        size = np.full(len(given), known.shape[1])
        scores = rng.normal(size=(time, len(given), 3))
        wanted = [-np.log(max(probability(scores[:, i], row, 0), 1e-300)) for i, row in enumerate(given)]
        found = step(scores, known, np.full(len(given), time), size)
        np.testing.assert_allclose(found, wanted, rtol=1e-10)


def test_ctc_is_torchs() -> None:
    torch = pytest.importorskip("torch")
    scores = rng.normal(size=(12, 3, 6))
    labels, steps, counts = rng.integers(1, 6, (3, 5)), np.array([12, 9, 11]), np.array([5, 3, 1])
    theirs = torch.tensor(scores, requires_grad=True)
    loss = torch.nn.functional.ctc_loss(
        theirs.log_softmax(-1), *map(torch.tensor, (labels, steps, counts)), reduction="none"
    )
    loss.sum().backward()
    t = be.array(scores, "float64")
    ours = losses.ctc(t, labels, steps, counts, reduce="none")
    np.testing.assert_allclose(ours.asnumpyarray(), loss.detach().numpy(), rtol=1e-10)
    slopes = optree.grad(losses.ctc(t, labels, steps, counts, reduce="sum"), t).asnumpyarray()
    np.testing.assert_allclose(slopes, theirs.grad.numpy(), rtol=1e-8, atol=1e-12)
