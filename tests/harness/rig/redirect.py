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
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

#: A jump to an address, on x86-64: ``movabs rax, address; jmp rax``.
_JUMP = b"\x48\xb8%b\xff\xe0"
_IS_FUNCTION = 2

#: Kinds of symbol tables of an ELF file: of all symbols, and of those for the loader.
_ALL, _DYNAMIC = 2, 11

#: `CUBLAS_STATUS_NOT_SUPPORTED`.
_NOT_SUPPORTED = 15

#: Handles of the libraries that a finder is said to have loaded: no address of a real one.
_HANDLES = 0x7_0000

#: The driver's file: the one of PyCUDA's is not to be found while there are no devices.
_DRIVER = "libcuda.so.1"

#: Whether functions can be redirected here.
SUPPORTED = sys.platform == "linux" and platform.machine() == "x86_64"


def functions_of(path: Path) -> dict[str, int]:
    """The functions of a shared library by name, local ones too, with their offsets."""
    return {name: value for name, info, value in _symbols(path, _ALL) if info & 0xF == _IS_FUNCTION and value}


def stub(path: Path, library: str, prefix: str, folder: Path, *more: str) -> Any:
    """A library of a name, loaded, with each function of a prefix that an extension module at a path takes from it.

    Each, and `more` of them, says that it is not supported; `redirect` makes others of them.
    """
    names = [name for name, _, value in _symbols(path, _DYNAMIC) if not value and name.startswith(prefix)] + [*more]
    text = "".join(f"int {name}(void) {{ return {_NOT_SUPPORTED}; }}\n" for name in names)
    version = folder / "version"
    version.write_text(f"{library} {{ global: *; }};")  # by which the module asks for the functions
    options = [f"-Wl,-soname,{library}", f"-Wl,--version-script,{version}", "-o", str(folder / library)]
    options.append("-falign-functions=16")  # room for a jump
    subprocess.run(["g++", "-shared", "-fPIC", "-w", *options, "-x", "c", "-"], input=text, text=True, check=True)
    return ctypes.CDLL(str(folder / library), mode=ctypes.RTLD_GLOBAL)


def _symbols(path: Path, kind: int) -> list[tuple[str, int, int]]:
    """Name, kind and value of the symbols in an ELF file's tables of a kind."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return [
            (_text(data, text + name), info, value)
            for of, size, text in _tables(data, kind)
            for name, info, _, _, value, _ in struct.iter_unpack("<IBBHQQ", data[of : of + size])
        ]


def _tables(data: mmap.mmap, wanted: int) -> Iterator[tuple[int, int, int]]:
    """The symbol tables of a kind: offset, size, and the offset of their names."""
    (start,), (count,) = struct.unpack_from("<Q", data, 0x28), struct.unpack_from("<H", data, 0x3C)
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, start + 64 * number) for number in range(count)]
    for _, kind, _, _, offset, size, link, *_ in headers:
        if kind == wanted:
            yield offset, size, headers[link][4]


def _text(data: mmap.mmap, start: int) -> str:
    return data[start : data.find(b"\0", start)].decode()


def redirect(path: Path, entries: Mapping[str, Any]) -> set[str]:
    """Let functions of a loaded library be others; the names that it does not have.

    Parameters
    ----------
    path : Path
        The library's file.
    entries : mapping
        C functions by the names that are to be redirected.
    """
    found, base = functions_of(path), _base(path)
    page = mmap.PAGESIZE
    libc = ctypes.CDLL(None)
    for name, entry in entries.items():
        if name in found:
            address = base + found[name]
            start = address // page * page
            size = ctypes.c_size_t(address + len(_JUMP) + 8 - start)
            if libc.mprotect(ctypes.c_void_p(start), size, mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC):
                raise OSError(f"{name} of {path.name} cannot be redirected")
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


def serve(libraries: Mapping[str, Any], is_on: Callable[[], bool]) -> None:
    """Let CuPy load libraries of ours.

    Parameters
    ----------
    libraries : mapping
        By the names by which NVIDIA's finder knows them, objects with C functions for attributes; the driver is
        ``cuda``, which is loaded by its file's name.
    is_on : callable
        Whether there are any now.
    """
    finder, numbers = import_module("cuda.pathfinder"), {name: _HANDLES + n for n, name in enumerate(libraries)}
    known: dict[Any, Any] = {numbers[name]: library for name, library in libraries.items()}
    known.update({_file(name): library for name, library in libraries.items()})
    real, find = ctypes.CDLL, finder.load_nvidia_dynamic_lib

    class CDLL(real):  # type: ignore[misc, valid-type]
        def __new__(cls, name: Any = None, *rest: Any, handle: Any = None, **more: Any) -> Any:
            library = known.get(handle if name is None else name)
            if library is not None and is_on():
                return library
            if name == _DRIVER:
                raise OSError(f"{name}: there is no driver")
            return real(name, *rest, handle=handle, **more)

    def load(name: str) -> Any:
        if name in libraries and is_on():
            return SimpleNamespace(abs_path=_file(name), found_via="rig", _handle_uint=numbers[name])
        return find(name)

    ctypes.CDLL = CDLL  # type: ignore[misc]
    finder.load_nvidia_dynamic_lib = load


def _file(name: str) -> str:
    return f"lib{name}.so.1"
