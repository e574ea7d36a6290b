"""Faults of a device, by CuPy itself on simulated devices: what is raised, and that nothing touches the device then."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from harness.messages import message_of
from harness.rig.install import Rig

from backends import gen_backend
from backends.gpu import cupy_device
from optree import function
from optree.errors import DeviceFault
from optree.settings import override


@pytest.fixture
def be(on: Rig) -> Any:
    return gen_backend("gpu")


def beyond(on: Rig, be: Any) -> Any:
    """A tensor over addresses of the device at which there is no memory."""
    cuda = on.cupy.cuda
    memory = cuda.UnownedMemory(on.machine.devices[0].memory.start + (1 << 39), 64, None, 0)
    return be.adopt(on.cupy.ndarray((4,), np.float32, cuda.MemoryPointer(memory, 0)), name="beyond")


class Refusing:
    """A lock of the machine: whoever enters it calls CUDA."""

    def __enter__(self) -> None:
        raise AssertionError("a call of CUDA's")

    def __exit__(self, *error: object) -> None:
        pass


def test_every_call_after_a_fault_says_so_without_the_device(on: Rig, be: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = be.ones((4,)), be.zeros((4,))
    step = function([], be.sum(x), updates={x: x * 2})
    for _ in range(3):
        step()
    bad = beyond(on, be)
    said = message_of(DeviceFault, lambda: (y.__setitem__(slice(None), be.exp(bad) + 1), y.get()))
    for part in (
        "IllegalAddress",
        "the last program was: exp, add, assign",
        "restart the process",
        "OPTREE_SYNC=1",
        "compute-sanitizer --tool memcheck python",
    ):
        assert part in said
    gc.disable()
    monkeypatch.setattr(on.machine, "lock", Refusing())
    try:
        for call in (
            x.get,
            step,
            lambda: y.__setitem__(slice(None), x + 1),
            lambda: be.array([1.0]),
            lambda: be.ones((3,)).asnumpyarray(),
            lambda: gen_backend("gpu"),
            be.synchronize,
            be.info,
            lambda: be.to_host(y.array, blocking=False),
        ):
            assert message_of(DeviceFault, call) == said
        assert set(be.stats()["memory"].values()) == {0}
        assert not on.machine.faults[1:], "nothing else has failed"
    finally:
        monkeypatch.undo()
        gc.enable()


def test_with_a_wait_after_each_step_the_error_names_the_step(on: Rig) -> None:
    with override(sync=True):
        be = gen_backend("gpu")
        bad, x = beyond(on, be), be.ones((4,))
        step = function([], be.sum(be.sort(x)), updates={x: be.cos(be.sort(bad))})
        with pytest.raises(DeviceFault) as caught:
            step()
    assert "while running sort" in str(caught.value) and "test_faults.py" in str(caught.value)


def test_nothing_is_captured_while_each_step_is_waited_for(on: Rig) -> None:
    with override(sync=True):
        be = gen_backend("gpu")
        x = be.ones((4,))
        step = function([], be.sum(x * x), updates={x: x * 2})
        assert [step().asnumpyarray().item() for _ in range(3)] == [4, 16, 64]
        assert be.stats()["graphs"] == {"captures": 0, "replays": 0}


@pytest.mark.parametrize("status", sorted(cupy_device.FAULTS))
def test_every_fault_of_cudas_is_one(on: Rig, be: Any, status: int) -> None:
    x = be.ones((4,))
    x.get()
    on.machine.fail(0, status, "lost")
    message_of(DeviceFault, x.get)
    message_of(DeviceFault, lambda: gen_backend("gpu"))


def test_a_product_that_fails_on_a_failed_device_is_a_fault(on: Rig, be: Any) -> None:
    x, y = be.ones((4, 4)), be.zeros((4, 4))
    y[:] = be.dot(x, x)
    on.machine.fail(0, 700, "lost")
    said = message_of(DeviceFault, lambda: y.__setitem__(slice(None), be.dot(x, x)))
    assert "INTERNAL_ERROR" in said and "while running dot" in said
    assert message_of(DeviceFault, x.get) == said


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # CuPy's streams
def test_a_fault_in_a_graph_and_in_a_capture(on: Rig) -> None:
    for calls in (1, 3):  # in the capture of the second call, and in a replay
        be = gen_backend("gpu")
        x = be.ones((4,))
        step = function([], be.sum(x * x), updates={x: x * 2})
        for _ in range(calls):
            step()
        on.machine.fail(0, 700, "lost")
        for _ in range(3):
            message_of(DeviceFault, step)
        assert be.stats()["graphs"]["captures"] == int(calls == 3)
        on.recovered()
