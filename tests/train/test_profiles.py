"""Profiles: each part once, its work by hand, and steps that are steps."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import optree
from backends import gen_backend
from optree import TensorType, train
from optree.errors import OperandError
from optree.run import profile as profiles


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: Any) -> None:
    """A machine's peaks of a small copy and product: what they are is not looked at."""
    monkeypatch.setattr(profiles, "COPIED", 1 << 20)
    monkeypatch.setattr(profiles, "MULTIPLIED", 64)


def step(be: Any) -> tuple[Any, Any]:
    w, x = be.ones((64, 32), name="w"), TensorType("float32", (None, 64))("x")
    loss = be.sum(be.tanh(be.dot(x, w)), keepdims=False)
    return optree.function([x], loss, updates=train.SGD([w], 0.5).updates(loss)), w


@pytest.mark.matrix(least=1)
@pytest.mark.parametrize("jit", [True, False])
def test_parts_are_the_plans_and_their_work_is_counted(jit: bool, tmp_path: Any) -> None:
    be = gen_backend("cpu", jit=jit)
    run, _ = step(be)
    x = np.ones((128, 64), "f")
    found = train.profile(run, x, calls=3)
    assert len(found.parts) == len(run.planned().steps) and all(p.seconds > 0 for p in found.parts)
    (forward,) = [p for p in found.parts if p.what.startswith("dot (None, 32)")]
    assert forward.flops == 2 * 128 * 64 * 32
    assert forward.bytes == 4 * (128 * 64 + 64 * 32 + 128 * 32)
    assert 0 < found.memory.peak < 10 * 128 * 64 * 4
    table = str(found)
    assert "GB/s" in table and "built at test_profiles.py" in table and "of limit" in table
    path = train.roofline(found).save(tmp_path / "roof.svg")
    assert "Roofline" in "".join(ElementTree.parse(path).getroot().itertext())


def test_the_calls_are_steps() -> None:
    be = gen_backend("cpu")
    run, w = step(be)
    train.profile(run, np.ones((8, 64), "f"), calls=2)
    profiled = w.get()
    other, v = step(be)
    for _ in range(3):
        other(np.ones((8, 64), "f"))
    np.testing.assert_allclose(profiled, v.get(), rtol=1e-6)


def test_a_gpus_steps_are_waited_for(folder: Any, gpu: Any) -> None:
    run, _ = step(gpu)
    found = train.profile(run, np.ones((8, 64), "f"), calls=1)
    assert {p.kind for p in found.parts} == {"kernel", "call"}


def test_only_functions_are_profiled() -> None:
    be = gen_backend("cpu")
    with pytest.raises(OperandError, match="a function is wanted"):
        train.profile(be.ones(2) + 1)  # type: ignore[arg-type]
    with pytest.raises(OperandError, match="1 call or more"):
        train.profile(optree.function([], be.ones(2) + 1), calls=0)
