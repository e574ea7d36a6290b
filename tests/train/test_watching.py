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
    with Log(rows) as log:
        log(5, rate=0.5, loss=2.0)  # in another order
        with pytest.raises(OperandError, match="columns step, loss, rate, and a row step, loss"):
            log(6, loss=1.0)
        with pytest.raises(OperandError, match="loss is a number or a tensor of one element, not"):
            log(6, loss=be.ones(2), rate=0.5)
        log(6, loss=3.0, rate=0.25)
    assert rows.read_text().split()[-2:] == ["5,2.0,0.5", "6,3.0,0.25"]


def test_a_log_goes_on_after_the_step_of_a_checkpoint(tmp_path: Path) -> None:
    """Later rows of a run that was killed, and a last line that is half there, are taken out."""
    lines, rows, board = tmp_path / "run.jsonl", tmp_path / "run.csv", tmp_path / "board"
    with Log(lines, rows) as log:
        for step in range(1, 6):
            log(step, loss=step / 2)
    lines.write_text(lines.read_text()[:-5])
    rows.write_bytes(rows.read_bytes() + b"6,3")
    whole = [json.loads(line)["step"] for line in lines.read_text().splitlines()[:4]]
    assert whole == [1, 2, 3, 4]
    with Log(lines, rows, done=3) as log:
        log(4, loss=7.0)
    assert [(x["step"], x["loss"]) for x in map(json.loads, lines.read_text().splitlines())] == [
        (1, 0.5),
        (2, 1.0),
        (3, 1.5),
        (4, 7.0),
    ]
    assert rows.read_text().split() == ["step,loss", "1,0.5", "2,1.0", "3,1.5", "4,7.0"]
    rows.write_text("ste")
    with Log(rows) as log:
        log(1, loss=1.0)
    assert rows.read_text().split() == ["step,loss", "1,1.0"] and sorted(x.name for x in tmp_path.iterdir()) == [
        "run.csv",
        "run.jsonl",
    ]
    pytest.importorskip("tensorboardX")
    for done in (None, 3):
        with Log(board, done=done) as log:
            log(4, loss=1.0)


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
    with pytest.raises(OperandError, match="loss is a number or a tensor of one element, not"):
        log(1, loss=be.ones(3))
    with pytest.raises(OperandError, match="none is 'step'"):
        log(2)
    with pytest.raises(ParameterError):
        Log()
