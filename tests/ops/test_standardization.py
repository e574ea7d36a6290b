"""Normalisations of networks, and rows of tables by ids: kernels, running statistics, errors, a second opinion."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from harness.homes import home

import optree
from optree import TensorType
from optree.errors import AxisError, DTypeError, OperandError, ShapeError
from optree.registry import f


@pytest.fixture
def be(home_kind: str) -> Any:
    return home(home_kind, datatype=np.float64)


def _kernels(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("kernel")]


def test_a_training_step_of_batch_norm_is_one_kernel() -> None:
    be = home("cpu", jit=False)
    x, delta = (be.ones((4, 3, 5, 5), name=name) for name in ("x", "delta"))
    gain, bias, mean, variance = (be.ones(3, name=name) for name in ("gain", "bias", "mean", "variance"))
    value, new_mean, new_variance = be.batch_norm(x, gain, bias, mean, variance)
    gradients = optree.grad(be.sum(value * delta), [x, gain, bias])
    step = optree.function([], [value, *gradients], updates={mean: new_mean, variance: new_variance})
    assert _kernels(optree.debugprint(step, stage="fusion", file="str")) == [
        "kernel, outer axes (3), inner axes (4, 5, 5)"
    ]


def test_layer_norm_forward_and_backward_is_a_kernel_and_one_for_its_gain() -> None:
    be = home("cpu", jit=False)
    x, delta, gain, bias = be.ones((6, 5)), be.ones((6, 5)), be.ones(5), be.ones(5)
    value = be.layer_norm(x, gain, bias)
    step = optree.function([], [value, *optree.grad(be.sum(value * delta), [x, gain, bias])])
    text = optree.debugprint(step, stage="fusion", file="str")
    assert len(_kernels(text)) == 2
    assert "stage 4" not in text, "mean, variance, both sums of the gradient, the value: four passes over a row"


def test_running_statistics_follow_the_batches(be: Any) -> None:
    rng = np.random.RandomState(0)
    batches = rng.normal(3.0, 2.0, (20, 50, 4))
    mean, variance, batch = be.zeros(4, name="mean"), be.ones(4, name="variance"), TensorType("float64", (None, 4))("x")
    value, *new = be.batch_norm(batch, mean=mean, variance=variance, momentum=0.2)
    step = optree.function([batch], value, updates=dict(zip((mean, variance), new, strict=True)))
    expected_mean, expected_variance = np.zeros(4), np.ones(4)
    for x in batches:
        got = step(x).get()
        np.testing.assert_allclose(got, (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5), rtol=1e-10)
        expected_mean = 0.8 * expected_mean + 0.2 * x.mean(0)
        expected_variance = 0.8 * expected_variance + 0.2 * x.var(0, ddof=1)
    np.testing.assert_allclose(mean.get(), expected_mean, rtol=1e-10)
    np.testing.assert_allclose(variance.get(), expected_variance, rtol=1e-10)
    still = be.batch_norm(be.array(batches[0]), mean=mean, variance=variance, training=False)
    assert still.mean is mean and still.variance is variance


def test_group_norm_of_an_unknown_batch(be: Any) -> None:
    x = TensorType("float64", (None, 4, 3))("x")
    run = optree.function([x], be.group_norm(x, 2))
    given = np.random.RandomState(0).normal(size=(5, 4, 3))
    parts = given.reshape(5, 2, 6)
    expected = (parts - parts.mean(2, keepdims=True)) / np.sqrt(parts.var(2, keepdims=True) + 1e-5)
    np.testing.assert_allclose(run(given).get(), expected.reshape(5, 4, 3), rtol=1e-10)


def test_what_does_not_fit_is_named(be: Any) -> None:
    x, small = be.ones((2, 6, 3), name="x"), be.ones(5, name="small")
    with pytest.raises(ShapeError, match=r"batch_norm: gain is small \(5,\).*x \(2, 6, 3\).*\(6,\)"):
        be.batch_norm(x, small)
    with pytest.raises(ShapeError, match=r"layer_norm: bias is small \(5,\).*\(3,\)"):
        be.layer_norm(x, bias=small)
    with pytest.raises(ShapeError, match=r"rms_norm: gain is small \(5,\)"):
        be.rms_norm(x, small)
    with pytest.raises(ShapeError, match="the 6 channels of x.*4 groups"):
        be.group_norm(x, 4)
    with pytest.raises(OperandError, match="groups is an integer of 1 or more, not 0"):
        be.group_norm(x, 0)
    with pytest.raises(ShapeError, match="axis 0 of x.*counts its samples"):
        be.group_norm(x, 2, axis=0)
    with pytest.raises(ShapeError, match="more than one size"):
        be.group_norm(TensorType("float64", (None, 6, None))("open"), 2)
    with pytest.raises(ShapeError, match="no axes but those of samples and channels"):
        be.instance_norm(be.ones((2, 3)))
    with pytest.raises(OperandError, match="running variance is missing"):
        be.batch_norm(x, mean=be.ones(6))
    with pytest.raises(OperandError, match="running mean is missing"):
        be.batch_norm(x, training=False)
    with pytest.raises(OperandError, match="epsilon is a number of 0 or more, not -1"):
        be.standardize(x, -1, -1)
    for name, given in (
        ("batch_norm", {}),
        ("batch_norm", {"mean": be.ones(6), "variance": be.ones(6), "training": False}),
        ("layer_norm", {}),
        ("rms_norm", {}),
        ("instance_norm", {}),
        ("group_norm", {"groups": 2}),
    ):
        for wrong in (-1, float("nan"), "small"):
            with pytest.raises(OperandError, match=f"^{name}: epsilon is a number of 0 or more, not {wrong!r}"):
                getattr(be, name)(x, **given, epsilon=wrong)
    with pytest.raises(OperandError, match="^batch_norm: over is a group of processes, .* not 3"):
        be.batch_norm(x, over=3)
    with pytest.raises(OperandError, match="^batch_norm: momentum is a number of 0 or more, not 'much'"):
        be.batch_norm(x, mean=be.ones(6), variance=be.ones(6), momentum="much")


def test_ids_outside_the_vocabulary_are_named(be: Any) -> None:
    table, out = be.ones((5, 3), name="table"), be.zeros((2, 3), name="out")
    for wrong in (5, -1):
        with pytest.raises(
            AxisError, match=rf"embedding: the id {wrong} at row 1 is outside the vocabulary.*\(5, 3\) are 0 to 4"
        ):
            out[:] = be.embedding(table, [4, wrong])
    assert not out.get().any()
    with pytest.raises(DTypeError, match="embedding: ids are integers, not .*float64"):
        be.embedding(table, be.ones(2))
    with pytest.raises(ShapeError, match="embedding: number.*has no rows"):
        be.embedding(be.array(1.0, name="number"), [0])


def test_the_gradient_of_equal_ids_adds_up_the_same_each_time(be: Any) -> None:
    rng = np.random.RandomState(0)
    ids, deltas = rng.randint(7, size=(40, 5)), rng.normal(size=(40, 5, 3))
    table = be.zeros((9, 3), name="table")
    gradient = optree.grad(be.sum(be.embedding(table, ids) * deltas), table)
    expected = np.zeros((9, 3))
    for row, delta in zip(ids.ravel(), deltas.reshape(-1, 3), strict=True):
        expected[row] += delta
    first = gradient.asnumpyarray()
    np.testing.assert_allclose(first, expected, rtol=1e-12, atol=1e-12)
    assert all(np.array_equal(first, gradient.asnumpyarray()) for _ in range(3))


def test_torch_agrees() -> None:
    torch: Any = pytest.importorskip("torch")
    be, rng = home("cpu", datatype=np.float64), np.random.RandomState(0)
    x, gain, bias = rng.normal(size=(3, 4, 5)), rng.normal(size=4), rng.normal(size=4)
    last = rng.normal(size=5)
    theirs = [torch.tensor(a, requires_grad=True) for a in (x, gain, bias, last)]
    ours = [be.array(a) for a in (x, gain, bias, last)]
    functional = torch.nn.functional
    pairs = [
        (functional.batch_norm(theirs[0], None, None, theirs[1], theirs[2], True), f.batch_norm(*ours[:3])[0]),
        (functional.instance_norm(theirs[0], None, None, theirs[1], theirs[2]), f.instance_norm(*ours[:3])),
        (functional.group_norm(theirs[0], 2, theirs[1], theirs[2]), f.group_norm(ours[0], 2, *ours[1:3])),
        (functional.layer_norm(theirs[0], (5,), theirs[3]), f.layer_norm(ours[0], ours[3])),
        (functional.rms_norm(theirs[0], (5,), theirs[3], 1e-5), f.rms_norm(ours[0], ours[3])),
    ]
    weights = rng.normal(size=x.shape)
    for their, our in pairs:
        np.testing.assert_allclose(our.asnumpyarray(), their.detach().numpy(), rtol=1e-9, atol=1e-12)
        (expected,) = torch.autograd.grad((their * torch.tensor(weights)).sum(), theirs[:1])
        got = optree.grad(f.sum(our * weights), ours[0]).asnumpyarray()
        np.testing.assert_allclose(got, expected.numpy(), rtol=1e-8, atol=1e-11)
