"""Convolutions on a GPU by our own kernels, run by the emulation, against the op's own value."""

from __future__ import annotations

import sys
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from harness.emulated import emulated_cupy
from harness.fake_pycuda import FakePyCUDA
from harness.homes import stand_in
from harness.nvrtc import compile_all, needs_nvrtc
from harness.windowed import CONVOLUTIONS

from backends import gen_backend
from backends.gpu.runtime import KernelHost
from optree import debugprint, function, grad
from optree.errors import CompilerError
from optree.op.traits import ElementwiseOperator, NonDifferentiableOperator, UnaryOperator


@pytest.fixture(scope="module")
def gpu() -> Any:
    return stand_in(emulated_cupy(), jit=True, graphs=False)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_a_convolution_and_its_derivatives_by_kernels(case: str, dtype: str, gpu: Any) -> None:
    shape, filters, props = CONVOLUTIONS[case]
    rng = np.random.RandomState(0)
    x, w = (rng.normal(size=s).astype(dtype) for s in (shape, filters))
    tensors = [gpu.array(a, dtype) for a in (x, w)]
    node = gpu.conv(*tensors, **props)
    op, before = node.op, gpu.kernels.counts.launches
    wide = [a.astype("float64") for a in (x, w)]
    wanted = op.value(*wide)
    delta = rng.normal(size=wanted.shape).astype(dtype)
    tensors.append(gpu.array(delta, dtype))
    wide.append(delta.astype("float64"))
    results = {
        "value": (node, wanted),
        "images": (op.by_input()(tensors[2], tensors[1], tensors[0]), op.by_input().value(wide[2], wide[1], x)),
        "weights": (op.by_weights()(tensors[0], tensors[2], tensors[1]), op.by_weights().value(wide[0], wide[2], w)),
    }
    for what, (tree, expected) in results.items():
        got = tree.asnumpyarray()
        assert got.dtype == dtype
        error = np.abs(got.astype("float64") - expected).max() / np.abs(expected).max()
        assert error < {"float64": 1e-12, "float32": 1e-5, "float16": 2e-3}[dtype], f"{what}: {error}"
    assert gpu.kernels.counts.launches >= before + 3
    assert gpu.stats()["host_calls"] == 0


def test_sums_by_weights_are_split_and_the_same_each_time(gpu: Any) -> None:
    rng = np.random.RandomState(0)
    x, delta, w = (rng.normal(size=s).astype("float32") for s in ((3, 2, 30, 30), (3, 3, 28, 28), (3, 2, 3, 3)))
    tensors = [gpu.array(a) for a in (x, delta, w)]
    before = gpu.kernels.counts.launches
    first, second = (gpu.conv_weights(*tensors).asnumpyarray() for _ in range(2))
    assert gpu.kernels.counts.launches == before + 4, "products, and the sums of their parts"
    assert (first == second).all()
    wanted = gpu.conv_weights(*tensors).op.value(*(a.astype("float64") for a in (x, delta, w)))
    np.testing.assert_allclose(first, wanted, rtol=1e-4, atol=1e-3)


def test_a_small_network_learns_in_one_cuda_graph() -> None:
    gpu = stand_in(emulated_cupy(), jit=True)
    rng = np.random.RandomState(0)
    x = gpu.array(rng.normal(size=(2, 1, 6, 6)), name="x")
    w = gpu.array(rng.normal(size=(2, 1, 3, 3)), name="w")
    y = gpu.max_pool(gpu.relu(gpu.conv(x, w, padding=1)), 2)
    cost = gpu.mean(gpu.square(y - 1))
    step = function([], cost, updates={w: w - 0.1 * grad(cost, w)})
    losses = [float(step().item()) for _ in range(5)]
    assert losses[-1] < losses[0]
    assert gpu.stats()["graphs"]["replays"] >= 3
    assert gpu.stats()["host_calls"] == 0


def _per_channel(rng: np.random.RandomState, node: Any, layout: str, dtype: Any) -> np.ndarray:
    shape = [n if axis == "C" else 1 for n, axis in zip(node.shape, layout, strict=True)]
    return rng.normal(size=shape).astype(dtype)


def _launched(gpu: Any, run: Any) -> tuple[Any, int]:
    """The result of a call, and the kernels that it has launched."""
    before = gpu.kernels.counts.launches
    result = run()
    return result, gpu.kernels.counts.launches - before


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_an_epilogue_is_computed_by_the_convolutions_kernel(case: str, dtype: str, gpu: Any) -> None:
    """Bias, scale, residual, activation and mask, with and without the convolution's own value."""
    shape, filters, props = CONVOLUTIONS[case]
    rng = np.random.RandomState(0)
    x, w = (rng.normal(size=s).astype(dtype) for s in (shape, filters))
    conv = gpu.conv(gpu.array(x, dtype), gpu.array(w, dtype), **props)
    value = conv.op.value(x.astype("float64"), w.astype("float64"))
    layout = props.get("layout") or "NC" + "DHW"[5 - len(shape) :]
    scale, bias = (_per_channel(rng, conv, layout, dtype) for _ in "sb")
    other = rng.normal(size=value.shape).astype(dtype)
    s, b, r = (gpu.array(a, dtype, name=name) for a, name in ((scale, "s"), (bias, "b"), (other, "r")))
    made = conv * s * 0.5 + b + r
    trees = [gpu.relu(made), gpu.tanh(conv), made > 0, conv]
    wide = value * scale.astype("float64") * 0.5 + bias + other
    wanted = [np.maximum(wide, 0), np.tanh(value), wide > 0, value]
    bound = {"float64": 1e-12, "float32": 1e-5, "float16": 6e-3}[dtype]
    for chosen in ([0], [0, 2], [1], [0, 1, 2, 3]):
        computed = function([], [trees[i] for i in chosen])
        results, kernels = _launched(gpu, computed)
        assert kernels == 1
        for i, result in zip(chosen, results, strict=True):
            got = result.get()
            assert got.dtype == (bool if i == 2 else dtype)
            if i == 2:
                clear = np.abs(wide) > bound * np.abs(wide).max()
                np.testing.assert_array_equal(got[clear], wanted[i][clear])
            else:
                error = np.abs(got.astype("float64") - wanted[i]).max() / np.abs(wanted[i]).max()
                assert error < bound, f"{i}: {error}"


def test_what_is_after_derivatives_is_computed_by_their_kernels(gpu: Any) -> None:
    rng = np.random.RandomState(0)
    for case, (shape, filters, props) in CONVOLUTIONS.items():
        x, w, m = (gpu.array(rng.normal(size=s), "float64") for s in (shape, filters, shape))
        op = gpu.conv(x, w, **props).op
        delta = gpu.array(rng.normal(size=op.output_shape(shape, filters)), "float64")
        masked = op.by_input()(delta, w, x) * (m > 0)
        got, kernels = _launched(gpu, masked.asnumpyarray)
        assert kernels == 1, case
        np.testing.assert_allclose(got, op.by_input().value(delta.get(), w.get(), x.get()) * (m.get() > 0), atol=1e-11)
        by_weights = op.by_weights().value(x.get(), delta.get(), w.get())
        wanted = w.get() - 0.1 * by_weights
        _, kernels = _launched(gpu, function([], updates={w: w - 0.1 * op.by_weights()(x, delta, w)}))
        assert kernels == 1, case
        np.testing.assert_allclose(w.get(), wanted, atol=1e-11, err_msg=case)


def test_sums_that_are_split_have_their_epilogue_after_the_parts(gpu: Any) -> None:
    """Momentum, in the memory of weights and velocity."""
    rng = np.random.RandomState(0)
    x, delta, w, v = (rng.normal(size=s) for s in ((3, 2, 30, 30), (3, 3, 28, 28), (3, 2, 3, 3), (3, 2, 3, 3)))
    tensors = [gpu.array(a) for a in (x, delta, w, v)]
    velocity = 0.9 * tensors[3] - 0.01 * gpu.conv_weights(*tensors[:3])
    step = function([], updates={tensors[3]: velocity, tensors[2]: tensors[2] + velocity})
    _, kernels = _launched(gpu, step)
    assert kernels == 2
    wanted = 0.9 * v - 0.01 * gpu.conv_weights(*tensors[:3]).op.value(x, delta, w)
    np.testing.assert_allclose(tensors[3].get(), wanted, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(tensors[2].get(), w + wanted, rtol=1e-4, atol=1e-4)


def test_an_epilogue_reads_its_operands_before_they_are_written(gpu: Any) -> None:
    rng = np.random.RandomState(0)
    x, w = rng.normal(size=(3, 5, 10, 10)), rng.normal(size=(5, 5, 3, 3))
    for target in ("images", "addend", "strided", "numbers"):
        tx, tw, h = gpu.array(x, "float64", name="x"), gpu.array(w, "float64"), gpu.array(x * 2, "float64", name="h")
        value = gpu.conv(tx, tw, padding=1).op.value(x, w)
        out = {"images": tx, "addend": h}.get(target, gpu.zeros((3, 5, 20, 10), "float64"))
        view = out[:, :, ::-2] if target == "strided" else out if target != "numbers" else out[:, :, :10]
        for number in (0.5, 2.0):
            tx[:], h[:] = x, x * 2
            view[:] = gpu.relu(gpu.conv(tx, tw, padding=1) * number + h)
            np.testing.assert_allclose(view.asnumpyarray(), np.maximum(value * number + x * 2, 0), atol=1e-11)


def test_draws_of_an_epilogue_are_those_of_other_kernels() -> None:
    rng = np.random.RandomState(0)
    x, w = rng.normal(size=(2, 3, 9, 7)), rng.normal(size=(5, 3, 3, 3))
    gpu, cpu = stand_in(emulated_cupy(), jit=True, graphs=False, rng_seed=3), gen_backend("cpu", jit=False, rng_seed=3)
    found = []
    for be in (gpu, cpu):
        conv = be.conv(be.array(x, "float64"), be.array(w, "float64"))
        found.append(be.relu(conv) * be.dropout_mask(conv.shape, 0.5))
        assert "after conv{" in debugprint(found[0], stage="plan", file="str")
    np.testing.assert_allclose(found[0].asnumpyarray(), found[1].asnumpyarray(), rtol=1e-9)


def test_values_of_which_only_the_shape_is_read_are_not_stored(gpu: Any) -> None:
    """The derivative by images needs the shape of its images, and not of the convolution that made them."""
    rng = np.random.RandomState(0)
    values = [rng.normal(size=s) for s in ((2, 3, 8, 8), (4, 3, 3, 3), (4, 1, 1), (2, 4, 3, 3))]
    x, w, b, u = (gpu.array(v, "float64", name=f"v{i}") for i, v in enumerate(values))
    y = gpu.relu(gpu.conv(gpu.relu(gpu.conv(x, w, padding=1) + b), u))
    step = function([], [gpu.sum(y), *grad(gpu.sum(y), [w, b, u])])
    plan = debugprint(step, stage="plan", file="str").splitlines()
    (first,) = (line for line in plan if "after conv{" in line and "padding=((1, 1)" in line)
    assert first.count(" in new memory") == 2, "the activation and its mask"
    cpu = gen_backend("cpu", jit=False)
    x, w, b, u = (cpu.array(v, "float64") for v in values)
    y = cpu.relu(cpu.conv(cpu.relu(cpu.conv(x, w, padding=1) + b), u))
    for got, wanted in zip(step(), [cpu.sum(y), *grad(cpu.sum(y), [w, b, u])], strict=True):
        np.testing.assert_allclose(got.get(), wanted.asnumpyarray(), rtol=1e-9)


def test_gradients_and_second_gradients_are_those_without_kernels(gpu: Any) -> None:
    rng = np.random.RandomState(0)
    values = [rng.normal(size=s) for s in ((2, 3, 7, 7), (4, 3, 3, 3), (4, 1, 1), (2, 4, 3, 3), (2, 1, 1))]
    found = []
    for be in (gpu, gen_backend("cpu", jit=False)):
        x, *weights = (be.array(v, "float64", name=f"v{i}") for i, v in enumerate(values))
        w, b, u, c = weights
        y = be.tanh(be.conv(be.tanh(be.conv(x, w, padding=1, stride=2) + b), u, padding=1) + c)
        cost = be.sum(y * y)
        first = grad(cost, weights)
        second = grad(sum((be.sum(g * g) for g in first), start=be.sum(y)), weights)
        found.append([r.asnumpyarray() for r in function([], [cost, *first, *second])()])
    for ours, wanted in zip(*found, strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-9, atol=1e-9)


def test_arrays_that_kernels_do_not_take_are_computed_without_an_epilogue(gpu: Any) -> None:
    x, w = gpu.ones((2, 0, 5, 5)), gpu.ones((3, 0, 3, 3))
    assert (gpu.relu(gpu.conv(x, w) + 2).asnumpyarray() == 2).all()
    none = gpu.relu(gpu.conv(gpu.ones((0, 2, 5, 5)), gpu.ones((3, 2, 3, 3))) + 2).asnumpyarray()
    assert none.shape == (0, 3, 3, 3)


@pytest.mark.usefixtures("folder")
def test_an_epilogue_that_does_not_compile_names_the_users_op(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Mystery(NonDifferentiableOperator, UnaryOperator, ElementwiseOperator):
        numpy = np.tanh
        kernel = "no_such_function({0})"

    def refuse(host: KernelHost, source: str, options: Any) -> bytes:
        raise CompilerError(f"no_such_function is in it: {'no_such_function' in source}")

    monkeypatch.setattr(KernelHost, "_compiled", refuse)
    x, w = gpu.ones((1, 1, 5, 5)), gpu.ones((1, 1, 3, 3))
    with pytest.raises(CompilerError, match="in it: True") as raised:
        Mystery()(gpu.conv(x, w)).asnumpyarray()
    assert any("Mystery" in note for note in raised.value.__notes__)


def test_the_plan_says_what_computes_an_epilogue(gpu: Any) -> None:
    tree = gpu.relu(gpu.conv(gpu.ones((1, 1, 5, 5)), gpu.ones((1, 1, 3, 3))) + 1)
    plan = debugprint(tree, stage="plan", file="str")
    assert "after conv{" in plan
    assert "by CUDA kernels" in plan


@needs_nvrtc
def test_kernels_with_and_without_epilogues_compile_and_spill_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two blocks of 256 threads are resident on a multiprocessor."""
    found: list[str] = []

    def load(host: KernelHost, source: str, names: Any) -> Any:
        found.append(source)
        return names

    monkeypatch.setattr(KernelHost, "load", load)
    monkeypatch.setattr(KernelHost, "bound", lambda *_: lambda: None)
    gpu = stand_in(emulated_cupy(), jit=True, graphs=False)
    for dtype in ("float32", "float64", "bfloat16"):
        x, w, b = (gpu.ones(shape, dtype) for shape in ((1, 2, 5, 5), (3, 2, 3, 3), (3, 1, 1)))
        m, d = (gpu.ones((1, 3, 3, 3), dtype) for _ in "md")
        conv, by_input, by_weights = gpu.conv(x, w), gpu.conv_input(d, w, x), gpu.conv_weights(x, d, w)
        function([], [conv, by_input, by_weights])()
        function([], [gpu.tanh(conv * b + m), conv])()
        function([], [by_input * (x > 0), w - by_weights * 0.1, gpu.abs(w - by_weights)])()
    assert len(found) == 18
    for compiled in compile_all(found, "sm_90"):
        for usage in compiled.usage.values():
            assert usage.spill_stores == usage.spill_loads == 0
            assert usage.registers <= 128


#: Programs whose kernels take arguments of 1, 4 and 8 bytes, each of an image.
PROGRAMS = {
    "convolution": lambda be, x: be.conv(x, be.array(np.ones((3, 2, 3, 3)), x.dtype)),
    "its epilogue": lambda be, x: be.relu(be.conv(x, be.array(np.ones((3, 2, 3, 3)), x.dtype)) * np.float32(0.5) + 1),
    "its derivatives": lambda be, x: grad(be.sum(be.square(be.conv(x, be.array(np.ones((3, 2, 3, 3)), x.dtype)))), x),
    "number of 4 bytes": lambda be, x: be.exp(x * 0.125 - 2.0) + 3,
    "number of 1 byte": lambda be, x: be.cast(be.clip(x, 0, 5), "int8") * np.int8(3) + np.int8(-7),
    "sums": lambda be, x: be.sum(x * 2.5, axis=(2, 3)) / 3,
    "softmax": lambda be, x: be.softmax(x * 0.5, axis=-1),
    "pool": lambda be, x: be.max_pool(x, 2),
    "resize": lambda be, x: be.resize(x, (5, 7)),
    "dropout": lambda be, x: be.sum(be.where(x > 1, x, 0.25)),
}


@pytest.fixture(scope="module")
def by_pycuda() -> Any:
    cupy = emulated_cupy()
    with patch.dict(sys.modules, FakePyCUDA(cupy).modules):
        return stand_in(cupy, jit=True, launcher="pycuda")


@pytest.mark.parametrize("program", PROGRAMS)
def test_pycuda_is_given_each_argument_in_its_parameters_size(gpu: Any, by_pycuda: Any, program: str) -> None:
    """Else the driver reads those behind it at wrong offsets."""
    values = np.random.RandomState(0).normal(size=(2, 2, 8, 9)).astype(np.float32)
    before = by_pycuda.kernels.counts.launches
    found, expected = (PROGRAMS[program](be, be.array(values)).asnumpyarray() for be in (by_pycuda, gpu))
    np.testing.assert_array_equal(found, expected)
    assert by_pycuda.kernels.counts.launches > before
