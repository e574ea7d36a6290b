"""Recurrent networks: masks, first states and gradients against torch's; bad operands. Values are in test_registry."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from harness.homes import home

import optree
from optree import TensorType
from optree.errors import DTypeError, OperandError, ShapeError
from optree.registry import f

GATES = {"rnn": 1, "lstm": 4, "gru": 3}


@pytest.fixture
def be(home_kind: str) -> Any:
    return home(home_kind, datatype=np.float64)


def drawn(kind: str, steps: int = 5, batch: int = 3, features: int = 2, units: int = 4) -> list[np.ndarray]:
    rng, wide = np.random.RandomState(0), GATES[kind] * units
    return [
        rng.normal(size=shape) * 0.5 for shape in ((steps, batch, features), (features, wide), (units, wide), (wide,))
    ]


@pytest.mark.matrix(least=3)
@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("reverse", [False, True])
def test_masked_steps_are_as_if_they_were_not_there(be: Any, kind: str, reverse: bool) -> None:
    x, *weights = drawn(kind)
    lengths = [5, 2, 3]
    mask = np.arange(5)[:, None] < np.array(lengths)
    whole = getattr(be, kind)(be.array(x), *weights, mask=be.array(mask), reverse=reverse)
    for i, length in enumerate(lengths):
        alone = getattr(be, kind)(be.array(x[:length, i : i + 1]), *weights, reverse=reverse)
        for got, wanted in zip(whole[1:], alone[1:], strict=True):
            np.testing.assert_allclose(got.asnumpyarray()[i], wanted.asnumpyarray()[0], rtol=1e-12)
        outputs = whole.outputs.asnumpyarray()[:length, i]
        np.testing.assert_allclose(outputs, alone.outputs.asnumpyarray()[:, 0], rtol=1e-12)
    last = 0 if reverse else -1
    np.testing.assert_array_equal(whole.outputs.asnumpyarray()[last], whole.state.asnumpyarray())


@pytest.mark.parametrize("kind", GATES)
def test_two_halves_are_the_whole(be: Any, kind: str) -> None:
    x, *weights = drawn(kind, steps=6)
    whole = getattr(be, kind)(be.array(x), *weights)
    first = getattr(be, kind)(be.array(x[:4]), *weights)
    states = {"state": first.state, **({"cell": first.cell} if kind == "lstm" else {})}
    second = getattr(be, kind)(be.array(x[4:]), *weights, **states)
    for got, wanted in zip(second, whole, strict=True):
        expected = wanted.asnumpyarray()
        np.testing.assert_allclose(got.asnumpyarray(), expected[4:] if expected.ndim == 3 else expected, rtol=1e-12)


@pytest.mark.parametrize("kind", GATES)
def test_truncated_derivatives_are_those_of_the_last_steps(be: Any, kind: str) -> None:
    x, *weights = drawn(kind, steps=6)
    operands = [be.array(y) for y in weights]
    first = getattr(be, kind)(be.array(x[:4]), *operands)
    states = {name: be.array(y.asnumpyarray()) for name, y in first._asdict().items() if name != "outputs"}
    trees = [
        getattr(be, kind)(be.array(x), *operands, truncate=2),
        getattr(be, kind)(be.array(x[4:]), *operands, **states),
    ]
    gradients = [optree.grad(f.sum(f.square(y.outputs)), operands[1]).asnumpyarray() for y in trees]
    np.testing.assert_allclose(*gradients, rtol=1e-10)


@pytest.mark.parametrize("kind", GATES)
def test_open_sizes(be: Any, kind: str) -> None:
    x, *weights = drawn(kind)
    sequence = TensorType("float64", (None, None, 2))("x")
    run = optree.function([sequence], getattr(f, kind)(sequence, *map(be.array, weights)).outputs)
    for steps, batch in ((5, 3), (2, 1), (4, 2)):
        wanted = getattr(be, kind)(be.array(x[:steps, :batch]), *weights).outputs.asnumpyarray()
        np.testing.assert_allclose(run(x[:steps, :batch]).get(), wanted, rtol=1e-12)


@pytest.mark.parametrize("activation", ["relu", "sig"])
def test_activations(be: Any, activation: str) -> None:
    x, w, u, b = drawn("rnn", steps=1)
    apply = {"relu": lambda y: np.maximum(y, 0), "sig": lambda y: 1 / (1 + np.exp(-y))}[activation]
    h = np.random.RandomState(1).normal(size=(3, 4))
    found = be.rnn(be.array(x), w, u, b, h, activation=activation)
    np.testing.assert_allclose(found.state.asnumpyarray(), apply(x[0] @ w + h @ u + b), rtol=1e-12)


@pytest.mark.parametrize("kind", GATES)
def test_torch_agrees(kind: str) -> None:
    torch: Any = pytest.importorskip("torch")
    be = home("cpu", datatype=np.float64)
    x, w, u, b = drawn(kind)
    extra, state = np.random.RandomState(2).normal(size=4), np.random.RandomState(3).normal(size=(3, 4))
    net = getattr(torch.nn, kind.upper())(2, 4, dtype=torch.float64)
    parameters = [net.weight_ih_l0, net.weight_hh_l0, net.bias_ih_l0]
    with torch.no_grad():
        net.bias_hh_l0[:] = torch.tensor(np.concatenate([np.zeros(8), extra])) if kind == "gru" else 0
        for p, value in zip(parameters, (w.T, u.T, b), strict=True):
            p[:] = torch.tensor(value)
    their_x, begin = torch.tensor(x, requires_grad=True), torch.tensor(state)[None]
    theirs, _ = net(their_x, (begin, begin * 0.5) if kind == "lstm" else begin)
    operands = [be.array(y) for y in (x, w, u, b)]
    more = {"lstm": {"cell": state * 0.5}, "gru": {"recurrent_bias": extra}}.get(kind, {})
    ours = getattr(be, kind)(*operands, state=state, **more).outputs
    np.testing.assert_allclose(ours.asnumpyarray(), theirs.detach().numpy(), rtol=1e-10)
    weights = np.random.RandomState(4).normal(size=ours.shape)
    wanted = torch.autograd.grad((theirs * torch.tensor(weights)).sum(), [their_x, *parameters])
    for got, want in zip(be.evaluate(optree.grad(f.sum(ours * weights), operands)), wanted, strict=True):
        expected = want.numpy().T if want.ndim == 2 else want.numpy()
        np.testing.assert_allclose(got.get(), expected, rtol=1e-8, atol=1e-11)


def test_what_does_not_fit_is_named(be: Any) -> None:
    x, w, u, b = (be.array(y, name=name) for y, name in zip(drawn("lstm"), "xwub", strict=True))
    with pytest.raises(ShapeError, match=r"lstm: w is u \(4, 16\).*x \(5, 3, 2\).*4 units.*\(2, 16\)"):
        be.lstm(x, u, u)
    with pytest.raises(ShapeError, match=r"gru: u is u \(4, 16\).*\(4, 12\)"):
        be.gru(x, be.ones((2, 12)), u)
    with pytest.raises(ShapeError, match=r"lstm: b is w \(2, 16\).*\(16,\)"):
        be.lstm(x, w, u, w)
    with pytest.raises(ShapeError, match=r"lstm: the mask is chosen \(3, 5\).*\(5, 3\)"):
        be.lstm(x, w, u, b, mask=be.array(np.ones((3, 5), bool), name="chosen"))
    with pytest.raises(DTypeError, match=r"the mask chosen .* is no condition"):
        be.lstm(x, w, u, b, mask=be.ones((5, 3), name="chosen"))
    with pytest.raises(ShapeError, match=r"lstm: cell is w \(2, 16\).*\(3, 4\)"):
        be.lstm(x, w, u, b, cell=w)
    with pytest.raises(ShapeError, match=r"lstm: w \(2, 16\).*no sequence of shape \(batch, steps, features\)"):
        be.lstm(w, w, u, batch_first=True)
    with pytest.raises(ShapeError, match=r"rnn: u is b \(16,\).*\(units, 1 \* units\)"):
        be.rnn(x, w, b)
    with pytest.raises(OperandError, match="activation is one of tanh, relu, sig, not 'gelu'"):
        be.rnn(x, be.ones((2, 4)), be.ones((4, 4)), activation="gelu")
    for wrong in (0, 1.5):
        with pytest.raises(OperandError, match=f"^lstm: truncate is an integer of 1 or more, not {wrong}"):
            be.lstm(x, w, u, truncate=wrong)
