"""The report of who has a GPU: what it runs is there, and what it writes has no names and no paths."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from harness.fake_cupy import fake_cupy

from optree.errors import BackendError

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The tool, where the stand-in for CuPy is the device."""
    cupy = fake_cupy()
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "cupyx", cupy.linalg.cupyx)
    yield pytest.importorskip("gpu_report")


def test_what_is_written(tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(tool, "own_names", lambda: ["johndoe", "box17"])
    junit = (
        "<testsuite><testcase name='right'/><testcase name='wrong'><failure message='in /home/johndoe/x.py'/>"
        "</testcase><testcase name='left'><skipped message='no card'/></testcase></testsuite>"
    )
    steps = [
        tool.Step("fine", ("-c", "print('at /home/johndoe/op-tree/a.py:3 on box17, by johndoe: 1/2 of 3.5')"), 60),
        tool.Step("wrong", ("-c", "import sys; print('so far'); sys.exit(3)"), 60),
        tool.Step("long", ("-uc", "import time; print('begun'); time.sleep(60)"), 2),
        tool.Step(
            "tests",
            ("-c", f"import sys; open(sys.argv[1] + '/tests.xml', 'w').write({junit!r})", "{folder}"),
            60,
            tool.tests_of,
        ),
        tool.Step("none", ("-c", ""), 60, tool.benchmark_of),
    ]
    with pytest.raises(SystemExit, match="something went wrong"):
        tool.main(["--output", str(tmp_path / "found")], steps)
    text, data = ((tmp_path / "found" / f"gpu-report.{kind}").read_text() for kind in ("txt", "json"))
    found = json.loads(data)
    assert [each["status"] for each in found["outcomes"]] == [
        *("passed", "failed (3)", "out of time (2 s)", "passed", "passed")
    ]
    assert found["outcomes"][0]["said"] == ["at a.py:3 on ..., by ...: 1/2 of 3.5"]
    assert [each["said"] for each in found["outcomes"][1:3]] == [["so far"], ["begun"]]
    assert found["outcomes"][3]["found"] == {
        "passed": 1,
        "failed": {"wrong": ["in x.py"]},
        "skipped": {"left": ["no card"]},
    }
    assert found["outcomes"][4]["found"] is None
    assert found["facts"]["card"] == "stand-in" and found["facts"]["compute capability"] == "9.0"
    for name in ("johndoe", "box17", str(tmp_path), "/home", str(Path.home())):
        assert name not in text + data
    assert "wrong: failed (3)" in text and "card: stand-in" in text
    assert "Please send both in" in capsys.readouterr().out


def test_all_is_well(tool: Any, tmp_path: Path) -> None:
    tool.main(["--output", str(tmp_path)], [tool.Step("fine", ("-c", "print(1)"), 60)])
    assert (tmp_path / "gpu-report.txt").read_text().endswith("== fine\n1\n")


def test_what_it_runs_is_there(tool: Any) -> None:
    for step in tool.STEPS:
        for argument in step.arguments:
            if argument.endswith(".py"):
                assert (ROOT / argument).is_file()
    assert {step.name for step in tool.STEPS} == {"tests", "compute-sanitizer", "benchmark", "digits", "charlm"}


def test_without_a_gpu_nothing_runs(tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(kind: str) -> Any:
        raise BackendError("no driver")

    monkeypatch.setattr(tool, "gen_backend", missing)
    with pytest.raises(SystemExit, match="nothing to report: no driver"):
        tool.main(["--output", str(tmp_path / "none")])
    assert not (tmp_path / "none").exists()
