"""Atomic writes of files, safe among several processes, and reads of regular files."""

from __future__ import annotations

import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

try:
    import fcntl
except ImportError:  # Windows, which refuses to delete an open file
    fcntl = None  # type: ignore[assignment]

#: The names of temporary files: of writes in progress, or of killed processes.
PARTIAL = re.compile(r"\.optree-[0-9a-f]{16}\.partial")

#: The age in seconds from which a temporary file without a lock is deleted.
LEFT_OVER = 600.0


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A temporary file that is flushed to the disk and renamed to `path` at the end of the block.

    Each writer has its own temporary file: if several write to one path, the last one's remains, and readers see only
    complete files. If the block fails, `path` is unchanged.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _delete_left_over(path.parent)
    partial = path.with_name(f".optree-{secrets.token_hex(8)}.partial")
    try:
        with partial.open("xb") as file:
            _is_locked_elsewhere(file)
            yield file
            file.flush()
            os.fsync(file.fileno())
            if fcntl is not None:
                os.replace(partial, path)  # while it is locked, so that no other process deletes it as abandoned
        if fcntl is None:
            os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    _flush(path.parent)


@contextmanager
def open_regular(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file for reading, without blocking; OSError for a folder, a pipe or a device."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0))) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError("it is a pipe or a device")
        yield file


def _delete_left_over(folder: Path) -> None:
    """Delete the temporary files of dead processes: old ones that no process has locked."""
    for path in [path for path in folder.iterdir() if PARTIAL.fullmatch(path.name)]:
        with suppress(OSError):  # another process has deleted or renamed it
            state = path.lstat()
            if stat.S_ISREG(state.st_mode) and time.time() - state.st_mtime > LEFT_OVER:
                with path.open("rb") as file:
                    is_living = _is_locked_elsewhere(file)
                if not is_living:
                    path.unlink()


def _is_locked_elsewhere(file: Any) -> bool:
    """Try to lock a file until it is closed or its process ends; whether another process has it locked.

    On a file system without locks this is false, and the age alone decides.
    """
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
    return False


def _flush(folder: Path) -> None:
    """Flush a folder, so that a rename survives a power failure; does nothing where the system has no such call."""
    if hasattr(os, "O_DIRECTORY"):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
