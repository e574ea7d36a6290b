"""Objects as HTML, for notebooks: a title, facts, and texts or pictures that unfold.

Every text of users is escaped, and pictures are images without scripts.
"""

from __future__ import annotations

import csv
import json
import math
from base64 import b64encode
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from optree.errors import OptreeError
from optree.locks import import_later
from optree.run.function import Function, debugprint
from optree.run.memory import size_text
from optree.tree.node import OpTreeNode, post_order
from optree.tree.tensor import Tensor
from optree.tree.types import TensorType
from optree.tree.variable import Variable

#: The maximum operations of a tree that is drawn, lines of a text, and points of a curve.
DRAWN, LINES, POINTS = 40, 400, 400

#: The width and height of a curve, in pixels.
WIDTH, HEIGHT = 320, 90


#: A title, facts by name, and parts that unfold: their headings, their HTML, and whether they are unfolded at first.
Card = tuple[str, dict[str, Any], Sequence[tuple[str, str, bool]]]


def html(x: object) -> str:
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
    return f'<pre style="font-family: monospace">{escape(chr(10).join([*lines[:LINES], *more]))}</pre>'


def _picture(svg: Callable[[], str]) -> str | None:
    """An image of a picture; None if the packages that draw it are not installed, or it is too large."""
    try:
        data = b64encode(svg().encode()).decode()
    except (ImportError, OptreeError):
        return None
    return f'<img src="data:image/svg+xml;base64,{data}">'


def _described(x: Variable) -> str:
    return f"{x.label}: {x.type}"


def _tensor(x: Tensor) -> Card:
    facts = {"shape": x.shape, "dtype": x.dtype, "memory": size_text(x.nbytes), "backend": x.backend.name}
    if x.base is not None:
        facts["view of"] = x.base.label
    return x.name or "tensor", facts, [("values", _text(str(x)), True)]


def _tree(x: OpTreeNode) -> Card:
    count = sum(isinstance(v, OpTreeNode) for v in post_order([x], lambda v: getattr(v, "inputs", ())))
    facts = {"type": x.type, "operations": count, "backend": getattr(x.backend, "name", "none yet")}
    drawn = _picture(lambda: import_later("optree.pictures").draw(x).svg()) if count <= DRAWN else None
    text = ("operations", _text(x.pp()), drawn is None and count <= DRAWN)
    return f"tree of {x.label}", facts, [text] if drawn is None else [("picture", drawn, True), text]


def _function(x: Function) -> Card:
    facts = {
        "inputs": "\n".join(map(_described, x.inputs)) or "none",
        "outputs": "\n".join(map(_described, x.outputs)) or "none",
        "updates": "\n".join(_described(target) for target, _ in x.updates) or "none",
    }
    if x.backend is None or x.mode.kind != "default":
        return str(x), {**facts, "runs": f"op by op, in mode {x.mode.kind!r}"}, ()
    steps = x.planned()
    kernels = sum(step.kind == "kernel" for step in steps.steps)
    facts["runs"] = f"{kernels} kernels and {len(steps.steps) - kernels} calls on {x.backend.name}"
    types = [each.type for each in x.inputs]
    if all(isinstance(type, TensorType) and None not in type.shape for type in types):
        memory = x.memory(*(np.empty(type.shape, type.dtype) for type in types))
        facts["memory"] = f"{size_text(memory.tensors)} in tensors and arguments, {size_text(memory.peak)} at the peak"
    return str(x), facts, [("kernels and calls", _text(debugprint(x, "str", stage="fusion")), False)]


def _printed(x: object) -> Card:
    return repr(x), {}, [("table", _text(str(x)), True)]


def _profile(x: object) -> Card:
    drawn = _picture(lambda: import_later("optree.train.pictures").roofline(x).svg())
    title, facts, table = _printed(x)
    return title, facts, table if drawn is None else [("roofline and times", drawn, True), *table]


def _optimizer(x: Any) -> Card:
    step = x.step.item()

    def shown(value: object) -> str:
        if isinstance(value, Variable):
            return value.label
        return f"{value(step):.4g} (a schedule)" if callable(value) else str(value)

    facts = {"steps": step, "state": f"{len(x.state)} tensors, {size_text(sum(t.nbytes for t in x.state.values()))}"}
    for number, numbers in enumerate(x._groups):
        members = [name for unit in x._units if unit.group == number for name in unit.names]
        given = ", ".join(f"{name}={shown(value)}" for name, value in numbers._given.items())
        facts[f"group {number}"] = f"{given}\n{', '.join(members)}"
    return repr(x), facts, ()


def _batches(x: Any) -> Card:
    order = f"shuffled by seed {x.seed}" if x._shuffle else "as given"
    return repr(x), {"batches": len(x), "order": order, "on": "the host" if x._backend is None else x._backend.name}, ()


def _log(x: Any) -> Card:
    x.flush()
    curves = []
    for row_of in map(_rows, x.paths):
        for name in dict.fromkeys(name for row in row_of for name in row if name not in ("step", "time")):
            points = np.array([(_number(row.get("step")), _number(row.get(name))) for row in row_of])
            points = points[np.isfinite(points).all(axis=1)]
            if len(points) > 1:
                curves.append((f"{name}: {points[-1, 1]:.6g} at step {points[-1, 0]:.6g}", _curve(points), True))
    return "Log", {"files": "\n".join(map(str, x.paths))}, curves


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


def _curve(points: np.ndarray) -> str:
    """A line through points, and the bounds of its values."""
    points = np.concatenate([points[:: -(-len(points) // POINTS)], points[-1:]])
    low, high = points.min(axis=0), points.max(axis=0)
    at = (points - low) / np.where(high > low, high - low, 1)
    line = " ".join(f"{4 + (WIDTH - 8) * x:.1f},{HEIGHT - 4 - (HEIGHT - 8) * y:.1f}" for x, y in at)
    picture = f'<polyline points="{line}" fill="none" stroke="#08519c"/>'
    return f'<svg width="{WIDTH}" height="{HEIGHT}" role="img">{picture}</svg> {low[1]:.4g} to {high[1]:.4g}'


#: Functions to the card of an object, by the name of its class: most classes are in modules that few programs import.
CARDS: dict[str, Callable[[Any], Card]] = {
    "Variable": lambda x: (x.label, {"type": x.type}, ()),
    "Tensor": _tensor,
    "OpTreeNode": _tree,
    "Function": _function,
    "MemoryReport": _printed,
    "Profile": _profile,
    "Optimizer": _optimizer,
    "Batches": _batches,
    "Log": _log,
}
