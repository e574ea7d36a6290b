"""Arrays that tensors cannot be, each refused with the way out: masked ones, and what `adopt` is not to share."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from optree import function
from optree.errors import DTypeError, OperandError, OptreeError
from optree.tree.types import TensorType

MASKED = np.ma.masked_array([1.0, 2.0, 3.0], [False, True, False], dtype=np.float32)

#: Each line that a masked array comes in by.
WAYS_IN = {
    "array": lambda be, t: be.array(MASKED),
    "array of a list": lambda be, t: be.array([MASKED, MASKED]),
    "adopt": lambda be, t: be.adopt(MASKED),
    "from_dlpack": lambda be, t: be.from_dlpack(MASKED),
    "set": lambda be, t: t.set(MASKED),
    "copy_from": lambda be, t: t.copy_from(MASKED),
    "assignment": lambda be, t: t.__setitem__(slice(None), MASKED),
    "assignment of a list": lambda be, t: t.__setitem__(slice(None), [MASKED[0], MASKED[1], MASKED[2]]),
    "assignment to a part": lambda be, t: t.__setitem__(slice(1, None), MASKED[1:]),
    "fill": lambda be, t: t.fill(MASKED),
    "in place": lambda be, t: t.__iadd__(MASKED),
    "operand": lambda be, t: t + MASKED,
    "operand of a tree": lambda be, t: t * 2 + MASKED,
    "method": lambda be, t: be.maximum(t, MASKED),
    "first operand": lambda be, t: be.exp(MASKED),
    "ufunc": lambda be, t: np.add(t, MASKED),
    "function of NumPy's": lambda be, t: np.where(t > 1, t, MASKED),
    "mask": lambda be, t: t[np.ma.masked_array([True, True, False], [True, False, False])],
    "index": lambda be, t: t[np.ma.masked_array([0, 1], [True, False])],
    "mask to write by": lambda be, t: t.__setitem__(np.ma.masked_array([True, True, False], [True, False, False]), 5),
    "argument": lambda be, t: function([t], t * 2)(MASKED),
    "argument of open size": lambda be, t: function([x := TensorType("float32", (None,))("x")], be.exp(x))(MASKED),
    "scatter_add": lambda be, t: be.scatter_add(t, [0, 1, 2], MASKED),
}


@pytest.mark.parametrize("way", WAYS_IN)
def test_masked_arrays_do_not_lose_their_masks(cpu: Any, way: str) -> None:
    t = cpu.array([5.0, 6.0, 7.0], name="t")
    with pytest.raises(OperandError, match=r"masked array would lose its mask; x.filled\(value\)"):
        WAYS_IN[way](cpu, t)
    assert t.get().tolist() == [5, 6, 7]


def test_the_ways_out_for_masked_arrays(cpu: Any) -> None:
    assert cpu.array(MASKED.filled(0)).get().tolist() == [1, 0, 3]
    assert cpu.array(MASKED.compressed()).get().tolist() == [1, 3]


def test_a_masked_array_in_front_keeps_its_mask(cpu: Any) -> None:
    """NumPy's masked arrays compute by themselves then, or the line is refused."""
    t = cpu.array([5.0, 6.0, 7.0])
    for run in (lambda: MASKED + t, lambda: MASKED * t, lambda: np.add(MASKED, t), lambda: np.ma.add(MASKED, t)):
        try:
            value = run()
        except OptreeError:
            continue
        assert isinstance(value, np.ma.MaskedArray) and value.mask.tolist() == [False, True, False]


def unaligned(n: int) -> np.ndarray:
    return np.zeros(4 * n + 1, np.uint8)[1:].view(np.float32)


def read_only() -> np.ndarray:
    x = np.ones(3, np.float32)
    x.flags.writeable = False
    return x


OTHER_ORDER = ">" if sys.byteorder == "little" else "<"

REFUSED = {
    "byte order": (lambda: np.arange(3, dtype=f"{OTHER_ORDER}f4"), DTypeError, "byte order"),
    "byte order of integers": (lambda: np.arange(3, dtype=f"{OTHER_ORDER}i8"), DTypeError, "byte order"),
    "read-only": (read_only, OperandError, "read-only"),
    "broadcast": (
        lambda: np.lib.stride_tricks.as_strided(np.ones(1, "f4"), (2, 3), (0, 0)),
        OperandError,
        "share an address",
    ),
    "windows": (
        lambda: np.lib.stride_tricks.as_strided(np.ones(5, "f4"), (3, 3), (4, 4)),
        OperandError,
        "share an address",
    ),
    "unaligned": (lambda: unaligned(3), OperandError, "unaligned"),
    "times": (lambda: np.zeros(3, "m8[s]"), DTypeError, r"timedelta64\[s\] is not supported"),
    "objects": (lambda: np.array([1, None]), DTypeError, "object is not supported"),
    "a list": (lambda: [1.0, 2.0], OperandError, r"be.array\(...\) copies"),
    "a number": (lambda: 1.0, OperandError, r"be.array\(...\) copies"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_adopt_refuses(cpu: Any, kind: str) -> None:
    make, error, words = REFUSED[kind]
    array = make()
    with pytest.raises(error, match=f"adopt: .*{words}"):
        cpu.adopt(array)
    if kind not in ("times", "objects"):
        assert cpu.array(array).get().tolist() == np.asarray(array).tolist()  # the way out


def test_a_memory_map_is_adopted_where_it_may_be_written_to(cpu: Any, tmp_path: Path) -> None:
    np.arange(6, dtype=np.float32).tofile(tmp_path / "x")
    for mode, expected in (("r+", [10, 11, 12, 13, 14, 15]), ("c", [10, 11, 12, 13, 14, 15])):
        np.arange(6, dtype=np.float32).tofile(tmp_path / "x")
        mapped = np.memmap(tmp_path / "x", np.float32, mode)
        x = cpu.adopt(mapped, name="x")
        x[:] = x + 10
        assert mapped.tolist() == expected and type(x.raw()) is np.ndarray
    for mapped in (np.memmap(tmp_path / "x", np.float32, "r"), np.memmap(tmp_path / "x", np.float32, "r")[1:]):
        with pytest.raises(OperandError, match="read-only"):
            cpu.adopt(mapped)


def test_dlpack_is_looked_at_as_adopt_does(cpu: Any) -> None:
    whole = np.ones((4, 6), np.float32)
    for array, words in (
        (np.lib.stride_tricks.as_strided(np.ones(1, "f4"), (2, 3), (0, 0)), "share an address"),
        (np.broadcast_to(whole[0], (3, 6)), "read-only"),
    ):
        with pytest.raises(OperandError, match=words):
            cpu.from_dlpack(array)
    cpu.from_dlpack(whole[1::2, ::3])[...] = 5
    assert whole.sum() == 24 + 4 * 4


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x,
        lambda x: x.T,
        lambda x: x[::-1, ::2],
        lambda x: x[:, None, 1:3],
        lambda x: x[1:2, :0],
        lambda x: x.reshape(-1)[::7],
        lambda x: x.reshape(2, 2, 6).transpose(2, 0, 1),
        lambda x: x[0, 0:1].reshape(()),
    ],
)
def test_views_of_any_layout_are_adopted(cpu: Any, view: Any) -> None:
    array = view(np.arange(24, dtype=np.float32).reshape(4, 6))
    wanted = array * 2
    x = cpu.adopt(array)
    x[...] = x * 2
    np.testing.assert_array_equal(array, wanted)
    assert x.raw() is array
