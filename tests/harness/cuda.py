"""CUDA kernels run on the CPU: sources compiled by g++ against tests/cuda_on_cpu, and launched on NumPy arrays.

``load`` compiles sources and gives a `Module` for each, whose ``launch`` runs a kernel.
The threads of a block run in turns, in an order that the launch chooses. Threads that
wait for others that never come, misaligned accesses, indices outside of arrays of known
length, and accesses to memory that is not there are `KernelFault`. With ``sanitize``, kernels run in a
process of their own, under AddressSanitizer or ThreadSanitizer, whose reports are faults too.

What differs from a GPU: one block runs at a time, so a block that waits for another waits for ever;
a conversion of a real number that its integer type cannot hold gives what the CPU gives (``__float2int_rz``
and the like saturate, as on a GPU); nothing is contracted to one rounding; threads interleave at
barriers only (ThreadSanitizer finds what other interleavings would show).
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends.execution.compilations import unsafe_reason
from harness.device import DEFAULT, OPTIN, why_no_launch
from harness.memory import without_limit
from harness.shared import static_shared

if sys.platform == "linux":
    import fcntl

HEADERS = Path(__file__).resolve().parent.parent / "cuda_on_cpu"

#: In which order the threads of a block, and the blocks of a grid, have their turns. A shuffled
#: order is another one after each barrier, by the launch's seed.
ORDERS = ("forward", "backward", "shuffled")

#: Added to an order's number, as in runtime.cpp.
ENDED_ARE_LEFT_OUT, FLUSHES = 4, 8

#: So many sources make one translation unit; several are compiled at once.
TOGETHER = 32

#: A kernel that takes longer, in seconds, is ended.
LIMIT = 60.0

#: Stacks are probed page by page: a frame as large as samples.DEEP's would reach over its stack's guard page, and
#: write into what lies beyond, which may be the stack of a thread of Python's.
FLAGS = (
    *("-std=c++17", "-O0", "-w", "-fPIC", "-fvisibility=hidden", "-fno-strict-aliasing", "-fwrapv"),
    *("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fno-exceptions"),
    "-fstack-clash-protection",
)

#: How kernels are compiled beyond this, and linked, for each sanitizer. None: a library that is loaded
#: into this process. The runtime answers for alignment and bounds itself, without a sanitizer's library.
SANITIZERS: dict[str | None, tuple[str, ...]] = {
    None: (),
    "address": ("-g1", "-fsanitize=address", "-fsanitize-sections=shared_*", "-fno-omit-frame-pointer"),
    "thread": ("-g1", "-fsanitize=thread"),
}
CHECKS = ("-fsanitize=alignment,bounds", "-fno-sanitize-recover=all")

_GLOBAL = re.compile(r"__global__\s+(?:void\s+)?(?:__launch_bounds__\s*\(\s*(\w+)[^)]*\)\s*)?(?:void\s+)?(\w+)\s*\(")
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*[<\"].*$", re.MULTILINE)
_INSTANCE = re.compile(r"^// instance (\w+): (.+)$", re.MULTILINE)
_DYNAMIC = re.compile(r"extern\s+__shared__\s+([^;\[]+?)\s*\b(\w+)\s*\[\s*\]")


class KernelFault(Exception):
    """A kernel that does what no kernel may, or a launch that does not fit it."""


class CompileError(Exception):
    """A source that g++ refuses; the text is what it says."""


@dataclass(frozen=True)
class Argument:
    """A kernel's parameter: its kind, as in cuda_on_cpu.h, its size, and the size of a pointer's target."""

    kind: str
    size: int
    pointee: int


@dataclass
class Kernel:
    """A kernel of a library: its number there, what it takes, a block's most threads, and its static shared memory."""

    number: int
    arguments: list[Argument]
    most_threads: int = 1024
    static: int = 0


@dataclass
class Packed:
    """Arguments as bytes: where each begins, and where which array's address goes."""

    values: bytearray = field(default_factory=bytearray)
    offsets: list[int] = field(default_factory=list)
    pointers: list[tuple[int, np.ndarray]] = field(default_factory=list)

    def add(self, data: bytes | np.ndarray, alignment: int) -> None:
        self.values += bytes(-len(self.values) % alignment)
        if isinstance(data, np.ndarray):
            self.pointers.append((len(self.values), data))
            data = bytes(8)
        self.values += data


class Module:
    """The kernels of one source."""

    def __init__(self, host: _Library | _Server, kernels: dict[str, Kernel]) -> None:
        self._host = host
        self.kernels = kernels

    def launch(
        self,
        name: str,
        grid: int | tuple[int, ...],
        block: int | tuple[int, ...],
        args: Sequence[Any],
        shared: int = 0,
        order: str = "forward",
        seed: int = 0,
    ) -> None:
        """Run a kernel to its end.

        An array stands for a pointer to its first element (None for a null pointer), a
        number for a number, and a tuple for a struct: its fields are arrays, tuples and NumPy scalars, which
        have the sizes that the source says.
        """
        kernel = self.kernels[name]
        shape = _extent(grid), _extent(block)
        _check_launch(name, kernel, *shape, shared)
        if len(args) != len(kernel.arguments):
            raise KernelFault(f"{name} takes {len(kernel.arguments)} arguments, not {len(args)}")
        packed = Packed()
        for place, (argument, given) in enumerate(zip(kernel.arguments, args, strict=True)):
            packed.values += bytes(-len(packed.values) % 16)
            packed.offsets.append(len(packed.values))
            try:
                _pack(packed, argument, given)
            except (TypeError, ValueError, OverflowError, struct.error) as error:
                raise KernelFault(f"{name}, argument {place}: {error}") from error
        self.launch_packed(name, (*shape, shared), packed, order, seed)

    def launch_packed(
        self,
        name: str,
        launch: tuple[Any, Any, int],
        packed: Packed,
        order: str,
        seed: int,
        is_strict: bool = True,
        flushes: bool = False,
    ) -> None:
        """Run a kernel to its end.

        Parameters
        ----------
        launch : tuple
            A grid, a block, and bytes of dynamic shared memory.
        packed : Packed
            The arguments.
        is_strict : bool
            Whether a barrier is for every thread of a block, or for those that have not ended.
        flushes : bool
            Whether subnormal numbers are zeros, those of float64 too.
        """
        grid, block, shared = launch
        number = ORDERS.index(order) + ENDED_ARE_LEFT_OUT * (not is_strict) + FLUSHES * flushes
        launched = struct.pack("<8IQd", *grid, *block, shared, number, seed, LIMIT)
        self._host.launch(self.kernels[name].number, launched, packed)


def load(sources: Sequence[str], sanitize: str | None = None) -> list[Module]:
    """A module for each source, compiled or found compiled by an earlier run."""
    parts = [sources[start : start + TOGETHER] for start in range(0, len(sources), TOGETHER)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        built = list(pool.map(lambda part: _build(part, sanitize), parts))
    return [module for part, path in zip(parts, built, strict=True) for module in _modules(part, path, sanitize)]


@cache
def why_no_sanitizer(name: str) -> str | None:
    """Why kernels cannot run under a sanitizer here; None where they can."""
    try:
        load(['extern "C" __global__ void nothing() {}'], name)[0].launch("nothing", 1, 1, [])
    except (CompileError, OSError, KernelFault) as error:
        return f"-fsanitize={name} does not work: {error}"[:300]
    return None


needs_gxx = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("g++") is None, reason="there is no g++, or this is not Linux"
)


# Building


def prefix(sources: Sequence[str]) -> str:
    """The #include lines of the translation unit of sources."""
    included = (line.strip() for source in sources for line in _INCLUDE.findall(source))
    complex = ["#define CUDA_ON_CPU_COMPLEX"] * any("complex<" in source for source in sources)
    return "\n".join([*complex, '#include "cuda_on_cpu.h"', *dict.fromkeys(included), ""])


def instance(name: str, of: str) -> str:
    """A line that makes a kernel of a template's instance, in a source whose kernels are all made so."""
    return f"// instance {name}: {of}\n"


def unit(sources: Sequence[str]) -> str:
    """The translation unit of sources after what they include, each in a namespace: all may use the same names."""
    lines, table = list[str](), []
    for number, source in enumerate(sources):
        instances = _INSTANCE.findall(source)
        names = [name for _, name in _GLOBAL.findall(source)] if not instances else []
        bounds = [f"__{edge}_shared_{number}" for edge in ("start", "stop")]
        lines += [f'extern "C" __attribute__((weak, visibility("hidden"))) unsigned char {b}[];' for b in bounds]
        lines.append(f'#define __shared__ static __attribute__((section("shared_{number}")))')
        lines += [f"#define {name} {name}_of_{number}" for name in names]
        lines += [
            f"namespace source{number} {{ namespace {{",
            f'#line 1 "source{number}.cu"',
            _INCLUDE.sub("", _dynamic(source)),
        ]
        lines += ["}}", *(f"#undef {name}" for name in [*names, "__shared__"])]
        for name, instance in [*((name, f"{name}_of_{number}") for name in names), *instances]:
            entry = f"Entry<source{number}::{instance}>"
            table.append(f'    cuda_on_cpu::{entry}::kernel("{name}", {number}, {", ".join(bounds)}),')
    lines += ["const cuda_on_cpu::Kernel cuda_on_cpu::kernels[] = {", *table, "    {}", "};", ""]
    return "\n".join(lines)


def _dynamic(source: str) -> str:
    """A source whose dynamic shared arrays are pointers: g++ has no word that is right with and without extern."""
    return _DYNAMIC.sub(r"\1 *const \2 = (decltype(\2))cuda_on_cpu::dynamic_shared", source)


def _build(sources: Sequence[str], sanitize: str | None) -> Path:
    parts = ["runtime.cpp", "server.cpp"] if sanitize else ["runtime.cpp"]
    ready = [_part(name, sanitize) for name in parts]
    first, text = prefix(sources), unit(sources)
    target = _place(first, text, CHECKS, ready)
    with _alone(target):
        if not target.exists():
            compiled, flags = target.with_suffix(".o"), (*SANITIZERS[sanitize], *CHECKS)
            _compile(text, compiled, *flags, "-include", str(_precompiled(first, flags)))
            # Linked by gcc, a library takes a third of the time: C++'s own is loaded already.
            linker = ["g++", *SANITIZERS[sanitize]] if sanitize else ["gcc", "-shared"]
            _write(target, *linker, str(compiled), *map(str, ready), "-lm")
            compiled.unlink()
        os.utime(target)
    return target


def _precompiled(text: str, flags: Sequence[str]) -> Path:
    """A header of a text, which g++ has compiled: it takes longer to read ours than a kernel."""
    header = _place(text, flags).with_suffix(".h")
    target = header.with_suffix(".h.gch")
    with _alone(header):
        if not target.exists():
            header.write_text(text)
            _write(target, "g++", *FLAGS, *flags, *_folders(), "-x", "c++-header", str(header))
        os.utime(header)
        os.utime(target)
    return header


def _part(name: str, sanitize: str | None) -> Path:
    """A part of what runs kernels, without sanitizers: they are to see kernels, and nothing else."""
    flags = (f"-DCUDA_ON_CPU_{sanitize.upper()}", "-g1") if sanitize else ()
    text = (HEADERS / name).read_text()
    target = _place(text, flags).with_suffix(".o")
    with _alone(target):
        if not target.exists():
            _compile(text, target, "-O2", *flags)
        os.utime(target)
    return target


@contextmanager
def _alone(target: Path) -> Iterator[None]:
    """Let one thread of one process make a file; those that want it too wait, and find it made."""
    with open(target.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until it is closed; a process that is killed lets go
        yield


def _compile(text: str, target: Path, *flags: str) -> None:
    _write(target, "g++", *FLAGS, *flags, "-c", *_folders(), "-x", "c++", "-", text=text)


def _write(target: Path, *command: str, text: str = "") -> None:
    """Run what makes a file, under another name at first: it is never seen half-written."""
    made = target.with_name(f"tmp-{os.getpid()}-{threading.get_ident()}-{target.name}")
    done = subprocess.run([*command, "-o", str(made)], input=text, capture_output=True, text=True)
    if done.returncode:
        raise CompileError(done.stderr[:4000])
    os.replace(made, target)


def _place(*parts: object) -> Path:
    return cache_folder() / hashlib.sha256(repr((_identity(), FLAGS, SANITIZERS, parts)).encode()).hexdigest()[:32]


@cache
def _identity() -> tuple[str, ...]:
    """The dependencies of every file: the compiler and the headers."""
    version = subprocess.run(["g++", "--version"], capture_output=True, text=True).stdout
    return (version, *_folders(), *(path.read_text() for path in sorted(HEADERS.glob("**/*.*h"))))


@cache
def _folders() -> tuple[str, ...]:
    """Where headers are: ours, and those that CuPy's kernels include, where it is installed."""
    spec = PathFinder.find_spec("cupy")  # the installed one, also while a stand-in is imported
    folders = (spec.submodule_search_locations or ()) if spec else ()
    return tuple(f"-I{folder}" for folder in (HEADERS, *(Path(each) / "_core" / "include" for each in folders)))


@cache
def cache_folder() -> Path:
    """Where what g++ and NVRTC compile is kept. Nobody else can write there; what is unused for a week is deleted."""
    folder = Path(tempfile.gettempdir()) / f"optree-cuda-on-cpu-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if unsafe_reason(folder.resolve()) is not None:
        return Path(tempfile.mkdtemp(prefix="optree-cuda-on-cpu-"))
    for path in folder.iterdir():
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > 7 * 86400:
                path.unlink()
    return folder


# Launching


def _modules(sources: Sequence[str], path: Path, sanitize: str | None) -> list[Module]:
    host = _Server(path, sanitize) if sanitize else _library(path)
    kernels: list[dict[str, Kernel]] = [{} for _ in sources]
    for number, line in enumerate(host.kernels.splitlines()):
        source, name, *arguments = line.split()
        fields = (argument.split(":") for argument in arguments)
        kernels[int(source)][name] = Kernel(number, [Argument(kind, int(size), int(to)) for kind, size, to in fields])
    for source_text, known in zip(sources, kernels, strict=True):
        for bound, name in _GLOBAL.findall(source_text):
            if bound.isdigit() and name in known:
                known[name].most_threads = int(bound)
        for name, static in static_shared(source_text).items():
            if name in known:
                known[name].static = static
    return [Module(host, known) for known in kernels]


def _extent(given: int | tuple[int, ...]) -> tuple[int, ...]:
    sizes = given if isinstance(given, tuple) else (given,)
    return (*map(int, sizes), 1, 1)[:3]


def _check_launch(name: str, kernel: Kernel, grid: tuple[int, ...], block: tuple[int, ...], shared: int) -> None:
    if reason := why_no_launch(grid, block, kernel.most_threads):
        raise KernelFault(f"{name}: {reason}")
    if not 0 <= shared <= OPTIN - kernel.static or kernel.static > DEFAULT:
        raise KernelFault(f"{name}: {shared} bytes of shared memory beside {kernel.static}, where a block has {OPTIN}")


def _pack(packed: Packed, argument: Argument, given: Any) -> None:
    kind, size = argument.kind, argument.size
    if kind == "p":
        if given is not None and not isinstance(given, np.ndarray):
            raise TypeError(f"a pointer takes an array, not {given!r}")
        if given is not None and argument.pointee not in (1, given.itemsize):
            raise TypeError(f"a pointer to {argument.pointee} bytes takes no array of {given.dtype}")
        packed.add(bytes(8) if given is None else given, 8)
    elif kind == "f":
        packed.add(struct.pack("<f" if size == 4 else "<d", given), size)
    elif kind == "b":
        packed.add(bytes([bool(given)]), 1)
    elif kind in "iu":
        if isinstance(given, float | np.floating):
            raise TypeError(f"an integer takes no {given!r}")
        packed.add(int(given).to_bytes(size, "little", signed=kind == "i"), size)
    else:
        before = len(packed.values)
        _pack_field(packed, given)
        if len(packed.values) - before != size:
            raise TypeError(f"a struct of {size} bytes, and {len(packed.values) - before} are given")


def _pack_field(packed: Packed, given: Any) -> int:
    """Add what a struct holds; its alignment."""
    if isinstance(given, tuple):
        start = len(packed.values)
        whole = Packed()
        alignment = max((_pack_field(whole, part) for part in given), default=1)
        whole.values += bytes(-len(whole.values) % alignment)
        start += -start % alignment
        packed.add(bytes(whole.values), alignment)
        packed.pointers += [(start + place, array) for place, array in whole.pointers]
        return alignment
    if isinstance(given, np.ndarray) or given is None:
        packed.add(bytes(8) if given is None else given, 8)
        return 8
    if isinstance(given, bytes):
        packed.add(given, 1)
        return 1
    if not isinstance(given, np.generic):
        raise TypeError(f"a struct's field takes an array, a tuple, bytes or a NumPy scalar, not {given!r}")
    packed.add(given.tobytes(), given.dtype.itemsize)
    return given.dtype.itemsize


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


_lock = threading.Lock()  # a library runs one launch at a time
_library = cache(lambda path: _Library(path))
_load_cpp = cache(lambda: ctypes.CDLL("libstdc++.so.6", ctypes.RTLD_GLOBAL))


class _Library:
    """Kernels that run in this process."""

    _stacks: int | None = None

    def __init__(self, path: Path) -> None:
        _load_cpp()
        library = ctypes.CDLL(str(path))
        library.cuda_on_cpu_stacks.restype, library.cuda_on_cpu_stacks.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
        _Library._stacks = library.cuda_on_cpu_stacks(_Library._stacks)
        library.cuda_on_cpu_kernels.restype = library.cuda_on_cpu_launch.restype = ctypes.c_char_p
        library.cuda_on_cpu_launch.argtypes = [ctypes.c_uint, ctypes.c_char_p, ctypes.c_void_p]
        self.kernels = library.cuda_on_cpu_kernels().decode()
        self._launch = library.cuda_on_cpu_launch

    def launch(self, number: int, launched: bytes, packed: Packed) -> None:
        for place, array in packed.pointers:
            packed.values[place : place + 8] = _address(array).to_bytes(8, "little")
        values = (ctypes.c_char * max(len(packed.values), 1)).from_buffer_copy(bytes(packed.values) or b"\0")
        base = ctypes.addressof(values)
        addresses = (ctypes.c_void_p * max(len(packed.offsets), 1))(*(base + offset for offset in packed.offsets))
        with _lock:
            error = self._launch(number, launched, addresses)
        if error is not None:
            raise KernelFault(error.decode())


class _Server:
    """Kernels that run in a process of their own, which sanitizers ask for; one that ends is started anew."""

    def __init__(self, path: Path, sanitize: str) -> None:
        # ThreadSanitizer wants its addresses free, which some systems scatter others over.
        prefix = ["setarch", "-R"] if sanitize == "thread" and _addresses_can_be_fixed() else []
        self._command = without_limit(*prefix, str(path))
        self._process: subprocess.Popen[bytes] | None = None
        self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            options = {"ASAN_OPTIONS": "detect_leaks=0", "TSAN_OPTIONS": "halt_on_error=1"}
            self._told = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._told,
                env={**os.environ, **options},
            )
            self.kernels = self._text(self._process)
        return self._process

    def launch(self, number: int, launched: bytes, packed: Packed) -> None:
        owners: list[np.ndarray] = []
        pointers = []
        for place, array in packed.pointers:
            owner = _owner(array)
            known = [i for i, other in enumerate(owners) if other is owner]
            if not known:
                owners.append(owner)
            pointers.append((place, known[0] if known else len(owners) - 1, _address(array) - _address(owner)))
        counts = (number, len(owners), len(packed.offsets), len(pointers), len(packed.values))
        numbers = [*(o.nbytes for o in owners), *packed.offsets, *(n for pointer in pointers for n in pointer)]
        process = self._started()
        timer = threading.Timer(LIMIT, process.kill)
        timer.start()
        try:
            assert process.stdin is not None
            with suppress(BrokenPipeError):
                process.stdin.write(
                    struct.pack("<4IQ", *counts) + launched + struct.pack(f"<{len(numbers)}Q", *numbers)
                )
                process.stdin.write(packed.values)
                for owner in owners:
                    process.stdin.write(owner.tobytes(order="A"))
                process.stdin.flush()
            error = self._text(process)
            if error:
                self._end(process)
                raise KernelFault(error)
            for owner in owners:
                _refill(owner, self._read(process, owner.nbytes))
        finally:
            timer.cancel()

    def _text(self, process: subprocess.Popen[bytes]) -> str:
        (length,) = struct.unpack("<I", self._read(process, 4))
        return self._read(process, length).decode()

    def _read(self, process: subprocess.Popen[bytes], size: int) -> bytes:
        """Bytes from the process; if it has ended, an error with its output."""
        assert process.stdout is not None
        data = process.stdout.read(size)
        if len(data) < size:
            status = self._end(process)
            self._told.seek(0)
            killed = "the kernel goes on and on, or takes too much memory: its process was killed"
            told = killed if status == -signal.SIGKILL else f"the kernel's process ended: {status}"
            raise KernelFault(self._told.read().decode(errors="replace") or told)
        return data

    def _end(self, process: subprocess.Popen[bytes]) -> int:
        self._process = None
        process.communicate()
        return process.returncode


@cache
def _addresses_can_be_fixed() -> bool:
    try:
        return subprocess.run(["setarch", "-R", "true"], capture_output=True).returncode == 0
    except OSError:
        return False


def _owner(array: np.ndarray) -> np.ndarray:
    """The array whose memory an array is a part of."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    if not array.flags.forc:
        raise KernelFault("memory that is not NumPy's is given in steps: copy it first")
    return array


def _refill(array: np.ndarray, data: bytes) -> None:
    if array.flags.writeable:
        ctypes.memmove(_address(array), data, len(data))
