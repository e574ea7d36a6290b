"""The report of who has a GPU: it is written part by part, goes on where it ended, and has no names and no paths."""

from __future__ import annotations

import faulthandler
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return pytest.importorskip("gpu_report")


def test_what_is_written(tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(tool, "own_names", lambda: ["johndoe", "box17"])
    junit = (
        "<testsuite><testcase name='right'/><testcase name='wrong'><failure message='in /home/johndoe/x.py'/>"
        "</testcase><testcase name='left'><skipped message='no card'/></testcase></testsuite>"
    )
    skipped = "<testsuite><testcase name='left'><skipped message='no tool'/></testcase></testsuite>"
    facts = """import sys; open(sys.argv[1] + '/part.json', 'w').write('{"card": "new"}')"""
    steps = [
        tool.Step("environment", ("-c", facts, "{folder}"), 60, tool.part_of),
        tool.Step("fine", ("-c", "print('at /home/johndoe/op-tree/a.py:3 on box17, by johndoe: 1/2 of 3.5')"), 60),
        tool.Step("wrong", ("-c", "import sys; print('so far'); sys.exit(3)"), 60),
        tool.Step("long", ("-uc", "import time; print('begun'); time.sleep(60)"), 2),
        tool.Step(
            "tests",
            ("-c", f"import sys; open(sys.argv[1] + '/tests.xml', 'w').write({junit!r})", "{folder}"),
            60,
            tool.tests_of,
        ),
        tool.Step("none", ("-c", ""), 60, tool.part_of),
        tool.Step(
            "left out",
            ("-c", f"import sys; open(sys.argv[1] + '/tests.xml', 'w').write({skipped!r})", "{folder}"),
            60,
            tool.tests_of,
        ),
    ]
    with pytest.raises(SystemExit, match="something went wrong"):
        tool.main(["--output", str(tmp_path / "found")], steps)
    text, data = ((tmp_path / "found" / f"gpu-report.{kind}").read_text() for kind in ("txt", "json"))
    found = json.loads(data)
    assert [each["status"] for each in found["outcomes"]] == [
        *("passed", "passed", "failed (3)", "out of time (2 s)", "passed", "passed", "skipped")
    ]
    assert [each["said"] for each in found["outcomes"][1:4]] == [
        *(["at a.py:3 on ..., by ...: 1/2 of 3.5"], ["so far"], ["begun"])
    ]
    assert found["outcomes"][4]["found"] == {
        "passed": 1,
        "failed": {"wrong": ["in x.py"]},
        "skipped": {"left": ["no card"]},
    }
    assert found["outcomes"][5]["found"] is None and found["facts"]["card"] == "new"
    for name in ("johndoe", "box17", str(tmp_path), "/home", str(Path.home())):
        assert name not in text + data
    assert "wrong: failed (3)" in text and "card: new" in text
    assert "Please send both in" in capsys.readouterr().out


def test_a_run_that_was_stopped_goes_on(tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are written before it is stopped; parts that passed are not run again, unless that is asked for."""
    steps = [tool.Step(name, ("-c", f"import sys; sys.exit({name == 'b'})"), 60) for name in "abc"]
    run, ran, real = lambda *more: tool.main(["--output", str(tmp_path), *more], steps), list[str](), tool.outcome_of

    def outcome_of(step: Any, *rest: Any) -> Any:
        ran.append(step.name)
        if ran == ["a", "b", "c"]:
            raise KeyboardInterrupt
        return real(step, *rest)

    monkeypatch.setattr(tool, "outcome_of", outcome_of)
    with pytest.raises(KeyboardInterrupt):
        run()
    found = json.loads((tmp_path / "gpu-report.json").read_text())
    assert [each["status"] for each in found["outcomes"]] == ["passed", "failed (1)", "not run"]
    for more, wanted in (((), "bc"), ((), "b"), (("--again",), "abc"), (("--again", "--seconds", "0"), "")):
        ran.clear()
        ran.append("")
        with pytest.raises(SystemExit, match="goes on"):
            run(*more)
        assert "".join(ran) == wanted


def test_without_a_gpu_there_is_nothing_to_report(tool: Any, tmp_path: Path) -> None:
    steps = [tool.Step("environment", ("-c", "import sys; sys.exit('no driver')"), 60), *tool.STEPS[1:]]
    with pytest.raises(SystemExit, match="nothing to report: no driver"):
        tool.main(["--output", str(tmp_path / "none")], steps)
    assert not (tmp_path / "none").exists()


def test_what_it_runs_is_there_and_takes_ten_minutes(tool: Any) -> None:
    for step in tool.STEPS:
        assert all((ROOT / each).exists() for each in step.arguments if each.endswith(".py"))
    names = [step.name for step in tool.STEPS]
    assert len(names) == len({*names}) and {*tool.TOOLS, *tool.EXAMPLES} < {*names}
    assert tool.LIMIT == 600 and all(step.limit <= tool.LIMIT / 4 for step in tool.STEPS)


@pytest.mark.timeout(3000)
def test_a_whole_report_on_simulated_devices(tool: Any, real: Any, tmp_path: Path, request: Any) -> None:
    """By make test-rig: all parts pass but the sanitizers', which have nothing to look at."""
    if not request.config.option.rig:
        pytest.skip("make gpu-report runs it on a device")
    faulthandler.cancel_dump_traceback_later()  # pytest's, which ends the process before this test's own limit
    with suppress(SystemExit):
        tool.main(["--rig", "--seconds", "3000", "--output", str(tmp_path)])
    found = json.loads((tmp_path / "gpu-report.json").read_text())
    assert found["facts"]["simulated"] and found["facts"]["card"] == "simulated device"
    assert {each["name"]: each["status"] for each in found["outcomes"]} == {
        step.name: "skipped" if step.name in tool.TOOLS else "passed" for step in tool.STEPS
    }
