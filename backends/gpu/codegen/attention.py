"""CUDA kernels of attention and its gradient: contractions of tiles, with the elementwise steps between in registers.

A block has some rows of the scores, queries or keys, and goes through the columns tile by tile. The scores of a tile
are products on tensor cores. A warp holds them in registers, where the steps of `optree.networks.attention` change
them, as `Fragments`; then they are the left operand of the next products. No score is stored in memory. The next tiles
are copied into one half of shared memory while those in the other are multiplied.

A gradient is two kernels: one with keys as rows, for the derivatives by keys and values, and one with queries. Each
computes the weights of a tile again, and sums in a fixed order.
"""

from __future__ import annotations

import numpy as np

from backends.execution.printer_common import Lines, braced, without_unused
from backends.gpu.codegen.device_functions import DEVICE_FUNCTIONS
from backends.gpu.codegen.fragments import UNROLL, Held, statements
from backends.gpu.codegen.printer import CUDA
from optree.dtypes import FLOAT32
from optree.networks.attention import FINISH, HIDE, SLOPE, SOFTEN
from optree.records import NamedTuple

#: The warps of a block.
WARPS = 4

#: The elements between rows of a tile in shared memory, so that eight rows are in different banks.
PADDING = 8

#: The row of a lane's element.
ROW = "const int row = first + m * 16 + h * 8 + lane / 4;"


class Operand(NamedTuple):
    """An array of a kernel: its name, whether its rows are queries or keys, and whether its columns are features."""

    name: str
    rows: str
    columns: str


QUERY, KEY, VALUE = (
    Operand("query", "queries", "features"),
    Operand("key", "keys", "features"),
    Operand("value", "keys", "values"),
)
DELTA = Operand("delta", "queries", "values")


class Tiling(NamedTuple):
    """The tiles of a kernel."""

    #: Of 16 queries or keys, those of a warp.
    rows: int
    #: The keys or queries of a tile.
    columns: int
    #: The tiles of each operand in shared memory.
    buffers: int = 2


class Attention(NamedTuple):
    """All that a source of attention's kernels depends on."""

    dtype: np.dtype
    #: Of a query and of a value, rounded up to whole tiles of 16.
    features: int
    values: int
    causal: bool
    mask: np.dtype | None
    #: The number of leading axes.
    axes: int
    is_gradient: bool
    #: The maximum bytes of shared memory of a block.
    shared: int

    def kernels(self) -> list[Kernel]:
        """The kernels, in the order in which they are launched."""
        if not self.is_gradient:
            return [Forward(self, "attention", [QUERY], [KEY, VALUE], 2)]
        return [
            ByKey(self, "by_key", [KEY, VALUE], [QUERY, DELTA], 2 if self.features + self.values <= 128 else 1),
            ByQuery(self, "by_query", [QUERY, DELTA], [KEY, VALUE], 2),
        ]

    def source(self) -> str:
        """The source of the kernels."""
        head = map(
            DEVICE_FUNCTIONS.__getitem__, (str(self.dtype), "vectors", "extremes", "over_lanes", "near", "tiles")
        )
        return "\n".join([*head, *(kernel.source() for kernel in self.kernels())])


class Kernel:
    """A kernel: some operands whose rows a block holds, and some whose rows it goes through.

    `rows`: the most tiles of 16 rows of a warp.
    """

    #: How a mask is read.
    mask_along = "memory"

    def __init__(self, of: Attention, name: str, held: list[Operand], streamed: list[Operand], rows: int) -> None:
        self.of, self.name, self.held, self.streamed = of, name, held, streamed
        self.type = CUDA.types[str(of.dtype)]
        options = [Tiling(count, *size) for count in range(rows, 0, -1) for size in ((32, 2), (16, 2), (16, 1))]
        self.tiling = next((x for x in options if self.shared(x) <= of.shared), options[-1])

    def size(self, operand: Operand) -> int:
        """The columns of an operand's tile."""
        return self.of.features if operand.columns == "features" else self.of.values

    def shared(self, tiling: Tiling) -> int:
        """The bytes of shared memory of a block."""
        rows, columns = 16 * tiling.rows * WARPS, tiling.columns * tiling.buffers
        held = sum(rows * (self.size(x) + PADDING) for x in self.held)
        return 2 * (held + sum(columns * (self.size(x) + PADDING) for x in self.streamed))

    @property
    def block_rows(self) -> int:
        """The rows of a block."""
        return 16 * self.tiling.rows * WARPS

    # Parameters

    def arrays(self) -> list[tuple[str, str]]:
        """The names and types of the arrays that are read, then of those that are written."""
        raise NotImplementedError

    def parameters(self) -> list[str]:
        """The declarations of the parameters: arrays, their strides, and sizes."""
        arrays = self.arrays()
        found = [f"{type}*{name}" for name, type in arrays]
        for name, _ in arrays:
            found += [f"long long {name}_{axis}" for axis in range(self.of.axes)]
            found.append(f"long long {name}_rows")
        found += ["long long mask_columns"] if self.of.mask is not None else []
        found += [f"long long n{axis}" for axis in range(1, self.of.axes)]
        return [*found, *(f"long long {size}" for size in ("queries", "keys", "features", "values")), "float factor"]

    def parameter_names(self) -> list[str]:
        """The names of the parameters."""
        return [parameter.rpartition(" ")[2].lstrip("*") for parameter in self.parameters()]

    def read(self, name: str, type: str = "") -> tuple[str, str]:
        return name, f"const {type or self.type} "

    def mask(self) -> list[tuple[str, str]]:
        return [] if self.of.mask is None else [self.read("mask", CUDA.read_type(self.of.mask))]

    # Source

    def source(self) -> str:
        """The kernel's source."""
        threads, parameters = 32 * WARPS, ",\n    ".join(self.parameters())
        head = f'extern "C" __global__ void __launch_bounds__({threads}) {self.name}(\n    {parameters})'
        body = without_unused([*self.begin(), *self.initial(), *self.loop(), *self.end()])
        return "\n".join([head, *braced(body), ""])

    def begin(self) -> Lines:
        """The tile of a block, pointers, and shared memory."""
        (rows, columns, buffers), side = self.tiling, self.held[0].rows
        lines = [
            f"constexpr int M = {rows}, BLOCK = {self.block_rows}, STEP = {columns};",
            "extern __shared__ __align__(16) unsigned char memory[];",
            "const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;",
            f"const int rows = (int){side}, columns = (int){self.streamed[0].rows};",
            "const int blocks = (rows + BLOCK - 1) / BLOCK;",
            f"const int block = {self.block_of('(int)(blockIdx.x % blocks)')} * BLOCK;",
            "const int first = block + warp * 16 * M;",
            "long long index = blockIdx.x / blocks;",
        ]
        names = [name for name, _ in self.arrays()]
        for axis in range(self.of.axes - 1, -1, -1):
            here = f"i{axis}"
            lines.append(f"const long long {here} = {f'index % n{axis}' if axis else 'index'};")
            lines += [f"index /= n{axis};"] if axis else []
            lines += [f"{name} += {here} * {name}_{axis};" for name in names]
        place = f"({self.type} *)memory"
        for operand in [*self.held, *self.streamed]:
            lines.append(f"{self.type} *const {operand.name}_tile = {place};")
            size = (
                f"BLOCK * {self.size(operand) + PADDING}"
                if operand in self.held
                else (f"{buffers} * STEP * {self.size(operand) + PADDING}")
            )
            place = f"{operand.name}_tile + {size}"
        return lines

    def block_of(self, number: str) -> str:
        """The number of a block's tile: those with the most columns first."""
        return number

    def copied(self, operand: Operand, start: str, buffer: str = "") -> Lines:
        """The copy of a tile into shared memory."""
        name, size = operand.name, self.size(operand)
        count = "BLOCK" if operand in self.held else "STEP"
        to = f"{name}_tile" + (f" + {buffer} * STEP * {size + PADDING}" if buffer else "")
        ends = f"{operand.rows} - {start}, {operand.columns}"
        return [f"copy_tile<{count}, {size}, {32 * WARPS}>({to}, {name} + {start} * {name}_rows, {name}_rows, {ends});"]

    def streamed_tiles(self, start: str, buffer: str) -> Lines:
        return [*(line for x in self.streamed for line in self.copied(x, start, buffer)), "commit_copies();"]

    def limits(self) -> tuple[str, str]:
        """The first and the last column that the block's rows have."""
        return "0", "columns"

    def hidden(self) -> tuple[str, str]:
        """The condition that a tile has hidden scores, and that one is: those out of bounds, and in causal order."""
        raise NotImplementedError

    def loop(self) -> Lines:
        """The loop over tiles."""
        buffers, (begin, end) = self.tiling.buffers, self.limits()
        lines = [f"const int begin = {begin}, end = {end};"]
        lines += [line for x in self.held for line in self.copied(x, "(long long)block")]
        tiles = [
            f"const {self.type} *const {x.name}_now = {x.name}_tile + buffer * STEP * {self.size(x) + PADDING};"
            for x in self.streamed
        ]
        if buffers == 2:
            lines += ["if (begin < end)", *braced(self.streamed_tiles("(long long)begin", "0")), "int buffer = 0;"]
            following = [
                "if (start + STEP < end)",
                *braced(self.streamed_tiles("(long long)(start + STEP)", "(buffer ^ 1)")),
            ]
            body = ["wait_for_copies<0>();", "__syncthreads();", *tiles, *following, *self.tile(), "buffer ^= 1;"]
        else:
            lines.append("const int buffer = 0;")
            body = ["__syncthreads();", *self.streamed_tiles("(long long)start", "buffer"), "wait_for_copies<0>();"]
            body += ["__syncthreads();", *tiles, *self.tile()]
        return [*lines, "#pragma unroll 1", "for (int start = begin; start < end; start += STEP)", *braced(body)]

    def scores(self) -> Lines:
        """A tile of scores, hidden where they do not count."""
        some, one = self.hidden()
        rows, columns = self.held[0], self.streamed[0]
        lines = ["float scores[M][STEP / 8][4] = {};", self.products("scores", rows, columns)]
        lines += self.elements(["scores[m][n][2 * h + e] *= factor;"])
        hide = ["const int column = start + n * 8 + lane % 4 * 2 + e;", f"if ({one})"]
        hide = self.elements([*([ROW] if "row" in one else []), *hide, "    scores[m][n][2 * h + e] = -INFINITY;"])
        lines += [f"if ({some})", *braced(hide)] if some else []
        return [*lines, *self.masked()]

    def elements(self, body: Lines) -> Lines:
        """A loop over a lane's scores."""
        loops = [f"for (int {i} = 0; {i} < {n}; {i}++)" for i, n in (("m", "M"), ("n", "STEP / 8"), ("h", 2), ("e", 2))]
        return [*(line for loop in loops for line in (UNROLL, loop)), *braced(body)]

    def masked(self) -> Lines:
        if self.of.mask is None:
            return []
        operands = [(Held("scores"), FLOAT32), (Held("mask", self.mask_along), self.of.mask)]
        return statements(HIDE.function, operands, HIDE.writes, "STEP / 8")

    def products(self, into: str, left: Operand, right: Operand) -> str:
        """The products of the rows of a warp with those of a tile."""
        size = self.size(left)
        return f"multiply_rows<{size}>({into}, {left.name}_tile + warp * 16 * M * {size + PADDING}, {right.name}_now);"

    def initial(self) -> Lines:
        """The accumulators."""
        raise NotImplementedError

    def tile(self) -> Lines:
        """The computation of a tile."""
        raise NotImplementedError

    def end(self) -> Lines:
        """The stores after the last tile."""
        raise NotImplementedError

    def stored(self, name: str, accumulator: str, columns: str, factor: str = "1.0f") -> str:
        ends = f"rows - first, {columns}"
        return f"store_products({name} + (long long)first * {name}_rows, {accumulator}, {factor}, {name}_rows, {ends});"

    def rows_loop(self, body: Lines) -> Lines:
        """A loop over the rows of a lane."""
        return [UNROLL, "for (int m = 0; m < M; m++)", UNROLL, "for (int h = 0; h < 2; h++)", *braced(body)]


class Forward(Kernel):
    """Attention, with a running maximum and sum."""

    def arrays(self) -> list[tuple[str, str]]:
        reads = [self.read(x.name) for x in (QUERY, KEY, VALUE)]
        return [*reads, *self.mask(), ("out", f"{self.type} "), ("sums", "float ")]

    def block_of(self, number: str) -> str:
        return f"(blocks - 1 - {number})" if self.of.causal else number

    def limits(self) -> tuple[str, str]:
        return "0", "min(columns, block + BLOCK)" if self.of.causal else "columns"

    def hidden(self) -> tuple[str, str]:
        if self.of.causal:
            return "start + STEP > columns || start + STEP > first + 1", "column >= columns || column > row"
        return "start + STEP > columns", "column >= columns"

    def initial(self) -> Lines:
        lines = [f"float found[M][{self.of.values // 8}][4] = {{}}, top[M][2], total[M][2], decay[M][2];"]
        return [*lines, *self.rows_loop(["top[m][h] = -INFINITY, total[m][h] = 0;"])]

    def tile(self) -> Lines:
        rows = [(Held(name, "rows"), FLOAT32) for name in ("top", "total", "decay")]
        scores, found = (Held("scores"), FLOAT32), (Held("found"), FLOAT32)
        return [
            *self.scores(),
            *statements(SOFTEN.function, [scores, *rows], SOFTEN.writes, "STEP / 8"),
            "bool decays = false;",
            *self.rows_loop(["decays |= decay[m][h] != 1;"]),
            "if (__any_sync(~0u, decays))",  # else each factor is 1, as after most tiles
            *statements(lambda found, decay: (found * decay,), [found, rows[2]], [0], str(self.of.values // 8)),
            "multiply_products(found, scores, value_now);",
        ]

    def end(self) -> Lines:
        rows = [(Held(name, "rows"), FLOAT32) for name in ("sum", "top", "total")]
        found = Held("found"), FLOAT32
        held = [(Held("found"), self.of.dtype), rows[0], found, *rows[1:]]
        return [
            "float sum[M][2];",
            *statements(FINISH.function, held, FINISH.writes, str(self.of.values // 8)),
            self.stored("out", "found", "values"),
            *self.rows_loop([ROW, "if (lane % 4 == 0 && row < rows) sums[row * sums_rows] = sum[m][h];"]),
        ]


class Gradient(Kernel):
    """A kernel of attention's gradient."""

    def reads(self) -> list[tuple[str, str]]:
        matrices = [self.read(x.name) for x in (QUERY, KEY, VALUE, DELTA)]
        return [*matrices, self.read("along", "float"), self.read("sums", "float"), *self.mask()]

    def slopes(self, along: str) -> Lines:
        """The weights of a tile, and the derivatives by its scores."""
        sides = [(Held(name, along), FLOAT32) for name in ("sum", "share")]
        operands = [(Held("scores"), FLOAT32), (Held("slopes"), FLOAT32), *sides]
        return [
            *self.scores(),
            "float slopes[M][STEP / 8][4] = {};",
            self.products("slopes", self.held[1], self.streamed[1]),
            *statements(SLOPE.function, operands, SLOPE.writes, "STEP / 8"),
        ]


class ByKey(Gradient):
    """The derivatives by keys and values; the scores are transposed."""

    def arrays(self) -> list[tuple[str, str]]:
        return [*self.reads(), ("of_key", f"{self.type} "), ("of_value", f"{self.type} ")]

    mask_along = "transposed"

    def limits(self) -> tuple[str, str]:
        return "block / STEP * STEP" if self.of.causal else "0", "columns"

    def hidden(self) -> tuple[str, str]:
        return ("start < first + 16 * M - 1", "column < row") if self.of.causal else ("", "")

    def initial(self) -> Lines:
        sizes = self.of.features // 8, self.of.values // 8
        return [f"float by_key[M][{sizes[0]}][4] = {{}}, by_value[M][{sizes[1]}][4] = {{}};"]

    def tile(self) -> Lines:
        loops = [UNROLL, "for (int n = 0; n < STEP / 8; n++)", UNROLL, "for (int e = 0; e < 2; e++)"]
        body = ["const int column = start + n * 8 + lane % 4 * 2 + e;"]
        body += ["sum[n][e] = column < columns ? sums[column * sums_rows] : INFINITY;"]
        body += ["share[n][e] = column < columns ? along[column * along_rows] : 0;"]
        return [
            "float sum[STEP / 8][2], share[STEP / 8][2];",
            *loops,
            *braced(body),
            *self.slopes("columns"),
            "multiply_products(by_value, scores, delta_now);",
            "multiply_products(by_key, slopes, query_now);",
        ]

    def end(self) -> Lines:
        return [self.stored("of_key", "by_key", "features", "factor"), self.stored("of_value", "by_value", "values")]


class ByQuery(Gradient):
    """The derivatives by queries."""

    block_of, limits, hidden = Forward.block_of, Forward.limits, Forward.hidden

    def arrays(self) -> list[tuple[str, str]]:
        return [*self.reads(), ("of_query", f"{self.type} ")]

    def initial(self) -> Lines:
        lines = [f"float by_query[M][{self.of.features // 8}][4] = {{}}, sum[M][2], share[M][2];"]
        body = [ROW, "sum[m][h] = row < rows ? sums[row * sums_rows] : INFINITY;"]
        return [*lines, *self.rows_loop([*body, "share[m][h] = row < rows ? along[row * along_rows] : 0;"])]

    def tile(self) -> Lines:
        return [*self.slopes("rows"), "multiply_products(by_query, slopes, key_now);"]

    def end(self) -> Lines:
        return [self.stored("of_query", "by_query", "features", "factor")]
