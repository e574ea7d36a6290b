"""CUDA of image resizing and region pooling: tables of indices and weights, then a gather for each output.

A thread computes one output element, also of derivatives, and sums in a fixed order.
Indices and weights are computed in float64, as on the CPU, once for each index of an
axis instead of each element.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from backends.gpu.codegen.convolution import TYPES
from backends.gpu.codegen.device_functions import QUOTIENT, grid_stride_kernel, indices_of, offset_of

_HEAD = """{headers}typedef {type} T;
typedef {wide} A;

{quotient}
"""


def _text(type: str, *kernels: tuple[str, Sequence[str], Sequence[str]]) -> str:
    """The source of kernels, each a name, its parameters and the lines of its body."""
    headers, wide, _ = TYPES[type]
    found = _HEAD.format(headers=headers, type=type, wide=wide, quotient=QUOTIENT.strip("\n"))
    return found + "".join("\n" + grid_stride_kernel(*kernel) for kernel in kernels)


def _words(names: Sequence[str]) -> list[str]:
    return [f"const long long {name}" for name in names]


# Resizing


def resize_parameters(axes: Sequence[bool]) -> list[str]:
    """The numbers that kernels of `resize` take after their arrays.

    Parameters
    ----------
    axes : sequence of bool
        Whether each axis is resized.
    """
    sizes = [f"{name}{axis}" for axis in range(len(axes)) for name in ("before", "after")]
    return ["total", *sizes, *(f"m{axis}" for axis in range(1, len(axes)))]


def _tables(spatial: Sequence[int], names: Sequence[str]) -> list[str]:
    """The tables of some names of each resized axis: all weights, then for each axis ``low`` and ``first``."""
    weights = " + ".join(f"after{axis}" for axis in spatial)
    ints = [f"after{axis} + before{axis} + 1" for axis in spatial]
    lines = []
    for n, axis in enumerate(spatial):
        before = " + ".join(["0", *ints[:n]])
        found = {
            "weight": f"A *const weight{axis} = (A *)tables + ("
            f"{' + '.join(['0', *(f'after{other}' for other in spatial[:n])])});",
            "low": f"int *const low{axis} = (int *)((A *)tables + ({weights})) + ({before});",
            "first": f"int *const first{axis} = (int *)((A *)tables + ({weights})) + ({before} + after{axis});",
        }
        lines += [found[name] for name in names]
    return lines


_POSITION = {
    False: "double position = (i + 0.5) * ((double)before / (double)after) - 0.5;",
    True: "double position = i * (after > 1 ? (double)(before - 1) / (double)(after - 1) : 0.0);",
}

_LOW = {
    "nearest": """const double nearest = floor(position + 0.5);
    return nearest < 0 ? 0 : nearest > before - 1 ? (int)before - 1 : (int)nearest;""",
    "bilinear": """position = position < 0 ? 0 : position > before - 1 ? before - 1 : position;
    const int low = (int)floor(position);
    *weight = (A)(position - low);
    return low;""",
}

_TAP = """
/* The element that index i of a resized axis is of, and the weight of the next one. */
__device__ __forceinline__ int tap(long long i, long long before, long long after, A *weight)
{
    POSITION
    *weight = 0;
    LOW
}
"""


def resize_source(type: str, axes: Sequence[bool], method: str, align_corners: bool, is_gradient: bool) -> str:
    """The kernels ``tables``, of each resized axis, and ``resized``, or of the derivative.

    Parameters
    ----------
    axes : sequence of bool
        Whether each axis is resized.
    """
    words = _words(resize_parameters(axes))
    from_, to = ("after", "before") if is_gradient else ("before", "after")
    spatial = [axis for axis, is_resized in enumerate(axes) if is_resized]
    gathered = (_sums_of_taps if is_gradient else _interpolated)(axes, spatial, method)
    names = ["first" if is_gradient else "low", *(["weight"] if method == "bilinear" else [])]
    lines = [
        *_tables(spatial, names),
        *indices_of([f"{to}{axis}" for axis in range(len(axes))]),
        *gathered,
        "y[at] = (T)total0;",
    ]
    lines = [line.replace("SIZE", from_) for line in lines]
    found = _text(
        type,
        ("tables", ["unsigned char *__restrict__ tables", *words], _filled(spatial)),
        ("resized", ["const T *__restrict__ x", "T *__restrict__ y", "unsigned char *tables", *words], lines),
    )
    head, rest = found.split('\nextern "C"', 1)
    position = _TAP.replace("POSITION", _POSITION[align_corners]).replace("LOW", _LOW[method])
    return f'{head}{position}\nextern "C"{rest}'


def _filled(spatial: Sequence[int]) -> list[str]:
    """Index ``at`` of each table; of an element, the first index of the resized axis that is not of an earlier one."""
    lines = _tables(spatial, ("weight", "low", "first"))
    for axis in spatial:
        lines += [
            f"if (at < after{axis}) {{",
            "    A weight, unused;",
            f"    const int low = tap(at, before{axis}, after{axis}, &weight);",
            f"    const int previous = at ? tap(at - 1, before{axis}, after{axis}, &unused) : -1;",
            f"    low{axis}[at] = low;",
            f"    weight{axis}[at] = weight;",
            "    for (int p = previous + 1; p <= low; p++)",
            f"        first{axis}[p] = (int)at;",
            f"    for (int p = low + 1; p <= (int)before{axis} && at == after{axis} - 1; p++)",
            f"        first{axis}[p] = (int)after{axis};",
            "}",
        ]
    return lines


def _interpolated(axes: Sequence[bool], spatial: Sequence[int], method: str) -> list[str]:
    """An element of the resized images: along one axis after the other, as the op's value is defined."""
    taps = (0,) if method == "nearest" else (0, 1)
    lines = []
    for axis in spatial:
        lines.append(f"const int p{axis}_0 = low{axis}[i{axis}];")
        if len(taps) > 1:
            lines += [
                f"const int p{axis}_1 = p{axis}_0 + 1 < (int)before{axis} ? p{axis}_0 + 1 : p{axis}_0;",
                f"const A w{axis} = weight{axis}[i{axis}];",
            ]
    sizes = [f"SIZE{axis}" for axis in range(len(axes))]
    names = {}
    for taken in product(taps, repeat=len(spatial)):
        at = {axis: f"p{axis}_{tap}" for axis, tap in zip(spatial, taken, strict=True)}
        offset = offset_of([at.get(axis, f"i{axis}") for axis in range(len(axes))], sizes)
        names[taken] = "x" + "".join(map(str, taken))
        lines.append(f"const A {names[taken]} = (A)x[{offset}];")
    for axis in spatial if len(taps) > 1 else ():
        rest = {taken[1:]: f"v{axis}_" + "".join(map(str, taken[1:])) for taken in names}
        lines += [
            f"const A {name} = {names[(0, *taken)]} * (1 - w{axis}) + {names[(1, *taken)]} * w{axis};"
            for taken, name in rest.items()
        ]
        names = rest
    (last,) = names.values() if len(taps) > 1 else [names[(0,) * len(spatial)]]
    return [*lines, f"const A total0 = {last};"]


def _sums_of_taps(axes: Sequence[bool], spatial: Sequence[int], method: str) -> list[str]:
    """An element of the images: the sum of those of the delta that it is a tap of, with their weights."""
    lines = ["A total0 = 0;"]
    for axis in spatial:
        first, p = f"first{axis}", f"i{axis}"
        lines += [f"const int from{axis} = {first}[{p}];", f"const int to{axis} = {first}[{p} + 1];"]
        if method != "nearest":  # those whose next element this is are before; at the end, both are the last
            lines += [
                f"const int begin{axis} = {p} ? {first}[{p} - 1] : 0;",
                f"const int middle{axis} = {p} + 1 < (int)before{axis} ? from{axis} : (int)after{axis};",
            ]
    room = ""
    weight = []
    for axis in reversed(spatial):
        if method == "nearest":
            lines.append(f"{room}for (int j{axis} = from{axis}; j{axis} < to{axis}; j{axis}++) {{")
        else:
            lines += [
                f"{room}for (int j{axis} = begin{axis}; j{axis} < to{axis}; j{axis}++) {{",
                f"{room}    const A next{axis} = weight{axis}[j{axis}];",
                f"{room}    const A u{axis} = (j{axis} >= from{axis} ? 1 - next{axis} : 0) + "
                f"(j{axis} < middle{axis} ? next{axis} : 0);",
            ]
            weight.append(f"u{axis}")
        room += "    "
    indices = [f"j{axis}" if is_resized else f"i{axis}" for axis, is_resized in enumerate(axes)]
    value = f"(A)x[{offset_of(indices, [f'SIZE{axis}' for axis in range(len(axes))])}]"
    lines.append(f"{room}total0 += {' * '.join([*weight, value])};")
    return lines + ["    " * depth + "}" for depth in reversed(range(len(spatial)))]


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
