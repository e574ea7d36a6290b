"""Loop nests as CUDA.

An elementwise nest gives each thread vectorised loads and stores, a grid's stride
apart. One that reduces gives each outer index to a team of threads: some lanes of
a warp, a block, or, of columns, the threads of a block that share a column. Where
there are too few outer indices to keep the device busy, the inner loops are split,
and each stage is a kernel of its own, whose parts the next one joins.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from backends.execution.dialect import (
    Dialect,
    Lines,
    braced,
    functions_called,
    initial,
    narrow_dtypes,
    needed,
    unpacked,
    wide,
)
from backends.execution.printer_common import Access, Printer
from backends.gpu.codegen.variant import FLIGHT, Variant, along, loaded_bytes, slots_of
from optree.compile.loopnest import LoopNest, Reduction, Stage, crossing_reads, stages_of

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
    },
    byte="bool",
    inline="__device__ __forceinline__",
    cast="(Index)",
)

#: The accesses whose elements are accumulated in the dtype itself before they join a sum in float64.
BLOCK = 64

#: Vectorised loads and stores.
HEAD = """#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif

template <class T, int N> struct alignas(sizeof(T) * N) Vector { T at[N]; };

template <int N, class T> __device__ __forceinline__ Vector<T, N> loaded(const T *p)
{
    return *(const Vector<T, N> *)p;
}

template <int N, class T> __device__ __forceinline__ Vector<T, N> loaded(const T *p, int first, int count)
{
    if (first == 0 && count == N)
        return loaded<N>(p);
    Vector<T, N> found;
    #pragma unroll
    for (int e = 0; e < N; e++)
        found.at[e] = e >= first && e < count ? p[e] : T();
    return found;
}

template <int N, class T> __device__ __forceinline__ void store(T *p, const Vector<T, N> &values)
{
    *(Vector<T, N> *)p = values;
}

template <int N, class T> __device__ __forceinline__ void store(T *p, const Vector<T, N> &values, int first, int count)
{
    if (first == 0 && count == N)
        return store(p, values);
    #pragma unroll
    for (int e = 0; e < N; e++)
        if (e >= first && e < count)
            p[e] = values.at[e];
}
"""

#: Conversions of narrow dtypes.
NARROW = {
    "float16": """#include <cuda_fp16.h>

__device__ __forceinline__ float from_half(__half x) { return __half2float(x); }
__device__ __forceinline__ __half to_half(float x) { return __float2half_rn(x); }
__device__ __forceinline__ float rounded_half(float x) { return __half2float(__float2half_rn(x)); }
__device__ __forceinline__ float rounded_half(double x) { return __half2float(__double2half(x)); }
template <class T> __device__ __forceinline__ float rounded_half(T x) { return rounded_half((float)x); }
""",
    "bfloat16": """#include <cuda_bf16.h>

__device__ __forceinline__ float from_bfloat(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ __nv_bfloat16 to_bfloat(float x) { return __float2bfloat16_rn(x); }
__device__ __forceinline__ float rounded_bfloat(float x) { return __bfloat162float(__float2bfloat16_rn(x)); }
__device__ __forceinline__ float rounded_bfloat(double x) { return __bfloat162float(__double2bfloat16(x)); }
template <class T> __device__ __forceinline__ float rounded_bfloat(T x) { return rounded_bfloat((double)x); }
""",
}

#: A number below 2^31 by another, by what `backends.gpu.kernel.divisor` makes of that.
QUOTIENT = """
__device__ __forceinline__ int quotient(int number, long long divisor)
{
    return (int)(__umulhi(2u * (unsigned int)number, (unsigned int)divisor) >> (int)(divisor >> 32));
}
"""

#: How a team's threads join their accumulators. Nobody writes parts anew before all have read them: where two arrays
#: take turns (`part_arrays`), the join in between has a barrier; a block that goes on to other indices waits at one
#: before it does; and of columns one after the other is joined.
JOINED = {
    "warp": """
template <class T, class J> __device__ __forceinline__ T over_lanes(T x, J join, int lanes)
{
    #pragma unroll
    for (int apart = lanes / 2; apart > 0; apart /= 2)
        x = join(x, (T)__shfl_xor_sync(~0u, x, apart));
    return (T)__shfl_sync(~0u, x, 0, lanes);
}
""",
    "block": """
template <class T, class J> __device__ __forceinline__ T over_block(T x, J join, T *parts)
{
    const int warps = blockDim.x / 32;
    x = over_lanes(x, join, 32);
    if (threadIdx.x % 32 == 0)
        parts[threadIdx.x / 32] = x;
    __syncthreads();
    return over_lanes(parts[threadIdx.x & (warps - 1)], join, warps);
}
""",
    "columns": """
template <class T, class J> __device__ __forceinline__ T over_column(T x, J join, T *parts, int width)
{
    parts[threadIdx.x] = x;
    __syncthreads();
    for (int apart = blockDim.x / 2; apart >= width; apart /= 2) {
        if (threadIdx.x < apart)
            parts[threadIdx.x] = join(parts[threadIdx.x], parts[threadIdx.x + apart]);
        __syncthreads();
    }
    x = parts[threadIdx.x % width];
    __syncthreads();
    return x;
}
""",
}


#: The indices of a tile along each of its loops.
TILE = 32


def source(nest: LoopNest, variant: Variant) -> str:
    """The CUDA source of a nest: a kernel, or of a split nest one for each stage and the last."""
    printer = _Printer(nest, variant)
    head = [NARROW[name].rstrip("\n") for name in narrow_dtypes(nest)]
    head.append(HEAD.rstrip("\n"))
    head += [QUOTIENT.rstrip("\n")] if printer.divisors() else []
    if nest.reductions:
        teams = ["columns"] if variant.team == "columns" else ["warp", "block"][: 1 + (variant.team == "block")]
        head += [JOINED[team].rstrip("\n") for team in teams]
    head += ["", *functions_called(nest, CUDA)]
    head.append(f"typedef {'long long' if variant.wide else 'int'} Index;")
    lines = [line for part in head for line in part.splitlines()]
    for r in nest.reductions:
        type = CUDA.type_of(wide(r))
        joined = r.accumulator.combine.format("x", "y")
        lines += [
            f"struct Join{r.value} {{ __device__ {type} operator()({type} x, {type} y) const {{ return {joined}; }} }};"
        ]
    for name, body in zip(kernel_names(nest, variant.split), printer.bodies(), strict=True):
        parameters = ",\n    ".join(parameter for parameter, _ in printer.parameters())
        lines += ["", f'extern "C" __global__ void __launch_bounds__({variant.threads}) {name}(', f"    {parameters})"]
        lines += braced(needed([*printer.numbers(), *printer.once(), *body]))
    return "\n".join([*lines, ""])


def kernel_names(nest: LoopNest, split: bool) -> list[str]:
    """The kernels of a nest, in the order in which they run."""
    if not split:
        return ["kernel"]
    found = stages_of(nest, cache=False)
    needs_end = found[-1].reductions or nest.writes_at("outer") or nest.writes_at("once")
    return [*(f"walk{number}" for number in range(len(found))), *(["end"] if needs_end else [])]


def part_arrays(nest: LoopNest) -> dict[int, int]:
    """For each reduction, the one whose array in shared memory takes its parts when a team joins them.

    Two arrays of a type take turns, so that a block needs a few kilobytes at most, however many reductions there are.
    """
    found: dict[int, int] = {}
    first: dict[tuple[np.dtype, int], int] = {}
    for number, r in enumerate(r for stage in stages_of(nest) for r in stage.reductions):
        found[r.value] = first.setdefault((wide(r), number % 2), r.value)
    return found


def parts_size(team: str, threads: int) -> int:
    """How many elements an array of parts has."""
    return {"block": 32, "columns": threads}.get(team, 0)


def static_bytes(nest: LoopNest, team: str, threads: int) -> int:
    """Bytes of static shared memory of a block: what the kernel declares, or of a split nest the last of them."""
    if team == "tiles":
        return sum(nest.reads[place].itemsize for place in crossing_reads(nest)) * TILE * (TILE + 1)
    arrays = set(part_arrays(nest).values())
    return parts_size(team, threads) * sum(wide(r).itemsize for r in nest.reductions if r.value in arrays)


def parameter_names(nest: LoopNest, variant: Variant) -> list[str]:
    """The parameters of each kernel of a nest, by name, in order."""
    return [name for _, name in _Printer(nest, variant).parameters()]


class _Printer(Printer):
    """A nest in CUDA, in a variant: teams of threads share outer indices, and each thread makes vectorised loads."""

    dialect = CUDA

    def __init__(self, nest: LoopNest, variant: Variant) -> None:
        column = "e" if nest.columns and variant.vector > 1 else ""
        super().__init__(nest, variant.cache in ("shared", "registers"), column, variant.vector)
        self.variant = variant
        self.slots = slots_of(nest, self.stages) if variant.cache else {}
        self.part_arrays = part_arrays(nest)

    def parameters(self) -> list[tuple[str, str]]:
        """A kernel's parameters by declaration and name, sizes and strides that it does not need left out."""
        nest, variant = self.nest, self.variant
        found = [(f"{self.pointer_type(place)}a{place}", f"a{place}") for place in range(len(nest.arrays))]
        if variant.split:
            found += [(f"{CUDA.type_of(wide(r))} *q{r.value}", f"q{r.value}") for r in nest.reductions]
        words = [f"n{axis}" for axis in range(nest.rank)]
        words += [f"s{place}_{axis}" for place, axis in self.strides()]
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

    # Kernels

    def bodies(self) -> Iterator[Lines]:
        """The kernels' bodies."""
        nest = self.nest
        if not nest.reductions:
            yield [*self.elementwise(), *self.closed()]
        elif not self.variant.split:
            yield [*self.shared_out(self.at_outer_index()), *self.closed()]
        else:
            found: Lines = []
            for number, stage in enumerate(self.stages):
                found += self.resumed(number)
                ended = [line for r in stage.reductions for line in self.ended(r)]
                yield self.shared_out([*found, *self.opened(stage.reductions), *self.traversed(stage), *ended])
            # Left out where nothing is to be done when all stages are over.
            last = [*found, *self.resumed(len(self.stages))]
            if len(kernel_names(nest, True)) > len(self.stages):
                yield [*self.shared_out(last), *self.closed()]

    def closed(self) -> Lines:
        """The stores of one thread alone."""
        stores = self.once_stores()
        return ["if (blockIdx.x == 0 && threadIdx.x == 0)", *braced(stores)] if stores else []

    # Elementwise nests

    def elementwise(self) -> Lines:
        """A nest without reductions: each thread some elements, then those a grid's stride on."""
        if not self.nest.writes_at("inner"):
            return []
        if self.variant.team == "tiles":
            return self.tiles()
        (stage,), axes, count = self.stages, list(range(self.last)), self.variant.accesses
        lines = ["const int lanes = blockDim.x;", self.chunks()]
        lines.append(f"const Index total = {self.count('chunks', axes)};")
        pointers = [*self.pointers(axes, ("inner",)), *self.shift()]
        index = ["const Index k = c + u * lanes;", *self.located(axes, pointers)]
        start, step = f"(Index)blockIdx.x * lanes * {count} + threadIdx.x", f"(Index)gridDim.x * lanes * {count}"
        body = self.turn(stage, "x", index, "total")
        return [*lines, f"for (Index c = {start}; c < total; c += {step})", *braced(body)]

    def count(self, first: str, axes: Sequence[int]) -> str:
        """The number of indices of some loops, times another number."""
        return " * ".join([*([first] if first else []), *(self.size(axis) for axis in axes)]) or "1"

    def tiles(self) -> Lines:
        """Two loops in tiles: arrays along the other loop are loaded coalesced, and transposed in shared memory."""
        nest, (stage,) = self.nest, self.stages
        other, last = nest.across, self.last
        others = [axis for axis in range(last) if axis != other]
        crossing, turns = crossing_reads(nest), TILE * TILE // self.variant.threads
        step, inside = TILE // turns, f"if (k < (Index)n{other} && i < (Index)n{last})"
        lines: Lines = [f"const int lane = threadIdx.x % {TILE}, first = threadIdx.x / {TILE};"]
        for place in crossing:
            lines.append(f"__shared__ {self.held(place)} tile{place}[{TILE}][{TILE + 1}];")
        lines += [f"const Index tiles{axis} = ((Index)n{axis} + {TILE - 1}) / {TILE};" for axis in (other, last)]
        body = self.decoded(f"p / tiles{last} / tiles{other}", others)
        body.append(f"const Index t{other} = p / tiles{last} % tiles{other} * {TILE};")
        body.append(f"const Index t{last} = p % tiles{last} * {TILE};")
        body += self.pointers(others, ("inner",))
        along = [f"const Index k = t{other} + first + u * {step};", f"const Index i = t{last} + lane;", inside]
        across = [f"const Index k = t{other} + lane;", f"const Index i = t{last} + first + u * {step};", inside]

        def at(place: int) -> str:
            return f"x{place}[{offset(place)}]"

        def offset(place: int) -> str:
            return f"k * {self.stride(place, other)} + {self.offset(place)}"

        def load(place: int) -> str:
            if nest.is_counted(place):
                return self.loaded(place, f"x{place}", offset(place))
            found = f"tile{place}[lane][first + u * {step}]" if place in crossing else f"b{place}[u]"
            return unpacked(found, nest.reads[place])

        loads = [place for place in stage.reads if not nest.is_counted(place)]
        body += [f"{self.held(place)} b{place}[{turns}];" for place in loads]
        each = ["#pragma unroll", f"for (int u = 0; u < {turns}; u++)"]
        for where, places in ((across, crossing), (along, [place for place in loads if place not in crossing])):
            body += [*each, *braced([*where, *braced([f"b{p}[u] = {at(p)};" for p in places])])] if places else []
        handed = [f"tile{place}[first + u * {step}][lane] = b{place}[u];" for place in crossing]
        body += ["__syncthreads();", *each, *braced(handed), "__syncthreads();"]
        made = self.element(stage, Access(load, str, str, at))
        body += [*each, *braced([*along, *braced(made)])]
        total = self.count(f"tiles{last} * tiles{other}", others)
        return [*lines, f"for (Index p = blockIdx.x; p < {total}; p += gridDim.x)", *braced(body)]

    # Nests that reduce

    def shared_out(self, body: Lines) -> Lines:
        """The outer loops, shared out to teams."""
        nest, team = self.nest, self.variant.team
        axes = list(range(nest.outer))
        count = self.count("", axes)
        lines: Lines = []
        if self.variant.cache in ("shared", "part") and self.slots:
            lines.append("extern __shared__ __align__(16) unsigned char memory[];")
        if team == "block":
            lines.append("const int lane = threadIdx.x, lanes = blockDim.x;")
            decode = self.decoded("p", axes)
        else:
            width, threads = self.variant.width, self.variant.threads
            lane, column = f"threadIdx.x % {width}", f"threadIdx.x / {width}"
            lanes, teams = width, threads // width
            if nest.columns:
                lane, column, lanes, teams = column, lane, teams, lanes
            lines.append(f"const int lane = {lane}, lanes = {lanes};")
            lines.append(f"const Index places = {count}, tiles = (places + {teams - 1}) / {teams};")
            count = "tiles"
            decode = [f"const Index place = p * {teams} + {column};", "const bool is_there = place < places;"]
            decode += self.decoded("(is_there ? place : 0)", axes)
            first_row, last_row = ("start", "end") if self.variant.split else ("0", "row")
            decode.append(f"const Index until = is_there ? {last_row} : {first_row};")
        lines += self.extents()
        vector = f"i{nest.vector}" if nest.columns else ""
        pointers = [*self.pointers(axes[: len(axes) - nest.columns], ("outer", "inner"), vector), *self.shift()]
        body = [*decode, *pointers, *self.rows(), *body]
        joined = [r for r in nest.reductions if any(re.search(rf"parts{r.value}\b", line) for line in body)]
        for r in joined:
            size = parts_size(team, self.variant.threads)
            lines.append(f"__shared__ {CUDA.type_of(wide(r))} parts{r.value}[{size}];")
        if joined and team == "block":
            body += [f"if (p + gridDim.x < {count})", *braced(["__syncthreads();"])]
        return [*lines, f"for (Index p = blockIdx.x; p < {count}; p += gridDim.x)", *braced(body)]

    def extents(self) -> Lines:
        """The number of accesses of a row, and this block's share of them."""
        lines = [self.chunks(), f"const Index row = {self.count('chunks', range(self.nest.outer, self.last))};"]
        if self.variant.split:
            lines.append("const Index start = (Index)blockIdx.y * (Index)part;")
            lines.append("const Index end = start + (Index)part < row ? start + (Index)part : row;")
        return lines

    def rows(self) -> Lines:
        """Rows in which a team caches values for later stages."""
        if self.variant.cache == "registers":
            shape = f"{self.variant.vector}>", f"[{self.variant.accesses}]"
            return [f"Vector<{self.held(value)}, {shape[0]} g{value}{shape[1]};" for value in sorted(self.slots)]
        if not self.slots:
            return []
        sizes = [size for _, size in sorted(set(self.slots.values()))]
        width = self.variant.width if self.nest.columns else self.variant.vector
        cached = "(Index)held" if self.variant.cache == "part" else "row"
        lines = [f"const Index padded = ({cached} * {width} + 15) / 16 * 16;"]
        for value, (slot, _) in sorted(self.slots.items()):
            type = self.held(value)
            lines.append(f"{type} *const g{value} = ({type} *)(memory + padded * {sum(sizes[:slot])});")
        return lines

    def column_loop(self) -> Lines:
        return ["#pragma unroll", f"for (int e = 0; e < {self.variant.vector}; e++)"]

    def unrolled(self, lines: Lines) -> Lines:
        """Lines for each element of an access."""
        return [*self.column_loop(), *braced(lines)]

    def leads(self) -> str:
        return "lane == 0" if self.variant.team == "block" else "lane == 0 && is_there"

    def leading(self, lines: Lines) -> Lines:
        return [f"if ({self.leads()})", *braced(lines)]

    # Stages

    def traversed(self, stage: Stage) -> Lines:
        """One stage of a row by a team; each thread keeps to the same elements in all stages."""
        nest, variant = self.nest, self.variant
        axes = list(range(nest.outer, self.last))
        start = "lane" if variant.cache == "registers" else "c"
        index = [f"const Index k = {start} + u * lanes;", *self.located(axes, self.stage_pointers(stage, axes))]
        first, last = ("start", "end") if variant.split else ("0", "row")
        last = last if variant.team == "block" else "until"
        parts: Lines = []
        joined: Lines = []
        for r in stage.reductions:
            name, total = f"p{r.value}", self.total(r)
            parts.append(f"{CUDA.part_type(r)} {name}[{variant.vector}];")
            parts += self.unrolled([f"{name}[e] = {initial(r)};"])
            joined += self.unrolled([f"{total} = Join{r.value}()({total}, {name}[e]);"])
        if variant.cache == "registers":
            return braced([*parts, *self.turn(stage, "y", index, last), *joined])
        step = f"{self.in_flight(stage)} * (Index)lanes"
        if not stage.reductions:
            head = f"for (Index c = {first} + lane; c < {last}; c += {step})"
            return [head, *braced(self.turn(stage, "y", index, last))]
        block = f"{BLOCK} * (Index)lanes"
        inner = [f"const Index stop = b + {block} < {last} ? b + {block} : {last};", *parts]
        inner += [f"for (Index c = b; c < stop; c += {step})", *braced(self.turn(stage, "y", index, "stop")), *joined]
        return [f"for (Index b = {first} + lane; b < {last}; b += {block})", *braced(inner)]

    def joined(self, stage: Stage) -> Lines:
        return [line for r in stage.reductions for line in self.combined(r)]

    def combined(self, r: Reduction) -> Lines:
        """The accumulators of a team's threads, joined, in each of them."""
        total, parts = self.total(r), f"parts{self.part_arrays[r.value]}"
        call = {
            "warp": f"over_lanes({total}, Join{r.value}(), {self.variant.width})",
            "block": f"over_block({total}, Join{r.value}(), {parts})",
            "columns": f"over_column({total}, Join{r.value}(), {parts}, {self.variant.width})",
        }[self.variant.team]
        return self.each_column([f"{total} = {call};"])

    def ended(self, r: Reduction) -> Lines:
        """An accumulator of one part of a row, handed to the next kernel."""
        part = self.each_column([f"q{r.value}[{self.entry()} + blockIdx.y] = {self.total(r)};"])
        return [*self.combined(r), *self.leading(part)]

    def resumed(self, number: int) -> Lines:
        """The values of the stage before, from the parts that its kernel has left: each team joins them alike."""
        lines: Lines = []
        for r in self.stages[number - 1].reductions if number else []:
            total = self.total(r)
            part = self.each_column([f"{total} = Join{r.value}()({total}, q{r.value}[{self.entry()} + k]);"])
            lines += [*self.opened([r]), "for (int k = lane; k < parts; k += lanes)", *braced(part), *self.combined(r)]
        return [*lines, *self.outer(number)]

    def entry(self) -> str:
        """The offset of an outer index's parts."""
        if self.column:
            return f"((long long)place * {self.variant.vector} + e) * parts"
        return "(long long)place * parts" if self.nest.columns else "(long long)p * parts"

    # Indices

    def decoded(self, number: str, axes: Sequence[int]) -> Lines:
        """The indices of loops from their linear index, that of the last loop the quickest."""
        if not axes:
            return []
        several = f" * {self.variant.vector}" if self.column else ""
        if len(axes) == 1:
            return [f"const Index i{axes[0]} = {number}{several if axes[0] == self.nest.vector else ''};"]
        lines, rest = [], number
        for axis in reversed(axes[1:]):
            lines.append(f"const Index over{axis} = {self.quotient(rest, axis)};")
            place = f"{rest} - over{axis} * {self.size(axis)}"
            lines.append(f"const Index i{axis} = {f'({place}){several}' if axis == self.nest.vector else place};")
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

    def shift(self) -> Lines:
        """The number of elements before a row at which its first access begins, where rows begin within an access."""
        if not self.variant.shifted:
            return []
        place, size = next((place, self.nest.arrays[place].itemsize) for place in along(self.nest))
        return [f"const int shift = (int)((unsigned long long)x{place} / {size} % {self.variant.vector});"]

    def located(self, axes: Sequence[int], pointers: Lines) -> Lines:
        """The indices of access ``k`` along some loops and the last, along which its elements are contiguous."""
        lines, number = [], "k"
        if axes:
            lines = [f"const Index before = {self.quotient('k', self.last)};", *self.decoded("before", axes)]
            number = "(k - before * chunks)"
        if self.nest.columns:
            return [*lines, *pointers, f"const Index i = {number};"]
        shift = " - shift" if self.variant.shifted else ""
        return [*lines, *pointers, f"const Index i = {number} * {self.variant.vector}{shift};"]

    def quotient(self, number: str, axis: int) -> str:
        """A number by the size of a loop; of the last, by its accesses."""
        if self.variant.wide:
            return f"{number} / {'chunks' if axis == self.last else self.size(axis)}"
        return f"quotient({number}, m{axis})"

    def divisors(self) -> list[int]:
        """The loops by whose sizes kernels divide by multiplication."""
        outer, inner = range(self.nest.outer), range(self.nest.outer, self.last)
        if self.variant.wide:
            return []
        if not self.nest.reductions:
            axes = [axis for axis in range(self.last) if self.variant.team != "tiles" or axis != self.nest.across]
            return [*axes[1:], *([self.last] if axes and self.variant.team != "tiles" else [])]
        return [*outer[1:], *inner[1:], *([self.last] if inner else [])]

    def in_flight(self, stage: Stage) -> int:
        """The accesses that a thread loads before it uses the first: of several arrays fewer than of one."""
        variant, held = self.variant, self.variant.accesses
        cached = self.slots if variant.cache == "registers" else ()
        bytes_ = sum(self.nest.reads[place].itemsize for place in self.first_loads(stage) if place not in cached)
        flight = FLIGHT // variant.vector if variant.cache == "registers" else held * min(loaded_bytes(self.nest))
        most = max(1, flight // bytes_) if bytes_ else held
        return max(n for n in range(1, held + 1) if held % n == 0 and n <= most)

    def first_loads(self, stage: Stage) -> list[int]:
        """The arrays that a stage is the first to load."""
        arrays = [place for place in stage.reads if not self.nest.is_counted(place)]
        earlier = self.stages[: self.stages.index(stage)]
        return [place for place in arrays if place not in self.slots or not any(place in w.reads for w in earlier)]

    def turn(self, stage: Stage, letter: str, index: Lines, until: str) -> Lines:
        """A thread's next accesses, at ``k``: it loads all of them before it uses the first.

        Parameters
        ----------
        letter : str
            The first letter of pointers.
        index : lines
            Definitions of the indices ``k`` and ``i`` of access ``u``, and of its pointers.
        until : str
            The end of ``k``.
        """
        count = self.in_flight(stage)
        steps = self.variant.cache == "registers" and count < self.variant.accesses
        if self.variant.vector > 1 and not self.variant.whole:
            vector = self.variant.vector
            rest = f"(Index)n{self.last} - i"
            index = [*index, f"const int count = {rest} < {vector} ? (int)({rest}) : {vector};"]
            index += ["const int first = i < 0 ? (int)-i : 0;"] if self.variant.shifted else []
        lines, loads = self.loads(stage, letter)
        for part in (loads, self.used(stage, letter)):
            if part:
                body = needed([*index, f"if (k < {until})", *braced(part)])
                each = f"for (int u = t; u < t + {count}; u++)" if steps else f"for (int u = 0; u < {count}; u++)"
                lines += ["#pragma unroll", each, *braced(body)]
        if steps:
            lines = ["#pragma unroll", f"for (int t = 0; t < {self.variant.accesses}; t += {count})", *braced(lines)]
        return lines

    def loads(self, stage: Stage, letter: str) -> tuple[Lines, Lines]:
        """Variables for the accesses that a stage loads, and the load of one of each."""
        vector, in_registers = self.variant.vector, self.variant.cache == "registers"
        count = self.variant.accesses if in_registers else self.in_flight(stage)
        first, declared, lines = self.first_loads(stage), [], []
        for value in [*(place for place in stage.reads if not self.nest.is_counted(place)), *stage.loads]:
            if value in self.slots and in_registers:
                lines += self.load_access(value, letter) if value in first else []
                continue
            declared.append(f"Vector<{self.held(value)}, {vector}> b{value}[{count}];")
            access = self.load_access(value, letter) if value in stage.reads else []
            lines += access if value in first else self.if_held([f"b{value}[u] = {self.cached(value)};"], access)
        return declared, lines

    def if_held(self, lines: Lines, others: Lines) -> Lines:
        """Lines for the accesses that are cached, and for the others, where a row is cached in part."""
        if self.variant.cache != "part":
            return lines
        return ["if (k < (Index)held)", *braced(lines), *(["else", *braced(others)] if others else [])]

    def used(self, stage: Stage, letter: str) -> Lines:
        """The elements of one access, once it is loaded."""
        nest, variant = self.nest, self.variant
        lines: Lines = []
        after: Lines = []
        caching = [f"{self.cached(place)} = b{place}[u];" for place in self.first_loads(stage) if place in self.slots]
        if caching and variant.cache != "registers":
            lines += self.if_held(caching, [])
        for value in stage.stores if variant.cache != "registers" else ():
            lines.append(f"Vector<{self.held(value)}, {variant.vector}> o{value};")
            after.append(f"{self.cached(value)} = o{value};")
        for place, _ in stage.writes:
            lines.append(f"Vector<{CUDA.types[str(nest.arrays[place])]}, {variant.vector}> w{place};")
            after += self.store_access(place, f"{letter}{place}")

        def load(value: int) -> str:
            if value < len(nest.reads) and nest.is_counted(value):
                return self.loaded(value, f"{letter}{value}", self.offset(value))
            return unpacked(f"{self.vector_of(value)}.at[e]", nest.dtype_of(value))

        def cache(value: int) -> str:
            vector = self.cached(value) if variant.cache == "registers" else f"o{value}"
            return f"{vector}.at[e] = {self.stored(value)};"

        access = Access(load, lambda r: f"p{r.value}[e]", cache, lambda place: f"w{place}.at[e]")
        return [*lines, *self.unrolled(self.element(stage, access)), *after]

    def accumulated(self, r: Reduction, part: str) -> Lines:
        (line,) = super().accumulated(r, part)
        return [line if self.variant.whole or self.variant.vector == 1 else f"if ({self.within}) {line}"]

    def held(self, value: int) -> str:
        """The type in which elements of a value are loaded and cached: narrow ones, which are rounded, as such."""
        return CUDA.types[str(self.nest.dtype_of(value))]

    def vector_of(self, value: int) -> str:
        """The vector of a value that is loaded."""
        return self.cached(value) if value in self.slots and self.variant.cache == "registers" else f"b{value}[u]"

    def cached(self, value: int) -> str:
        """The vector of a value that is cached for later stages."""
        if self.variant.cache == "registers":
            return f"g{value}[u]"
        width = self.variant.width
        index = f"k * {width} + threadIdx.x % {width}" if self.nest.columns else f"k * {self.variant.vector}"
        return f"*(Vector<{self.held(value)}, {self.variant.vector}> *)(g{value} + {index})"

    @property
    def within(self) -> str:
        """Whether an access has its element ``e``."""
        return "e >= first && e < count" if self.variant.shifted else "e < count"

    @property
    def ends(self) -> str:
        """The first element and the count of an access that may not have all, as arguments of `loaded` and `store`."""
        if self.variant.whole:
            return ""
        return ", first, count" if self.variant.shifted else ", 0, count"

    def offset(self, place: int) -> str:
        """The offset of an access's element ``e`` from an array's pointer."""
        if not self.nest.columns:
            return self.along(place, "i + e" if self.variant.vector > 1 else "i")
        steps = [f"i * {self.stride(place, self.last)}"] if self.has_stride(place, self.last) else []
        return " + ".join([*steps, *([self.beside(place)] if self.column else [])]) or "0"

    def first(self, place: int, pointer: str) -> str:
        """The address of an access of contiguous elements."""
        return f"{pointer} + " + (f"i * {self.stride(place, self.last)}" if self.nest.columns else "i")

    def load_access(self, place: int, letter: str) -> Lines:
        """The load of an access."""
        vector, pointer, name = self.variant.vector, f"{letter}{place}", self.vector_of(place)
        index = self.offset(place)
        if vector == 1:
            return [f"{name}.at[0] = {pointer}[{index}];"]
        if self.nest.steps[place] == 1:
            return [f"{name} = loaded<{vector}>({self.first(place, pointer)}{self.ends});"]
        return self.unrolled(
            [f"{name}.at[e] = {pointer}[{index if self.variant.whole else f'{self.within} ? {index} : 0'}];"]
        )

    def store_access(self, place: int, pointer: str) -> Lines:
        """The store of an access."""
        if self.variant.vector == 1:
            return [f"{pointer}[{self.offset(place)}] = w{place}.at[0];"]
        if self.nest.steps[place] == 1:
            return [f"store({self.first(place, pointer)}, w{place}{self.ends});"]
        guard = "" if self.variant.whole else f"if ({self.within}) "
        return self.unrolled([f"{guard}{pointer}[{self.offset(place)}] = w{place}.at[e];"])
