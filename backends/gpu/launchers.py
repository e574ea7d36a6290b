"""What loads compiled kernels and launches them, CuPy or PyCUDA, behind one interface."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from optree.errors import BackendError

#: How many blocks or threads, along x, y and z.
Sizes = tuple[int, int, int]


#: A block has so many bytes of dynamic shared memory without asking for more.
SHARED = 48 << 10

#: CUDA's number for the limit of that which a kernel has asked for (`CUfunction_attribute`).
SHARED_LIMIT = 8


class Launcher(Protocol):
    """Loads kernels into the current device, and launches them on a stream."""

    def load(self, cubin: bytes, name: str) -> Any:
        """The kernel of a name in a compiled module, which stays loaded as long as the kernel is kept."""

    def bound(self, kernel: Any, grid: Sizes, block: Sizes, words: Sequence[int], shared: int = 0) -> Callable[[], Any]:
        """What lets a kernel run on CuPy's current stream each time it is called, and does not wait for it.

        Parameters
        ----------
        kernel : object
            What `load` gave.
        grid, block : tuple of int
        words : sequence of int
            For each parameter its 8 bytes as a signed integer, or if it has others, a NumPy scalar of its size.
        shared : int
            Bytes of dynamic shared memory.
        """


class CuPyLauncher:
    """By CuPy."""

    def __init__(self, cupy: Any) -> None:
        self._cuda = cupy.cuda
        #: 8 bytes, of which kernels take as many as they need; whatever else CuPy is given it converts at each launch.
        self._word = cupy.cuda.function.CIntptr
        self._shared: dict[Any, int] = {}

    def load(self, cubin: bytes, name: str) -> Any:
        module = self._cuda.function.Module()
        module.load(cubin)
        return module.get_function(name)

    def bound(self, kernel: Any, grid: Sizes, block: Sizes, words: Sequence[int], shared: int = 0) -> Callable[[], Any]:
        if shared > max(SHARED, self._shared.get(kernel, 0)):
            runtime = self._cuda.runtime
            runtime.setDevice(runtime.getDevice())  # a thread that has only launched may have no context for the driver
            self._cuda.driver.funcSetAttribute(kernel.ptr, SHARED_LIMIT, shared)
            self._shared[kernel] = shared
        given = tuple([self._word(int(word)) for word in words])  # it takes no scalar of NumPy's
        return partial(kernel, grid, block, given, shared)


class PyCUDALauncher:
    """By PyCUDA, in the device's primary context, which is CuPy's too."""

    def __init__(self, cupy: Any) -> None:
        self._cuda = cupy.cuda
        try:
            self._driver = import_module("pycuda.driver")
        except Exception as error:  # it links the driver, and raises what that raises
            raise BackendError(
                f"launcher='pycuda' needs PyCUDA ({error}); pip install pycuda builds it, for which "
                "the CUDA toolkit's nvcc has to be there; launcher='cupy' needs neither"
            ) from error
        self._driver.init()
        self._context = self._driver.Device(cupy.cuda.runtime.getDevice()).retain_primary_context()

    def load(self, cubin: bytes, name: str) -> Any:
        self._context.push()
        try:
            module = self._driver.module_from_buffer(cubin)
            return module, module.get_function(name)
        finally:
            self._context.pop()

    def bound(self, kernel: Any, grid: Sizes, block: Sizes, words: Sequence[int], shared: int = 0) -> Callable[[], Any]:
        _, function = kernel
        args = [word if isinstance(word, np.generic) else np.int64(word) for word in words]
        return partial(self._launch, function, grid, block, args, shared)

    def _launch(self, function: Any, grid: Sizes, block: Sizes, args: Sequence[Any], shared: int) -> None:
        current, default = self._cuda.get_current_stream(), self._cuda.Stream.null
        elsewhere = current.ptr != default.ptr  # PyCUDA takes no stream that it has not made, but the default one
        if elsewhere:
            default.wait_event(current.record())
        self._context.push()
        try:
            if shared > SHARED:
                limit = self._driver.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES
                function.set_attribute(limit, shared)
            function(*args, grid=grid, block=block, shared=shared)
        finally:
            self._context.pop()
        if elsewhere:
            current.wait_event(default.record())


#: How each is made, of CuPy, while its device is the current one.
LAUNCHERS: Mapping[str, Callable[[Any], Launcher]] = MappingProxyType({"cupy": CuPyLauncher, "pycuda": PyCUDALauncher})
