"""The documents' code runs and prints what they say; so do the docstrings' examples.

A document's Python blocks run in order, in one process of their own. What a
block prints stands in the ``text`` block right below it, or in comments:
``print(x)  # this``.
"""

from __future__ import annotations

import doctest
import importlib.util
import inspect
import io
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest
from harness import documents

import backends
import optree

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "benchmarks").glob("*.md")])
MODULES = sorted(
    module.name
    for package in (optree, backends)
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + ".")
)


@pytest.mark.parametrize(
    "path",
    [path for path in DOCUMENTS if [*documents.blocks(path.read_text())]],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_documents_code_prints_what_they_say(path, tmp_path):
    done = subprocess.run([sys.executable, documents.__file__, path], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_wrong_document_is_noticed(tmp_path):
    document = tmp_path / "wrong.md"
    document.write_text("```python\nprint(1)  # 2\n```\n")
    done = subprocess.run([sys.executable, documents.__file__, document], capture_output=True, text=True)
    assert done.returncode == 1
    assert "wrong.md:1: printed" in done.stderr


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_print_what_they_say(name):
    module = importlib.import_module(name)
    finder = doctest.DocTestFinder(exclude_empty=True)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    report = io.StringIO()
    for example in finder.find(module):
        example.globs["be"] = backends.gen_backend("cpu")  # as NumPy's examples have np
        runner.run(example, out=report.write)
    assert runner.failures == 0, report.getvalue()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_links_and_commands_exist(path):
    text = path.read_text()
    for target in re.findall(r"\]\((?!http)([^)#]+)", text):
        assert (path.parent / target).exists(), f"{path.name} points to {target}"
    rules = re.findall(r"^([a-z -]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    targets = {target for rule in rules for target in rule.split()}
    assert set(re.findall(r"(?:^|`)make ([a-z]+(?:-[a-z]+)*)", text, re.MULTILINE)) <= targets


def functions_page():
    """docs/generate.py as a module."""
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    return generate


def test_every_function_is_listed_as_it_is():
    generate = functions_page()
    assert generate.PATH.read_text() == generate.text(), "run `make functions`"


def test_no_table_of_functions_is_empty():
    text = functions_page().text()
    assert not re.search(r"^\|---\|---\|\n(?!\|)", text, re.MULTILINE)
    made = text.partition("## New tensors")[2].partition("##")[0]
    for name in ("array", "zeros", "ones", "full", "empty", "arange", "linspace", "eye", "zeros_like", "iobuf"):
        assert f"| `{name}(" in made


def test_help_on_a_function_tells_its_parameters_and_out():
    be = backends.gen_backend("cpu")
    assert str(inspect.signature(be.sum)) == "(x, axis=None, keepdims=True, *, out=None)"
    assert inspect.getdoc(be.sum).startswith("The sum over axes")
    assert "With `out`, a tensor, it runs at once" in inspect.getdoc(be.sum)


def test_ci_runs_the_commands_of_the_readme():
    script = (ROOT / ".ci" / "run").read_text()
    commands = re.findall(r"^make [a-z-]+", script, re.MULTILINE)
    assert sorted(commands) == ["make demo", "make lint", "make test-all"]
    assert all(command in (ROOT / "README.md").read_text() for command in commands)
