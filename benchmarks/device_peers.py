"""The libraries that workloads are run by on a GPU, each at its best setting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from hand_kernels import Kernels
from peers import Jax, Optree, Peer, Torch, Way, names_of
from workloads import Workload


class DeviceOptree(Optree):
    """op-tree on the GPU."""

    home = "gpu"


class CuPy(Peer):
    """CuPy: eager calls with `out=` and preallocated buffers; derivatives by hand."""

    name = "cupy"

    def __init__(self) -> None:
        super().__init__()
        self.erf = import_module("cupyx.scipy.special").erf

    def way(self, workload: Workload, shapes: list[tuple[int, ...]]) -> Way:
        cupy = self.library
        operands = [cupy.array(x) for x in workload.copies()]
        run, results = workload.numpy(SimpleNamespace(**vars(cupy), erf=self.erf), *operands)
        return run, lambda: _on_host(results())


class Fused(CuPy):
    """``cupy.fuse`` of the formula; it takes elementwise operations, and sums of everything."""

    name, module = "cupy.fuse", "cupy"
    refusals = (Exception,)  # raised by CuPy on operands that it does not support

    def __init__(self) -> None:
        super().__init__()
        maximum = self.library.maximum
        self.names = names_of(self.library, erf=self.erf, relu=lambda x: maximum(x, 0))

    def way(self, workload: Workload, shapes: list[tuple[int, ...]]) -> Way:
        cupy, kept = self.library, list[Any]()
        operands = [cupy.array(x) for x in workload.copies()]
        fused = cupy.fuse(kernel_name="fused")(lambda *given: tuple(workload.formula(self.names, *given)))

        def run() -> None:
            made = fused(*operands)
            kept[:] = made if isinstance(made, tuple | list) else [made]
            for place, value in enumerate(kept[: workload.in_place]):
                operands[place] = value

        return run, lambda: _on_host(kept)


class HandWritten(Peer):
    """CuPy's ElementwiseKernel and ReductionKernel, written by hand for a workload."""

    name, module = "by hand", "cupy"
    refusals = (NotImplementedError,)

    def __init__(self) -> None:
        super().__init__()
        self.kernels = Kernels(self.library)

    def way(self, workload: Workload, shapes: list[tuple[int, ...]]) -> Way:
        cupy, count = self.library, workload.in_place
        operands = [cupy.array(x) for x in workload.copies()]
        outs = operands[:count] or [cupy.empty(shape, workload.dtype) for shape in shapes]
        return self.kernels.way(workload, operands, outs), lambda: _on_host(outs)


class DeviceTorch(Torch):
    """``torch.compile`` on the GPU."""

    device = "cuda"

    def __init__(self) -> None:
        super().__init__()
        if not self.library.cuda.is_available():
            raise ImportError("torch finds no GPU")


class TorchEager(DeviceTorch):
    """torch, eager; a result that is not in place is new memory, without a copy."""

    name, module = "torch eager", "torch"

    def way(self, workload: Workload, shapes: list[tuple[int, ...]]) -> Way:
        if workload.in_place:
            return super().way(workload, shapes)
        operands, kept = [self.tensor(x) for x in workload.copies()], list[Any]()

        def run() -> None:
            kept[:] = workload.formula(self.names, *operands)

        return run, lambda: [self.on_host(x) for x in kept]

    def run_of(self, step: Callable[..., None], outs: list[Any], operands: list[Any]) -> Callable[[], Any]:
        return lambda: step(outs, operands)


class TorchGraph(DeviceTorch):
    """``torch.compile``, captured in a CUDA graph and replayed."""

    name, module = "torch graph", "torch"

    def run_of(self, step: Callable[..., None], outs: list[Any], operands: list[Any]) -> Callable[[], Any]:
        cuda, run = self.library.cuda, super().run_of(step, outs, operands)
        before, side = [out.clone() for out in outs], cuda.Stream()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):  # compiled and warm before it is captured
            for _ in range(3):
                run()
        cuda.current_stream().wait_stream(side)
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            run()
        for out, value in zip(outs, before, strict=True):  # results may be operands
            out.copy_(value)
        return graph.replay


class DeviceJax(Jax):
    """``jax.jit`` on the GPU; products in float32, as for the other libraries."""

    def __init__(self) -> None:
        super().__init__()
        if self.library.default_backend() != "gpu":
            raise ImportError("JAX finds no GPU")
        self.library.config.update("jax_default_matmul_precision", "highest")

    def run_of(self, compiled: Any, kept: list[Any], rest: list[Any]) -> Callable[[], None]:
        return Waiting(compiled, kept, rest, self.library.block_until_ready)


class Waiting:
    """An asynchronous call, and a wait for all calls: events cannot time JAX, which has streams of its own."""

    def __init__(self, compiled: Any, kept: list[Any], rest: list[Any], ready: Callable[[Any], Any]) -> None:
        self._compiled, self._kept, self._rest, self._ready = compiled, kept, rest, ready

    def __call__(self) -> None:
        self._kept[:] = self._compiled(list(self._kept), self._rest)

    def wait(self) -> None:
        """Wait until the last results are there."""
        self._ready(self._kept)


def _on_host(arrays: Sequence[Any]) -> list[Any]:
    return [array.get() for array in arrays]


#: In the order of the columns.
DEVICE_PEERS = (DeviceOptree, CuPy, Fused, HandWritten, TorchEager, DeviceTorch, TorchGraph, DeviceJax)
