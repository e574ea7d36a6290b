"""ONNX models with graphs inside: conditions, loops of each kind, and functions of the model's own."""

import numpy as np
import pytest

import optree
from backends import gen_backend
from optree.errors import ModelError

onnx = pytest.importorskip("onnx")
reference = pytest.importorskip("onnx.reference")
FLOAT, BOOL, INT = onnx.TensorProto.FLOAT, onnx.TensorProto.BOOL, onnx.TensorProto.INT64


@pytest.fixture
def be():
    return gen_backend("cpu", rng_seed=0)


def model(text, **constants):
    made = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 20, "own" : 1]> {text}')
    made.graph.initializer.extend(onnx.numpy_helper.from_array(np.array(x), name) for name, x in constants.items())
    return made


def check(be, made, *values):
    """Compare with ONNX's own reference; the trees."""
    names = [x.name for x in made.graph.input]
    wanted = reference.ReferenceEvaluator(made).run(None, dict(zip(names, values, strict=True)))
    found = optree.onnx.load(made, be)
    for x, y in zip(found(*values), wanted, strict=True):
        np.testing.assert_allclose(x.get(), y, rtol=1e-5)
    return found


LOOP = """agraph (float[3] x) => (float[3] y, float[n, 3] all) {
    y, all = Loop (count, goes, x) <
        body = step (int64 i, bool before, float[3] s) => (bool after, float[3] t, float[3] u) {
        after = Identity (before)
        f = CastLike (i, s)
        half = Constant <value_float = 0.5> ()
        h = Mul (s, half)
        t = Add (h, f)
        u = Mul (t, x)
    }>
}"""


@pytest.mark.parametrize("count", [3, 40])  # written out, and a scan
def test_loops_of_known_steps(be, count):
    found = check(be, model(LOOP, count=np.int64(count), goes=True), np.array([1, 2, 3], "f"))
    gradient = optree.grad(be.sum(found.outputs[0], keepdims=False), found.inputs[0])
    run = optree.function(found.inputs, gradient)
    np.testing.assert_allclose(run(np.ones(3, "f")).get(), np.full(3, 0.5**count), rtol=1e-5)


def test_a_loop_that_ends_by_a_condition_on_values(be):
    made = model(
        """agraph (float[3] x) => (float[3] y) {
        y = Loop (count, goes, x) <body = step (int64 i, bool before, float[3] s) => (bool after, float[3] t) {
            t = Add (s, s)
            size = ReduceSum <keepdims = 0> (t)
            most = Constant <value_float = 100.0> ()
            after = Less (size, most)
        }>
    }""",
        count=np.int64(50),
        goes=True,
    )
    check(be, made, np.array([1, 2, 3], "f"))
    check(be, made, np.array([10, 20, 30], "f"))


def test_conditions_on_values_and_on_sizes(be):
    made = model(
        """agraph (bool c, float[3] x) => (float[3] y) {
        y = If (c) <
            then_branch = a () => (float[3] p) { p = Exp (x) },
            else_branch = b () => (float[3] q) { q = Neg (x) }>
    }"""
    )
    for condition in (True, False):
        check(be, made, np.array(condition), np.array([1, 2, 3], "f"))


def test_a_scan_with_axes_and_directions(be):
    made = model(
        """agraph (float[2] first, float[2, 4] x) => (float[2] last, float[2, 4] sums) {
        last, sums = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_input_directions = [1],
                           scan_output_axes = [1], scan_output_directions = [1],
                           body = step (float[2] s, float[2] a) => (float[2] t, float[2] u) {
            t = Add (s, a)
            u = Mul (t, t)
        }> (first, x)
    }"""
    )
    first, x = np.array([1, 2], "f"), np.arange(8, dtype="f").reshape(2, 4)
    sums = first[:, None] + np.cumsum(x[:, ::-1], 1)[:, ::-1]
    last, squares = optree.onnx.load(made, be)(first, x)  # ONNX's reference has no directions
    np.testing.assert_array_equal(last.get(), sums[:, 0])
    np.testing.assert_array_equal(squares.get(), sums**2)


def test_functions_of_the_model_and_their_attributes(be):
    made = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 20, "own" : 1]>
        agraph (float[3] x) => (float[3] y) {
            h = own.scaled <alpha = 2.0> (x)
            y = own.scaled <alpha = 3.0> (h)
        }
        <domain: "own", opset_import: ["" : 20]>
        scaled <alpha> (a) => (b) {
            factor = Constant <value_float: float = @alpha> ()
            b = Mul (a, factor)
        }"""
    )
    check(be, made, np.array([1, 2, 3], "f"))


def test_loops_that_cannot_be_trees_are_refused(be, monkeypatch):
    monkeypatch.setattr(optree.onnx.reading, "NODES", 300)
    endless = model(LOOP.replace("(count, goes, x)", "(, goes, x)"), goes=True)
    with pytest.raises(ModelError, match="more than 300 nodes"):
        optree.onnx.load(endless, be)
    grows = """agraph (float[3] x, int64 count) => (float[3] y) {
        y = Loop (count, goes, x) <body = step (int64 i, bool before, float[3] s) => (bool after, float[3] t) {
            after = Identity (before)
            t = Add (s, s)
        }>
    }"""
    with pytest.raises(ModelError, match=r"Loop, version 20\): the number of steps is computed when the model runs"):
        optree.onnx.load(model(grows, goes=True), be)
