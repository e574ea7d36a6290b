"""Iterating over a tree gives the tuple's parts, as neon's programs need, and tells of it; pandas gets values."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import optree
from backends import gen_backend
from optree.errors import TupleAccessError, TupleAccessWarning
from optree.settings import override
from optree.tree import telling
from optree.tree.node import parts_of


@pytest.fixture(autouse=True)
def no_line_has_been_told() -> Iterator[None]:
    telling._told.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        yield


@pytest.fixture
def tree() -> Any:
    be = gen_backend("cpu")
    return be.array([1.0, 2.0, 3.0, 4.0], name="x") * 2


def unpacked(tree: Any) -> list[Any]:
    q, k, v = tree
    return [q, k, v]


WAYS = {
    "unpacking": unpacked,
    "for": lambda tree: [part for part in tree],  # noqa: C416, a loop of the user's
    "list": list,
    "tuple": tuple,
    "zip": lambda tree: [part for part, _ in zip(tree, range(3), strict=True)],
    "map": lambda tree: list(map(lambda part: part, tree)),  # noqa: C417
    "star": lambda tree: [*tree],
    "arguments": lambda tree: (lambda *parts: parts)(*tree),
    "enumerate": lambda tree: [part for _, part in enumerate(tree)],
}


@pytest.mark.parametrize("name", WAYS)
def test_each_way_of_iterating_warns_once_for_its_line_and_gives_the_parts(tree: Any, name: str) -> None:
    for expected in (1, 0):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            for _ in range(3):
                parts = WAYS[name](tree)
        assert [one is other for one, other in zip(parts, parts_of(tree), strict=True)] == [True] * 3
        told = [each for each in found if each.category is TupleAccessWarning]
        if name in ("list", "tuple"):  # called on the line above
            assert len(told) == expected
        assert len(told) == expected
        for each in told:
            assert each.filename == __file__
            for way_out in (".at[i]", ".astensor()", "tree.get()", "OPTREE_TUPLE_ACCESS", "tuple_access='ignore'"):
                assert way_out in str(each.message)


def test_a_sum_of_a_tree_warns(tree: Any) -> None:
    with pytest.warns(TupleAccessWarning), pytest.raises(Exception):  # noqa: B017, of an op_dict and an operand
        sum(tree)


def test_what_is_meant_as_a_tuple_or_a_value_says_nothing(tree: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        be = tree.backend
        assert tree[0]["op"] == "mul" and tree[1].label == "x" and tree[2] == 2 and len(tree) == 3
        assert tree.at[1].item() == 4 and [row.item() for row in tree.astensor()] == [2, 4, 6, 8]
        assert np.asarray(tree).tolist() == [2, 4, 6, 8] and np.sum(tree).item() == 20
        assert str(tree).startswith("({'shape'") and hash(tree)
        t = be.zeros(4)
        t[:] = tree + be.exp(tree)
        step = optree.function([], tree, {t: t + tree})
        step(), be.evaluate([tree, tree * tree]), optree.grad(be.sum(tree * tree), tree[1]).get()
        optree.OpTreeNode.list_to_optree(optree.OpTreeNode.optree_to_list(tree)).get()
        optree.OpTreeNode.from_stack(tree.traverse()).get()
        optree.debugprint(tree, stage="program")
        optree.vmap(lambda row: row * 2)(tree).get()
        be.xp.asarray([1.0, 2.0]) + 1


def test_settings_make_it_an_error_or_nothing(tree: Any) -> None:
    with override(tuple_access="error"), pytest.raises(TupleAccessError, match="the tree of mul"):
        list(tree)
    with override(tuple_access="ignore"), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(tree)) == 3


def test_neons_programs_are_not_told() -> None:
    be = gen_backend("cpu", compat_mode="neon")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        op_dict, left, right = be.array([[1.0, 2.0]]) + 1
    assert op_dict["op"] == "add" and right == 1 and left.shape == (1, 2)


def test_pandas_gets_values(tree: Any) -> None:
    pandas = pytest.importorskip("pandas")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        series = pandas.Series(tree)
        named = pandas.Series(tree, index=list("abcd"), name="y")
        frame = pandas.DataFrame({"x": tree[1].get(), "y": tree})
        frame["z"] = tree + 1
        added = frame.assign(w=tree * tree)
        indexed = pandas.Index(tree)
        two = tree.reshape(2, 2)
        frames = pandas.DataFrame(two), pandas.DataFrame(two, columns=["a", "b"]), pandas.DataFrame(tree)
    assert series.tolist() == [2, 4, 6, 8] and len(series) == 4 and series.dtype == np.float32
    assert named["b"] == 4
    assert frame["y"].tolist() == [2, 4, 6, 8] and frame["z"].tolist() == [3, 5, 7, 9]
    assert added["w"].tolist() == [4, 16, 36, 64] and indexed.tolist() == [2, 4, 6, 8]
    assert [each.to_numpy().tolist() for each in frames] == [[[2, 4], [6, 8]]] * 2 + [[[2], [4], [6], [8]]]
    assert len(tree) == 3 and tree[0]["op"] == "mul"


def test_matplotlib_gets_values(tree: Any) -> None:
    figure = pytest.importorskip("matplotlib.figure")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        axes = figure.Figure().subplots()
        points = axes.scatter(tree, tree * 2, s=tree, c=tree)
        bars = axes.errorbar(range(4), tree, yerr=tree * 0.5)
        axes.plot(tree, tree), axes.hist(tree), axes.fill_between(range(4), tree), axes.boxplot(tree)
    assert points.get_offsets().tolist() == [[2, 4], [4, 8], [6, 12], [8, 16]] and points.get_sizes()[3] == 8
    assert bars.lines[2][0].get_segments()[0].tolist() == [[0, 1], [0, 3]]
