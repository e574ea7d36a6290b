"""Copies of optimizers: of weights and state of their own, which train on as the originals do."""

from __future__ import annotations

from copy import copy, deepcopy
from typing import Any

import numpy as np
import pytest

from optree import function
from optree.train import SGD, Adam, packed

#: What is copied, given the weights and their optimizer; each gives the copies of both.
FORMS = {
    "both": lambda weights, opt: deepcopy((weights, opt)),
    "optimizer first": lambda weights, opt: deepcopy((opt, weights))[::-1],
    "weights in a list": lambda weights, opt: deepcopy((list(weights), opt)),
    "optimizer alone": lambda weights, opt: ((found := deepcopy(opt)).weights, found),
}


def step_of(weights: Any, opt: Any) -> Any:
    be = weights[0].backend
    loss = sum((be.sum(be.square(w), keepdims=False) for w in weights[1:]), be.sum(be.square(weights[0])))
    return function([], loss, updates=opt.updates(loss))


@pytest.mark.parametrize("pack", [list, packed])
@pytest.mark.parametrize("form", FORMS)
def test_a_copied_optimizer_trains_copied_weights_alone(cpu: Any, form: str, pack: Any) -> None:
    weights = pack([cpu.array([1.0, 2.0], name="w"), cpu.array([3.0], name="b")])
    opt = Adam(weights, 0.1, average=0.9)
    step_of(weights, opt)()
    before = [w.get() for w in weights]
    copied, their = FORMS[form](weights, opt)
    step_of(copied, their)()
    assert [w.get().tolist() for w in weights] == [w.tolist() for w in before] and opt.step.item() == 1
    step_of(weights, opt)()
    for x, y in zip([*weights, *opt.state.values()], [*copied, *their.state.values()], strict=True):
        assert x is not y and x.name == y.name
        np.testing.assert_array_equal(x.get(), y.get())
    assert repr(their) == repr(opt) and their.names == opt.names


def test_packed_weights_are_copied_as_packed_ones(cpu: Any) -> None:
    copied = deepcopy(packed([cpu.array([1.0, 2.0]), cpu.array([3.0])]))
    step_of(copied, SGD(copied, 0.5))()
    assert [w.get().tolist() for w in copied] == [[0.0, 0.0], [0.0]]


def test_numbers_of_an_optimizer_have_no_other_attributes(cpu: Any) -> None:
    opt = Adam([cpu.ones(2)], 0.1)
    (numbers,) = opt._groups
    for name in ("__deepcopy__", "__array__", "betas", "_given2"):
        with pytest.raises(AttributeError, match=r"no number .*; its numbers are rate, "):
            getattr(numbers, name)
    assert not hasattr(object.__new__(type(numbers)), "rate")  # as copy and pickle make it
    assert numbers.rate == 0.1 and copy(numbers).rate == 0.1
