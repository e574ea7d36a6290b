"""Crafted checkpoints: valid checksums and a misfitting description raise CheckpointError, and change nothing."""

from __future__ import annotations

import copy
import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends import gen_backend
from optree import train
from optree.errors import OperandError, ParameterError
from optree.train import CheckpointError, checkpoints
from optree.train.checkpoints import KEY, SUMS

#: What a mutation puts in the place of a part.
JUNK: tuple[Any, ...] = (
    *(None, True, -1, 0, 1.5, 1 << 70, "", "x", "inf", "1e", "\ud800", [], {}, [[]], [{}], {"x": 1}),
    *({"$array": "x"}, {"$array": ["x"]}, {"$array": "weights.w"}, {"$array": "w", "b": 1}, {"$float": "x"}),
    *({"$float": 1}, {"$tuple": 3}, {"$tuple": [1]}, {"$tuple": {}}, {"$other": 1}, {"$array": None}),
    *("F64", "BF16", "F8_E4M3", [3, 4], [4, 3], [-1], [0, 1 << 70], [1] * 70, [True], [0, 10], [1.0, 2.0]),
)


def parts(value: Any) -> list[tuple[Any, Any]]:
    """Each dict or list within a value, with each of its keys."""
    found, rest = [], [value]
    while rest:
        each = rest.pop()
        if isinstance(each, dict | list):
            keys = list(each if isinstance(each, dict) else range(len(each)))
            found += [(each, key) for key in keys]
            rest += [each[key] for key in keys]
    return found


def mutated(value: Any, chance: random.Random) -> Any:
    """A copy in which one or two parts are others, missing, or moved."""
    value = copy.deepcopy(value)
    for _ in range(chance.choice((1, 1, 2))):
        found = parts(value)
        if not found:
            break
        within, key = chance.choice(found)
        kind = chance.choice(("junk", "junk", "junk", "delete", "swap", "rename"))
        if kind == "junk":
            within[key] = copy.deepcopy(chance.choice(JUNK))
        elif kind == "delete":
            del within[key]
        elif kind == "swap":
            other, place = chance.choice(found)
            within[key] = copy.deepcopy(other[place])
        elif isinstance(within, dict):
            within[chance.choice(("x", "$x", "$tuple", "$array", "a.b", "", "\0"))] = within.pop(key)
    return value


def taken(path: Path) -> tuple[dict[str, Any], bytes]:
    """The header of a file, and what follows it."""
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:start]), content[start:]


def put(path: Path, header: Any, data: bytes) -> None:
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def state_of(be: Any, value: float) -> dict[str, Any]:
    w, b = be.array(np.full((3, 4), value), name="w"), be.array(np.full(3, value), name="b")
    batches = train.Batches(np.arange(10), size=3, seed=2)
    numbers = {"list": [1, 2.5, None], "pair": (float("inf"), [1]), "own": np.full(2, value), "text": "x"}
    return {"weights": [w, b], "opt": train.Adam([w], 0.1), "random": be, "batches": batches, "numbers": numbers}


def values_of(state: dict[str, Any]) -> str:
    arrays = [*state["weights"], *state["opt"].state.values()]
    others = state["random"].rng_get_state(), state["batches"].get_state(), state["numbers"]
    return repr(([x.get().tolist() for x in arrays], others))


@pytest.mark.parametrize("what", ["description", "header"])
def test_crafted_files_are_refused_by_a_checkpoint_error(tmp_path: Path, what: str, request: Any, sample: Any) -> None:
    be, chance = gen_backend("cpu", rng_seed=1), random.Random(request.config.option.seed)
    path = train.save(tmp_path / "run.safetensors", state_of(be, 1.0))
    assert path is not None
    header, data = taken(path)
    arrays = train.read(path)
    state = state_of(be, 2.0)
    refused, rounds = 0, sample(list(range(120)), least=60)
    for _ in rounds:
        crafted = mutated(header, chance)
        if what == "description":
            text = json.dumps(mutated(json.loads(header["__metadata__"][KEY]), chance))
            crafted = {**header, "__metadata__": {KEY: text, SUMS: checkpoints._sums(arrays, text)}}
        put(path, crafted, data)
        before = values_of(state)
        try:
            train.load(path, state)
        except CheckpointError as error:
            assert "run.safetensors" in str(error)
            assert values_of(state) == before, (crafted, error)
            refused += 1
    assert refused > 0.48 * len(rounds)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 3000 + "1" + "}" * 3000, "nonsense", "9" * 5000, "3", "[]"])
def test_a_description_that_is_no_state_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run.safetensors"
    put(path, {"__metadata__": {KEY: text, SUMS: checkpoints._sums({}, text)}}, b"")
    with pytest.raises(CheckpointError, match=r"run\.safetensors: its description is no"):
        train.load(path, {"a": 1})
    path.write_bytes(len(text).to_bytes(8, "little") + text.encode())
    with pytest.raises(CheckpointError, match=r"run\.safetensors: it is no safetensors file"):
        train.load(path, {"a": 1})


@pytest.mark.parametrize("size", [0, 3, 1 << 40, 1 << 63])
def test_a_header_beyond_the_file_is_refused(tmp_path: Path, size: int) -> None:
    (tmp_path / "run.safetensors").write_bytes(size.to_bytes(8, "little") + b"{}")
    with pytest.raises(CheckpointError, match="it is no safetensors file"):
        train.read(tmp_path / "run.safetensors")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names")
def test_a_pipe_and_a_folder_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CheckpointError, match="a pipe or a device"):
        train.load(tmp_path / "pipe", {})
    (tmp_path / "step-00000001.safetensors").mkdir()
    with pytest.raises(CheckpointError, match="no safetensors file"):
        train.read(tmp_path)


@pytest.mark.parametrize("name", ["a\nb", "\0", "\ud800", "x\x7f", "\x1b[31m"])
def test_names_that_are_no_text_are_refused(tmp_path: Path, name: str) -> None:
    be = gen_backend("cpu")
    with pytest.raises(OperandError, match="control characters"):
        train.save(tmp_path / "x.safetensors", {name: 1})
    with pytest.raises(OperandError, match="control characters"):
        train.save(tmp_path / "x.safetensors", {"weights": [be.ones(2, name=name)]})
    train.save(tmp_path / "x.safetensors", {"text": name})
    assert train.load(tmp_path / "x.safetensors", {"text": ""}) == {"text": name}


def test_a_state_of_endless_depth_is_refused(tmp_path: Path) -> None:
    state: list[Any] = []
    state.append(state)
    with pytest.raises(OperandError, match="is nested more than 100 deep"):
        train.save(tmp_path / "x.safetensors", {"losses": state})


def test_the_deepest_state_comes_back(tmp_path: Path) -> None:
    state: Any = 3
    for _ in range(checkpoints.DEPTH - 1):
        state = [state]
    train.save(tmp_path / "x.safetensors", {"losses": state})
    assert train.load(tmp_path / "x.safetensors", {"losses": None}) == {"losses": state}


@pytest.mark.parametrize(
    "change",
    [
        {"start": 10},
        {"start": -1},
        {"position": 4},
        {"position": -1},
        {"epoch": -1},
        {"epoch": 1 << 64},
        {"epoch": "1"},
    ],
)
def test_positions_beyond_the_epoch_are_refused(change: dict[str, Any]) -> None:
    batches = train.Batches(np.arange(10), size=3)
    with pytest.raises(ParameterError, match=f"{next(iter(change))} is an integer from 0 to"):
        batches.set_state({**batches.get_state(), **change})
    batches.set_state({**batches.get_state(), "position": 3})
    assert len(list(batches)) == 1


@pytest.mark.parametrize("state", [None, 3, []])
def test_a_state_of_batches_that_is_no_dict_is_refused(state: Any) -> None:
    with pytest.raises(ParameterError, match="a state is a dict that get_state gives, not"):
        train.Batches(np.arange(10), size=3).set_state(state)
