"""Convolutions on the CPU: NumPy arrays described to compiled C, block by block.

Compiled C handles floats if the backend has a compiler and the work pays for the call;
all other cases run the op's NumPy value. Groups with many outputs are computed as products
of panels, groups with few outputs by direct loops (see convolution.c).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np

from backends.cpu.compiler import Source, Work, call_packed, vector_bytes
from backends.cpu.routines.fourier import convolved, transform_size
from backends.cpu.routines.products import TYPES
from backends.cpu.routines.vectors import struct, vector_source
from backends.cpu.runtime import share_address
from backends.execution.convolution import ROLES, three
from backends.execution.memory import LINE, Scratch, element_strides, empty_array
from optree.arrays import overlap, stored
from optree.cache import Cache
from optree.dtypes import rounded, wide_dtype
from optree.networks.convolution import Conv, ConvInput, ConvolutionOperator, ConvTranspose, ConvWeights
from optree.records import NamedTuple
from optree.settings import thread_count

#: Products of fewer multiplications and additions are NumPy's until it has done this many in all calls, each of which
#: counts as some at least; and run on one thread.
SMALL, IN_ALL, LEAST, ALONE = 1 << 22, 1 << 25, 1 << 16, 1 << 20

#: The maximum elements of a packed block (about half of a second-level cache), positions along axis 3, and rows.
BLOCK, LONGEST, MOST_ROWS = 1 << 16, 512, 2048

#: Maxima for direct loops: the outputs of a group, and for the derivative by weights its inputs times its outputs.
FEW, FEW_PAIRS = 8, 16

#: Tasks for each thread; the maximum number of partial sums of the derivative by weights, and their bytes.
TASKS, PARTS, PARTS_BYTES = 4, 8, 1 << 25

#: The maximum outputs of a panel, and positions read beyond the end of a packed row, on any processor.
WIDTH, BEYOND = 32, 128


#: Of all convolutions: memory that the last one used is still in the cache.
_SCRATCH = Scratch()


class Axis(NamedTuple):
    """One axis of positions."""

    #: The number of positions of the packed operand, and of the other operand, which has one for each sum.
    size: int
    sums: int
    #: The distance in the packed operand between the windows of adjacent sums.
    step: int
    #: For each tap that is read: its index in the window, and its offset.
    taps: tuple[tuple[int, int], ...]


class Image(NamedTuple):
    """The strides of images in elements, by group, channel and the four axes; and the offset of the first element."""

    group: int
    channel: int
    axes: tuple[int, ...]
    begin: int = 0


class Filters(NamedTuple):
    """The strides of weights: by group, by input channel, by output channel, and by the window's axes."""

    group: int
    given: int
    result: int
    window: tuple[int, ...]


class Channels(NamedTuple):
    """The number of groups, and the input and output channels of each."""

    groups: int
    given: int
    result: int


# Geometry


def _is_batch_last(op: ConvolutionOperator) -> bool:
    return bool(op.layout.endswith("N"))


def _axes_of(op: ConvolutionOperator, batch: int, spatial: Sequence[Axis]) -> list[Axis]:
    """The four axes: the batch and three spatial ones, the last contiguous."""
    images, none = Axis(batch, batch, 1, ((0, 0),)), Axis(1, 1, 1, ((0, 0),))
    return [*three(spatial, none), images] if _is_batch_last(op) else [images, *three(spatial, none)]


def _strides_of(op: ConvolutionOperator, strides: Sequence[int]) -> tuple[int, ...]:
    """The strides along the four axes, of an array with axes (N, C, spatial)."""
    batch, _, *spatial = strides
    return (*three(spatial, 0), batch) if _is_batch_last(op) else (batch, *three(spatial, 0))


def _image(op: ConvolutionOperator, array: np.ndarray) -> Image:
    strides = element_strides(op.as_image(array))
    return Image(strides[1] * (op.as_image(array).shape[1] // op.groups), strides[1], _strides_of(op, strides))


# Blocks


def _extent(count: int, step: int, span: int) -> int:
    return (count - 1) * min(step, span) + span


def _volume(axes: Sequence[Axis], block: Sequence[int]) -> int:
    """The positions of a packed block, axis 3 as a whole or in phases of its step."""
    spans = [_span(axis) for axis in axes]
    *outer, last = (_extent(n, a.step, s) for n, a, s in zip(block, axes, spans, strict=True))
    phases = min(axes[3].step, spans[3]) * (block[3] + (spans[3] - 1) // axes[3].step)
    return prod(outer) * max(last, phases)


def _blocks(axes: Sequence[Axis], channels: int, most_elements: int) -> list[int]:
    """The positions of a block along each axis."""
    spans = [_span(axis) for axis in axes]
    found = [1, 1, 1, min(axes[3].sums, LONGEST)]

    for axis in (2, 1, 0):
        rows = prod(found[:3])
        unit = channels * _volume(axes, found) // _extent(1, axes[axis].step, spans[axis])
        room = max(most_elements // max(unit, 1) - spans[axis], 0) // min(axes[axis].step, spans[axis]) + 1
        most = min(axes[axis].sums, room, max(MOST_ROWS // rows, 1))
        found[axis] = _equal(axes[axis].sums, most)
        if found[axis] < axes[axis].sums:
            break
    return found


def _span(axis: Axis) -> int:
    offsets = [offset for _, offset in axis.taps]
    return max(offsets) - min(offsets) + 1


def _equal(count: int, most: int) -> int:
    """The size of the largest of nearly equal parts of a count, at most `most`."""
    return -(-count // -(-count // most))


def _count(axes: Sequence[Axis], block: Sequence[int]) -> int:
    return prod(-(-a.sums // n) for a, n in zip(axes, block, strict=True))


def _shared(axes: Sequence[Axis], block: list[int], groups: int, wanted: int) -> list[int]:
    """Smaller blocks, for enough tasks: the outermost axis is cut first, because its blocks share no halo."""
    block = list(block)
    for axis in (0, 1, 2):
        while _count(axes, block) * groups < wanted and block[axis] > 1 and prod(block) > BEYOND:
            block[axis] = _equal(axes[axis].sums, (block[axis] + 1) // 2)
    return block


# Problems, as C takes them


class Problem:
    """Sums over taps and channels, for the C functions of convolution.c.

    `packed`, `other`: the packed operand, and the operand with a position for each sum.
    """

    def __init__(
        self,
        axes: Sequence[Axis],
        channels: Channels,
        packed: Image,
        other: Image,
        block: Sequence[int],
        parts: int = 1,
        splits: int = 1,
    ) -> None:
        self.axes, self.block, self.elements = axes, block, list[tuple[int, ...]]()
        self.taps = list(product(*(axis.taps for axis in axes)))
        lows, spans = [min(o for _, o in a.taps) for a in axes], [_span(a) for a in axes]
        offsets = [o - low for tap in self.taps for (_, o), low in zip(tap, lows, strict=True)]
        volume = channels.given * _volume(axes, block)
        rows = prod(block[:3]) * (block[3] + BEYOND)
        self.scratch = volume + rows * WIDTH * (parts > 0) + BEYOND * 4
        self.begins = packed.begin, other.begin
        head = ("share", "threads", "scratch", "scratch_bytes", "x", "out", "weights", "next")
        self.words = struct("convolution.c", "problem").words(
            **dict.fromkeys(head, 0),  # `run` sets them
            groups=channels.groups,
            inputs=channels.given,
            outputs=channels.result,
            taps=len(self.taps),
            parts=max(parts, 1),
            splits=splits,
            size=[a.size for a in axes],
            count=[a.sums for a in axes],
            block=block,
            step=[a.step for a in axes],
            low=lows,
            span=spans,
            offsets=offsets,
            x_stride=packed.axes,
            x_channel=packed.channel,
            x_group=packed.group,
            out_stride=other.axes,
            out_channel=other.channel,
            out_group=other.group,
        )

    def run(
        self,
        function: Any,
        x: int,
        other: int,
        weights: int,
        size: int,
        threads: int,
        following: Sequence[tuple[Problem, int]] = (),
    ) -> None:
        """Call a C function on operands at these addresses, with an element size.

        The problems in `following`, each with its weights, have the same number of tasks as this one. Task n of each
        runs after task n of this problem.
        """
        problems = [(self, weights), *following]
        most = max([problem.scratch for problem, _ in problems]) * size
        bytes_each = most + -most % LINE
        description, found = struct("convolution.c", "problem"), [array("q")]
        with _SCRATCH.of(bytes_each * threads) as address:
            for problem, weights in reversed(problems):
                words = problem.words[:]
                description.set(
                    words, share=share_address(), threads=threads, scratch=address, scratch_bytes=bytes_each
                )
                begins = x + problem.begins[0] * size, other + problem.begins[1] * size
                following_at = found[-1].buffer_info()[0] if found[-1] else 0
                description.set(words, x=begins[0], out=begins[1], weights=weights, next=following_at)
                found.append(words)
            function(found[-1].buffer_info()[0])


# Plans


class _Plan:
    """The geometry of a convolution for one set of array layouts, as arguments of its C functions.

    `functions`: the C functions.
    `arrays`: the images x, the weights and the images delta, or arrays of the same layouts.
    """

    def __init__(self, functions: dict[str, Any], op: ConvolutionOperator, arrays: Sequence[np.ndarray]) -> None:
        self.functions, self.op = functions, op
        self.is_direct = "convolve_directly" in functions
        x, weights, delta = arrays
        self.x, self.delta = _image(op, x), _image(op, delta)
        self.width, self.itemsize = functions["panel_width"](0), x.itemsize
        shape, filters = op.as_image(x).shape, op.as_filters(weights)
        o, i, *window = element_strides(filters)
        outputs, inputs = filters.shape[0] // op.groups, filters.shape[1]
        self.channels = Channels(op.groups, inputs, outputs)
        self.filters = Filters(o * outputs, i, o, tuple(window))
        self.batch, self.slidings = shape[0], op.slidings(shape[2:], filters.shape[2:])
        self.work = 2 * delta.size * inputs * prod(filters.shape[2:])
        self.threads = thread_count() if self.work >= ALONE else 1

    def axes(self, spatial: Sequence[Axis]) -> list[Axis]:
        return _axes_of(self.op, self.batch, spatial)

    def forward_axes(self) -> list[Axis]:
        """The four axes of the forward convolution."""
        return self.axes(
            [
                Axis(s.size, s.positions, s.stride, tuple((t, t * s.dilation - s.before) for t in range(s.window)))
                for s in self.slidings
            ]
        )

    def panels(self, problem: Problem, channels: Channels, filters: Filters, parts: int = 1) -> array[int]:
        """The words of weights and their panels, without their addresses."""
        return struct("convolution.c", "panels").words(
            share=share_address(),
            threads=self.threads,
            weights=0,
            packed=0,
            groups=channels.groups,
            inputs=channels.given,
            outputs=channels.result,
            group=filters.group,
            output=filters.result,
            input=filters.given,
            taps=len(problem.taps),
            parts=parts,
            offsets=self.offsets(problem, filters),
        )

    def call_on_panels(self, name: str, panels: array[int], weights: int, packed: int) -> None:
        """Call `pack_weights` or `add_parts` on weights at an address, and the packed ones or sums."""
        words = panels[:]
        struct("convolution.c", "panels").set(words, weights=weights, packed=packed)
        call_packed(self.functions[name], words)

    @property
    def is_along_groups(self) -> bool:
        """Whether the convolution is depthwise with contiguous channels, as in NHWC."""
        alone = self.channels.given == self.channels.result == 1 < self.channels.groups
        return alone and self.x.group == self.delta.group == 1

    def grouped(self, weights: np.ndarray) -> Any:
        """A view of weights as (group, output, input, spatial)."""
        filters = self.op.as_filters(weights)
        return filters.reshape(self.op.groups, -1, *filters.shape[1:])

    def elements(self, problem: Problem) -> list[tuple[int, ...]]:
        """The window indices of each tap."""
        if not problem.elements:
            problem.elements = [self._element(tap) for tap in problem.taps]
        return problem.elements

    def _element(self, tap: Sequence[tuple[int, int]]) -> tuple[int, ...]:
        numbers = [number for number, _ in tap]
        return tuple((numbers[:3] if _is_batch_last(self.op) else numbers[1:])[-len(self.slidings) :])

    def offsets(self, problem: Problem, filters: Filters) -> list[int]:
        """The offsets of taps among the weights."""
        return [sum(n * k for n, k in zip(e, filters.window, strict=True)) for e in self.elements(problem)]

    def panel_bytes(self, problem: Problem, channels: Channels) -> int:
        """The bytes of packed weights."""
        panels = -(-channels.result // self.width)
        return channels.groups * panels * len(problem.taps) * channels.given * self.width * self.itemsize


class _Images(_Plan):
    """A convolution, or its derivative by images, which has one problem for each residue of the strides."""

    def __init__(self, functions: dict[str, Any], op: ConvolutionOperator, arrays: Sequence[np.ndarray]) -> None:
        super().__init__(functions, op, arrays)
        self.is_whole = True
        self.problems = [self._problem(*phase) for phase in self.phases()]
        self.calls = self._together()
        if not self.is_direct:
            ends = self.made_channels, self.made_filters
            self.packings = [(self.panel_bytes(p, ends[0]), self.panels(p, *ends)) for p in self.problems]

    @property
    def made_channels(self) -> Channels:
        """The input and output channels of the problem."""
        return self.channels

    @property
    def made_filters(self) -> Filters:
        """The strides of the weights, from the problem's inputs to its outputs."""
        return self.filters

    def phases(self) -> list[tuple[list[Axis], Image, Image]]:
        """For each problem: its axes, its input image and its output image."""
        return [(self.forward_axes(), self.x, self.delta)]

    def _problem(self, axes: list[Axis], packed: Image, out: Image) -> Problem:
        channels, threads = self.made_channels, self.threads
        panels = 1 if self.is_direct else -(-channels.result // self.width)
        wanted = TASKS * threads if threads > 1 else 1
        # Weights larger than the cache are read again for each block. So blocks are few, and panels make the tasks.
        is_heavy = channels.given * channels.result * prod(len(a.taps) for a in axes) > 4 * BLOCK
        block = _blocks(axes, channels.given, 4 * BLOCK if is_heavy else BLOCK)
        if not is_heavy or panels * channels.groups < wanted:
            block = _shared(axes, block, channels.groups, wanted)
        splits = min(panels, -(-wanted // (_count(axes, block) * channels.groups)))
        return Problem(axes, channels, packed, out, block, parts=0, splits=splits)

    def run(self, x: np.ndarray, weights: np.ndarray, out: np.ndarray) -> None:
        """Write the value."""
        if not self.is_whole:
            out[...] = 0
        if not self.is_direct:
            for problem, (size, panels) in zip(self.problems, self.packings, strict=True):
                with _SCRATCH.of(size) as packed:
                    self.call_on_panels("pack_weights", panels, weights.ctypes.data, packed)
                    self._run(problem, "convolve", x, packed, out)
            return
        for problem, *following in self.calls:
            if self.is_along_groups:
                listed = np.ascontiguousarray(self._listed(problem, weights)[:, 0, :, 0].T)
                self._run(problem, "convolve_channels", x, listed.ctypes.data, out)
                continue
            listed = self._listed(problem, weights)
            others = [self._listed(each, weights) for each in following]
            rest = [(each, w.ctypes.data) for each, w in zip(following, others, strict=True)]
            self._run(problem, "convolve_directly", x, listed.ctypes.data, out, rest)

    def _run(
        self,
        problem: Problem,
        name: str,
        x: np.ndarray,
        weights: int,
        out: np.ndarray,
        following: Sequence[tuple[Problem, int]] = (),
    ) -> None:
        addresses = x.ctypes.data, out.ctypes.data, weights
        problem.run(self.functions[name], *addresses, self.itemsize, self.threads, following)

    def _together(self) -> list[list[Problem]]:
        """The problems grouped by C call: direct ones with equally many blocks share a call."""
        counts = {_count(problem.axes, problem.block) for problem in self.problems}
        if self.is_direct and not self.is_along_groups and len(counts) == 1:
            return [self.problems]
        return [[problem] for problem in self.problems]

    def _listed(self, problem: Problem, weights: np.ndarray) -> np.ndarray:
        """The weights as (group, output, tap, input)."""
        groups = self.grouped(weights)
        if self.made_filters is not self.filters:  # a derivative by images: its outputs are the weights' inputs
            groups = groups.swapaxes(1, 2)
        return np.ascontiguousarray(np.stack([groups[(..., *tap)] for tap in self.elements(problem)], axis=2))


class _ByInput(_Images):
    """The derivative by images: delta is the packed operand, and the images are written."""

    @property
    def made_channels(self) -> Channels:
        return Channels(self.channels.groups, self.channels.result, self.channels.given)

    @property
    def made_filters(self) -> Filters:
        return self.filters._replace(given=self.filters.result, result=self.filters.given)

    def phases(self) -> list[tuple[list[Axis], Image, Image]]:
        found = []
        for residues in product(*(range(s.stride) for s in self.slidings)):
            spatial = [self._axis(s, r) for s, r in zip(self.slidings, residues, strict=True)]
            if any(axis.sums == 0 for axis in spatial):
                continue
            if any(not axis.taps for axis in spatial):
                self.is_whole = False
                continue
            steps, begins = three([s.stride for s in self.slidings], 1), three(residues, 0)
            batch_last = _is_batch_last(self.op)
            steps, begins = ([*steps, 1], [*begins, 0]) if batch_last else ([1, *steps], [0, *begins])
            out = self.x._replace(
                axes=tuple(a * n for a, n in zip(self.x.axes, steps, strict=True)),
                begin=sum(a * n for a, n in zip(self.x.axes, begins, strict=True)),
            )
            found.append((self.axes(spatial), self.delta, out))
        return found

    @staticmethod
    def _axis(s: Any, residue: int) -> Axis:
        offsets = [(t, residue + s.before - t * s.dilation) for t in range(s.window)]
        taps = tuple((t, offset // s.stride) for t, offset in offsets if offset % s.stride == 0)
        return Axis(s.positions, -(-(s.size - residue) // s.stride), 1, taps)


class _ByWeights(_Plan):
    """The derivative by weights: images are packed with channels last, and partial sums over blocks are added up."""

    def __init__(self, functions: dict[str, Any], op: ConvolutionOperator, arrays: Sequence[np.ndarray]) -> None:
        super().__init__(functions, op, arrays)
        channels, axes = self.channels, self.forward_axes()
        panels = -(-channels.result // self.width)
        # Rounding depends on the blocks. So blocks depend on sizes alone, not on the number of threads.
        block = _blocks(axes, channels.given, 2 * BLOCK)
        if not self.is_direct:
            block = _shared(axes, block, channels.groups * panels, 2 * PARTS)
        count = _count(axes, block)
        one = Problem(axes, channels, self.x, self.delta, block)
        self.size = self.panel_bytes(one, channels)
        tasks = channels.groups * panels
        parts = max(1, min(PARTS, count // 2, -(-2 * PARTS // tasks), PARTS_BYTES // max(self.size, 1)))
        wanted = TASKS * self.threads if self.threads > 1 else 1
        splits = min(panels, -(-wanted // (parts * channels.groups)))
        self.parts, self.problem = parts, Problem(axes, channels, self.x, self.delta, block, parts, splits)
        if not self.is_direct:
            self.totals = self.panels(self.problem, channels, self.filters, parts)

    def run(self, x: np.ndarray, delta: np.ndarray, out: np.ndarray) -> None:
        """Write the derivative into `out`."""
        operands = x.ctypes.data, delta.ctypes.data
        if self.is_along_groups:
            sums = np.zeros((len(self.problem.taps), self.channels.groups), out.dtype)
            self._run("correlate_channels", operands, sums.ctypes.data)
            groups = self.grouped(out)
            for number, element in enumerate(self.elements(self.problem)):
                groups[(..., *element)] = sums[number, :, None, None]
            return
        if self.is_direct:
            channels = self.channels
            shape = (channels.groups, channels.result, channels.given, len(self.problem.taps))
            sums = np.zeros(shape, out.dtype)
            self._run("correlate_directly", operands, sums.ctypes.data)
            groups = self.grouped(out)
            for number, element in enumerate(self.elements(self.problem)):
                groups[(..., *element)] = sums[..., number]
            return
        with _SCRATCH.of(self.size * self.parts) as sums_address:
            self._run("correlate", operands, sums_address)
            self.call_on_panels("add_parts", self.totals, out.ctypes.data, sums_address)

    def _run(self, name: str, operands: tuple[int, int], sums: int) -> None:
        self.problem.run(self.functions[name], *operands, sums, self.itemsize, self.threads)


# The routine


#: The class of the plan, by op class.
_PLANS: dict[type, type[_Images] | type[_ByWeights]] = {
    Conv: _Images,
    ConvInput: _ByInput,
    ConvTranspose: _ByInput,
    ConvWeights: _ByWeights,
}

NAMES = ("convolve", "correlate", "pack_weights", "add_parts", "panel_width")
DIRECT_NAMES = ("convolve_directly", "convolve_channels", "correlate_directly", "correlate_channels", "panel_width")


class Convolution:
    """A convolution, or one of its derivatives, on NumPy arrays.

    `backend`: a `CPUBackend`.
    """

    def __init__(self, backend: Any, op: ConvolutionOperator) -> None:
        self.backend, self.op = backend, op
        self.plans, self.types = Cache("convolutions by layout", 64), Cache("types of convolutions", 64)
        self.work = Work(backend, SMALL, IN_ALL, LEAST)

    def __call__(self, *arrays: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        op, known = self.op, tuple([(x.shape, x.dtype) for x in arrays])
        types: Any = self.types.get(known)
        if types is None:
            *_, dtype = op.resolve_dtypes(*(x.dtype for x in arrays))
            shape = op.output_shape(*(x.shape for x in arrays))
            types = shape, dtype, wide_dtype(dtype), self._transforms([*(x.shape for x in arrays)], shape, dtype), None
            self.types[known] = types
        shape, dtype, wide, transforms, functions = types
        first, second = (np.asarray(x, wide) for x in arrays[:2])
        if transforms is not None:
            begin, size = transforms
            right = second.reshape(-1) if isinstance(op, ConvInput) else second.reshape(-1)[::-1]
            found = convolved(first.reshape(-1), right, size)[begin : begin + prod(shape)].astype(dtype, copy=False)
            if np.isfinite(found).all():  # otherwise a number that is not makes all others nan, which are finite
                return stored(found.reshape(shape), out)  # type: ignore[no-any-return]
        if functions is None:
            functions = self.functions_for(wide, [*(x.shape for x in arrays)], shape)
            self.types[known] = (*types[:4], functions)
        if functions is None:
            return stored(rounded(op.value(first, second, *arrays[2:]), dtype, copy=False), out)  # type: ignore[no-any-return]
        fits = out is not None and out.dtype == wide and not any(overlap(out, x) for x in (first, second))
        target = out if out is not None and fits else empty_array(shape, wide)
        self.plan(functions, first, second, target).run(first, second, target)
        if out is None:
            return rounded(target, dtype, copy=False)
        return stored(target, out)  # type: ignore[no-any-return]

    def _transforms(self, operands: Sequence[Any], shape: Any, dtype: np.dtype) -> tuple[int, int] | None:
        """The first element of the value in the full convolution, and the size of the transforms that compute that.

        None if the operands are no vectors of floats, or too short.
        """
        op, known = self.op, [*operands[:2], shape]
        props = op.stride, op.dilation, op.layout, op.weights_layout
        if dtype not in TYPES or isinstance(op, ConvTranspose) or props != ((1,), (1,), "NCW", "OIW"):
            return None
        if any(prod(each) != each[-1] or not each[-1] for each in known):
            return None
        image, window, _ = (known[role] for role in ROLES[type(op)])
        (sliding,) = op.slidings(image[2:], window[2:])
        begin = sliding.before if isinstance(op, ConvInput) else known[1][-1] - 1 - sliding.before
        full = known[0][-1] + known[1][-1] - 1
        size = transform_size(full, op.flops(operands, [shape]) // 2)
        return None if size is None or begin < 0 or begin + shape[-1] > full else (begin, size)

    def sources(self, *arrays: Any) -> list[Source]:
        """The C functions that a call on arrays of these layouts surely needs, to be compiled before it."""
        *_, dtype = self.op.resolve_dtypes(*(x.dtype for x in arrays))
        wide, shapes = wide_dtype(dtype), [x.shape for x in arrays]
        flops = self.op.flops(shapes, [self.op.output_shape(*shapes)])
        if wide not in TYPES or not all(map(prod, shapes)) or not self.work.pays_alone(flops):
            return []
        return [self._source(wide, shapes)]

    def functions_for(self, dtype: np.dtype, operands: Sequence[Any], shape: Any) -> dict[str, Any] | None:
        """The C functions; None if NumPy computes the value."""
        is_served = dtype in TYPES and all(map(prod, [shape, *operands]))
        if not is_served or not self.work.pays(self.op.flops(operands, [shape])):
            return None
        return self.backend.c_functions(*self._source(dtype, operands))  # type: ignore[no-any-return]

    def _source(self, dtype: np.dtype, operands: Sequence[Any]) -> Source:
        """The C functions: direct loops for groups of few outputs, or panels of one or two vectors of outputs."""
        if self._is_direct(operands):
            return vector_source("convolution.c", TYPES[dtype], PANEL=2, DIRECT=1), DIRECT_NAMES
        is_narrow = self._results(operands) <= vector_bytes() // dtype.itemsize
        return vector_source("convolution.c", TYPES[dtype], PANEL=2 - is_narrow, DIRECT=0), NAMES

    def _is_direct(self, operands: Sequence[Any]) -> bool:
        """Whether direct loops compute it, not products of panels."""
        if not isinstance(self.op, ConvWeights):
            return self._results(operands) <= FEW
        outputs, inputs, *_ = self.op.filters(operands[2])
        return self.op.groups > 1 and inputs * (outputs // self.op.groups) <= FEW_PAIRS  # type: ignore[operator]

    def _results(self, operands: Sequence[Any]) -> int:
        """The output channels of a group: the weights' outputs, or their inputs for a derivative by images."""
        is_by_weights = isinstance(self.op, ConvWeights)
        outputs, inputs, *_ = self.op.filters(operands[2] if is_by_weights else operands[1])
        is_by_input = isinstance(self.op, ConvInput | ConvTranspose)
        return int(inputs if is_by_input else outputs // self.op.groups)  # type: ignore[arg-type, operator]

    def plan(self, functions: dict[str, Any], first: np.ndarray, second: np.ndarray, out: np.ndarray) -> Any:
        """The plan for the layouts of these arrays, from the cache or new."""
        key = (*((x.dtype, x.shape, x.strides) for x in (first, second, out)), thread_count())
        plan = self.plans.get(key)
        if plan is None:
            arrays = [(first, second, out)[role] for role in ROLES[type(self.op)]]
            plan = self.plans[key] = _PLANS[type(self.op)](functions, self.op, arrays)
        return plan
