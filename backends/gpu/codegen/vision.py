"""CUDA of region pooling: tables of indices and weights, then a gather for each output.

A thread computes one output element, also of derivatives, and sums in a fixed order.
Indices and weights are computed in float64, as on the CPU, once for each index of an
axis instead of each element.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from backends.gpu.codegen.device_functions import QUOTIENT, TYPES, grid_stride_kernel, indices_of, offset_of

_HEAD = """{headers}typedef {type} T;
typedef {wide} A;

{quotient}
"""


def _text(type: str, *kernels: tuple[str, Sequence[str], Sequence[str]]) -> str:
    """The source of kernels, each a name, its parameters and the lines of its body."""
    headers, wide = TYPES[type]
    found = _HEAD.format(headers=headers, type=type, wide=wide, quotient=QUOTIENT.strip("\n"))
    return found + "".join("\n" + grid_stride_kernel(*kernel) for kernel in kernels)


def _words(names: Sequence[str]) -> list[str]:
    return [f"const long long {name}" for name in names]


# Regions: of N images with C channels, H rows and W columns, B boxes are divided into R by S bins

#: The numbers that kernels of regions take after their arrays.
REGION = ("total", *"BNCHWRS", "m1", "m2", "m3")

#: What a thread of the kernel ``bins`` writes of box ``at``.
_BINS = """const double *const box = boxes + at * 5;
int *const to = tables + at * (1 + 2 * ((int)R + (int)S));
const bool is_there = box[0] >= 0 && box[0] < N;
to[0] = is_there ? (int)box[0] : -1;
for (int axis = 0; axis < 2; axis++) {
    const int count = axis ? (int)S : (int)R, limit = axis ? (int)W : (int)H;
    int *const part = to + 1 + (axis ? 2 * (int)R : 0);
    const double begin = rint(box[axis ? 1 : 2] * scale), end = rint(box[axis ? 3 : 4] * scale);
    const double extent = end - begin + 1, step = (extent > 1 ? extent : 1) / count;
    for (int i = 0; i < count; i++) {
        const double from = begin + floor(i * step), until = begin + ceil((i + 1) * step);
        part[2 * i] = (int)(from < 0 ? 0 : from > limit ? limit : from);
        part[2 * i + 1] = (int)(until < 0 ? 0 : until > limit ? limit : until);
    }
}"""

_ARGMAX = """const int *const bin = tables + iN * (1 + 2 * ((int)R + (int)S));
const int image = bin[0];
const int *const rows = bin + 1 + 2 * iH, *const columns = bin + 1 + 2 * ((int)R + iW);
A best = 0;
long long found = -1;
for (int r = rows[0]; r < rows[1] && image >= 0; r++)
    for (int q = columns[0]; q < columns[1]; q++) {
        const int position = POSITION;
        const A value = (A)x[position];
        const bool is_better = found < 0 || value > best || (value != value && best == best);
        found = is_better ? position : found;
        best = is_better ? value : best;
    }
y[at] = found;"""


def argmax_roi_source(type: str, layout: str) -> str:
    """The kernels ``bins``, of each box, and ``regions``: the index of each bin's maximum, or -1 of an empty one.

    Parameters
    ----------
    layout : str
        The letters N, C, H and W in the order of the images' axes.
    """
    position = offset_of([{"N": "image", "C": "iC", "H": "r", "W": "q"}[axis] for axis in layout], layout)
    return _text(
        type,
        ("bins", ["const double *__restrict__ boxes", "int *__restrict__ tables", *_region_words()], _split(_BINS)),
        (
            "regions",
            [
                "const T *__restrict__ x",
                "long long *__restrict__ y",
                "const int *__restrict__ tables",
                *_region_words(),
            ],
            [*_region_indices(layout, "BCRS"), *_split(_ARGMAX.replace("POSITION", position))],
        ),
    )


def _region_words() -> list[str]:
    return [*_words(REGION), "const double scale"]


def _split(text: str) -> list[str]:
    return text.splitlines()


def _region_indices(layout: str, sizes: str) -> list[str]:
    """The indices of what is written along the axes N, C, H and W, which have some sizes, in the order of a layout."""
    size_of = dict(zip("NCHW", sizes, strict=True))
    lines = indices_of([size_of[axis] for axis in layout])
    return [*lines, *(f"const int i{axis} = i{n};" for n, axis in enumerate(layout))]


#: The points of box ``at``: its image, the least and the largest element along rows and columns, then of each point the
#: element before it, or -1 if it is beyond the image; and in ``weights`` the weight of the next one.
_POINTS = """const double *const box = boxes + at * 5;
int *const to = tables + at * (5 + SAMPLES * ((int)R + (int)S));
A *const part = weights + at * (SAMPLES * ((int)R + (int)S));
const bool is_there = box[0] >= 0 && box[0] < N;
to[0] = is_there ? (int)box[0] : -1;
int number = 0;
for (int axis = 0; axis < 2; axis++) {
    const int count = SAMPLES * (axis ? (int)S : (int)R), limit = axis ? (int)W : (int)H;
    const double begin = box[axis ? 1 : 2] * scale - OFFSET, end = box[axis ? 3 : 4] * scale - OFFSET;
    const double extent = EXTENT;
    int least = limit, largest = -1;
    for (int i = 0; i < count; i++, number++) {
        double point = begin + extent * (i + 0.5) / count;
        const bool is_inside = point >= -1.0 && point <= limit;
        point = !(point > 0) ? 0 : point < limit - 1.0 ? point : limit - 1.0;
        const int low = is_inside ? (int)point : -1, next = low + 1 < limit ? low + 1 : low;
        to[5 + number] = low;
        part[number] = is_inside ? (A)(point - low) : 0;
        least = is_inside && low < least ? low : least;
        largest = is_inside && next > largest ? next : largest;
    }
    to[1 + 2 * axis] = least, to[2 + 2 * axis] = largest;
}"""

_ALIGN = """const int points = SAMPLES * ((int)R + (int)S);
const int *const box = tables + iN * (5 + points), image = box[0];
const int *const lows = box + 5 + SAMPLES * iH, *const low_columns = box + 5 + SAMPLES * ((int)R + iW);
const A *const nexts = weights + iN * points + SAMPLES * iH;
const A *const next_columns = weights + iN * points + SAMPLES * ((int)R + iW);
A total = 0;
for (int u = 0; u < SAMPLES && image >= 0; u++) {
    const int r0 = lows[u], r1 = r0 + 1 < (int)H ? r0 + 1 : r0;
    const A v1 = nexts[u], v0 = 1 - v1;
    for (int v = 0; v < SAMPLES; v++) {
        const int q0 = low_columns[v], q1 = q0 + 1 < (int)W ? q0 + 1 : q0;
        const A h1 = next_columns[v], h0 = 1 - h1;
        if (r0 < 0 || q0 < 0)
            continue;
        const A upper = (A)x[POSITION00] * h0 + (A)x[POSITION01] * h1;
        const A lower = (A)x[POSITION10] * h0 + (A)x[POSITION11] * h1;
        total += upper * v0 + lower * v1;
    }
}
y[at] = (T)(total / (SAMPLES * SAMPLES));"""

_ALIGN_INPUT = """const int points = SAMPLES * ((int)R + (int)S);
A total = 0;
for (int b = 0; b < (int)B; b++) {
    const int *const box = tables + b * (5 + points);
    if (box[0] != iN || iH < box[1] || iH > box[2] || iW < box[3] || iW > box[4])
        continue;
    const int *const lows = box + 5, *const low_columns = lows + SAMPLES * (int)R;
    const A *const nexts = weights + b * points, *const next_columns = nexts + SAMPLES * (int)R;
    for (int u = 0; u < SAMPLES * (int)R; u++) {
        const int r0 = lows[u], r1 = r0 + 1 < (int)H ? r0 + 1 : r0;
        if (r0 < 0 || (r0 != iH && r1 != iH))
            continue;
        const A row = (r0 == iH ? 1 - nexts[u] : 0) + (r1 == iH ? nexts[u] : 0);
        for (int v = 0; v < SAMPLES * (int)S; v++) {
            const int q0 = low_columns[v], q1 = q0 + 1 < (int)W ? q0 + 1 : q0;
            if (q0 < 0 || (q0 != iW && q1 != iW))
                continue;
            const A column = (q0 == iW ? 1 - next_columns[v] : 0) + (q1 == iW ? next_columns[v] : 0);
            const int i = u / SAMPLES, j = v / SAMPLES;
            total += row * column * (A)x[POSITION];
        }
    }
}
y[at] = (T)(total / (SAMPLES * SAMPLES));"""


def align_source(type: str, layout: str, samples: int, aligned: bool, is_gradient: bool) -> str:
    """The kernels ``points``, of each box, and ``regions``, or of the derivative.

    Parameters
    ----------
    layout : str
        As of `argmax_roi_source`.
    samples : int
        The points of a bin along each axis.
    aligned : bool
        Whether coordinates are of the elements' edges.
    """
    boxes = _POINTS.replace("OFFSET", "0.5" if aligned else "0.0")
    boxes = boxes.replace("EXTENT", "end - begin" if aligned else "end - begin > 1.0 ? end - begin : 1.0")
    text = _ALIGN_INPUT if is_gradient else _ALIGN
    if is_gradient:
        at = {"N": "b", "C": "iC", "H": "i", "W": "j"}
        sizes = dict(zip("NCHW", "BCRS", strict=True))
        text = text.replace("POSITION", offset_of([at[axis] for axis in layout], [sizes[axis] for axis in layout]))
    for row, column in product("01", repeat=2) if not is_gradient else ():
        at = {"N": "image", "C": "iC", "H": f"r{row}", "W": f"q{column}"}
        text = text.replace(f"POSITION{row}{column}", offset_of([at[axis] for axis in layout], layout))
    lines = [*_region_indices(layout, "NCHW" if is_gradient else "BCRS"), *_split(text)]
    tables = ["int *__restrict__ tables", "A *__restrict__ weights"]
    read = [f"const {table}" for table in tables]
    arrays = ["const T *__restrict__ x", "T *__restrict__ y", *read, *_region_words()]
    found = _text(
        type,
        ("points", ["const double *__restrict__ boxes", *tables, *_region_words()], _split(boxes)),
        ("regions", arrays, lines),
    )
    return found.replace("SAMPLES", str(samples))
