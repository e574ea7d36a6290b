"""Compiled kernels: each source once in a process, several at a time, counted, and cached on disk.

In the disk cache, data are stored by key, and returned whole or not at all. Each file begins with the
SHA-256 of its key and data. Writes are atomic, to a temporary file that is renamed; of two processes that write the
same key, the later rename wins. Nothing is locked. No fault is an error: data that cannot be read are a miss, and data
that cannot be written are not cached.

The cache folder may have other files of the user's. So all files are in a folder within it, `PRIVATE`, and of that,
too, only files of the cache's own names, kinds and owner are ever deleted.
"""

from __future__ import annotations

import os
import re
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from backends import lazy
from backends.execution.thread_pool import share
from optree import settings

#: The prefix of files and folders that are being written, or were when their process was killed.
TEMPORARY = "tmp-"

#: The age in seconds from which they are left over.
LEFT_OVER = 3600.0

#: The cache's own folder within the cache folder.
PRIVATE = "optree-kernels"

#: The fraction of ``cache_bytes`` that eviction leaves.
LEAVES = 0.75

#: The names that `tempfile` makes, and the keys of kernels.
_TEMPORARY_NAME = re.escape(TEMPORARY) + "[a-z0-9_]{8}"
_STORED_NAME = "(cuda-)?[0-9a-f]{64}"

#: For a folder and its limit, the bytes that may be written before its files are counted again.
_room: dict[tuple[Path, int], int] = {}

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OTHERS_ENTER = stat.S_IXGRP | stat.S_IXOTH
_complaints: set[str] = set()

#: Seconds of compiling after which a message appears on a terminal.
PATIENCE = 1.0


class Compilations:
    """The compilations of a process, or for a device.

    `hits`, `disk_hits`, `misses`: the number of sources found in memory, found on disk, and compiled.
    `seconds`: the seconds in which at least one compiler ran.
    `waiting`: the number of sources that `concurrently` has yet to compile.
    `announced`: whether the message on compiling has appeared.
    """

    def __init__(self) -> None:
        self.hits = self.disk_hits = self.misses = 0
        self.seconds = 0.0
        self.announced = False
        self.begin()

    def begin(self) -> None:
        """In a new process: renew the locks, and forget the compilations of other threads."""
        self.lock = threading.Lock()
        self._compiling: dict[Any, threading.Lock] = {}
        self._running, self._since = 0, 0.0
        self.waiting = 0

    def counts(self) -> dict[str, Any]:
        """The counts and the seconds."""
        return {"hits": self.hits, "disk_hits": self.disk_hits, "misses": self.misses, "seconds": self.seconds}

    def count(self, name: str) -> None:
        """Add 1 to one of the counts."""
        with self.lock:
            setattr(self, name, getattr(self, name) + 1)

    @contextmanager
    def once(self, key: object) -> Iterator[None]:
        """A block that one thread at a time runs for a key: those that wait find what it has compiled."""
        with self.lock:
            lock = self._compiling.setdefault(key, threading.Lock())
        try:
            with lock:
                yield
        finally:
            self._compiling.pop(key, None)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count the seconds of a block, those of several threads at once only once."""
        with self.lock:
            self._since = time.perf_counter() if not self._running else self._since
            self._running += 1
        try:
            yield
        finally:
            with self.lock:
                now = time.perf_counter()
                self.seconds += now - self._since
                self._since, self._running = now, self._running - 1

    def announce(self, folder: Path | None) -> None:
        """Print a message on the terminal, once, when compiling has taken `PATIENCE`."""
        with self.lock:
            if self.announced or self.seconds < PATIENCE or sys.stderr is None or not sys.stderr.isatty():
                return
            self.announced = True
        more = f", {self.waiting} to come" if self.waiting else ""
        cached = f"; they are cached in {folder} for later runs" if folder else ""
        print(
            f"op-tree is compiling kernels: {self.misses} in {self.seconds:.1f} s so far{more}{cached}",
            file=sys.stderr,
            flush=True,
        )

    def concurrently(self, jobs: Sequence[Callable[[], Any]]) -> list[Any]:
        """The results of jobs that compile, several at a time.

        An error ends it: it is the result of its job, and None that of those that have not begun. An interrupt stops
        the compilers that run.
        """
        results, running = list[Any]([None] * len(jobs)), Running()
        self.waiting = len(jobs)

        def run(index: int) -> None:
            self.waiting -= 1
            if running.has_failed:
                return
            _local.running = running
            try:
                results[index] = jobs[index]()
            except Exception as error:
                results[index], running.has_failed = error, True
            finally:
                _local.running = None

        try:
            share(range(len(jobs)), lambda: run, running.stop)
        finally:
            self.waiting = 0
        return results


class Running:
    """The compilers that jobs of `Compilations.concurrently` run.

    `has_failed`: whether a job has failed, so that no other begins.
    `is_stopped`: whether an interrupt has stopped them.
    """

    def __init__(self) -> None:
        self.has_failed = self.is_stopped = False
        self._processes: set[Any] = set()

    def add(self, process: object) -> None:
        """Add a compiler that has begun; it is killed where others have been."""
        self._processes.add(process)
        if self.is_stopped:  # between the start and here
            kill(process)

    def discard(self, process: object) -> None:
        """Remove a compiler that has ended."""
        self._processes.discard(process)

    def stop(self) -> None:
        """Kill the compilers; those that begin later end at once."""
        self.is_stopped = True
        for process in list(self._processes):
            if process.returncode is None:
                kill(process)


def kill(process: Any) -> None:
    """Kill the group of a process."""
    with suppress(OSError):
        os.killpg(process.pid, lazy.signal.SIGKILL)


#: `_local.running`: the compilers of the jobs that this thread takes part in.
_local = threading.local()


def running_compilers() -> Running | None:
    """Those that this thread takes part in; None outside of `Compilations.concurrently`."""
    return getattr(_local, "running", None)


# The cache on disk


def _sha256() -> Any:
    """Python's own SHA-256, as the random module imports it: hashlib loads OpenSSL, which takes 2 milliseconds."""
    for name in ("_sha2", "_sha256"):
        with suppress(ImportError):
            return import_module(name).sha256
    return import_module("hashlib").sha256


sha256 = _sha256()


def cache_folder() -> Path:
    """The folder of the setting ``cache_dir``, or the default; it may not exist or not be usable."""
    chosen = settings.value("cache_dir")
    if chosen is not None:
        return chosen
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):
        return Path(base) / "optree"
    # A HOME that is empty would make it /.cache.
    return Path(os.path.expanduser("~") if os.environ.get("HOME") != "" else "") / ".cache" / "optree"


def usable_folder() -> Path | None:
    """The cache's own folder, made if it does not exist; None where it is unusable, with the reason logged once."""
    folder = cache_folder()
    try:
        if not folder.is_absolute():
            raise RuntimeError("there is no home folder")
        _refuse_links_of_others(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        real = folder.resolve(strict=True)  # links on the path do not matter from here on
        reason = unsafe_reason(real)
        if reason is None:
            real = real / PRIVATE
            real.mkdir(mode=0o700, exist_ok=True)
            reason = unsafe_reason(real) if not real.is_symlink() else f"{real} is a link"
    except (OSError, RuntimeError) as error:
        reason = f"{folder} cannot be used: {error}"
    if reason is None:
        return real
    if reason not in _complaints:
        _complaints.add(reason)
        remedy = "to cache them on disk, name in OPTREE_CACHE_DIR a folder that is yours alone"
        lazy.logging.getLogger(__name__).warning("%s: compiled kernels are cached in memory only; %s", reason, remedy)
    return None


def _refuse_links_of_others(folder: Path) -> None:
    """Refuse a path that leads through another user's link: it may name any folder of this user's."""
    for path in (*reversed(folder.parents), folder) if os.name == "posix" else ():
        try:
            state = path.lstat()
        except FileNotFoundError:
            return
        if stat.S_ISLNK(state.st_mode) and state.st_uid not in (0, os.geteuid()):
            raise RuntimeError(f"{path} is a link of another user")


def unsafe_reason(folder: Path) -> str | None:
    """The reason why a folder, given without links, is unsafe for executable files; None where it is safe.

    No other user may be able to change its files, or to replace it by another folder.
    """
    if os.name != "posix":
        return None
    state = folder.stat()
    if state.st_uid != os.geteuid():
        return f"{folder} belongs to another user"
    if state.st_mode & _OTHERS_WRITE:
        return f"others may write to {folder}"
    for above in reversed(folder.parents):
        state = above.stat()
        if state.st_uid not in (0, os.geteuid()):
            return f"{folder} is in {above}, which belongs to another user"
        if not state.st_mode & _OTHERS_ENTER:
            return None  # nobody else comes further than here
        if state.st_mode & _OTHERS_WRITE and not state.st_mode & stat.S_ISVTX:
            return f"{folder} is in {above}, where others may write"
    return None


def read(folder: Path, key: str) -> bytes | None:
    """The data stored under a key; None where there are none, or they are damaged."""
    try:
        with open(folder / key, "rb", opener=_opened) as file:
            if not _is_own_file(os.fstat(file.fileno())):
                return None
            content = file.read()
        data = content[sha256().digest_size :]
        if content != _sealed(key, data):
            return None
    except OSError:
        return None
    with suppress(OSError):
        os.utime(folder / key)  # the time of last use, for eviction
    return data


def _opened(path: str, flags: int) -> int:
    """A descriptor of a file itself, following no link, without waiting for a FIFO's other end."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))


def _sealed(key: str, data: bytes) -> bytes:
    return sha256(key.encode() + data).digest() + data


def _is_own(state: os.stat_result) -> bool:
    """Whether a file or folder is this user's, and only this user can have written to it."""
    return os.name != "posix" or (state.st_uid == os.geteuid() and not state.st_mode & _OTHERS_WRITE)


def _is_own_file(state: os.stat_result) -> bool:
    return stat.S_ISREG(state.st_mode) and _is_own(state)


def write(folder: Path, key: str, data: bytes) -> bool:
    """Store data under a key, replacing others, and sweep; False where that fails."""
    temporary = None
    try:
        handle, temporary = lazy.tempfile.mkstemp(prefix=TEMPORARY, dir=folder)
        with open(handle, "wb") as file:
            file.write(_sealed(key, data))
        os.replace(temporary, folder / key)
    except OSError as error:
        lazy.logging.getLogger(__name__).info("%s: not cached: %s", key, error)
        if temporary is not None:
            with suppress(OSError):
                os.unlink(temporary)
        return False
    sweep(folder, len(data))
    return True


# Deleting


def sweep(folder: Path, written: int = 0) -> None:
    """Delete the leftovers of killed processes in a private folder, and evict its least recently used files.

    Only this user's files and folders with names of `write` and `working_folder` are touched; no link is followed.
    Other processes may sweep, read and write meanwhile: files that one has open stay readable, and others are a miss.

    `written`: bytes that have been written since the last sweep. Files are counted only where they may be more than the
    setting ``cache_bytes``.
    """
    if os.unlink not in os.supports_dir_fd:  # files cannot be deleted relative to an open folder
        return
    limit = settings.value("cache_bytes")
    room = _room.get((folder, limit), 0) - written
    try:
        descriptor = _opened_folder(folder)
    except OSError:
        return
    try:
        files = _delete_left_over(descriptor)
        if room <= 0:
            total = _delete_oldest(descriptor, files, limit)
            # Counted again before the folder can be full, for other processes write too.
            room = min(limit - total, limit // 16)
        _room[folder, limit] = room
    except OSError as error:
        lazy.logging.getLogger(__name__).info("%s: not swept: %s", folder, error)
    finally:
        os.close(descriptor)


def _opened_folder(name: Any, within: int | None = None) -> int:
    """A descriptor of a folder of this user's, following no link."""
    found = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=within)
    if not _is_own(os.fstat(found)):
        os.close(found)
        raise PermissionError(f"{name} is not this user's alone")
    return found


def _delete_left_over(descriptor: int) -> list[str]:
    """Delete left-over temporary files and folders; the names of the stored files."""
    stored = []
    with os.scandir(descriptor) as entries:
        for entry in entries:
            if re.fullmatch(_STORED_NAME, entry.name):
                stored.append(entry.name)
            elif re.fullmatch(_TEMPORARY_NAME, entry.name):
                with suppress(OSError):
                    state = os.stat(entry.name, dir_fd=descriptor, follow_symlinks=False)
                    if time.time() - state.st_mtime <= LEFT_OVER:
                        continue
                    if _is_own_file(state):
                        os.unlink(entry.name, dir_fd=descriptor)
                    elif stat.S_ISDIR(state.st_mode) and _is_own(state):
                        _delete_working_folder(descriptor, entry.name)
    return stored


def _delete_working_folder(descriptor: int, name: str) -> None:
    """Delete a working folder and its files, unless it has folders in it."""
    inner = _opened_folder(name, descriptor)
    try:
        for file in os.listdir(inner):
            if _is_own_file(os.stat(file, dir_fd=inner, follow_symlinks=False)):
                os.unlink(file, dir_fd=inner)
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=descriptor)


def _delete_oldest(descriptor: int, names: list[str], limit: int) -> int:
    """Evict the least recently used files where all exceed a limit in bytes; the bytes that remain."""
    files = []
    for name in names:
        with suppress(OSError):  # another process may have deleted it
            state = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            if _is_own_file(state):
                files.append((state.st_mtime_ns, state.st_size, name))
    total = sum(size for _, size, _ in files)
    if total <= limit:
        return total
    for _, size, name in sorted(files):
        if total <= limit * LEAVES:
            break
        with suppress(OSError):
            os.unlink(name, dir_fd=descriptor)
        total -= size
    return total


@contextmanager
def working_folder(parent: Path) -> Iterator[Path]:
    """A temporary folder within another, private to this user."""
    # Not tempfile.TemporaryDirectory: a child forked within the block would delete the folder as it ends.
    path = lazy.tempfile.mkdtemp(prefix=TEMPORARY, dir=parent)
    try:
        yield Path(path)
    finally:
        lazy.shutil.rmtree(path, ignore_errors=True)
