"""Shared memory, static and dynamic together: what kernels declare, what geometry counts on, and what is asked for."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from harness.device import DEFAULT
from harness.emulated import Collector
from harness.nvrtc import ARCHITECTURES, compile_cuda, needs_nvrtc
from harness.shared import static_shared

from backends import Backend, gen_backend, launches, source
from backends.gpu.codegen.variant import static_bytes
from backends.gpu.kernel import launched_by
from backends.gpu.launch_config import DEVICES, Launch
from backends.gpu.runtime import OPTIONS
from backends.inspection import specialize_all
from optree import Function, function
from optree.compile.loopnest import LoopNest
from optree.tree.types import TensorType


def _input(shape: tuple[int, ...], dtype: str, name: str = "x") -> Any:
    return TensorType(dtype, shape)(name)


def softmax(be: Any, shape: tuple[int, int], dtype: str, axis: int) -> Any:
    return be.softmax(_input(shape, dtype), axis=axis)


def logsumexp(be: Any, shape: tuple[int, int], dtype: str, axis: int) -> Any:
    x = _input(shape, dtype)
    return x - be.logsumexp(x, axis=axis)


def layer_norm(be: Any, shape: tuple[int, int], dtype: str, axis: int) -> Any:
    x = _input(shape, dtype)
    return (x - be.mean(x, axis=axis)) / be.sqrt(be.var(x, axis=axis) + 1e-5)


#: Trees about the limit of 48 KiB: by the static bytes below it, and at it; the last of each wanted more than is there.
LIMITS = [
    *((softmax, (600, n), "float16", 1) for n in (8064, 8128, 8129, 8192, 8193, 8256)),
    *((softmax, (600, n), "float32", 1) for n in (12189, 12190, 12192, 12288, 12289, 12384)),
    *((tree, (600, n), "float16", 1) for tree in (logsumexp, layer_norm) for n in (24320, 24576, 24577, 24832)),
    *((softmax, (n, 1 << 16), "float32", 0) for n in (127, 128, 129, 191, 192, 193, 360, 368, 384, 385)),
]


@cache
def _be() -> Any:
    return gen_backend("cpu", jit=False)


class Checked(Collector):
    """A host that holds each launch against what a driver allows, by the text of the kernels."""

    def __init__(self, arch: str) -> None:
        super().__init__(DEVICES[arch])
        self.asked: list[tuple[int, int]] = []

    def load(self, text: str, names: Any) -> Any:
        super().load(text, names)
        return [static_shared(text).get(name, 0) for name in names]

    def launch(self, kernel: Any, launch: Launch, words: Any) -> None:
        super().launch(kernel, launch, words)
        assert kernel + launch.shared <= self.device.shared
        self.asked.append((kernel, launch.shared))


@pytest.mark.matrix
@pytest.mark.parametrize("arch", DEVICES)
@pytest.mark.parametrize(("tree", "shape", "dtype", "axis"), LIMITS)
def test_rows_and_columns_about_the_limit_are_launched(
    tree: Any, shape: tuple[int, int], dtype: str, axis: int, arch: str
) -> None:
    host = Checked(arch)
    specialize_all(_program(tree(_be(), shape, dtype, axis)), launched_by(host), host)
    assert host.asked


def test_shapes_that_failed_are_among_them() -> None:
    """Those whose dynamic part fits into 48 KiB, and not with the static one."""
    found = []
    for tree, shape, dtype, axis in LIMITS:
        host = Checked("sm_90")
        specialize_all(_program(tree(_be(), shape, dtype, axis)), launched_by(host), host)
        found += [(tree, shape) for static, shared in host.asked if shared <= DEFAULT < static + shared]
    assert {(softmax, (600, 8192)), (softmax, (600, 12288)), (softmax, (384, 1 << 16))} <= set(found)
    assert {tree for tree, _ in found} == {softmax, logsumexp, layer_norm}


# What is declared


def _nests(what: Any) -> list[LoopNest]:
    found: list[LoopNest] = []

    def keep(nest: LoopNest) -> Any:
        found.append(nest)
        return lambda pointers, numbers, layout: None

    specialize_all(_program(what), keep, Collector(DEVICES["sm_90"]))
    return found


def _program(what: Any) -> Any:
    return what.program if isinstance(what, Function) else Backend.program([what])


def sums(be: Any, count: int, shape: tuple[int, int], axis: int, dtype: str = "float32") -> Any:
    """Several reductions of one array by one kernel."""
    x = _input(shape, dtype)
    return function([x], [be.sum(x * float(n + 1), axis=axis) for n in range(count)])


DECLARING = {
    "softmax": lambda be: softmax(be, (600, 12288), "float32", 1),
    "softmax of columns": lambda be: softmax(be, (128, 1 << 16), "float32", 0),
    "layer norm": lambda be: layer_norm(be, (600, 24576), "float16", 1),
    "transposed": lambda be: _input((300, 200), "float32").T + _input((200, 300), "float16", "y"),
    "warps": lambda be: softmax(be, (600, 100), "float32", 1),
    "sums of columns": lambda be: sums(be, 3, (128, 1 << 16), 0),
    "kinds": lambda be: function(
        [x := _input((4096, 5000), "int16")],
        [be.sum(x, axis=1), be.max(x, axis=1), be.min(x, axis=1), be.mean(x, axis=1), be.any(x > 3, axis=1)],
    ),
}


@pytest.mark.matrix(least=1)
@needs_nvrtc
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("name", DECLARING)
def test_what_is_counted_is_what_the_assembler_reports(name: str, arch: str) -> None:
    be = _be()
    for text in source(DECLARING[name](be), "cuda", arch):
        reported = {kernel: usage.shared for kernel, usage in compile_cuda(text, arch, OPTIONS).usage.items()}
        assert static_shared(text) == reported


#: What tells in a source who joins.
TEAMS = {"tiles": " tile0[", "columns": "= over_column(", "block": "= over_block("}


@pytest.mark.parametrize("name", DECLARING)
def test_geometry_counts_what_is_declared(name: str) -> None:
    be = _be()
    tree = DECLARING[name](be)
    (text,) = source(tree, "cuda")
    (launch,) = launches(tree)
    (nest,) = _nests(tree)
    team = next((t for t, mark in TEAMS.items() if mark in text), "")
    assert static_bytes(nest, team, launch.block if team == "columns" else 256) == static_shared(text)["kernel"]


# Many reductions in one kernel


@pytest.mark.matrix(least=1)
@needs_nvrtc
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("count", [24, 25, 60])
def test_many_reductions_of_columns_compile(count: int, arch: str) -> None:
    (text,) = source(sums(_be(), count, (128, 1 << 16), 0), "cuda", arch)
    (usage,) = compile_cuda(text, arch, OPTIONS).usage.values()
    assert usage.shared == 2 * 256 * 8, "two arrays of doubles take turns"


def test_as_many_reductions_as_a_kernel_can_have_fit_into_shared_memory() -> None:
    for axis, shape in ((0, (128, 1 << 16)), (1, (4096, 5000))):
        for text in source(sums(_be(), 150, shape, axis), "cuda"):
            assert all(static <= DEFAULT // 4 for static in static_shared(text).values())


@pytest.mark.parametrize("axis", [0, 1])
def test_many_reductions_are_right(axis: int, gpu: Any) -> None:
    values = np.random.RandomState(0).rand(1300, 1300)[:: 26 if axis else 1, :: 1 if axis else 26].astype(np.float32)
    x = TensorType("float32", values.shape)("x")
    outputs = [gpu.sum(x * float(n + 1), axis=axis) for n in range(26)]
    outputs += [gpu.max(x - n, axis=axis) for n in range(3)]
    found = function([x], outputs)(values)
    wide = values.astype(np.float64)
    wanted = [wide.sum(axis, keepdims=True) * (n + 1) for n in range(26)]
    wanted += [(values - np.float32(n)).max(axis, keepdims=True) for n in range(3)]
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got.get(), want, rtol=1e-6)
