"""A just-in-time compiler of C: find a compiler, compile, cache and load.

`compile_source` looks in memory, then in the disk cache
(`backends.execution.compilations`), then compiles.
"""

from __future__ import annotations

import _ctypes
import ctypes
import gc
import os
import platform
import re
import struct
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from itertools import count
from pathlib import Path
from typing import Any
from weakref import WeakMethod, WeakValueDictionary, finalize

from backends import lazy
from backends.execution.compilations import (
    Compilations,
    kill,
    read,
    running_compilers,
    sha256,
    usable_folder,
    working_folder,
    write,
)
from optree import settings
from optree.errors import CompilerError
from optree.records import NamedTuple

#: Flags that cost no meaning: NaN, infinities, signed zeros and the order of operations stay as written.
#: Functions are exported, also if CC has -fvisibility=hidden.
#: a * b + c is not contracted to one rounding, or x * x - y * y would not be 0 where x is y.
#: No builtin atan and atanh: GCC simplifies cos(atan(x)) and the like to roots, which are 0 for a NaN. No builtin sin
#: and cos: GCC joins both to sincos, which it does not vectorise.
FLAGS = (
    *("-O2", "-fPIC", "-shared", "-fvisibility=default"),
    *("-fno-math-errno", "-fno-trapping-math", "-fwrapv", "-ffp-contract=off"),
    *(f"-fno-builtin-{name}" for name in ("atan", "atanf", "atanh", "atanhf", "sin", "sinf", "cos", "cosf")),
)

#: Flags that not every compiler supports, each with its alternatives. GCC moves calls into the branches of a
#: conditional that alone need them, and joins conditionals of one condition to branches; then it vectorises neither.
#: The last five are what kernels and tiles need of -O3, which takes a third more time, and four times as much where it
#: copies long loops for each condition; and registers are allocated for all loops of a function at once.
OPTIONAL_FLAGS = (
    ("-march=native", "-mcpu=native"),
    *((flag,) for flag in ("-fopenmp-simd", "-fno-tree-sink", "-fno-thread-jumps")),
    *((flag,) for flag in ("-ftree-vectorize", "-fvect-cost-model=dynamic", "-fpeel-loops", "-fira-region=one")),
    ("--param=max-inline-insns-single=200",),
)

#: The flags of compilers that do not support all: each is asked once in a process.
_supported: dict[Compiler, list[str]] = {}

#: What is linked with the C library, which takes a fifth of the time of a small kernel: a source that includes another
#: header than this, or declares a function as extern. What a compiler adds (memcpy) is found in the process.
_LINKED = re.compile(r"#include <(?!stdint\.h>)|^extern\b", re.MULTILINE)

#: The version of the cached files, part of every key.
FORMAT = 1

#: Maximum entries of the cache of loaded libraries, evicted least recently used first.
RECENT = 1024

#: The number of loaded libraries beyond which backends evict plans: each takes 5 of the 65,530 memory mappings of a
#: Linux process.
CROWDED = 8192

#: The type of ELF's sections that have no bytes in the file.
_SHT_NOBITS = 8

_MIN_FREE = 1 << 20  # bytes free in a folder that is not full


#: C source, and the names of the functions in it that are called.
Source = tuple[str, tuple[str, ...]]


class Compiler(NamedTuple):
    """A C compiler."""

    #: The executable, and arguments from CC.
    command: tuple[str, ...]
    #: A text that differs between compilers and their versions.
    identity: str

    def __str__(self) -> str:
        return lazy.shlex.join(self.command)


class _Loaded(Compilations):
    """The loaded libraries of this process, and its compilations."""

    def __init__(self) -> None:
        super().__init__()
        #: The most recently used libraries, the latest last, and all that are loaded.
        self.recent: dict[str, ctypes.CDLL] = {}
        self.loaded: WeakValueDictionary[str, ctypes.CDLL] = WeakValueDictionary()
        #: The methods that evict plans, and the number of libraries beyond which they are called.
        self.relief: list[WeakMethod[Callable[[], None]]] = []
        self.crowded = CROWDED

    def found(self, key: str) -> ctypes.CDLL | None:
        """The library of a key, now the most recently used; None where none is loaded."""
        with self.lock:
            library = self.recent.pop(key, None) or self.loaded.get(key)
            if library is not None:
                self.recent[key] = library
        return library

    def add(self, key: str, library: ctypes.CDLL) -> None:
        """Add a library, and evict others beyond the bounds."""
        with self.lock:
            self.loaded[key] = self.recent[key] = library
            dropped = [self.recent.pop(old) for old in list(self.recent)[: max(0, len(self.recent) - RECENT)]]
        del dropped  # outside the lock: finalizers may run any code
        if len(self.loaded) > self.crowded:
            self.make_room()

    def make_room(self) -> None:
        """Let backends evict plans, and with them their libraries."""
        for method in list(self.relief):
            relieve = method()
            if relieve is not None:
                relieve()
        gc.collect()  # plans are in reference cycles
        # Libraries in use stay loaded; a higher bound, so that the next kernel does not collect again.
        self.crowded = max(CROWDED, len(self.loaded) + CROWDED // 8)

    def forget(self) -> None:
        """Empty the cache, as in a new process; libraries in use stay loaded."""
        with self.lock:
            dropped, self.recent, self.loaded = self.recent, {}, WeakValueDictionary()
        del dropped


_loaded = _Loaded()
_loads = count(1)

if hasattr(os, "register_at_fork"):  # a lock that another thread held would stay locked in the child
    os.register_at_fork(after_in_child=_loaded.begin)


def when_crowded(forget: Callable[[], None]) -> None:
    """Register a method, held weakly, that evicts plans when too many libraries are loaded."""
    _loaded.relief[:] = [*(method for method in _loaded.relief if method() is not None), WeakMethod(forget)]


def concurrently(jobs: Sequence[Callable[[], Any]]) -> list[Any]:
    """The results of jobs that compile (`Compilations.concurrently`)."""
    return _loaded.concurrently(jobs)


def compile_counts() -> dict[str, Any]:
    """Statistics of `compile_source` in this process.

    Returns
    -------
    dict
        The number of ``hits`` in memory, of ``disk_hits``, of ``misses``, which compiled, and the ``seconds`` in which
        at least one compiler ran.
    """
    return _loaded.counts()


class Work:
    """The work of one op so far, by NumPy: when it pays to compile a C function for it.

    Calls and sizes alone decide, so that it is the same in every run.

    `backend`: a `CPUBackend`.
    `large`: the work of a call that pays by itself.
    `in_all`: the work of all calls that pays.
    `least`: what a call counts at least.
    """

    def __init__(self, backend: Any, large: int, in_all: int, least: int) -> None:
        self._backend, self._large, self._in_all, self._least = backend, large, in_all, least
        self._done = 0

    def pays(self, work: int) -> bool:
        """Whether a call of this work is for compiled C."""
        if self.pays_alone(work) or self._done >= self._in_all:
            return True
        self._done += max(work, self._least)
        return False

    def pays_alone(self, work: int) -> bool:
        """Whether a call of this work is for compiled C whatever was done before."""
        return bool(self._backend.compiles_at_once or work >= self._large)


# Finding a compiler


def requested_compiler() -> str:
    """The value of CC; empty where it is not set."""
    return os.environ.get("CC", "").strip()


def find_compiler() -> Compiler | None:
    """The compiler that CC names, or else the first of cc, gcc and clang that is installed; None without any.

    It raises CompilerError if CC names one that is not installed.
    """
    chosen = requested_compiler()
    if not chosen:
        return next((found for name in ("cc", "gcc", "clang") if (found := _compiler([name]))), None)
    try:
        found = _compiler(lazy.shlex.split(chosen))
    except ValueError as error:
        raise CompilerError(f"CC is {chosen!r}: {error}") from None
    if found is None:
        raise CompilerError(f"CC is {chosen!r}, and there is no such program; unset CC to use cc, gcc or clang")
    return found


def _compiler(words: list[str]) -> Compiler | None:
    file = _program(words[0])
    if file is None:
        return None
    command = (os.path.abspath(file), *words[1:])
    return Compiler(command, _identity(command))


def _program(word: str) -> str | None:
    """The executable of a name, or None."""
    # Not shutil.which: shutil imports archive formats, which takes longer than all of this.
    folders = [""] if os.path.dirname(word) else filter(None, os.get_exec_path())
    files = (os.path.join(folder, word) for folder in folders)
    return next((file for file in files if os.path.isfile(file) and os.access(file, os.X_OK)), None)


def _identity(command: Sequence[str]) -> str:
    """The files of a command, with size and time of change: unlike the version, known without running it."""
    parts = []
    for word in command:
        file = _program(word)
        if file is None:
            parts.append(word)
        else:
            state = os.stat(file)
            parts.append(f"{_real(file, state.st_dev, state.st_ino)} {state.st_size} {state.st_mtime_ns}")
    return "\n".join(parts)


@lru_cache
def _real(file: str, device: int, inode: int) -> str:
    """A file's path without links, which takes 20 calls of the system; its numbers tell where a link has changed."""
    return os.path.realpath(file)


def vector_bytes() -> int:
    """The bytes of the vectors that compilers use by default, as known without running one."""
    return 64 if "avx512f" in _processor() else 32 if "avx" in _processor() else 16


@cache
def _processor() -> str:
    """The properties of the processor that -march=native depends on."""
    names = ("vendor_id", "cpu family", "model", "flags", "Features", "CPU implementer", "CPU part", "isa")
    known = [platform.system(), platform.machine()]  # not processor(), which runs a program
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            name = line.partition(":")[0].strip()
            if not name:  # the first processor's lines end here
                break
            if name.startswith(names):
                known.append(line.strip())
    return "\n".join(known)


# Compiling


def compile_source(
    source: str,
    name: str,
    argtypes: Sequence[Any] = (ctypes.c_void_p,),
    restype: Any = None,
    compiler: Compiler | None = None,
) -> Any:
    """A function of C source, as a ctypes function that releases the GIL while it runs.

    Thread-safe and fork-safe; each source is compiled once. The library may be
    unloaded when its last function is freed: callers by address hold the function.

    `source`: C source.
    `name`: the function's name in it.
    `argtypes` (sequence of ctypes types): the function's parameters. One pointer costs the least to pass.
    `restype` (ctypes type, optional): the type of its result; none by default.
    `compiler`: by default what `find_compiler` finds.

    Raises CompilerError if there is no compiler, or it fails or takes too long; with what it wrote.
    """
    compiler = compiler or find_compiler()
    if compiler is None:
        raise CompilerError("there is no C compiler: install gcc or clang, or name one in CC")
    try:
        library = _library(source, compiler)
        try:
            return ctypes.CFUNCTYPE(restype, *argtypes)((name, library))
        except AttributeError as error:
            raise CompilerError(f"the C compiler {compiler} made a shared object without {name}: {error}") from None
    except CompilerError as error:
        error.add_note("gen_backend('cpu', jit=False) runs without a compiler")
        raise


def is_loaded(source: str) -> bool:
    """Whether the library of C source is in memory; False where the compiler that CC names is not installed."""
    try:
        compiler = find_compiler()
    except CompilerError:
        return False
    return compiler is not None and _loaded.found(_key(source, compiler)) is not None


def call_packed(function: Any, words: Iterable[int]) -> None:
    """Call a C function of an array of 64-bit integers."""
    packed = words if isinstance(words, array) else array("q", words)
    function(packed.buffer_info()[0])


def _library(source: str, compiler: Compiler) -> ctypes.CDLL:
    key = _key(source, compiler)
    with _loaded.once(key):
        library = _loaded.found(key)
        if library is not None:
            _loaded.count("hits")
            return library
        if "source" in settings.value("show"):
            print(source, file=sys.stderr, flush=True)
        folder = usable_folder()
        library = _from_disk(folder, key) or _from_compiler(folder, key, source, compiler)
        _loaded.add(key, library)
        return library


def _key(source: str, compiler: Compiler) -> str:
    parts = (FORMAT, FLAGS, OPTIONAL_FLAGS, compiler.command, compiler.identity, _processor())
    key = sha256(repr(parts).encode())
    key.update(source.encode())
    return key.hexdigest()


def _from_disk(folder: Path | None, key: str) -> ctypes.CDLL | None:
    """The library of a key in the disk cache, or None."""
    binary = read(folder, key) if folder else None
    if binary is None:
        return None
    try:
        library = load(binary)
    except OSError:  # compiled with other versions of the system's libraries
        return None
    _loaded.count("disk_hits")
    return library


def _from_compiler(folder: Path | None, key: str, source: str, compiler: Compiler) -> ctypes.CDLL:
    with _loaded.timed():
        binary = _compile(source, compiler, folder)
    _loaded.count("misses")
    _loaded.announce(folder)
    try:
        library = load(binary)
    except OSError as error:
        raise CompilerError(f"{compiler}: its shared object cannot be loaded: {error}") from None
    if folder:
        write(folder, key, binary)
    return library


def _compile(source: str, compiler: Compiler, folder: Path | None) -> bytes:
    """A shared object, compiled in the first folder that has room."""
    failure = CompilerError("there is no folder to compile in")
    for parent in (folder, *_temporary_folders()):
        if parent is None:
            continue
        try:
            with working_folder(parent) as work:
                try:
                    return _compile_in(work, source, compiler)
                except CompilerError as error:
                    failure = error
                (work / "room").write_bytes(b"\1" * _MIN_FREE)
                break
        except OSError:  # full, or read-only: the next may not be
            continue
    raise failure


def _temporary_folders() -> Iterator[Path]:
    with suppress(OSError):  # no writable folder
        yield Path(lazy.tempfile.gettempdir())
    yield Path("/dev/shm")


def _compile_in(folder: Path, source: str, compiler: Compiler) -> bytes:
    """A shared object, with all optional flags, or those that the compiler supports."""
    wanted = [*(flag for flag, *_ in OPTIONAL_FLAGS), "-lm" if _LINKED.search(source) else "-nostdlib"]
    status, output = _run(compiler, _supported.get(compiler, wanted), folder, source)
    if status and (flags := [*_supported_flags(compiler, folder), "-lm"]) != wanted:
        status, output = _run(compiler, flags, folder, source)
        if not status:
            _supported[compiler] = flags
    made = folder / "kernel.so"
    if status or not made.is_file():
        raise CompilerError(f"the C compiler {compiler} failed with status {status}: {output.strip()}")
    return made.read_bytes()


def _supported_flags(compiler: Compiler, folder: Path) -> list[str]:
    """The optional flags that a compiler supports, tried on a trivial source; CompilerError if it fails without any."""
    status, output = _run(compiler, [], folder)
    if status:
        raise CompilerError(f"the C compiler {compiler} does not work: status {status}: {output.strip() or 'no words'}")
    found = (
        next((flag for flag in choice if not _run(compiler, [flag], folder)[0]), None) for choice in OPTIONAL_FLAGS
    )
    return [flag for flag in found if flag]


def _run(compiler: Compiler, optional: list[str], folder: Path, source: str = "int nothing;\n") -> tuple[int, str]:
    """The status and output of a compiler, run on a source in a folder."""
    (folder / "kernel.c").write_text(source, encoding="utf-8")
    command = [*compiler.command, *FLAGS, "kernel.c", "-o", "kernel.so", *optional]
    limit, running = settings.value("compile_seconds"), running_compilers()
    if running is not None and running.is_stopped:
        raise CompilerError(f"the C compiler {compiler} was interrupted")
    try:
        process = lazy.subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "LC_ALL": "C", "TMPDIR": str(folder)},
            stdin=lazy.subprocess.DEVNULL,
            stdout=lazy.subprocess.PIPE,
            stderr=lazy.subprocess.STDOUT,
            start_new_session=True,  # a process group, killed together
        )
    except OSError as error:
        raise CompilerError(f"the C compiler {compiler} cannot be run: {error}") from None
    try:
        if running is not None:
            running.add(process)
        output, _ = process.communicate(timeout=limit)
    except lazy.subprocess.TimeoutExpired:
        output = _stop(process)
        raise CompilerError(
            f"the C compiler {compiler} took more than {limit:g} seconds and was stopped "
            f"(OPTREE_COMPILE_SECONDS): {output.decode(errors='replace').strip()}"
        ) from None
    except BaseException:
        _stop(process)
        raise
    finally:
        if running is not None:
            running.discard(process)
    return process.returncode, output.decode(errors="replace")


def _stop(process: Any) -> bytes:
    """Kill a process group; its output."""
    kill(process)
    with suppress(lazy.subprocess.TimeoutExpired):
        return process.communicate(timeout=1)[0]
    return b""


# Loading


def load(binary: bytes) -> ctypes.CDLL:
    """A shared object, loaded from bytes: through memory where the system can, else through a temporary file.

    It raises OSError if the system does not load it, or it is truncated.
    """
    if not _is_whole(binary):
        raise OSError(f"it is truncated: parts of it are beyond its {len(binary)} bytes")
    if hasattr(os, "memfd_create"):
        with suppress(OSError), open(os.memfd_create("optree"), "wb", buffering=0) as file:
            file.write(binary)
            # The loader identifies libraries by path, and file descriptors are reused; so each load spells the path
            # differently, with the binary digits of its number as "/." and "/".
            spelling = "".join("/." if digit == "1" else "/" for digit in f"{next(_loads):b}")
            return _unloaded_when_freed(ctypes.CDLL(f"/proc/self/fd{spelling}/{file.fileno()}"))
    with working_folder(Path(lazy.tempfile.gettempdir())) as folder:
        (folder / "kernel.so").write_bytes(binary)
        return _unloaded_when_freed(ctypes.CDLL(str(folder / "kernel.so")))


def _is_whole(binary: bytes) -> bool:
    """Whether all segments and sections of an ELF file are in it.

    Linux's loader maps what is missing, and the process dies of a SIGBUS. The loaders of other formats refuse it.
    """
    if binary[:4] != b"\x7fELF":
        return True
    order, is_64 = "<" if binary[5:6] == b"\1" else ">", binary[4:5] == b"\2"
    # Of the file's header: the offsets of the tables of segments and sections, their entries' sizes and counts.
    # Of an entry: where its type, offset and size are.
    at = 32 if is_64 else 28
    pointer, segment, section = ("QQI2x", "I4xQ16xQ", "4xI16xQQ") if is_64 else ("III2x", "II8xI", "4xI8xII")
    try:
        tables, sections, _, *counts = struct.unpack_from(f"{order}{pointer}HHHH", binary, at)
        ends = []
        for start, form, size, count in ((tables, segment, *counts[:2]), (sections, section, *counts[2:])):
            ends.append(start + count * size)
            for i in range(count):
                kind, offset, length = struct.unpack_from(order + form, binary, start + i * size)
                if form == segment or kind != _SHT_NOBITS:
                    ends.append(offset + length)
    except struct.error:  # a table is beyond the end
        return False
    return max(ends) <= len(binary)


def _unloaded_when_freed(library: ctypes.CDLL) -> ctypes.CDLL:
    """A library that is unloaded when it and its functions are freed, which ctypes does not do."""
    if hasattr(_ctypes, "dlclose"):
        # Not at exit: other threads may still run kernels.
        finalize(library, _ctypes.dlclose, library._handle).atexit = False
    return library


# The text of C files that stand beside their drivers

_INCLUDE = re.compile(r'^#include "([\w.]+)"$', re.MULTILINE)


def c_text(path: Path, defined: Mapping[str, object], generated: Mapping[str, str] | None = None) -> str:
    """A C file with macros defined, and with the files that it includes from its own folder.

    It is one text because the cache of compiled libraries is keyed by it.

    Parameters
    ----------
    defined : mapping
        From macros, with their parameters, to their texts.
    generated : mapping, optional
        The texts of included files that are generated.

    Examples
    --------
    >>> from backends.cpu.routines.vectors import FOLDER
    >>> print(c_text(FOLDER / "column.h", {"DOUBLE": 1}).splitlines()[0])
    #define DOUBLE 1
    """
    head = "".join(f"#define {name} {value}\n" for name, value in defined.items())
    texts = generated or {}

    def included(match: re.Match[str]) -> str:
        name = match[1]
        return texts[name] if name in texts else _INCLUDE.sub(included, path.with_name(name).read_text())

    return head + _INCLUDE.sub(included, path.read_text())


_WORD = re.compile(r"\w+(?:##S)?\(?")


def after_definitions(text: str, definitions: Sequence[tuple[frozenset[str], str]]) -> str:
    """A text of C after the definitions that it calls, each of which may call those before it.

    `definitions`: with the words of a text that calls it, a function's with ( at the end; without any, all texts do.
    """
    words = {*_WORD.findall(text)}
    for called, definition in reversed(definitions):
        if not called or not words.isdisjoint(called):
            text, words = definition + text, words | _words(definition)
    return text


@cache
def _words(definition: str) -> frozenset[str]:
    return frozenset(_WORD.findall(definition))
