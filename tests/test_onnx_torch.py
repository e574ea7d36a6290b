"""Models that torch exported: read, as onnxruntime runs them, and trained further."""

from pathlib import Path

import numpy as np
import pytest

import optree
from backends import gen_backend
from optree import train

onnxruntime = pytest.importorskip("onnxruntime")
FILES = sorted((Path(__file__).parent / "onnx_models").glob("*.onnx"))
SHAPES = {"mlp": (7, 6), "resnet": (3, 3, 12, 12), "lstm": (5, 3, 4), "gpt": (3, 7, 16)}


def check(path, name):
    """Compare with onnxruntime at other sizes than those of the export, and train."""
    be = gen_backend("cpu", rng_seed=0)
    x = np.random.default_rng(0).standard_normal(SHAPES[name]).astype("f")
    (wanted,) = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    model = optree.onnx.load(path, be)
    np.testing.assert_allclose(model(x)[0].get(), wanted, rtol=1e-5, atol=1e-6)
    loss = be.mean(be.square(model.outputs[0] - 1), keepdims=False)
    updates = train.Adam([*model.parameters.values()], 1e-3).updates(loss)
    step = optree.function(model.inputs, loss, updates=updates)
    first, second = (step(x).item() for _ in range(2))
    assert second < first
    return model


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_models_of_torch_are_read_trained_and_saved_again(path, tmp_path):
    model = check(path, path.stem.split("_")[0])
    again = optree.onnx.save(model.function, tmp_path / "again.onnx")
    x = np.ones(SHAPES[path.stem.split("_")[0]], "f")
    (found,) = onnxruntime.InferenceSession(again, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    np.testing.assert_allclose(found, model(x)[0].get(), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_what_the_installed_torch_exports_is_read(name, tmp_path):
    pytest.importorskip("torch", reason="torch is not installed; the files that it wrote are tested above")
    models = pytest.importorskip("harness.torch_models")
    models.export(name, tmp_path / f"{name}.onnx", dynamo=False)
    check(tmp_path / f"{name}.onnx", name)
