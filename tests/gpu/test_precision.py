"""TensorFloat-32 on a GPU: by name, and not otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from harness.fake_cuda import DEFAULT, TF32
from harness.fake_cupy import fake_cupy
from harness.homes import stand_in

from optree import function
from optree.errors import BackendError

#: What the product below is in float32.
EXACT = np.full((2, 2), np.float32(2 + 2.0**-10))


def _product(be: Any) -> np.ndarray:
    """Of numbers that float32 has and TensorFloat-32 has not."""
    x = be.array(np.full((2, 2), 1 + 2.0**-12))
    target = be.zeros((2, 2))
    target[:] = be.dot(x, x)
    found = be.dot(x, x).asnumpyarray()
    np.testing.assert_array_equal(found, function([], be.dot(x, x) * 1)().get())
    np.testing.assert_array_equal(found, target.get())
    return found


def test_tensor_float_32_is_asked_for_by_name() -> None:
    cupy = fake_cupy()
    plain, fast = stand_in(cupy), stand_in(cupy, tf32=True)
    for _ in range(2):  # one after the other: neither changes how the other multiplies
        np.testing.assert_array_equal(_product(plain), EXACT)
        np.testing.assert_array_equal(_product(fast), np.full((2, 2), 2))
        assert cupy.machine.compute_type == DEFAULT
    assert "those of float32 in float32" in plain.info() and "in TensorFloat-32" in fast.info()


def test_the_environments_choice_does_not_count_and_stays() -> None:
    cupy = fake_cupy()
    cupy.machine.compute_type = TF32  # as by CUPY_TF32=1
    np.testing.assert_array_equal(_product(stand_in(cupy)), EXACT)
    assert cupy.machine.compute_type == TF32


def test_what_other_dtypes_give_is_the_same() -> None:
    be = stand_in(fake_cupy(), tf32=True)
    x = be.array(np.full((2, 2), 1 + 2.0**-12), "float64")
    assert be.dot(x, x).asnumpyarray()[0, 0] == 2 * (1 + 2.0**-12) ** 2


def test_what_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    cupy = fake_cupy()
    with pytest.raises(BackendError, match="tf32 is True or False"):
        stand_in(cupy, tf32="yes")
    monkeypatch.setattr(cupy.cuda.Device, "compute_capability", "75")
    assert stand_in(cupy).ones(2).get().tolist() == [1, 1]
    with pytest.raises(BackendError, match=r"tf32=True needs .* 8\.0 or newer, and 0 has 7\.5"):
        stand_in(cupy, tf32=True)
