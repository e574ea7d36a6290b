"""Checkpoints: whole or not at all, refused when damaged, read by others; a killed run goes on bit for bit."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import begun
import numpy as np
import pytest
import resumed
import safetensors.numpy
from harness import savers

from backends import gen_backend
from optree import train
from optree.errors import OperandError, ParameterError
from optree.train import CheckpointError, checkpoints
from optree.train.files import LEFT_OVER

STEPS, EVERY = 40, 3


def start(folder: Path) -> subprocess.Popen[bytes]:
    folder.mkdir(exist_ok=True)
    return subprocess.Popen([sys.executable, resumed.__file__, folder, str(STEPS), str(EVERY)])


def test_a_run_that_is_killed_at_any_moment_goes_on_with_the_same_bits(tmp_path: Path, request: Any) -> None:
    (tmp_path / "whole").mkdir()
    resumed.main(tmp_path / "whole", STEPS, EVERY)
    chance, folder = random.Random(request.config.option.seed), tmp_path / "killed"
    kills = 0
    while not (folder / "losses.txt").exists():
        run = start(folder)
        goal = len(train.saved(folder)) and int(train.saved(folder)[-1].stem.split("-")[1])
        deadline = time.monotonic() + 120
        if kills < 2:  # at a random moment after some checkpoints more
            while run.poll() is None and time.monotonic() < deadline:
                found = train.saved(folder)
                if found and int(found[-1].stem.split("-")[1]) >= goal + EVERY * chance.randint(1, 3):
                    break
                time.sleep(0.001)
            time.sleep(chance.random() * 0.01)
            if run.poll() is None:
                run.send_signal(signal.SIGKILL)
                kills += 1
        assert run.wait(120) in (0, -signal.SIGKILL)
    assert kills >= 1
    assert (folder / "losses.txt").read_bytes() == (tmp_path / "whole" / "losses.txt").read_bytes()
    assert len(train.saved(folder)) == 2 and len(list(folder.glob(".*"))) <= kills
    age(*folder.glob(".*"))
    train.save(folder, {}, step=STEPS + 1)
    assert not list(folder.glob(".*"))


def age(*paths: Path) -> None:
    """Make files old."""
    then = time.time() - 2 * LEFT_OVER
    for path in paths:
        os.utime(path, (then, then))


def a_state(be: Any, value: float = 1.0) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    w = be.array(rng.normal(size=(3, 4)) * value, name="w")
    h = be.array(rng.normal(size=5) * value, dtype="bfloat16", name="h")
    opt = train.Adam([w, h], 0.1)
    for tensor in opt.state.values():
        tensor.fill(value)
    numbers = {"list": [1, 2.5, None], "pair": (float("inf"), -0.0), "text": "ä$", "flag": True, "array": np.arange(3)}
    return {"weights": [w, h], "opt": opt, "random": be, "numbers": numbers, "counter": be.zeros((), "int64")}


def values_of(state: dict[str, Any]) -> Any:
    tensors = [*state["weights"], state["counter"], *state["opt"].state.values()]
    random_state = state["random"].rng_get_state()
    return [x.get().tobytes() for x in tensors], repr(random_state), repr(state["numbers"])


def test_everything_comes_back(tmp_path: Path) -> None:
    be = gen_backend("cpu", rng_seed=1)
    state = a_state(be)
    path = train.save(tmp_path / "run.safetensors", state)
    expected = values_of(state)
    other_be = gen_backend("cpu", rng_seed=2)
    other = a_state(other_be, 7.0)
    other["numbers"] |= {"list": [0, 0, 0], "pair": (0.0, 1.0), "text": "", "flag": False, "array": np.zeros(3, int)}
    found = train.load(path, other)
    assert values_of(found) == expected
    assert found["weights"][0] is other["weights"][0]


def test_other_readers_read_it_and_theirs_is_read(tmp_path: Path) -> None:
    be = gen_backend("cpu")
    state = a_state(be)
    path = train.save(tmp_path / "run.safetensors", state)
    arrays = safetensors.numpy.load_file(path)
    assert {"weights.w", "opt.mean.h", "random.rng_state", "counter"} <= arrays.keys()
    np.testing.assert_array_equal(arrays["weights.w"], state["weights"][0].get())
    assert arrays.keys() == train.read(path).keys()
    theirs = tmp_path / "theirs.safetensors"
    safetensors.numpy.save_file({"a": np.ones((2, 3))}, theirs)
    np.testing.assert_array_equal(train.read(theirs)["a"], np.ones((2, 3)))
    with pytest.raises(CheckpointError, match=r"no checkpoint; train\.read gives its arrays"):
        train.load(theirs, {"a": be.ones((2, 3))})


def test_torch_reads_it(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from_torch = __import__("safetensors.torch").torch
    state = a_state(gen_backend("cpu"))
    found = from_torch.load_file(train.save(tmp_path / "run.safetensors", state))
    np.testing.assert_array_equal(found["weights.w"].numpy(), state["weights"][0].get())
    assert found["weights.h"].dtype == torch.bfloat16
    from_torch.save_file({"w": torch.ones(3, dtype=torch.bfloat16)}, tmp_path / "torch.safetensors")
    assert train.read(tmp_path / "torch.safetensors")["w"].astype("f").tolist() == [1, 1, 1]


def test_any_damage_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    be = gen_backend("cpu", rng_seed=1)
    path = train.save(tmp_path / "run.safetensors", a_state(be))
    whole = path.read_bytes()
    state = a_state(be, 3.0)
    before = values_of(state)
    chance = random.Random(0)
    cut = [0, 7, 8, 100, len(whole) // 2, len(whole) - 1]
    damaged = [whole[:length] for length in cut] + [whole + b"x", b"x" * 1000]
    for _ in range(60):
        place = chance.randrange(len(whole))
        damaged.append(whole[:place] + bytes([whole[place] ^ 1 << chance.randrange(8)]) + whole[place + 1 :])
    for data in damaged:
        path.write_bytes(data)
        with pytest.raises(CheckpointError, match=r"run\.safetensors"):
            train.load(path, state)
        assert values_of(state) == before
    path.write_bytes(whole)
    train.load(path, state)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda be, s: s.update(weights=[be.ones((3, 5), name="w"), s["weights"][1]]),
            r"weights.w is \(3, 4\) float32",
        ),
        (lambda be, s: s.update(weights=s["weights"][:1]), "weights is of 2 there, and of 1 here"),
        (lambda be, s: s.update(weights=[s["weights"][0], be.ones(5, name="h")]), "weights.h is .* bfloat16 there"),
        (lambda be, s: s.update(opt=train.SGD(s["weights"], 0.1)), r"opt has there \['mean.h'"),
        (lambda be, s: s.update(more=1), r"the state has there nothing beyond, and not \['more'\]"),
        (lambda be, s: s.update(numbers=be.ones(2)), "numbers is an array here, and none there"),
        (lambda be, s: s.update(counter=(1, 2)), "counter is a tuple here"),
        (lambda be, s: s.update(random=train.Batches(range(3), size=1)), "nothing has been restored"),
    ],
)
def test_a_file_of_another_run_is_refused_and_nothing_changes(tmp_path: Path, change: Any, message: str) -> None:
    be = gen_backend("cpu")
    path = train.save(tmp_path / "run.safetensors", a_state(be))
    state = a_state(be, 5.0)
    change(be, state)
    before = [x.get().tobytes() for x in (*state["weights"], *state["opt"].state.values())]
    with pytest.raises(CheckpointError, match=message):
        train.load(path, state)
    assert before == [x.get().tobytes() for x in (*state["weights"], *state["opt"].state.values())]


def test_a_part_is_loaded_where_that_is_asked_for(tmp_path: Path) -> None:
    be = gen_backend("cpu")
    w, v = be.array([1.0, 2.0], name="w"), be.array([3.0], name="v")
    adam = train.Adam([w], 0.1)
    adam.state["mean.w"].fill(7)
    path = train.save(tmp_path / "run", {"net": {"w": w, "old": v}, "adam": adam, "best": 0.5})
    w.fill(0)
    grown = train.Adam([w, v], 0.1)
    state = {"net": {"w": w, "head": v}, "adam": grown, "epoch": 3}
    with pytest.raises(CheckpointError, match="strict=False loads what both have"):
        train.load(path, state)
    found = train.load(path, state, strict=False)
    assert found.keys() == state.keys() and found["epoch"] == 3 and found["net"]["head"] is v
    assert w.get().tolist() == [1, 2] and v.get().tolist() == [3]
    assert grown.state["mean.w"].get().tolist() == [7, 7]
    with pytest.raises(CheckpointError, match="nothing of"):
        train.load(path, {"weights": w}, strict=False)
    with pytest.raises(CheckpointError, match=r"net\.w is \(2,\)"):  # of another shape: not a part
        train.load(path, {"best": 0.0, "net": {"w": v}}, strict=False)


def test_the_last_ones_stay_and_the_latest_is_read(tmp_path: Path) -> None:
    be = gen_backend("cpu")
    x = be.zeros((), name="x")
    (tmp_path / "notes.txt").write_text("mine")
    for step in (1, 2, 10, 9):
        x.fill(step)
        train.save(tmp_path, {"x": x}, step=step, keep=3)
    assert [path.name[5:13] for path in train.saved(tmp_path)] == ["00000002", "00000009", "00000010"]
    train.load(tmp_path, {"x": x})
    assert x.item() == 10
    assert (tmp_path / "notes.txt").exists() and not list(tmp_path.glob(".*"))
    with pytest.raises(CheckpointError, match="no checkpoint in this folder"):
        (tmp_path / "empty").mkdir()
        train.load(tmp_path / "empty", {"x": x})
    with pytest.raises(CheckpointError, match="no such file"):
        train.load(tmp_path / "none.safetensors", {"x": x})
    assert train.saved(tmp_path / "none") == []


def test_an_array_that_cannot_be_written_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    be = gen_backend("cpu")
    x, y = be.ones(3, name="x"), np.ones(2)
    path = train.save(tmp_path / "run.safetensors", {"x": x, "y": y})
    x.fill(5)
    y.flags.writeable = False
    with pytest.raises(CheckpointError, match="y is an array here that cannot be written"):
        train.load(path, {"x": x, "y": y})
    assert x.get().tolist() == [5, 5, 5]


def test_what_a_killed_writer_left_is_deleted_and_no_living_one_s_file(tmp_path: Path) -> None:
    be = gen_backend("cpu")
    mine = tmp_path / ".notes.partial"
    mine.write_text("of the user's")
    writer = subprocess.Popen([sys.executable, begun.__file__, tmp_path / "run.safetensors"], stdout=subprocess.PIPE)
    assert writer.stdout is not None and writer.stdout.readline() == b"begun\n"
    (left,) = tmp_path.glob(".optree-*.partial")
    age(left, mine)
    train.save(tmp_path / "run.safetensors", {"x": be.ones(3)})
    assert left.exists()  # old, and its writer lives
    writer.kill()
    writer.communicate()
    os.utime(left)
    train.save(tmp_path, {"x": be.ones(3)}, step=1)
    assert left.exists()  # its writer is dead, and it is not old
    age(left)
    train.save(tmp_path, {"x": be.ones(3)}, step=1)
    assert not left.exists() and mine.exists()


def write_often(path: Path, number: int, until: float, told: Any) -> None:
    """Save to one path until a time; the number of saves, and the first error."""
    x, count, error = np.full(20_000, number, np.float32), 0, ""
    while time.time() < until and not error:
        try:
            train.save(path, {"x": x, "y": x * 2, "number": number})
            count += 1
        except Exception as failure:
            error = repr(failure)
    told.put((count, error))


def test_processes_that_save_to_one_path_leave_whole_files(tmp_path: Path) -> None:
    forked, path, until = multiprocessing.get_context("fork"), tmp_path / "run.safetensors", time.time() + 3
    x, y, told = np.zeros(20_000, "f4"), np.zeros(20_000, "f4"), forked.SimpleQueue()
    train.save(path, {"x": x, "y": y, "number": 0})
    writers = [forked.Process(target=write_often, args=(path, i, until, told)) for i in range(1, 9)]
    for writer in writers:
        writer.start()
    reads = set()
    while time.time() < until:
        number = train.load(path, {"x": x, "y": y, "number": 0})["number"]
        assert (x == number).all() and (y == 2 * number).all()
        reads.add(number)
    counts = [told.get() for _ in writers]
    for writer in writers:
        writer.join()
    assert not [error for _, error in counts if error] and all(count for count, _ in counts)
    assert len(reads) > 2 and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("seed", range(10))
def test_states_of_any_form_are_whole_with_two_savers(seed: int) -> None:
    savers.assert_whole(seed)


def test_the_latest_of_a_folder_is_read_while_others_are_deleted(tmp_path: Path) -> None:
    """Between the listing and the opening, another process writes a later file and deletes the one that was found."""
    train.save(tmp_path, {"step": 1}, step=1)
    found = train.saved

    def late(folder: Path) -> list[Path]:
        listed = found(folder)
        if len(listed) == 1 and listed[0].name.endswith("1.safetensors"):
            train.save(tmp_path, {"step": 2}, step=2)
            listed[0].unlink()
        return listed

    with patch.object(checkpoints, "saved", late):
        assert train.load(tmp_path, {"step": 0}) == {"step": 2}


def test_a_save_that_fails_leaves_the_file_that_was_there(tmp_path: Path, monkeypatch: Any) -> None:
    be = gen_backend("cpu")
    path = train.save(tmp_path / "run.safetensors", {"x": be.ones(3)})
    before = path.read_bytes()

    def fails(*given: Any) -> None:
        raise OSError("no space left on the device")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="no space"):
        train.save(path, {"x": be.zeros(3)})
    assert path.read_bytes() == before and [x.name for x in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"x": object()}, "x is <object"),
        ({"x": {"y": {1}}}, r"x.y is \{1\}"),
        ({"x": {1: 2}}, "x has the key 1"),
        ({"$x": 2}, "the state has the key"),
        ({"x": np.array(["a"])}, "x is of <U1"),
        ({"a.b": np.ones(2), "a": {"b": np.zeros(2)}}, "a.b is the name of two arrays"),
        ({"__metadata__": np.ones(2)}, "__metadata__ is the format's own name"),
    ],
)
def test_what_a_checkpoint_does_not_hold_is_refused(tmp_path: Path, state: Any, message: str) -> None:
    with pytest.raises(OperandError, match=message):
        train.save(tmp_path / "x.safetensors", state)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_complex_numbers_come_back_in_every_shape(be: Any, tmp_path: Path, shape: tuple[int, ...], dtype: str) -> None:
    values = np.full(shape, 1.5 - 2j, dtype)
    found = be.zeros(shape, dtype)
    train.load(train.save(tmp_path / "z.safetensors", {"z": be.array(values, dtype)}), {"z": found})
    np.testing.assert_array_equal(found.get(), values)


def test_arrays_of_another_byte_order_come_back(tmp_path: Path) -> None:
    path = train.save(tmp_path / "x.safetensors", {"x": np.arange(3, dtype=">f4")})
    assert train.read(path)["x"].tolist() == [0, 1, 2]
    assert train.load(path, {"x": np.zeros(3, "f4")})["x"].tolist() == [0, 1, 2]


def test_a_state_is_a_dict_and_a_folder_has_files_by_step(tmp_path: Path) -> None:
    with pytest.raises(OperandError, match="the state is a dict"):
        train.save(tmp_path / "x.safetensors", [1])  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="is a folder; with step="):
        train.save(tmp_path, {})


def test_keep_asks_for_a_step(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="with a step"):
        train.save(tmp_path / "x.safetensors", {}, keep=3)


def test_what_is_no_array_is_json(tmp_path: Path) -> None:
    path = train.save(tmp_path / "x.safetensors", {"rate": 0.1, "names": ["a", "b"]})
    with safetensors.safe_open(path, "np") as file:
        assert json.loads(file.metadata()["optree"]) == {"rate": 0.1, "names": ["a", "b"]}
