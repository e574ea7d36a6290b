"""Libraries in the place of CUDA's: jumps written over functions of CuPy's own, and what Python loads by name.

CuPy's wheel links the CUDA runtime, CUB and Thrust into its extension modules, and leaves their symbol tables there.
So each function is found in the file, and where it was loaded its first bytes become a jump to a function of ours.
The driver, NVRTC and the other libraries CuPy loads by `ctypes.CDLL`, as objects with C functions for attributes.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import struct
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

#: A jump to an address, on x86-64: ``movabs rax, address; jmp rax``.
_JUMP = b"\x48\xb8%b\xff\xe0"
_IS_FUNCTION, _SYMBOLS = 2, 2

#: Handles of the libraries that a finder is said to have loaded: no address of a real one.
_HANDLES = 0x7_0000

#: Whether functions can be redirected here.
SUPPORTED = sys.platform == "linux" and platform.machine() == "x86_64"


def functions_of(path: Path) -> dict[str, int]:
    """The functions of a shared library by name, local ones too, with their offsets."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return {
            _text(data, text + name): value
            for of, size, text in _tables(data)
            for name, info, _, _, value, _ in struct.iter_unpack("<IBBHQQ", data[of : of + size])
            if info & 0xF == _IS_FUNCTION and value
        }


def _tables(data: mmap.mmap) -> Iterator[tuple[int, int, int]]:
    """The symbol tables of an ELF file: offset, size, and the offset of their names."""
    (start,), (count,) = struct.unpack_from("<Q", data, 0x28), struct.unpack_from("<H", data, 0x3C)
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, start + 64 * number) for number in range(count)]
    for _, kind, _, _, offset, size, link, *_ in headers:
        if kind == _SYMBOLS:
            yield offset, size, headers[link][4]


def _text(data: mmap.mmap, start: int) -> str:
    return data[start : data.find(b"\0", start)].decode()


def redirect(module: str, entries: Mapping[str, Any]) -> set[str]:
    """Let functions of an extension module be others; the names that it does not have.

    Parameters
    ----------
    entries : mapping
        C functions by the names that are to be redirected.
    """
    path = Path(str(import_module(module).__file__)).resolve()
    found, base = functions_of(path), _base(path)
    page = mmap.PAGESIZE
    libc = ctypes.CDLL(None)
    for name, entry in entries.items():
        if name in found:
            address = base + found[name]
            start = address // page * page
            size = ctypes.c_size_t(address + len(_JUMP) + 8 - start)
            if libc.mprotect(ctypes.c_void_p(start), size, mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC):
                raise OSError(f"{name} of {module} cannot be redirected")
            to = ctypes.cast(entry, ctypes.c_void_p).value or 0
            jump = _JUMP % struct.pack("<Q", to)
            ctypes.memmove(address, jump, len(jump))
    return entries.keys() - found.keys()


def _base(path: Path) -> int:
    """Where a library was loaded."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        where, _, offset, *_, file = line.split(maxsplit=5)
        if file.strip() == str(path) and int(offset, 16) == 0:
            return int(where.split("-")[0], 16)
    raise OSError(f"{path} is not loaded")


def serve(libraries: Mapping[str, Any]) -> None:
    """Let CuPy load libraries of ours.

    Parameters
    ----------
    libraries : mapping
        By the names by which NVIDIA's finder knows them, objects with C functions for attributes; the driver is
        ``cuda``, which is loaded by its file's name.
    """
    finder, numbers = import_module("cuda.pathfinder"), {name: _HANDLES + n for n, name in enumerate(libraries)}
    known: dict[Any, Any] = {numbers[name]: library for name, library in libraries.items()}
    known.update({_file(name): library for name, library in libraries.items()})
    real, find = ctypes.CDLL, finder.load_nvidia_dynamic_lib

    class CDLL(real):  # type: ignore[misc, valid-type]
        def __new__(cls, name: Any = None, *rest: Any, handle: Any = None, **more: Any) -> Any:
            library = known.get(handle if name is None else name)
            if library is not None:
                return library
            return real(name, *rest, handle=handle, **more)

    def load(name: str) -> Any:
        if name in libraries:
            return SimpleNamespace(abs_path=_file(name), found_via="rig", _handle_uint=numbers[name])
        return find(name)

    ctypes.CDLL = CDLL  # type: ignore[misc]
    finder.load_nvidia_dynamic_lib = load


def _file(name: str) -> str:
    return f"lib{name}.so.1"
