"""Files that are written whole or not at all, also by several processes at once, and files that are read."""

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

#: The names of files that are being written, or were when their process was killed.
PARTIAL = re.compile(r"\.optree-[0-9a-f]{16}\.partial")

#: The age in seconds from which they are left over, if no process has them locked.
LEFT_OVER = 600.0


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A new file, which takes the place of `path` at the end of the block, flushed to the disk.

    Each writer has a file of its own: of several that write one path, the last one's file stays, and readers see whole
    files alone. Where the block fails, `path` is as before.
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
                os.replace(partial, path)  # while it is locked: nobody takes it for a left-over
        if fcntl is None:
            os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    _flush(path.parent)


@contextmanager
def open_regular(path: Path) -> Iterator[BinaryIO]:
    """A file to read; OSError where it is a folder, a pipe or a device. It does not wait."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0))) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError("it is a pipe or a device")
        yield file


def _delete_left_over(folder: Path) -> None:
    """Delete the partial files of dead processes: old ones that no process has locked."""
    for path in [path for path in folder.iterdir() if PARTIAL.fullmatch(path.name)]:
        with suppress(OSError):  # another process has deleted or renamed it
            state = path.lstat()
            if stat.S_ISREG(state.st_mode) and time.time() - state.st_mtime > LEFT_OVER:
                with path.open("rb") as file:
                    is_living = _is_locked_elsewhere(file)
                if not is_living:
                    path.unlink()


def _is_locked_elsewhere(file: Any) -> bool:
    """Lock a file until it is closed, or its process has ended; whether another has it locked.

    A file system without locks has none: there, age alone tells what is left over.
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
    """Flush a folder, so that a renamed file is there after a power failure; where the system has no such thing, no."""
    if hasattr(os, "O_DIRECTORY"):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
