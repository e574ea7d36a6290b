"""Checkpoints: all of a run in one safetensors file, written whole or not at all.

A state is a dict of what a run consists of, nested as one likes: tensors and NumPy arrays; numbers, strings, None, and
lists, tuples and dicts of all of these; optimizers; backends, for their random states; and whatever has `get_state` and
`set_state`, as `optree.train.Batches`. Arrays are the file's tensors, named by where they are (``weights.w1``), so that
other readers of the format find them. The rest is JSON in its metadata. Nothing is pickled.

It needs the package safetensors (extra ``train``).
"""

from __future__ import annotations

import json
import math
import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from optree.dtypes import is_bfloat16
from optree.errors import OperandError, OptreeError, ParameterError, brief
from optree.train.optimizer import Optimizer
from optree.tree.tensor import Tensor

#: The keys of the metadata: what is no array, and the checksums of that and of each array, in the order of their names.
KEY, SUMS = "optree", "crc32"

#: Marks in the JSON of what it has no word for.
ARRAY, FLOAT, TUPLE = "$array", "$float", "$tuple"

#: A checkpoint of a folder, by its step.
NAME = re.compile(r"step-(\d+)\.safetensors")

#: The bytes of a header's length, before it.
LENGTH = 8


class CheckpointError(OptreeError, ValueError):
    """A file that is no checkpoint, is damaged, or is of another run."""


def save(path: str | Path, state: Mapping[str, Any], step: int | None = None, keep: int | None = None) -> Path:
    """Write a state to a file.

    It is written aside, flushed to the disk and renamed: a process that is killed at any moment leaves the file that
    was there before.

    Parameters
    ----------
    path : str or Path
        The file; with `step`, the folder in which the file has that number.
    state : dict
        See the module. Keys are strings without a dot.
    step : int, optional
    keep : int, optional
        The number of files that stay in the folder, the last ones; by default, all.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    OperandError
        If the state holds something that a checkpoint does not.

    Examples
    --------
    >>> import tempfile
    >>> from backends import gen_backend
    >>> be = gen_backend("cpu")
    >>> w = be.array([1.0, 2.0], name="w")
    >>> folder = tempfile.mkdtemp()
    >>> save(folder, {"weights": [w], "epoch": 3}, step=10).name
    'step-00000010.safetensors'
    >>> load(folder, {"weights": [w], "epoch": 0})["epoch"], w.get()
    (3, array([1., 2.], dtype=float32))
    """
    if keep is not None and (step is None or keep < 1):
        raise ParameterError(f"save: keep is 1 or more, with a step that numbers the files, not {keep!r}")
    path = Path(path)
    if step is not None:
        path = path / f"step-{step:08d}.safetensors"
    arrays: dict[str, np.ndarray] = {}
    text = json.dumps(_written(state, (), arrays))
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.glob(".*.partial"):  # by a process that was killed
        left.unlink(missing_ok=True)
    partial = path.parent / f".{path.name}.partial"
    try:
        _write(partial, arrays, text)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    _flush(path.parent)
    if keep is not None:
        for old in saved(path.parent)[:-keep]:
            old.unlink(missing_ok=True)
    return path


def saved(folder: str | Path) -> list[Path]:
    """The numbered checkpoints of a folder, the latest last; an empty list if there is no such folder."""
    folder = Path(folder)
    if not folder.is_dir():
        return []
    found = [(int(match[1]), path) for path in folder.iterdir() if (match := NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


def load(path: str | Path, state: Mapping[str, Any]) -> dict[str, Any]:
    """Restore a state from a file, in place.

    Parameters
    ----------
    path : str or Path
        A file, or a folder, of which the latest file is read.
    state : dict
        Of the same form as the one that was saved: its tensors, arrays, optimizers and other objects are given the
        saved values, if all of them can be.

    Returns
    -------
    dict
        The state, with the saved numbers and strings in the places of those given.

    Raises
    ------
    CheckpointError
        If there is no file, or it is truncated or altered, or not of this form. Nothing has changed then.

    Examples
    --------
    See `save`.
    """
    path = _latest(Path(path))
    with _opened(path) as file:
        text = _checked(path, file)
        changes: list[Callable[[], Callable[[], Any]]] = []
        found = _restored(path, file, json.loads(text), state, (), changes)
        undo: list[Callable[[], Any]] = []
        try:
            for change in changes:
                undo.append(change())
        except Exception as error:
            for back in reversed(undo):
                back()
            raise CheckpointError(f"{path}: {error}; nothing has been restored") from error
    return dict(found)


def read(path: str | Path) -> dict[str, np.ndarray]:
    """The arrays of any safetensors file, by name: of other libraries' too.

    Raises
    ------
    CheckpointError
        If it is none, or is truncated, or, where it is a checkpoint, altered.
    """
    path = _latest(Path(path))
    with _opened(path) as file:
        if KEY in (file.metadata() or {}):
            _checked(path, file)
        return {name: np.array(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118 a file is no dict


# Writing


def _written(value: Any, place: tuple[str, ...], arrays: dict[str, np.ndarray]) -> Any:
    """A value as JSON; its arrays go into the dict, by where they are."""
    if isinstance(value, Tensor | np.ndarray):
        name = ".".join(place)
        array = value.get() if isinstance(value, Tensor) else value
        if array.dtype.kind not in "biuf" and not is_bfloat16(array.dtype):
            raise OperandError(f"save: {name} is of {array.dtype}, which a checkpoint does not hold")
        arrays[name] = np.ascontiguousarray(array).reshape(array.shape)
        return {ARRAY: name}
    value = _plain(value, place)
    if isinstance(value, Mapping):
        return {key: _written(each, (*place, _key(key, place)), arrays) for key, each in value.items()}
    if isinstance(value, list | tuple):
        names = _names(value)
        found = [_written(each, (*place, name), arrays) for name, each in zip(names, value, strict=True)]
        return {TUPLE: found} if isinstance(value, tuple) else found
    if isinstance(value, float) and not math.isfinite(value):
        return {FLOAT: repr(value)}
    return value


def _plain(value: Any, place: tuple[str, ...]) -> Any:
    """What is saved for a value: a dict, list, tuple, number, string or None.

    Raises
    ------
    OperandError
        If there is nothing.
    """
    if isinstance(value, Optimizer):
        return value.state
    if hasattr(value, "rng_get_state"):
        return value.rng_get_state()
    if hasattr(value, "get_state") and hasattr(value, "set_state"):
        return value.get_state()
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str | Mapping | list | tuple):
        return value
    raise OperandError(
        f"save: {'.'.join(place)} is {brief(value)}, of which a checkpoint holds nothing: it is no tensor, array, "
        "number, string, list or dict, and has no get_state and set_state"
    )


def _key(key: Any, place: tuple[str, ...]) -> str:
    if not isinstance(key, str) or key.startswith("$"):
        raise OperandError(f"save: {'.'.join(place) or 'the state'} has the key {key!r}; keys are strings without a $")
    return key


def _names(values: Sequence[Any]) -> list[str]:
    """The names of a list's items: those of tensors if all have one, and no two the same; else their numbers."""
    own = [x.name if isinstance(x, Tensor) and x.name else "" for x in values]
    return own if all(own) and len(set(own)) == len(own) else [str(i) for i in range(len(values))]


def _write(path: Path, arrays: dict[str, np.ndarray], text: str) -> None:
    """Write a file and flush it; the checksums are computed meanwhile, and entered in the header at the end."""
    sums: list[str] = []
    blank = "-" * 8 * (1 + len(arrays))

    def compute() -> None:
        sums.append(f"{zlib.crc32(text.encode()):08x}")
        sums.extend(_sum_of(arrays[name]) for name in sorted(arrays))

    summing = Thread(target=compute)
    summing.start()
    try:
        save_file(arrays, path, {KEY: text, SUMS: blank})
    finally:
        summing.join()
    with path.open("r+b") as file:
        header = file.read(LENGTH + int.from_bytes(file.read(LENGTH), "little"))
        file.seek(LENGTH + header.index(f'"{SUMS}":"{blank}"'.encode()) + len(SUMS) + 4)
        file.write("".join(sums).encode())
        file.flush()
        os.fsync(file.fileno())


def _sum_of(array: np.ndarray) -> str:
    """The checksum of an array's bytes."""
    return f"{zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data):08x}"


def _flush(folder: Path) -> None:
    """Flush a folder, so that a renamed file is there after a power failure; where the system has no such thing, no."""
    if hasattr(os, "O_DIRECTORY"):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


# Reading


def _latest(path: Path) -> Path:
    if not path.is_dir():
        return path
    found = saved(path)
    if not found:
        raise CheckpointError(f"{path}: there is no checkpoint in this folder")
    return found[-1]


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """An open safetensors file."""
    try:
        with safe_open(path, "np") as file:
            yield file
    except FileNotFoundError:
        raise CheckpointError(f"{path}: there is no such file") from None
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: it is no safetensors file, or a truncated one: {error}") from error


def _checked(path: Path, file: Any) -> str:
    """The JSON of a checkpoint, if nothing of it is altered.

    Raises
    ------
    CheckpointError
        If something is, or the file is no checkpoint.
    """
    metadata, names = file.metadata() or {}, sorted(file.keys())
    if KEY not in metadata or SUMS not in metadata:
        raise CheckpointError(f"{path}: it is a safetensors file, but no checkpoint; train.read gives its arrays")
    text, listed = str(metadata[KEY]), metadata[SUMS]
    sums = [listed[i : i + 8] for i in range(0, len(listed), 8)]
    if len(sums) != len(names) + 1 or sums[0] != f"{zlib.crc32(text.encode()):08x}":
        raise CheckpointError(f"{path}: its description is not as it was written: the file is altered")
    for name, expected in zip(names, sums[1:], strict=True):
        if expected != _sum_of(file.get_tensor(name)):
            raise CheckpointError(f"{path}: the values of {name} are not as they were written: the file is altered")
    return text


def _restored(path: Path, file: Any, given: Any, state: Any, place: tuple[str, ...], changes: list[Any]) -> Any:
    """The state with saved numbers; what is to be changed in place is appended, to be done when all is known to fit.

    Raises
    ------
    CheckpointError
        If the saved value is not of the form of the state's.
    """
    name = ".".join(place) or "the state"
    if isinstance(state, Tensor | np.ndarray):
        array = _array(path, file, given, name)
        if array.shape != state.shape or array.dtype != state.dtype:
            ours = f"{state.shape} {state.dtype}"
            raise CheckpointError(f"{path}: {name} is {array.shape} {array.dtype} there, and {ours} here")
        changes.append(lambda: _changed(file, given[ARRAY], state))
        return state
    if isinstance(state, Optimizer):
        _restored(path, file, given, state.state, place, changes)
        return state
    setter = getattr(state, "rng_set_state", None) or getattr(state, "set_state", None)
    if setter is not None:
        value = _decoded(file, given)
        changes.append(lambda: _set(setter, _plain(state, place), value))
        return state
    if isinstance(state, Mapping):
        if not isinstance(given, Mapping) or given.keys() != state.keys():
            there = set(given) if isinstance(given, Mapping) else set()
            missing, more = sorted(state.keys() - there), sorted(there - state.keys())
            raise CheckpointError(
                f"{path}: {name} has there {more or 'nothing'} beyond, and not {missing or 'anything'}"
            )
        return {k: _restored(path, file, given[k], state[k], (*place, k), changes) for k in state}
    if isinstance(state, list | tuple):
        items = given.get(TUPLE) if isinstance(given, Mapping) else given
        if isinstance(given, Mapping) != isinstance(state, tuple) or not isinstance(items, list):
            raise CheckpointError(f"{path}: {name} is a {type(state).__name__} here, and none there")
        if len(items) != len(state) and any(isinstance(x, Tensor) for x in state):
            raise CheckpointError(f"{path}: {name} is of {len(items)} there, and of {len(state)} here")
        if len(items) != len(state):
            return _decoded(file, given)
        pairs = zip(_names(state), items, state, strict=True)
        found = [_restored(path, file, x, y, (*place, n), changes) for n, x, y in pairs]
        return tuple(found) if isinstance(state, tuple) else found
    return _decoded(file, given)


def _array(path: Path, file: Any, given: Any, name: str) -> np.ndarray:
    """A saved array; it need not be read for its shape and dtype."""
    if not isinstance(given, Mapping) or set(given) != {ARRAY}:
        raise CheckpointError(f"{path}: {name} is an array here, and none there")
    return np.asarray(file.get_tensor(given[ARRAY]))


def _changed(file: Any, name: str, target: Any) -> Callable[[], Any]:
    """Give a tensor or array its saved values; returns what undoes that."""
    before = target.get() if isinstance(target, Tensor) else target.copy()

    def write(values: np.ndarray) -> None:
        if isinstance(target, Tensor):
            target.set(values)
        else:
            target[...] = values

    write(np.array(file.get_tensor(name)))
    return lambda: write(before)


def _set(setter: Callable[[Any], Any], before: Any, value: Any) -> Callable[[], Any]:
    setter(value)
    return lambda: setter(before)


def _decoded(file: Any, given: Any) -> Any:
    """A saved value as it was."""
    if isinstance(given, list):
        return [_decoded(file, x) for x in given]
    if not isinstance(given, Mapping):
        return given
    if set(given) == {ARRAY}:
        return np.array(file.get_tensor(given[ARRAY]))
    if set(given) == {FLOAT}:
        return float(given[FLOAT])
    if set(given) == {TUPLE}:
        return tuple(_decoded(file, x) for x in given[TUPLE])
    return {key: _decoded(file, x) for key, x in given.items()}
