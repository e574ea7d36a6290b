"""Parameters by shape, the phase of a model, and weights loaded from other libraries' files."""

from dataclasses import dataclass, field

import numpy as np
import pytest
import safetensors.numpy

import optree
from backends import gen_backend
from optree import TensorType, train
from optree.errors import OperandError


@pytest.fixture
def be():
    return gen_backend("cpu", rng_seed=0)


@dataclass(frozen=True)
class Norm:
    gain: object = field(default_factory=lambda: np.ones(3))
    bias: object = 3


@dataclass
class Net:
    w: object = (5, 3)
    norm: object = field(default_factory=Norm)
    filters: object = (4, 3, 2, 2)
    scale: object = ()


def test_a_dataclass_and_a_dict_give_named_tensors(be):
    p, weights = train.parameters(be, Net())
    assert [x.name for x in weights] == ["w", "norm.gain", "norm.bias", "filters", "scale"]
    assert isinstance(p, Net) and p.norm.gain is weights[1] and p.filters.shape == (4, 3, 2, 2)
    assert (p.norm.gain.get() == 1).all() and (p.norm.bias.get() == 0).all() and p.scale.shape == ()
    assert 0 < abs(p.w.get()).max() <= (6 / 8) ** 0.5 and abs(p.filters.get()).max() <= (6 / (4 * 7)) ** 0.5
    q, weights = train.parameters(
        be, {"layers": [{"w": (2, 3), "b": 3}] * 2}, train.initializers.lecun_normal, dtype="float64"
    )
    assert [x.name for x in weights] == ["layers.0.w", "layers.0.b", "layers.1.w", "layers.1.b"]
    assert q["layers"][1]["w"].dtype == np.float64 and len(weights.arenas) == 1
    assert train.parameters(be, {"w": (4, 3, 2)}, train.initializers.normal)[0]["w"].get().any()


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"w": "wide"}, "w is a shape, an array of initial values, or a dict, list or dataclass of these, not 'wide'"),
        ({"w": (2, True)}, "w is a shape"),
        ({"w": (2, None)}, "w is a shape"),
        ({"w": Norm}, "w is a shape"),
        ({"a.b": 2, "a": {"b": 2}}, "two tensors have the name a.b"),
        ({}, "there are none"),
        (None, "a parameter is a shape"),
    ],
)
def test_what_is_no_shape_is_refused(be, shapes, message):
    with pytest.raises(OperandError, match=message):
        train.parameters(be, shapes)
    with pytest.raises(OperandError, match="of a backend"):
        train.parameters(None, {"gain": np.ones(2)})


def test_a_model_is_written_once_for_both_phases(be):
    p, weights = train.parameters(be, {"w": (4, 6), "gain": np.ones(6), "bias": 6, "out": (6, 1)})
    running, _ = train.parameters(be, {"mean": 6, "variance": np.ones(6)})

    def model(x, phase):
        h = phase.batch_norm(be.dot(x, p["w"]), p["gain"], p["bias"], running["mean"], running["variance"])
        return be.dot(phase.dropout(be.relu(h), 0.8), p["out"])

    x = TensorType("float32", (None, 4))("x")
    training, evaluation = train.Phase(be, training=True), train.Phase(be, training=False)
    loss = be.mean(be.square(model(x, training) - 1), keepdims=False)
    step = optree.function([x], loss, updates={**train.Adam(weights, 0.05).updates(loss), **training.updates})
    predict = optree.function([x], model(x, evaluation))
    assert set(training.updates) == {running["mean"], running["variance"]} and not evaluation.updates
    text = optree.debugprint(predict, "str")
    assert "rand" not in text and "mean{" not in text
    data = np.random.default_rng(0).normal(3, 2, (64, 4)).astype("f")
    for _ in range(150):
        last = step(data)
    h = data @ p["w"].get()
    np.testing.assert_allclose(running["mean"].get(), h.mean(0), atol=1)
    assert last.item() < 0.4
    h = (h - running["mean"].get()) / np.sqrt(running["variance"].get() + 1e-5) * p["gain"].get() + p["bias"].get()
    np.testing.assert_allclose(predict(data).get(), np.maximum(h, 0) @ p["out"].get(), rtol=1e-3, atol=1e-4)


def test_wrong_uses_of_a_phase_are_refused(be):
    x, mean, variance = be.ones((3, 2)), be.zeros(2, name="mean"), be.ones(2, name="variance")
    phase = train.Phase(be, training=True)
    phase.batch_norm(x, mean=mean, variance=variance)
    with pytest.raises(OperandError, match="running mean is used twice in one phase"):
        phase.batch_norm(x, mean=mean, variance=variance)
    with pytest.raises(OperandError, match="running mean is no tensor"):
        train.Phase(be, training=True).batch_norm(x)
    with pytest.raises(OperandError, match="True or False when the tree is built, not x"):
        train.Phase(be, training=TensorType("bool", ())("x"))


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "other.safetensors"
    arrays = {
        "h.0.fc.weight": np.arange(6, dtype="f").reshape(3, 2),
        "h.1.fc.weight": -np.arange(6, dtype="f").reshape(3, 2),
        "h.0.fc.bias": np.arange(3, dtype="e"),
        "h.1.fc.bias": np.ones(3, "d"),
        "rest": np.ones(1, "f"),
    }
    safetensors.numpy.save_file(arrays, path)
    return path


RULES = {"layers.*.w": ("h.*.fc.weight", (1, 0)), "layers.*.b": "h.*.fc.bias"}


def test_weights_of_other_libraries_load_by_a_mapping(be, file):
    p, weights = train.parameters(be, {"layers": [{"w": (2, 3), "b": 3}] * 2, "new": 2})
    found = train.load_weights(file, weights, RULES, strict=False)
    assert found.missing == ["new"] and found.unused == ["rest"] and len(found.loaded) == 4
    np.testing.assert_array_equal(p["layers"][1]["w"].get(), -np.arange(6).reshape(3, 2).T)
    np.testing.assert_array_equal(p["layers"][0]["b"].get(), [0, 1, 2])
    with pytest.raises(train.CheckpointError, match=r"missing \['new'\], unused \['rest'\]"):
        train.load_weights(file, weights, RULES)
    named = {"h.0.fc.bias": be.zeros(3), "rest": be.zeros(1)}
    assert train.load_weights(file, named, strict=False).loaded == ["h.0.fc.bias", "rest"]


@pytest.mark.parametrize(
    ("shape", "dtype", "mapping", "error", "message"),
    [
        (
            (2, 3),
            "float32",
            {"w": "h.0.fc.weight"},
            train.CheckpointError,
            r"\(3, 2\), and w \(2, 3\); .*transposes it",
        ),
        ((2, 4), "float32", {"w": "h.0.fc.weight"}, train.CheckpointError, r"\(3, 2\), and w \(2, 4\)$"),
        ((3, 2), "int32", {"w": "h.0.fc.weight"}, train.CheckpointError, "is of float32, and w of int32"),
        ((3, 2), "float32", {"w": ("h.0.fc.weight", (0, 2))}, train.CheckpointError, "no order of axes"),
        ((3, 2), "float32", {"W": "h.0.fc.weight"}, OperandError, "mapping's 'W' is the name of no weight"),
        ((3, 2), "float32", {"w": "h.2.fc.weight"}, train.CheckpointError, "nothing has been loaded"),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(be, file, shape, dtype, mapping, error, message):
    w, b = be.full(shape, 7, dtype=dtype, name="w"), be.full(3, 7, name="h.0.fc.bias")
    with pytest.raises(error, match=message):
        train.load_weights(file, [b, w] if error is OperandError else [w], mapping, strict=False)
    assert (w.get() == 7).all() and (b.get() == 7).all()


def test_parts_of_checkpoints_and_several_files_load(be, file, tmp_path):
    w = be.array([1.0, 2.0], name="w")
    opt = train.Adam([w], 0.1)
    opt.state["mean.w"].fill(3)
    path = train.save(tmp_path / "run.safetensors", {"net": {"weights": [w]}, "optimizer": opt, "random": be})
    w.fill(0)
    opt.state["mean.w"].fill(0)
    assert train.load_weights(path, [w], {"*": "net.weights.*"}, strict=False).loaded == ["w"]
    assert w.get().tolist() == [1, 2] and not opt.state["mean.w"].get().any()
    assert "mean.w" in train.load_weights(path, opt.state, {"*": "optimizer.*"}, strict=False).loaded
    assert opt.state["mean.w"].get().tolist() == [3, 3]
    both = {"rest": be.zeros(1), "net.weights.w": be.zeros(2)}
    assert len(train.load_weights([file, path], both, strict=False).loaded) == 2
    with pytest.raises(train.CheckpointError, match="is in an earlier file, too"):
        train.load_weights([file, file], both, strict=False)
    for wrong, message in (
        ([be.zeros(1)], "a weight has no name"),
        ([be.zeros(1, name="rest")] * 2, "two weights have the name 'rest'"),
        ({"rest": np.zeros(1)}, "rest is a tensor to be set, not array"),
        ([np.zeros(1)], "a weight has no name"),
    ):
        with pytest.raises(OperandError, match=message):
            train.load_weights(file, wrong, strict=False)
