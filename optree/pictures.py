"""Pictures of trees: boxes in layers, the root on top.

It needs the packages of the ``examples`` extra, so `optree` itself does not import it.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl
from grandalf.graphs import Edge, Vertex, graph_core
from grandalf.layouts import SugiyamaLayout, VertexViewer
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, PathPatch
from matplotlib.path import Path as Curve

from optree.errors import OperandError, OptreeError
from optree.op.traits import ElementwiseOperator, ReductionOperator
from optree.tree.node import OpTreeNode, post_order
from optree.tree.tensor import Tensor
from optree.tree.variable import Constant, Operand, Variable

#: The maximum boxes of a picture; larger trees are refused.
LIMIT = 600

#: The maximum bends of all edges. An edge has one at each layer that it crosses, and the layout's time grows with
#: them. Beyond the maximum, the longest edges are drawn straight.
BENDS = 1500

#: The maximum characters of a line in a box.
TEXT_LENGTH = 28

# In points. A character of DejaVu Sans Mono, which Matplotlib brings, is 0.602 of its size wide.
CHARACTER, LINE, MARGIN = 0.602, 1.25, 7.0
NAME_SIZE, TYPE_SIZE, TITLE_SIZE = 9.0, 6.5, 11.0

#: Reproducible files, with text as text, in the font that the boxes' widths are computed for.
STYLE = {"svg.hashsalt": "op-tree", "svg.fonttype": "none", "font.monospace": ["DejaVu Sans Mono"]}

#: The maximum pixels of a side; the resolution of a larger picture is lowered.
PIXELS, DPI = 8_000, 150

COLORS = {"elementwise": "#dbe9f6", "reduction": "#fde3c8", "other": "#dcefdc", "leaf": "#ffffff", "number": "#f2f2f2"}


class PictureError(OptreeError, ValueError):
    """Raised if a tree is too large to be drawn."""


class Picture:
    """A drawn tree, which a notebook displays.

    Attributes
    ----------
    figure : matplotlib.figure.Figure
    """

    def __init__(self, figure: Figure) -> None:
        self.figure = figure

    def save(self, path: str | Path) -> Path:
        """Write the picture in the format that the file's suffix names (svg, png, pdf); returns the path."""
        path = Path(path)
        _write(self.figure, path, path.suffix.lstrip(".") or "svg")
        return path

    def svg(self) -> str:
        """The picture as the text of an SVG file; the same tree gives the same text."""
        text = io.BytesIO()
        _write(self.figure, text, "svg")
        return text.getvalue().decode()

    def _repr_svg_(self) -> str:
        return self.svg()

    def __repr__(self) -> str:
        width, height = self.figure.get_size_inches() * 72
        return f"Picture({width:.0f} x {height:.0f} points)"


def draw(tree: Variable, title: str | None = None, limit: int = LIMIT) -> Picture:
    """A picture of a tree: a box for each operation and each leaf, with shape and dtype.

    A shared subtree is drawn once, with a line from each operation that takes it; a leaf is drawn beside each. Operands
    are in order from left to right; where the layout does not allow that, numbers on the lines tell their order.

    Parameters
    ----------
    tree : Variable
    title : str, optional
        Written above the tree.
    limit : int
        The maximum number of boxes.

    Raises
    ------
    PictureError
        If the tree needs more boxes than `limit`.
    OperandError
        If `tree` is no op-tree.

    Examples
    --------
    >>> x = be.ones((2, 3), name="x")
    >>> draw(x + 1).svg().count("add")
    1
    """
    if not isinstance(tree, Variable):
        raise OperandError(f"draw: a picture is of an op-tree or a tensor, not {type(tree).__name__} {tree!r}")
    boxes = _boxes(tree, limit)
    edges = _edges(boxes)
    _lay_out(boxes, edges)
    return Picture(_figure(boxes, edges, title))


@dataclass(eq=False)
class _Box:
    """An operation or a leaf on the page."""

    #: Its first line.
    name: str
    #: The smaller lines below.
    details: list[str]
    #: A key of `COLORS`.
    kind: str
    operands: list[_Box] = field(default_factory=list)
    #: The layer, the root's being 0.
    rank: int = 0
    #: The middle.
    x: float = 0.0
    y: float = 0.0

    @property
    def width(self) -> float:
        return (
            CHARACTER * max(NAME_SIZE * len(self.name), TYPE_SIZE * max(map(len, self.details), default=0)) + 2 * MARGIN
        )

    @property
    def height(self) -> float:
        return LINE * (NAME_SIZE + TYPE_SIZE * len(self.details)) + MARGIN


@dataclass(eq=False)
class _Edge:
    """A line from an operation to an operand."""

    parent: _Box
    child: _Box
    #: The operand's positions among the operation's operands, counted from 1.
    numbers: list[int]
    #: The points at which the line passes the layers between.
    bends: list[tuple[float, float]] = field(default_factory=list)


# Boxes and edges


def _boxes(tree: Variable, limit: int) -> list[_Box]:
    """The boxes of a tree, each after its operands, with their layers."""
    nodes = [v for v in post_order([tree], _operands) if isinstance(v, OpTreeNode)]
    drawn = {id(node): _operation(node) for node in nodes}
    boxes: list[_Box] = []
    for node in nodes:
        box, beside = drawn[id(node)], {}
        for operand in node.inputs:
            if id(operand) in drawn:
                box.operands.append(drawn[id(operand)])
            else:
                key = id(operand) if isinstance(operand, Variable) else (id(operand), len(box.operands))
                if key not in beside:
                    beside[key] = _leaf(operand)
                    boxes.append(beside[key])
                box.operands.append(beside[key])
        boxes.append(box)
    boxes = boxes or [_leaf(tree)]
    if len(boxes) > limit:
        raise PictureError(
            f"draw: the tree has {len(boxes)} boxes and a picture up to {limit}; "
            "draw one of its subtrees, or print tree.pp()"
        )
    for box in reversed(boxes):
        for operand in box.operands:
            operand.rank = max(operand.rank, box.rank + 1)
    return boxes


def _operands(variable: object) -> Sequence[Any]:
    return [x for x in variable.inputs if isinstance(x, OpTreeNode)] if isinstance(variable, OpTreeNode) else ()


def _operation(node: OpTreeNode) -> _Box:
    op = node.op
    kind = "other"
    if isinstance(op, ElementwiseOperator):
        kind = "elementwise"
    elif isinstance(op, ReductionOperator):
        kind = "reduction"
    props = [f"{key}={value}" for key, value in op.props.items() if value is not None]
    return _Box(_line(node.label), [*map(_line, props), _line(str(node.type))], kind)


def _leaf(operand: Operand) -> _Box:
    if not isinstance(operand, Variable) or (isinstance(operand, Constant) and operand.is_weak):
        return _Box(_line(str(operand)), [], "number")
    return _Box(_line(_name(operand)), [_line(str(operand.type))], "leaf")


def _name(leaf: Variable) -> str:
    """A leaf's name, its base's name, or its kind."""
    if isinstance(leaf, Constant):
        return leaf.label
    views = []
    while isinstance(leaf, Tensor) and leaf.name is None and leaf.base is not None:
        views.append(f"{leaf.view_op.name} of ")  # type: ignore[union-attr]
        leaf = leaf.base
    return "".join(views) + (leaf.name or type(leaf).__name__.lower())  # type: ignore[attr-defined]


def _escaped(text: str) -> str:
    """A text of printable characters, the others as Python's escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _line(text: str) -> str:
    text = _escaped(text)
    return text if len(text) <= TEXT_LENGTH else text[: TEXT_LENGTH - 1] + "…"


def _edges(boxes: Sequence[_Box]) -> list[_Edge]:
    """One edge for each operation and each box among its operands."""
    edges: list[_Edge] = []
    for box in reversed(boxes):
        found: dict[int, _Edge] = {}
        for number, operand in enumerate(box.operands, 1):
            found.setdefault(id(operand), _Edge(box, operand, [])).numbers.append(number)
        edges.extend(found.values())
    return edges


# Layout


def _lay_out(boxes: Sequence[_Box], edges: Sequence[_Edge]) -> None:
    """Set each box's position and each edge's bends."""
    vertices = {id(box): _vertex(box) for box in reversed(boxes)}
    bent = _short(edges)
    lines = [Edge(vertices[id(edge.parent)], vertices[id(edge.child)]) for edge in bent]
    layout = SugiyamaLayout(graph_core(list(vertices.values()), lines))
    layout.xspace, layout.yspace = 12, 22
    layout.init_all(roots=[vertices[id(boxes[-1])]], inverted_edges=[])
    with _recursion(len(boxes) + BENDS):
        layout.draw(3)
    for box in boxes:
        box.x, box.y = vertices[id(box)].view.xy
    for edge, line in zip(bent, lines, strict=True):
        inner = range(edge.parent.rank + 1, edge.child.rank)
        edge.bends = [layout.ctrls[line][rank].view.xy for rank in inner]


def _short(edges: Sequence[_Edge]) -> list[_Edge]:
    """The edges without the longest ones, where all would have more than `BENDS` bends."""
    chosen, bends = set(), 0
    for edge in sorted(edges, key=lambda edge: edge.child.rank - edge.parent.rank):
        bends += edge.child.rank - edge.parent.rank - 1
        # An edge left out changes no layer: a box hangs on its lowest parent by an edge of no bends.
        if bends <= BENDS:
            chosen.add(id(edge))
    return [edge for edge in edges if id(edge) in chosen]


def _vertex(box: _Box) -> Vertex:
    vertex = Vertex(box)
    vertex.view = VertexViewer(box.width, box.height)
    return vertex


@contextmanager
def _recursion(depth: int) -> Iterator[None]:
    """Raise the recursion limit for the layout, which recurses as deep as a layer is wide."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(before + depth)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


# Drawing


def _figure(boxes: Sequence[_Box], edges: Sequence[_Edge], title: str | None) -> Figure:
    """A figure as large as the boxes need, its unit one point."""
    points = [(edge.x, edge.y) for edge in boxes] + [point for edge in edges for point in edge.bends]
    half = max(box.width for box in boxes) / 2 + MARGIN
    left, right = min(x for x, _ in points) - half, max(x for x, _ in points) + half
    top = min(box.y - box.height / 2 for box in boxes) - MARGIN
    bottom = max(box.y + box.height / 2 for box in boxes) + MARGIN
    if title:
        title = _escaped(title)
        top -= 2 * TITLE_SIZE
        missing = CHARACTER * TITLE_SIZE * len(title) + 2 * MARGIN - (right - left)
        left, right = left - max(missing, 0) / 2, right + max(missing, 0) / 2
    figure = Figure(figsize=((right - left) / 72, (bottom - top) / 72), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set(xlim=(left, right), ylim=(bottom, top))
    if title:
        _write_text(axes, (left + right) / 2, top + TITLE_SIZE, title, TITLE_SIZE)
    for edge in edges:
        _draw_edge(axes, edge)
    for box in boxes:
        _draw_box(axes, box)
    return figure


def _draw_box(axes: Any, box: _Box) -> None:
    corner = box.x - box.width / 2, box.y - box.height / 2
    shape = "square,pad=0" if box.kind in ("leaf", "number") else "round,pad=0,rounding_size=4"
    color = COLORS[box.kind]
    axes.add_patch(
        FancyBboxPatch(corner, box.width, box.height, shape, facecolor=color, edgecolor="#555555", linewidth=0.7)
    )
    y = corner[1] + (MARGIN + LINE * NAME_SIZE) / 2
    _write_text(axes, box.x, y, box.name, NAME_SIZE)
    y += LINE * (NAME_SIZE - TYPE_SIZE) / 2
    for detail in box.details:
        y += LINE * TYPE_SIZE
        _write_text(axes, box.x, y, detail, TYPE_SIZE, "#555555")


def _draw_edge(axes: Any, edge: _Edge) -> None:
    """A curve from the operation's lower side to the operand's upper one, upright at each layer."""
    parent, child = edge.parent, edge.child
    start = parent.x, parent.y + parent.height / 2
    points = [start, *edge.bends, (child.x, child.y - child.height / 2)]
    path, codes = [start], [Curve.MOVETO]
    for (x0, y0), (x1, y1) in pairwise(points):
        middle = (y0 + y1) / 2
        path += [(x0, middle), (x1, middle), (x1, y1)]
        codes += [Curve.CURVE4] * 3
    axes.add_patch(PathPatch(Curve(path, codes), fill=False, edgecolor="#888888", linewidth=0.8, zorder=0))
    if len(edge.numbers) > 1 or not _is_ordered(parent):
        x, y = points[1]
        point = start[0] + 0.25 * (x - start[0]), start[1] + 0.4 * (y - start[1])
        _write_text(axes, *point, ", ".join(map(str, edge.numbers)), TYPE_SIZE, "#b03060")


def _is_ordered(box: _Box) -> bool:
    """Whether the operands are in order from left to right."""
    return all(a.x < b.x for a, b in pairwise(box.operands))


def _write_text(axes: Any, x: float, y: float, text: str, size: float, color: str = "black") -> None:
    style = {"fontsize": size, "fontfamily": "monospace", "color": color}
    axes.text(x, y, text, ha="center", va="center", parse_math=False, **style)


def _write(figure: Figure, target: Any, format: str) -> None:
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(format)
    with mpl.rc_context(STYLE):
        figure.savefig(target, format=format, dpi=min(DPI, PIXELS / max(figure.get_size_inches())), metadata=metadata)
