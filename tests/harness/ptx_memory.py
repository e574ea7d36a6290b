"""Global memory for interpreted kernels, and how a warp's accesses fall on sectors and banks."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

#: Bytes of a sector, the unit in which memory is read and written.
SECTOR = 32

#: Bytes that the banks of shared memory give at once, and of one of them.
PASS, BANK = 128, 4


class PtxFault(Exception):
    """A kernel that does what no kernel may."""


class Region:
    """An array in memory: the bytes from `start` up to `stop`."""

    def __init__(self, start: int, stop: int) -> None:
        self.start, self.stop = start, stop
        first = start // 16 * 16
        self._first, self._bytes = first, np.frombuffer((ctypes.c_char * (stop - first)).from_address(first), np.uint8)

    def load(self, addresses: np.ndarray, dtype: np.dtype, width: int) -> np.ndarray:
        return self._typed(dtype)[self._index(addresses, dtype, width)]

    def store(self, addresses: np.ndarray, values: np.ndarray) -> None:
        self._typed(values.dtype)[self._index(addresses, values.dtype, values.shape[1])] = values

    def _typed(self, dtype: np.dtype) -> np.ndarray:
        return self._bytes[: len(self._bytes) // dtype.itemsize * dtype.itemsize].view(dtype)

    def _index(self, addresses: np.ndarray, dtype: np.dtype, width: int) -> np.ndarray:
        return ((addresses - self._first) // dtype.itemsize)[:, None] + np.arange(width)


class Imaginary(Region):
    """An array of any size without memory: loads repeat a few values, and nothing that is stored is there later."""

    def __init__(self, start: int, size: int, values: np.ndarray) -> None:
        self.start, self.stop, self._values = start, start + size, np.ascontiguousarray(values)

    def load(self, addresses: np.ndarray, dtype: np.dtype, width: int) -> np.ndarray:
        typed = self._values.view(np.uint8).view(dtype)
        index = ((addresses - self.start) // dtype.itemsize)[:, None] + np.arange(width)
        return typed[index % len(typed)]

    def store(self, addresses: np.ndarray, values: np.ndarray) -> None:
        pass


class Memory:
    """The arrays that a kernel may access."""

    def __init__(self) -> None:
        self.regions: list[Region] = []
        self._owners: dict[int, Any] = {}

    def add(self, region: Region) -> None:
        self.regions.append(region)

    def address(self, array: np.ndarray) -> int:
        """Where an array is, which kernels may access from now on."""
        start = array.ctypes.data
        if start not in self._owners:
            low, high = np.lib.array_utils.byte_bounds(array)
            self._owners[start] = array
            self.add(Region(low, high))
        return start

    def load(self, addresses: np.ndarray, dtype: np.dtype, width: int) -> np.ndarray:
        found = np.empty((len(addresses), width), dtype)
        for region, mask in self._regions(addresses, dtype.itemsize * width):
            found[mask] = region.load(addresses[mask], dtype, width)
        return found

    def store(self, addresses: np.ndarray, values: np.ndarray) -> np.ndarray:
        for region, mask in self._regions(addresses, values.dtype.itemsize * values.shape[1]):
            region.store(addresses[mask], values[mask])
        return values

    def _regions(self, addresses: np.ndarray, size: int) -> list[tuple[Region, Any]]:
        """The regions of some accesses, each with a mask of those that are in it."""
        found, left = [], np.ones(addresses.shape, bool)
        for region in self.regions:
            inside = left & (addresses >= region.start) & (addresses + size <= region.stop)
            if inside.any():
                found.append((region, slice(None) if inside.all() else inside))
                left &= ~inside
                if not left.any():
                    return found
        first = int(addresses[left][0])
        near = min(self.regions, key=lambda each: min(abs(first - each.start), abs(first - each.stop)), default=None)
        told = f", {first - near.stop} bytes after the end of an array" if near else ""
        raise PtxFault(f"an access of {size} bytes where no array is{told}")


def sectors_of(addresses: np.ndarray, warps: np.ndarray) -> int:
    """The sectors that warps access, each as often as instructions of warps do."""
    sectors = addresses // SECTOR - int(addresses.min()) // SECTOR  # an access is within one
    return distinct((warps.astype(np.int64) << 44) + sectors)


def distinct(values: np.ndarray) -> int:
    """The number of values that differ, of one at least. Sorting a few thousand is less work than `np.unique`."""
    values = np.sort(values)
    return 1 + int(np.count_nonzero(values[1:] != values[:-1]))


def conflicts_of(addresses: np.ndarray, lanes: np.ndarray, size: int) -> tuple[int, int]:
    """How often accesses of warps to shared memory go through its banks, and the least for their size.

    Accesses of 8 and 16 bytes are those of halves and quarters of a warp. Threads that access one word share it.
    """
    if not lanes.size:
        return 0, 0
    together = 32 // max(1, size // BANK)  # threads
    turns = lanes // together
    words = addresses[:, None] // BANK + np.arange(max(1, size // BANK))
    keys = np.sort(((turns[:, None].astype(np.int64) << 32) + words).reshape(-1))
    keys = keys[np.append(True, keys[1:] != keys[:-1])]
    turn, banks = keys >> 32, PASS // BANK
    turn = np.cumsum(np.append(False, turn[1:] != turn[:-1]))  # from 0
    counts = np.bincount(turn * banks + keys % banks, minlength=(int(turn[-1]) + 1) * banks)
    return int(counts.reshape(-1, banks).max(axis=1).sum()), int(turn[-1]) + 1
