"""Functions as standalone C or CUDA: calls with sizes, strides and offsets that follow from open sizes.

The steps are those that run the function: kernels, products, copies and views. They are traced on arrays without
contents, for several values of the open sizes (`Trace`). All traces have the same calls, and each of their numbers is
a polynomial of the open sizes (`_Fit`). `backends.export.library` prints them.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import permutations, product
from math import prod
from typing import Any, NoReturn

import numpy as np
from numpy.lib.stride_tricks import as_strided

from backends.cpu.calls import implementation
from backends.cpu.codegen import printer as c
from backends.cpu.routines.products import TYPES
from backends.cpu.runtime import C
from backends.execution.executor import CallStep, KernelStep, Step, steps_of
from backends.execution.loops import wanted_of
from backends.execution.memory import element_strides, unallocated_array
from backends.execution.memory_planner import lifetimes_of, slots_of
from backends.execution.printer_common import narrow_dtypes
from backends.execution.specialize import FusedKernel, as_int64, collapsed_axes
from backends.export.cuda import CudaFiles
from backends.export.library import DTYPES, Call, Files, Library, Polynomial, Region
from backends.gpu.kernel import CUDA
from optree.arrays import overlap
from optree.compile.aliasing import byte_bounds, overlapping
from optree.compile.loopnest import LoopNest, Statement
from optree.compile.pipeline import Options, lower
from optree.compile.program import ONE, Program, Sizes, check_sizes, shapes_of
from optree.errors import ExportError, OptreeError, ShapeError, built_at
from optree.networks.attention import Attention
from optree.networks.convolution import Conv
from optree.networks.recurrent import Parts
from optree.op.index_map import is_view
from optree.op.traits import CopyOperator
from optree.ops.assignment import Assign
from optree.ops.contraction import ProductOperator, TensorDot
from optree.ops.indexing import Embedding, Gather, Take, TakeAlongAxis
from optree.ops.loops import Scan
from optree.ops.ordering import ArgSort, Sort, TopIndices
from optree.ops.scan import CumMax, CumMin, CumProd, CumSum
from optree.ops.structure import Output
from optree.records import NamedTuple
from optree.registry import f
from optree.run.function import running_on
from optree.run.memory import bytes_of
from optree.tree import indexing as indices
from optree.tree.printing import instruction_text
from optree.tree.tensor import Tensor
from optree.tree.types import TensorType
from optree.tree.variable import Input, Variable, in_dtype

#: The values of each open size in the traces, and the difference between those of two open sizes. All numbers are
#: polynomials of degree 2 in each size, which the last value checks. No axis of such a size is like one of size 1, or
#: too short to be tiled.
VALUES, NEXT = (67, 72, 83, 98), 100

#: The executor of kernels that are not compiled: a library's nests are printed together.
KERNELS = partial(FusedKernel, compile=lambda nest: nest)

#: The maximum number of open sizes, and the maximum of each.
MOST, LARGEST = 3, 1 << 31


class Target(NamedTuple):
    """A language: its name, the lowering for its kernels, its files, and the methods of `METHODS` that it has not."""

    name: str
    options: Options
    files: type[Files]
    without: frozenset[str] = frozenset()


TARGETS = {
    "c": Target("C", C, Files),
    # On a device indices are not checked, conditions not read, and sorts not written.
    "cuda": Target("CUDA", CUDA, CudaFiles, frozenset(("_take", "_order"))),
}


def exported(f: Any, be: Any, target: str, name: str, weights: str, example: Sequence[Any] | None) -> dict[str, bytes]:
    """The files of a function in another language, by name; ExportError if it cannot be written in it."""
    if f.backend is not be:
        with running_on(be):
            f = pickle.loads(pickle.dumps(f))
    made = TARGETS[target]
    return made.files(_Fit(_Function(f, made)).library(), f, name, weights).all(f, example)


def _steps(backend: Any, program: Program, options: Options) -> tuple[Program, list[Step]]:
    """A program in the ops of a language's kernels, and its steps."""
    lowered = lower(program, options, "parts", "parts")
    return lowered, steps_of(lowered, partial(implementation, backend, lowered, None, {}), KERNELS, options)


class _Function:
    """The steps of a function, and its open sizes.

    `inputs`: from leaves to the inputs that they are.
    `tensors`: the tensors whose memory the leaves have.
    `open`: the dimensions that a call tells.
    `parts`: by key, the inputs, programs and steps of trees that are traced within others, such as loops' bodies.
    """

    def __init__(self, f: Any, target: Target) -> None:
        self.f, self.target = f, target
        self.program, self.steps = _steps(f.backend, f.program, target.options)
        program, self.sizes, self.parts = self.program, Sizes(self.program), dict[Any, Any]()
        self.inputs = {leaf: n for n, leaf in enumerate(f.argument_indices) if leaf is not None}
        roots = [*{id(x.root): x.root for x in program.leaves if isinstance(x, Tensor)}.values()]
        self.tensors = [root for root in roots if root.array.flags.c_contiguous and root.array.size]
        for i, j in overlapping([root.array for root in self.tensors]):
            both = f"{self.tensors[i].label} and {self.tensors[j].label}"
            raise ExportError(f"export: {both} share memory; build the function with a copy of one")
        sources = self.sizes.sources.items()
        of_inputs = [(dim, leaf, axis) for dim, (leaf, axis) in sources if leaf in self.inputs]
        self.open = [dim for dim, leaf, axis in of_inputs if program.type_of(leaf).shape[axis] is None]
        if len(self.open) > MOST:
            raise ExportError(f"export: {len(self.open)} sizes are open, and at most {MOST} may be; fix some of them")
        self.slots: dict[int, int] | None = None

    def part(self, key: Any, inputs: Sequence[Input], trees: Callable[..., Sequence[Variable]]) -> Any:
        be = self.f.backend
        if key not in self.parts:
            self.parts[key] = inputs, *_steps(be, be.program(trees(*inputs)), self.target.options)
        return self.parts[key]

    def known_at(self, point: Sequence[int]) -> tuple[list[Any], list[Any]]:
        """The leaves' values, inputs' without contents, and all shapes; ShapeError for wrong sizes."""
        known, arrays = {ONE: 1, **dict(zip(self.open, point, strict=True))}, list[Any]()
        for i, leaf in enumerate(self.program.leaves):
            if i in self.inputs:
                own = zip(self.sizes.dims[i] or (), leaf.type.shape, strict=True)
                arrays.append(
                    unallocated_array(tuple(known[dim] if n is None else n for dim, n in own), leaf.type.dtype)
                )
            else:
                arrays.append(self.f.backend.value_of(leaf))
        shapes, written = [np.shape(x) for x in arrays], self.f.written
        check_sizes(written, shapes[: len(written.leaves)])
        return arrays, shapes_of(self.program, shapes)

    def trace(self, point: Sequence[int]) -> Trace:
        """The trace for some values of the open sizes. The first decides which values share scratch memory."""
        try:
            arrays, shapes = self.known_at(point)
        except ShapeError as error:
            raise ExportError(f"export: {error}; fix these sizes, by TensorType(dtype, sizes)") from error
        arrays = [np.empty(x.shape, x.dtype) if i in self.inputs else x for i, x in enumerate(arrays)]
        if self.slots is None:
            self.slots = slots_of(lifetimes_of(self.program, self.steps), bytes_of(self.program, shapes))
            for step in self.steps:
                step.persistent = set(step.plannable) & self.slots.keys()
        return Trace(self, arrays, shapes, self.slots)


class _Fit:
    """The calls of a function for all sizes: those of its traces, with polynomials for numbers."""

    def __init__(self, function: _Function) -> None:
        self.function, self.count = function, len(function.open)
        bases, *_ = axes = [[size + NEXT * n for n in range(self.count)] for size in VALUES]
        grid = [tuple(axes[i][n] for n, i in enumerate(at)) for at in product(range(3), repeat=self.count)]
        self.powers = [*product(range(3), repeat=self.count)]
        first, *others = self.traces = [function.trace(point) for point in (*grid, axes[3])]
        if any(trace.structure() != first.structure() for trace in others):
            raise ExportError("export: the calls depend on the open sizes; fix some, by TensorType(dtype, sizes)")
        exact = np.stack([self._monomials(point) for point in (*grid, axes[3])])
        values = np.array([trace.numbers() for trace in self.traces], object)
        self.factors = np.zeros((len(grid), values.shape[1]), object)
        for _ in range(4):  # the solution in floating point, refined by exact residuals
            rest = (values - exact @ self.factors)[:-1].astype(float)
            step = np.rint(np.linalg.solve(exact[:-1].astype(float), rest))
            self.factors += np.vectorize(int, otypes=[object])(step)
        if (exact @ self.factors != values).any() or not all(map(self._holds, permutations(bases))):
            raise ExportError("export: some sizes are no polynomials of the open ones; fix some by TensorType")

    def _monomials(self, point: Sequence[int]) -> Any:
        return np.array([prod(size**n for size, n in zip(point, power, strict=True)) for power in self.powers], object)

    def _holds(self, point: Sequence[int]) -> bool:
        """Whether all shapes are those of the polynomials, none is of 0, and no index is too large."""
        monomials = self._monomials(point)
        try:
            sizes = _flat(self.function.known_at(point)[1])
            if max(point, default=0) <= max(VALUES) + NEXT * MOST:  # else it is as large as one that was traced
                trace, first = self.function.trace(point), self.traces[0]
                made, numbers = monomials @ self.factors, trace.numbers()
                if [numbers[i] for i in trace.bounds()] != [made[i] for i in first.bounds()]:
                    return False
        except (OptreeError, ValueError, IndexError):
            return False
        return min(sizes, default=1) > 0 and sizes == [*(monomials @ self.factors)[: len(sizes)]]

    def _limit(self, n: int, outside: int) -> int:
        """The last value of an open size, before one outside, up to which the polynomials hold."""
        point = [VALUES[0] + NEXT * i for i in range(self.count)]
        inside = point[n]
        while abs(outside - inside) > 1:
            point[n] = (inside + outside) // 2
            inside, outside = (point[n], outside) if self._holds(point) else (inside, point[n])
        return inside

    def library(self) -> Library:
        """The library."""
        rows = zip(*self.factors, strict=True)
        numbers = [Polynomial({power: x for power, x in zip(self.powers, row, strict=True) if x}) for row in rows]
        limits = [(self._limit(n, 0), self._limit(n, LARGEST + 1)) for n in range(self.count)]
        return self.traces[0].library(self.function, numbers, limits)


def _flat(shapes: Iterable[Any]) -> list[int]:
    """The sizes of shapes, some of tuples."""
    return [size for x in shapes if x is not None for size in (_flat(x) if isinstance(x, list) else x)]


class Trace:
    """The calls of a function's steps for some sizes.

    `registers`: the values of the program: arrays without contents, numbers, and tuples of arrays.
    `regions`: the memory that these are in; `spans` has the addresses of each.
    `calls`: list of Call.
    """

    def __init__(self, function: _Function, arrays: list[Any], shapes: Sequence[Any], slots: dict[int, int]) -> None:
        self.function, self.program, self.shapes = function, function.program, shapes
        self.target = function.target
        self.registers = [*arrays, *[None] * len(self.program.instructions)]
        self.regions, self.calls = list[Region](), list[Call]()
        self._numbers: Sequence[int] = ()
        self.spans, self.bytes, self.held = list[tuple[int, int]](), list[int](), list[Any]()
        for n, root in enumerate(function.tensors):
            self._region(root.array, Region("tensor", n))
        for i, x in enumerate(arrays):
            if i in function.inputs:
                self._region(x, Region("input", function.inputs[i]))
            elif isinstance(x, np.ndarray) and not isinstance(self.program.leaves[i], Tensor):
                self.registers[i] = self._constant(x)
        for i, slot in slots.items():
            self.registers[i] = self._new(shapes[i], self.program.type_of(i).dtype, slot)
        self._run(function.steps)
        self._finish(len(function.f.outputs))

    def _run(self, steps: Sequence[Step]) -> None:
        for step in steps:
            self._numbers = step.numbers
            self._kernel(step) if isinstance(step, KernelStep) else self._call(step)

    # Memory

    def _region(self, x: np.ndarray, region: Region) -> np.ndarray:
        if str(x.dtype) not in DTYPES:
            instead = "give its parts, z.real and z.imag" if x.dtype.kind == "c" else "cast it to float32"
            self._refuse(f"exported {self.target.name} has no {x.dtype}; {instead}")
        self.regions.append(region)
        self.spans.append(byte_bounds(x))
        self.bytes.append(x.nbytes)
        self.held.append(x)
        return x

    def _new(self, shape: tuple[int, ...], dtype: Any, slot: int | None = None) -> np.ndarray:
        """A new array in scratch memory, shared with others of its slot."""
        key = ("alone", len(self.regions)) if slot is None else ("slot", slot)
        return self._region(np.empty(shape, dtype), Region("scratch", key))

    def _constant(self, x: object) -> np.ndarray:
        x = np.array(x, order="C")
        return self._region(x, Region("constant", (str(x.dtype), x.shape, x.tobytes())))

    def _array(self, value: int) -> np.ndarray:
        """The array of a value; a number becomes a constant."""
        x = self.registers[value]
        if not isinstance(x, np.ndarray):
            x = self.registers[value] = self._constant(x)
        return x

    def _at(self, x: np.ndarray) -> tuple[int, int]:
        """The region of an array, and its offset in bytes."""
        start = x.ctypes.data
        for n, (low, high) in enumerate(self.spans):
            if low <= start < high:
                return n, start - low
        self._refuse("an operand has no elements, or is not in C order: copy it")

    def _is_known(self, x: np.ndarray) -> bool:
        return any(low <= x.ctypes.data < high for low, high in self.spans)

    def _refuse(self, why: str) -> NoReturn:
        made = [self.program.instructions[index] for index in self._numbers]
        ops = ", ".join(f"{instruction.op}{built_at(instruction.node.origin)}" for instruction in made)
        raise ExportError(f"export: {ops or 'a tensor'}: {why}, or compute this outside and make it an input")

    # Calls

    def _add(self, what: object, arrays: Sequence[np.ndarray], numbers: Sequence[int], comment: str = "") -> None:
        places = [self._at(x) for x in arrays]
        self.calls.append(
            Call(what, tuple(n for n, _ in places), (*(offset for _, offset in places), *numbers), comment)
        )

    def _comment(self) -> str:
        return "\n".join(instruction_text(self.program, index) for index in self._numbers)

    def _kernel(self, step: KernelStep) -> None:
        kernel = step.kernel
        reads = [self._array(i) for i in kernel.reads]
        given = step.given(self.registers)
        if kernel.overlaps(reads, given):  # the values are stored apart, and copied
            given = [None] * len(given)
        found = kernel.specialize([*reads, *given], kernel.input_shapes(self.registers))
        if found is None or found.nest is None:
            self._refuse("it has no kernel for these sizes; fix them")
        stored = zip(kernel.writes, found.shapes, given, strict=True)
        writes = [self._new(shape, kernel.dtypes[i]) if x is None else x for i, shape, x in stored]
        numbers = tuple((as_int64(self.registers[i], dtype), str(dtype)) for i, dtype in kernel.numbers)
        self._nest(found.nest, found.layout, [*reads, *writes], numbers, self._comment())
        for i, x in zip(kernel.writes, writes, strict=True):
            target = step.target_of.get(i)
            self.registers[i] = x if target is None else self.registers[target]
            if target is not None and x is not self.registers[target]:
                self._copy(x, self.registers[target])
        for value, target, assignment in step.assigned:
            self.registers[value] = self.registers[assignment] = self.registers[target]

    def _nest(self, nest: LoopNest, layout: Any, arrays: Sequence[Any], numbers: Any, comment: str) -> None:
        sizes, strides = layout
        for name in narrow_dtypes(nest):
            self._refuse(f"exported {self.target.name} has no {name}; compute in float32")
        if self.function.open:  # one kernel for all sizes: whether threads share its sums would depend on them
            nest = nest._replace(split=False)
        self._add(("kernel", nest, numbers), arrays, [*sizes, *strides, *c.scratch(nest, sizes)], comment)

    def _call(self, step: Step) -> None:
        assert isinstance(step, CallStep)
        op, runs = step.op, step.runnable()
        assert runs.take is not None
        given = runs.take(self.registers)
        if isinstance(op, Assign):
            self._copy(self._array(step.inputs[1]), self.registers[step.inputs[0]])
            self.registers[step.output] = self.registers[step.inputs[0]]
        elif isinstance(op, Output):
            self.registers[step.output] = self.registers[step.inputs[0]][op.index]
        elif step.is_fixed or 0 < len(step.inputs) == len(op.index_map.shape_only):
            self._fixed(step, runs.call(*given))
        elif is_view(op):
            self._view(step, runs.call(*given))
        elif (found := self._method(op)) is not None:
            found(self, step)
        elif isinstance(op, CopyOperator):
            self._copies(step, [np.asarray(x) for x in given])
        else:
            self._refuse(f"it has no {self.target.name}; use other ops")

    def _method(self, op: object) -> Callable[[Trace, CallStep], None] | None:
        """The method that writes an op's calls."""
        found = next((METHODS[cls] for cls in type(op).__mro__ if cls in METHODS), None)
        return None if found is None or found.__name__ in self.target.without else found

    def _fixed(self, step: CallStep, value: object) -> None:
        """A value that sizes alone decide: a number, which follows from them, or a constant."""
        x = np.array(value)
        if x.size == 1 and float(x.item()).is_integer():
            self._region(x, Region("count", str(x.dtype)))
            self.bytes[-1] = int(x.item())
            self.registers[step.output] = x
        else:
            self.registers[step.output] = self._constant(x)

    def _view(self, step: CallStep, found: Any) -> None:
        views = found if isinstance(found, tuple) else (found,)
        if all(self._is_known(x) for x in views):
            self.registers[step.output] = found
            return
        if not step.op.index_map.keeps_order:
            self._refuse("it makes a copy; use other ops")
        self.registers[step.output] = self._reshaped(self._array(step.inputs[0]), found.shape)

    def _reshaped(self, x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """A view of an array in another shape, or a copy where no strides allow one."""
        found = x.reshape(shape)
        if self._is_known(found):
            return found
        made = self._new(shape, x.dtype)
        self._copy(x, made.reshape(x.shape))
        return made

    def _target(self, step: CallStep, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """The array that a call writes."""
        register = step.output if step.persistent else step.out
        out = self._new(shape, dtype) if register is None else self.registers[register]
        self.registers[step.output] = out
        return out

    def _copies(self, step: CallStep, arrays: list[np.ndarray]) -> None:
        shape, dtype = step.op.output_shape(*map(np.shape, arrays)), self.program.instructions[step.index].type.dtype
        out = self._target(step, shape, dtype)
        to = self._new(shape, dtype) if any(overlap(out, x) for x in arrays) else out
        for target, source in step.op.copies(to, *arrays):
            if target.size:
                source = np.asarray(source)
                is_known = source.size and self._is_known(source)
                self._copy(source if is_known else self._constant(source.astype(dtype)), target)
        if to is not out:
            self._copy(to, out)

    def _copy(self, x: np.ndarray, to: np.ndarray) -> None:
        """A copy of an array, broadcast and cast, to another one that it does not overlap."""
        if overlap(x, to):
            if (x.ctypes.data, x.shape, x.strides) == (to.ctypes.data, to.shape, to.strides):
                return
            self._refuse("it copies an array over itself; copy it first")
        x = np.broadcast_to(x, to.shape)
        dtypes = x.dtype, to.dtype
        sizes, strides = collapsed_axes(to.shape, [list(element_strides(x)), list(element_strides(to))])
        vector = tuple(steps[-1] if steps[-1] in (0, 1) else -1 for steps in strides)
        same = dtypes[0] == dtypes[1]
        casts = () if same else (Statement(1, "{0}", (0,), dtypes[:1], dtypes[1]),)
        levels = ("inner", "inner")
        nest = LoopNest(dtypes[:1], (), casts, (len(casts),), dtypes[1:], len(sizes), len(sizes), levels, vector)
        self._nest(nest, (sizes, [step for steps in strides for step in steps]), [x, to], (), "copy")

    def _product(self, step: CallStep) -> None:
        x, y = (self._array(i) for i in step.inputs)
        instruction = self.program.instructions[step.index]
        out = self._target(step, step.op.output_shape(x.shape, y.shape), instruction.type.dtype)
        matrices = out if x.ndim > 1 else out[..., None, :] if y.ndim > 1 else out[..., None]
        matrices = matrices if y.ndim > 1 else matrices[..., None]
        self._multiply(x if x.ndim > 1 else x[None], y if y.ndim > 1 else y[:, None], matrices)

    def _tensordot(self, step: CallStep) -> None:
        x, y = (self._array(i) for i in step.inputs)
        left, right = step.op.axes
        x_free, y_free = ([i for i in range(z.ndim) if i not in axes] for z, axes in ((x, left), (y, right)))
        inner = prod(x.shape[i] for i in left)
        rows, columns = prod(x.shape[i] for i in x_free), prod(y.shape[i] for i in y_free)
        out = self._new((*(x.shape[i] for i in x_free), *(y.shape[i] for i in y_free)), x.dtype)
        x = self._reshaped(x.transpose(*x_free, *left), (rows, inner))
        y = self._reshaped(y.transpose(*right, *y_free), (inner, columns))
        self._multiply(x, y, out.reshape(rows, columns))
        given = self._target(step, out.shape, out.dtype)
        self._copy(out, given)

    def _convolution(self, step: CallStep) -> None:
        """The product of filters and the windows of images as columns, both in groups."""
        op, (x, weights) = step.op, (self._array(i) for i in step.inputs)
        images, filters, groups = op.as_image(x), op.as_filters(weights), op.groups
        (n, c, *sizes), (o, i, *window) = images.shape, filters.shape
        slid = op.slidings(sizes, window)
        counts = [s.positions for s in slid]
        ends = [s.before + s.size for s in slid]
        reach = [(s.positions - 1) * s.stride + (s.window - 1) * s.dilation + 1 for s in slid]
        padded = images
        if any(s.before for s in slid) or any(a > b for a, b in zip(reach, ends, strict=True)):
            padded = self._new((n, c, *map(max, ends, reach)), x.dtype)
            self._copy(self._constant(np.zeros((), x.dtype)), padded)
            inside: tuple[Any, ...] = (..., *(slice(s.before, s.before + s.size) for s in slid))
            self._copy(images, padded[inside])
        within = [by * s.dilation for by, s in zip(padded.strides[2:], slid, strict=True)]
        between = [by * s.stride for by, s in zip(padded.strides[2:], slid, strict=True)]
        columns = self._new((n, c, *window, *counts), x.dtype)
        self._copy(as_strided(padded, columns.shape, (*padded.strides[:2], *within, *between)), columns)
        made = self._new((n, groups, o // groups, prod(counts)), x.dtype)
        rows = self._reshaped(filters, (groups, o // groups, i * prod(window)))
        self._multiply(rows, columns.reshape(n, groups, i * prod(window), prod(counts)), made)
        self._copy(
            made.reshape(n, o, *counts),
            op.as_image(self._target(step, op.convolved_shape(x.shape, weights.shape), x.dtype)),
        )

    def _multiply(self, x: np.ndarray, y: np.ndarray, out: np.ndarray) -> None:
        """A product of matrices, or of stacks of them."""
        if not (x.dtype == y.dtype == out.dtype and x.dtype in TYPES):
            self._refuse(f"products of {x.dtype} and {y.dtype} are not written; cast to float32 or float64")
        by_cublas = self.target.name == "CUDA"
        if overlap(out, x) or overlap(out, y) or (by_cublas and not _is_matrix(out, order="C")):
            apart = self._new(out.shape, out.dtype)
            self._multiply(x, y, apart)
            self._copy(apart, out)
            return
        x, y = (self._copied(z) if by_cublas and not _is_matrix(z) else z for z in (x, y))
        stack = out.shape[:-2]
        arrays = [np.broadcast_to(z, (*stack, *z.shape[-2:])) for z in (x, y, out)]
        steps = [element_strides(z) for z in arrays]
        numbers = [*out.shape[-2:], x.shape[-1], *(step for each in steps for step in each[-2:])]
        numbers += [*stack, *(step for each in steps for step in each[:-2])]
        self._add(("product", str(x.dtype), len(stack)), [x, y, out], numbers, self._comment())

    # Trees within trees

    def _within(self, key: Any, inputs: Sequence[Input], trees: Any, arrays: Sequence[np.ndarray]) -> list[Any]:
        """The values of trees of inputs, for arrays; `trees` gives them for inputs."""
        inputs, program, steps = self.function.part(key, inputs, trees)
        values, inner = {id(x): array for x, array in zip(inputs, arrays, strict=True)}, copy.copy(self)
        leaves = [values[id(x)] if id(x) in values else self.function.f.backend.value_of(x) for x in program.leaves]
        leaves = [inner._constant(x) if isinstance(x, np.ndarray) and not inner._is_known(x) else x for x in leaves]
        inner.program, inner.registers = program, [*leaves, *[None] * len(program.instructions)]
        inner._run(steps)
        return [inner._array(i) for i in program.outputs]

    def _computed(self, key: object, function: Callable[..., Variable], *arrays: np.ndarray) -> np.ndarray:
        """The value of a function of trees, for arrays."""
        inputs = [Input(TensorType(x.dtype, [None if n != 1 else 1 for n in x.shape])) for x in arrays]
        types = tuple((str(x.dtype), x.type.shape) for x in inputs)
        (found,) = self._within((key, types), inputs, lambda *given: [function(*given)], arrays)
        return found

    def _begin(
        self, moving: Sequence[tuple[np.ndarray, int]], reverse: bool = False, flag: tuple[str, Any] | None = None
    ) -> list[np.ndarray]:
        """Begin a loop in C over an axis of arrays; their slices."""
        length, slices, numbers = moving[0][0].shape[moving[0][1]], list[np.ndarray](), list[tuple[int, int, int]]()
        first = len(self.regions)
        for x, axis in moving:
            view = np.moveaxis(x, axis, 0)[0, ...]
            (n, _), (low, high) = self._at(view), byte_bounds(view)
            memory, step = np.empty(max(high - low, 1), np.uint8), x.strides[axis]
            made = np.ndarray(view.shape, view.dtype, memory, view.ctypes.data - low, view.strides)
            slices.append(self._region(made, Region("slice", None)))
            self.held.append(memory)
            numbers.append((n, low - self.spans[n][0] + reverse * (length - 1) * step, -step if reverse else step))
        regions, offsets, steps = zip(*numbers, strict=True)
        what: tuple[Any, ...] = ("loop", first, None)
        if flag is not None:
            n, offset = self._at(slices[flag[1]] if isinstance(flag[1], int) else flag[1])
            what, regions, offsets = ("loop", first, flag[0]), (*regions, n), (*offsets, offset)
        self.calls.append(Call(what, regions, (*offsets, *steps, length), self._comment()))
        return slices

    def _end(self) -> None:
        self.calls.append(Call(("end",), (), (), ""))

    def _store(self, x: np.ndarray, to: np.ndarray) -> None:
        """Place a value in an array that nothing has read: at once, where it fills memory of its own."""
        if self._is_alone(x) and to.flags.c_contiguous and not self._at(to)[1]:
            self.regions[self._at(x)[0]] = Region("same", self._at(to)[0])
        else:
            self._copy(x, to)

    def _is_alone(self, x: np.ndarray) -> bool:
        """Whether a value fills scratch memory that nothing else has."""
        n, offset = self._at(x)
        kind, key = self.regions[n]
        return (
            kind == "scratch"
            and key[0] == "alone"
            and not offset
            and x.flags.c_contiguous
            and x.nbytes == self.bytes[n]
        )

    def _scan(self, step: CallStep) -> None:
        """A loop in C: the calls of its body on slices, after which the states are copied."""
        op, wanted = step.op, wanted_of(self.program, step.index)
        if op.flag is not None and self.target.name == "CUDA":
            self._refuse("the host does not read its condition; use be.scan of a number of steps")
        arrays, body = [self._array(i) for i in step.inputs], step.op.body
        dtypes = op.joined([x.dtype for x in body.results], [x.dtype for x in body.states])
        shapes = op.infer_shape(None, [x.shape for x in arrays])
        made: list[Any] = [self._new(s, d) if w else None for s, d, w in zip(shapes, dtypes, wanted, strict=True)]
        states, sequences, constants = op.parts(arrays)
        count, outer = len(states), [x for x in made[len(states) :] if x is not None]
        for begun, x in zip(states, made, strict=False):
            self._copy(begun, x)
        if op.flag is not None:  # the outputs of steps that do not run
            for x in outer:
                self._copy(self._constant(np.zeros((), x.dtype)), x)
        axes = [*op.out_axes, *[0] * (len(made) - count - len(op.out_axes))]
        joined = [(x, axis) for x, axis in zip(made[count:], axes, strict=True) if x is not None]
        is_state = op.flag is not None and op.flag < count
        flag = None if op.flag is None else ("break", made[op.flag]) if is_state else ("continue", op.flag - count)
        moving = self._begin([*zip(sequences, op.axes, strict=True), *joined], op.reverse, flag)
        slices = iter(moving[len(sequences) :])
        targets = [None if x is None else next(slices) for x in made[count:]]
        first, last = len(body.outputs), len(body.outputs) + count
        for x, before in zip(made, targets[first:last], strict=False):
            if before is not None:
                self._copy(x, before)
        pairs = zip(body.results[count:], [*targets[:first], *targets[last:]], strict=True)
        results = [(result, to) for result, to in pairs if to is not None]
        given, start = [*made[:count], *moving[: len(sequences)], *constants], len(self.regions)
        trees = [*body.new_states, *(result for result, _ in results)]
        found = self._within(("scan", body, wanted), body.arguments, lambda *_: trees, given)
        for value, (_, to) in zip(found[count:], results, strict=True):
            self._store(value, to)
        new = [x if self._at(x)[0] >= start else self._copied(x) for x in found[:count]]
        for value, x in zip(new, made, strict=False):
            self._copy(value, x)
        self._end()
        self.registers[step.output] = tuple(made) if len(made) > 1 else made[0]

    def _copied(self, x: np.ndarray) -> np.ndarray:
        """A copy of an array in scratch memory of its own."""
        made = self._new(x.shape, x.dtype)
        self._copy(x, made)
        return made

    def _accumulate(self, step: CallStep) -> None:
        """A cumulative sum, product or extreme: a loop over its axis."""
        (x,), op = [self._array(i) for i in step.inputs], step.op
        out = self._target(step, x.shape, self.program.instructions[step.index].type.dtype)
        axis, function = op.axis % x.ndim, CUMULATIVE[type(op)]
        first, rest, last = ((*(slice(None),) * axis, part) for part in (slice(1), slice(1, None), slice(-1)))
        self._copy(x[first], out[first])
        if x.shape[axis] > 1:
            given, before, to = self._begin([(x[rest], axis), (out[last], axis), (out[rest], axis)])
            found = self._computed(type(op), lambda a, b: function(in_dtype(a, b.dtype), b), given, before)
            self._store(found, to)
            self._end()

    def _attention(self, step: CallStep) -> None:
        """Attention as the composition that it is in tiles of."""
        op, arrays = step.op, [self._array(i) for i in step.inputs]
        composed = partial(op.composed, op.factor(arrays[0]))
        self.registers[step.output] = (self._computed((op, len(arrays)), composed, *arrays), None)

    def _parts(self, step: CallStep) -> None:
        self.registers[step.output] = step.op.views(self._array(step.inputs[0]))

    # Indices

    def _contiguous(self, x: np.ndarray) -> np.ndarray:
        return x if x.flags.c_contiguous else self._copied(x)

    def _take(self, step: CallStep) -> None:
        """Elements at indices along an axis, which may be others in each row (`TakeAlongAxis`)."""
        op, (x, given, *rest) = step.op, [self._array(i) for i in step.inputs]
        shape, own = op.output_shape(x.shape, given.shape, *map(np.shape, rest)), isinstance(op, TakeAlongAxis)
        entries = op.index if isinstance(op, Gather) else ()
        if rest or any(entry not in (indices.ARRAY, indices.EVERYTHING) for entry in entries):
            self._refuse("indices along several axes are not written; use take along one")
        axis = entries.index(indices.ARRAY) if entries else op.axis
        out = self._target(step, shape, x.dtype)
        if own:  # as rows, in which the axis is the last one
            moved = [np.moveaxis(z, axis, -1) for z in (x, given)]
            others = np.broadcast_shapes(*(z.shape[:-1] for z in moved))
            x, given = (np.broadcast_to(z, (*others, z.shape[-1])) for z in moved)
        outer, size = (prod(others), x.shape[-1]) if own else (prod(x.shape[:axis]), x.shape[axis])
        inner, numbers = 1 if own else prod(x.shape[axis + 1 :]), given
        if given.dtype != np.int64 or not given.flags.c_contiguous:
            numbers = self._new(given.shape, np.int64)
            self._copy(given, numbers)
        x, least = self._contiguous(x), 0 if isinstance(op, Embedding) else -size
        is_direct = out.flags.c_contiguous and not own and not overlap(out, x)
        to = out if is_direct else self._new(given.shape if own else shape, x.dtype)
        count = given.size // (outer if own else 1)
        sizes = [outer, size, count, inner * x.itemsize, int(own), least]
        self._add(("take",), [x, numbers, to], sizes, self._comment())
        if not is_direct:
            self._copy(np.moveaxis(to, -1, axis) if own else to, out)

    def _order(self, step: CallStep) -> None:
        """The elements, or their indices, along an axis in order."""
        op, x = step.op, self._array(step.inputs[0])
        rows = self._contiguous(np.moveaxis(x, op.axis, -1))
        made, found = self._new(rows.shape, x.dtype), self._new(rows.shape, np.int64)
        work, kind = self._new(rows.shape[-1:], np.int64), "descending" if isinstance(op, TopIndices) else "ascending"
        numbers = [prod(rows.shape[:-1]), rows.shape[-1]]
        self._add(("order", str(x.dtype), kind), [rows, made, found, work], numbers, self._comment())
        value = np.moveaxis(made if isinstance(op, Sort) else found, -1, op.axis)
        value = value[(*(slice(None),) * (op.axis % x.ndim), slice(op.k))] if isinstance(op, TopIndices) else value
        self._copy(value, self._target(step, value.shape, self.program.instructions[step.index].type.dtype))

    # Results

    def _finish(self, count: int) -> None:
        """Place the outputs: in the caller's arrays at once, where they fill memory of their own."""
        self.outputs = list[tuple[tuple[int, ...], str]]()
        for n, value in enumerate(self.program.outputs[:count]):
            x = self._array(value)
            if self._is_alone(x):
                self.regions[self._at(x)[0]] = Region("output", n)
            else:
                self._copy(x, self._region(np.empty(x.shape, x.dtype), Region("output", n)))
            self.outputs.append((x.shape, str(x.dtype)))

    def structure(self) -> Any:
        """All that is the same for all sizes."""
        calls = [(call.what, call.regions, len(call.numbers)) for call in self.calls]
        return calls, self.regions, [(len(shape), dtype) for shape, dtype in self.outputs]

    def numbers(self) -> list[int]:
        """All that depends on the open sizes: all sizes, the regions' bytes, and the calls' numbers."""
        shapes = _flat(self.shapes)
        of_calls = [number for call in self.calls for number in call.numbers]
        return [*shapes, *self.bytes, *of_calls, *(size for shape, _ in self.outputs for size in shape)]

    def bounds(self) -> list[int]:
        """The indices among the numbers of the bounds within which kernels read at affine indices."""
        found, end = list[int](), len(_flat(self.shapes)) + len(self.bytes)
        for call in self.calls:
            if call.what[0] == "kernel":
                nest = call.what[1]
                first = end + len(call.regions) + nest.rank * (1 + len(nest.arrays))
                found += range(first, first + len(nest.bounds) - len(nest.tables))
            end += len(call.numbers)
        return found

    def library(self, function: _Function, fits: Sequence[Polynomial], limits: list[tuple[int, int]]) -> Library:
        """The library, from its numbers as polynomials."""
        rest = iter(fits[len(_flat(self.shapes)) :])
        sizes = [next(rest) for _ in self.regions]
        calls = [call._replace(numbers=tuple(next(rest) for _ in call.numbers)) for call in self.calls]
        outputs = [(tuple(next(rest) for _ in shape), dtype) for shape, dtype in self.outputs]
        places = [
            (n, leaf, axis) for leaf, n in function.inputs.items() for axis in range(np.ndim(self.registers[leaf]))
        ]
        own = {(n, axis): (function.sizes.dims[leaf] or ())[axis] for n, leaf, axis in places}
        dims = [[place for place, dim in own.items() if dim == each] for each in function.open]
        inputs = [None if leaf is None else self.program.type_of(leaf) for leaf in function.f.argument_indices]
        return Library(dims, limits, inputs, function.tensors, self.regions, sizes, calls, outputs)


def _is_matrix(x: np.ndarray, order: str = "any") -> bool:
    """Whether the last two axes are a matrix as BLAS takes it: with a leading dimension, in C order or any."""
    (rows, columns), (down, right) = x.shape[-2:], element_strides(x)[-2:]
    in_order = (right == 1 or columns == 1) and (down >= columns or rows == 1)
    return in_order or (order == "any" and (down == 1 or rows == 1) and (right >= rows or columns == 1))


#: The ops that accumulate along an axis, and the function of an element and the value before it.
CUMULATIVE: dict[type, Callable[..., Any]] = {
    CumSum: lambda x, before: before + x,
    CumProd: lambda x, before: before * x,
    CumMax: lambda x, before: f.maximum(before, x),
    CumMin: lambda x, before: f.minimum(before, x),
}

#: The calls that are written by hand, by the classes of ops.
METHODS: dict[type, Callable[[Trace, CallStep], None]] = {
    ProductOperator: Trace._product,
    TensorDot: Trace._tensordot,
    Conv: Trace._convolution,
    Scan: Trace._scan,
    Parts: Trace._parts,
    Attention: Trace._attention,
    **dict.fromkeys(CUMULATIVE, Trace._accumulate),
    **dict.fromkeys((Take, Gather, TakeAlongAxis), Trace._take),
    **dict.fromkeys((Sort, ArgSort, TopIndices), Trace._order),
}
