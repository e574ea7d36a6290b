"""The type of arrays on a device: what the backend uses of CuPy's, which has no types."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np


class Pointer(Protocol):
    """The memory of an array from its first element on: `cupy.cuda.MemoryPointer`."""

    ptr: int

    def copy_from_device_async(self, src: Pointer, size: int) -> None: ...


class DeviceArray(Protocol):
    """An array on a device: `cupy.ndarray`."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype
    ndim: int
    size: int
    itemsize: int
    nbytes: int
    data: Pointer
    flags: Any

    def __len__(self) -> int: ...
    def __getitem__(self, key: object) -> DeviceArray: ...
    def __setitem__(self, key: object, value: object) -> None: ...
    def __imul__(self, other: object) -> DeviceArray: ...
    def __iadd__(self, other: object) -> DeviceArray: ...
    def __mul__(self, other: object) -> DeviceArray: ...
    def astype(self, dtype: np.dtype, copy: bool = True) -> DeviceArray: ...
    def reshape(self, *shape: int) -> DeviceArray: ...
    def swapaxes(self, first: int, second: int) -> DeviceArray: ...
