"""Checkpoints: the whole state of a run in one safetensors file, written atomically.

A state is a nested dict. Its values are tensors, NumPy arrays, numbers, strings, None, optimizers, backends (for their
random states), objects with `get_state` and `set_state` such as `optree.train.Batches`, and lists, tuples and dicts of
these. Arrays are stored as the file's tensors and named by their path in the state (``weights.w1``), so that other
readers of the format find them. Everything else is stored as JSON in the metadata. Nothing is pickled.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
import zlib
from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np

from optree.dtypes import can_cast
from optree.errors import OperandError, ParameterError, brief
from optree.records import NamedTuple
from optree.train import safetensors
from optree.train.files import replacing
from optree.train.optimizer import Optimizer, Shard
from optree.train.safetensors import RESERVED, CheckpointError, bytes_of
from optree.tree.tensor import Tensor
from optree.tree.variable import Operand

#: The keys of the metadata: the JSON description, and the checksums of the description and of each array, by name.
KEY, SUMS = "optree", "crc32"

#: Keys that mark values in the JSON that have no JSON type.
ARRAY, FLOAT, TUPLE = "$array", "$float", "$tuple"

#: The floats that JSON cannot represent.
FLOATS = ("nan", "inf", "-inf")

#: A checkpoint of a folder, by its step.
NAME = re.compile(r"step-(\d+)\.safetensors")

#: Maximum nesting of a state.
DEPTH = 100


def save(
    path: str | Path, state: Mapping[str, Any], step: int | None = None, keep: int | None = None, over: Any = None
) -> Path | None:
    """Write a state to a file.

    The write is atomic: a temporary file is written, flushed to the disk and renamed. If the process is killed, the
    previous file remains. Several processes may save to one path; the last file remains, complete. A later save into
    the folder deletes temporary files of killed processes ten minutes after their last write.

    Parameters
    ----------
    path : str or Path
        The file; with `step`, the folder of the numbered file.
    state : dict
        See the module. Keys are strings without control characters. The names of arrays are unique.
    step : int, optional
    keep : int, optional
        The number of latest files that remain in the folder; by default, all.
    over : optree.distributed.Group, optional
        The processes that train together. All ranks call this function. Rank 0 gathers the shards of optimizers and
        writes; the other ranks wait. Any number of ranks can load the file. The random counters of all ranks become
        the largest one, as after a load.

    Returns
    -------
    Path
        The file; None on ranks other than 0.

    Raises
    ------
    OperandError
        If the state has a value that a checkpoint cannot store.
    DistributedError
        On the other ranks, if rank 0 has failed.

    Examples
    --------
    >>> import tempfile
    >>> w = be.array([1.0, 2.0], name="w")
    >>> folder = tempfile.mkdtemp()
    >>> save(folder, {"weights": [w], "epoch": 3}, step=10).name
    'step-00000010.safetensors'
    >>> load(folder, {"weights": [w], "epoch": 0})["epoch"], w.get()
    (3, array([1., 2.], dtype=float32))
    """
    if keep is not None and (step is None or keep < 1):
        raise ParameterError(f"save: keep is 1 or more, with a step that numbers the files, not {keep!r}")
    if not isinstance(state, Mapping):
        raise OperandError(f"save: the state is a dict of what a run consists of, not {brief(state)}")
    if over is not None:
        written: Path | None = over.once(save, path, _whole(state, over), step, keep)
        return written
    path = _file_of(Path(path), step)
    arrays: dict[str, np.ndarray] = {}
    text = json.dumps(_written(state, (), arrays))
    _write(path, arrays, text)
    if keep is not None:
        for old in saved(path.parent)[:-keep]:
            old.unlink(missing_ok=True)
    return path


def saved(folder: str | Path) -> list[Path]:
    """The numbered checkpoints of a folder, in ascending order; an empty list if the folder does not exist.

    Parameters
    ----------
    folder : str or Path

    Examples
    --------
    >>> from optree import train
    >>> train.saved("no such folder")
    []
    """
    folder = Path(folder)
    if not folder.is_dir():
        return []
    found = [(int(match[1]), path) for path in folder.iterdir() if (match := NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


def load(path: str | Path, state: Mapping[str, Any], strict: bool = True) -> dict[str, Any]:
    """Restore a state from a file, in place.

    Parameters
    ----------
    path : str or Path
        A file, or a folder, whose latest checkpoint is read.
    state : dict
        A state with the structure of the saved one. Its tensors, arrays, optimizers and other objects are set to the
        saved values, all of them or none.
    strict : bool
        Whether the dicts of both states, and the states of optimizers, must have the same keys. If not, keys of the
        file alone are skipped, and values of the given state alone remain as they are.

    Returns
    -------
    dict
        The state, with the saved numbers and strings in place of the given ones.

    Raises
    ------
    CheckpointError
        If there is no file, or it is truncated or altered, or its structure differs, or it has nothing of the state.
        Nothing has changed then.

    Examples
    --------
    The weights alone, of a run that has another optimizer now; `save` shows a whole state.

    >>> import tempfile
    >>> from optree import train
    >>> w = be.array([1.0, 2.0], name="w")
    >>> path = train.save(tempfile.mkdtemp() + "/run.safetensors", {"weights": [w], "optimizer": train.SGD([w], 0.1)})
    >>> w[:] = 0
    >>> _ = train.load(path, {"weights": [w], "adam": train.Adam([w], 0.1)}, strict=False)
    >>> w.get()
    array([1., 2.], dtype=float32)
    """
    path, metadata, arrays = _opened(Path(path))
    restoring = _Restoring(path, arrays, strict, [], [])
    described = _described(path, metadata, arrays)
    if state and not described.keys() & state.keys():
        raise CheckpointError(f"{path}: has {sorted(described) or 'nothing'}, and nothing of {sorted(state)}")
    found = restoring.value(described, state, ())
    done = 0
    try:
        for setter, _, value in restoring.setters:
            setter(value)
            done += 1
    except Exception as error:
        for setter, before, _ in restoring.setters[:done]:
            setter(before)
        raise CheckpointError(f"{path}: {error}; nothing has been restored") from error
    for write in restoring.writes:  # of arrays that fit
        write()
    return dict(found)


def read(path: str | Path) -> dict[str, np.ndarray]:
    """The arrays of a safetensors file by name, also of files written by other libraries.

    Parameters
    ----------
    path : str or Path

    Raises
    ------
    CheckpointError
        If it is no safetensors file, or is truncated, or is a checkpoint that was altered.

    Examples
    --------
    >>> import tempfile
    >>> from optree import train
    >>> path = tempfile.mkdtemp() + "/weights.safetensors"
    >>> saved = train.save(path, {"w": be.ones(2)})
    >>> sorted(train.read(path))
    ['w']
    """
    path, metadata, arrays = _opened(Path(path))
    if KEY in metadata:
        _described(path, metadata, arrays)
    return {name: np.array(array) for name, array in arrays.items()}


class Loaded(NamedTuple):
    """The result of `load_weights`: the names of loaded and missing weights, and the file's names that were unused."""

    loaded: list[str]
    missing: list[str]
    unused: list[str]


def load_weights(
    path: str | Path | Sequence[str | Path],
    weights: Sequence[Tensor] | Mapping[str, Tensor],
    mapping: Mapping[str, str | tuple[str, Sequence[int]]] | None = None,
    strict: bool = True,
) -> Loaded:
    """Set weights from safetensors files of any library, under other names and with transposed axes.

    Parameters
    ----------
    path : str, Path or list of these
        A file, the files of which each has a part, or a folder of checkpoints.
    weights : list or dict of Tensor
        The tensors by their own names, or by the dict's. A view, such as ``w[:, :8]``, sets a part of its tensor.
    mapping : dict, optional
        From names of weights to names in the file, or to a tuple of that name and the order of the array's axes:
        ``{"w1": ("fc1.weight", (1, 0))}`` loads a transposed matrix, as those of `torch.nn.Linear` are. A ``*`` in
        both stands for any text: ``{"*.w": "model.*.kernel"}``. Other weights have the same name in the file.
    strict : bool
        Whether each weight must be in the file, and each array of the file be used.

    Returns
    -------
    Loaded

    Raises
    ------
    CheckpointError
        If a shape or dtype does not fit, nothing is loaded, or `strict` does not hold. Nothing has changed then.
    OperandError
        If a weight has no name, or a rule of the mapping names no weight.

    Examples
    --------
    >>> import tempfile
    >>> w = be.ones((2, 3), name="w")
    >>> path = save(tempfile.mkdtemp() + "/run.safetensors", {"weights": [be.array([[1.0, 2.0]] * 3, name="w")]})
    >>> load_weights(path, [w], {"*": ("weights.*", (1, 0))}), w.get()[1]
    (Loaded(loaded=['w'], missing=[], unused=[]), array([2., 2., 2.], dtype=float32))
    """
    paths = [path] if isinstance(path, str | Path) else path
    arrays: dict[str, np.ndarray] = {}
    for each in paths:
        part = read(each)
        for name in arrays.keys() & part.keys():
            raise CheckpointError(f"{each}: {name} is in an earlier file, too")
        arrays |= part
    what = ", ".join(map(str, paths))
    given = list(weights.items()) if isinstance(weights, Mapping) else [(getattr(x, "name", None), x) for x in weights]
    found, writes = _matched(what, arrays, given, mapping or {})
    if not writes or (strict and (found.missing or found.unused)):
        raise CheckpointError(
            f"{what}: missing {found.missing or 'nothing'}, unused {found.unused or 'nothing'}; a mapping renames, "
            "and strict=False loads a part; nothing has been loaded"
        )
    for tensor, array in writes:
        tensor.set(array)
    return found


def _matched(
    what: str, arrays: dict[str, np.ndarray], weights: Sequence[tuple[Any, Tensor]], mapping: Mapping[str, Any]
) -> tuple[Loaded, list[tuple[Tensor, np.ndarray]]]:
    """The names that match, and each tensor that is in the file with its checked values."""
    found, writes = Loaded([], [], []), []
    unused = set(arrays)
    for (name, tensor), (source, order) in zip(weights, _sources([n for n, _ in weights], mapping), strict=True):
        if not isinstance(tensor, Tensor):
            raise OperandError(f"load_weights: {name} is a tensor to be set, not {brief(tensor)}")
        if source in arrays:
            writes.append((tensor, _fitting(f"{what}: {source}", arrays[source], order, tensor, name)))
        (found.loaded if source in arrays else found.missing).append(name)
        unused.discard(source)
    found.unused.extend(sorted(unused))
    return found, writes


def _sources(names: Sequence[Any], mapping: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The name in the file, and the order of axes, of each weight."""
    rules = {key: re.compile(re.escape(key).replace(r"\*", "(.+)")) for key in mapping}
    found, applied = [], set()
    for name in names:
        if not isinstance(name, str) or names.count(name) > 1:
            what = f"two weights have the name {name!r}" if name else "a weight has no name"
            raise OperandError(f"load_weights: {what}; give a dict of names and tensors")
        key = name if name in mapping else next((key for key, rule in rules.items() if rule.fullmatch(name)), None)
        value = name if key is None else mapping[key]
        source, order = value if isinstance(value, tuple) else (value, None)
        match = rules[key].fullmatch(name) if key is not None and key != name else None
        for part in match.groups() if match else ():
            source = source.replace("*", part, 1)
        found.append((source, order))
        applied.add(key)
    for key in mapping.keys() - applied:
        raise OperandError(f"load_weights: the mapping's {key!r} is the name of no weight; there are {brief(names)}")
    return found


def _fitting(what: str, array: np.ndarray, order: Any, tensor: Tensor, name: str) -> np.ndarray:
    """The array with its axes in order, checked to fit a tensor."""
    if order is not None and sorted(order) != list(range(array.ndim)):
        raise CheckpointError(f"{what} of {array.shape} has no order of axes {order}")
    turned = array if order is None else array.transpose(order)
    if turned.shape != tensor.shape:
        remedy = f"; {{{name!r}: ({what.split(': ')[-1]!r}, (1, 0))}} transposes it" * (turned.T.shape == tensor.shape)
        raise CheckpointError(f"{what} has the shape {turned.shape}, and {name} {tensor.shape}{remedy}")
    if not can_cast(array.dtype, tensor.dtype, "same_kind"):
        raise CheckpointError(f"{what} is of {array.dtype}, and {name} of {tensor.dtype}")
    return turned.astype(tensor.dtype)


# Writing


def _file_of(path: Path, step: int | None) -> Path:
    """The path of the file to write."""
    if step is not None:
        return path / f"step-{step:08d}.safetensors"
    if path.is_dir():
        raise ParameterError(f"save: {path} is a folder; with step= the file has that number in it")
    return path


def _whole(value: object, over: Any) -> Any:
    """Gather a state from all ranks: the whole state of sharded optimizers, and the largest random counter."""
    if isinstance(value, Optimizer):
        return value.whole_state()
    if hasattr(value, "rng_get_state"):
        over.same_counter(value)
    if isinstance(value, Mapping):
        return {key: _whole(each, over) for key, each in value.items()}
    if isinstance(value, list | tuple):
        found = [_whole(each, over) for each in value]
        return tuple(found) if isinstance(value, tuple) else found
    return value


def _written(value: object, keys: tuple[str, ...], arrays: dict[str, np.ndarray]) -> Any:
    """A value as JSON; its arrays are added to the dict, named by their paths."""
    if len(keys) > DEPTH:
        raise OperandError(f"save: {'.'.join(keys[:3])}... is nested more than {DEPTH} deep")
    if isinstance(value, Tensor | np.ndarray):
        name = ".".join(keys)
        array = value.raw() if isinstance(value, Tensor) else value
        if not isinstance(array, np.ndarray):  # on a device
            array = value.get()  # type: ignore[union-attr]
        if array.dtype.name not in (*safetensors.DTYPES.values(), safetensors.PAIRS):
            raise OperandError(f"save: {name} is of {array.dtype}, which a checkpoint does not hold")
        if not _is_text(name):
            raise OperandError(f"save: the name {name!r} has control characters or halves of surrogate pairs")
        if name in arrays or name == RESERVED:
            other = "is the format's own name" if name == RESERVED else "is the name of two arrays"
            raise OperandError(f"save: {name} {other}; give the keys and tensors on the way to it other names")
        if not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
        arrays[name] = np.ascontiguousarray(array).reshape(array.shape)
        return {ARRAY: name}
    value = _plain(value, keys)
    if isinstance(value, Mapping):
        return {key: _written(each, (*keys, _key(key, keys)), arrays) for key, each in value.items()}
    if isinstance(value, list | tuple):
        names = _names(value)
        found = [_written(each, (*keys, name), arrays) for name, each in zip(names, value, strict=True)]
        return {TUPLE: found} if isinstance(value, tuple) else found
    if isinstance(value, float) and not math.isfinite(value):
        return {FLOAT: repr(value)}
    return value


def _plain(value: object, keys: tuple[str, ...]) -> Any:
    """A value reduced to a dict, list, tuple, number, string or None; OperandError if it cannot be."""
    if isinstance(value, Optimizer):
        if value.shards:
            raise OperandError(
                f"save: {'.'.join(keys)} is {value}, of whose state each rank has a part; "
                "save(..., over=group) on all ranks writes the whole"
            )
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
        f"save: {'.'.join(keys)} is {brief(value)}, of which a checkpoint holds nothing: it is no tensor, array, "
        "number, string, list or dict, and has no get_state and set_state"
    )


def _key(key: Operand, keys: tuple[str, ...]) -> str:
    if not isinstance(key, str) or key.startswith("$") or not _is_text(key):
        raise OperandError(
            f"save: {'.'.join(keys) or 'the state'} has the key {key!r}; keys are strings that begin with no $ and "
            "have no control characters and no halves of surrogate pairs"
        )
    return key


def _is_text(text: str) -> bool:
    """Whether a text has neither control characters nor surrogates."""
    return not any(unicodedata.category(character) in ("Cc", "Cs") for character in text)


def _names(values: Sequence[Any]) -> list[str]:
    """The names of a list's items: the tensors' names if all have one and they are unique, else the indices."""
    own = [x.name if isinstance(x, Tensor) and x.name else "" for x in values]
    return own if all(own) and len(set(own)) == len(own) else [str(i) for i in range(len(values))]


def _write(path: Path, arrays: dict[str, np.ndarray], text: str) -> None:
    """Write a file, while another thread computes the checksums."""
    sums: list[str] = []
    summing = Thread(target=lambda: sums.append(_sums(arrays, text)))

    def later() -> dict[str, str]:
        summing.join()
        return {KEY: text, SUMS: sums[0]}

    with replacing(path) as file:
        summing.start()
        try:
            safetensors.write(file, arrays, {KEY: text, SUMS: "-" * 8 * (1 + len(arrays))}, later)
        finally:
            summing.join()


def _sums(arrays: dict[str, np.ndarray], text: str) -> str:
    """The checksums of the description (with the arrays' names, dtypes and shapes) and of each array's bytes."""
    names = sorted(arrays)
    described = [text, *(f"{name} {arrays[name].dtype} {arrays[name].shape}" for name in names)]
    parts = ["\n".join(described).encode("utf-8", "surrogatepass"), *(bytes_of(arrays[name]) for name in names)]
    return "".join(f"{zlib.crc32(part):08x}" for part in parts)


# Reading


def _opened(path: Path) -> tuple[Path, dict[str, str], dict[str, np.ndarray]]:
    """The path, metadata and arrays of a file, or of the latest checkpoint in a folder."""
    tried = None
    while True:
        found = _latest(path)
        try:
            return found, *safetensors.read(found)
        except FileNotFoundError:
            if found in (path, tried):
                raise CheckpointError(f"{found}: there is no such file") from None
            tried = found  # another process has deleted it meanwhile: it has written a later one


def _latest(path: Path) -> Path:
    if not path.is_dir():
        return path
    found = saved(path)
    if not found:
        raise CheckpointError(f"{path}: there is no checkpoint in this folder")
    return found[-1]


def _described(path: Path, metadata: dict[str, str], arrays: dict[str, np.ndarray]) -> Any:
    """The description of a checkpoint's state, parsed and verified.

    Raises CheckpointError if the file is no checkpoint, a checksum differs, or the description does not match the
    arrays.
    """
    if KEY not in metadata or SUMS not in metadata:
        raise CheckpointError(f"{path}: it is a safetensors file, but no checkpoint; train.read gives its arrays")
    listed, expected = metadata[SUMS], _sums(arrays, metadata[KEY])
    if len(listed) != len(expected) or listed[:8] != expected[:8]:
        raise CheckpointError(f"{path}: its description is not as it was written: the file is altered")
    for i, name in enumerate(sorted(arrays), 1):
        if listed[8 * i : 8 * i + 8] != expected[8 * i : 8 * i + 8]:
            raise CheckpointError(f"{path}: the values of {name} are not as they were written: the file is altered")
    try:
        described = json.loads(metadata[KEY])
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: its description is no JSON: {error}") from error
    if not isinstance(described, dict) or not _is_description(described, arrays.keys()):
        raise CheckpointError(f"{path}: its description is none of a state that save writes")
    return described


def _is_description(described: object, names: Set[str]) -> bool:
    """Whether parsed JSON has the structure that `_written` returns, with arrays of these names."""
    level = [described]
    for _ in range(DEPTH + 1):
        below: list[Any] = []
        for value in level:
            if isinstance(value, list):
                below += value
            elif isinstance(value, dict) and not any(key.startswith("$") for key in value):
                below += value.values()
            elif isinstance(value, dict):
                mark, marked = next(iter(value.items())) if len(value) == 1 else ("", None)
                if mark == TUPLE and isinstance(marked, list):
                    below += marked
                elif not isinstance(marked, str) or marked not in {ARRAY: names, FLOAT: FLOATS}.get(mark, ()):
                    return False
        level = below
    return not level


class _Restoring(NamedTuple):
    """A load that happens once everything fits: writes of arrays, and setters with the states before and after."""

    path: Path
    arrays: dict[str, np.ndarray]
    strict: bool
    writes: list[Callable[[], Any]]
    setters: list[tuple[Callable[[Any], Any], Any, Any]]

    def value(self, given: object, state: object, keys: tuple[str, ...]) -> Any:
        """The state with the saved numbers.

        Raises CheckpointError if the structure of the saved value differs from the state's.
        """
        name = ".".join(keys) or "the state"
        if isinstance(state, Tensor | np.ndarray | Shard):
            self.writes.append(_write_of(self.path, self.arrays, given, state, name))
            return state
        if isinstance(state, Optimizer):
            self.value(given, {**state.state, **state.shards}, keys)
            return state
        setter = getattr(state, "rng_set_state", None) or getattr(state, "set_state", None)
        if setter is not None:
            self.setters.append((setter, _plain(state, keys), _decoded(self.arrays, given)))
            return state
        if isinstance(state, Mapping):
            return self._dict(given, state, keys, name)
        if isinstance(state, list | tuple):
            items = given.get(TUPLE) if isinstance(given, Mapping) else given
            if isinstance(given, Mapping) != isinstance(state, tuple) or not isinstance(items, list):
                raise CheckpointError(f"{self.path}: {name} is a {type(state).__name__} here, and none there")
            if len(items) != len(state) and any(isinstance(x, Tensor) for x in state):
                raise CheckpointError(f"{self.path}: {name} is of {len(items)} there, and of {len(state)} here")
            if len(items) == len(state):
                found = [self.value(x, y, (*keys, n)) for n, x, y in zip(_names(state), items, state, strict=True)]
                return tuple(found) if isinstance(state, tuple) else found
        return _decoded(self.arrays, given)

    def _dict(self, given: object, state: Mapping[str, Any], keys: tuple[str, ...], name: str) -> dict[str, Any]:
        if not isinstance(given, Mapping) or (self.strict and given.keys() != state.keys()):
            there = set(given) if isinstance(given, Mapping) else set()
            missing = sorted(map(str, state.keys() - there)) or "anything"
            more = sorted(there - state.keys()) or "nothing"
            raise CheckpointError(
                f"{self.path}: {name} has there {more} beyond, and not {missing}; strict=False loads what both have"
            )
        return {k: self.value(given[k], x, (*keys, k)) if k in given else x for k, x in state.items()}


def _write_of(path: Path, arrays: dict[str, np.ndarray], given: object, target: Any, name: str) -> Callable[[], Any]:
    """A function that writes a saved array into a tensor or array of its shape and dtype."""
    if not isinstance(given, Mapping) or set(given) != {ARRAY}:
        raise CheckpointError(f"{path}: {name} is an array here, and none there")
    array = arrays[given[ARRAY]]
    if array.shape != target.shape or array.dtype != target.dtype:
        there, here = f"{array.shape} {array.dtype}", f"{target.shape} {target.dtype}"
        raise CheckpointError(f"{path}: {name} is {there} there, and {here} here")
    if isinstance(target, np.ndarray) and not target.flags.writeable:
        raise CheckpointError(f"{path}: {name} is an array here that cannot be written")

    def write() -> None:
        if isinstance(target, np.ndarray):
            target[...] = array
        else:
            target.set(array)

    return write


def _decoded(arrays: dict[str, np.ndarray], given: object) -> Any:
    """A saved value, decoded from JSON."""
    if isinstance(given, list):
        return [_decoded(arrays, x) for x in given]
    if not isinstance(given, Mapping):
        return given
    if set(given) == {ARRAY}:
        return np.array(arrays[given[ARRAY]])
    if set(given) == {FLOAT}:
        return float(given[FLOAT])
    if set(given) == {TUPLE}:
        return tuple(_decoded(arrays, x) for x in given[TUPLE])
    return {key: _decoded(arrays, x) for key, x in given.items()}
