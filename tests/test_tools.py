"""The scripts that measure the source and lowering, and the sample of large matrices."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from harness.compiling import needs_compiler

ROOT = Path(__file__).resolve().parent.parent


def output_of(script: str, *arguments: str) -> str:
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, str(ROOT / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_compiler
def test_the_first_run_goes_through_few_files_listed_in_order_of_first_entry():
    lines = output_of("tools/first_run.py").splitlines()
    files = [line for line in lines[:-1] if not line.startswith(" ")]
    functions = [line.strip() for line in lines[:-1] if line.startswith(" ")]
    counts = re.fullmatch(r"(\d+) files, (\d+) functions; \d+ with comprehensions and generator expressions", lines[-1])
    assert counts is not None and (len(files), len(functions)) == (int(counts[1]), int(counts[2]))
    assert len(set(files)) == len(files) and all((ROOT / file).exists() for file in files)
    assert len(files) <= 25
    # Trees are built before they are assigned, and assigned before anything runs.
    order = [next(i for i, name in enumerate(functions) if name.endswith(part)) for part in ("__call__", "__setitem__")]
    assert order == sorted(order) and order[-1] < len(functions) - 1


@needs_compiler
def test_the_first_gradient_goes_through_few_files():
    files, *_ = re.findall(r"\d+", output_of("tools/first_run.py", "--counts", "--gradient"))
    assert int(files) <= 16


@pytest.mark.matrix(least=0)
def test_sizes_are_by_package_and_add_up():
    output = output_of("tools/size.py", "--caches")
    lines = {
        name: int(count.replace(",", "")) for count, name in re.findall(r"^ *([\d,]+) lines  (\S+)$", output, re.M)
    }
    assert {"optree", "backends"} <= lines.keys()
    assert lines.pop("together") == sum(lines.values()) > 10_000
    listed = re.findall(r"^\S+\.py:\d+  \S+$", output, re.M)
    assert output.endswith(f"{len(listed):7} caches\n")


def test_what_is_a_cache(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools")
    size = pytest.importorskip("size")
    source = """
from functools import cache, lru_cache
table = {}
written = {}
shared = BoundedCache(8)
of = cache(make)
@lru_cache(maxsize=4)
def kept(x): return x
@cache
def once(): return 1
def find(key):
    written[key] = 1
    if key not in table:
        table[key] = key
    return table[key]
class Plans:
    def __init__(self):
        self.plans, self.notes = {}, {}
        self.calls = BoundedCache(8)
    def call(self, key): self.calls[key] = self.calls.get(key)
    def get(self, key): return self.plans.get(key)
    def put(self, key, local): self.plans[key] = local[key] = self.notes[key] = local.get(key)
"""
    assert sorted(size.caches(ast.parse(source))) == ["Plans.calls", "Plans.plans", "kept", "of", "shared", "table"]


def test_lowering_is_measured_by_stage():
    output = output_of("benchmarks/lowering.py", "--operations", "60")
    for title in ("the chain", "its gradient"):
        assert re.search(rf"^{title}: [\d.]+ s, [\d.]+ ms for each of 60 operations$", output, re.M)
    assert len(re.findall(r"^  rewrite .* ms an operation$", output, re.M)) == 2


COLLECT = """
import contextlib, io, json, sys
import pytest
def collected(arguments):
    with contextlib.redirect_stdout(io.StringIO()) as output:
        status = pytest.main(["-q", "--collect-only", "-p", "no:cacheprovider", *arguments])
    assert status == 0, output.getvalue()
    return [line for line in output.getvalue().splitlines() if "::" in line]
print(json.dumps([*map(collected, json.loads(sys.argv[1]))]))
"""


def collected(folder: Path, *runs: list[str]) -> list[list[str]]:
    """The tests that pytest collects with each of several lists of arguments."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    command = [sys.executable, "-c", COLLECT, json.dumps(runs)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    found: list[list[str]] = json.loads(done.stdout)
    return found


def test_the_seed_draws_a_sample_of_each_matrix_and_of_nothing_else(tmp_path):
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "@pytest.mark.matrix\n@pytest.mark.parametrize('n', range(400))\ndef test_many(n): pass\n"
        "@pytest.mark.matrix\n@pytest.mark.parametrize('n', range(10))\ndef test_some(n): pass\n"
        "@pytest.mark.parametrize('n', range(400))\ndef test_unmarked(n): pass\n"
        "@pytest.mark.matrix(least=0)\n@pytest.mark.parametrize('n', range(3))\ndef test_long(n): pass\n"
    )
    seeded, every = ["--seed", "1"], ["--all", "--seed", "1"]
    runs = seeded, seeded, ["--seed", "2"], every, ["test_it.py::test_many"]
    drawn, again, other, everything, named = collected(tmp_path, *runs)
    assert len(drawn) == 20 + 3 + 400, "one of 20, and at least 3, or none"
    assert drawn == again != other
    assert len(everything) == 813 and set(drawn) < set(everything)
    assert [test for test in everything if test in drawn] == drawn
    assert len(named) == 400, "a test that is named runs with every case"
