"""Pictures of trees: what is in them, that they are the same each time, and what is refused."""

import os
import re
import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
import pytest

from backends import gen_backend
from optree.errors import OperandError
from optree.pictures import LIMIT, PictureError, draw

DRAWN_TWICE = """
from backends import gen_backend
from optree.pictures import draw
be = gen_backend("cpu")
x, y = be.ones((2, 3), name="x"), be.ones((2, 3))
z = be.sin(x * y + 2)
print(draw(z * z + be.sin(z + x), title="twice").svg())
"""


@pytest.fixture
def be():
    return gen_backend("cpu")


def texts(picture):
    """The texts of a picture, which is well-formed XML."""
    root = ElementTree.fromstring(picture.svg())
    return ["".join(entry.itertext()) for entry in root.iter() if entry.tag.endswith("text")]


def test_boxes_say_op_name_shape_and_dtype(be):
    x = be.ones((2, 3), name="x")
    found = texts(draw(be.sin(x) + 2, title="a title"))
    assert {"a title", "add", "sin", "x", "2", "(2, 3) float32"} <= set(found)


def test_parameters_stand_with_the_op(be):
    x = be.ones((2, 3), name="x")
    assert texts(draw(be.sum(x, axis=1))) == ["x", "(2, 3) float32", "sum", "axis=1", "keepdims=True", "(2, 1) float32"]


def test_a_shared_subtree_is_drawn_once(be):
    x = be.ones(3, name="x")
    shared = be.sin(x)
    found = texts(draw(shared * 2 + shared))
    assert found.count("sin") == 1


def test_an_operand_taken_twice_tells_both_places(be):
    x = be.ones(3, name="x")
    found = texts(draw(x * x))
    assert found.count("x") == 1
    assert "1, 2" in found


def test_operands_beyond_two_hang_on_their_op(be):
    x, y = be.ones(3, name="x"), be.zeros(3, name="y")
    found = texts(draw(be.where(x > y, x, y)))
    assert "args" not in found
    assert found.count("where") == 1


def test_leaves_without_a_name_are_told_by_their_kind(be):
    x = be.ones((2, 3), name="x")
    found = texts(draw(be.zeros((3, 2)) + x.T + np.ones((3, 2), np.float32)))
    assert {"tensor", "transpose of x", "constant(3, 2)"} <= set(found)
    assert not any("0x" in text for text in found)


def test_names_are_text_and_nothing_else(be):
    name = "<b>&$\\frac{1}{2}$\n" + "long" * 20
    found = texts(draw(be.ones(2, name=name) + 1))
    (shown,) = (text for text in found if text.startswith("<b>&$"))
    assert len(shown) <= 28
    assert shown.endswith("…")


@pytest.mark.parametrize("name", ["a\ud800", "a\0", "a\nb", "\x1b[31m"])
@pytest.mark.parametrize("suffix", [".svg", ".png", ".pdf"])
def test_names_that_are_no_text_are_escaped(be, tmp_path, name, suffix):
    picture = draw(be.ones(2, name=name) + 1, title=name)
    picture.save(tmp_path / f"picture{suffix}")
    assert texts(picture).count(name.encode("unicode_escape").decode()) == 2


def test_a_leaf_alone_and_an_assignment_are_drawn(be):
    x = be.ones(3, name="x")
    assert texts(draw(x)) == ["x", "(3,) float32"]
    assert "assign" in texts(draw(be.assign(x, x + 1)))


def test_the_same_tree_gives_the_same_file_in_every_process(capsys):
    """In this process, and in one whose hashes are others."""
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    run = subprocess.run([sys.executable, "-c", DRAWN_TWICE], capture_output=True, text=True, env=environment)
    assert run.returncode == 0, run.stderr
    exec(DRAWN_TWICE, {})
    assert capsys.readouterr().out == run.stdout
    assert "date" not in run.stdout


@pytest.mark.parametrize(("suffix", "start"), [("svg", b"<?xml"), ("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_the_suffix_names_the_format(be, tmp_path, suffix, start):
    path = draw(be.ones(3, name="x") + 1).save(tmp_path / f"tree.{suffix}")
    assert path.read_bytes().startswith(start)


def test_boxes_do_not_overlap(be):
    x = be.ones((2, 3), name="x")
    tree = be.sin(x) * x + be.sin(x + 1) * be.sin(x + 2)
    rectangles = []
    for path in re.findall(r'd="(M [^"]*)" clip-path[^>]*style="fill: #(?:dbe9f6|ffffff|f2f2f2);', draw(tree).svg()):
        numbers = np.array(re.findall(r"-?\d+\.?\d*", path), float).reshape(-1, 2)
        rectangles.append((numbers.min(axis=0), numbers.max(axis=0)))
    assert len(rectangles) >= 12
    for i, (low, high) in enumerate(rectangles):
        for other_low, other_high in rectangles[:i]:
            assert (high <= other_low).any() or (other_high <= low).any()


def chain(x, n):
    for _ in range(n):
        x = x + 1
    return x


def reused(x, n):
    first = x = x + 1
    for _ in range(n):
        x = x * first
    return x


def pyramid(x, n):
    row = [x + i for i in range(n)]
    while len(row) > 1:
        row = [a * b for a, b in zip(row[::2], row[1::2], strict=False)]
    return row[0]


@pytest.mark.matrix(least=0)
@pytest.mark.parametrize(
    ("shape", "n"),
    [
        pytest.param(chain, 290, id="chain"),
        pytest.param(reused, 290, id="reused"),
        pytest.param(pyramid, 128, id="wide"),
    ],
)
def test_trees_of_hundreds_of_nodes_are_drawn(be, tmp_path, shape, n):
    limit = sys.getrecursionlimit()
    picture = draw(shape(be.ones(3, name="x"), n))
    assert len(texts(picture)) > n
    assert picture.save(tmp_path / "tree.png").stat().st_size > 0
    assert sys.getrecursionlimit() == limit


def test_a_larger_tree_is_refused_with_the_way_out(be):
    tree = chain(be.ones(3, name="x"), 5000)
    with pytest.raises(PictureError, match=rf"10001 boxes and a picture up to {LIMIT}.*pp"):
        draw(tree)
    assert draw(chain(be.ones(3), 10), limit=21)
    with pytest.raises(PictureError, match="21 boxes and a picture up to 20"):
        draw(chain(be.ones(3), 10), limit=20)


def test_what_is_no_tree_is_refused():
    with pytest.raises(OperandError, match="not list"):
        draw([1, 2])


def test_optree_itself_needs_no_matplotlib():
    code = "import sys, optree, backends; sys.exit('matplotlib' in sys.modules or 'grandalf' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
