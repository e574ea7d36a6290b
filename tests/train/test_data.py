"""Batches: every example once an epoch, in an order of the seed's, prepared ahead or not, on any number of ranks."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from backends import gen_backend
from optree.errors import OperandError, OptreeError, ParameterError, ShapeError
from optree.train import Batches, ImageFolder, arrays

X = np.arange(23)


def epoch(**options: Any) -> list[list[int]]:
    return [x.tolist() for x, y in Batches(X, X**2, **options) if (x**2 == y).all()]


def joined(lists: Any) -> list[int]:
    return [x for each in lists for x in each]


@pytest.mark.parametrize("ahead", [0, 1, 5])
@pytest.mark.parametrize("threads", [1, 3])
def test_each_example_comes_once_and_the_same_ones_ahead_or_not(ahead: int, threads: int) -> None:
    found = epoch(size=5, seed=3, ahead=ahead, threads=threads)
    assert [len(x) for x in found] == [5, 5, 5, 5, 3]
    assert sorted(joined(found)) == X.tolist() != joined(found)
    assert found == epoch(size=5, seed=3, ahead=0)
    assert found != epoch(size=5, seed=4)
    assert joined(epoch(size=5, shuffle=False)) == X.tolist()
    assert [len(x) for x in epoch(size=5, drop_last=True)] == [5] * 4


def test_each_epoch_has_another_order() -> None:
    batches = Batches(X, size=23)
    orders = [next(iter(batches))[0].tolist() for _ in range(3)]
    assert batches.epoch == 3 and orders[0] != orders[1] != orders[2]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_ranks_share_each_batch(ranks: int) -> None:
    whole = epoch(size=8, seed=1)
    parts = [epoch(size=8, seed=1, rank=rank, ranks=ranks) for rank in range(ranks)]
    assert [joined(shares) for shares in zip(*parts, strict=True)] == whole
    assert all(max(map(len, shares)) - min(map(len, shares)) <= 1 for shares in zip(*parts, strict=True))


@pytest.mark.parametrize("stop", range(1, 12))
def test_a_run_goes_on_where_another_stopped(stop: int) -> None:
    def transform(rng: Any, x: np.ndarray) -> np.ndarray:
        return x + rng.random(len(x))

    def batches() -> Batches:
        return Batches(X, size=5, seed=9, transform=transform)

    def taken(source: Batches, count: int) -> list[Any]:
        found: list[Any] = []
        while len(found) < count:
            for (x,) in source:
                found.append((x.tolist(), source.get_state()))
                if len(found) == count:
                    break
        return found

    first = batches()
    whole = taken(batches(), 12)
    before = taken(first, stop)
    second = batches()
    second.set_state(first.get_state())
    assert before + taken(second, 12 - stop) == whole


@pytest.mark.parametrize(("ranks", "drop_last"), [(1, False), (3, False), (2, True)])
def test_another_batch_size_and_number_of_ranks_continue_from_the_next_example(ranks: int, drop_last: bool) -> None:
    """Each example of the epoch is used once; a rest of less than a batch is dropped where it is meant to be."""

    def drawn(rng: Any, x: np.ndarray) -> list[np.ndarray]:
        return [x, np.full(len(x), rng.random())]

    def shares(ranks: int, size: int, state: Any = None) -> list[Batches]:
        of = {"seed": 9, "transform": drawn, "drop_last": drop_last, "ahead": 0, "resize": True}
        made = [Batches(X, size=size, rank=rank, ranks=ranks, **of) for rank in range(ranks)]
        for batches in made if state else ():
            batches.set_state(state)
        return made

    whole = np.concatenate([x for x, _ in shares(1, len(X))[0]])
    for stop in range(1, len(X) // 4):
        first = shares(2, 4)
        taken = [[next(iter(batches)) for batches in first] for _ in range(stop)]
        then = shares(ranks, 7, first[0].get_state())
        assert f"after example {4 * stop}" in repr(then[0]) or then[0].epoch == 1
        while then[0].epoch == 0:
            taken.append([next(iter(batches)) for batches in then])
            again = shares(2, 7, then[0].get_state())[0]  # saved and resumed once more
            assert (again.epoch, again.position, again.start) == (then[0].epoch, then[0].position, then[0].start)
        found = np.concatenate([x for batch in taken for x, _ in batch])
        dropped = (len(X) - 4 * stop) % 7 if drop_last else 0
        np.testing.assert_array_equal(found, whole[: len(X) - dropped])
        assert len({batch[-1][1][0] for batch in taken}) == len(taken)
        assert (then[0].start, then[0].position) == (0, 0)


def test_a_state_of_other_data_is_refused_and_changes_nothing() -> None:
    state = Batches(X, size=5, seed=1).get_state()
    other = Batches(X, size=4, seed=1)
    with pytest.raises(ParameterError, match="size is 4, and was 5 .*; resize=True continues"):
        other.set_state({**state, "position": 3})
    assert other.position == 0
    with pytest.raises(ParameterError, match="drop_last is True, and was False"):  # it has no such batch
        Batches(X, size=5, seed=1, drop_last=True).set_state({**state, "position": 4})
    with pytest.raises(ParameterError, match="shuffle is False, and was True"):
        Batches(X, size=5, seed=1, shuffle=False).set_state(state)


def test_a_last_batch_that_leaves_a_rank_no_example_is_empty_there() -> None:
    images = [np.full((2, 3), i, "f") for i in range(9)]
    for rank in range(4):
        found = [[x.shape for x in batch] for batch in Batches(images, X[:9], size=8, rank=rank, ranks=4)]
        last = 1 if rank == 3 else 0
        assert found == [[(2, 2, 3), (2,)], [(last, 2, 3), (last,)]]


def test_batches_are_prepared_ahead_and_errors_come_through() -> None:
    prepared = [threading.Event() for _ in range(5)]

    def transform(rng: Any, x: np.ndarray) -> np.ndarray:
        prepared[x[0] // 5].set()
        if x[0] == 15:
            raise ValueError("example 15")
        return x

    running = iter(Batches(X, size=5, shuffle=False, transform=transform, ahead=2))
    next(running)
    assert all(event.wait(10) for event in prepared[:3]), "two are prepared while one is used"
    assert not prepared[4].is_set()
    next(running), next(running)
    with pytest.raises(ValueError, match="example 15"):
        next(running)
    before = threading.active_count()
    abandoned = iter(Batches(X, size=5))
    next(abandoned)
    abandoned.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before


def test_sources_are_files_tensors_and_sequences(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    np.savez(tmp_path / "xy.npz", x=X, y=X**2)
    assert isinstance(arrays(tmp_path / "x.npy"), np.memmap)
    both = arrays(tmp_path / "xy.npz")
    be = gen_backend("cpu")
    sources = [tmp_path / "x.npy", str(tmp_path / "x.npy"), both["x"], be.array(X), range(23), list(X)]
    for found in Batches(*sources, size=4):
        assert all((x == found[0]).all() for x in found)
    pairs = [(np.full((2, 3), i), i) for i in range(23)]
    for images, labels in Batches([p[0] for p in pairs], [p[1] for p in pairs], size=4):
        assert images.shape == (len(labels), 2, 3) and (images[:, 0, 0] == labels).all()


def test_folders_of_images_have_classes(tmp_path: Path) -> None:
    for name, shade in (("cats", 10), ("dogs", 200)):
        (tmp_path / name).mkdir()
        for i in range(3):
            Image.new("RGB", (8 + i, 6), (shade, i, 0)).save(tmp_path / name / f"{i}.png")
        (tmp_path / name / "notes.txt").write_text("no image")
    images = ImageFolder(tmp_path, size=(4, 5))
    assert images.classes == ["cats", "dogs"] and images.labels.tolist() == [0, 0, 0, 1, 1, 1]
    for x, y in Batches(images, images.labels, size=4):
        assert x.shape == (len(y), 4, 5, 3) and x.dtype == np.uint8
        assert (x[..., 0] == np.where(y == 0, 10, 200)[:, None, None]).all()
    flat = ImageFolder(tmp_path / "cats", mode="L")
    assert flat.classes == [] and len(flat) == 3 and flat[0].shape == (6, 8) and len(flat[1:]) == 2
    with pytest.raises(OperandError, match="no images"):
        (tmp_path / "none").mkdir()
        ImageFolder(tmp_path / "none")


@pytest.mark.parametrize("ahead", [0, 2])
def test_batches_arrive_on_a_device_before_they_are_read(ahead: int, gpu: Any) -> None:
    """Copies run on a stream of their own: what reads a batch without waiting for its event reads noise."""
    data = np.linspace(0, 1, 24).reshape(12, 2)
    for be in (gen_backend("cpu"), gpu):
        found = [(x, y) for x, y in Batches(data, np.arange(12), size=5, seed=2, to=be, ahead=ahead)]
        for x, y in found:
            assert x.backend is be and x.dtype == np.float32 and y.dtype == np.int64
            np.testing.assert_array_equal(x.get(), data[y.get()].astype("f"))
            np.testing.assert_allclose((x * 2).asnumpyarray(), 2 * data[y.get()].astype("f"))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Batches(X, size=0), ParameterError, "size is an integer of 1 or more"),
        (lambda: Batches(X, size=2, ahead=-1), ParameterError, "ahead is an integer of 0 or more"),
        (lambda: Batches(X, size=2, rank=2, ranks=2), ParameterError, "rank is from 0 to 1"),
        (lambda: Batches(X, size=2, ranks=3), ParameterError, "3 ranks do not share a batch of 2"),
        (lambda: Batches(X, size=50, drop_last=True), ParameterError, "make no batch of 50"),
        (lambda: Batches(X, size=2, to="gpu"), OperandError, "to is a backend, from gen_backend, not 'gpu'"),
        (lambda: Batches(X, X[:3], size=2), ShapeError, r"not \[23, 3\]"),
        (lambda: Batches(size=2), ShapeError, r"not \[\]"),
        (lambda: Batches(np.float64(1), size=2), OperandError, "an array, a tensor or a sequence"),
        (lambda: Batches({"x": X}, size=1), OperandError, "give its values"),
        (lambda: arrays("x.txt"), ParameterError, "no .npy or .npz"),
    ],
)
def test_what_makes_no_batches_is_refused(make: Any, error: type[OptreeError], message: str) -> None:
    with pytest.raises(error, match=message):
        make()
