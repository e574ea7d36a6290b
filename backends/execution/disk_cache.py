"""Files kept from run to run: what is stored under a key comes back whole, or not at all.

Each file begins with the SHA-256 of its key and the rest. It is written under another name
and renamed, so that it is never seen half-written; of two processes that write
the same key, the later rename wins. Nothing is locked. No fault is an error:
what cannot be read is made again, and what cannot be written is not kept.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from backends import lazy
from optree import settings

#: What begins with this is being written, or was when its process was killed.
TEMPORARY = "tmp-"

#: After so many seconds it was.
LEFT_OVER = 3600.0

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OTHERS_ENTER = stat.S_IXGRP | stat.S_IXOTH
_complaints: set[str] = set()


def _sha256() -> Any:
    """Python's own SHA-256, as its random module takes it: hashlib loads OpenSSL first, which takes 2 milliseconds."""
    for name in ("_sha2", "_sha256"):
        with suppress(ImportError):
            return import_module(name).sha256
    return import_module("hashlib").sha256


sha256 = _sha256()


def cache_folder() -> Path:
    """Where files are kept, whether or not it is there and can be used."""
    chosen = settings.value("cache_dir")
    if chosen is not None:
        return chosen
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path(os.path.expanduser("~/.cache"))) / "optree"


def usable_folder() -> Path | None:
    """The cache folder, made where there is none; None where it cannot be used, with the reason in the log, once."""
    folder = cache_folder()
    try:
        if not folder.is_absolute():
            raise RuntimeError("there is no home folder")
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        real = folder.resolve(strict=True)  # from here on, what links lead to it no longer matters
        reason = why_not(real)
    except (OSError, RuntimeError) as error:
        reason = f"{folder} cannot be used: {error}"
    if reason is None:
        return real
    if reason not in _complaints:
        _complaints.add(reason)
        remedy = "to keep them, name in OPTREE_CACHE_DIR a folder that is yours alone"
        lazy.logging.getLogger(__name__).warning("%s: compiled kernels are kept in memory only; %s", reason, remedy)
    return None


def why_not(folder: Path) -> str | None:
    """Why a folder, given without links, cannot keep files that are run later; None where it can.

    Nobody else may be able to change what is in it, nor to put another folder
    in its place.
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
            return f"{folder} lies in {above}, which belongs to another user"
        if not state.st_mode & _OTHERS_ENTER:
            return None  # nobody else comes further than here
        if state.st_mode & _OTHERS_WRITE and not state.st_mode & stat.S_ISVTX:
            return f"{folder} lies in {above}, where others may write"
    return None


def read(folder: Path, key: str) -> bytes | None:
    """What is stored under a key; None where there is nothing, or not what was stored."""
    try:
        with open(folder / key, "rb") as file:
            if not _own(os.fstat(file.fileno())):
                return None
            content = file.read()
    except OSError:
        return None
    data = content[sha256().digest_size :]
    return data if content == _sealed(key, data) else None


def _sealed(key: str, data: bytes) -> bytes:
    return sha256(key.encode() + data).digest() + data


def _own(state: os.stat_result) -> bool:
    """Whether a file is this user's, and only this user can have written it."""
    return os.name != "posix" or (state.st_uid == os.geteuid() and not state.st_mode & _OTHERS_WRITE)


def write(folder: Path, key: str, data: bytes) -> bool:
    """Store data under a key, in place of what is there; False where that cannot be."""
    temporary = None
    try:
        handle, temporary = lazy.tempfile.mkstemp(prefix=TEMPORARY, dir=folder)
        with open(handle, "wb") as file:
            file.write(_sealed(key, data))
        os.replace(temporary, folder / key)
    except OSError as error:
        lazy.logging.getLogger(__name__).info("%s: not kept: %s", key, error)
        if temporary is not None:
            with suppress(OSError):
                os.unlink(temporary)
        return False
    return True


def sweep(folder: Path) -> None:
    """Delete what killed processes have left in a folder."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(TEMPORARY) and _age(entry) > LEFT_OVER:
                _delete(entry.path)


def _age(entry: os.DirEntry[str]) -> float:
    try:
        return time.time() - entry.stat(follow_symlinks=False).st_mtime
    except OSError:
        return 0.0


def _delete(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        lazy.shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            os.unlink(path)


@contextmanager
def working_folder(parent: Path) -> Iterator[Path]:
    """A new folder in another, for the block; only this user may look into it."""
    # Not tempfile.TemporaryDirectory: a child forked within the block would delete the folder as it ends.
    path = lazy.tempfile.mkdtemp(prefix=TEMPORARY, dir=parent)
    try:
        yield Path(path)
    finally:
        _delete(path)
