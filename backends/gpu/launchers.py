"""What loads compiled kernels and launches them, CuPy or PyCUDA, behind one interface."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from optree.errors import BackendError, DeviceMemoryError

#: How many blocks or threads, along x, y and z.
Sizes = tuple[int, int, int]

#: CUDA's numbers for what is asked for a kernel (`CUfunction_attribute`): the most bytes of dynamic shared memory of a
#: block, and how many percent of the memory that shared memory and the L1 cache divide are to be shared memory.
SHARED_LIMIT, SHARED_PART = 8, 9

#: All that a multiprocessor may have of it: geometry counts the blocks that have room there at once.
MOST_SHARED = 100

#: CUDA's numbers for errors of an image (`CUresult`): it is damaged, for another device or of another version, or it
#: has no such kernel.
REFUSALS = frozenset((200, 209, 218, 222, 300, 500))


class ImageError(BackendError):
    """A compiled module that the driver does not load."""


class Launcher(Protocol):
    """Loads kernels into the current device, and launches them on a stream."""

    def load(self, image: bytes, names: Sequence[str]) -> list[Any]:
        """The kernels of a compiled module by their names; it is loaded once, and stays as long as one of them is kept.

        Raises
        ------
        ImageError
            If the driver refuses it.
        """

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

    def load(self, image: bytes, names: Sequence[str]) -> list[Any]:
        module = self._cuda.function.Module()
        try:
            module.load(image)
            return [module.get_function(name) for name in names]
        except self._cuda.driver.CUDADriverError as error:
            if error.status in REFUSALS:
                raise ImageError(str(error)) from error
            raise

    def bound(self, kernel: Any, grid: Sizes, block: Sizes, words: Sequence[int], shared: int = 0) -> Callable[[], Any]:
        # However little it is: without asking, 48 KiB are for static and dynamic shared memory together.
        if shared > self._shared.get(kernel, 0):
            runtime, driver = self._cuda.runtime, self._cuda.driver
            runtime.setDevice(runtime.getDevice())  # a thread that has only launched may have no context for the driver
            driver.funcSetAttribute(kernel.ptr, SHARED_LIMIT, shared)
            driver.funcSetAttribute(kernel.ptr, SHARED_PART, MOST_SHARED)
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

    def load(self, image: bytes, names: Sequence[str]) -> list[Any]:
        self._context.push()
        try:
            module = self._driver.module_from_buffer(image)
            return [(module, module.get_function(name)) for name in names]
        except self._driver.MemoryError as error:
            raise DeviceMemoryError(f"PyCUDA has no memory for a kernel's code: {error}") from error
        except self._driver.Error as error:
            raise ImageError(str(error)) from error
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
            if shared:
                attributes = self._driver.function_attribute
                function.set_attribute(attributes.MAX_DYNAMIC_SHARED_SIZE_BYTES, shared)
                function.set_attribute(attributes.PREFERRED_SHARED_MEMORY_CARVEOUT, MOST_SHARED)
            function(*args, grid=grid, block=block, shared=shared)
        except self._driver.MemoryError as error:
            raise DeviceMemoryError(f"PyCUDA has no memory to launch a kernel: {error}") from error
        finally:
            self._context.pop()
        if elsewhere:
            current.wait_event(default.record())


#: How each is made, of CuPy, while its device is the current one.
LAUNCHERS: Mapping[str, Callable[[Any], Launcher]] = MappingProxyType({"cupy": CuPyLauncher, "pycuda": PyCUDALauncher})
