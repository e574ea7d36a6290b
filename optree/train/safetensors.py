"""The safetensors format: a header's length, the header in JSON, and the bytes of the arrays.

The package safetensors is not used, for two reasons. It writes to a temporary file whose name it does not tell. And it
opens a path several times, between which another process may replace the file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from optree.errors import DTypeError, OptreeError
from optree.train.files import open_regular
from optree.tree.types import as_dtype

#: The key of the metadata in a header.
RESERVED = "__metadata__"

#: The key, in the metadata, of the names of complex128 arrays. The format has no such dtype: they are F64 with a last
#: axis of real and imaginary part, for readers that do not know the key.
PAIRS = "complex128"

#: NumPy's names of the format's dtypes.
DTYPES = {
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "C64": "complex64",
    "BOOL": "bool",
    **{f"{sign}{bits}": f"{kind}{bits}" for sign, kind in (("I", "int"), ("U", "uint")) for bits in (8, 16, 32, 64)},
}

_CODES = {name: code for code, name in DTYPES.items()}

#: The bytes of a header's length, before it.
LENGTH = 8


class CheckpointError(OptreeError, ValueError):
    """Raised for a file that is no checkpoint, is damaged, or does not fit the state."""


def bytes_of(array: np.ndarray) -> Any:
    """A buffer of an array's bytes, in C order."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def write(
    file: BinaryIO, arrays: dict[str, np.ndarray], metadata: dict[str, str], later: Callable[[], dict[str, str]]
) -> None:
    """Write arrays in the machine's byte order, and metadata.

    Parameters
    ----------
    file : binary file
    arrays : dict of arrays
    metadata : dict of str
    later : callable
        Called after the arrays are written. It returns the final metadata, of the same length in JSON as `metadata`.
    """
    order = sorted(arrays, key=lambda name: (-arrays[name].itemsize, name))  # aligned, as the header's length is
    names = [name for name in order if arrays[name].dtype == np.complex128]
    arrays = arrays | {name: np.asarray(arrays[name], order="C")[..., None].view(np.float64) for name in names}
    pairs = {PAIRS: json.dumps(names)} if names else {}
    length = len(_header(arrays, order, metadata | pairs))
    file.seek(LENGTH + length)
    for name in order:
        file.write(bytes_of(arrays[name]))
    file.seek(0)  # the header is written last, so that an incomplete file is no safetensors file
    file.write(length.to_bytes(LENGTH, "little") + _header(arrays, order, later() | pairs))


def _header(arrays: dict[str, np.ndarray], order: list[str], metadata: dict[str, str]) -> bytes:
    entries: dict[str, Any] = {RESERVED: metadata}
    end = 0
    for name in order:
        array = arrays[name]
        begin, end = end, end + array.nbytes
        entries[name] = {"dtype": _CODES[array.dtype.name], "shape": array.shape, "data_offsets": [begin, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % LENGTH)


def read(path: Path) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """Read the metadata and the memory-mapped arrays of a safetensors file.

    Raises FileNotFoundError.
    Raises CheckpointError if it is no safetensors file, or a truncated one.
    """
    try:
        with open_regular(path) as file:
            content = np.memmap(file, np.uint8, "r")
        size = int.from_bytes(content[:LENGTH].tobytes(), "little")
        if LENGTH + size > len(content):
            raise ValueError(f"its header would be of {size} bytes, and the file is of {len(content)}")
        header = json.loads(content[LENGTH : LENGTH + size].tobytes().decode())
        metadata = header.pop(RESERVED, {}) if isinstance(header, dict) else None
        if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
            raise ValueError("its header is no dict with a dict of strings as its metadata")
        arrays = dict(_arrays(header, content[LENGTH + size :]))
        for name in json.loads(metadata.pop(PAIRS, "[]")):
            if name not in arrays or arrays[name].dtype != np.float64 or arrays[name].shape[-1:] != (2,):
                raise ValueError(f"{name} is said to be complex128, and is no array of pairs of float64")
            arrays[name] = arrays[name].view(np.complex128)[..., 0]
        return metadata, arrays
    except FileNotFoundError:
        raise
    except (OSError, TypeError, ValueError, OverflowError, RecursionError, DTypeError) as error:
        raise CheckpointError(f"{path}: it is no safetensors file, or a truncated one: {error}") from error


def _arrays(header: dict[str, Any], data: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """The arrays that a header describes, by name; ValueError if they do not fit the data."""
    reached = 0
    for name, (dtype, shape, begin, end) in sorted(_entries(header), key=lambda entry: entry[1][2:]):
        found = as_dtype(DTYPES[dtype])
        if begin != reached or end - begin != math.prod(shape) * found.itemsize or end > len(data):
            raise ValueError(f"{name}, {dtype} of {shape}, is not at {begin} to {end} of {len(data)} bytes")
        yield name, data[begin:end].view(found).reshape(shape)
        reached = end
    if reached != len(data):
        raise ValueError(f"its arrays take {reached} bytes, and it has {len(data)}")


def _entries(header: dict[str, Any]) -> Iterator[tuple[str, tuple[str, list[int], int, int]]]:
    """For each array of a header: its name, and its dtype, shape, begin and end in bytes."""
    for name, entry in header.items():
        match entry:
            case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [int(begin), int(end)]}:
                if dtype not in DTYPES:
                    raise ValueError(f"{name} is of {dtype}, which NumPy does not have")
                if all(type(size) is int and size >= 0 for size in shape):
                    yield name, (dtype, shape, begin, end)
                    continue
        raise ValueError(f"{name} has no dtype, shape and data_offsets: {entry!s:.80}")
