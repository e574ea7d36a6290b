"""Trees that first run after a tensor under them was written say so; trees that are kept on purpose do not."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import optree
from optree.errors import StaleTreeError, StaleTreeWarning
from optree.settings import override
from optree.tree import telling, tensor


@pytest.fixture(autouse=True)
def no_line_has_been_told() -> None:
    telling._told.clear()


@pytest.fixture
def strict() -> Iterator[None]:
    """A stale tree is an error."""
    with override(stale_trees="error"):
        yield


def told(run: Any) -> list[str]:
    """The warnings of stale trees that a function gives."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        run()
    return [str(warning.message) for warning in found if warning.category is StaleTreeWarning]


# What is told


def test_verlet_is_told_with_both_lines(be):
    p, v, dt = be.array([1.0], name="p"), be.array([0.0], name="v"), 0.1

    def steps() -> None:
        nonlocal p, v
        for _ in range(5):
            a = -p
            p += dt * v + 0.5 * dt * dt * a
            v += 0.5 * dt * (a - p)

    (message,) = told(steps)  # once for the line, not for each step
    first = steps.__code__.co_firstlineno
    assert "p (1,) float32" in message
    assert f"was written by test_stale.py:{first + 4} after" in message
    assert f"the tree of neg at test_stale.py:{first + 3} was built" in message
    for way_out in ("be.evaluate([tree])", "x.copy()", "be.update", "optree.function", "OPTREE_STALE_TREES"):
        assert way_out in message


def test_the_warning_stands_at_the_line_that_runs_the_tree(be):
    x = be.array([1.0, 2.0], name="x")
    old = x * 1
    x[:] = x + 1
    with pytest.warns(StaleTreeWarning) as found:
        assert float(abs(x - old).max()) == 0
    line = test_the_warning_stands_at_the_line_that_runs_the_tree.__code__.co_firstlineno + 5
    assert (found[0].filename, found[0].lineno) == (__file__, line)


def test_the_first_loop_that_anyone_writes_is_told(be):
    a, b = be.array(2.0, name="a"), be.array(2.0, name="b")
    loss = (a * b - 1) ** 2

    def train() -> None:
        for w, g in zip((a, b), optree.grad(loss, [a, b]), strict=True):
            w -= 0.1 * g

    (message,) = told(train)
    assert message.startswith("a () float32")
    assert b.item() == pytest.approx(1.904)  # neon's meaning stays


WRITES = {
    "assigned": lambda be, x: x.__setitem__(slice(None), 5.0),
    "an element": lambda be, x: x.__setitem__(0, 5.0),
    "a part": lambda be, x: x[1:].fill(5.0),
    "a view of a view": lambda be, x: x.reshape(2, 2).T[0].fill(5.0),
    "in place": lambda be, x: x.__imul__(2),
    "set": lambda be, x: x.set(np.ones(4)),
    "fill": lambda be, x: x.fill(3),
    "copy_from": lambda be, x: x.copy_from(x + 1),
    "sort": lambda be, x: x.sort(),
    "at indices": lambda be, x: x.__setitem__(np.array([0, 2]), 7.0),
    "by a mask": lambda be, x: x.__setitem__(x > 2.0, 0.0),
    "out": lambda be, x: be.exp(x, out=x),
    "NumPy's out": lambda be, x: np.exp(x, out=x),
    "random": lambda be, x: be.rand(out=x),
    "neon's random": lambda be, x: be.fill_normal(x),
    "executed": lambda be, x: be.execute(be.assign(x, x + 1)),
    "evaluated": lambda be, x: be.evaluate([be.assign(x, x + 1)]),
    "update": lambda be, x: be.update([(x, x + 1)]),
    "function": lambda be, x: optree.function([], None, updates={x: x + 1})(),
    "function's part": lambda be, x: optree.function([], None, updates={x[::2]: x[::2] + 1})(),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_every_write_advances_the_version(be, strict, write):
    x = be.array([3.0, 1.0, 2.0, 4.0], name="x")
    tree, view = x * 2, x[1:] + 1
    before = x.version
    write(be, x)
    assert x.version > before
    assert x[1:].version == x.version
    for reads in (tree, view):
        with pytest.raises(StaleTreeError, match="was written"):
            reads.get()
    assert (x * 2).get() is not None


def test_a_function_is_named_as_the_writer(be, strict):
    x = be.array([3.0], name="x")
    tree = x * 2
    optree.function([], None, updates={x: x + 1}, name="step")()
    with pytest.raises(StaleTreeError, match=r"written by step, a function made at test_stale\.py:\d+, after"):
        tree.get()


def test_a_tree_under_a_kept_one_is_told_too(be, strict):
    """The tensor is under nodes that have run at this line; what was built on them has not."""
    x, z = be.array([1.0], name="x"), be.zeros(1, name="z")
    kept = be.exp(x)
    for wrong in (False, True):
        tree = kept * 2
        if wrong:
            x[:] = 5.0

        def run(tree: Any = tree) -> None:
            z[:] = tree + 1

        if wrong:
            with pytest.raises(StaleTreeError):
                run()
        else:
            run()


def test_nothing_is_written_where_it_is_an_error(be, strict):
    x, z = be.array([1.0], name="x"), be.zeros(1, name="z")
    tree = x + 1
    x.fill(2)
    for _ in range(2):
        with pytest.raises(StaleTreeError):
            z[:] = tree
    assert z.item() == 0


def test_it_can_be_silenced(be):
    x = be.array([1.0], name="x")
    tree = x + 1
    x.fill(2)
    with override(stale_trees="ignore"):
        assert not told(lambda: tree.get())
    assert tree.item() == 3


# What is not told


def test_the_ways_out(be, strict):
    a, b = be.array(2.0, name="a"), be.array(2.0, name="b")
    for _ in range(3):
        loss = (a * b - 1) ** 2
        for w, g in zip((a, b), be.evaluate(optree.grad(loss, [a, b])), strict=True):
            w -= 0.1 * g
    for _ in range(3):
        loss = (a * b - 1) ** 2
        be.update([(w, w - 0.1 * g) for w, g in zip((a, b), optree.grad(loss, [a, b]), strict=True)])
    p, v = be.array([1.0]), be.array([0.0])
    for _ in range(3):
        before = (-p).astensor()
        p += 0.1 * v
        v += before - p
    x = be.ones(2)
    old = x.copy() * 1
    x += 1
    assert float(abs(x - old).max()) == 1


def test_kept_trees_are_not_told(be, strict):
    w, x = be.array([1.0, 2.0], name="w"), be.array([3.0, 4.0], name="x")
    cost = be.sum(be.square(w * x - 1))
    gradient, out = optree.grad(cost, w), be.empty((), name="out")
    norms = []
    for i in range(4):
        norms.append(float(be.sum(gradient * gradient)))
        float(cost)
        out[...] = cost + 1
        be.evaluate([cost, gradient])
        w -= 0.01 * gradient
        w[:] = be.clip(w, -10, 10)  # another line that writes there
        x[:] = [3.0 + i, 4.0]
    assert len(set(norms)) == 4


def test_what_has_run_beside_others_has_run(be, strict):
    w, out = be.array([1.0, 2.0], name="w"), be.empty((), name="out")
    cost = be.sum(be.square(w), keepdims=False)
    product, slope = be.prod(w, keepdims=False), optree.grad(cost, w)
    be.evaluate([cost, product, slope])
    w -= 0.1 * slope
    assert cost.item() == pytest.approx(3.2)
    out[...] = product
    assert out.item() == pytest.approx(1.28)
    be.evaluate([slope, cost, w * 2])
    tree = w * 3
    w.fill(1)
    with pytest.raises(StaleTreeError):
        be.evaluate([cost, tree])


def test_a_list_that_assigns_is_read_in_order(be, strict):
    x = be.array([1.0, 2.0], name="x")
    assert be.evaluate([be.assign(x, x + 1), x * 2])[1].get().tolist() == [4, 6]


def test_what_is_filled_first_is_not_told(be, strict):
    batch = be.empty(3, name="batch")
    mean = be.mean(batch)
    batch[:] = [1.0, 2.0, 3.0]
    assert mean.item() == 2
    batch[:] = [2.0, 3.0, 4.0]
    assert mean.item() == 3


def test_a_tree_that_does_not_look_there_is_not_told(be, strict):
    x, y = be.ones(3), be.ones(3)
    tree = x + 1
    y.fill(2)
    np.testing.assert_array_equal((tree * y + (y - x)).get(), [5, 5, 5])


def test_drawing_writes_nothing_that_trees_read(be, strict):
    noise = be.rand(3)
    be.rand(3).get()
    noise.get()


def test_a_tree_looked_at_has_not_run(be, strict):
    x = be.ones(3)
    tree = x + 1
    tree.key()
    str(tree)
    x.fill(2)
    with pytest.raises(StaleTreeError):
        tree.get()


def test_checking_a_gradient_is_not_told(be, strict):
    optree.check_grad(lambda x, y: x * y, [be.array([0.5, 1.5]), be.array([2.0, 3.0])])


def test_a_kept_tree_looks_at_nothing_when_it_runs_again(be, monkeypatch):
    x, z = be.ones(3), be.zeros(3)
    tree = x + 1
    z[:] = tree
    x.fill(2)

    def never(*args: Any) -> Any:
        raise AssertionError

    for name in ("_look", "signature_of"):
        monkeypatch.setattr(tensor, name, never)
    z[:] = tree
    assert z.get().tolist() == [3, 3, 3]


# be.update


def test_update_reads_all_before_it_writes(be):
    a, b = be.array([1.0, 2.0], name="a"), be.array([3.0, 4.0], name="b")
    assert be.update([(a, b), (b, a * 2)]) is None
    assert (a.get().tolist(), b.get().tolist()) == ([3, 4], [2, 4])
    be.update({a: 0, b[:1]: a[1:], b[1:]: b[:1]})
    assert (a.get().tolist(), b.get().tolist()) == ([0, 0], [4, 2])
    be.update([])


def test_update_compiles_once_for_each_layout_of_memory(be):
    """A plan for tensors apart would read one that has been written, where they lie together."""
    whole = be.array([1.0, 2.0, 3.0, 4.0], name="whole")
    one, other, third, fourth = (be.array([n, n + 1.0]) for n in (1, 3, 5, 7))

    def exchange(x: Any, y: Any) -> None:
        be.update([(x, y * 2), (y, x * 3)])

    exchange(one, other)
    compiled = be.stats()["compiles"]
    exchange(third, fourth)
    assert be.stats()["compiles"] == compiled
    exchange(whole[::2], whole[1::2])
    assert whole.get().tolist() == [4, 3, 8, 9]
    assert (one.get().tolist(), other.get().tolist()) == ([6, 8], [3, 6])


def test_an_update_that_fails_writes_nothing(be):
    x, y = be.ones(2, name="x"), be.zeros(1, name="y")
    with pytest.raises(IndexError):
        be.update([(x, x * 2), (y, be.take(x, be.array(np.array([9]))))])
    assert x.get().tolist() == [1, 1]


@pytest.mark.parametrize("updates", [3, [3], [(1, 2)], "ab"], ids=str)
def test_update_says_what_it_takes(be, updates):
    with pytest.raises(optree.OptreeError, match="update: "):
        be.update(updates)
