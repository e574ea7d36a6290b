"""CUDA of region pooling: tables of indices and weights, then a gather for each output.

A thread computes one output element, also of derivatives, and sums in a fixed order.
Indices and weights are computed in float64, as on the CPU, once for each index of an
axis instead of each element.
"""

from __future__ import annotations

from collections.abc import Sequence

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
