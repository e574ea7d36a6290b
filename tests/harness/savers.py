"""Random states that two writers save to one path at once: what is read is one of both, bit for bit."""

from __future__ import annotations

import random
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from harness.drawn import ALL_DTYPES
from optree import train
from optree.tree.types import as_dtype

#: The saves of each writer.
SAVES = 3


def assert_whole(seed: int) -> None:
    """Two writers of states of one form, and a reader."""
    chance = random.Random(seed)
    drawn = {f"part {i}": _drawn(chance, 3) for i in range(4)}
    states = [_changed(drawn, number) for number in (1, 2)]
    written = [_bits(each) for each in states]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        path = Path(folder) / "run.safetensors"
        train.save(path, states[0])
        savers = [pool.submit(_save, path, each) for each in states]
        while True:
            is_done = all(saver.done() for saver in savers)
            found = train.load(path, _changed(drawn, 0))
            assert _bits(found) in written, "what is read is what one of both has saved"
            if is_done:
                break
        for saver in savers:
            saver.result()
        assert list(Path(folder).iterdir()) == [path]


def _save(path: Path, state: Any) -> None:
    for _ in range(SAVES):
        train.save(path, state)


def _drawn(chance: random.Random, depth: int) -> Any:
    """An array, a number, a text, or a list, tuple or dict of such."""
    kind = chance.choice(("array", "array", "array", "number", "text", "list", "tuple", "dict"))
    if kind == "array":
        shape, dtype = chance.choice(((), (0,), (3,), (2, 0), (4, 5), (70, 3))), as_dtype(chance.choice(ALL_DTYPES))
        return chance.choice((np.zeros(shape, dtype), np.zeros(shape, dtype).T))
    if kind == "number":
        return chance.choice((0, -0.0, 1 << 70, True, None, float("nan"), float("-inf"), 1e-320))
    if kind == "text" or not depth:
        return chance.choice(("", "ä", "\ud800\0", "$array", "\n"))
    inner = [_drawn(chance, depth - 1) for _ in range(chance.randint(0, 3))]
    if kind == "dict":
        return {chance.choice(("a", "ä", "b.c", "", "d" * 50)) + str(i): each for i, each in enumerate(inner)}
    return inner if kind == "list" else tuple(inner)


def _changed(value: Any, number: int) -> Any:
    """A value of the same form, with arrays of a number."""
    if isinstance(value, np.ndarray):
        return np.full_like(value, number)
    if isinstance(value, dict):
        return {key: _changed(each, number) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_changed(each, number) for each in value)
    return value


def _bits(value: Any) -> str:
    """A value as text: equal where all bits are."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape} {value.tobytes().hex()}"
    if isinstance(value, dict):
        return str({key: _bits(each) for key, each in value.items()})
    if isinstance(value, list | tuple):
        return f"{type(value).__name__} {[_bits(each) for each in value]}"
    return repr(value)
