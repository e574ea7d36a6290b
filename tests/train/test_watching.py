"""Bars and logs: what they write, when they look at tensors, and that a run goes on in the same files."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from backends import gen_backend
from optree.errors import OperandError, ParameterError
from optree.train import Bar, Log, WatchError

be = gen_backend("cpu")


class Late:
    """A tensor's stand-in that tells when it is looked at."""

    looks = 0

    def item(self) -> float:
        Late.looks += 1
        return 2.0


def test_logs_are_lines_and_rows_and_go_on(tmp_path: Path) -> None:
    lines, rows = tmp_path / "a" / "run.jsonl", tmp_path / "run.csv"
    for first in (1, 3):
        with Log(lines, rows, every=10) as log:
            for step in (first, first + 1):
                log(step, loss=be.array(1.5), rate=float("nan"))
    found = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [(x["step"], x["loss"], x["rate"]) for x in found] == [(i, 1.5, "nan") for i in range(1, 5)]
    assert all(x["time"] > 1e9 for x in found)
    with rows.open() as file:
        assert list(csv.reader(file)) == [["step", "loss", "rate"], *[[str(i), "1.5", "nan"] for i in range(1, 5)]]
    with pytest.raises(OperandError, match="columns step, loss, rate, and a row step, loss"), Log(rows) as log:
        log(5, loss=1.0)


def test_tensors_are_looked_at_late(tmp_path: Path) -> None:
    Late.looks = 0
    log = Log(tmp_path / "run.jsonl", every=3)
    log(1, x=Late())
    log(2, x=Late())
    assert Late.looks == 0
    log(3, x=Late())
    assert Late.looks == 3
    log(4, x=Late())
    log.close()
    assert Late.looks == 4 and len((tmp_path / "run.jsonl").read_text().splitlines()) == 4


def test_tensorboard_reads_a_folder(tmp_path: Path, monkeypatch: Any) -> None:
    pytest.importorskip("tensorboardX")
    with Log(tmp_path / "board") as log:
        log(1, loss=0.25)
    (event,) = (tmp_path / "board").iterdir()
    assert b"loss" in event.read_bytes()
    for name in ("tensorboardX", "torch", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(WatchError, match="pip install tensorboardX"):
        Log(tmp_path / "other")


def test_a_bar_shows_numbers_and_examples_a_second() -> None:
    text = io.StringIO()
    with Bar(4, done=2, file=text, disable=False, mininterval=0) as bar:
        bar(examples=64, loss=be.array(0.125))
        bar.line("in between")
        bar(examples=64, loss=0.0625)
    drawn = text.getvalue()
    assert "loss=0.125" in drawn and "loss=0.0625" in drawn and "examples/s=" in drawn and "4/4" in drawn
    assert "in between\n" in drawn


def test_a_bar_looks_at_few_tensors_and_at_none_without_a_terminal(capsys: Any) -> None:
    Late.looks = 0
    with Bar(1000, file=io.StringIO(), disable=False, mininterval=1000) as bar:
        for _ in range(1000):
            bar(loss=Late())
    assert Late.looks <= 2
    with Bar(10) as bar:
        bar(loss=Late())
        assert not bar.is_drawn
        bar.line("a line of the log")
    assert Late.looks <= 2
    assert capsys.readouterr().err == "a line of the log\n"


@pytest.mark.parametrize("target", ["run.txt", "run.json"])
def test_other_files_are_refused(tmp_path: Path, target: str) -> None:
    with pytest.raises(ParameterError, match=r"no \.jsonl or \.csv file"):
        Log(tmp_path / target)


def test_what_is_no_number_is_refused(tmp_path: Path) -> None:
    log = Log(tmp_path / "run.csv", every=1)
    with pytest.raises(OperandError, match="of one element is watched"):
        log(1, loss=be.ones(3))
    with pytest.raises(OperandError, match="none is 'step'"):
        log(2)
    with pytest.raises(ParameterError):
        Log()
