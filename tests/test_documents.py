"""The documents' code runs and prints what they say; so do the docstrings' examples.

A document's Python blocks run in order, in one process of their own. What a
block prints stands in the ``text`` block right below it, or in comments:
``print(x)  # this``.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib
import inspect
import io
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from harness import documents
from harness.each import for_each
from harness.scripts import script

import backends
import optree
from backends.cpu import compiler
from optree.registry import FUNCTIONS, NUMPY_FUNCTIONS, OPS

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "benchmarks").glob("*.md")])
MODULES = sorted(
    module.name
    for package in (optree, backends)
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + ".")
)


def run(*paths):
    """Documents that run, each in a process, whose kernels are compiled with the flags of the tests' own."""
    command = [sys.executable, documents.__file__, *compiler.FLAGS, *paths]
    return subprocess.run(command, capture_output=True, text=True)


RUN = [path for path in DOCUMENTS if [*documents.blocks(path.read_text())]]
GALLERY = ROOT / "docs" / "gallery.md"


@pytest.mark.slow
@pytest.mark.parametrize(
    "paths",
    [
        pytest.param([GALLERY], id="gallery", marks=pytest.mark.matrix(least=0)),
        pytest.param([path for path in RUN if path != GALLERY], id="others"),
    ],
)
def test_documents_code_prints_what_they_say(paths, sample):
    done = run(*sample(paths, least=5))
    assert done.returncode == 0, done.stderr


def test_a_wrong_document_is_noticed(tmp_path):
    document = tmp_path / "wrong.md"
    document.write_text("```python\nprint(1)  # 2\n```\n")
    done = run(document)
    assert done.returncode == 1
    assert "wrong.md:1: printed" in done.stderr and f"failed: {document}" in done.stderr


def test_docstring_examples_print_what_they_say():
    finder = doctest.DocTestFinder(exclude_empty=True)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    report = io.StringIO()
    for name in MODULES:
        for text in finder.find(importlib.import_module(name)):
            if text.examples:
                text.globs |= {"be": backends.gen_backend("cpu"), "np": np, "optree": optree}
                runner.run(text, out=report.write)
    assert runner.failures == 0 and runner.tries > 100, report.getvalue()


#: Parameters of functions that derivatives are made of, and others that need no example.
OF_DERIVATIVES, PLAIN = (
    {"like", "delta", "state", "counter"},
    {"is_last", "output", "synchronize", "default_dtype", "Optimizer", "LossScale"},
)


def test_help_has_every_parameter_and_an_example_that_runs():
    be, runner = backends.gen_backend("cpu", jit=False), doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    report, incomplete = io.StringIO(), []
    of_tests = {name for name, op in OPS.items() if not op.__module__.startswith("optree.")}
    public = {name: getattr(be, name) for name in set(dir(be)) - of_tests}
    public |= {name: getattr(optree.train, name) for name in optree.train.__all__}
    for name, function in public.items():
        if not callable(function) or (isinstance(function, type) and issubclass(function, Exception | np.generic)):
            continue
        text, taken = inspect.getdoc(function), set(inspect.signature(function).parameters) - {"out", "options", "args"}
        told = re.search(r"^(Parameters|Attributes)\n(.*?)(\n\n\w+\n---|\Z)", text, re.DOTALL | re.MULTILINE)
        words = set(re.findall(r"\w+", told[2])) if told else set()
        if not taken & OF_DERIVATIVES and name not in PLAIN and (taken - words or ">>> " not in text):
            incomplete.append((name, taken - words))
        elif ">>> " in text and hasattr(be, name):
            names = {"be": be, "np": np, "optree": optree}
            runner.run(doctest.DocTestParser().get_doctest(text, names, name, None, 0), out=report.write)
    assert not incomplete, str(incomplete)
    assert runner.failures == 0 and runner.tries > 80, report.getvalue()


@for_each("path", DOCUMENTS)
def test_documents_links_and_commands_exist(path):
    text = path.read_text()
    for target in re.findall(r"\]\((?!http)([^)#]+)", text):
        assert (path.parent / target).exists(), f"{path.name} points to {target}"
    rules = re.findall(r"^([a-z -]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    targets = {target for rule in rules for target in rule.split()}
    assert set(re.findall(r"(?:^|`)make ([a-z]+(?:-[a-z]+)*)", text, re.MULTILINE)) <= targets


def functions_page():
    """docs/generate.py as a module."""
    return script("docs/generate.py")


def test_every_function_is_listed_as_it_is():
    generate = functions_page()
    assert generate.PATH.read_text() == generate.text(), "run `make functions`"


def test_no_table_of_functions_is_empty():
    text = functions_page().text()
    assert not re.search(r"^\|---\|---\|\n(?!\|)", text, re.MULTILINE)
    made = text.partition("## New tensors")[2].partition("##")[0]
    for name in ("array", "zeros", "ones", "full", "empty", "arange", "linspace", "eye", "zeros_like", "iobuf"):
        assert f"| `{name}(" in made


#: torch's names of our parameters.
IN_TORCH = {"axis": "dim", "keepdims": "keepdim", "epsilon": "eps", "ddof": "correction"}


#: Parameters that are written otherwise, and mean the same.
NO_DIFFERENCE = {("be.cov", "ddof")}  # None is 1 there


def torchs_defaults(function):
    """The parameters of a function of torch's with their defaults as text; None for those that must be given."""
    with contextlib.suppress(ValueError, TypeError):
        own = inspect.signature(function).parameters
        return {name: None if p.default is p.empty else repr(p.default) for name, p in own.items()}
    line = (function.__doc__ or "").strip().partition("\n")[0]
    listed = re.search(r"\((.*?)\)( ->|$)", line)
    pairs = [part.strip().partition("=") for part in (listed[1] if listed else "").split(",")]
    return {name: value if sign else None for name, sign, value in pairs}


def test_defaults_that_differ_from_numpys_and_torchs_are_listed():
    listed = {(call, name) for calls, name, *_ in functions_page().all_differences() for call in calls}
    torch = pytest.importorskip("torch")
    missing, compared = set(), 0
    for name, function in FUNCTIONS.items():
        numpys = getattr(np, name, None) or getattr(np.linalg, name, None)
        torchs = next((found for home in (torch.nn.functional, torch) if (found := getattr(home, name, None))), None)
        theirs = inspect.signature(numpys).parameters if numpys in NUMPY_FUNCTIONS else {}
        others = torchs_defaults(torchs) if torchs is not None else {}
        for parameter, own in inspect.signature(function).parameters.items():
            if own.default is own.empty:
                continue
            if parameter in theirs and theirs[parameter].default not in (np._NoValue, None, own.default):
                missing.add((f"be.{name}", parameter))
            other = IN_TORCH.get(parameter, parameter)
            if other in others and others[other] not in (repr(own.default), "None"):
                missing.add((f"be.{name}", parameter))
            compared += parameter in theirs or other in others
    assert missing - listed - NO_DIFFERENCE == set()
    assert compared > 100


def test_help_on_a_function_tells_its_parameters_and_out():
    be = backends.gen_backend("cpu")
    assert str(inspect.signature(be.sum)) == "(x, axis=None, keepdims=True, *, out=None)"
    assert inspect.getdoc(be.sum).startswith("The sum over axes")
    assert "With `out`, a tensor, it runs at once" in inspect.getdoc(be.sum)


def test_ci_runs_the_commands_of_the_readme():
    script = (ROOT / ".ci" / "run").read_text()
    commands = re.findall(r"^make [a-z-]+", script, re.MULTILINE)
    assert sorted(commands) == ["make demo", "make docs", "make lint", "make test-all"]
    assert all(command in (ROOT / "README.md").read_text() for command in commands)
