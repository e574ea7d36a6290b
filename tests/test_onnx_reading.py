"""ONNX models as trees: whole models, a step of training, open sizes, and malformed files."""

from collections import Counter

import numpy as np
import pytest

import optree
from backends import gen_backend
from optree import train
from optree.errors import ModelError

onnx = pytest.importorskip("onnx")
reference = pytest.importorskip("onnx.reference")
helper, numpy_helper = onnx.helper, onnx.numpy_helper


@pytest.fixture
def be():
    return gen_backend("cpu", rng_seed=0)


def model_of(nodes, inputs, outputs, initializers=(), version=21):
    """A model of nodes, each (operator, inputs, outputs, attributes); inputs and outputs have names and shapes."""
    made = [helper.make_node(op, given, found, **attributes) for op, given, found, attributes in nodes]
    infos = [
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in given.items()]
        for given in (inputs, outputs)
    ]
    constants = [numpy_helper.from_array(np.asarray(x), name) for name, x in dict(initializers).items()]
    graph = helper.make_graph(made, "graph", *infos, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)], ir_version=10)


def drawn(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("f")


def _perceptron():
    nodes = [
        ("Gemm", ["x", "w", "b"], ["h"], {"transB": 1}),
        ("Relu", ["h"], ["r"], {}),
        ("MatMul", ["r", "v"], ["y"], {}),
    ]
    return model_of(nodes, {"x": ["n", 5]}, {"y": ["n", 3]}, {"w": drawn(8, 5), "b": drawn(8), "v": drawn(8, 3)})


def _convolutions():
    norm = {name: np.abs(drawn(4)) + i for i, name in enumerate(("scale", "shift", "mean", "variance"))}
    nodes = [
        ("Conv", ["x", "k"], ["c"], {"pads": [1, 1, 1, 1], "strides": [2, 1]}),
        ("BatchNormalization", ["c", *norm], ["d"], {}),
        ("MaxPool", ["d"], ["p"], {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("GlobalAveragePool", ["p"], ["g"], {}),
        ("Flatten", ["g"], ["y"], {}),
    ]
    return model_of(nodes, {"x": [2, 3, 9, 8]}, {"y": [2, 4]}, {"k": drawn(4, 3, 3, 3), **norm})


def _recurrent():
    nodes = [
        ("LSTM", ["x", "w", "r", "b"], ["h", "last"], {"hidden_size": 4, "direction": "bidirectional"}),
        ("Transpose", ["h"], ["t"], {"perm": [0, 2, 1, 3]}),
        ("Reshape", ["t", "shape"], ["y"], {}),
    ]
    constants = {"w": drawn(2, 16, 3), "r": drawn(2, 16, 4), "b": drawn(2, 32), "shape": np.array([0, 0, -1])}
    return model_of(nodes, {"x": [5, 2, 3]}, {"y": [5, 2, 8]}, constants)


def _attention():
    nodes = [
        ("LayerNormalization", ["x", "gain", "bias"], ["n"], {}),
        ("MatMul", ["n", "w"], ["qkv"], {}),
        ("Split", ["qkv"], ["q", "k", "v"], {"axis": -1, "num_outputs": 3}),
        ("Transpose", ["k"], ["across"], {"perm": [0, 2, 1]}),
        ("MatMul", ["q", "across"], ["scores"], {}),
        ("Shape", ["scores"], ["sizes"], {}),
        ("ConstantOfShape", ["sizes"], ["ones"], {"value": numpy_helper.from_array(np.ones(1, "f"))}),
        ("Trilu", ["ones"], ["mask"], {"upper": 0}),
        ("Cast", ["mask"], ["is_seen"], {"to": onnx.TensorProto.BOOL}),
        ("Where", ["is_seen", "scores", "least"], ["hidden"], {}),
        ("Softmax", ["hidden"], ["p"], {}),
        ("MatMul", ["p", "v"], ["a"], {}),
        ("Add", ["a", "x"], ["y"], {}),
    ]
    constants = {"w": drawn(6, 18), "gain": drawn(6), "bias": drawn(6), "least": np.float32(-1e9)}
    return model_of(nodes, {"x": [2, 4, 6]}, {"y": [2, 4, 6]}, constants)


@pytest.mark.parametrize("made", [_perceptron, _convolutions, _recurrent, _attention])
def test_models_have_the_values_of_the_reference_and_learn(be, made, tmp_path):
    proto, path = made(), tmp_path / "model.onnx"
    onnx.save(proto, path)
    model = optree.onnx.load(path, be)
    x = drawn(*(3 if n is None else n for n in model.inputs[0].shape))
    value = model(x)[0].get()
    (wanted,) = reference.ReferenceEvaluator(proto).run(None, {"x": x})
    np.testing.assert_allclose(value, wanted, rtol=1e-4, atol=1e-5)
    loss = be.mean(be.square(model.outputs[0] - 0.5), keepdims=False)
    step = optree.function(model.inputs, loss, updates=train.Adam([*model.parameters.values()], 0.01).updates(loss))
    first, *_, last = [step(x).item() for _ in range(20)]
    assert last < first


def test_names_sizes_and_known_inputs(be):
    model = optree.onnx.load(_perceptron(), be, sizes={"n": 4})
    assert model.inputs[0].shape == (4, 5) and sorted(model.parameters) == ["b", "v", "w"]
    reshape = model_of([("Reshape", ["x", "s"], ["y"], {})], {"x": [6], "s": [2]}, {"y": [2, 3]})
    reshape.graph.input[1].type.tensor_type.elem_type = onnx.TensorProto.INT64
    with pytest.raises(ModelError, match=r"node y \(Reshape, version 21\): the shape is computed when the model runs"):
        optree.onnx.load(reshape, be)
    assert optree.onnx.load(reshape, be, constants={"s": np.array([2, 3])}).outputs[0].shape == (2, 3)


def test_open_sizes_are_moved_into_shapes_and_computed_with(be):
    nodes = [
        ("Shape", ["x"], ["s"], {}),
        ("Gather", ["s", "first"], ["n"], {}),
        ("Unsqueeze", ["n", "axes"], ["m"], {}),
        ("Concat", ["m", "rest"], ["shape"], {"axis": 0}),
        ("Reshape", ["x", "shape"], ["y"], {}),
    ]
    given = {"first": np.array(0), "axes": np.array([0]), "rest": np.array([3, 2])}
    proto = model_of(nodes, {"x": ["n", 6]}, {"y": ["n", 3, 2]}, given)
    model = optree.onnx.load(proto, be)
    x = drawn(4, 6)
    np.testing.assert_array_equal(model(x)[0].get(), x.reshape(4, 3, 2))
    filled = model_of([*nodes[:1], ("ConstantOfShape", ["s"], ["k"], {})], {"x": ["n", 6]}, {"k": ["n", 6]}, given)
    np.testing.assert_array_equal(optree.onnx.load(filled, be)(x)[0].get(), np.zeros((4, 6)))
    area = [*nodes[:2], ("Mul", ["n", "n"], ["k"], {})]
    (size,) = optree.onnx.load(model_of(area, {"x": ["n", 6]}, {"k": []}, given), be)(x)
    assert size.item() == 16 and size.dtype == np.int64
    depth = [*nodes[:2], ("OneHot", ["first", "n", "rest"], ["k"], {})]
    with pytest.raises(ModelError, match=r"node k \(OneHot, version 21\): a size is open"):
        optree.onnx.load(model_of(depth, {"x": ["n", 6]}, {"k": ["a"]}, given), be)


def _unknown(**attributes):
    return model_of([("NonZero", ["x"], ["y"], attributes)], {"x": [2]}, {"y": [1]})


def test_what_cannot_be_computed_is_refused_with_the_nodes_name(be):
    cases = {
        r"node y \(NonZero, version 21\): the operand is computed when the model runs": _unknown(),
        "No Op registered|Unrecognized attribute": _unknown(wrong=1),
        r"node y \(Add, version 21\): .*do not broadcast": model_of(
            [("Add", ["x", "x2"], ["y"], {})], {"x": [2], "x2": [3]}, {"y": [2]}
        ),
        "of version 6, and 7": model_of([("Relu", ["x"], ["y"], {})], {"x": [2]}, {"y": [2]}, version=6),
        "a constant would have 1000000000000 elements": model_of(
            [("ConstantOfShape", ["s"], ["y"], {})], {}, {"y": ["n"]}, {"s": np.array([10**12])}
        ),
        "a constant would have": model_of(
            [("Tile", ["s", "s"], ["y"], {})], {}, {"y": ["n"]}, {"s": np.array([10**9])}
        ),
        "sorted|not output of any previous": model_of(
            [("Relu", ["z"], ["y"], {}), ("Relu", ["y"], ["z"], {})], {"x": [2]}, {"y": [2]}
        ),
    }
    for message, model in cases.items():
        with pytest.raises(ModelError, match=message):
            optree.onnx.load(model, be)


def test_files_of_strangers_are_refused_or_read(be, tmp_path):
    path = tmp_path / "model.onnx"
    outside = _perceptron()
    onnx.external_data_helper.set_external_data(outside.graph.initializer[0], "../secret", 0, 160)
    outside.graph.initializer[0].ClearField("raw_data")
    (tmp_path.parent / "secret").write_bytes(b"0" * 160)
    path.write_bytes(outside.SerializeToString())
    with pytest.raises(ModelError):
        optree.onnx.load(path, be)
    with pytest.raises(ModelError, match="model.onnx"):
        optree.onnx.load(tmp_path / "none" / "model.onnx", be)
    whole, rng, counts = _attention().SerializeToString(), np.random.default_rng(0), Counter()
    for number in range(1000):
        changed = bytearray(whole[: rng.integers(len(whole))] if number % 4 == 0 else whole)
        for at in rng.integers(0, max(len(changed), 1), rng.integers(1, 6)) if changed else ():
            changed[at] = rng.integers(256)
        path.write_bytes(bytes(changed))
        try:
            optree.onnx.load(path, be)
            counts["read"] += 1
        except ModelError:
            counts["refused"] += 1
    assert counts["refused"] > 100, counts
