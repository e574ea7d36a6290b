"""CUDA of convolutions as implicit matrix products: tiles of the im2col matrix are gathered, never stored.

There is one kernel for the convolution y = conv(x, w) and one for each derivative.
Rows are the channels that a group computes. Columns are positions, or pairs of tap
and channel. The depth is summed over, in a fixed order. An epilogue is an elementwise
loop nest, computed on each element before it is stored.
"""

from __future__ import annotations

from backends.execution.dialect import Lines, braced, unpacked, without_unused
from backends.execution.printer_common import Access
from backends.gpu.codegen.printer import CudaPrinter, preamble
from backends.gpu.codegen.variant import Variant
from optree.compile.loopnest import LoopNest
from optree.records import NamedTuple

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
    indices : str
        The indices of column ``n``.
    element : str
        The five indices of an element of the value: (N, C, spatial) or (O, I, spatial).
    column : str
        Fills in the ``location`` of column ``n``, from its indices.
    step : str
        Fills in the ``location`` of depth ``k``; ``factor`` is its offset among the factors.
    factor : str
        The row's stride among the factors.
    value : str
        Statements that fill in ``b``, from the locations ``c`` of the column and ``s`` of the step.
    out : str
        The row's stride in the value.
    first, second, out_group : str
        The strides of groups.
    """

    rows: str
    columns: str
    depth: str
    indices: str
    element: str
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

_WINDOW = """location.at0 = i0 * step0 - pad0, location.at1 = i1 * step1 - pad1, location.at2 = i2 * step2 - pad2;
    location.offset = image * x_outer + location.at0 * x_0 + location.at1 * x_1 + location.at2 * x_2;"""

_ELEMENT = """location.at0 = t0 * spread0, location.at1 = t1 * spread1, location.at2 = t2 * spread2;
    location.offset = channel * x_channel + location.at0 * x_0 + location.at1 * x_1 + location.at2 * x_2;"""

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
    _POSITION.format(number="n", size="count"),
    "image, group * outputs + row, i0, i1, i2",
    f"{_WINDOW}\n    location.out = {_Y};",
    f"{_TAP.format(number='k', channels='inputs')}\n    {_ELEMENT}\n    location.factor = {_W} + channel * w_channel;",
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
    _POSITION.format(number="n", size="size"),
    "image, group * inputs + row, i0, i1, i2",
    """location.at0 = i0 + pad0, location.at1 = i1 + pad1, location.at2 = i2 + pad2;
    location.offset = image * y_outer;
    location.out = image * x_outer + i0 * x_0 + i1 * x_1 + i2 * x_2;""",
    f"""{_TAP.format(number="k", channels="outputs")}
    location.at0 = t0 * spread0, location.at1 = t1 * spread1, location.at2 = t2 * spread2;
    location.offset = channel * y_channel;
    location.factor = {_W} + channel * w_outer;""",
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
    _TAP.format(number="n", channels="inputs"),
    "group * outputs + row, channel, t0, t1, t2",
    f"{_ELEMENT}\n    location.out = {_W} + channel * w_channel;",
    f"{_POSITION.format(number='k', size='count')}\n    {_WINDOW}\n    location.factor = {_Y};",
    "y_channel",
    _SUM,
    "w_outer",
    "y_channel * outputs",
    "x_channel * inputs",
    "w_outer * outputs",
)

_SOURCE = """
struct Location { int at0, at1, at2; long long offset, factor, out; };

/* A group's tile, of one split of the depth: out, or with several splits sums [split][group][row][column]. */
extern "C" __global__ void __launch_bounds__(@THREADS) products(
    const T *__restrict__ first, const T *__restrict__ second, T *__restrict__ out, A *__restrict__ sums, @PARAMETERS)
{
    __shared__ A a_tile[@DEPTH][@TILE + 4], b_tile[@DEPTH][@TILE + 4];
    __shared__ Location steps[@DEPTH], columns_at[@TILE];
    const int rows = @ROWS, columns = @COLUMNS, depth = @ALL;
    const int row_tiles = (rows + @TILE - 1) / @TILE;
    const int row_begin = (int)blockIdx.y % row_tiles * @TILE, column_begin = (int)blockIdx.x * @TILE;
    const int split = (int)blockIdx.y / row_tiles % splits, group = (int)blockIdx.y / row_tiles / splits;
    const int thread = (int)threadIdx.x;
    first += group * (@FIRST);
    second += group * (@SECOND);
    if (thread < @TILE) {
        Location location = {0, 0, 0, 0, 0, 0};
        const int n = column_begin + thread;
        if (n < columns) {
            @INDICES
            @COLUMN
        }
        columns_at[thread] = location;
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
            Location location = {0, 0, 0, 0, 0, 0};
            const int k = k_begin + thread;
            if (k < end) {
                @STEP
            }
            steps[thread] = location;
        }
        __syncthreads();
        for (int load = thread; load < @DEPTH * @TILE; load += @THREADS) {
            const int k = @K, line = @LINE;
            const Location s = steps[k], c = columns_at[line];
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
    for (int j = 0; j < 4; j++) {
        const int line = thread % 16 + 16 * j, n = column_begin + line;
        if (n >= columns)
            continue;
        @INDICES_OF_ELEMENT
        for (int i = 0; i < 4; i++) {
            const int row = row_begin + thread / 16 + 16 * i;
            if (row >= rows)
                continue;
            if (splits > 1) {
                sums[(((long long)split * groups + group) * rows + row) * columns + n] = total[i][j];
                continue;
            }
            const T made = (T)total[i][j];
            @STORE(columns_at[line].out)
        }
    }
}
"""

_ADD_SPLITS = """
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
        Location location = {0, 0, 0, 0, 0, 0};
        @INDICES
        @COLUMN
        A total = sums[at];
        for (int split = 1; split < splits; split++)
            total += sums[split * each + at];
        const T made = (T)total;
        @STORE(location.out)
    }
}
"""

#: For each C type of elements: the headers, the accumulator type, and its fused multiply-add.
TYPES = {
    "float": ("", "float", "fmaf"),
    "double": ("", "double", "fma"),
    "__half": ("#include <cuda_fp16.h>\n", "float", "fmaf"),
    "__nv_bfloat16": ("#include <cuda_bf16.h>\n", "float", "fmaf"),
}


class Epilogue(NamedTuple):
    """The elementwise nest fused into a convolution.

    Attributes
    ----------
    nest : LoopNest
        Over the five axes of the value, (N, C, spatial) or (O, I, spatial).
    value : int
        The index of the convolution's value among the arrays that it reads.
    is_stored : bool
        Whether the value is stored, too.
    """

    nest: LoopNest
    value: int
    is_stored: bool


class EpiloguePrinter(CudaPrinter):
    """An epilogue in CUDA, as the function of an element and of its indices."""

    def __init__(self, epilogue: Epilogue) -> None:
        super().__init__(epilogue.nest, Variant(wide_index=True))
        self.value = epilogue.value

    def parameters(self) -> list[tuple[str, str]]:
        """The parameters of the kernel beside the convolution's: their declarations and names."""
        own = {f"a{self.value}", *(f"s{self.value}_{axis}" for axis in range(self.nest.rank))}
        own.update(f"n{axis}" for axis in range(self.nest.rank))
        own.update(f"a{array}" for array in range(len(self.nest.reads)) if self.nest.is_flat_index(array))
        return [(declared, name) for declared, name in super().parameters() if name not in own]

    def function(self) -> Lines:
        """The function."""
        (stage,), nest = self.stages, self.nest

        def load(array: int) -> str:
            if array == self.value:
                return unpacked("made", nest.reads[array])
            return self.loaded(array, f"x{array}", "0")

        element = self.element(
            stage, Access(load, str, str, lambda array, made: f"*x{array} = {self.stored(array, made)};")
        )
        pointers = self.pointers(range(nest.rank), ("inner",), without={self.value})
        indices = (f"const Index i{axis}" for axis in range(nest.rank))
        declared = ",\n    ".join(["const T made", ", ".join(indices), *(text for text, _ in self.parameters())])
        body = without_unused([*self.numbers(), *self.once(), *pointers, *element])
        return [
            "/* The epilogue of an element. */",
            "__device__ __forceinline__ void finish(",
            f"    {declared})",
            *braced(body),
        ]


def kernel_names(role: Role) -> tuple[str, ...]:
    """The names of a role's kernels."""
    return ("products", "add_splits") if role is BY_WEIGHTS else ("products",)


def epilogue_names(epilogue: Epilogue) -> list[str]:
    """The names of an epilogue's parameters, which follow those of the convolution."""
    return [name for _, name in EpiloguePrinter(epilogue).parameters()]


def source(role: Role, type: str, epilogue: Epilogue | None = None) -> str:
    """The CUDA source of a role for elements of a type."""
    headers, sums, fma = TYPES[type]
    parameters = [*(f"const int {name}" for name in SIZES), *(f"const long long {name}" for name in STRIDES)]
    head = [headers.rstrip("\n")] if headers else []
    function: Lines = []
    store = "out[group * (@OUT_GROUP) + row * @OUT + @LOCATION] = made;"
    if epilogue is not None:
        printer = EpiloguePrinter(epilogue)
        more = printer.parameters()
        head, function = preamble(printer), ["", *printer.function()]
        parameters += [text for text, _ in more]
        finish = f"finish(made, {role.element}, {', '.join(name for _, name in more)});"
        store = f"{store} {finish}" if epilogue.is_stored else finish
    # Adjacent threads read adjacent positions, so that loads are coalesced.
    along_depth = role is BY_WEIGHTS
    texts = {
        "STORE(columns_at[line].out)": store.replace("@LOCATION", "columns_at[line].out"),
        "STORE(location.out)": store.replace("@LOCATION", "location.out"),
        "INDICES_OF_ELEMENT": role.indices if epilogue is not None else "",
        "PARAMETERS": ", ".join(parameters),
        "INDICES": role.indices,
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
    text = _SOURCE + (_ADD_SPLITS if role is BY_WEIGHTS else "")
    for name, value in texts.items():  # the longer names before those that they begin with
        text = "\n".join(_filled(line, f"@{name}", value) for line in text.split("\n"))
    return "\n".join([*head, f"typedef {type} T;", f"typedef {sums} A;", *function, text.rstrip("\n"), ""])


def _filled(line: str, name: str, value: str) -> str:
    """A line with a name replaced by a value, whose further lines are indented by as much."""
    indent = line[: len(line) - len(line.lstrip())]
    return line.replace(name, value.replace("\n    ", f"\n{indent}"))
