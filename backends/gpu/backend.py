"""The GPU backend: tensors in CuPy arrays, and plans of CUDA kernels and CuPy calls."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import groupby
from typing import Any

import numpy as np

from backends.backend import Backend, Within
from backends.creation import check_placement
from backends.execution.ahead import Foreseen, Foresight
from backends.execution.executor import CallStep, Step, runnable, steps_of, steps_text
from backends.execution.joined import joined
from backends.execution.memory import Memory
from backends.execution.memory_planner import planned_steps
from backends.execution.specialize import FusedKernel
from backends.gpu.calls import ROUTINES, convolutions_by, implementation_of
from backends.gpu.cuda_graphs import Counts, Graphs, is_capturable
from backends.gpu.cudnn import CuDNN, installed
from backends.gpu.cupy_device import (
    CUDNN_CAPABILITY,
    FAULTS,
    TF32_CAPABILITY,
    Active,
    Constants,
    InFlight,
    InOrder,
    Uploads,
    check_no_fault,
    fault_of,
    faults,
    find_cupy,
    is_want_of_memory,
    status_of,
)
from backends.gpu.fourier import Transforms
from backends.gpu.joined import Together, divided, source_of
from backends.gpu.kernel import ALIGNMENT, CUDA, CudaNest
from backends.gpu.launchers import LAUNCHERS
from backends.gpu.matmul import Products
from backends.gpu.runtime import KernelHost, target_of
from optree import settings
from optree.arrays import has, is_portable
from optree.compile.aliasing import alias_sets, last_uses, outlined
from optree.compile.fusion import LONGEST
from optree.compile.pipeline import Options
from optree.compile.program import Instruction, Plan, Program, Steps, outputs_of, run_steps
from optree.dtypes import is_complex, is_inexact
from optree.errors import BackendError, DeviceMemoryError, DTypeError, OperandError, OptreeError, describe, names
from optree.locks import cached_property
from optree.op.traits import CompositeOperator
from optree.settings import thread_count
from optree.tree.node import OpTreeNode
from optree.tree.tensor import Tensor
from optree.tree.types import as_dtype
from optree.tree.variable import Constant, Input

#: DLPack's numbers for memory that a CUDA device can reach (`kDLCUDA`, `kDLCUDAManaged`).
CUDA_MEMORY = (2, 13)


class GPUBackend(Backend):
    """Tensors in CuPy arrays on one CUDA device.

    Work is asynchronous, in order on CuPy's current stream: ``with cupy.cuda.Stream():``
    chooses another, and `synchronize` waits. What needs a value on the host, such as
    `Tensor.get`, synchronizes.

    Without a copy, `Tensor.raw` gives the CuPy array, `adopt` makes a tensor over one
    or over another library's array on the device (``__cuda_array_interface__``), and
    `from_dlpack` over one by DLPack.

    Attributes
    ----------
    cupy : module
    errstate : callable
        CuPy's context manager for errors of linear algebra.
    host_calls : int
        The number of runs of ops on the host, because they support NumPy's arrays alone.
    kernels : KernelHost or None
        The host that compiles and launches kernels; None if ``jit`` is False.

    Parameters
    ----------
    allocator : {'pool', 'async'}
        ``'pool'`` for CuPy's current allocator, its memory pool unless
        `cupy.cuda.set_allocator` was called; ``'async'`` for CUDA's stream-ordered allocator.
    launcher : {'cupy', 'pycuda'}
        The library that launches kernels.
    jit : bool
        Whether operations are fused into CUDA kernels; if not, CuPy runs them one by one.
    graphs : bool
        Whether functions are captured as CUDA graphs (`backends.gpu.cuda_graphs`).
    tf32 : bool
        Whether float32 is multiplied in TensorFloat-32, with mantissas of 10 bits.
    cudnn : bool, optional
        Whether cuDNN computes convolutions, where it has a plan for them; by default, if `nvidia-cudnn-frontend` is
        installed and the device has compute capability 7.5 or newer.
    """

    name = "gpu"
    internal = Backend.internal | {*"cudnn draws errstate graphs is_own kernels memory product transform".split()}

    def __init__(
        self,
        *args: Any,
        allocator: str = "pool",
        launcher: str = "cupy",
        jit: bool = True,
        graphs: bool = True,
        tf32: bool = False,
        cudnn: bool | None = None,
    ) -> None:
        self.cupy, self.devices = find_cupy()
        self.errstate = import_module("cupyx").errstate
        self.host_calls = 0
        #: The instructions of the program that ran last.
        self._latest: Sequence[Instruction] = ()
        self._constants, self.draws = Constants(self.cupy), InOrder(self.cupy)
        self._in_flight = InFlight(self.cupy)
        self._allocator = self._new_allocator(allocator)
        self._malloc = None if self._allocator is None else self._allocator.malloc
        if launcher not in LAUNCHERS:
            raise BackendError(f"launcher is one of {names(LAUNCHERS)}, not {launcher!r}")
        for option, value in (("jit", jit), ("graphs", graphs), ("tf32", tf32)):
            if not isinstance(value, bool):
                raise BackendError(f"{option} is True or False on a GPU, not {value!r}")
        if cudnn not in (None, True, False):
            raise BackendError(f"cudnn is True, False or None, not {cudnn!r}")
        self.graphs, self.product, self.transform = Counts(), Products(self.cupy, tf32), Transforms(self.cupy)
        self._uncaptured = _uncaptured(graphs, jit, launcher)
        super().__init__(*args)
        capability = self.cupy.cuda.Device(self.device_id).compute_capability
        target_of(capability, self.cupy.cuda.nvrtc)  # CuPy's kernels are compiled for it, too
        is_found = cudnn is None and int(capability) >= CUDNN_CAPABILITY and find_spec("cudnn") is not None
        self._uses_cudnn = bool(cudnn) or is_found
        if tf32 and int(capability) < TF32_CAPABILITY:
            raise BackendError(
                f"tf32=True needs a device of compute capability 8.0 or newer, and {self.device_id} has "
                f"{capability[:-1]}.{capability[-1]}; leave it out"
            )
        self.memory = Memory(
            self.cupy.ndarray, self._on_device, self.cupy.ndarray, lambda x: x.data.ptr, self._unallocated, ALIGNMENT
        )
        with self.active():
            self.kernels = KernelHost(self.cupy, LAUNCHERS[launcher](self.cupy)) if jit else None
        if cudnn:
            self.cudnn  # noqa: B018  # loaded now, so that what is missing is said here

    def _new_allocator(self, name: str) -> Any:
        if name not in ("pool", "async"):
            raise BackendError(f"allocator is 'pool' or 'async', not {name!r}")
        try:
            return self.cupy.cuda.MemoryAsyncPool() if name == "async" else None
        except self.cupy.cuda.runtime.CUDARuntimeError as error:
            raise BackendError(f"allocator='async': this device or driver has none ({error})") from error

    @cached_property
    def cudnn(self) -> CuDNN | None:
        """The library of convolutions, loaded by the first; None where kernels compute them."""
        if not self._uses_cudnn:
            return None
        with self.active():
            return CuDNN(installed())

    @cached_property
    def _one_element(self) -> Any:
        """Memory for an element of any dtype."""
        return self.cupy.empty(16, np.uint8)

    # The device

    def active(self) -> Active:
        """A context with the backend's device and allocator, and its own out-of-memory errors."""
        return Active(self.cupy.cuda, self.device_id, self._malloc, self._described)

    def _described(self, error: Exception) -> Exception | None:
        """The error that says what to do about one of CUDA's; None for any other."""
        cuda = self.cupy.cuda
        status = status_of(cuda, error)
        if isinstance(error, BackendError) or not isinstance(error, OptreeError):  # a library says less than the device
            status = status or cuda.runtime.streamQuery(cuda.get_current_stream().ptr)
        if status in FAULTS:
            names = dict.fromkeys(str(each.op) for each in self._latest)
            return fault_of(error, f"; the last program was: {', '.join(names)}" if names else "")
        if isinstance(error, DeviceMemoryError) or not is_want_of_memory(cuda, error):
            return None
        return self._out_of_memory(error)

    def _out_of_memory(self, error: Exception) -> DeviceMemoryError:
        memory = self._memory()
        asked = re.search(r"allocating ([\d,]+) bytes", str(error))
        wanted = f"{asked[1]} bytes were asked for" if asked else str(error)
        found = DeviceMemoryError(
            f"device {self.device_id} is out of memory: {wanted}; {memory['held']:,} bytes are held here, "
            f"{memory['used']:,} of them in use, and {memory['free']:,} of the device's {memory['total']:,} are free. "
            "What was assigned before stays as it was"
        )
        for note in getattr(error, "__notes__", ()):
            found.add_note(note)
        return found

    def _memory(self) -> dict[str, int]:
        """The bytes held by the allocator and of these in use, and of the device the free ones and all.

        None of it can be used after a fault.
        """
        if faults:
            return dict.fromkeys(("held", "used", "free", "total"), 0)
        pool = self._allocator or self.cupy.get_default_memory_pool()
        with self.active():
            free, total = self.cupy.cuda.Device(self.device_id).mem_info
            return {"held": pool.total_bytes(), "used": pool.used_bytes(), "free": free, "total": total}

    def synchronize(self) -> None:
        """Wait until the device has finished the work of all streams."""
        with self.active():
            self._wait()

    def _wait(self) -> None:
        self.cupy.cuda.Device(self.device_id).synchronize()

    def uploads(self) -> Callable[[np.ndarray], Callable[[], Tensor]]:
        with self.active():
            uploads = Uploads(self.cupy, self._in_flight)

        def upload(array: np.ndarray) -> Callable[[], Tensor]:
            wanted = array.dtype if array.dtype.kind in "biu" else self._dtype(None, is_complex(array.dtype))
            with self.active():
                found, wait = uploads(array.astype(as_dtype(wanted), copy=False))

            def arrive() -> Tensor:
                with self.active():
                    wait()
                return self.over(found)

            return arrive

        return upload

    def info(self) -> str:
        """The device, the executor of assignments, and the allocator."""
        check_no_fault()
        runtime = self.cupy.cuda.runtime
        properties = runtime.getDeviceProperties(self.device_id)
        version = f"{properties['major']}.{properties['minor']}"
        memory = "CuPy's pool" if self._allocator is None else "CUDA's stream-ordered allocator"
        return (
            f"device {self.device_id}, {properties['name'].decode()} of compute capability {version}: "
            f"{'operations one by one' if self.kernels is None else 'fused CUDA kernels, and other operations'} "
            f"by CuPy {self.cupy.__version__}, products by cuBLASLt, those of float32 in "
            f"{'TensorFloat-32' if self.product.tf32 else 'float32'}, convolutions by {convolutions_by(self)}, "
            f"memory from {memory}"
        )

    def stats(self) -> dict[str, Any]:
        """Counts since the backend was made; ``memory`` has bytes: held here, of these used, free, and in total.

        All of these bytes are 0 after a `DeviceFault`.
        """
        kernels = {} if self.kernels is None else self.kernels.counts.counts()
        counts = {"host_calls": self.host_calls, "kernels": kernels, "graphs": asdict(self.graphs)}
        return {**super().stats(), **counts, "memory": self._memory()}

    # Memory

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        with self.active():
            return self.cupy.empty(shape, dtype)

    def from_host(self, array: np.ndarray) -> Any:
        with self.active():
            return self.cupy.array(array, order="C")

    def owned(self, value: Any, dtype: np.dtype | None = None) -> Any:
        if self.is_own(value) and value.flags.c_contiguous and dtype in (None, value.dtype):
            return value
        with self.active():
            return self.cupy.asarray(value, dtype, order="C")

    def borrowed(self, array: np.ndarray) -> Any:
        return self.from_host(array)

    def to_host(self, array: Any, blocking: bool = True) -> np.ndarray:
        with self.active():
            if blocking or not array.size:
                return array.get(order="C")
            return self._in_flight.sent(array)[1]

    def _on_device(self, value: Any) -> Any:
        """A value as a CuPy array, of any layout."""
        return value if isinstance(value, self.cupy.ndarray) else self.owned(value)

    def _unallocated(self, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        """An array with the memory of one element, which all such arrays share, for its layout alone."""
        return self.cupy.ndarray(shape, dtype, self._one_element.data)

    def is_own(self, value: Any) -> bool:
        """Whether a value is a CuPy array."""
        return isinstance(value, self.cupy.ndarray)

    def value_of(self, leaf: Any, is_kept: bool = True) -> Any:
        value = super().value_of(leaf, is_kept)
        if not isinstance(leaf, Constant) or not isinstance(value, np.ndarray):
            return value
        with self.active():
            return self._constants.uploaded(value, is_kept)

    # Tensors over the memory of other libraries

    def adopt(self, array: Any, name: str | None = None) -> Tensor:
        """A tensor over a CuPy array, or any with ``__cuda_array_interface__``, without a copy."""
        if not self.is_own(array):
            if not has(array, "__cuda_array_interface__"):
                raise OperandError(
                    f"adopt: an array on a CUDA device is wanted, not {describe(array)}; be.array(...) copies it there"
                )
            if array.__cuda_array_interface__["data"][1]:
                raise OperandError(
                    "adopt: the array's memory is read-only, and tensors are written to; be.array copies it"
                )
            with self.active():
                array = self.cupy.asarray(array)
        if array.device.id != self.device_id:
            raise BackendError(
                f"adopt: the array is on device {array.device.id}, and this backend's tensors on {self.device_id}: "
                f"be.array(...) copies it over, and gen_backend('gpu', device_id={array.device.id}) takes it as it is"
            )
        return super().adopt(array, name)

    def check_adopted(self, array: Any) -> None:
        super().check_adopted(array)
        if array.size and array.data.ptr % array.dtype.itemsize:
            raise OperandError(
                f"adopt: the memory of the array of shape {array.shape} is unaligned, and kernels take its elements as "
                "aligned; be.array copies it"
            )

    def array(self, values: Any, dtype: Any = None, name: str | None = None, **placement: bool) -> Tensor:
        """A new tensor with the values of an array, list, number, tensor or tree; arrays on the device stay there."""
        check_placement(placement)
        if isinstance(values, OpTreeNode) and values.backend is self:
            values = self.evaluate([values])[0]
        if isinstance(values, Tensor) and self.is_own(values.array):
            values = values.array
        if not self.is_own(values) and not has(values, "__cuda_array_interface__"):
            return super().array(values, dtype, name)
        with self.active():
            array = self._on_device(values)
            if array.dtype.kind not in "biu" and not is_inexact(array.dtype):
                raise DTypeError(f"array: {array.dtype} values are no numbers that a tensor can hold")
            keeps = dtype is None and array.dtype.kind in "biu"
            wanted = as_dtype(array.dtype) if keeps else self._dtype(dtype, is_complex(array.dtype))
            return self.over(self._copied(array, wanted), name)

    def _copied(self, array: Any, dtype: np.dtype) -> Any:
        """A copy of an array; of another device's, in the order of both devices' current streams."""
        cuda, elsewhere = self.cupy.cuda, array.device.id
        if elsewhere == self.device_id:
            return self.cupy.array(array, dtype, order="C")
        here = cuda.get_current_stream()
        with cuda.Device(elsewhere):
            there = cuda.get_current_stream()
            written = there.record()
        here.wait_event(written)
        copy = self.cupy.array(array, dtype, order="C")
        there.wait_event(here.record())  # before the array is written to again
        return copy

    def from_dlpack(self, source: Any, name: str | None = None) -> Tensor:
        """A tensor over the memory of another library's array on this device, by DLPack, without a copy.

        The current stream waits for that library's work on the array.
        """
        device = source.__dlpack_device__() if has(source, "__dlpack_device__") else None
        if device is None or device[0] not in CUDA_MEMORY:
            raise OperandError(
                "from_dlpack: an array on a CUDA device that speaks DLPack is wanted, "
                f"not {describe(source)}; be.array copies lists and NumPy arrays"
            )
        with self.active():
            return self.adopt(self.cupy.from_dlpack(source), name)

    def imported(self, array: Any, what: str) -> Any:
        if has(array, "__dlpack_device__") and array.__dlpack_device__()[0] in CUDA_MEMORY:
            return self.from_dlpack(array)
        if has(array, "__cuda_array_interface__"):
            return self.adopt(array)
        return super().imported(array, what)

    # Running

    def compile(self, program: Program, reuse: bool = False) -> Plan:
        lowered = self.lowered(program, shown=True)
        constants = [self.value_of(leaf) for leaf in lowered.leaves[len(program.leaves) :]]
        outline = outlined(lowered)
        steps = self._steps(outline, reuse, shown=True, tensors=_tensors(lowered) if reuse else ())
        waits = settings.value("sync")
        uncaptured = self._uncaptured or ("OPTREE_SYNC=1 waits for each step" if waits else "")
        captured = reuse and not uncaptured and bool(steps)
        open_registers = [*constants, *[None] * len(outline.instructions)]
        graphs = self._graphs(program, outline, steps, open_registers) if captured else None
        ready, outputs = runnable(steps), outputs_of(outline)
        if waits:
            ready = [(_followed(call, self._wait), *rest) for call, *rest in ready]
        note, is_new = self.noting(outline), True

        def run(values: list[Any], roots: Sequence[Any] | None) -> Sequence[Any]:
            nonlocal is_new
            with self.active():
                self._latest = outline.instructions
                if graphs is not None:
                    return graphs.run(values, note)
                if is_new:
                    is_new = False
                    self.compile_ahead(outline, steps, values + open_registers)
                return run_steps(ready, open_registers, outputs, note, values, roots)

        return Plan(run, lambda: graphs.remark if graphs else f"not captured as a CUDA graph: {uncaptured}")

    def compile_ahead(self, program: Program, steps: Sequence[Step], values: list[Any]) -> None:
        """Compile the kernels of steps, several at a time, that they need for the registers before the first one.

        A failure is raised by the kernel when that runs: steps before it run, as without this.
        """
        # Sources are shown in the order of the steps.
        if self.kernels is None or thread_count() < 2 or "source" in settings.value("show"):
            return
        if sum(map(_has_kernels, steps)) > 1:  # a chain of 50,000 calls has none
            self.kernels.compile_ahead(self._sources_of(program, steps, values))

    def load_ahead(self, program: Program, steps: Sequence[Step], values: list[Any]) -> None:
        """Load the kernels of steps, whose code takes memory, for the registers before the first one."""
        if self.kernels is not None:
            self.kernels.load_ahead(self._sources_of(program, steps, values))

    def _sources_of(self, program: Program, steps: Sequence[Step], values: list[Any]) -> Iterable[str]:
        """The sources that steps need and that follow from the registers before the first one; these change."""
        foresight = Foresight(program, steps, values, self.memory)
        groups = groupby(foresight.run(), lambda each: each.group)
        sources = [source for _, group in groups for source in _sources([*group])]
        for step, inputs in foresight.calls:
            call: Any = step.implementation.call
            if _has_kernels(step):
                sources += call.sources(*inputs)
        return sources

    def compile_within(self, program: Program) -> Within:
        # Without `active`, which the step's own plan has entered: a graph that is captured has its own allocator.
        lowered = self.lowered(program, shown=True)
        constants = [self.value_of(leaf) for leaf in lowered.leaves[len(program.leaves) :]]
        outline = outlined(lowered)
        # Its caller's arrays are nobody else's yet.
        steps = self._steps(outline, False, is_atomic=False, shown=True)
        rest = [*constants, *[None] * len(outline.instructions)]
        run_whole = partial(run_steps, runnable(steps), rest, outputs_of(outline), self.noting(outline))
        is_new = True

        def run(values: list[Any]) -> Sequence[Any]:
            nonlocal is_new
            if is_new:
                is_new = False
                self.compile_ahead(outline, steps, values + rest)
            return run_whole(values)

        return Within.of(run, all(map(is_capturable, steps)))

    @property
    def lowering(self) -> Options:
        return CUDA if self.kernels is not None else Options()

    def planned(self, program: Program) -> Steps:
        lowered = self.lowered(program)
        constants = [self.value_of(leaf) for leaf in lowered.leaves[len(program.leaves) :]]
        return planned_steps(lowered, self._steps(lowered, True, tensors=_tensors(lowered)), constants)

    def show(self, program: Program, stage: str, is_function: bool = False) -> str:
        if stage == "plan":
            lowered = self.lowered(program)
            return steps_text(lowered, self._steps(lowered, False, tensors=_tensors(lowered) if is_function else ()))
        return "" if self.kernels is None else "\n".join(self.sources(program, "cuda", self.kernels.device))

    def _graphs(self, program: Program, outline: Program, steps: list[Step], open: list[Any]) -> Graphs:
        arguments = [i for i, leaf in enumerate(program.leaves) if isinstance(leaf, Input)]
        with self.active():
            return Graphs(self._in_flight, outline, steps, arguments, open, self._on_device, self)

    def _steps(
        self, program: Program, reuse: bool, is_atomic: bool = True, shown: bool = False, tensors: tuple[int, ...] = ()
    ) -> list[Step]:
        """The steps: kernels and calls, or where the program is too long, a call for each instruction."""
        plain = partial(implementation_of, self, program, last_uses(program) if reuse else None)
        options = self.lowering._replace(shown=shown, tensors=tensors)
        if self.kernels is not None and len(program.instructions) <= LONGEST:
            fused = partial(FusedKernel, compile=partial(CudaNest, host=self.kernels), memory=self.memory)
            join = partial(joined, partial(Together, self.kernels))
            return steps_of(program, plain, fused, options, self.memory, is_atomic, join)
        return steps_of(program, plain, options=options)

    def remark(self, instruction: Instruction) -> str:
        op = instruction.op
        has_kernels = self.kernels is not None and type(op) in ROUTINES
        return "" if is_portable(op) or has_kernels or isinstance(op, CompositeOperator) else "on the host"

    def on_host(self, program: Program, run: Callable[[list[Any]], Sequence[Any]]) -> Plan:
        written = _written_leaves(program)

        def run_on_host(values: list[Any], roots: Sequence[Any] | None) -> Sequence[Any]:
            copies = [self.to_host(x) if self.is_own(x) else x for x in values]
            found = run(copies)
            for i in written:
                with self.active():
                    values[i][...] = self.from_host(copies[i])
            return found

        return Plan(run_on_host, lambda: "not captured as a CUDA graph: its mode runs it op by op on the host")


def _followed(call: Callable[..., Any], wait: Callable[[], None]) -> Callable[..., Any]:
    """A call, after which the device is waited for."""

    def run(*operands: object, **out: object) -> Any:
        value = call(*operands, **out)
        wait()
        return value

    return run


def _has_kernels(step: Step) -> bool:
    """Whether a step has kernels that can be compiled ahead."""
    return not isinstance(step, CallStep) or hasattr(step.implementation.call, "sources")


def _sources(group: Sequence[Foreseen]) -> list[str]:
    """The sources that the runs of a kernel, or of those that run together, need."""
    launches = []
    for kernel, arrays, input_shapes, _ in group:
        found = kernel.specialize(arrays, input_shapes)
        if found is not None and found.nest is not None:
            addresses = [0 if x is None else kernel.memory.address(x) for x in arrays]
            launches.append(kernel.compiled(found.nest).parts(found.nest.pointers(addresses), found.layout))
    return [source_of(parts) for parts in divided(launches)]


def _uncaptured(graphs: bool, jit: bool, launcher: str) -> str:
    """The reason why functions are not captured; empty if they are."""
    if not graphs:
        return "graphs=False"
    if not jit:
        return "jit=False, and only kernels are captured"
    return "PyCUDA launches kernels on a stream that cannot be captured" if launcher == "pycuda" else ""


def _written_leaves(program: Program) -> list[int]:
    """The leaves that instructions overwrite, directly or through a view."""
    leaves = range(len(program.leaves))
    origins = alias_sets(program, leaves)
    overwritten = [each.inputs[n] for each in program.instructions for n in each.op.destroyed_inputs()]
    return sorted({i for value in overwritten for i in origins[value] if i in leaves})


def _tensors(program: Program) -> tuple[int, ...]:
    """A program's leaves that are tensors, which a function keeps the shapes of."""
    return tuple(i for i, leaf in enumerate(program.leaves) if isinstance(leaf, Tensor))
