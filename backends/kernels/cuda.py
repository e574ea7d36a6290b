"""Loop nests as CUDA.

A nest without reductions gives each thread some elements that lie together. One
that reduces gives each place of its kept loops to a team of threads: some lanes
of a warp, a block, or, of columns, the threads of a block that stand in one
column. Where there are too few places to keep the device busy, the reduced loops
are split, and each walk is a kernel of its own, whose parts the next one joins.
"""

from __future__ import annotations

import re
from collections import Counter

from backends.kernels.cuda_elements import TYPES, ElementPrinter, Variant, type_of
from backends.kernels.expressions import Lines, braced, converted, has_halves, initial, random_functions, wide
from backends.kernels.loopnest import LoopNest, Reduction, Statement, Walk

#: So many accesses' elements are accumulated in the dtype itself before they join a sum in float64.
BLOCK = 64

#: How an element of several arrays that lie together is accessed at once, and how a team joins what it has accumulated.
HEAD = """#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif

template <class T, int N> struct alignas(sizeof(T) * N) Vector { T at[N]; };

template <int N, class T> __device__ __forceinline__ Vector<T, N> loaded(const T *p, int count)
{
    if (count == N)
        return *(const Vector<T, N> *)p;
    Vector<T, N> found;
    #pragma unroll
    for (int e = 0; e < N; e++)
        found.at[e] = e < count ? p[e] : T();
    return found;
}

template <int N, class T> __device__ __forceinline__ void store(T *p, const Vector<T, N> &values, int count)
{
    if (count == N) {
        *(Vector<T, N> *)p = values;
        return;
    }
    #pragma unroll
    for (int e = 0; e < N; e++)
        if (e < count)
            p[e] = values.at[e];
}
"""

#: What float16 needs beside.
HALVES = """#include <cuda_fp16.h>

__device__ __forceinline__ float from_half(__half x) { return __half2float(x); }
__device__ __forceinline__ __half to_half(float x) { return __float2half_rn(x); }
__device__ __forceinline__ float rounded(float x) { return __half2float(__float2half_rn(x)); }
__device__ __forceinline__ float rounded(double x) { return __half2float(__double2half(x)); }
template <class T> __device__ __forceinline__ float rounded(T x) { return rounded((float)x); }
"""

JOINED = {
    "warp": """
template <class T, class J> __device__ __forceinline__ T over_lanes(T x, J join, int lanes)
{
    const int first = threadIdx.x & 31 & ~(lanes - 1);
    const unsigned mask = (lanes == 32 ? ~0u : (1u << lanes) - 1) << first;
    for (int apart = lanes / 2; apart > 0; apart /= 2)
        x = join(x, (T)__shfl_xor_sync(mask, x, apart));
    return (T)__shfl_sync(mask, x, first);
}
""",
    "block": """
template <class T, class J> __device__ __forceinline__ T over_block(T x, J join, T *parts)
{
    const int warps = blockDim.x / 32;
    x = over_lanes(x, join, 32);
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        parts[threadIdx.x / 32] = x;
    __syncthreads();
    return over_lanes(parts[threadIdx.x & (warps - 1)], join, warps);
}
""",
    "columns": """
template <class T, class J> __device__ __forceinline__ T over_column(T x, J join, T *parts, int width)
{
    __syncthreads();
    parts[threadIdx.x] = x;
    __syncthreads();
    for (int apart = blockDim.x / 2; apart >= width; apart /= 2) {
        if (threadIdx.x < apart)
            parts[threadIdx.x] = join(parts[threadIdx.x], parts[threadIdx.x + apart]);
        __syncthreads();
    }
    return parts[threadIdx.x % width];
}
""",
}

#: How many threads a block has, by its teams; a team that is a block may have fewer.
THREADS = {"": 256, "tiles": 256, "warp": 128, "block": 512, "columns": 256}


def source(nest: LoopNest, variant: Variant) -> str:
    """The CUDA source of a nest: a kernel, or of a split nest one for each walk and the last."""
    head = [HALVES.rstrip("\n")] if has_halves(nest) else []
    head.append(HEAD.rstrip("\n"))
    if nest.reductions:
        needed = ["columns"] if variant.team == "columns" else ["warp", "block"][: 1 + (variant.team == "block")]
        head += [JOINED[team].rstrip("\n") for team in needed]
    head += ["", *random_functions(nest, "__device__ __forceinline__")]
    head.append(f"typedef {'long long' if variant.wide else 'int'} Index;")
    printer = _Printer(nest, variant)
    lines = [line for part in head for line in part.splitlines()]
    for r in nest.reductions:
        type = type_of(wide(r))
        joined = r.accumulator.combine.format("x", "y")
        lines += [
            f"struct Join{r.value} {{ __device__ {type} operator()({type} x, {type} y) const {{ return {joined}; }} }};"
        ]
    for name, body in printer.kernels():
        most = THREADS[variant.team]
        parameters = ",\n    ".join(parameter for parameter, _ in printer.parameters())
        lines += ["", f'extern "C" __global__ void __launch_bounds__({most}) {name}(', f"    {parameters})"]
        lines += braced(_needed(body))
    return "\n".join([*lines, ""])


#: The places of a tile along each of its loops.
TILE = 32


def crossing_reads(nest: LoopNest) -> list[int]:
    """The arrays that a nest of elements reads in steps along its vector loop, where some lie along another loop."""
    if nest.across < 0:
        return []
    inner = [place for place in range(len(nest.reads)) if nest.levels[place] == "inner" and nest.steps[place] < 0]
    return [place for place in inner if not nest.is_counted(place)]


def kernel_names(nest: LoopNest, variant: Variant) -> list[str]:
    """The kernels of a nest, in the order in which they run."""
    return [name for name, _ in _Printer(nest, variant).kernels()]


def parameter_names(nest: LoopNest, variant: Variant) -> list[str]:
    """What each kernel of a nest takes: the names of its parameters, in order."""
    return [name for _, name in _Printer(nest, variant).parameters()]


def slot_bytes(nest: LoopNest) -> list[int]:
    """How many bytes an element has in each of the rows that a cached nest keeps in shared memory."""
    printer = _Printer(nest, Variant(cached=True))
    return [size for _, size in sorted(set(printer.slots.values()))]


class _Printer(ElementPrinter):
    """A nest in a variant as kernels."""

    # Kernels

    def kernels(self) -> list[tuple[str, Lines]]:
        """Their names and bodies."""
        nest = self.nest
        if not nest.reductions:
            return [("kernel", [*self.opened(), *self.elements(), *self.closed()])]
        found, body = [], []
        for number, walk in enumerate(self.walks):
            if self.variant.split:
                body = [line for stage in range(number + 1) for line in self.resumed(stage)]
            else:
                body += self.outer(number)
            body += [*self.walk(walk), *(line for r in walk.reductions for line in self.joined(r))]
            found.append((f"walk{number}", [*self.opened(), *self.places(body)]))
        if not self.variant.split:
            body += [*self.outer(len(self.walks)), *self.outer_writes()]
            return [("kernel", [*self.opened(), *self.places(body), *self.closed()])]
        if self.walks[-1].reductions or nest.writes_at("outer") or nest.writes_at("once"):
            body = [line for stage in range(len(self.walks) + 1) for line in self.resumed(stage)]
            found.append(("end", [*self.opened(), *self.places([*body, *self.outer_writes()]), *self.closed()]))
        return found

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
        (walk,), axes = self.walks, range(self.last)
        rows = " * ".join(["1", *(f"(Index)n{axis}" for axis in axes)]).removeprefix("1 * ")
        lines = [f"const Index chunks = ((Index)n{self.last} + {self.variant.vector - 1}) / {self.variant.vector};"]
        body = self.decoded("c / chunks", list(axes)) if axes else []
        body += self.pointers(axes, ("inner",))
        body.append(f"const Index i = c{' % chunks' if axes else ''} * {self.variant.vector};")
        body += self.chunk(walk, "x")
        total = f"chunks * {rows}" if axes else "chunks"
        start = "(Index)blockIdx.x * blockDim.x + threadIdx.x"
        return [*lines, f"for (Index c = {start}; c < {total}; c += (Index)gridDim.x * blockDim.x)", *braced(body)]

    def tiles(self) -> Lines:
        """Two loops in tiles: what lies together along the other loop is read along it, and handed over in a block."""
        nest, (walk,) = self.nest, self.walks
        other, last = nest.across, self.last
        others = [axis for axis in range(last) if axis != other]
        lines: Lines = []
        for place in crossing_reads(nest):
            lines.append(f"__shared__ {TYPES[str(nest.reads[place])]} tile{place}[{TILE}][{TILE + 1}];")
        lines += [f"const Index tiles{axis} = ((Index)n{axis} + {TILE - 1}) / {TILE};" for axis in (other, last)]
        lines.append(
            f"const int lane = threadIdx.x % {TILE}, first = threadIdx.x / {TILE}, step = blockDim.x / {TILE};"
        )
        body = self.decoded(f"p / tiles{last} / tiles{other}", others)
        body.append(f"const Index t{other} = p / tiles{last} % tiles{other} * {TILE};")
        body.append(f"const Index t{last} = p % tiles{last} * {TILE};")
        body += self.pointers(others, ("inner",))
        load = [f"const Index k = t{other} + lane;", f"const Index i = t{last} + r;"]
        for place in crossing_reads(nest):
            read = f"x{place}[k * (Index)s{place}_{other} + i * (Index)s{place}_{last}]"
            load += [f"if (k < (Index)n{other} && i < (Index)n{last})", f"    tile{place}[r][lane] = {read};"]
        made = [f"const Index k = t{other} + r;", f"const Index i = t{last} + lane;"]
        made.append(f"if (k < (Index)n{other} && i < (Index)n{last})")
        turns = f"for (int r = first; r < {TILE}; r += step)"
        body += ["__syncthreads();", turns, *braced(load), "__syncthreads();", turns]
        body += braced([*made, *braced(self.tiled(walk))])
        count = "".join(f" * (Index)n{axis}" for axis in others)
        total = f"tiles{last} * tiles{other}{count}"
        return [*lines, f"for (Index p = blockIdx.x; p < {total}; p += gridDim.x)", *braced(body)]

    def tiled(self, walk: Walk) -> Lines:
        """What happens at one element of a tile."""
        nest, crossing = self.nest, crossing_reads(self.nest)

        def at(place: int) -> str:
            moved = f"k * (Index)s{place}_{nest.across} + {self.along(place, 'i')}"
            return f"x{place} + {moved}" if nest.is_counted(place) else f"x{place}[{moved}]"

        lines: Lines = []
        for place in walk.reads:
            read = at(place) if nest.is_counted(place) else self.read(place, at(place))
            read = self.read(place, f"tile{place}[lane][r]") if place in crossing else read
            lines.append(f"const {type_of(nest.reads[place])} v{place} = {read};")
        for made in walk.statements:
            lines += self.statement(made) if isinstance(made, Statement) else []
        return lines + [f"{at(place)} = {self.written(value)};" for place, value in walk.writes]

    def places(self, body: Lines) -> Lines:
        """The kept loops, shared out to teams."""
        nest, team = self.nest, self.variant.team
        axes = list(range(nest.kept))
        count = " * ".join(["1", *(f"(Index)n{axis}" for axis in axes)]).removeprefix("1 * ")
        lines: Lines = []
        if self.slots:
            lines.append("extern __shared__ __align__(16) unsigned char memory[];")
        if nest.columns:
            lines += [
                "const int lane = threadIdx.x / width, lanes = blockDim.x / width;",
                f"const Index places = {count}, tiles = (places + width - 1) / width;",
            ]
            first, step, count = "blockIdx.x", "gridDim.x", "tiles"
            decode = [
                "const Index column = p * width + threadIdx.x % width;",
                "const bool is_there = column < places;",
                *self.decoded("(is_there ? column : 0)", axes),
            ]
            first_row, last_row = ("start", "end") if self.variant.split else ("0", "row")
            decode.append(f"const Index until = is_there ? {last_row} : {first_row};")
        else:
            if team == "warp":
                lines.append("const int lane = threadIdx.x % width, lanes = width, teams = blockDim.x / width;")
                first, step = "(Index)blockIdx.x * teams + threadIdx.x / width", "(Index)gridDim.x * teams"
            else:
                lines.append("const int lane = threadIdx.x, lanes = blockDim.x;")
                first, step = "blockIdx.x", "gridDim.x"
            decode = self.decoded("p", axes)
        lines += self.extents()
        body = [*decode, *self.pointers(axes, ("outer", "inner")), *self.outer_reads(), *self.rows(), *body]
        for r in nest.reductions:
            if any(f"parts{r.value})" in line or f"parts{r.value}," in line for line in body):
                size = THREADS[team] if nest.columns else 32
                lines.append(f"__shared__ {type_of(wide(r))} parts{r.value}[{size}];")
        return [*lines, f"for (Index p = {first}; p < {count}; p += {step})", *braced(body)]

    def extents(self) -> Lines:
        """How many accesses a row has, and which of them are this block's."""
        nest, vector = self.nest, self.variant.vector
        before = "".join(f" * (Index)n{axis}" for axis in range(nest.kept, self.last))
        lines = [f"const Index chunks = ((Index)n{self.last} + {vector - 1}) / {vector};"]
        lines.append(f"const Index row = chunks{before};")
        if self.variant.split:
            lines.append("const Index start = (Index)blockIdx.y * (Index)part;")
            lines.append("const Index end = start + (Index)part < row ? start + (Index)part : row;")
        return lines

    def outer_reads(self) -> Lines:
        reads = [place for place, level in enumerate(self.nest.levels[: len(self.nest.reads)]) if level == "outer"]
        found = {p: f"x{p}" if self.nest.is_counted(p) else self.read(p, f"*x{p}") for p in reads}
        return [f"const {type_of(self.nest.reads[p])} v{p} = {read};" for p, read in found.items()]

    def outer(self, stage: int) -> Lines:
        """What is made at a place of the kept loops when so many walks are over."""
        return [line for made in self.nest.made("outer", stage) for line in self.statement(made)]

    def outer_writes(self) -> Lines:
        writes = [f"*x{place} = {self.written(value)};" for place, value in self.nest.writes_at("outer")]
        return [f"if ({self.leads()})", *braced(writes)] if writes else []

    def leads(self) -> str:
        return "lane == 0 && is_there" if self.nest.columns else "lane == 0"

    def rows(self) -> Lines:
        """The rows of shared memory in which a team keeps what several walks need."""
        if not self.slots:
            return []
        sizes = [size for _, size in sorted(set(self.slots.values()))]
        width = "width" if self.nest.columns else str(self.variant.vector)
        lines = [f"const Index padded = (row * {width} + 15) / 16 * 16;"]
        base = f"memory + threadIdx.x / width * padded * {sum(sizes)}" if self.variant.team == "warp" else "memory"
        for value, (slot, _) in sorted(self.slots.items()):
            dtype = self.nest.dtype_of(value)
            stored = TYPES[str(dtype)] if value < len(self.nest.reads) else type_of(dtype)
            lines.append(f"{stored} *const g{value} = ({stored} *)({base} + padded * {sum(sizes[:slot])});")
        return lines

    # Walks

    def walk(self, walk: Walk) -> Lines:
        """One walk of a row by a team; each thread keeps to the same elements in all walks."""
        nest, split = self.nest, self.variant.split
        axes = list(range(nest.kept, self.last))
        body = self.decoded("c / chunks", axes) if axes else []
        places = [*walk.reads, *(place for place, _ in walk.writes)]
        for place in places:
            steps = "".join(f" + i{axis} * (Index)s{place}_{axis}" for axis in axes if self.has_step(place, axis))
            body.append(f"{self.pointer(place)}y{place} = x{place}{steps};")
        body.append(f"const Index i = c{' % chunks' if axes else ''} * {self.variant.vector};")
        body = _needed([*body, *self.chunk(walk, "y")])
        first, last = ("start", "end") if split else ("0", "row")
        if nest.columns:
            last = "until"
        if not walk.reductions:
            return [f"for (Index c = {first} + lane; c < {last}; c += lanes)", *braced(body)]
        lines = [f"{type_of(wide(r))} r{r.value} = {initial(r)};" for r in walk.reductions]
        inner = [f"const Index stop = b + {BLOCK} * (Index)lanes < {last} ? b + {BLOCK} * (Index)lanes : {last};"]
        for r in walk.reductions:
            inner.append(f"{type_of(r.dtype)} p{r.value}[{self.variant.vector}];")
            inner += self.unrolled([f"p{r.value}[e] = {initial(r)};"])
        inner += ["#pragma unroll 4"] if nest.columns else []
        inner += ["for (Index c = b; c < stop; c += lanes)", *braced(body)]
        for r in walk.reductions:
            inner += self.unrolled([f"r{r.value} = Join{r.value}()(r{r.value}, p{r.value}[e]);"])
        return [*lines, f"for (Index b = {first} + lane; b < {last}; b += {BLOCK} * (Index)lanes)", *braced(inner)]

    # What teams join

    def joined(self, r: Reduction) -> Lines:
        """A reduction's value from what the team's threads have accumulated; where it is split, a part of it."""
        if not self.variant.split:
            return [*self.combined(r), *self.finished(r)]
        part = f"q{r.value}[{self.entry()} + blockIdx.y] = r{r.value};"
        return [*self.combined(r), f"if ({self.leads()})", f"    {part}"]

    def combined(self, r: Reduction) -> Lines:
        """What all of a team's threads have, in each of them."""
        call = {
            "warp": f"over_lanes(r{r.value}, Join{r.value}(), width)",
            "block": f"over_block(r{r.value}, Join{r.value}(), parts{r.value})",
            "columns": f"over_column(r{r.value}, Join{r.value}(), parts{r.value}, width)",
        }[self.variant.team]
        return [f"r{r.value} = {call};"]

    def finished(self, r: Reduction) -> Lines:
        count = " * ".join(f"(double)n{axis}" for axis in range(self.nest.kept, self.nest.rank))
        value = r.accumulator.finish.format(f"r{r.value}", count=f"({count})")
        return [f"const {type_of(r.dtype)} v{r.value} = {converted(f'({value})', r.dtype, type_of)};"]

    def entry(self) -> str:
        """Where the parts of a place begin."""
        return "((long long)p * width + threadIdx.x % width) * parts" if self.nest.columns else "(long long)p * parts"

    def resumed(self, stage: int) -> Lines:
        """What a kernel that follows finds of the walks before: their parts, joined by each team alike."""
        lines: Lines = []
        for r in self.walks[stage - 1].reductions if stage else []:
            lines += [f"{type_of(wide(r))} r{r.value} = {initial(r)};", "for (int k = lane; k < parts; k += lanes)"]
            lines.append(f"    r{r.value} = Join{r.value}()(r{r.value}, q{r.value}[{self.entry()} + k]);")
            lines += [*self.combined(r), *self.finished(r)]
        return [*lines, *self.outer(stage)]


_DECLARATION = re.compile(r"\s*(?:const )?(?:(?:unsigned|signed|long) )*\w+(?:<[^>]*>)? \*?(?:const )?(\w+) = [^;]*;")


def _needed(lines: Lines) -> Lines:
    """Lines without declarations of what nothing needs."""
    while True:
        uses = Counter(re.findall(r"\w+", "\n".join(lines)))
        kept = [x for x in lines if not ((found := _DECLARATION.fullmatch(x)) and uses[found[1]] == 1)]
        if len(kept) == len(lines):
            return lines
        lines = kept
