"""From C source to a loaded function: find a compiler, compile, keep and load.

What the source is does not matter here. `compile_source` looks in memory, then
in the cache folder (`backends.execution.disk_cache`), then compiles.
"""

from __future__ import annotations

import _ctypes
import ctypes
import gc
import os
import platform
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakMethod, WeakValueDictionary, finalize

from backends import lazy
from backends.execution.disk_cache import read, sha256, usable_folder, working_folder, write
from optree import settings
from optree.errors import CompilerError

#: Flags that cost no meaning: NaN, infinities, signed zeros and the order of operations stay as written.
#: a * b + c is not contracted to one rounding, or x * x - y * y would not be 0 where x is y.
#: GCC knows nothing of atan and atanh, or it would make roots of cos(atan(x)) and the like, and 0 of a NaN; nor of sin
#: and cos, or it would make one sincos of both, which it takes into no vectors.
FLAGS = (
    *("-O3", "-fPIC", "-shared", "-fno-math-errno", "-fno-trapping-math", "-fwrapv", "-ffp-contract=off"),
    *(f"-fno-builtin-{name}" for name in ("atan", "atanf", "atanh", "atanhf", "sin", "sinf", "cos", "cosf")),
)

#: Flags that not every compiler takes, and what is tried in the place of each.
OPTIONAL_FLAGS = (("-march=native", "-mcpu=native"), ("-fopenmp-simd",))

#: Part of every key: a change of how files are kept makes all of them anew.
FORMAT = 1

#: Seconds of compiling after which a terminal is told of it.
PATIENCE = 1.0
#: So many libraries stay loaded though nothing uses them: those that were asked for last.
RECENT = 1024

#: From so many libraries on, backends are asked to forget plans. Each takes 5 of the 65,530 mappings that Linux gives
#: a process.
CROWDED = 8192

_FULL = 1 << 20  # bytes that a folder with room can hold


class Compiler(NamedTuple):
    """A C compiler.

    Attributes
    ----------
    command : tuple of str
        What runs it: the file, and arguments that CC may have.
    identity : str
        What tells it from another, or from another version.
    """

    command: tuple[str, ...]
    identity: str

    def __str__(self) -> str:
        return shlex.join(self.command)


class _Loaded:
    """The libraries of this process, one lock for each that is being made, and the counts."""

    def __init__(self) -> None:
        #: Those that were asked for last, the latest at the end, and all that are loaded.
        self.recent: dict[str, ctypes.CDLL] = {}
        self.loaded: WeakValueDictionary[str, ctypes.CDLL] = WeakValueDictionary()
        #: What lets go of libraries that are in use, and from how many on it is called.
        self.relief: list[WeakMethod[Callable[[], None]]] = []
        self.crowded = CROWDED
        self.counts: dict[str, float] = {"hits": 0, "disk_hits": 0, "misses": 0, "seconds": 0.0}
        self.told = False  # that it takes a while
        self.renew_locks()

    def renew_locks(self) -> None:
        self.lock = threading.Lock()
        self.making: dict[str, threading.Lock] = {}

    def found(self, key: str) -> ctypes.CDLL | None:
        """The library of a key, which is then the latest; None where none is loaded."""
        with self.lock:
            library = self.recent.pop(key, None) or self.loaded.get(key)
            if library is not None:
                self.recent[key] = library
        return library

    def keep(self, key: str, library: ctypes.CDLL) -> None:
        """Let a library be found, and let go of some where there are many."""
        with self.lock:
            self.loaded[key] = self.recent[key] = library
            dropped = [self.recent.pop(old) for old in list(self.recent)[: max(0, len(self.recent) - RECENT)]]
        del dropped  # after the lock, for all sorts of things may happen as objects are freed
        if len(self.loaded) > self.crowded:
            self.make_room()

    def make_room(self) -> None:
        """Let backends forget plans, and with them their libraries."""
        for method in list(self.relief):
            relieve = method()
            if relieve is not None:
                relieve()
        gc.collect()  # plans are in circles
        # What functions use stays; not to look for more with each kernel from now on.
        self.crowded = max(CROWDED, len(self.loaded) + CROWDED // 8)

    def forget(self) -> None:
        """Let no library be found, as in a new process; those that are in use stay loaded."""
        with self.lock:
            dropped, self.recent, self.loaded = self.recent, {}, WeakValueDictionary()
        del dropped


_loaded = _Loaded()
_loads = count(1)

if hasattr(os, "register_at_fork"):  # a lock that another thread held would stay locked in the child
    os.register_at_fork(after_in_child=_loaded.renew_locks)


def when_crowded(forget: Callable[[], None]) -> None:
    """Have a method called, as long as its object lives, where so many kernels are loaded that some must go."""
    _loaded.relief[:] = [*(method for method in _loaded.relief if method() is not None), WeakMethod(forget)]


def compile_counts() -> dict[str, Any]:
    """What became of the calls of `compile_source` in this process.

    Returns
    -------
    dict
        How many found their source compiled, in memory (``hits``) or in the cache
        folder (``disk_hits``), how many compiled it (``misses``), and the compiler's ``seconds``, together.
    """
    return dict(_loaded.counts)


# Finding a compiler


def asked_for() -> str:
    """What CC says; nothing where it is not set."""
    return os.environ.get("CC", "").strip()


def find_compiler() -> Compiler | None:
    """The compiler that CC names, else cc, gcc or clang, the first that is there; None where there is none.

    Raises
    ------
    CompilerError
        If CC names one that is not there.
    """
    chosen = asked_for()
    if not chosen:
        return next((found for name in ("cc", "gcc", "clang") if (found := _compiler([name]))), None)
    try:
        found = _compiler(shlex.split(chosen))
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
    """The file that runs under a name, or None."""
    # Not shutil.which: loading what shutil needs for archives takes longer than all that is done here.
    folders = [""] if os.path.dirname(word) else filter(None, os.get_exec_path())
    files = (os.path.join(folder, word) for folder in folders)
    return next((file for file in files if os.path.isfile(file) and os.access(file, os.X_OK)), None)


def _identity(command: Sequence[str]) -> str:
    """The files that a command names, with size and time of change: known without running it, unlike its version."""
    parts = []
    for word in command:
        file = _program(word)
        if file is None:
            parts.append(word)
        else:
            state = os.stat(file)
            parts.append(f"{os.path.realpath(file)} {state.st_size} {state.st_mtime_ns}")
    return "\n".join(parts)


@cache
def _processor() -> str:
    """What of the processor -march=native depends on."""
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

    Safe from several threads and after a fork; each source is compiled once. The
    library is unloaded some time after its last function is gone: whoever calls
    one by its address keeps the function.

    Parameters
    ----------
    source : str
        C source.
    name : str
        The function's name in it.
    argtypes : sequence of ctypes types
        The function's parameters. One pointer costs the least to pass.
    restype : ctypes type, optional
        What it returns; nothing by default.
    compiler : Compiler, optional
        By default what `find_compiler` finds.

    Raises
    ------
    CompilerError
        If there is no compiler, or it fails or takes too long; with what it wrote.
    """
    compiler = compiler or find_compiler()
    if compiler is None:
        raise CompilerError("there is no C compiler: install gcc or clang, or name one in CC")
    try:
        return ctypes.CFUNCTYPE(restype, *argtypes)((name, _library(source, compiler)))
    except CompilerError as error:
        error.add_note("gen_backend('cpu', jit=False) runs without a compiler")
        raise


def _library(source: str, compiler: Compiler) -> ctypes.CDLL:
    key = _key(source, compiler)
    with _loaded.lock:
        making = _loaded.making.setdefault(key, threading.Lock())
    try:
        with making:
            library = _loaded.found(key)
            if library is not None:
                _count(hits=1)
                return library
            if "source" in settings.value("show"):
                print(source, file=sys.stderr, flush=True)
            folder = usable_folder()
            library = _kept(folder, key) or _made(folder, key, source, compiler)
            _loaded.keep(key, library)
            return library
    finally:
        _loaded.making.pop(key, None)  # who waits for it finds the library


def _key(source: str, compiler: Compiler) -> str:
    parts = (FORMAT, source, FLAGS, OPTIONAL_FLAGS, compiler.command, compiler.identity, _processor())
    return sha256(repr(parts).encode()).hexdigest()


def _count(**more: float) -> None:
    with _loaded.lock:
        for name, number in more.items():
            _loaded.counts[name] += number


def _kept(folder: Path | None, key: str) -> ctypes.CDLL | None:
    """The library that the cache folder has under a key, or None."""
    binary = read(folder, key) if folder else None
    if binary is None:
        return None
    try:
        library = load(binary)
    except OSError:  # made where the system's libraries were others
        return None
    _count(disk_hits=1)
    return library


def _made(folder: Path | None, key: str, source: str, compiler: Compiler) -> ctypes.CDLL:
    start = time.perf_counter()
    binary = _compile(source, compiler, folder)
    _count(misses=1, seconds=time.perf_counter() - start)
    _tell_of_wait(folder)
    if folder:
        write(folder, key, binary)
    try:
        return load(binary)
    except OSError as error:
        raise CompilerError(f"{compiler}: what it made cannot be loaded: {error}") from None


def _tell_of_wait(folder: Path | None) -> None:
    """Say on the terminal, once, that kernels are being compiled, when that has taken a while."""
    counts = _loaded.counts
    if _loaded.told or counts["seconds"] < PATIENCE or sys.stderr is None or not sys.stderr.isatty():
        return
    _loaded.told = True
    kept = f"; they are kept in {folder} for later runs" if folder else ""
    print(
        f"op-tree is compiling kernels: {counts['misses']:.0f} in {counts['seconds']:.1f} s so far{kept}",
        file=sys.stderr,
        flush=True,
    )


def _compile(source: str, compiler: Compiler, folder: Path | None) -> bytes:
    """A shared object, made in the first folder that has room for it."""
    failure = CompilerError("there is no folder to compile in")
    for parent in (folder, *_temporary_folders()):
        if parent is None:
            continue
        try:
            with working_folder(parent) as place:
                try:
                    return _compile_in(place, source, compiler)
                except CompilerError as error:
                    failure = error
                (place / "room").write_bytes(b"\1" * _FULL)
                break
        except OSError:  # full, or not to be written to: perhaps the next is better
            continue
    raise failure


def _temporary_folders() -> Iterator[Path]:
    with suppress(OSError):  # where there is none that can be written to
        yield Path(lazy.tempfile.gettempdir())
    yield Path("/dev/shm")


def _compile_in(place: Path, source: str, compiler: Compiler) -> bytes:
    """A shared object, with every optional flag, or with those that the compiler takes."""
    (place / "kernel.c").write_text(source, encoding="utf-8")
    status, output = _run(compiler, [flag for flag, *_ in OPTIONAL_FLAGS], place)
    if status:
        flags = _taken(compiler, place)
        if flags != [flag for flag, *_ in OPTIONAL_FLAGS]:
            (place / "kernel.c").write_text(source, encoding="utf-8")
            status, output = _run(compiler, flags, place)
    made = place / "kernel.so"
    if status or not made.is_file():
        raise CompilerError(f"the C compiler {compiler} failed with status {status}: {output.strip()}")
    return made.read_bytes()


def _taken(compiler: Compiler, place: Path) -> list[str]:
    """Which optional flags a compiler takes, found by an empty source.

    Raises
    ------
    CompilerError
        If it does not compile that without any.
    """
    (place / "kernel.c").write_text("int nothing;\n")
    status, output = _run(compiler, [], place)
    if status:
        raise CompilerError(f"the C compiler {compiler} does not work: status {status}: {output.strip() or 'no words'}")
    found = (next((flag for flag in choice if not _run(compiler, [flag], place)[0]), None) for choice in OPTIONAL_FLAGS)
    return [flag for flag in found if flag]


def _run(compiler: Compiler, optional: list[str], place: Path) -> tuple[int, str]:
    """The status and the output of a compiler that makes kernel.so of kernel.c, in a folder."""
    command = [*compiler.command, *FLAGS, *optional, "kernel.c", "-o", "kernel.so", "-lm"]
    limit = settings.value("compile_seconds")
    try:
        process = lazy.subprocess.Popen(
            command,
            cwd=place,
            env={**os.environ, "LC_ALL": "C", "TMPDIR": str(place)},
            stdin=lazy.subprocess.DEVNULL,
            stdout=lazy.subprocess.PIPE,
            stderr=lazy.subprocess.STDOUT,
            start_new_session=True,  # a group, to be stopped with the programs that it starts
        )
    except OSError as error:
        raise CompilerError(f"the C compiler {compiler} cannot be run: {error}") from None
    try:
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
    return process.returncode, output.decode(errors="replace")


def _stop(process: Any) -> bytes:
    """Kill a process and those that it started; what they had written."""
    with suppress(OSError):
        os.killpg(process.pid, lazy.signal.SIGKILL)
    with suppress(lazy.subprocess.TimeoutExpired):
        return process.communicate(timeout=1)[0]
    return b""


# Loading


def load(binary: bytes) -> ctypes.CDLL:
    """A shared object, loaded from these very bytes: from memory where the system can, else from a file deleted since.

    Raises
    ------
    OSError
        If the system does not load it.
    """
    if hasattr(os, "memfd_create"):
        with suppress(OSError), open(os.memfd_create("optree"), "wb", buffering=0) as file:
            file.write(binary)
            # The loader takes a name that it knows for the library that it knows, and numbers of files come again;
            # so each load spells the name in another way, with the digits of its number as "/." and "/".
            spelling = "".join("/." if digit == "1" else "/" for digit in f"{next(_loads):b}")
            return _unloaded_at_last(ctypes.CDLL(f"/proc/self/fd{spelling}/{file.fileno()}"))
    with working_folder(Path(lazy.tempfile.gettempdir())) as place:
        (place / "kernel.so").write_bytes(binary)
        return _unloaded_at_last(ctypes.CDLL(str(place / "kernel.so")))


def _unloaded_at_last(library: ctypes.CDLL) -> ctypes.CDLL:
    """A library that is unloaded when it, and so all functions of it, are gone; ctypes leaves that out."""
    if hasattr(_ctypes, "dlclose"):
        # Not as the process ends, for other threads may still run kernels then.
        finalize(library, _ctypes.dlclose, library._handle).atexit = False
    return library
