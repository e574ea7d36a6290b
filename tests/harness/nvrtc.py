"""CUDA source compiled for real architectures, on any machine: NVRTC from its pip wheel, which needs no driver.

NVRTC comes with the extra ``nvrtc``. A wheel of another CUDA that is installed, say
through the extra ``gpu``, serves too.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import pickle
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from harness.cuda import cache_folder

#: What the kernels are compiled for: Turing, Ampere, Hopper and Blackwell.
ARCHITECTURES = ("sm_75", "sm_80", "sm_90", "sm_100")

#: So many sources are compiled as one, where only warnings are asked for.
TOGETHER = 32

#: Of so many of these, one is assembled, too.
ASSEMBLED = 4

_INCLUDE = re.compile(r"^#include <.*>$", re.MULTILINE)
_GLOBAL = re.compile(r"__global__\s+void\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?(\w+)\s*\(")


class NvrtcError(Exception):
    """A source that NVRTC refuses, or warns about; the text has its log and the source."""


@dataclass(frozen=True)
class Usage:
    """Resource usage of a kernel on an architecture.

    Attributes
    ----------
    registers : int
        For each thread.
    stack, spill_stores, spill_loads : int
        Bytes for each thread. What is spilled is kept in memory for want of registers.
    shared : int
        Bytes of static shared memory for each block.
    """

    registers: int
    stack: int
    spill_stores: int
    spill_loads: int
    shared: int


@dataclass(frozen=True)
class Compiled:
    """A source compiled by NVRTC: machine code, PTX, the log, and each kernel's resource usage."""

    cubin: bytes
    ptx: str
    log: str
    usage: dict[str, Usage]


@cache
def folders() -> tuple[Path, ...]:
    """Where the wheels of CUDA's libraries are installed, the newest CUDA first."""
    spec = importlib.util.find_spec("nvidia")
    found = [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
    return tuple(part for place in found for part in sorted(place.iterdir(), reverse=True) if part.is_dir())


@cache
def installed() -> ctypes.CDLL | None:
    """The library; None where it is not installed."""
    for folder in folders():
        for path in sorted((folder / "lib").glob("libnvrtc.so.*")):
            return ctypes.CDLL(str(path))
    return None


needs_nvrtc = pytest.mark.skipif(installed() is None, reason="NVRTC is not installed: pip install -e '.[nvrtc]'")


def version() -> tuple[int, int]:
    """The version of CUDA that NVRTC is of."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _checked(_library().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    return major.value, minor.value


def compile_cuda(source: str, arch: str = "sm_90", options: Sequence[str] = ()) -> Compiled:
    """Compile a source for an architecture; a warning is an error.

    ``#include <cuda_fp16.h>`` and the like find CUDA's own headers; there are no others.
    """
    (cubin, ptx), log = _compiled(source, arch, ["--ptxas-options=-v", *options], ("CUBIN", "PTX"))
    return Compiled(cubin, ptx.rstrip(b"\0").decode(), log, _usage(log))


def _compiled(source: str, arch: str, options: Sequence[str], kinds: Sequence[str]) -> tuple[list[bytes], str]:
    """NVRTC's outputs of these kinds for a source, and the log: from this run, or from disk."""
    includes = {path: path.stat().st_mtime_ns for folder in folders() if (path := folder / "include").is_dir()}
    given = [*(f"--include-path={path}" for path in includes), *options]
    key = repr((version(), includes, arch, given, source, kinds))
    path = cache_folder() / f"nvrtc-{hashlib.sha256(key.encode()).hexdigest()[:32]}"
    if path.exists():
        os.utime(path)
        found: tuple[list[bytes], str] = pickle.loads(path.read_bytes())
        return found
    found = _run(source, arch, given, kinds)
    made = path.with_name(f"tmp-{os.getpid()}-{threading.get_ident()}-{path.name}")
    made.write_bytes(pickle.dumps(found))
    os.replace(made, path)
    return found


def _run(source: str, arch: str, options: Sequence[str], kinds: Sequence[str]) -> tuple[list[bytes], str]:
    """NVRTC's outputs for a source with these options, and the log."""
    nvrtc, program = _library(), ctypes.c_void_p()
    _checked(nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None))
    try:
        given = [f"--gpu-architecture={arch}", *options]
        result = nvrtc.nvrtcCompileProgram(program, len(given), (ctypes.c_char_p * len(given))(*map(str.encode, given)))
        log = _bytes(program, "ProgramLog").rstrip(b"\0").decode()
        # Found in the log: -Werror is known to CUDA 13 only, and not to the assembler, which warns too.
        if result or re.search(r"\bwarning\b", log):
            numbered = "\n".join(f"{number:4} {line}" for number, line in enumerate(source.splitlines(), 1))
            raise NvrtcError(f"NVRTC, for {arch}:\n{log}\n{numbered}")
        return [_bytes(program, kind) for kind in kinds], log
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def ptx_of(source: str, arch: str = "sm_90", options: Sequence[str] = ()) -> str:
    """The PTX of a source for an architecture; a warning is an error."""
    ((ptx,), _) = _compiled(source, arch.replace("sm", "compute"), options, ["PTX"])
    return ptx.rstrip(b"\0").decode()


def under_way(source: str, options: Sequence[str] = ()) -> int:
    """Maximum loads from global memory in flight, in PTX: those issued before a loaded value is used."""
    ptx = ptx_of(source, options=options)
    most, loaded, count = 0, set[str](), 0
    for line in ptx.splitlines():
        load, registers = re.match(r"\s*(?:@!?%p\d+ )?ld\.global\S*\s+(.*?), \[", line), re.findall(r"%\w+", line)
        if load:
            loaded |= set(re.findall(r"%\w+", load[1]))
            count += 1
        elif loaded & set(registers):
            loaded, count = set(), 0
        most = max(most, count)
    return most


def compile_all(sources: Sequence[str], arch: str, options: Sequence[str] = ()) -> list[Compiled]:
    """As `compile_cuda`, several at once; the first that is refused ends all."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda source: compile_cuda(source, arch, options), sources))


def check_all(sources: Sequence[str], arch: str, options: Sequence[str] = (), assembles: bool = False) -> None:
    """Compile many sources, a few dozens at a time, for NVRTC takes longer to begin than to compile.

    All are compiled to PTX, which is where nearly all warnings are made; with `assembles`, one in `ASSEMBLED` to
    machine code too, which takes three times as long. What is optimised takes twice the time, and warns of nothing
    more.

    Raises
    ------
    NvrtcError
        If one is refused, or warned about; its own log and source are shown.
    """
    count = -(-len(sources) // TOGETHER)  # each part has sources of all kinds, which are beside their like
    parts = [(ptx_of, sources[number::count]) for number in range(count)]
    if assembles and sources:
        parts.append((compile_cuda, sources[::ASSEMBLED]))
    options = [*options, _quickest()]

    def check(compiled: Callable[..., object], part: Sequence[str]) -> None:
        try:
            compiled(together(part), arch, options)
        except NvrtcError:
            for source in part:
                compiled(source, arch, options)
            raise

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(check, *zip(*parts, strict=True)) if parts else ())


@cache
def _quickest() -> str:
    """The option by which the least is optimised: of the assembler alone, where this NVRTC knows no other."""
    option = "--Ofast-compile=max"
    try:
        ptx_of("", options=(option,))
    except NvrtcError:
        return "--ptxas-options=-O0"
    return option


def together(sources: Sequence[str]) -> str:
    """One source of several, each in a namespace, its kernels by other names."""
    lines: list[str] = list(dict.fromkeys(line for source in sources for line in _INCLUDE.findall(source)))
    for number, source in enumerate(sources):
        names = _GLOBAL.findall(source)
        lines += [f"#define {name} {name}_of_{number}" for name in names]
        lines += [f"namespace source{number} {{", f'#line 1 "source{number}.cu"', _INCLUDE.sub("", source), "}"]
        lines += [f"#undef {name}" for name in names]
    return "\n".join(lines)


def _library() -> ctypes.CDLL:
    nvrtc = installed()
    if nvrtc is None:
        raise NvrtcError("NVRTC is not installed: pip install -e '.[nvrtc]'")
    nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
    return nvrtc


def _checked(result: int) -> None:
    if result:
        raise NvrtcError(f"NVRTC fails: {_library().nvrtcGetErrorString(result).decode()}")


def _bytes(program: ctypes.c_void_p, what: str) -> bytes:
    """An output of NVRTC, which is queried by size and then copied."""
    size = ctypes.c_size_t()
    _checked(getattr(_library(), f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _checked(getattr(_library(), f"nvrtcGet{what}")(program, buffer))
    return buffer.raw


def _usage(log: str) -> dict[str, Usage]:
    """Each kernel's resource usage, parsed from the assembler's log."""
    found = {}
    for part in re.split(r"Compiling entry function ", log)[1:]:
        name = part.split("'")[1]
        figures = (r"Used (\d+) registers", r"(\d+) bytes stack", r"(\d+) bytes spill stores")
        figures += (r"(\d+) bytes spill loads", r"(\d+) bytes smem")
        matches = [re.search(figure, part) for figure in figures]
        found[name] = Usage(*(int(match[1]) if match else 0 for match in matches))
    return found
