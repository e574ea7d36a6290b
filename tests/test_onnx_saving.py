"""Functions as ONNX models: the ops of the registry and real programs, as onnxruntime runs them."""

import re

import numpy as np
import pytest

import optree
from backends import gen_backend
from optree.errors import DefinitionError, ExportError, OperandError
from optree.registry import OPS
from optree.testing.examples import examples_of, inputs_for

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

#: The ops that are not saved, or only some of whose examples are, and how many of these are refused.
REFUSED = {
    name: int(count)
    for name, count in (
        pair.split(":")
        for pair in """
argmax:2 argmax_roi:2 argmin:2 argpartition:5 avg_unpool:4 check_labels:5 conv_input:6 conv_weights:5
count_in_bins:4 cummax:6 cummin:6 cumprod:6 drawn_at:4 exclusive_prod:5 gcd:9 index_add:4 interpolate:4
is_last:2 lcm:9 left_shift:9 logb:5 max_unpool:3 nextafter:9 nms:3 partition:6 recurrence:7 right_shift:9 roi_align:2
roi_align_input:2 roi_table:6 scalb:9 scatter:3 segment_gather:4 segment_reduce:7 segment_scatter:4
window_element_input:3 window_step:3 windows:4 windows_input:3 complex:9 conjugate:5 dft:2 idft:2 irdft:2 rdft:2
""".split()
    )
}


@pytest.fixture
def be():
    return gen_backend("cpu", rng_seed=0, jit=False)


def drawn(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("f")


def check(path, function, values):
    """Save a function, and compare a call with onnxruntime's; the model."""
    optree.onnx.save(function, path)
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    found = session.run(None, {x.name: value for x, value in zip(model.graph.input, values, strict=True)})
    wanted = function(*values)
    for x, y in zip(found, wanted if isinstance(wanted, list) else [wanted], strict=True):
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
        np.testing.assert_allclose(x.astype("d"), y.get().astype("d"), rtol=2e-5, atol=2e-6)
    return model


@pytest.mark.matrix(least=12)
@pytest.mark.parametrize("name", sorted(OPS))
def test_every_op_has_the_same_values_or_is_refused(be, name, tmp_path):
    refused = []
    try:
        examples = examples_of(OPS[name])
    except DefinitionError:
        pytest.skip("it has no examples")
    for example in examples:
        values = example.draw("float32" if example.takes_floats else None)
        inputs = inputs_for(values)
        arguments = [x for x in inputs if isinstance(x, optree.Input)]
        function = optree.function(arguments, [example.tree(inputs)], on_unused_input="ignore")
        try:
            check(tmp_path / "op.onnx", function, [x for x in values if isinstance(x, np.ndarray)])
        except ExportError as error:
            assert re.search("has no operator of ONNX's|have no complex numbers", str(error))
            refused.append(str(example))
    assert len(refused) == REFUSED.get(name, 0), refused


def _dense(be, x):
    hidden = be.gelu(be.layer_norm(be.dot(x, be.array(drawn(8, 6))), be.array(drawn(6)), be.array(drawn(6))))
    return be.softmax(be.dot(hidden, be.array(drawn(6, 3))), axis=-1)


def _images(be, x):
    norm = [be.array(np.abs(drawn(4)) + i) for i in range(4)]
    x = be.conv(x, be.array(drawn(4, 3, 3, 3)), stride=2, padding=1)
    x = be.max_pool(be.relu(be.batch_norm(x, *norm, training=False).value), 2)
    return be.mean(x, axis=(2, 3), keepdims=False)


def _recurrent(be, x):
    return be.lstm(x, be.array(drawn(3, 16)), be.array(drawn(4, 16)), be.array(drawn(16)), reverse=True)


def _attention(be, x):
    heads = [np.swapaxes(np.reshape(be.matmul(x, be.array(drawn(8, 8) + i)), (2, 5, 2, 4)), 1, 2) for i in range(3)]
    return be.attention(*heads, causal=True)


def _attention_without_keys(be, x):
    """The first query has no key: its value is 0."""
    return be.attention(x, x, x, np.arange(25).reshape(5, 5) > 4)


def _tokens(be, x):
    table = be.array(drawn(10, 6))
    return be.cross_entropy(be.embedding(table, x), x % 6)


def _scaled(be, x):
    return be.sum(x, keepdims=False) * be.array(3.0, name="scale")


def _gradient(be, x):
    w = be.array(drawn(8, 3))
    return optree.grad(be.mean(be.square(be.tanh(be.dot(x, w))), keepdims=False), w)


PROGRAMS = {
    "dense": (_dense, (None, 8), drawn(4, 8)),
    "images": (_images, (None, 3, None, None), drawn(2, 3, 9, 8)),
    "recurrent": (_recurrent, (None, None, 3), drawn(5, 2, 3)),
    "attention": (_attention, (2, 5, 8), drawn(2, 5, 8)),
    "attention without keys": (_attention_without_keys, (2, 5, 8), drawn(2, 5, 8)),
    "tokens": (_tokens, (None, None), np.array([[1, 2, 3], [5, 4, 0]])),
    "scaled": (_scaled, (None, 8), drawn(4, 8)),
    "gradient": (_gradient, (None, 8), drawn(4, 8)),
    "sums": (lambda be, x: be.scan(lambda s, y: (s + y, s * y), be.zeros((3,)), x), (None, 3), drawn(4, 3)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_of_open_sizes_come_back_as_they_were(be, name, tmp_path):
    build, shape, value = PROGRAMS[name]
    x = optree.TensorType(value.dtype, shape)("x")
    found = build(be, x)
    function = optree.function([x], [found] if isinstance(found, optree.Variable) else [*found])
    model = check(tmp_path / "program.onnx", function, [value])
    sizes = model.graph.input[0].type.tensor_type.shape.dim
    assert [d.dim_value or None for d in sizes] == list(shape)
    again = optree.onnx.load(tmp_path / "program.onnx", be)
    for x, y in zip(again(value), function(value), strict=True):
        np.testing.assert_allclose(x.get(), y.get(), rtol=1e-5, atol=1e-6)


def test_inputs_outputs_and_weights_have_names(be, tmp_path):
    x = optree.TensorType("float32", (None, 2))
    a, b = x("x"), x("x")
    w = be.array([[1.0, 2.0], [3.0, 4.0]], name="w")
    unused = optree.TensorType("int32", ())("unused")
    both = optree.function([a, b, unused], [be.dot(a, w), b + 1], name="both", on_unused_input="ignore")
    graph = onnx.load(optree.onnx.save(both, tmp_path / "both.onnx")).graph
    assert [x.name for x in graph.input] == ["x", "x_1", "unused"] and graph.name == "both"
    assert [x.name for x in graph.output] == ["output0", "output1"] and graph.initializer[0].name == "w"
    one = (
        graph.input[0].type.tensor_type.shape.dim[0].dim_param,
        graph.output[0].type.tensor_type.shape.dim[0].dim_param,
    )
    assert one[0] and one[0] == one[1]


def test_what_cannot_be_saved_is_refused_before_anything_is_written(be, tmp_path):
    path, x = tmp_path / "f.onnx", optree.TensorType("float32", (3, 3))("x")
    w = be.zeros((3, 3))
    with pytest.raises(ExportError, match=r"cumprod\{axis=0\} has no operator of ONNX's, built at test_onnx_saving"):
        optree.onnx.save(optree.function([x], np.cumprod(x, 0)), path)
    images = optree.TensorType("int32", (1, 1, 4))("images")
    with pytest.raises(ExportError, match=r"conv\{.*\}, built at test_onnx_saving.*\(op_type:Conv.*int32"):
        optree.onnx.save(optree.function([images], be.conv(images, np.ones((1, 1, 2), "int32"))), path)
    with pytest.raises(ExportError, match="no tensors to update"):
        optree.onnx.save(optree.function([x], updates={w: w + x}), path)
    with pytest.raises(OperandError, match="a function is wanted"):
        optree.onnx.save(x, path)
    assert not path.exists()
