"""CUDA of convolutions as implicit matrix products: tiles of the matrix of windows are gathered, and never stored.

One kernel for a convolution and each of its derivatives, for images x, weights
w and images y = conv(x, w). Rows are what comes out of a group; columns are
positions, or pairs of tap and channel; the depth is summed over. Sums are in
the same order each time.
"""

from __future__ import annotations

from typing import NamedTuple

#: Rows and columns of a block's tile, the depth of what is loaded at once, and threads.
TILE, DEPTH, THREADS = 64, 16, 256

#: Sizes, as ints, and strides in elements, as long longs, that kernels take after their arrays.
SIZES = (
    *("groups", "inputs", "outputs", "batch", "splits"),
    *(f"{name}{axis}" for name in ("size", "count", "window", "step", "pad", "spread") for axis in range(3)),
)
STRIDES = tuple(f"{name}_{axis}" for name in ("x", "y", "w") for axis in ("outer", "channel", "0", "1", "2"))


class Role(NamedTuple):
    """The rows, columns and depth of a kernel's matrix product, in CUDA.

    Attributes
    ----------
    rows, columns, depth : str
        Their numbers.
    column : str
        Fills in the ``place`` of column ``n``.
    step : str
        Fills in the ``place`` of depth ``k``; ``factor`` is its offset among the factors.
    factor : str
        The row's stride among the factors.
    value : str
        Statements that fill in ``b``, from the places ``c`` of the column and ``s`` of the step.
    out : str
        The row's stride in the value.
    first, second, out_group : str
        The strides of groups.
    """

    rows: str
    columns: str
    depth: str
    column: str
    step: str
    factor: str
    value: str
    out: str
    first: str
    second: str
    out_group: str


_POSITION = """int rest = {number};
    const int i2 = rest % {size}2; rest /= {size}2;
    const int i1 = rest % {size}1; rest /= {size}1;
    const int i0 = rest % {size}0; const int image = rest / {size}0;"""

_TAP = """const int channel = {number} % {channels};
    int rest = {number} / {channels};
    const int t2 = rest % window2; rest /= window2;
    const int t1 = rest % window1; const int t0 = rest / window1;"""

_WINDOW = """place.at0 = i0 * step0 - pad0, place.at1 = i1 * step1 - pad1, place.at2 = i2 * step2 - pad2;
    place.offset = image * x_outer + place.at0 * x_0 + place.at1 * x_1 + place.at2 * x_2;"""

_ELEMENT = """place.at0 = t0 * spread0, place.at1 = t1 * spread1, place.at2 = t2 * spread2;
    place.offset = channel * x_channel + place.at0 * x_0 + place.at1 * x_1 + place.at2 * x_2;"""

_Y = "image * y_outer + i0 * y_0 + i1 * y_1 + i2 * y_2"

_W = "t0 * w_0 + t1 * w_1 + t2 * w_2"

_SUM = """const int at0 = c.at0 + s.at0, at1 = c.at1 + s.at1, at2 = c.at2 + s.at2;
    if (at0 >= 0 && at0 < size0 && at1 >= 0 && at1 < size1 && at2 >= 0 && at2 < size2)
        b = (A)second[c.offset + s.offset];"""

_DIFFERENCE = """const int at0 = c.at0 - s.at0, at1 = c.at1 - s.at1, at2 = c.at2 - s.at2;
    if (at0 >= 0 && at1 >= 0 && at2 >= 0 && at0 % step0 == 0 && at1 % step1 == 0 && at2 % step2 == 0) {
        const int i0 = at0 / step0, i1 = at1 / step1, i2 = at2 / step2;
        if (i0 < count0 && i1 < count1 && i2 < count2)
            b = (A)second[c.offset + s.offset + i0 * y_0 + i1 * y_1 + i2 * y_2];
    }"""

#: y = conv(x, w): the factors are w, the other operand x.
FORWARD = Role(
    "outputs",
    "batch * count0 * count1 * count2",
    "inputs * window0 * window1 * window2",
    f"{_POSITION.format(number='n', size='count')}\n    {_WINDOW}\n    place.out = {_Y};",
    f"{_TAP.format(number='k', channels='inputs')}\n    {_ELEMENT}\n    place.factor = {_W} + channel * w_channel;",
    "w_outer",
    _SUM,
    "y_channel",
    "w_outer * outputs",
    "x_channel * inputs",
    "y_channel * outputs",
)

#: x from y: the factors are w, the other operand y.
BY_INPUT = Role(
    "inputs",
    "batch * size0 * size1 * size2",
    "outputs * window0 * window1 * window2",
    f"""{_POSITION.format(number="n", size="size")}
    place.at0 = i0 + pad0, place.at1 = i1 + pad1, place.at2 = i2 + pad2;
    place.offset = image * y_outer;
    place.out = image * x_outer + i0 * x_0 + i1 * x_1 + i2 * x_2;""",
    f"""{_TAP.format(number="k", channels="outputs")}
    place.at0 = t0 * spread0, place.at1 = t1 * spread1, place.at2 = t2 * spread2;
    place.offset = channel * y_channel;
    place.factor = {_W} + channel * w_outer;""",
    "w_channel",
    _DIFFERENCE,
    "x_channel",
    "w_outer * outputs",
    "y_channel * outputs",
    "x_channel * inputs",
)

#: w from x and y: the factors are y, the other operand x.
BY_WEIGHTS = Role(
    "outputs",
    "inputs * window0 * window1 * window2",
    "batch * count0 * count1 * count2",
    f"{_TAP.format(number='n', channels='inputs')}\n    {_ELEMENT}\n    place.out = {_W} + channel * w_channel;",
    f"{_POSITION.format(number='k', size='count')}\n    {_WINDOW}\n    place.factor = {_Y};",
    "y_channel",
    _SUM,
    "w_outer",
    "y_channel * outputs",
    "x_channel * inputs",
    "w_outer * outputs",
)

_SOURCE = """
struct Place { int at0, at1, at2; long long offset, factor, out; };

/* A group's tile, of one split of the depth: out, or with several splits sums [split][group][row][column]. */
extern "C" __global__ void __launch_bounds__(@THREADS) products(
    const T *__restrict__ first, const T *__restrict__ second, T *__restrict__ out, A *__restrict__ sums, @PARAMETERS)
{
    __shared__ A a_tile[@DEPTH][@TILE + 4], b_tile[@DEPTH][@TILE + 4];
    __shared__ Place steps[@DEPTH], columns_at[@TILE];
    const int rows = @ROWS, columns = @COLUMNS, depth = @ALL;
    const int row_tiles = (rows + @TILE - 1) / @TILE;
    const int row_begin = (int)blockIdx.y % row_tiles * @TILE, column_begin = (int)blockIdx.x * @TILE;
    const int split = (int)blockIdx.y / row_tiles % splits, group = (int)blockIdx.y / row_tiles / splits;
    const int thread = (int)threadIdx.x;
    first += group * (@FIRST);
    second += group * (@SECOND);
    if (thread < @TILE) {
        Place place = {0, 0, 0, 0, 0, 0};
        const int n = column_begin + thread;
        if (n < columns) {
            @COLUMN
        }
        columns_at[thread] = place;
    }
    A total[4][4];
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++)
            total[i][j] = 0;
    const long long all = (depth + @DEPTH - 1) / @DEPTH;
    const int begin = (int)(all * split / splits) * @DEPTH;
    const int given = (int)(all * (split + 1) / splits) * @DEPTH, end = given < depth ? given : depth;
    for (int k_begin = begin; k_begin < end; k_begin += @DEPTH) {
        if (thread < @DEPTH) {
            Place place = {0, 0, 0, 0, 0, 0};
            const int k = k_begin + thread;
            if (k < end) {
                @STEP
            }
            steps[thread] = place;
        }
        __syncthreads();
        for (int load = thread; load < @DEPTH * @TILE; load += @THREADS) {
            const int k = @K, line = @LINE;
            const Place s = steps[k], c = columns_at[line];
            const bool is_there = k_begin + k < end;
            A a = 0, b = 0;
            if (is_there && row_begin + line < rows)
                a = (A)first[(row_begin + line) * @FACTOR + s.factor];
            if (is_there && column_begin + line < columns) {
                @VALUE
            }
            a_tile[k][line] = a, b_tile[k][line] = b;
        }
        __syncthreads();
        for (int k = 0; k < @DEPTH; k++) {
            A x[4], y[4];
            for (int i = 0; i < 4; i++)
                x[i] = a_tile[k][thread / 16 + 16 * i], y[i] = b_tile[k][thread % 16 + 16 * i];
            for (int i = 0; i < 4; i++)
                for (int j = 0; j < 4; j++)
                    total[i][j] = @FMA(x[i], y[j], total[i][j]);
        }
        __syncthreads();
    }
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) {
            const int row = row_begin + thread / 16 + 16 * i, line = thread % 16 + 16 * j, column = column_begin + line;
            if (row < rows && column < columns) {
                if (splits == 1)
                    out[group * (@OUT_GROUP) + row * @OUT + columns_at[line].out] = (T)total[i][j];
                else
                    sums[(((long long)split * groups + group) * rows + row) * columns + column] = total[i][j];
            }
        }
}

/* The sums of all splits, in order. */
extern "C" __global__ void __launch_bounds__(@THREADS) add_splits(
    const A *__restrict__ sums, T *__restrict__ out, @PARAMETERS)
{
    const int rows = @ROWS, columns = @COLUMNS;
    const long long each = (long long)groups * rows * columns;
    #pragma unroll 1
    for (long long at = blockIdx.x * (long long)blockDim.x + threadIdx.x; at < each;
         at += (long long)gridDim.x * blockDim.x) {
        const int n = (int)(at % columns), row = (int)(at / columns % rows), group = (int)(at / columns / rows);
        Place place = {0, 0, 0, 0, 0, 0};
        {
            @COLUMN
        }
        A total = sums[at];
        for (int split = 1; split < splits; split++)
            total += sums[split * each + at];
        out[group * (@OUT_GROUP) + row * @OUT + place.out] = (T)total;
    }
}
"""

#: By the C type of elements: the headers, the type of sums, and its fused multiply-add.
TYPES = {
    "float": ("", "float", "fmaf"),
    "double": ("", "double", "fma"),
    "__half": ("#include <cuda_fp16.h>\n", "float", "fmaf"),
    "__nv_bfloat16": ("#include <cuda_bf16.h>\n", "float", "fmaf"),
}


def source(role: Role, type: str) -> str:
    """The CUDA source of a role for elements of a type."""
    headers, sums, fma = TYPES[type]
    parameters = [*(f"const int {name}" for name in SIZES), *(f"const long long {name}" for name in STRIDES)]
    # Threads side by side read what is side by side in memory: positions.
    along_depth = role is BY_WEIGHTS
    texts = {
        "PARAMETERS": ", ".join(parameters),
        "THREADS": str(THREADS),
        "COLUMNS": role.columns,
        "COLUMN": role.column,
        "OUT_GROUP": role.out_group,
        "FACTOR": role.factor,
        "SECOND": role.second,
        "FIRST": role.first,
        "DEPTH": str(DEPTH),
        "VALUE": role.value,
        "TILE": str(TILE),
        "ROWS": role.rows,
        "STEP": role.step,
        "LINE": f"load / {DEPTH}" if along_depth else f"load % {TILE}",
        "ALL": role.depth,
        "OUT": role.out,
        "FMA": fma,
        "K": f"load % {DEPTH}" if along_depth else f"load / {TILE}",
    }
    text = _SOURCE
    for name, value in texts.items():  # the longer names before those that they begin with
        text = text.replace(f"@{name}", value)
    return f"{headers}typedef {type} T;\ntypedef {sums} A;\n{text}"
