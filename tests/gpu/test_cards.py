"""Cards other than those that kernels were written on: their limits, and the drivers and compilers that refuse them."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from harness.messages import message_of
from harness.nvrtc import compile_cuda, needs_nvrtc
from harness.rig.install import rig, why_no_rig

from backends import gen_backend, launches, source
from backends.gpu import cupy_device
from backends.gpu.launch_config import DEVICES, limits_of
from optree.errors import BackendError

#: By the number of a simulated device, what its driver answers otherwise than an H100's: multiprocessors, the most
#: threads of one, compute capability, shared memory of a block.
CARDS = {
    "a MIG instance of an H100": {16: 16},
    "RTX 5090, newer than NVRTC": {16: 170, 39: 1536, 75: 12, 97: 99 << 10},
    "A40": {16: 84, 39: 1536, 75: 8, 76: 6, 97: 99 << 10},
    "V100": {16: 80, 75: 7, 97: 96 << 10},
}

SCRIPT = """
import json, sys
import numpy as np
from backends import gen_backend

sys.path.insert(0, "tests")
from harness.rig.install import rig
from harness.rig.machine import Device
rig, cards, found = rig(), json.loads(sys.argv[1]), {}
rig.compiler.capabilities = (75, 86, 90)
rig.machine.devices += [Device(number, 1 << 28) for number in range(2, 2 + len(cards))]
rig.driver.cards = {n: {int(k): v for k, v in card.items()} for n, card in enumerate(cards.values(), 2)}
with rig.on(seed=1):
    for number, name in enumerate(cards, 2):
        try:
            be = gen_backend("gpu", device_id=number)
        except Exception as error:
            found[name] = str(error)
            continue
        rng, values = np.random.RandomState(0), {}
        rig.compiler.options.clear()
        for shape in ((3, 20000), (600, 40), (7, 30000)):
            x = rng.standard_normal(shape)
            tree = be.softmax(be.array(x), axis=1)
            wanted = np.exp(x) / np.exp(x).sum(1, keepdims=True)
            np.testing.assert_allclose(tree.asnumpyarray(), wanted, rtol=1e-5)
        assert be.show(be.program([tree]), "source") in be.kernels._loaded  # what is shown is what has run
        other = gen_backend("gpu")  # on the H100, copied between devices of which neither reaches the other's memory
        assert other.array(be.ones((3,)).asnumpyarray()).asnumpyarray().tolist() == [1, 1, 1]
        copied = other.array(be.array([1.0, 2.0]))
        assert copied.asnumpyarray().tolist() == [1, 2] and copied.array.device.id == 0
        found[name] = [options[0] for options in rig.compiler.options if "--fmad=false" in options]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def run_on_cards() -> Any:
    if why_no_rig() is not None:
        pytest.skip(str(why_no_rig()))
    command = [sys.executable, "-c", SCRIPT, json.dumps(CARDS)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert not done.returncode, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.matrix(least=0)
def test_programs_run_by_each_cards_own_limits(run_on_cards: Any) -> None:
    """Where NVRTC does not know a card, by PTX of the newest that it knows; and between cards without peer access."""
    for name, target in {
        "a MIG instance of an H100": "sm_90",
        "RTX 5090, newer than NVRTC": "compute_90",
        "A40": "sm_86",
    }.items():
        assert set(run_on_cards[name]) == {f"--gpu-architecture={target}"}


@pytest.mark.matrix(least=0)
def test_cards_that_cuda_13_has_dropped_are_told_of_cuda_12(run_on_cards: Any) -> None:
    for part in ("compute capability 7.0", "NVRTC 13.99 compiles for 75, 86, 90", "'.[gpu-cuda12]'"):
        assert part in run_on_cards["V100"]
    for arch in ("sm_60", "sm_70"):
        assert "'.[gpu-cuda12]'" in message_of(BackendError, lambda arch=arch: limits_of(arch))


@pytest.mark.skipif(why_no_rig() is not None, reason=str(why_no_rig()))
@pytest.mark.parametrize(("driver", "cupy"), [(12080, "cupy-cuda12x"), (13000, "")])
def test_a_driver_older_than_the_toolkit_is_refused_if_it_is_of_an_older_major_version(driver: int, cupy: str) -> None:
    found = rig()
    before, found.driver.version = found.driver.version, driver
    try:
        with found.on():
            if cupy:
                said = message_of(BackendError, lambda: gen_backend("gpu"))
                assert "NVRTC 13.99" in said and "CUDA 12.8 at most" in said and cupy in said
            else:  # kernels of the same major version run
                be = gen_backend("gpu")
                assert (be.ones((3,)) + 1).asnumpyarray().tolist() == [2, 2, 2]
    finally:
        found.driver.version = before


@pytest.mark.matrix(least=2)
@needs_nvrtc
@pytest.mark.parametrize("arch", DEVICES)
def test_every_architecture_has_limits_of_its_own(arch: str) -> None:
    be = gen_backend("cpu")
    tree = be.softmax(be.ones((64, 20000)), axis=1)
    (text,) = source(tree, "cuda", arch)
    assert all(launch.shared <= DEVICES[arch].shared for launch in launches(tree, arch=arch))
    assert compile_cuda(text, arch).cubin


# Where the driver is


def test_the_driver_is_loaded_by_its_name_on_each_system(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cupy_device.driver_files("win32") == ("nvcuda.dll",)
    loaded, wsl = [], "/usr/lib/wsl/lib/libcuda.so.1"

    def load(name: str) -> str:
        loaded.append(name)
        if name != wsl:
            raise OSError(f"{name} is not found")
        return name

    monkeypatch.setattr(ctypes, "CDLL", load)
    assert cupy_device.load_driver() == wsl and loaded == ["libcuda.so.1", wsl]
