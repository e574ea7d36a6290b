"""Objects as HTML, for notebooks: a title, facts, and texts or pictures that unfold.

Every text of users is escaped, and pictures are images without scripts.
"""

from __future__ import annotations

import csv
import json
import math
from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from optree.errors import OptreeError
from optree.locks import import_later
from optree.records import NamedTuple
from optree.run.function import Function
from optree.tree.node import OpTreeNode, post_order
from optree.tree.tensor import Tensor
from optree.tree.types import TensorType
from optree.tree.variable import Variable

#: The maximum operations of a tree that is drawn, lines of a text, and points of a curve.
DRAWN, LINES, POINTS = 40, 400, 400

#: The width and height of a curve, in pixels.
WIDTH, HEIGHT = 320, 90


class Card(NamedTuple):
    """The parts of an object's HTML.

    Attributes
    ----------
    title : str
    facts : dict
        Rows of a table: their names and values, as text.
    parts : list of tuple
        For each part that unfolds: its heading, its HTML, and whether it is unfolded at first.
    """

    title: str
    facts: dict[str, Any]
    parts: Sequence[tuple[str, str, bool]] = ()


def html(x: Any) -> str:
    """The HTML of an object of a class in `CARDS`, or of a subclass."""
    title, facts, parts = next(CARDS[kind.__name__] for kind in type(x).__mro__ if kind.__name__ in CARDS)(x)
    cell = '<td style="text-align:left;white-space:pre-wrap">'
    rows = "".join(f"<tr>{cell}{escape(name)}</td>{cell}{escape(str(fact))}</td></tr>" for name, fact in facts.items())
    folds = "".join(
        f"<details{' open' * is_open}><summary>{escape(heading)}</summary>{content}</details>"
        for heading, content, is_open in parts
    )
    return f"<div><b>{escape(title)}</b><table>{rows}</table>{folds}</div>"


def _text(text: str) -> str:
    lines = text.splitlines()
    more = [f"... and {len(lines) - LINES} more lines"] * (len(lines) > LINES)
    return f"<pre>{escape(chr(10).join([*lines[:LINES], *more]))}</pre>"


def _picture(svg: Callable[[], str]) -> str | None:
    """An image of a picture; None if the packages that draw it are not installed, or it is too large."""
    try:
        data = b64encode(svg().encode()).decode()
    except (ImportError, OptreeError):
        return None
    return f'<img src="data:image/svg+xml;base64,{data}">'


def _bytes(size: float) -> str:
    unit = min(int(math.log2(size or 1)) // 10, 3)
    return f"{size / 1024**unit:.4g} {('bytes', 'KiB', 'MiB', 'GiB')[unit]}"


def _described(x: Variable) -> str:
    return f"{x.label}: {x.type}"


def _variable(x: Variable) -> Card:
    return Card(x.label, {"type": x.type})


def _tensor(x: Tensor) -> Card:
    facts = {"shape": x.shape, "dtype": x.dtype, "memory": _bytes(x.nbytes), "backend": x.backend.name}
    if x.base is not None:
        facts["view of"] = x.base.label
    return Card(x.name or "tensor", facts, [("values", _text(str(x)), True)])


def _tree(x: OpTreeNode) -> Card:
    count = sum(isinstance(v, OpTreeNode) for v in post_order([x], lambda v: getattr(v, "inputs", ())))
    facts = {"type": x.type, "operations": count, "backend": getattr(x.backend, "name", "none yet")}
    drawn = _picture(lambda: import_later("optree.pictures").draw(x).svg()) if count <= DRAWN else None
    text = ("operations", _text(x.pp()), drawn is None and count <= DRAWN)
    return Card(f"tree of {x.label}", facts, [text] if drawn is None else [("picture", drawn, True), text])


def _function(x: Function) -> Card:
    facts = {
        "inputs": "\n".join(map(_described, x.inputs)) or "none",
        "outputs": "\n".join(map(_described, x.outputs)) or "none",
        "updates": "\n".join(_described(target) for target, _ in x.updates) or "none",
    }
    if x.backend is None or x.mode.kind != "default":
        return Card(str(x), {**facts, "runs": f"op by op, in mode {x.mode.kind!r}"})
    steps = x.planned()
    kernels = sum(step.kind == "kernel" for step in steps.steps)
    facts["runs"] = f"{kernels} kernels and {len(steps.steps) - kernels} calls on {x.backend.name}"
    types = [each.type for each in x.inputs]
    if all(isinstance(type, TensorType) and None not in type.shape for type in types):
        memory = x.memory(*(np.empty(type.shape, type.dtype) for type in types))
        facts["memory"] = f"{_bytes(memory.tensors)} in tensors and arguments, {_bytes(memory.peak)} at the peak"
    listing = import_later("optree.run.function").debugprint(x, "str", stage="fusion")
    return Card(str(x), facts, [("kernels and calls", _text(listing), False)])


def _printed(x: Any) -> Card:
    return Card(type(x).__name__, {}, [("table", _text(str(x)), True)])


def _step_profile(x: Any) -> Card:
    drawn = _picture(lambda: import_later("optree.train.pictures").roofline(x).svg())
    picture = [] if drawn is None else [("roofline and times", drawn, True)]
    return Card(repr(x), {}, [*picture, ("table", _text(str(x)), drawn is None)])


def _optimizer(x: Any) -> Card:
    step = x.step.item()

    def shown(value: Any) -> str:
        if isinstance(value, Variable):
            return value.label
        return f"{value(step):.4g} (a schedule)" if callable(value) else str(value)

    facts = {"steps": step, "state": f"{len(x.state)} tensors, {_bytes(sum(t.nbytes for t in x.state.values()))}"}
    for number, numbers in enumerate(x._groups):
        members = [name for unit in x._units if unit.group == number for name in unit.names]
        given = ", ".join(f"{name}={shown(value)}" for name, value in numbers._given.items())
        facts[f"group {number}"] = f"{given}\n{', '.join(members)}"
    return Card(repr(x), facts)


def _batches(x: Any) -> Card:
    facts = {
        "examples": x.count,
        "batches": f"{len(x)} of {x.size}",
        "next": f"batch {x.position} of epoch {x.epoch}",
        "order": f"shuffled by seed {x.seed}" if x._shuffle else "as given",
    }
    return Card("Batches", {**facts, "arrives": "as NumPy arrays" if x._backend is None else f"on {x._backend.name}"})


def _log(x: Any) -> Card:
    x.flush()
    parts = []
    for path in x.paths:
        rows = _rows(path)
        for name in dict.fromkeys(name for row in rows for name in row if name not in ("step", "time")):
            points = [(_number(row.get("step")), _number(row.get(name))) for row in rows]
            points = [point for point in points if all(map(math.isfinite, point))]
            if len(points) > 1:
                parts.append((f"{name}: {points[-1][1]:.6g} at step {points[-1][0]:.6g}", _curve(points), True))
    return Card("Log", {"files": "\n".join(map(str, x.paths))}, parts)


def _rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a log; none of a TensorBoard folder."""
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [*csv.DictReader(file)] if path.suffix == ".csv" else [json.loads(line) for line in file]


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def _curve(points: Sequence[tuple[float, float]]) -> str:
    """A line through points, and the bounds of its values."""
    points = [*points[:: -(-len(points) // POINTS)], points[-1]]
    x, y = zip(*points, strict=True)

    def scaled(values: Iterable[float], low: float, high: float, size: int) -> list[float]:
        return [4 + (size - 8) * ((v - low) / (high - low) if high > low else 0.5) for v in values]

    across, up = scaled(x, min(x), max(x), WIDTH), scaled(y, min(y), max(y), HEIGHT)
    line = " ".join(f"{a:.1f},{HEIGHT - b:.1f}" for a, b in zip(across, up, strict=True))
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}" role="img"><polyline points="{line}" fill="none" stroke="#08519c"/>'
        f"</svg> {min(y):.4g} to {max(y):.4g}"
    )


#: Functions to the card of an object, by the name of its class: most classes are in modules that few programs import.
CARDS: dict[str, Callable[[Any], Card]] = {
    "Variable": _variable,
    "Tensor": _tensor,
    "OpTreeNode": _tree,
    "Function": _function,
    "Profile": _printed,
    "MemoryReport": _printed,
    "StepProfile": _step_profile,
    "Optimizer": _optimizer,
    "Batches": _batches,
    "Log": _log,
}
