"""Launchers of compiled kernels: an interface, implemented by CuPy and by PyCUDA."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from types import MappingProxyType, ModuleType
from typing import Any, Protocol

import numpy as np

from backends.gpu.codegen.signatures import parameter_sizes
from optree.errors import BackendError, DeviceMemoryError

#: The number of blocks or threads along x, y and z.
Sizes = tuple[int, int, int]

#: `CUfunction_attribute`: the maximum dynamic shared memory in bytes, and the carveout of shared memory in percent.
SHARED_LIMIT, SHARED_CARVEOUT = 8, 9

#: The maximum carveout, which launch configurations assume when they count resident blocks.
MAX_CARVEOUT = 100

#: `CUresult` of an invalid image: it is damaged, for another device or version, or has no such kernel.
REFUSALS = frozenset((200, 209, 218, 222, 300, 500))


class ImageError(BackendError):
    """Raised if the driver does not load a compiled module."""


class Launcher(Protocol):
    """The interface that loads kernels into the current device, and launches them on a stream."""

    def load(self, image: bytes, names: Sequence[str], source: str) -> list[Any]:
        """Load a module; its kernels, by name. It stays loaded as long as one of them is referenced.

        Raises ImageError if the driver refuses the module.
        """

    def bound(self, kernel: Any, grid: Sizes, block: Sizes, words: Sequence[int], shared: int = 0) -> Callable[[], Any]:
        """A function that launches a kernel on CuPy's current stream, asynchronously.

        `kernel`: a kernel of `load`.
        `words`: for each parameter a signed integer of 8 bytes; the parameter is its first bytes.
        `shared`: bytes of dynamic shared memory.
        """


#: NumPy's unsigned integer of each number of bytes.
_UNSIGNED = {dtype.itemsize: dtype.type for dtype in map(np.dtype, ("uint8", "uint16", "uint32", "uint64"))}


@dataclass
class Loaded:
    """A CuPy kernel and its limit of dynamic shared memory; the module is unloaded with its last kernel."""

    function: Any
    shared: int = 0


class CuPyLauncher:
    """The launcher of CuPy."""

    def __init__(self, cupy: ModuleType) -> None:
        self._cuda = cupy.cuda
        #: An argument of 8 bytes, of which the kernel reads its parameter's size; CuPy would convert other types at
        #: each launch.
        self._word = cupy.cuda.function.CIntptr

    def load(self, image: bytes, names: Sequence[str], source: str) -> list[Any]:
        module = self._cuda.function.Module()
        try:
            module.load(image)
            return [Loaded(module.get_function(name)) for name in names]
        except self._cuda.driver.CUDADriverError as error:
            if error.status in REFUSALS:
                raise ImageError(str(error)) from error
            raise

    def bound(self, kernel: Any, grid: Sizes, block: Sizes, words: Sequence[int], shared: int = 0) -> Callable[[], Any]:
        # For any size: by default static and dynamic shared memory share 48 KiB.
        function = kernel.function
        if shared > kernel.shared:
            runtime, driver = self._cuda.runtime, self._cuda.driver
            runtime.setDevice(runtime.getDevice())  # the driver's call needs a context in this thread
            driver.funcSetAttribute(function.ptr, SHARED_LIMIT, shared)
            driver.funcSetAttribute(function.ptr, SHARED_CARVEOUT, MAX_CARVEOUT)
            kernel.shared = shared
        given = tuple([self._word(int(word)) for word in words])  # it takes no integer of NumPy's
        return partial(function, grid, block, given, shared)


class PyCUDALauncher:
    """The launcher of PyCUDA, in the device's primary context, as CuPy."""

    def __init__(self, cupy: ModuleType) -> None:
        self._cuda = cupy.cuda
        try:
            self._driver = import_module("pycuda.driver")
        except Exception as error:  # it links the driver, and raises any of its errors
            raise BackendError(
                f"launcher='pycuda' needs PyCUDA ({error}); pip install pycuda builds it with the CUDA toolkit's nvcc; "
                "launcher='cupy' needs neither"
            ) from error
        self._driver.init()
        self._context = self._driver.Device(cupy.cuda.runtime.getDevice()).retain_primary_context()

    def load(self, image: bytes, names: Sequence[str], source: str) -> list[Any]:
        sizes = parameter_sizes(source)
        self._context.push()
        try:
            module = self._driver.module_from_buffer(image)
            return [(module, module.get_function(name), sizes[name]) for name in names]
        except self._driver.MemoryError as error:
            raise DeviceMemoryError(f"PyCUDA has no memory for a kernel's code: {error}") from error
        except self._driver.Error as error:
            raise ImageError(str(error)) from error
        finally:
            self._context.pop()

    def bound(self, kernel: Any, grid: Sizes, block: Sizes, words: Sequence[int], shared: int = 0) -> Callable[[], Any]:
        _, function, sizes = kernel
        # PyCUDA packs each argument as its NumPy type says, and the driver reads each parameter at its own offset.
        args = [_UNSIGNED[n](int(word) & (1 << 8 * n) - 1) for word, n in zip(words, sizes, strict=True)]
        return partial(self._launch, function, grid, block, args, shared)

    def _launch(self, function: Any, grid: Sizes, block: Sizes, args: Sequence[Any], shared: int) -> None:
        current, default = self._cuda.get_current_stream(), self._cuda.Stream.null
        is_other = current.ptr != default.ptr  # PyCUDA supports its own streams and the default one
        if is_other:
            default.wait_event(current.record())
        self._context.push()
        try:
            if shared:
                attributes = self._driver.function_attribute
                function.set_attribute(attributes.MAX_DYNAMIC_SHARED_SIZE_BYTES, shared)
                function.set_attribute(attributes.PREFERRED_SHARED_MEMORY_CARVEOUT, MAX_CARVEOUT)
            function(*args, grid=grid, block=block, shared=shared)
        except self._driver.MemoryError as error:
            raise DeviceMemoryError(f"PyCUDA has no memory to launch a kernel: {error}") from error
        finally:
            self._context.pop()
        if is_other:
            current.wait_event(default.record())


#: The launchers by name, constructed from CuPy while its device is current.
LAUNCHERS: Mapping[str, Callable[[Any], Launcher]] = MappingProxyType({"cupy": CuPyLauncher, "pycuda": PyCUDALauncher})
