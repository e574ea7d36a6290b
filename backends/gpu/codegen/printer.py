"""Loop nests as CUDA.

A nest without reductions gives each thread some elements that lie together. One
that reduces gives each place of its kept loops to a team of threads: some lanes
of a warp, a block, or, of columns, the threads of a block that stand in one
column. Where there are too few places to keep the device busy, the reduced loops
are split, and each walk is a kernel of its own, whose parts the next one joins.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from backends.execution.printer_common import Lines, braced, converted, functions_called, initial, narrow_dtypes, wide
from backends.gpu.codegen.elements import TYPES, ElementPrinter, Variant, needed, type_of
from optree.compile.loopnest import LoopNest, Reduction, Statement, Walk, crossing_reads, walks

#: So many accesses' elements are accumulated in the dtype itself before they join a sum in float64.
BLOCK = 64

#: How an element of several arrays that lie together is accessed at once, and how a team joins what it has accumulated.
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

#: What narrow dtypes need beside.
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

#: How a team's threads join what they have accumulated. Nobody writes parts anew before all have read them: where two
#: arrays take turns (`part_arrays`), the join in between has a barrier; a block that goes on to other places waits at
#: one before it does; and of columns one after the other is joined.
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


def source(nest: LoopNest, variant: Variant) -> str:
    """The CUDA source of a nest: a kernel, or of a split nest one for each walk and the last."""
    printer = _Printer(nest, variant)
    head = [NARROW[name].rstrip("\n") for name in narrow_dtypes(nest)]
    head.append(HEAD.rstrip("\n"))
    head += [QUOTIENT.rstrip("\n")] if printer.divisors() else []
    if nest.reductions:
        teams = ["columns"] if variant.team == "columns" else ["warp", "block"][: 1 + (variant.team == "block")]
        head += [JOINED[team].rstrip("\n") for team in teams]
    head += ["", *functions_called(nest, "__device__ __forceinline__")]
    head.append(f"typedef {'long long' if variant.wide else 'int'} Index;")
    lines = [line for part in head for line in part.splitlines()]
    for r in nest.reductions:
        type = type_of(wide(r))
        joined = r.accumulator.combine.format("x", "y")
        lines += [
            f"struct Join{r.value} {{ __device__ {type} operator()({type} x, {type} y) const {{ return {joined}; }} }};"
        ]
    for name, body in printer.kernels():
        parameters = ",\n    ".join(parameter for parameter, _ in printer.parameters())
        lines += ["", f'extern "C" __global__ void __launch_bounds__({variant.threads}) {name}(', f"    {parameters})"]
        lines += braced(needed(body))
    return "\n".join([*lines, ""])


#: The places of a tile along each of its loops.
TILE = 32


def kernel_names(nest: LoopNest, split: bool) -> list[str]:
    """The kernels of a nest, in the order in which they run."""
    if not split:
        return ["kernel"]
    found = walks(nest, keep=False)
    needs_end = found[-1].reductions or nest.writes_at("outer") or nest.writes_at("once")
    return [*(f"walk{number}" for number in range(len(found))), *(["end"] if needs_end else [])]


def part_arrays(nest: LoopNest) -> dict[int, int]:
    """For each reduction, the one whose array in shared memory takes its parts when a team joins them.

    Two arrays of a type take turns, so that a block needs a few kilobytes at most, however many reductions there are.
    """
    found: dict[int, int] = {}
    first: dict[tuple[np.dtype, int], int] = {}
    for number, r in enumerate(r for walk in walks(nest) for r in walk.reductions):
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
    """What each kernel of a nest takes: the names of its parameters, in order."""
    return [name for _, name in ElementPrinter(nest, variant).parameters()]


class _Printer(ElementPrinter):
    """A nest in a variant as kernels."""

    def __init__(self, nest: LoopNest, variant: Variant) -> None:
        super().__init__(nest, variant)
        self.part_arrays = part_arrays(nest)

    # Kernels

    def kernels(self) -> list[tuple[str, Lines]]:
        """Their names and bodies."""
        names = kernel_names(self.nest, self.variant.split)
        return [(name, [*self.opened(), *body]) for name, body in zip(names, self.bodies(), strict=True)]

    def bodies(self) -> Iterator[Lines]:
        nest = self.nest
        if not nest.reductions:
            yield [*self.elements(), *self.closed()]
        elif not self.variant.split:
            body = [
                line for number, walk in enumerate(self.walks) for line in [*self.outer(number), *self.walked(walk)]
            ]
            yield [*self.places([*body, *self.outer(len(self.walks)), *self.outer_writes()]), *self.closed()]
        else:
            found: Lines = []
            for number, walk in enumerate(self.walks):
                found += self.resumed(number)
                yield self.places([*found, *self.walked(walk)])
            # Left out where nothing is to be done when all walks are over.
            last = [*found, *self.resumed(len(self.walks)), *self.outer_writes()]
            if len(kernel_names(nest, True)) > len(self.walks):
                yield [*self.places(last), *self.closed()]

    def walked(self, walk: Walk) -> Lines:
        """A walk, and what comes of it."""
        return [*self.walk(walk), *(line for r in walk.reductions for line in self.joined(r))]

    def opened(self) -> Lines:
        """What every thread computes once."""
        nest = self.nest
        lines = []
        for i, dtype in enumerate(nest.numbers):
            value = len(nest.reads) + i
            lines.append(f"const {type_of(dtype)} v{value} = ({type_of(dtype)})c{value};")
        for place, level in enumerate(nest.levels[: len(nest.reads)]):
            if level == "once":
                read = "0" if nest.is_counted(place) else self.read(place, f"*a{place}")
                lines.append(f"const {type_of(nest.reads[place])} v{place} = {read};")
        return lines + [line for made in nest.made("once") for line in self.statement(made)]

    def closed(self) -> Lines:
        """What one thread writes once."""
        writes = [f"*a{place} = {self.written(value)};" for place, value in self.nest.writes_at("once")]
        return ["if (blockIdx.x == 0 && threadIdx.x == 0)", *braced(writes)] if writes else []

    # Places

    def elements(self) -> Lines:
        """A nest without reductions: each thread some elements, and then those as far on as there are threads."""
        if not self.nest.writes_at("inner"):
            return []
        if self.variant.team == "tiles":
            return self.tiles()
        (walk,), axes, count = self.walks, list(range(self.last)), self.variant.accesses
        lines = ["const int lanes = blockDim.x;", self.chunks()]
        lines.append(f"const Index total = {self.count('chunks', axes)};")
        pointers = [*self.pointers(axes, ("inner",)), *self.shift()]
        index = ["const Index k = c + u * lanes;", *self.located(axes, pointers)]
        start, step = f"(Index)blockIdx.x * lanes * {count} + threadIdx.x", f"(Index)gridDim.x * lanes * {count}"
        body = self.turn(walk, "x", index, "total")
        return [*lines, f"for (Index c = {start}; c < total; c += {step})", *braced(body)]

    def count(self, first: str, axes: Sequence[int]) -> str:
        """How many places loops have, times another number."""
        return " * ".join([*([first] if first else []), *(self.size(axis) for axis in axes)]) or "1"

    def tiles(self) -> Lines:
        """Two loops in tiles: what lies together along the other loop is read along it, and handed over in a block."""
        nest, (walk,) = self.nest, self.walks
        other, last = nest.across, self.last
        others = [axis for axis in range(last) if axis != other]
        crossing, turns = crossing_reads(nest), TILE * TILE // self.variant.threads
        step, inside = TILE // turns, f"if (k < (Index)n{other} && i < (Index)n{last})"
        lines: Lines = [f"const int lane = threadIdx.x % {TILE}, first = threadIdx.x / {TILE};"]
        for place in crossing:
            lines.append(f"__shared__ {TYPES[str(nest.reads[place])]} tile{place}[{TILE}][{TILE + 1}];")
        lines += [f"const Index tiles{axis} = ((Index)n{axis} + {TILE - 1}) / {TILE};" for axis in (other, last)]
        body = self.decoded(f"p / tiles{last} / tiles{other}", others)
        body.append(f"const Index t{other} = p / tiles{last} % tiles{other} * {TILE};")
        body.append(f"const Index t{last} = p % tiles{last} * {TILE};")
        body += self.pointers(others, ("inner",))
        along = [f"const Index k = t{other} + first + u * {step};", f"const Index i = t{last} + lane;", inside]
        across = [f"const Index k = t{other} + lane;", f"const Index i = t{last} + first + u * {step};", inside]

        def at(place: int) -> str:
            return f"x{place}[k * (Index)s{place}_{other} + {self.along(place)}]"

        loaded = [place for place in walk.reads if not nest.is_counted(place)]
        body += [f"{TYPES[str(nest.reads[place])]} b{place}[{turns}];" for place in loaded]
        each = ["#pragma unroll", f"for (int u = 0; u < {turns}; u++)"]
        for where, places in ((across, crossing), (along, [place for place in loaded if place not in crossing])):
            body += [*each, *braced([*where, *braced([f"b{p}[u] = {at(p)};" for p in places])])] if places else []
        handed = [f"tile{place}[first + u * {step}][lane] = b{place}[u];" for place in crossing]
        body += ["__syncthreads();", *each, *braced(handed), "__syncthreads();"]
        made = [*self.tiled(walk, step), *(f"{at(place)} = {self.written(value)};" for place, value in walk.writes)]
        body += [*each, *braced([*along, *braced(made)])]
        total = self.count(f"tiles{last} * tiles{other}", others)
        return [*lines, f"for (Index p = blockIdx.x; p < {total}; p += gridDim.x)", *braced(body)]

    def tiled(self, walk: Walk, step: int) -> Lines:
        """What is made of one element of a tile."""
        nest, crossing = self.nest, crossing_reads(self.nest)
        lines: Lines = []
        for place in walk.reads:
            read = self.read(place, f"tile{place}[lane][first + u * {step}]" if place in crossing else f"b{place}[u]")
            if nest.is_counted(place):
                read = f"x{place} + k * (Index)s{place}_{nest.across} + {self.along(place)}"
            lines.append(f"const {type_of(nest.reads[place])} v{place} = {read};")
        for made in walk.statements:
            lines += self.statement(made) if isinstance(made, Statement) else []
        return lines

    def places(self, body: Lines) -> Lines:
        """The kept loops, shared out to teams."""
        nest, team = self.nest, self.variant.team
        axes = list(range(nest.kept))
        count = self.count("", axes)
        lines: Lines = []
        if self.variant.kept in ("shared", "part") and self.slots:
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
        pointers = [*self.pointers(axes, ("outer", "inner")), *self.shift()]
        body = [*decode, *pointers, *self.outer_reads(), *self.rows(), *body]
        joined = [r for r in nest.reductions if any(re.search(rf"parts{r.value}\b", line) for line in body)]
        for r in joined:
            size = parts_size(team, self.variant.threads)
            lines.append(f"__shared__ {type_of(wide(r))} parts{r.value}[{size}];")
        if joined and team == "block":
            body += [f"if (p + gridDim.x < {count})", *braced(["__syncthreads();"])]
        return [*lines, f"for (Index p = blockIdx.x; p < {count}; p += gridDim.x)", *braced(body)]

    def extents(self) -> Lines:
        """How many accesses a row has, and which of them are this block's."""
        lines = [self.chunks(), f"const Index row = {self.count('chunks', range(self.nest.kept, self.last))};"]
        if self.variant.split:
            lines.append("const Index start = (Index)blockIdx.y * (Index)part;")
            lines.append("const Index end = start + (Index)part < row ? start + (Index)part : row;")
        return lines

    def outer_reads(self) -> Lines:
        reads = (place for place, level in enumerate(self.nest.levels[: len(self.nest.reads)]) if level == "outer")
        return [line for place in reads for line in self.outer_read(place)]

    def outer_read(self, place: int) -> Lines:
        beside, is_counted = self.beside(place), self.nest.is_counted(place)
        read = f"x{place} + {beside}" if is_counted else self.read(place, f"x{place}[{beside}]")
        return self.placed(place, lambda to: [f"{to} = {read};"])

    def outer(self, stage: int) -> Lines:
        """What is made at a place of the kept loops when so many walks are over."""
        return [line for made in self.nest.made("outer", stage) for line in self.statement(made)]

    def outer_writes(self) -> Lines:
        writes = [f"x{p}[{self.beside(p)}] = {self.written(value)};" for p, value in self.nest.writes_at("outer")]
        return [f"if ({self.leads()})", *braced(self.of_columns(writes))] if writes else []

    def of_columns(self, lines: Lines) -> Lines:
        """What is done for each of a thread's columns, where it has several."""
        return self.unrolled(lines) if self.several else lines

    def joining(self, r: Reduction) -> Lines:
        """What a thread accumulates of a reduction in all of a walk: at first nothing."""
        type = type_of(wide(r))
        if not self.several:
            return [f"{type} r{r.value} = {initial(r)};"]
        return [f"{type} r{r.value}[{self.variant.vector}];", *self.unrolled([f"r{r.value}[e] = {initial(r)};"])]

    def joint(self, r: Reduction) -> str:
        """What that is called."""
        return f"r{r.value}[e]" if self.several else f"r{r.value}"

    def leads(self) -> str:
        return "lane == 0" if self.variant.team == "block" else "lane == 0 && is_there"

    def rows(self) -> Lines:
        """Where a team keeps what several walks need."""
        if self.variant.kept == "registers":
            shape = f"{self.variant.vector}>", f"[{self.variant.accesses}]"
            return [f"Vector<{self.held(value)}, {shape[0]} g{value}{shape[1]};" for value in sorted(self.slots)]
        if not self.slots:
            return []
        sizes = [size for _, size in sorted(set(self.slots.values()))]
        width = self.variant.width if self.nest.columns else self.variant.vector
        kept = "(Index)held" if self.variant.kept == "part" else "row"
        lines = [f"const Index padded = ({kept} * {width} + 15) / 16 * 16;"]
        for value, (slot, _) in sorted(self.slots.items()):
            type = self.held(value)
            lines.append(f"{type} *const g{value} = ({type} *)(memory + padded * {sum(sizes[:slot])});")
        return lines

    # Walks

    def walk(self, walk: Walk) -> Lines:
        """One walk of a row by a team; each thread keeps to the same elements in all walks."""
        nest, variant = self.nest, self.variant
        axes = list(range(nest.kept, self.last))
        index = [
            "const Index k = lane + u * lanes;" if variant.kept == "registers" else "const Index k = c + u * lanes;"
        ]
        pointers = []
        for place in [*walk.reads, *(place for place, _ in walk.writes)]:
            steps = "".join(f" + i{axis} * (Index)s{place}_{axis}" for axis in axes if self.has_step(place, axis))
            pointers.append(f"{self.pointer(place)}y{place} = x{place}{steps};")
        index += self.located(axes, pointers)
        first, last = ("start", "end") if variant.split else ("0", "row")
        last = last if variant.team == "block" else "until"
        accumulated: Lines = []
        for r in walk.reductions:
            accumulated.append(f"{type_of(r.dtype)} p{r.value}[{variant.vector}];")
            accumulated += self.unrolled([f"p{r.value}[e] = {initial(r)};"])
        lines = [line for r in walk.reductions for line in self.joining(r)]
        joints = {r.value: self.joint(r) for r in walk.reductions}
        ended = [self.unrolled([f"{joint} = Join{n}()({joint}, p{n}[e]);"]) for n, joint in joints.items()]
        joined = [line for each in ended for line in each]
        if variant.kept == "registers":
            return [*lines, *braced([*accumulated, *self.turn(walk, "y", index, last), *joined])]
        step = f"{self.in_flight(walk)} * (Index)lanes"
        if not walk.reductions:
            return [
                f"for (Index c = {first} + lane; c < {last}; c += {step})",
                *braced(self.turn(walk, "y", index, last)),
            ]
        block = f"{BLOCK} * (Index)lanes"
        inner = [f"const Index stop = b + {block} < {last} ? b + {block} : {last};", *accumulated]
        inner += [f"for (Index c = b; c < stop; c += {step})", *braced(self.turn(walk, "y", index, "stop")), *joined]
        return [*lines, f"for (Index b = {first} + lane; b < {last}; b += {block})", *braced(inner)]

    # What teams join

    def joined(self, r: Reduction) -> Lines:
        """A reduction's value from what the team's threads have accumulated; where it is split, a part of it."""
        if not self.variant.split:
            return [*self.combined(r), *self.finished(r)]
        part = self.of_columns([f"q{r.value}[{self.entry()} + blockIdx.y] = {self.joint(r)};"])
        return [*self.combined(r), f"if ({self.leads()})", *braced(part)]

    def combined(self, r: Reduction) -> Lines:
        """What all of a team's threads have, in each of them."""
        joint, parts = self.joint(r), f"parts{self.part_arrays[r.value]}"
        call = {
            "warp": f"over_lanes({joint}, Join{r.value}(), {self.variant.width})",
            "block": f"over_block({joint}, Join{r.value}(), {parts})",
            "columns": f"over_column({joint}, Join{r.value}(), {parts}, {self.variant.width})",
        }[self.variant.team]
        return self.of_columns([f"{joint} = {call};"])

    def finished(self, r: Reduction) -> Lines:
        count = " * ".join(f"(double)n{axis}" for axis in range(self.nest.kept, self.nest.rank))
        value = r.accumulator.finish.format(self.joint(r), count=f"({count})")
        return self.placed(r.value, lambda to: [f"{to} = {converted(f'({value})', r.dtype, type_of)};"])

    def entry(self) -> str:
        """Where the parts of a place begin."""
        if self.several:
            return f"((long long)place * {self.variant.vector} + e) * parts"
        return "(long long)place * parts" if self.nest.columns else "(long long)p * parts"

    def resumed(self, stage: int) -> Lines:
        """What a kernel that follows finds of the walks before: their parts, joined by each team alike."""
        lines: Lines = []
        for r in self.walks[stage - 1].reductions if stage else []:
            joint = self.joint(r)
            part = self.of_columns([f"{joint} = Join{r.value}()({joint}, q{r.value}[{self.entry()} + k]);"])
            lines += [*self.joining(r), "for (int k = lane; k < parts; k += lanes)", *braced(part)]
            lines += [*self.combined(r), *self.finished(r)]
        return [*lines, *self.outer(stage)]
