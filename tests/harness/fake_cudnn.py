"""A stand-in for cuDNN's Python front end, on NumPy's memory: it refuses what the front end refuses."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from enum import Enum
from itertools import count
from typing import Any

import numpy as np

from harness.fake_cuda import Machine
from optree.dtypes import bfloat16
from optree.networks.convolution import Conv
from optree.networks.windows import layout_of, spatial_of

DTYPES = {"FLOAT": np.dtype("float32"), "DOUBLE": np.dtype("float64"), "HALF": np.dtype("float16")}

#: The operands of each operation.
OPERANDS = {"conv_fprop": ("image", "weight"), "conv_dgrad": ("loss", "filter"), "conv_wgrad": ("image", "loss")}

#: The workspace of plans by filters.
WORKSPACE = 512


class cudnnGraphNotSupportedError(RuntimeError):  # the front end's name
    """Raised where there is no plan."""


class Handle:
    """A handle, with its stream."""

    stream = 0
    is_alive = True


class FakeCuDNN:
    """The part of the module ``cudnn`` that `backends.gpu.cudnn` uses.

    Attributes
    ----------
    plans, executed : list
        The operations that were planned, and those that ran, by their names.
    unsupported : set of str
        The operations that have no plan.
    """

    data_type = Enum("data_type", ["FLOAT", "DOUBLE", "HALF", "BFLOAT16"])
    heur_mode = Enum("heur_mode", ["A", "B", "FALLBACK"])
    numerical_note = Enum(
        "numerical_note",
        ["TENSOR_CORE", "DOWN_CONVERT_INPUTS", "REDUCED_PRECISION_REDUCTION", "NONDETERMINISTIC", "WINOGRAD"],
    )
    cudnnGraphNotSupportedError = cudnnGraphNotSupportedError

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.plans: list[Graph] = []
        self.executed: list[str] = []
        self.unsupported: set[str] = set()

    def backend_version(self) -> int:
        return 92801

    def backend_version_string(self) -> str:
        return "9.28.1"

    def create_handle(self) -> Handle:
        return Handle()

    def destroy_handle(self, handle: Handle) -> None:
        handle.is_alive = False

    def set_stream(self, handle: Handle, stream: int) -> None:
        handle.stream = stream

    def pygraph(self, **options: Any) -> Graph:
        return Graph(self, **options)


class Tensor:
    """A tensor of a graph."""

    def __init__(self, uid: int, dim: Sequence[int], stride: Sequence[int], dtype: Any) -> None:
        self.uid, self.dim, self.stride, self.dtype, self.is_output = uid, dim, stride, dtype, False

    def set_output(self, value: bool) -> Tensor:
        self.is_output = value
        return self

    def set_data_type(self, dtype: Any) -> Tensor:
        self.dtype = dtype
        return self

    def set_dim(self, dim: Sequence[int]) -> Tensor:
        self.dim = dim
        return self

    def set_stride(self, stride: Sequence[int]) -> Tensor:
        self.stride = stride
        return self

    def array(self, address: int) -> np.ndarray:
        """The tensor's memory at an address."""
        dtype = bfloat16() if self.dtype.name == "BFLOAT16" else DTYPES[self.dtype.name]
        reach = sum(step * (n - 1) for step, n in zip(self.stride, self.dim, strict=True)) + 1
        memory = _bytes(address, reach * dtype.itemsize)
        return np.ndarray(self.dim, dtype, memory, strides=[step * dtype.itemsize for step in self.stride])


class Graph:
    """A graph of one convolution, whose methods are called in the front end's order."""

    def __init__(
        self, of: FakeCuDNN, handle: Handle, io_data_type: Any, intermediate_data_type: Any, compute_data_type: Any
    ) -> None:
        self.of, self.dtype, self.compute = of, io_data_type, compute_data_type
        assert handle.is_alive
        assert intermediate_data_type is compute_data_type
        self.stage, self._numbers, self.refused = "described", count(1), set()

    def tensor(self, dim: list[int], stride: list[int], name: str = "") -> Tensor:
        assert len(dim) == len(stride) >= 4, "cuDNN's images have two spatial axes or three"
        return Tensor(next(self._numbers), dim, stride, self.dtype)

    def conv_fprop(self, **given: Any) -> Tensor:
        return self._operation("conv_fprop", given)

    def conv_dgrad(self, **given: Any) -> Tensor:
        return self._operation("conv_dgrad", given)

    def conv_wgrad(self, **given: Any) -> Tensor:
        return self._operation("conv_wgrad", given)

    def _operation(self, name: str, given: dict[str, Any]) -> Tensor:
        self.name, self.operands = name, [given.pop(each) for each in OPERANDS[name]]
        assert set(given) == {"pre_padding", "post_padding", "stride", "dilation"}
        spatial = len(self.operands[0].dim) - 2
        assert all(len(each) == spatial for each in given.values())
        self.given = given
        self.output = Tensor(next(self._numbers), [], [], None)
        return self.output

    def _becomes(self, stage: str, after: str) -> None:
        assert self.stage == after, f"{stage} comes after {after}, not after {self.stage}"
        self.stage = stage

    def validate(self) -> None:
        self._becomes("validated", "described")
        assert self.output.is_output
        assert self.output.dim
        assert self.output.dtype is self.dtype

    def build_operation_graph(self) -> None:
        self._becomes("lowered", "validated")

    def create_execution_plans(self, heuristics: Sequence[Any]) -> None:
        self._becomes("planned", "lowered")
        assert heuristics == [FakeCuDNN.heur_mode.A, FakeCuDNN.heur_mode.FALLBACK]

    def deselect_numeric_notes(self, notes: Sequence[Any]) -> Graph:
        assert self.stage == "planned"
        self.refused |= {note.name for note in notes}
        return self

    def check_support(self) -> None:
        self._becomes("checked", "planned")
        if self.name in self.of.unsupported:
            raise cudnnGraphNotSupportedError("no engine")

    def build_plans(self) -> None:
        self._becomes("built", "checked")
        assert self.of.machine.stream.recorded is None, "planned while a stream is captured"
        self.of.plans.append(self)

    def get_workspace_size(self) -> int:
        assert self.stage == "built"
        return WORKSPACE if self.name == "conv_wgrad" else 0

    def execute(self, pack: dict[Tensor, int], workspace: int, handle: Handle) -> None:
        assert self.stage == "built"
        assert handle.is_alive
        machine = self.of.machine
        assert handle.stream == machine.stream.ptr
        assert set(pack) == {*self.operands, self.output}
        assert not any(address % 16 for address in pack.values())
        memory = _bytes(workspace, self.get_workspace_size()) if self.get_workspace_size() else np.empty(0, np.uint8)
        first, second, target = (each.array(pack[each]) for each in (*self.operands, self.output))
        assert not any(np.may_share_memory(x, target) for x in (first, second))

        def work() -> None:
            memory[...] = 0xCD
            wide = DTYPES[self.compute.name]
            target[...] = self._value(first.astype(wide), second.astype(wide), target.shape).astype(target.dtype)

        self.of.executed.append(self.name)
        machine.kernels += 1
        machine.do(work, first, second, target, memory)

    def _value(self, first: Any, second: Any, shape: tuple[int, ...]) -> np.ndarray:
        layout = layout_of(None, len(shape), "NC", "layout")
        name, given = self.name, self.given
        windows = {"conv_fprop": second, "conv_dgrad": second}.get(name)
        channels = {"conv_fprop": first.shape, "conv_dgrad": shape, "conv_wgrad": first.shape}[name][1]
        op: Any = Conv.make(
            stride=tuple(given["stride"]),
            padding=tuple(zip(given["pre_padding"], given["post_padding"], strict=True)),
            dilation=tuple(given["dilation"]),
            groups=channels // (shape if windows is None else windows.shape)[1],
            layout=layout,
            weights_layout=layout_of(None, len(shape), "OI", "weights_layout", spatial_of(layout)),
        )
        by = {"conv_fprop": op.correlate, "conv_dgrad": op.spread, "conv_wgrad": op.gather_weights}[name]
        value: np.ndarray = by(first, second) if name == "conv_fprop" else by(first, second, shape)
        assert value.shape == shape, "the sizes of the operands and of the value go together"
        return value


def _bytes(address: int, size: int) -> np.ndarray:
    return np.frombuffer((ctypes.c_uint8 * size).from_address(address), np.uint8)
