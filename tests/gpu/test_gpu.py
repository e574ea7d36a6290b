"""The GPU backend's own code, on a stand-in for CuPy (`harness.fake_cupy`): no GPU is needed, and no CuPy.

Every op's promises and value are tested so by `test_registry.py`, and random
trees by `test_random_trees.py`; ``--home gpu`` runs these on a real device.
"""

from __future__ import annotations

import gc
import json
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from harness import cupy_namespace
from harness.each import for_each
from harness.fake_cupy import DATA, fake_cupy
from harness.homes import stand_in
from harness.messages import message_of
from harness.op_examples import has_own_examples

from backends import gen_backend
from optree import Op, OpTreeNode, TensorType, debugprint, function, grad, jit
from optree.arrays import is_portable, portable
from optree.errors import (
    AxisError,
    BackendError,
    DefinitionError,
    DeviceMemoryError,
    DTypeError,
    OperandError,
)
from optree.op.apply import Apply
from optree.op.traits import CompositeOperator, ElementwiseOperator, UnaryOperator
from optree.ops.factorisation import LapackOperator
from optree.registry import OPS
from optree.testing.examples import examples_of, inputs_for

VECTOR = TensorType("float64", (None,))

PORTABLE = [name for name, op in OPS.items() if is_portable(op.make())]

#: Those that take something other than arrays, or write into it.
UNLIKE = ("assign", "output", "take_blocks")


@pytest.fixture
def cupy() -> Any:
    return fake_cupy(devices=2)


@pytest.fixture
def gpu(cupy: Any) -> Any:
    return stand_in(cupy)


# The stand-in is as strict as CuPy


def test_the_stand_in_refuses_what_cupy_refuses(cupy: Any) -> None:
    x = cupy.asarray(np.ones(3))
    for refused in (
        lambda: np.asarray(x),
        lambda: np.add(x, np.ones(3)),
        lambda: np.add.reduce(x),
        lambda: np.concatenate([x, np.ones(3)]),
        lambda: np.max(x, initial=0),
        lambda: np.full(3, 1.0, like=x, device="cpu"),
        lambda: np.spacing(x),
    ):
        with pytest.raises(TypeError):
            refused()
    with pytest.raises(AttributeError):
        x.ctypes  # noqa: B018
    with pytest.raises(ValueError, match="non-scalar"):
        x[...] = np.ones(3)


def test_the_stand_in_finds_kernels_that_overlap_and_indices_that_repeat(cupy: Any) -> None:
    x = cupy.asarray(np.arange(4.0))
    with pytest.raises(AssertionError, match="what it reads"):
        np.add(x[1:], 1, out=x[:-1])
    with pytest.raises(AssertionError, match="which value stays"):
        x[cupy.asarray(np.array([1, 1]))] = cupy.asarray(np.array([2.0, 3.0]))
    assert np.add(x, 1, out=x).get().tolist() == [1, 2, 3, 4]


@pytest.mark.skipif(find_spec("cupy") is None, reason="CuPy is not installed")
def test_the_stand_in_has_what_this_cupy_has() -> None:
    found = cupy_namespace.namespace()
    if found["version"] != DATA["version"]:
        pytest.skip(f"the data are of CuPy {DATA['version']}, and {found['version']} is installed")
    assert json.loads(json.dumps(found)) == DATA


# Printouts


@pytest.mark.parametrize("jit", [True, False])
def test_source_and_plan_are_printed(cupy: Any, jit: bool) -> None:
    gpu = stand_in(cupy, jit=jit)
    x, w, z = gpu.ones((4, 6), name="x"), gpu.ones((6, 6), name="w"), gpu.empty((4, 6), name="z")
    tree = OpTreeNode.build("assign", z, gpu.softmax(gpu.dot(x * 2, w), axis=1))
    source, plan = (debugprint(tree, file="str", stage=stage) for stage in ("source", "plan"))
    assert ("__global__" in source) is jit and ("kernel(" in plan) is jit
    assert " dot(%" in plan and "in new memory" in plan and "in the memory of %0" in plan


# Memory


def test_values_come_and_go(gpu: Any) -> None:
    values = np.array([[1.5, 2.0], [3.0, -4.0]], np.float32)
    x = gpu.array(values, name="x")
    assert type(x.raw()).__module__ == "cupy"
    assert x.get().tolist() == values.tolist()
    assert x[1, 0].item() == 3.0 and float(x[0, 1]) == 2.0 and [row.get().tolist() for row in x] == values.tolist()
    assert x.T.get().tolist() == values.T.tolist() and x.reshape(4).get().tolist() == values.ravel().tolist()
    assert (x == 2).asnumpyarray().tolist() == [[False, True], [False, False]]
    x[0] = 7
    x[:, 1] = np.array([8, 9])
    assert x.copy().get().tolist() == [[7, 8], [3, 9]]
    assert gpu.array(x.T, np.float64).get().tolist() == [[7, 3], [8, 9]]
    assert gpu.array(x * 2).get().tolist() == [[14, 16], [6, 18]]
    assert "float32" in repr(x) and "gpu" in repr(x)


def test_cupys_arrays_are_taken_and_given_without_a_copy(cupy: Any, gpu: Any) -> None:
    theirs = cupy.asarray(np.arange(6.0).reshape(2, 3))
    for x in (gpu.adopt(theirs), gpu.from_dlpack(theirs)):
        assert x.raw() is theirs
        x[0, 0] += 1
    assert theirs.get()[0, 0] == 2
    assert cupy.asarray(gpu.adopt(theirs)[1]).get().tolist() == [3, 4, 5]
    copied = gpu.array(theirs, np.float64)
    copied[:] = 0
    assert theirs.get()[0, 0] == 2
    assert gpu.array(cupy.asarray(np.array([1, 2]))).dtype == np.int64
    assert "be.adopt" in message_of(OperandError, lambda: copied + theirs)


def test_other_libraries_arrays_come_by_their_interface(cupy: Any, gpu: Any) -> None:
    memory = cupy.asarray(np.arange(3.0))
    theirs = SimpleNamespace(__cuda_array_interface__=memory.__cuda_array_interface__)
    x = gpu.adopt(theirs)
    x[:] = x * 2
    assert memory.get().tolist() == [0, 2, 4]
    assert x.__cuda_array_interface__["data"] == memory.__cuda_array_interface__["data"]
    assert x.__dlpack_device__() == (2, 0)
    assert not hasattr(gen_backend("cpu").ones(2), "__cuda_array_interface__")


class _Theirs:
    """An array of another library on the device, which has DLPack or the device's interface alone."""

    def __init__(self, array: Any) -> None:
        self._array, self.dtype, self.shape = array, "theirs", array.shape


class _ByInterface(_Theirs):
    @property
    def __cuda_array_interface__(self) -> Any:
        return self._array.__cuda_array_interface__


class _ByDLPack(_Theirs):
    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


@pytest.mark.parametrize("kind", [_ByInterface, _ByDLPack])
def test_arguments_of_functions_are_other_libraries_arrays_on_the_device(cupy: Any, gpu: Any, kind: Any) -> None:
    """They are read there, without a copy to the host."""
    theirs = kind(cupy.asarray(np.arange(3, dtype=np.float32)))
    x = gpu.ones(3, name="x")
    with patch.object(gpu, "from_host", side_effect=AssertionError("it was on the host")):
        assert function([x], x * 2)(theirs).get().tolist() == [0, 2, 4]
        assert jit(lambda x: x * 3)(theirs).get().tolist() == [0, 3, 6]


def test_what_does_not_lie_on_the_device_is_refused(cupy: Any, gpu: Any) -> None:
    assert "be.array" in message_of(OperandError, lambda: gpu.adopt(np.ones(2)))
    assert "be.array" in message_of(OperandError, lambda: gpu.from_dlpack(np.ones(2)))


def test_memory_that_cannot_be_computed_in_is_not_adopted(cupy: Any, gpu: Any) -> None:
    memory = cupy.asarray(np.arange(12, dtype=np.float32))
    told = memory.__cuda_array_interface__
    read_only = SimpleNamespace(__cuda_array_interface__={**told, "data": (told["data"][0], True)})
    assert "read-only" in message_of(OperandError, lambda: gpu.adopt(read_only))
    assert "byte order" in message_of(DTypeError, lambda: gpu.adopt(memory.view(memory.dtype.newbyteorder("S"))))
    unaligned = memory.view(np.uint8)[1:41].view(np.float32)
    assert "unaligned" in message_of(OperandError, lambda: gpu.adopt(unaligned))
    spread = SimpleNamespace(__cuda_array_interface__={**told, "shape": (3, 12), "strides": (0, 4)})
    assert "share an address" in message_of(OperandError, lambda: gpu.adopt(spread))
    assert "share an address" in message_of(OperandError, lambda: gpu.from_dlpack(cupy.asarray(spread)))
    assert gpu.adopt(memory.reshape(3, 4)[::-1, ::2].T).shape == (2, 3)


def test_a_constant_is_copied_to_the_device_once(cupy: Any, gpu: Any) -> None:
    x = gpu.ones(3)
    tree = x + np.array([1.0, 2.0, 3.0])
    tree.asnumpyarray()
    before = cupy.machine.to_device
    assert tree.asnumpyarray().tolist() == [2, 3, 4]
    assert cupy.machine.to_device == before


# Several devices


def test_each_backend_works_on_its_own_device(cupy: Any) -> None:
    first, second = stand_in(cupy), stand_in(cupy, device_id=1)
    x, y = first.ones(3, name="x"), second.ones(3, name="y")
    assert (x.raw().device.id, y.raw().device.id) == (0, 1)
    y[:] = second.tanh(y) * 2 + second.rand(3) * 0
    y[1:] = y.copy()[1:].T
    run = function([], second.sum(y))
    assert run().raw().device.id == 1
    with cupy.cuda.Device(1):
        assert (x + 1).asnumpyarray().tolist() == [2, 2, 2]
    assert cupy.machine.device == 0
    assert "copy one over" in message_of(BackendError, lambda: x + y)
    assert first.array(y.get()).get().tolist() == y.get().tolist()


def test_tensors_go_to_other_libraries_from_their_own_device(cupy: Any) -> None:
    """Who takes one is to wait for the current stream of the device that it is on, whichever the current one is."""
    be = stand_in(cupy, device_id=1)
    x = be.array([1.0, 2.0])
    assert cupy.machine.device == 0
    assert x.__dlpack__(stream=1) is x.raw() and x.__dlpack_device__() == (2, 1)
    assert x.__cuda_array_interface__["data"][0] == x.raw().data.ptr
    assert cupy.machine.device == 0


def test_a_tensor_of_another_device_is_refused(cupy: Any, gpu: Any) -> None:
    with cupy.cuda.Device(1):
        theirs = cupy.asarray(np.ones(3))
    said = message_of(BackendError, lambda: gpu.adopt(theirs))
    for part in ("device 1", "device_id=1"):
        assert part in said
    said = message_of(BackendError, lambda: stand_in(cupy, device_id=2))
    assert "device_id 2" in said and "from 0 to 1" in said


# Ops on the device, and on the host


@for_each("name", PORTABLE)
def test_a_portable_op_has_a_function_of_arrays(name: str) -> None:
    op = OPS[name].make()
    assert callable(op.numpy) or callable(op.fill) or op.defines("perform")


def test_which_ops_run_on_the_host() -> None:
    found = {n for n, op in OPS.items() if not (is_portable(op.make()) or issubclass(op, CompositeOperator))}
    drawn = {"drawn_at", "flat_indices", "standard_gamma", "stochastic_cast"}  # the first two where no kernel runs them
    by_boxes = {"argmax_roi", "nms"}  # their loops are by the values of boxes
    assert found == drawn | by_boxes


def test_a_step_of_training_copies_nothing_to_the_host(cupy: Any, gpu: Any) -> None:
    x, y = gpu.array(np.ones((4, 3))), gpu.array(np.array([0, 1, 1, 0]))
    w, b = gpu.array(np.full((3, 2), 0.5), name="w"), gpu.zeros(2, name="b")

    def step() -> None:
        scores = gpu.relu(gpu.dot(x, w) + b)
        right = gpu.sum(scores * gpu.onehot(y, 2), axis=1)
        cost = gpu.mean(gpu.logsumexp(scores, axis=1) - right) + gpu.sum(gpu.softmax(scores, axis=(0, 1))) + gpu.norm(w)
        for p, g in zip((w, b), gpu.evaluate(grad(cost, [w, b])), strict=True):
            p[:] = p - 0.1 * g

    step()
    before = cupy.machine.to_host
    step()
    assert gpu.stats()["host_calls"] == 0
    assert cupy.machine.to_host - before == 1, "only whether onehot's indices are in range has to be known before"


def test_a_value_is_written_where_it_belongs(cupy: Any, gpu: Any) -> None:
    x, w = gpu.array(np.ones((64, 32))), gpu.array(np.ones((32, 16)))
    z = gpu.empty((64, 16))
    z[:] = gpu.dot(x, w)
    before = cupy.machine.allocations
    z[:] = gpu.dot(x, w)
    assert cupy.machine.allocations == before, "a product goes into its target, and no other memory"
    assert z.get().tolist() == np.full((64, 16), 32).tolist()
    square = gpu.array(np.arange(9.0).reshape(3, 3))
    wanted = square.get().T + square.get()
    square[:] = square.T + square
    assert square.get().tolist() == wanted.tolist()
    line = gpu.array(np.arange(5.0))
    line[1:] = line[:-1]
    assert line.get().tolist() == [0, 0, 1, 2, 3]


def test_a_value_has_the_dtype_that_was_promised(cupy: Any, gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = cupy.argmax
    monkeypatch.setattr(cupy, "argmax", lambda *args, **kwargs: theirs(*args, **kwargs).astype("int32"))
    assert gpu.argmax(gpu.ones(3)).astensor().dtype == np.int64


def test_an_index_out_of_range_is_an_error(gpu: Any) -> None:
    x, places = gpu.array(np.arange(4.0)), gpu.array(np.array([1, 4]))
    for pick in (lambda: x[places], lambda: gpu.take(x, places, axis=0), lambda: gpu.onehot(places, 4)):
        assert "index 4 " in message_of(AxisError, lambda pick=pick: pick().asnumpyarray())
    assert x[gpu.array(np.array([-1, 0]))].asnumpyarray().tolist() == [3, 0]


class Cube(UnaryOperator, ElementwiseOperator):
    """A user's op, which knows NumPy alone."""

    def numpy(self, *arrays: Any) -> Any:
        return np.asarray(arrays[0]) ** 3


class PortableCube(Cube):
    """The same for the arrays of any library."""

    @portable
    def numpy(self, *arrays: Any) -> Any:
        return arrays[0] ** 3


class Split(Op):
    """A user's op of two outputs."""

    __props__ = ()
    itypes = (VECTOR,)
    otypes = (VECTOR, VECTOR)

    def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
        output_storage[0][0], output_storage[1][0] = np.floor(inputs[0]), inputs[0] % 1


class Advance(Op):
    """A user's op that writes over its input, and gives it."""

    __props__ = ()
    destroy_map = {0: [0]}

    def make_node(self, *inputs: Any) -> Apply:
        return Apply(self, list(inputs), [inputs[0].type()])

    def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
        inputs[0] += 1
        output_storage[0][0] = inputs[0]


def test_a_users_op_runs_on_the_host_and_says_so(gpu: Any) -> None:
    x = gpu.array([1.0, 2.0], np.float64)
    tree = gpu.sum(Cube.make()(x) + 1)
    assert tree.asnumpyarray().tolist() == [11]
    assert gpu.stats()["host_calls"] == 1
    text = debugprint(function([], tree), file="str")
    assert [line for line in text.splitlines() if "on the host" in line] == [
        line for line in text.splitlines() if "Cube" in line
    ]
    assert PortableCube.make()(x).asnumpyarray().tolist() == [1, 8]
    assert gpu.stats()["host_calls"] == 1


def test_outputs_of_a_users_op_come_back_to_the_device(gpu: Any) -> None:
    x = gpu.array([1.25, 2.5], np.float64)
    whole, rest = Split()(x)
    z = gpu.empty(2, np.float64)
    z[:] = whole * 10 + rest
    assert z.get().tolist() == [10.25, 20.5]
    run = function([], [whole, rest * 2])
    assert [y.get().tolist() for y in run()] == [[1, 2], [0.5, 1]] == [y.get().tolist() for y in run()]


def test_what_an_op_writes_over_on_the_host_changes_on_the_device(gpu: Any) -> None:
    x = gpu.array([1.0, 2.0], np.float64)
    assert (Advance()(x) * 2).asnumpyarray().tolist() == [4, 6]
    assert x.get().tolist() == [2, 3]


def test_draws_are_the_cpus(gpu: Any) -> None:
    cpu = gen_backend("cpu", rng_seed=3)
    gpu.gen_rng(3)
    for _ in range(2):
        for draw in ("rand", "standard_normal"):
            numbers = [getattr(be, draw)((3, 5)).asnumpyarray().tolist() for be in (gpu, cpu)]
            assert numbers[0] == numbers[1]
    assert gpu.rng_get_state()["rng_state"].tolist() == cpu.rng_get_state()["rng_state"].tolist()
    gpu.rng_reset()
    assert gpu.rng_get_state()["rng_state"].tolist() == [3, 0]


# Functions


@pytest.mark.parametrize("mode", ["default", "reference", "debug"])
def test_functions_in_every_mode(gpu: Any, mode: str) -> None:
    x, total = VECTOR("x"), gpu.zeros((), np.float64, name="total")
    y = gpu.array([1.0, 2.0], np.float64)
    run = function([x], [gpu.softmax(x) * y, x + 1], updates={total: total + gpu.sum(x, keepdims=False)}, mode=mode)
    for given in ([1.0, 1.0], gpu.array([1.0, 1.0], np.float64), gpu.array([1.0, 1.0], np.float64).raw()):
        first, second = run(given)
        assert first.get().tolist() == [0.5, 1] and second.raw().device.id == 0 and second.get().tolist() == [2, 2]
    assert total.get() == 6


def test_a_profile_counts_each_step(gpu: Any) -> None:
    x = gpu.array(np.ones(4))
    run = function([], gpu.sum(gpu.softmax(x) * 2), profile=True)
    assert run().get().tolist() == [2]
    assert [part.kind for part in run.profile.parts] and all(part.seconds > 0 for part in run.profile.parts)
    assert gpu.stats()["host_calls"] == 0


def test_a_failing_op_is_named(gpu: Any) -> None:
    class Failing(Cube):
        def numpy(self, *arrays: Any) -> Any:
            raise DefinitionError("it is broken")

    with pytest.raises(DefinitionError) as caught:
        (gpu.ones(2) + Failing.make()(gpu.ones(2))).asnumpyarray()
    assert any("while running" in note and "Failing" in note for note in caught.value.__notes__)


# Out of memory


def test_out_of_memory_says_how_much_and_changes_nothing() -> None:
    be = stand_in(fake_cupy(memory=1 << 20))
    x = be.ones(1 << 16, name="x")  # a quarter of it
    y = be.zeros(1 << 16, name="y")
    run = function([], [], updates={y: be.exp(x) + be.sin(x) * be.cos(x)})
    for fails in (run, lambda: be.ones(1 << 19)):
        with pytest.raises(DeviceMemoryError) as caught:
            fails()
        said = str(caught.value)
        assert "were asked for" in said and "held" in said and f"{1 << 20:,} are free" in said
        assert isinstance(caught.value, MemoryError)
        del caught
        gc.collect()
    assert y.get().tolist() == [0] * (1 << 16)
    y[:] = x * 2
    assert y.get()[0] == 2


# CuPy itself, as far as it goes without a GPU


def _unowned(cupy: Any, value: Any) -> Any:
    """An array of CuPy's own, whose memory is nowhere."""
    if not isinstance(value, np.ndarray):
        return value
    memory = cupy.cuda.UnownedMemory(4096, max(value.nbytes, 1), None, 0)
    return cupy.ndarray(value.shape, value.dtype, cupy.cuda.MemoryPointer(memory, 0))


def _asks_the_driver(error: Exception) -> bool:
    return "cudaError" in str(error) or isinstance(error, ImportError)  # of cuBLAS


@pytest.mark.skipif(find_spec("cupy") is None, reason="CuPy is not installed")
def test_cupy_takes_what_ops_ask_of_it() -> None:
    """A portable op's value comes as far as CUDA; a view all the way."""
    cupy: Any = import_module("cupy")
    if cupy.cuda.is_available():
        pytest.skip("on a device, kernels would run on memory that is not there")
    for example in (
        each
        for name in PORTABLE
        if name not in UNLIKE and not issubclass(OPS[name], LapackOperator) and has_own_examples(OPS[name])
        for each in examples_of(OPS[name])
    ):
        values = example.draw(np.float32 if example.takes_floats else None)
        node = example.tree(inputs_for(values))
        arrays = [_unowned(cupy, x) for x in values]
        try:
            found = node.op.value(*arrays)
        except Exception as error:
            assert _asks_the_driver(error), f"{example}: {error!r}"
        else:
            assert isinstance(found, cupy.ndarray) and found.shape == node.shape
            assert not found.size or np.may_share_memory(found, arrays[0])
