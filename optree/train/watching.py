"""Progress bars and logs. Values of tensors are read late, so that no step waits for the device.

The bar needs the package tqdm, and a folder for TensorBoard tensorboardX or tensorboard (extras ``train``,
``tensorboard``).
"""

from __future__ import annotations

import csv
import json
import math
import sys
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any

from tqdm import tqdm

from optree.errors import OperandError, OptreeError, ParameterError, brief
from optree.train.files import replacing
from optree.tree.printing import as_html
from optree.tree.variable import Operand

#: The modules that write TensorBoard files and their writer class, in order of preference.
WRITERS = (("tensorboardX", "SummaryWriter"), ("torch.utils.tensorboard", "SummaryWriter"))

#: A function that writes the values of one step.
Writer = Callable[[Mapping[str, Any]], None]


class WatchError(OptreeError, ImportError):
    """Raised if a package is missing."""


class Log:
    """A log of numbers of each step, written to files. A notebook displays its curves.

    Calls are buffered. After every `every` calls, and at the end, values of tensors are read and lines are written. If
    the process is killed, buffered lines are lost.

    Parameters
    ----------
    *targets : str or Path
        A ``.jsonl`` file gets a line of JSON for each step, a ``.csv`` file a row, and a folder gets TensorBoard event
        files. Existing files are appended to; an incomplete last line is removed.
    every : int
        The number of calls between two writes.
    done : int, optional
        The step of the checkpoint from which a run is resumed. Lines of later steps are removed, because these steps
        are taken again.

    Raises
    ------
    ParameterError
        If a file has another suffix.
    WatchError
        If a folder is given, and no package that writes TensorBoard files is installed.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "run.csv"
    >>> with Log(path) as log:
    ...     log(1, loss=0.5, rate=0.1)
    ...     log(2, loss=0.25, rate=0.1)
    >>> print(path.read_text().replace(chr(13), ""), end="")
    step,loss,rate
    1,0.5,0.1
    2,0.25,0.1
    """

    def __init__(self, *targets: str | Path, every: int = 50, done: int | None = None) -> None:
        if every < 1 or not targets:
            raise ParameterError("Log: it writes to a file or a folder, after each 1 call or more")
        self._every, self._done = every, done
        self.paths = [Path(target) for target in targets]
        self._waiting: list[dict[str, Any]] = []
        self._columns: dict[Path, list[str]] = {}  # of each .csv file; none before its first row
        self._closing: list[Callable[[], None]] = []
        self._writers = [self._writer(path) for path in self.paths]

    def __call__(self, step: int, **values: Any) -> None:
        """Log the values of a step: numbers, or tensors or trees of one element."""
        if "step" in values or not values:
            raise OperandError("Log: a step has numbers with names, of which none is 'step'")
        row = {"step": step, **values}
        for name, value in values.items():
            _check_number(name, value)
        for path, columns in self._columns.items():
            columns += [] if columns else row
            if columns and row.keys() != set(columns):
                raise OperandError(f"Log: {path} has the columns {', '.join(columns)}, and a row {', '.join(row)}")
        self._waiting.append(row)
        if len(self._waiting) >= self._every:
            self.flush()

    def __repr__(self) -> str:
        return f"Log({', '.join(map(str, self.paths))})"

    _repr_html_ = as_html

    def flush(self) -> None:
        """Write the buffered lines; waits for the device."""
        waiting, self._waiting = self._waiting, []
        for row in waiting:
            plain = {name: value if name == "step" else number_of(value) for name, value in row.items()}
            for write in self._writers:
                write(plain)

    def close(self) -> None:
        """Write the buffered lines and close the files."""
        try:
            self.flush()
        finally:
            for close in self._closing:
                close()
            self._closing, self._writers = [], []

    def __enter__(self) -> Log:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: TracebackType | None) -> None:
        self.close()

    def _writer(self, path: Path) -> Writer:
        if path.suffix == ".jsonl":
            return self._json(path)
        if path.suffix == ".csv":
            return self._csv(path)
        if path.suffix:
            raise ParameterError(f"Log: {path} is no .jsonl or .csv file, nor a folder for TensorBoard")
        return self._tensorboard(path)

    def _opened(self, path: Path, step_of: Callable[[str], Any]) -> Any:
        """Open a file to append to, after removing incomplete lines and those of repeated steps."""
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            with path.open(newline="", encoding="utf-8") as before:
                lines = before.readlines()
            kept = [line for line in lines if line.endswith("\n") and not self._is_taken_again(line, step_of)]
            if len(kept) < len(lines):
                with replacing(path) as shorter:
                    shorter.write("".join(kept).encode())
        file = path.open("a", newline="", encoding="utf-8")
        self._closing.append(file.close)
        return file

    def _is_taken_again(self, line: str, step_of: Callable[[str], Any]) -> bool:
        if self._done is None:
            return False
        try:
            return float(step_of(line)) > self._done
        except (ValueError, LookupError, TypeError):  # a header, or a line that `Log` has not written
            return False

    def _json(self, path: Path) -> Writer:
        file = self._opened(path, lambda line: json.loads(line)["step"])

        def write(row: Mapping[str, Any]) -> None:
            # JSON has no nan or infinity, so they are written as strings.
            safe = {k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
            file.write(json.dumps({**safe, "time": round(time.time(), 3)}) + "\n")
            file.flush()

        return write

    def _csv(self, path: Path) -> Writer:
        file = self._opened(path, lambda line: next(csv.reader([line]))[0])
        with path.open(newline="", encoding="utf-8") as before:
            known = self._columns[path] = next(csv.reader(before), [])
        is_new, rows = not known, csv.writer(file)

        def write(row: Mapping[str, Any]) -> None:
            nonlocal is_new
            if is_new:
                rows.writerow(known)
            is_new = False
            rows.writerow([row[name] for name in known])
            file.flush()

        return write

    def _tensorboard(self, path: Path) -> Writer:
        for module, name in WRITERS:
            try:
                purge = None if self._done is None else self._done + 1
                writer = getattr(import_module(module), name)(str(path), purge_step=purge)
            except ImportError:
                continue
            self._closing.append(writer.close)

            def write(row: Mapping[str, Any], writer: Any = writer) -> None:
                for key, value in row.items():
                    if key != "step":
                        writer.add_scalar(key, value, row["step"])

            return write
        raise WatchError(f"Log: {path} is for TensorBoard, and nothing writes for it: pip install tensorboardX")


class Bar:
    """A progress bar with the latest numbers and the examples per second.

    Values are read when the bar is drawn, a few times a second at most. Without a terminal no bar is drawn; `line`
    prints in both cases.

    Parameters
    ----------
    total : int
        The number of steps.
    done : int
        The number of them that an earlier run has taken.
    **options
        Those of `tqdm.tqdm`.

    Examples
    --------
    >>> with Bar(10) as bar:
    ...     bar(loss=0.5, examples=64)
    """

    def __init__(self, total: int, done: int = 0, **options: Any) -> None:
        given = {"unit": "step", "disable": None, "dynamic_ncols": True, **options}
        self._file = given.get("file") or sys.stderr
        self._bar = tqdm(total=total, initial=done, **given)
        self._examples, self._start, self._shown = 0, time.monotonic(), 0.0

    @property
    def is_drawn(self) -> bool:
        """Whether there is a terminal to draw it on."""
        return not self._bar.disable

    def __call__(self, examples: int = 0, **values: Any) -> None:
        """Count a step, with its number of examples."""
        self._examples += examples
        now = time.monotonic()
        if self.is_drawn and (now - self._shown >= self._bar.mininterval or self._bar.n + 1 == self._bar.total):
            self._shown = now
            shown = {name: f"{number_of(value):.4g}" for name, value in values.items()}
            if self._examples:
                shown["examples/s"] = f"{self._examples / max(now - self._start, 1e-9):.4g}"
            self._bar.set_postfix(shown, refresh=False)
        self._bar.update()

    def line(self, text: str) -> None:
        """Print a line above the bar, or to the same stream if there is no bar."""
        self._bar.write(text, file=self._file)

    def close(self) -> None:
        """Close the bar."""
        self._bar.close()

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: TracebackType | None) -> None:
        self.close()


def _check_number(name: str, value: Operand) -> None:
    """Raise an error for a value that is no number, without reading a tensor."""
    is_one = getattr(value, "size", 1) == 1 and hasattr(value, "item")
    if not (isinstance(value, bool | int | float | str) or is_one):
        raise OperandError(f"Log: {name} is a number or a tensor of one element, not {brief(value)}")


def number_of(value: Any) -> Any:
    """The Python number of a number, or of a tensor or array of one element.

    Raises
    ------
    OperandError
        If `value` is no number and has not one element.
    """
    if isinstance(value, bool | int | float | str):
        return value
    try:
        return value.item()
    except (AttributeError, TypeError, ValueError) as error:
        raise OperandError(f"a number or a tensor of one element is watched, not {brief(value)}") from error
