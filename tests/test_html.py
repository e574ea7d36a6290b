"""The HTML of objects in notebooks: what it says, that it is well-formed, and that users' text is escaped."""

from base64 import b64decode
from html.parser import HTMLParser
from xml.etree import ElementTree

import nbformat
import numpy as np
import pytest
from harness.compiling import done, python
from nbclient import NotebookClient

import optree
from backends import gen_backend
from optree import TensorType, train

EVIL = "<script>alert(1)</script>&\"'"


class Page(HTMLParser):
    """The tags and texts of HTML, whose elements are closed in the order in which they were opened."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.text, self.images = [], set(), "", []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag == "img":
            self.images.append(b64decode(dict(attrs)["src"].partition("base64,")[2]).decode())
        else:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.fixture
def be():
    return gen_backend("cpu", rng_seed=0)


def page(x):
    found = Page(x._repr_html_())
    assert "script" not in found.tags and found.tags <= {
        *("div", "b", "table", "tr", "td", "details", "summary", "pre", "img", "svg", "polyline")
    }
    return found


def test_tensors_show_their_type_and_values(be):
    text = page(be.array(np.arange(6.0, dtype="f").reshape(2, 3), name=EVIL)).text
    assert EVIL in text and "(2, 3)" in text and "float32" in text and "24 bytes" in text and "[3. 4. 5.]" in text
    assert page(be.ones(100_000)).text.count("1.") < 20
    assert (
        page(be.ones((3, 3), name="w")[1]).text.endswith("[1. 1. 1.]")
        and "view ofw" in page(be.ones(3, name="w")[1:]).text
    )
    assert page(TensorType("float32", (None, 2))(EVIL)).text == f"{EVIL}type(None, 2) float32"


def test_trees_show_a_picture_and_large_ones_unfold_their_text(be):
    x = be.ones((2, 3), name=EVIL)
    small = page(be.exp(x) + 1)
    (drawn,) = small.images
    assert "exp" in "".join(ElementTree.fromstring(drawn.encode()).itertext())
    assert "operations2" in small.text and EVIL in small.text
    deep = x
    for _ in range(5000):
        deep = deep + 1
    large = page(deep)
    assert (
        not large.images and "operations5000" in large.text and "more lines" in large.text and len(large.text) < 40_000
    )
    assert "<details><summary>operations" in deep._repr_html_()


def test_functions_show_what_they_take_and_run(be):
    x, w = TensorType("float32", (4,))("x"), be.zeros((), name="w")
    text = page(optree.function([x], [be.sum(x * x)], updates={w: w + be.sum(x, keepdims=False)}, name=EVIL)).text
    assert EVIL in text and "x: (4,) float32" in text and "w: () float32" in text and " kernels and " in text
    assert "at the peak" in text and "mul" in text
    y = TensorType("float32", (None,))("y")
    assert "at the peak" not in page(optree.function([y], y + 1)).text
    assert "op by op, in mode 'reference'" in page(optree.function([y], y + 1, mode="reference")).text


def test_optimizers_batches_profiles_and_logs_say_what_they_are(be, tmp_path):
    w, b = be.ones((3, 2), name="w"), be.zeros(2, name=EVIL)
    opt = train.Adam([{"weights": [w]}, {"weights": [b], "rate": 0.5}], train.schedules.cosine(0.1, 10))
    text = page(opt).text
    assert "Adam of 2 weights" in text and "rate=0.1 (a schedule)" in text and "rate=0.5" in text and EVIL in text
    batches = train.Batches(np.arange(10), size=3, to=be)
    next(iter(batches))
    assert repr(batches) == "Batches of 3 of 10 examples, at batch 1 of epoch 0"
    assert "oncpu" in page(batches).text and "shuffled by seed 0" in page(batches).text
    step = optree.function([], be.sum(be.dot(w, w.T)), profile=True)
    step()
    profile = train.profile(step)
    assert repr(profile).startswith(f"Profile of {len(profile.parts)} parts, ")
    assert page(profile).images and "of limit" in page(profile).text
    assert "Gflop/s" in page(step.profile).text
    assert page(profile.memory).text and "peak=" in repr(profile.memory)
    for name in ("run.csv", "run.jsonl"):
        with train.Log(tmp_path / name) as log:
            for i in range(1000):
                log(i, loss=1 / (i + 1), flat=2.0, wrong=float("nan"), **{EVIL: -i})
            shown = page(log)
        assert name in shown.text and "loss: 0.001 at step 999" in shown.text and f"{EVIL}: -999" in shown.text
        assert "wrong" not in shown.text and len(log._repr_html_()) < 40_000


def test_a_notebook_shows_html_and_plain_text():
    cell = nbformat.v4.new_code_cell("import backends; backends.gen_backend('cpu').ones((2, 2), name='w')")
    notebook = nbformat.v4.new_notebook(cells=[cell])
    NotebookClient(notebook, timeout=60).execute()
    (output,) = notebook.cells[0].outputs
    assert output.data["text/plain"].startswith("Tensor([[1., 1.]")
    assert "(2, 2)" in Page(output.data["text/html"]).text


def test_without_the_packages_that_draw_a_tree_shows_its_text():
    done(
        python(
            "import sys; sys.modules['grandalf.graphs'] = None; from backends import gen_backend\n"
            "text = (gen_backend('cpu').ones(3) + 1)._repr_html_()\n"
            "assert '<img' not in text and '<details open><summary>operations' in text"
        )
    )
