"""Convolutions by NVIDIA's cuDNN, through its Python front end (`nvidia-cudnn-frontend`).

A convolution is planned once for the layouts of its operands; its plan is then
executed on CuPy's current stream, which may be captured. Plans are deterministic.

Plans have no epilogues: a bias and what follows it are one kernel of ours. cuDNN's activations differ from NumPy's at
infinity, for the front end clips a ReLU at the largest finite number.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple
from weakref import finalize

import numpy as np

from backends.execution.memory import element_strides
from backends.gpu.arrays import DeviceArray
from optree.cache import Cache
from optree.dtypes import is_bfloat16
from optree.errors import BackendError
from optree.locks import Locked
from optree.networks.windows import Sliding

#: Maximum entries of the cache of plans.
PLANS = 1024

#: The alignment in bytes of the addresses that plans are made for.
ALIGNED = 16

#: The front end's operation and its operands, by the array that a convolution computes.
_OPERATIONS = {
    "windows": ("conv_fprop", {"image": "images", "weight": "filters"}),
    "images": ("conv_dgrad", {"loss": "windows", "filter": "filters"}),
    "filters": ("conv_wgrad", {"image": "images", "loss": "windows"}),
}

_TYPES = {"float32": "FLOAT", "float64": "DOUBLE", "float16": "HALF", "bfloat16": "BFLOAT16"}

#: The numerical notes of excluded engines: for all dtypes, and for float32 unless TensorFloat-32 is requested.
_REFUSED = ("NONDETERMINISTIC", "REDUCED_PRECISION_REDUCTION")
_REFUSED_FLOAT32 = ("TENSOR_CORE", "DOWN_CONVERT_INPUTS")


class Layout(NamedTuple):
    """The sizes and strides, in elements, of images or filters: (N, C, spatial) or (O, I, spatial)."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Problem(NamedTuple):
    """A convolution or a derivative of one: the key of its plan."""

    #: Which of the three arrays is computed from the others: 'windows', 'images' or 'filters'.
    computed: str
    #: The dtype of all arrays.
    dtype: np.dtype
    #: Whether float32 is multiplied in TensorFloat-32.
    tf32: bool
    #: The images, the weights and the convolution of both.
    images: Layout
    filters: Layout
    windows: Layout
    #: The windows along each spatial axis.
    slidings: tuple[Sliding, ...]

    @property
    def layouts(self) -> dict[str, Layout]:
        """The layouts of all arrays, by their names, in the order in which plans take them."""
        return {"images": self.images, "filters": self.filters, "windows": self.windows}


def installed() -> Any:
    """The front end, loaded with its library; BackendError if one of them is missing."""
    try:
        frontend = import_module("cudnn")
        frontend.backend_version()
    except Exception as error:  # it raises any error of the libraries that it loads
        raise BackendError(
            f"convolutions by cuDNN need its library and nvidia-cudnn-frontend, which do not load ({_said(error)}): "
            "pip install '.[gpu]' installs them; cudnn=False goes without"
        ) from error
    return frontend


def _said(error: Exception) -> str:
    """The first line of an error's message."""
    return (str(error) or type(error).__name__).splitlines()[0]


class CuDNN(Locked):
    """cuDNN on the current device.

    `frontend`: the front end, from `installed`.
    """

    def __init__(self, frontend: ModuleType) -> None:
        super().__init__()
        self.frontend, self.handle = frontend, frontend.create_handle()
        self._plans = Cache("plans of convolutions", PLANS)
        finalize(self, frontend.destroy_handle, self.handle).atexit = False  # the driver may be unloaded before

    @property
    def version(self) -> str:
        """The version of the library."""
        return str(self.frontend.backend_version_string())

    def plan(self, problem: Problem) -> Plan:
        """The plan of a convolution."""
        with self.lock:
            plan: Plan | None = self._plans.get(problem)
            if plan is None:
                plan = self._plans[problem] = Plan(self.frontend, problem, handle=self.handle)
        return plan

    def run(self, plan: Plan, addresses: Sequence[int], workspace: int, stream: int) -> None:
        """Execute a plan on a stream.

        `addresses`: those of images, filters and windows.
        `workspace`: the address of as many bytes as the plan needs; 0 if it needs none.
        """
        with self.lock:
            self.frontend.set_stream(handle=self.handle, stream=stream)
            plan.execute(addresses, workspace, self.handle)


class Plan:
    """The best plan for a convolution by cuDNN's heuristics.

    `**options`: the front end's handle, or the properties of a device that is not here, as ``device_property``.
    """

    def __init__(self, frontend: ModuleType, problem: Problem, **options: Any) -> None:
        #: The bytes of its workspace; None if cuDNN has no plan.
        self.workspace: int | None = None
        unsupported = frontend.cudnnGraphNotSupportedError
        try:
            self._graph, self._tensors = _graph(frontend, problem, options)
            self._graph.build_operation_graph()
            self._graph.create_execution_plans([frontend.heur_mode.A, frontend.heur_mode.FALLBACK])
            is_float32 = problem.dtype == np.float32 and not problem.tf32
            notes = [*_REFUSED, *(_REFUSED_FLOAT32 if is_float32 else ())]
            self._graph.deselect_numeric_notes([getattr(frontend.numerical_note, name) for name in notes])
            self._graph.check_support()
            self._graph.build_plans()
        except unsupported:
            return
        self.workspace = self._graph.get_workspace_size()

    def execute(self, addresses: Sequence[int], workspace: int, handle: int) -> None:
        """Launch it on the handle's stream."""
        self._graph.execute(dict(zip(self._tensors, addresses, strict=True)), workspace, handle=handle)


def _graph(frontend: ModuleType, problem: Problem, options: dict[str, Any]) -> tuple[Any, list[Any]]:
    """The front end's graph of a convolution, validated, and its tensors in the order of `Problem.layouts`."""
    types = frontend.data_type
    dtype = getattr(types, _TYPES["bfloat16" if is_bfloat16(problem.dtype) else problem.dtype.name])
    wide = types.DOUBLE if problem.dtype == np.float64 else types.FLOAT
    graph = frontend.pygraph(io_data_type=dtype, intermediate_data_type=wide, compute_data_type=wide, **options)
    name, operands = _OPERATIONS[problem.computed]
    layouts = problem.layouts
    tensors = {
        each: graph.tensor(dim=list(layout.shape), stride=list(layout.strides), name=each)
        for each, layout in layouts.items()
        if each != problem.computed
    }
    slid = problem.slidings
    value = getattr(graph, name)(
        **{parameter: tensors[each] for parameter, each in operands.items()},
        pre_padding=[s.before for s in slid],
        post_padding=[_after(s) for s in slid],
        stride=[s.stride for s in slid],
        dilation=[s.dilation for s in slid],
    )
    computed = layouts[problem.computed]
    value.set_output(True).set_data_type(dtype).set_dim(list(computed.shape)).set_stride(list(computed.strides))
    tensors[problem.computed] = value
    graph.validate()
    return graph, [tensors[each] for each in layouts]


def _after(s: Sliding) -> int:
    """The padding after an axis that its last window reaches."""
    return max(0, (s.positions - 1) * s.stride + (s.window - 1) * s.dilation + 1 - s.size - s.before)


def problem_of(
    computed: str,
    tf32: bool,
    images: DeviceArray,
    filters: DeviceArray,
    windows: DeviceArray,
    slidings: Sequence[Sliding],
) -> Problem | None:
    """The problem of a convolution of device arrays.

    None for layouts that cuDNN does not support: negative or zero strides, negative padding before an axis, and
    unaligned addresses.
    """
    arrays = images, filters, windows
    if any(stride <= 0 or stride % x.itemsize for x in arrays for stride in x.strides):
        return None
    if any(x.data.ptr % ALIGNED for x in arrays) or any(s.before < 0 for s in slidings):
        return None
    layouts, along = [Layout(tuple(x.shape), element_strides(x)) for x in arrays], tuple(slidings)
    if len(along) == 1:  # an image of one row
        layouts, along = [_as_row(layout) for layout in layouts], (Sliding(1, 1, 1, 1, 0, 1), *along)
    dtype = images.dtype
    first, second, third = layouts
    return Problem(computed, dtype, tf32 and dtype == np.float32, first, second, third, along)


def _as_row(layout: Layout) -> Layout:
    (outer, inner, size), (step_outer, step_inner, step) = layout
    return Layout((outer, inner, 1, size), (step_outer, step_inner, size * step, step))
