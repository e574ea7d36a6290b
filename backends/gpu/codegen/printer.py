"""CUDA C++ source of loop nests.

Elementwise nests are grid-stride loops with vectorised loads and stores. One that reduces gives each outer index to a
team of threads: some lanes of a warp, a block, or, for columns, the threads of a block that share a column. Where there
are too few outer indices to occupy the device, the reduction is split: each stage is a kernel, whose partial results
the next one joins.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from backends.execution.printer_common import (
    Access,
    Dialect,
    Lines,
    Printer,
    braced,
    complex_types,
    functions_called,
    initial_value,
    narrow_dtypes,
    packed,
    unpacked,
    without_unused,
)
from backends.gpu.codegen.device_functions import DEVICE_FUNCTIONS, EXTREME_OF, TEAM_REDUCTIONS, for_device
from backends.gpu.codegen.variant import (
    BYTES_IN_FLIGHT,
    TILE,
    Variant,
    contiguous_arrays,
    kernel_names,
    loaded_bytes,
    part_arrays,
    parts_size,
    slots_of,
    traversals,
)
from optree.compile.loopnest import LoopNest, Reduction, Stage, Statement, online_of, strided_reads
from optree.dtypes import FLOAT32, is_floating, is_narrow, wide_dtype

CUDA = Dialect(
    {
        "bool": "bool",
        "int8": "signed char",
        "int16": "short",
        "int32": "int",
        "int64": "long long",
        "uint8": "unsigned char",
        "uint16": "unsigned short",
        "uint32": "unsigned int",
        "uint64": "unsigned long long",
        "float16": "__half",
        "bfloat16": "__nv_bfloat16",
        "float32": "float",
        "float64": "double",
        **{name: name for name in ("complex64", "complex128")},
    },
    byte="bool",
    inline="__device__ __forceinline__",
    cast="(Index)",
    aligned="alignas({}) ",
    upper_product="__umulhi",
)

#: The accesses of a thread that are accumulated in the dtype itself before they join a sum in float64.
SUM_BLOCK = 64

#: Numbers drawn at a flat index, in blocks of four.
_DRAW = re.compile(r"(philox_\w+32)\(\{0\}, \{1\}, \{2\}\)")

#: The pragma before a grid-stride loop: most threads have one turn, and unrolled it would begin with a division.
GRID_STRIDE = ("#pragma unroll 1",)


def source(nest: LoopNest, variant: Variant) -> str:
    """The CUDA source of a nest: one kernel, or for a split nest one for each stage and the last."""
    printer = CudaPrinter(nest, variant)
    lines = preamble(printer)
    for r in nest.reductions:
        type = CUDA.type_of(variant.accumulator_dtype(nest, r))
        joined = printer.combine(r).format("x", "y")
        lines += [
            f"struct Join{r.value} {{ __device__ {type} operator()({type} x, {type} y) const {{ return {joined}; }} }};"
        ]
    for name, body in zip(kernel_names(nest, variant), printer.bodies(), strict=True):
        parameters = ",\n    ".join(parameter for parameter, _ in printer.parameters())
        lines += ["", f'extern "C" __global__ void __launch_bounds__({variant.threads}) {name}(', f"    {parameters})"]
        lines += braced(without_unused([*printer.numbers(), *printer.once(), *body]))
    return "\n".join([*lines, ""])


def preamble(printer: CudaPrinter) -> Lines:
    """The includes, functions and types that a nest's kernels need."""
    nest, variant = printer.nest, printer.variant
    names = [*narrow_dtypes(nest), "vectors"]
    names += ["unaligned"] * bool(variant.unaligned)
    names += ["narrowed"] * (variant.vector > 1 and any(map(is_narrow, nest.stored)))
    names += ["quotient"] * bool(printer.divisors())
    names += TEAM_REDUCTIONS.get(variant.team, TEAM_REDUCTIONS["warp"]) if nest.reductions else ()
    names += ["extremes"] * any(printer.is_extreme(r) for r in nest.reductions)
    names += ["near"] * any("near_" in printer.near(s).expression for s in nest.statements if isinstance(s, Statement))
    head = "\n".join(map(DEVICE_FUNCTIONS.__getitem__, names)).splitlines()
    head += [*complex_types([nest], CUDA), *functions_called(nest, CUDA)]
    head += [*DEVICE_FUNCTIONS["draws"].splitlines(), ""] if printer.draws else []
    return [*head, f"typedef {'long long' if variant.wide_index else 'int'} Index;"]


def parameter_names(nest: LoopNest, variant: Variant) -> list[str]:
    """The names of the parameters of a nest's kernels, in order."""
    return [name for _, name in CudaPrinter(nest, variant).parameters()]


class CudaPrinter(Printer):
    """A nest in CUDA, specialised to a variant."""

    dialect = CUDA

    def __init__(self, nest: LoopNest, variant: Variant) -> None:
        column = "e" if nest.columns and variant.vector > 1 else ""
        super().__init__(nest, variant.cache in ("shared", "registers"), column, variant.vector)
        self.first_column = f"i{nest.vector}"
        self.variant = variant
        self.online = online_of(nest) if variant.online else None
        self.traversals = traversals(self.stages, variant.online)
        self.slots = slots_of(nest, self.traversals) if variant.cache else {}
        self.part_arrays = part_arrays(nest)
        self.draws = self._vectorised_draws()
        read = [dtype for dtype, level in zip(nest.reads, nest.levels, strict=False) if level != "once"]
        floats = list(filter(is_floating, (*read, *nest.stored)))
        #: Whether all floats that it reads and stores are narrow, but numbers that it reads.
        self.is_narrow = bool(floats) and all(map(is_narrow, floats))

    def _vectorised_draws(self) -> dict[int, str]:
        """The statements that draw numbers at an access's consecutive flat indices, and the functions that do."""
        nest, variant = self.nest, self.variant
        if variant.vector == 1 or nest.columns or variant.team == "tiles":
            return {}
        found = {}
        for s in nest.statements_at("inner"):
            draw = _DRAW.fullmatch(s.expression)
            is_one_draw = all(nest.level_of(argument) == "once" for argument in s.arguments[:2])
            is_counted = any(nest.is_flat_index(i) and nest.vector_strides[i] == 1 for i in s.arguments[2:])
            if draw is not None and is_one_draw and is_counted:
                found[s.value] = draw[1]
        return found

    def parameters(self) -> list[tuple[str, str]]:
        """A kernel's parameters: their declarations and names."""
        nest, variant = self.nest, self.variant
        pointer, arrays = super().pointer_type, range(len(nest.arrays))
        found = [(f"{'long long ' if nest.tap_of(p) else pointer(p)}a{p}", f"a{p}") for p in arrays]
        if variant.split:
            found += [(f"{CUDA.accumulator_type(r)} *q{r.value}", f"q{r.value}") for r in nest.reductions]
        words = [f"n{axis}" for axis in range(nest.rank)]
        words += [*(f"s{array}_{axis}" for array, axis in self.strides()), *nest.bounds]
        found += [(f"long long {name}", name) for name in words]
        for value, dtype in enumerate(nest.numbers, len(nest.reads)):
            type = "long long" if dtype.kind == "b" else CUDA.type_of(dtype)
            found.append((f"{type} c{value}", f"c{value}"))
        found += [(f"long long m{axis}", f"m{axis}") for axis in self.divisors()]
        if variant.cache == "part":
            found.append(("long long held", "held"))
        if variant.split:
            found += [("long long part", "part"), ("int parts", "parts")]
        return found

    def pointer_type(self, array: int) -> str:
        """Flat indices are counted in the type of indices: comparisons of 64 bits take four instructions."""
        return "const Index " if self.nest.is_flat_index(array) else super().pointer_type(array)

    def base_pointer(self, array: int) -> str:
        return "0" if self.nest.is_flat_index(array) else super().base_pointer(array)

    # Kernels

    def bodies(self) -> Iterator[Lines]:
        """The bodies of the kernels."""
        nest = self.nest
        if not nest.reductions:
            yield [*self.elementwise(), *self.final_stores()]
        elif not self.variant.split:
            yield [*self.outer_loops(self.at_outer_index()), *self.final_stores()]
        else:
            found: Lines = self.joined_parts(0)
            for stage in self.traversals:
                stored_parts = [line for r in stage.reductions for line in self.stored_parts(r)]
                yield self.outer_loops(
                    [*found, *self.initialised(stage.reductions), *self.stage_loops(stage), *stored_parts]
                )
                found += [line for number in self.completed(stage) for line in self.joined_parts(number)]
            if len(kernel_names(nest, self.variant)) > len(self.traversals):
                yield [*self.outer_loops(found), *self.final_stores()]

    def final_stores(self) -> Lines:
        """Stores of single elements, by the first thread of the grid."""
        stores = self.once_stores()
        return ["if (blockIdx.x == 0 && threadIdx.x == 0)", *braced(stores)] if stores else []

    # Elementwise nests

    def elementwise(self) -> Lines:
        """The grid-stride loop of a nest without reductions."""
        if not self.nest.writes_at("inner"):
            return []
        if self.variant.team == "tiles":
            return self.tiles()
        (stage,), axes, count = self.stages, list(range(self.last)), self.variant.accesses
        lines = ["const int lanes = blockDim.x;", self.chunks()]
        lines.append(f"const Index total = {self.count('chunks', axes)};")
        pointers = [*self.pointers(axes, ("inner",)), *self.misalignment()]
        index = ["const Index k = c + u * lanes;", *self.access_index(axes, pointers)]
        start, step = f"(Index)blockIdx.x * lanes * {count} + threadIdx.x", f"(Index)gridDim.x * lanes * {count}"
        body = self.batch(stage, "x", index, "total")
        return [*lines, *GRID_STRIDE, f"for (Index c = {start}; c < total; c += {step})", *braced(body)]

    def count(self, first: str, axes: Sequence[int]) -> str:
        """The product of some loops' sizes and another number."""
        return " * ".join([*([first] if first else []), *(self.size(axis) for axis in axes)]) or "1"

    def tiles(self) -> Lines:
        """A tiled elementwise nest: strided arrays are loaded coalesced, and transposed through shared memory."""
        nest, (stage,) = self.nest, self.stages
        other, last = nest.across, self.last
        others = [axis for axis in range(last) if axis != other]
        strided, iterations = strided_reads(nest), TILE * TILE // self.variant.threads
        step, inside = TILE // iterations, f"if (k < (Index)n{other} && i < (Index)n{last})"
        lines: Lines = [f"const int lane = threadIdx.x % {TILE}, first = threadIdx.x / {TILE};"]
        for array in strided:
            lines.append(f"__shared__ {self.storage_type(array)} tile{array}[{TILE}][{TILE + 1}];")
        lines += [f"const Index tiles{axis} = ((Index)n{axis} + {TILE - 1}) / {TILE};" for axis in (other, last)]
        body = self.unravelled(f"p / tiles{last} / tiles{other}", others)
        body.append(f"const Index t{other} = p / tiles{last}{f' % tiles{other}' if others else ''} * {TILE};")
        body.append(f"const Index t{last} = p % tiles{last} * {TILE};")
        body += self.pointers(others, ("inner",))
        along = [f"const Index k = t{other} + first + u * {step};", f"const Index i = t{last} + lane;", inside]
        across = [f"const Index k = t{other} + lane;", f"const Index i = t{last} + first + u * {step};", inside]

        def at(array: int) -> str:
            return f"x{array}[{offset(array)}]"

        def offset(array: int) -> str:
            return f"k * {self.stride(array, other)} + {self.offset(array)}"

        def load(array: int) -> str:
            if nest.is_flat_index(array):
                return self.loaded(array, f"x{array}", offset(array))
            found = f"tile{array}[lane][first + u * {step}]" if array in strided else f"b{array}[u]"
            return unpacked(found, nest.reads[array])

        def store(array: int, value: int) -> str:
            return f"{at(array)} = {self.stored(array, value)};"

        loads = [array for array in stage.reads if not nest.is_flat_index(array)]
        body += [f"{self.storage_type(array)} b{array}[{iterations}];" for array in loads]
        loop = ["#pragma unroll", f"for (int u = 0; u < {iterations}; u++)"]
        for indices, arrays in ((across, strided), (along, [array for array in loads if array not in strided])):
            body += [*loop, *braced([*indices, *braced([f"b{p}[u] = {at(p)};" for p in arrays])])] if arrays else []
        stores = [f"tile{array}[first + u * {step}][lane] = b{array}[u];" for array in strided]
        body += ["__syncthreads();", *loop, *braced(stores), "__syncthreads();"]
        body += [*loop, *braced([*along, *braced(self.element(stage, Access(load, str, str, store)))])]
        total = self.count(f"tiles{last} * tiles{other}", others)
        return [*lines, *GRID_STRIDE, f"for (Index p = blockIdx.x; p < {total}; p += gridDim.x)", *braced(body)]

    # Nests that reduce

    def outer_loops(self, body: Lines) -> Lines:
        """The grid-stride loop over outer indices, one to a team."""
        nest, team = self.nest, self.variant.team
        axes = list(range(nest.outer))
        count = self.count("", axes)
        lines: Lines = []
        if self.variant.cache in ("shared", "part") and self.slots:
            lines.append("extern __shared__ __align__(16) unsigned char memory[];")
        if team == "block":
            lines.append("const int lane = threadIdx.x, lanes = blockDim.x;")
            decode = self.unravelled("p", axes)
        else:
            width, threads = self.variant.width, self.variant.threads
            lane, column = f"threadIdx.x % {width}", f"threadIdx.x / {width}"
            lanes, teams = width, threads // width
            if nest.columns:
                lane, column, lanes, teams = column, lane, teams, lanes
            lines.append(f"const int lane = {lane}, lanes = {lanes};")
            lines.append(f"const Index indices = {count}, tiles = (indices + {teams - 1}) / {teams};")
            count = "tiles"
            decode = [f"const Index index = p * {teams} + {column};", "const bool in_range = index < indices;"]
            decode += self.unravelled("(in_range ? index : 0)", axes)
            first_row, last_row = ("start", "end") if self.variant.split else ("0", "row")
            decode.append(f"const Index until = in_range ? {last_row} : {first_row};")
        lines += self.row_extent()
        vector = f"i{nest.vector}" if nest.columns else ""
        pointers = [*self.pointers(axes[: len(axes) - nest.columns], ("outer", "inner"), vector), *self.misalignment()]
        body = [*decode, *pointers, *self.row_caches(), *body]
        joined = [r for r in nest.reductions if any(re.search(rf"parts{r.value}\b", line) for line in body)]
        for r in joined:
            size = parts_size(team, self.variant.threads)
            lines.append(f"__shared__ {CUDA.accumulator_type(r)} parts{r.value}[{size}];")
        if joined and team == "block":
            body += [f"if (p + gridDim.x < {count})", *braced(["__syncthreads();"])]
        return [*lines, *GRID_STRIDE, f"for (Index p = blockIdx.x; p < {count}; p += gridDim.x)", *braced(body)]

    def row_extent(self) -> Lines:
        """The number of accesses of a row, and of a split row the block's part of them."""
        lines = [self.chunks(), f"const Index row = {self.count('chunks', range(self.nest.outer, self.last))};"]
        if self.variant.split:
            lines.append("const Index start = (Index)blockIdx.y * (Index)part;")
            lines.append("const Index end = start + (Index)part < row ? start + (Index)part : row;")
        return lines

    def row_caches(self) -> Lines:
        """Declarations of the rows that a team caches for later stages."""
        if self.variant.cache == "registers":
            shape = f"{self.variant.vector}>", f"[{self.variant.accesses}]"
            return [
                f"Vector<{self.storage_type(value)}, {shape[0]} g{value}{shape[1]};" for value in sorted(self.slots)
            ]
        if not self.slots:
            return []
        sizes = [size for _, size in sorted(set(self.slots.values()))]
        width = self.variant.vector * (self.variant.width if self.nest.columns else 1)
        cached = "(Index)held" if self.variant.cache == "part" else "row"
        lines = [f"const Index padded = ({cached} * {width} + 15) / 16 * 16;"]
        for value, (slot, _) in sorted(self.slots.items()):
            type = self.storage_type(value)
            lines.append(f"{type} *const g{value} = ({type} *)(memory + padded * {sum(sizes[:slot])});")
        return lines

    def column_loop(self) -> Lines:
        return ["#pragma unroll", f"for (int e = 0; e < {self.variant.vector}; e++)"]

    def unrolled(self, lines: Lines) -> Lines:
        """An unrolled loop over the elements of an access."""
        return [*self.column_loop(), *braced(lines)]

    def is_leader(self) -> str:
        return "lane == 0" if self.variant.team == "block" else "lane == 0 && in_range"

    def by_one_thread(self, lines: Lines) -> Lines:
        return [f"if ({self.is_leader()})", *braced(lines)]

    # Stages

    def stage_loops(self, stage: Stage) -> Lines:
        """The loop of a team over a row; each thread has the same elements in all stages."""
        nest, variant = self.nest, self.variant
        axes = list(range(nest.outer, self.last))
        start = "lane" if variant.cache == "registers" else "c"
        index = [f"const Index k = {start} + u * lanes;", *self.access_index(axes, self.stage_pointers(stage, axes))]
        first, last = ("start", "end") if variant.split else ("0", "row")
        last = last if variant.team == "block" else "until"
        parts, joined = self.partial_accumulators(stage)
        if variant.cache == "registers":
            return braced([*parts, *self.batch(stage, "y", index, last), *joined])
        step = f"{self.accesses_in_flight(stage)} * (Index)lanes"
        if not stage.reductions:
            head = f"for (Index c = {first} + lane; c < {last}; c += {step})"
            return [head, *braced(self.batch(stage, "y", index, last))]
        block = f"{SUM_BLOCK} * (Index)lanes"
        inner = [f"const Index stop = b + {block} < {last} ? b + {block} : {last};", *parts]
        inner += [f"for (Index c = b; c < stop; c += {step})", *braced(self.batch(stage, "y", index, "stop")), *joined]
        before = self.variables([(self.base_type(), "row_base", self.base_value()[1])] if self.is_online(stage) else [])
        return [*before, f"for (Index b = {first} + lane; b < {last}; b += {block})", *braced(inner)]

    def partial_accumulators(self, stage: Stage) -> tuple[Lines, Lines]:
        """Accumulators of some accesses, one for each element of an access, and how they join those of a row."""
        parts: Lines = []
        joined: Lines = []
        if self.is_online(stage):
            row_base, base = self.of_column("row_base"), self.of_column("base")
            sums = self.rescaled_sums(self.of_column("r{}"), row_base, base)
            variables = [(CUDA.part_type(r), f"t{r.value}", initial_value(r)) for r, _ in sums]
            parts = self.variables([*variables, (self.base_type(), "base", row_base)])
            joined = [f"{self.total(r)} = Join{r.value}()({sum}, {self.of_column(f't{r.value}')});" for r, sum in sums]
            return parts, self.each_column([*joined, f"{row_base} = {base};"])
        for r in stage.reductions:
            name, total = f"p{r.value}", self.total(r)
            parts.append(f"{CUDA.part_type(r)} {name}[{self.variant.vector}];")
            parts += self.unrolled([f"{name}[e] = {initial_value(r)};"])
            joined += self.unrolled([f"{total} = Join{r.value}()({total}, {name}[e]);"])
        return parts, joined

    def joined(self, stage: Stage) -> Lines:
        return [line for r in stage.reductions for line in [*self.rebased(r, self.base_value()[0]), *self.combined(r)]]

    def accumulators(self, r: Reduction) -> list[tuple[str, str, str]]:
        return [(CUDA.type_of(self.variant.accumulator_dtype(self.nest, r)), f"r{r.value}", initial_value(r))]

    def combined(self, r: Reduction) -> Lines:
        """The reduction of an accumulator across a team, with the result in each thread."""
        total, parts = self.total(r), f"parts{self.part_arrays[r.value]}"
        call = {
            "warp": f"over_lanes({total}, Join{r.value}(), {self.variant.width})",
            "block": f"over_block({total}, Join{r.value}(), {parts})",
            "columns": f"over_column({total}, Join{r.value}(), {parts}, {self.variant.width})",
        }[self.variant.team]
        return self.each_column([f"{total} = {call};"])

    def stored_parts(self, r: Reduction) -> Lines:
        """The reduction of one part of a row, stored for the next kernel."""
        part = self.each_column([f"q{r.value}[{self.part_offset()} + blockIdx.y] = {self.total(r)};"])
        return [*self.rebased(r, self.base_value()[1]), *self.combined(r), *self.by_one_thread(part)]

    def joined_parts(self, number: int) -> Lines:
        """The reduced values of the stage before, joined from the parts that its kernel has stored."""
        lines: Lines = []
        for r in self.stages[number - 1].reductions if number else []:
            total, part_of = self.total(r), f"q{{}}[{self.part_offset()} + k]"
            given = part_of.format(r.value)
            if self.online is not None and self.is_relative(r):
                _, base = self.base_value(part_of.format(self.online.reduction.value))
                given = dict(self.rescaled_sums(part_of, base, self.base_value()[0]))[r]
            part = self.each_column([f"{total} = Join{r.value}()({total}, {given});"])
            lines += [
                *self.initialised([r]),
                *(GRID_STRIDE if self.is_relative(r) else ()),
                "for (int k = lane; k < parts; k += lanes)",
                *braced(part),
                *self.combined(r),
            ]
        return [*lines, *self.outer(number)]

    def part_offset(self) -> str:
        """The offset of an outer index's parts."""
        if self.column:
            return f"((long long)index * {self.variant.vector} + e) * parts"
        return "(long long)index * parts" if self.nest.columns else "(long long)p * parts"

    # Two stages in one traversal, online: sums of the second are relative to a value that the first still reduces.
    # A batch reduces that value first, then the sums so far are made relative to it, then it adds its own.

    def is_online(self, stage: Stage) -> bool:
        """Whether a traversal is of two stages."""
        return stage.count > 1

    def is_relative(self, r: Reduction) -> bool:
        """Whether a sum is accumulated before the value is known that it is relative to."""
        return self.online is not None and r in self.stages[1].reductions

    def base_type(self) -> str:
        """The type of the value that sums are relative to."""
        return self.type_of(self.online.value) if self.online else ""

    def base_value(self, reduced: str = "") -> tuple[str, str]:
        """The name of the value that sums are relative to, and its expression for a reduction's value so far."""
        if self.online is None:
            return "", ""
        given = [reduced or self.total(self.online.reduction), *([self.column] if self.column else [])]
        return self.name(self.online.value), f"base_of({', '.join(given)})"

    def rescaled_sums(self, name: str, old: str, new: str) -> list[tuple[Reduction, str]]:
        """The sums that are relative to one value, relative to another, in an order in which they may be assigned."""
        pairs = self.online.sums if self.online else []
        given = [(r, name.format(r.value), name.format(whole.value)) for r, whole in pairs]
        return [(r, r.accumulator.rescaled.format(part, old, new, whole)) for r, part, whole in given]

    def rebased(self, r: Reduction, base: str) -> Lines:
        """A thread's sums, made relative to its team's value before the first of them is joined."""
        if not self.is_relative(r) or r != self.stages[1].reductions[0]:
            return []
        sums = self.rescaled_sums(self.of_column("r{}"), self.of_column("row_base"), base)
        return self.each_column([f"{self.total(r)} = {sum};" for r, sum in sums])

    def outer(self, number: int) -> Lines:
        lines = super().outer(number)
        if self.online is None or number:
            return lines
        reduction, name = self.online.reduction, f"r{self.online.reduction.value}"
        values = [reduction.value, *(statement.value for statement in self.online.statements)]
        finished = f"({reduction.accumulator.finish.format(name, count=0)})"
        body = self.column_arrays(values)
        body += [f"{self.declared(reduction.value)} = {self.dialect.converted(finished, reduction.dtype)};"]
        body += [line for statement in self.online.statements for line in self.assigned(statement)]
        column = f", const int {self.column}" if self.column else ""
        head = f"const auto base_of = [&](const {CUDA.accumulator_type(reduction)} {name}{column})"
        return [*lines, head, *braced([*body, f"return {self.base_value()[0]};"])[:-1], "};"]

    # Indices

    def unravelled(self, number: str, axes: Sequence[int]) -> Lines:
        """The indices of some loops from a flat index in C order."""
        if not axes:
            return []
        several = f" * {self.variant.vector}" if self.column else ""
        if len(axes) == 1:
            return [f"const Index i{axes[0]} = {number}{several if axes[0] == self.nest.vector else ''};"]
        lines, rest = [], number
        for axis in reversed(axes[1:]):
            lines.append(f"const Index over{axis} = {self.quotient(rest, axis)};")
            index = f"{rest} - over{axis} * {self.size(axis)}"
            lines.append(f"const Index i{axis} = {f'({index}){several}' if axis == self.nest.vector else index};")
            rest = f"over{axis}"
        return [*lines, f"const Index i{axes[0]} = {rest};"]

    def size(self, axis: int) -> str:
        """The size of a loop; of columns, the number of threads along it."""
        several = self.column and axis == self.nest.vector
        return f"(Index)(n{axis} / {self.variant.vector})" if several else f"(Index)n{axis}"

    def chunks(self) -> str:
        """The number of accesses of a row."""
        if self.nest.columns:
            return f"const Index chunks = (Index)n{self.last};"
        return f"const Index chunks = ((Index)n{self.last} + {self.variant.rest}) / {self.variant.vector};"

    def misalignment(self) -> Lines:
        """The number of elements by which rows begin after an aligned access."""
        if not self.variant.shifted:
            return []
        array, size = next(
            (array, self.nest.arrays[array].itemsize)
            for array in contiguous_arrays(self.nest)
            if array not in self.variant.unaligned
        )
        return [f"const int shift = (int)((unsigned long long)x{array} / {size} % {self.variant.vector});"]

    def access_index(self, axes: Sequence[int], pointers: Lines) -> Lines:
        """The indices of access ``k`` along some loops and the last."""
        lines, number = [], "k"
        if axes:
            lines = [f"const Index before = {self.quotient('k', self.last)};", *self.unravelled("before", axes)]
            number = "(k - before * chunks)"
        if self.nest.columns:
            inner = [f"const Index i = {number};", f"const Index i{self.last} = i;", *self.quotients([self.last])]
            return [*lines, *pointers, *inner, *self.flags()]
        shift = " - shift" if self.variant.shifted else ""
        return [*lines, *pointers, *self.flags(), f"const Index i = {number} * {self.variant.vector}{shift};"]

    def quotient(self, number: str, axis: int) -> str:
        """The integer quotient of a number and the size of a loop; for the last, its number of accesses."""
        if self.variant.wide_index:
            return f"{number} / {'chunks' if axis == self.last else self.size(axis)}"
        return f"quotient({number}, m{axis})"

    def divisors(self) -> list[int]:
        """The loops whose sizes are divisors, passed as factors and shifts."""
        outer, inner = range(self.nest.outer), range(self.nest.outer, self.last)
        if self.variant.wide_index:
            return []
        if not self.nest.reductions:
            axes = [axis for axis in range(self.last) if self.variant.team != "tiles" or axis != self.nest.across]
            return [*axes[1:], *([self.last] if axes and self.variant.team != "tiles" else [])]
        return [*outer[1:], *inner[1:], *([self.last] if inner else [])]

    def accesses_in_flight(self, stage: Stage) -> int:
        """The accesses that a thread loads before it uses the first: fewer where it loads several arrays."""
        variant, accesses = self.variant, self.variant.accesses
        cached = self.slots if variant.cache == "registers" else ()
        bytes_ = sum(self.nest.reads[array].itemsize for array in self.first_loads(stage) if array not in cached)
        flight = (
            BYTES_IN_FLIGHT // variant.vector
            if variant.cache == "registers"
            else accesses * min(loaded_bytes(self.nest))
        )
        most = max(1, flight // bytes_) if bytes_ else accesses
        return max(n for n in range(1, accesses + 1) if accesses % n == 0 and n <= most)

    def first_loads(self, stage: Stage) -> list[int]:
        """The arrays that a stage is the first to load."""
        arrays = [array for array in stage.reads if not self.nest.is_flat_index(array)]
        earlier = [] if self.is_online(stage) else self.stages[: self.stages.index(stage)]
        return [array for array in arrays if array not in self.slots or not any(array in w.reads for w in earlier)]

    def batch(self, stage: Stage, letter: str, index: Lines, until: str) -> Lines:
        """A thread's next batch of accesses, from ``k``: all loads are issued before the first is used.

        `letter`: the first letter of pointers.
        `index`: definitions of the indices ``k`` and ``i`` of access ``u``, and of its pointers.
        `until`: the bound of ``k``.
        """
        count = self.accesses_in_flight(stage)
        steps = self.variant.cache == "registers" and count < self.variant.accesses
        if self.tests_bounds:
            vector = self.variant.vector
            rest = f"(Index)n{self.last} - i"
            index = [*index, f"const int count = {rest} < {vector} ? (int)({rest}) : {vector};"]
            index += ["const int first = i < 0 ? (int)-i : 0;"] if self.variant.shifted else []
        lines, loads = self.loads(stage, letter)
        loop = f"for (int u = t; u < t + {count}; u++)" if steps else f"for (int u = 0; u < {count}; u++)"

        def each_access(body: Lines) -> Lines:
            found = without_unused([*index, f"if (k < {until})", *braced(body)])
            return ["#pragma unroll", loop, *braced(found)] if body else []

        lines += [*each_access(loads), *self.batch_elements(stage, letter, each_access)]
        if steps:
            lines = ["#pragma unroll", f"for (int t = 0; t < {self.variant.accesses}; t += {count})", *braced(lines)]
        return lines

    def batch_elements(self, stage: Stage, letter: str, each_access: Callable[[Lines], Lines]) -> Lines:
        """The elements of a stage's batch, or of two stages' that share a traversal.

        `each_access`: from the body for one access to the loop over a batch.
        """
        if self.online is None or not self.is_online(stage):
            return each_access(self.access_elements(stage, letter))
        first, second = self.stages[:2]
        value, base = self.base_value()
        rescaled = self.rescaled_sums(self.of_column("t{}"), self.of_column("base"), value)
        moved = [f"{self.of_column(f't{r.value}')} = {sum};" for r, sum in rescaled]
        based = [f"{self.declared(self.online.value)} = {base};", *moved, f"{self.of_column('base')} = {value};"]
        parts = [(CUDA.part_type(r), f"p{r.value}", initial_value(r)) for r in second.reductions]
        added = [(r, self.of_column(f"t{r.value}"), self.of_column(f"p{r.value}")) for r in second.reductions]
        return [
            *each_access(self.access_elements(first, letter)),
            *self.column_arrays([self.online.value]),
            *self.each_column(based),
            *self.variables(parts),
            *each_access(self.access_elements(second, letter)),
            *self.each_column([f"{total} = {self.combine(r).format(total, part)};" for r, total, part in added]),
        ]

    def loads(self, stage: Stage, letter: str) -> tuple[Lines, Lines]:
        """Declarations of the vectors that a stage loads, and the load of one access of each."""
        vector, in_registers = self.variant.vector, self.variant.cache == "registers"
        count = self.variant.accesses if in_registers else self.accesses_in_flight(stage)
        first, declared, lines = self.first_loads(stage), [], []
        for value in [*(array for array in stage.reads if not self.nest.is_flat_index(array)), *stage.loads]:
            if value in self.slots and in_registers:
                lines += self.load_access(value, letter) if value in first else []
                continue
            declared.append(f"Vector<{self.storage_type(value)}, {vector}> b{value}[{count}];")
            access = self.load_access(value, letter) if value in stage.reads else []
            lines += access if value in first else self.if_cached([f"b{value}[u] = {self.cached(value)};"], access)
        return declared, lines

    def if_cached(self, lines: Lines, others: Lines) -> Lines:
        """Lines for cached accesses, and others for the rest, where a row is cached in part."""
        if self.variant.cache != "part":
            return lines
        return ["if (k < (Index)held)", *braced(lines), *(["else", *braced(others)] if others else [])]

    def access_elements(self, stage: Stage, letter: str) -> Lines:
        """The body of a stage for one access that has been loaded."""
        nest, variant = self.nest, self.variant
        lines: Lines = []
        stores: Lines = []
        cache_stores = [
            f"{self.cached(array)} = b{array}[u];" for array in self.first_loads(stage) if array in self.slots
        ]
        if cache_stores and variant.cache != "registers":
            lines += self.if_cached(cache_stores, [])
        for value in stage.stores if variant.cache != "registers" else ():
            lines.append(f"Vector<{self.storage_type(value)}, {variant.vector}> o{value};")
            stores.append(f"{self.cached(value)} = o{value};")
        for array, value in stage.writes:
            lines.append(f"Vector<{self.type_of(value)}, {variant.vector}> w{array};")
            stores += self.store_access(array, f"{letter}{array}")

        for s in stage.statements:
            if isinstance(s, Statement) and s.value in self.draws:
                seed, counter, _ = map(self.name, s.arguments)
                given = f"{seed}, {counter}, {letter}{s.arguments[2]} + i"
                draw = f"drawn<{variant.vector}, {self.draws[s.value]}>({given})"
                lines.append(f"const Vector<float, {variant.vector}> d{s.value} = {draw};")

        def load(value: int) -> str:
            if value < len(nest.reads) and nest.is_flat_index(value):
                return self.loaded(value, f"{letter}{value}", self.offset(value))
            return unpacked(f"{self.vector_of(value)}.at[e]", nest.dtype_of(value))

        def cache(value: int) -> str:
            vector = self.cached(value) if variant.cache == "registers" else f"o{value}"
            return f"{vector}.at[e] = {packed(self.name(value), nest.dtype_of(value))};"

        def part(r: Reduction) -> str:
            if self.online is None or r.stage > 1:
                return f"p{r.value}[e]"
            return self.of_column(f"p{r.value}") if self.is_relative(r) else self.total(r)

        access = Access(load, part, cache, lambda array, value: f"w{array}.at[e] = {self.name(value)};")
        elements = self.unrolled(self.element(stage, access))
        if self.tests_bounds and stage.reductions and variant.cache != "registers":
            whole = CudaPrinter(nest, replace(variant, whole=True))
            elements = [
                f"if ({self.is_whole_access})",
                *braced(whole.unrolled(whole.element(stage, access))),
                "else",
                *braced(elements),
            ]
        return [*lines, *elements, *stores]

    def assigned(self, statement: Statement) -> Lines:
        value = statement.value
        if value in self.draws:
            return [f"{self.declared(value)} = d{value}.at[e];"]
        return super().assigned(self.near(statement))

    def near(self, s: Statement) -> Statement:
        """A statement, by quicker functions where its value is narrower than float32 once it is stored."""
        return s._replace(expression=for_device(s.expression, self.is_narrow and s.dtype == FLOAT32))

    @staticmethod
    def is_extreme(r: Reduction) -> bool:
        """Whether a reduction is a maximum or minimum in float32 that nan is part of."""
        return bool(r.accumulator.of_numbers) and wide_dtype(r.dtype) == np.float32

    def combine(self, r: Reduction) -> str:
        return EXTREME_OF[r.accumulator.start] if self.is_extreme(r) else super().combine(r)

    def accumulated(self, r: Reduction, part: str) -> Lines:
        (line,) = super().accumulated(r, part)
        return [f"if ({self.in_bounds}) {line}" if self.tests_bounds else line]

    def storage_type(self, value: int) -> str:
        """The type in which a value's elements are loaded and cached."""
        return CUDA.types[str(self.nest.dtype_of(value))]

    def vector_of(self, value: int) -> str:
        """The vector that a value is loaded into."""
        return self.cached(value) if value in self.slots and self.variant.cache == "registers" else f"b{value}[u]"

    def cached(self, value: int) -> str:
        """The vector that caches a value for later stages."""
        if self.variant.cache == "registers":
            return f"g{value}[u]"
        width = self.variant.width
        index = f"k * {self.variant.vector}"
        if self.nest.columns:
            index = f"(k * {width} + threadIdx.x % {width}) * {self.variant.vector}"
        return f"*(Vector<{self.storage_type(value)}, {self.variant.vector}> *)(g{value} + {index})"

    @property
    def tests_bounds(self) -> bool:
        """Whether an access may be partial."""
        return self.variant.vector > 1 and not self.variant.whole

    @property
    def is_whole_access(self) -> str:
        """The condition that an access is not partial."""
        return f"{'first == 0 && ' if self.variant.shifted else ''}count == {self.variant.vector}"

    @property
    def in_bounds(self) -> str:
        """The condition that element ``e`` of an access is in bounds."""
        return "e >= first && e < count" if self.variant.shifted else "e < count"

    @property
    def bounds(self) -> str:
        """The bounds of an access that may be partial, as arguments of `loaded` and `store`."""
        if self.variant.whole:
            return ""
        return ", first, count" if self.variant.shifted else ", 0, count"

    def offset(self, array: int) -> str:
        """The offset of an access's element ``e`` from a pointer."""
        if not self.nest.columns:
            return self.vector_offset(array, "i + e" if self.variant.vector > 1 else "i")
        index = self.index(array, self.last) if self.nest.spaced_along(array, self.last) else "i"
        steps = [f"{index} * {self.stride(array, self.last)}"] if self.has_stride(array, self.last) else []
        return " + ".join([*steps, *([self.column_offset(array)] if self.column else [])]) or "0"

    def access_pointer(self, array: int, pointer: str) -> str:
        """The pointer of a vectorised access."""
        return f"{pointer} + " + (f"i * {self.stride(array, self.last)}" if self.nest.columns else "i")

    def load_access(self, array: int, letter: str) -> Lines:
        """The load of an access."""
        vector, pointer, name = self.variant.vector, f"{letter}{array}", self.vector_of(array)
        index = self.offset(array)
        if self.nest.tap_of(array) is not None:
            return self.load_tap(array, f"{pointer}[{index}]", name)
        if vector == 1:
            return [f"{name}.at[0] = {pointer}[{index}];"]
        if self.nest.vector_strides[array] == 1:
            if array in self.variant.unaligned:
                return [f"{name} = unaligned<{vector}>({pointer}, i, (Index)n{self.last}, shift);"]
            return [f"{name} = loaded<{vector}>({self.access_pointer(array, pointer)}{self.bounds});"]
        return self.unrolled(
            [f"{name}.at[e] = {pointer}[{index if self.variant.whole else f'{self.in_bounds} ? {index} : 0'}];"]
        )

    def load_tap(self, array: int, element: str, name: str) -> Lines:
        """The load of a tap's access, element by element: at an offset, it is not aligned."""
        vector, along = self.variant.vector, self.nest.vector
        index = f"i{along}" if self.nest.columns else "i"
        index = f"({index} + e)" if vector > 1 else index
        conditions = [self.within(array, range(self.nest.rank), lambda loop: index if loop == along else None)]
        conditions += [self.in_bounds] * self.tests_bounds
        condition = " && ".join(f"({each})" for each in conditions if each)
        load = f"{condition} ? {element} : {self.outside(array)}" if condition else element
        return [f"{name}.at[0] = {load};"] if vector == 1 else self.unrolled([f"{name}.at[e] = {load};"])

    def store_access(self, array: int, pointer: str) -> Lines:
        """The store of an access."""
        dtype, found = self.nest.arrays[array], f"w{array}"
        if is_narrow(dtype):
            found = f"narrowed<{CUDA.types[str(dtype)]}>(w{array})"
        if self.variant.vector > 1 and self.nest.vector_strides[array] == 1:
            return [f"store({self.access_pointer(array, pointer)}, {found}{self.bounds});"]
        if self.variant.vector == 1:
            return [f"{pointer}[{self.offset(array)}] = {packed(f'w{array}.at[0]', dtype)};"]
        guard = "" if self.variant.whole else f"if ({self.in_bounds}) "
        return self.unrolled([f"{guard}{pointer}[{self.offset(array)}] = {packed(f'w{array}.at[e]', dtype)};"])
