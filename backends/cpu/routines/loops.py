"""Loops in C: one C call runs all steps of a loop over kernels, views, copies and products.

The overhead of Python between two small kernels exceeds their run time. So the calls of a step are recorded once for
each layout of the arrays (`Trace`), as function addresses and packed arguments (`Emitter`). C then sets the array
addresses for each step.

Each kernel is a library of its own: other loops and sizes share it, and it compiles beside others. Where a loop runs
many steps in one call, its small kernels are compiled again, as one function with sizes that the compiler knows
(`body_source`). A loop in a step is one call of it, whose words hold its own arguments and words.

If each row of the states depends on that row alone (`RowAxes`), the rows are divided into parts. A thread runs all
steps of its parts without synchronisation. A part has 8 rows or more, of `LEAST` elements, for any number of threads:
so calls of kernels take little of the time, and results do not depend on the thread count. If rows depend on each
other, or there is work for more threads than parts, one thread runs the steps and shares the larger kernels. Steps with
large products, or with calls that are not compiled C, run one by one from Python.
"""

from __future__ import annotations

import ctypes
import re
from array import array
from collections.abc import Callable, Collection, Sequence
from copy import copy
from ctypes import c_int64
from functools import partial
from math import prod
from typing import Any

import numpy as np

from backends import lazy
from backends.cpu.calls import implementation
from backends.cpu.codegen.loop_bodies import BodyCall, body_source
from backends.cpu.codegen.printer import LONG_WORK
from backends.cpu.compiler import c_text, compile_source
from backends.cpu.routines.loop_trace import ROWS, Call, Nested, NotCompiled, Trace
from backends.cpu.routines.products import TYPES, is_in_elements, small_products
from backends.cpu.routines.small_matrices import MATRICES, matrices_source, matrix_words
from backends.cpu.routines.vectors import FOLDER, struct, vector_source
from backends.cpu.runtime import CompiledNest, data_address, share_address
from backends.execution.executor import Step
from backends.execution.loops import LoopCall
from backends.execution.memory import HOST, LINE, Scratch, element_strides
from backends.execution.specialize import FusedKernel, as_int64, collapsed_axes
from optree.cache import Cache
from optree.compile.loopnest import LoopNest
from optree.compile.pipeline import contracted
from optree.compile.program import Program, shapes_of
from optree.errors import CompilerError
from optree.ops.contraction import ProductOperator
from optree.ops.loop_steps import MANY, Argument, Steps, new_array
from optree.records import NamedTuple
from optree.settings import thread_count
from optree.tree.types import Shape

#: The struct of a loop's call.
LOOP = struct("loops.c", "loop")
SCRATCH, FIRST, LAST, RAN = map([*LOOP.fields].index, ("scratch", "first", "last", "ran"))

#: The C functions of products.
PRODUCTS = ("multiply_stacks", "product_scratch")

#: Estimates in instructions. STEP: the overhead of Python between the calls of a step, with the wake-ups of threads.
#: MULTIPLICATION: one multiply-add, a fraction of a vector instruction. CALL: the maximum for one C call, because
#: Python handles signals only between calls.
STEP, MULTIPLICATION, CALL = 1 << 20, 0.125, 1 << 32

#: The least elements that the kernels of a part of the rows compute in a step.
LEAST = 1 << 11

#: Maximum entries of a loop's cache of compiled calls, by array layouts.
LAYOUTS = 16

#: The steps of a call from which a loop's small kernels are compiled as one function, the maximum elements of such a
#: kernel, those of one whose loops are unrolled, and the maximum bytes of scratch memory on the stack.
LONG, INLINED, TINY, ON_STACK = 1 << 8, 1 << 7, 1 << 5, 1 << 15


class Address(NamedTuple):
    """An address as an argument of loops.c and an offset in bytes."""

    argument: int
    offset: int


class CompiledLoop:
    """The calls of a trace, encoded for loops.c once for each part of the rows: for one set of array layouts.

    Attributes
    ----------
    count : int
        The number of calls.
    parts : int
        The number of parts of the rows.
    work : float
        The estimated number of instructions of a step.
    alone : float
        The part of `work` that runs on one thread.
    scratch : int
        Bytes of scratch memory.
    struct, words : array of int
        The constant words of a call's struct, and the arguments of all calls.
    failures : list of int
        The indices in `words` of those that are not 0 after a call has failed.
    """

    def __init__(
        self, trace: Trace, given: int, rows: Sequence[int | None] | None, functions: dict[str, Any], backend: Any
    ) -> None:
        self._trace, self._rows, self._backend, self.functions = trace, rows, backend, functions
        self.words: Any = list[int]()
        self.failures = list[int]()
        self._calls: list[array[int]] = []
        self._printed: list[BodyCall] = []
        self._in_one: Any = None
        self._addresses: list[array[int]] = []
        own: list[array[int]] = []
        self.work, self.alone, self.scratch, self._length = 0.0, 0.0, 0, 0
        #: References that keep nests and constants alive, because the words hold their addresses.
        self._held: list[Any] = [x.array for x in trace.memories if x.is_fixed]
        count = next((x.shape[a] for x, a in zip(trace.registers, self._axes(), strict=True) if a is not None), 1)
        made = sum(trace.registers[i].size for call in trace.calls for i in call.writes)
        self.parts = max(1, count // max(ROWS, count * LEAST // max(1, made)))
        for n in range(self.parts):
            begin, first, starts = count * n // self.parts, len(self._calls), len(self._addresses)
            self._add_part(begin, count * (n + 1) // self.parts - begin)
            ends = {"last_call": len(self._calls), "last_address": len(self._addresses)}
            own.append(struct("loops.c", "rows").words(first_call=first, first_address=starts, **ends))
        self.count = len(self._calls)
        self.words = array("q", self.words)
        self._tables = [np.array(x, np.int64) for x in (own, self._calls, self._addresses)]
        places = dict(zip(("rows", "calls", "addresses"), map(HOST.address, self._tables), strict=True))
        constant = {"count": trace.leaves, "parts": self.parts, **places}
        self._added, self._starts = trace.arguments[given:], [*map(_start, range(trace.leaves), trace.arguments)]
        self._held += [x.array for x in self._added if isinstance(x, Argument)]
        self.struct = LOOP.words(**dict.fromkeys(LOOP.fields, 0) | constant)
        del self._trace, self._calls, self._addresses

    def call_words(
        self,
        whole: Nested,
        arguments: Sequence[Any],
        where: Callable[[np.ndarray], Address | int],
        threads: int,
        is_long: bool,
    ) -> list[Any]:
        """The words of `whole` in loops.c, of which those of `self.words` are last.

        `arguments`: those of a step, of which `where` gives the address of each array.
        """
        carried = whole.carried
        flag = None if whole.flag is None else whole.arguments[whole.flag]
        fields = dict(zip(LOOP.fields, self.struct, strict=True)) | {
            "share": share_address("long" if self.work * whole.length >= LONG_WORK and threads > 1 else "unknown"),
            "threads": threads,
            "last": whole.length,
            "length": whole.length,
            "has_flag": int(flag is not None),
            "is_given": int(flag is not None and not flag.is_state),
            "run": _address_of(self.function(is_long)),
            "states": whole.states,
        }
        table = [word for x in (*arguments, *self._added, flag, *carried) for word in _argument_words(x, where)]
        begun = [0 if x is None else where(x) for x in whole.begun]
        sizes = [x.last.nbytes for x in carried[whole.states :]]
        return [*fields.values(), *table, *begun, *sizes, *self.words]

    def function(self, is_long: bool) -> Any:
        """The C function for a call: one for all kernels if it has many steps; its sums may differ in order.

        A call's own steps decide, so that the same call gives the same bits whenever it comes.
        """
        if not is_long or self.parts > 1 or not any(call.nest for call in self._printed):
            return self.functions["run"]
        if self._in_one is None:
            self._in_one = self.functions["run"]
            self._compile_in_one()
        return self._in_one

    def _compile_in_one(self) -> None:
        used = sorted(
            {int(n) for call in self._printed for word in call.words for n in re.findall(r"\bx(\d+)\b", word)}
        )
        on_stack = self.scratch <= ON_STACK
        own = f"_Alignas({LINE}) char own[{self.scratch + 1}];" if on_stack else "char *const own = (char *)p->scratch;"
        text = body_source(self._printed, [own, *(f"const word x{n} = {self._starts[n]};" for n in used)])
        try:
            self._in_one = compile_source(c_text(FOLDER / "loops.c", {}, {"body.h": text}), "run", restype=c_int64)
        except CompilerError as error:
            lazy.logging.getLogger(__name__).warning("a loop's step is no single function, for %s", error)

    def _add_part(self, begin: int, count: int) -> None:
        """Add the calls of one part of the rows."""
        trace, self._length = self._trace, count
        own = [self._of_part(x, axis, count) for x, axis in zip(trace.registers, self._axes(), strict=True)]
        offsets: dict[int, int] = {}
        for n, memory in enumerate(trace.memories):
            if memory.is_own:
                offsets[n] = self._allocated(own[memory.owner].nbytes)
        for call in trace.calls:
            at = [self._address(i, begin, offsets) for i in call.values]
            if all(own[i].size for i in call.writes):
                self._add(*getattr(self, f"_{call.kind}")(call, own, at))

    def _axes(self) -> Sequence[int | None]:
        return [None] * len(self._trace.registers) if self._rows is None else self._rows

    def _of_part(self, x: Any, axis: int | None, count: int) -> Any:
        return x if axis is None or x is None else x[(*(slice(None),) * axis, slice(0, count))]

    def _allocated(self, size: int) -> int:
        """Reserve scratch memory; its offset."""
        offset = self.scratch
        self.scratch += size + -size % LINE
        return offset

    def _address(self, value: int, begin: int, offsets: dict[int, int]) -> Address | int:
        number, axis = self._trace.memory[value], self._axes()[value]
        memory, offset = self._trace.memories[number], self._trace.offset(value)
        if memory.is_own:
            return Address(self._trace.leaves, offsets[number] + offset)
        offset += 0 if axis is None else begin * self._trace.registers[value].strides[axis]
        return HOST.address(memory.array) + offset if memory.argument is None else Address(memory.argument, offset)

    def _add(
        self,
        function: int,
        words: Sequence[Any],
        nest: LoopNest | None = None,
        known: Collection[int] = (),
        is_tiny: bool = False,
        copied: int = 0,
    ) -> None:
        """Add a call of a function, of a small nest's kernel, or a copy of some bytes; `known` words are of sizes."""
        first, printed = len(self.words), list[str]()
        self._calls.append(struct("loops.c", "call").words(function=function, words=first))
        bases = {self._trace.leaves: "(word)own"}
        for n, word in enumerate(words):
            if isinstance(word, Address):
                place = struct("loops.c", "address").words(index=first + n, **word._asdict())
                self._addresses.append(place)
                printed.append(f"{bases.get(word.argument, f'x{word.argument}')} + {word.offset}")
            else:
                printed.append(str(word) if n in known else f"w[{first + n}]")
            self.words.append(0 if isinstance(word, Address) else word)
        self._printed.append(BodyCall(first, printed, nest, is_tiny, copied))

    def _kernel(self, call: Call, own: Sequence[Any], at: Sequence[Address | int]) -> tuple[Any, ...]:
        kernel = call.kernel
        assert kernel is not None
        found = kernel.specialize([own[i] for i in call.values], self._input_shapes(kernel))
        if found is None or found.nest is None:
            raise NotCompiled("a part of it has no elements or is unaligned")
        try:
            nest, layout = kernel.compiled(found.nest), found.layout
        except CompilerError as error:
            kernel.fail(error)
            raise NotCompiled("the compiler failed") from error
        if not isinstance(nest, CompiledNest):
            raise NotCompiled("NumPy runs the kernel")
        self._held.append(nest)
        *offsets, size = nest.scratch(layout)
        threads = nest.threads(layout) if self._rows is None else 1
        start = self._allocated(nest.scratch_bytes(size, threads))
        scratch: list[Any] = [Address(self._trace.leaves, start + offset) for offset in offsets]
        numbers = [as_int64(own[i], dtype) for i, dtype in kernel.numbers]
        self.work += nest.work(layout)
        self.alone += 0 if self._rows is None else nest.work(layout)
        pointers, (sizes, strides) = found.nest.pointers(at), layout
        function, *words = nest.words(pointers, numbers, layout, threads, [*scratch, size])
        is_inlined = threads == 1 and prod(sizes) <= INLINED and found.nest.across < 0 and not found.nest.split
        first, last = len(pointers), len(words)
        known = [*range(first, first + len(sizes) + len(strides)), last - 2, last - 1]
        is_tiny = is_inlined and prod(sizes) <= TINY and not offsets
        inlined = kernel.by_rows(found) if is_tiny else found.nest if is_inlined else None
        return function, words, inlined, known, is_tiny

    def _input_shapes(self, kernel: FusedKernel) -> list[tuple[int, ...]]:
        """The shapes of shape-only operands, which need not be computed."""
        shapes = kernel.input_shapes(self._trace.registers)
        axes = [self._axes()[i] for i in kernel.shape_inputs]
        return [x if a is None else (*x[:a], self._length, *x[a + 1 :]) for x, a in zip(shapes, axes, strict=True)]

    def _product(self, call: Call, own: Sequence[Any], at: Sequence[Address | int]) -> tuple[int, Sequence[Any]]:
        """A call of stacked_products.c."""
        x, y, target = (own[i] for i in call.values)
        functions = self._backend.c_functions(vector_source("stacked_products.c", TYPES[x.dtype]), PRODUCTS)
        if functions is None:
            raise NotCompiled("stacked_products.c is not compiled")
        *stack, rows, columns = target.shape
        sizes, work = (rows, columns, x.shape[-1]), MULTIPLICATION * target.size * x.shape[-1]
        threads = thread_count() if self._rows is None else 1
        self.work, self.alone = self.work + work, self.alone + (work if threads == 1 else 0)
        strides = [element_strides(np.broadcast_to(z, (*stack, *z.shape[-2:]))) for z in (x, y, target)]
        scratch = functions["product_scratch"](rows, c_int64(columns), c_int64(x.shape[-1]))
        packed = Address(self._trace.leaves, self._allocated((scratch + -scratch % LINE) * threads))
        words = [*at, *sizes, *(step for z in strides for step in z[-2:]), packed, threads, share_address(), len(stack)]
        return _address_of(functions["multiply_stacks"]), [*words, *stack, *(step for z in strides for step in z[:-2])]

    def _copy(self, call: Call, own: Sequence[Any], at: Sequence[Address | int]) -> tuple[Any, ...]:
        x, y = (own[i] for i in call.values)
        sizes, (to, from_) = collapsed_axes(y.shape, [[*y.strides], [*np.broadcast_to(x, y.shape).strides]])
        self.work += y.size
        words = [at[1], at[0], y.itemsize, len(sizes), *sizes, *to, *from_]
        is_small = [*to] == [*from_] == [y.itemsize] and y.size <= INLINED
        return _address_of(self.functions["copy"]), words, None, (), False, y.nbytes if is_small else 0

    def _loop(self, call: Call, own: Sequence[Any], at: Sequence[Address | int]) -> tuple[int, Sequence[Any]]:
        """A call of a loop in the step."""
        nested = call.loop
        assert nested is not None
        place = dict(zip(call.values, at, strict=True))
        arguments = nested.steps.step_arguments(nested.arguments)
        inner = nested.steps.nested(arguments, nested.length)

        def where(x: np.ndarray) -> Address | int:
            value = nested.values.get(id(x))
            return self._fixed(x) if value is None else place[value]

        words = inner.call_words(nested, arguments, where, 1, True)
        words[SCRATCH] = Address(self._trace.leaves, self._allocated(inner.scratch))
        self._held.append(inner)
        first = len(self.words) + len(words) - len(inner.words)
        self.failures += [first + i for i in inner.failures]
        self.work += nested.length * inner.work
        self.alone += nested.length * inner.alone
        return _address_of(self.functions["whole"]), words

    def _fixed(self, x: np.ndarray) -> int:
        """The address of a constant array, which lives as long as the words."""
        self._held.append(x)
        return HOST.address(x)

    def _matrices(self, call: Call, own: Sequence[Any], at: Sequence[Address | int]) -> tuple[int, Sequence[Any]]:
        """A call of small_matrices.c."""
        arrays, addresses = [own[i] for i in call.values], list(at)
        if call.function == "slogdet":
            step = arrays[-1].strides[0]
            arrays, addresses = [arrays[0], *arrays[-1]], [*at, _moved(at[-1], step)]
        words = matrix_words(call.function, arrays, addresses)
        functions = self._backend.c_functions(matrices_source(TYPES[arrays[0].dtype]), tuple(MATRICES.values()))
        if words is None or functions is None:
            reason = "small_matrices.c is not compiled" if words else "its stacks have no common stride"
            raise NotCompiled(f"{call.function}: {reason}")
        self.failures.append(len(self.words))
        work = arrays[0].size * arrays[0].shape[-1] ** (3 if call.function == "cofactors" else 1)
        self.work, self.alone = self.work + work, self.alone + work
        return _address_of(functions[call.function]), words


def _start(number: int, x: Any) -> str:
    """The address of an argument in a step, in C."""
    of = f"((const argument *)p->arguments)[{number}]"
    if not isinstance(x, Argument) or x.axis is None:
        return f"{of}.base"
    return f"start_of(p, {number}, step)" if x.is_state else f"{of}.base + {of}.stride * step"


def _moved(address: Address | int, offset: int) -> Address | int:
    return address._replace(offset=address.offset + offset) if isinstance(address, Address) else address + offset


def _address_of(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


class Operands(NamedTuple):
    """The operands and outputs of a loop, as its steps take them."""

    arrays: list[Any]
    made: list[Any]
    #: The operands that are copied before the first step, each with its order.
    copies: list[tuple[int, Any]]


class BoundLoop:
    """All steps of a loop by calls of C, for operands of one layout."""

    def __init__(
        self, loop: CompiledLoop, whole: Nested, arguments: Sequence[Any], operands: Operands, threads: int
    ) -> None:
        self.loop, self.length, self._copies = loop, whole.length, operands.copies
        self.threads = min(loop.parts, threads)
        made = [(n, x) for n, x in enumerate(operands.made) if x is not None]
        self._none, self._made = [None] * len(operands.made), [(n, x.shape, x.dtype) for n, x in made]
        #: The outputs of steps that do not run are zero.
        self._zeros = [n for n, _ in made if n >= whole.states and whole.flag is not None]
        places = {id(x): Address(n, 0) for n, x in enumerate((*operands.arrays, *(x for _, x in made)), 1)}
        self._size = loop.scratch
        for x in whole.carried:
            if id(x.array) not in places:
                places[id(x.array)] = Address(0, self._size)
                self._size += x.array.nbytes + -x.array.nbytes % LINE
        self._held = list[Any]()

        def where(x: np.ndarray) -> Address | int:
            if id(x) not in places:
                self._held.append(x)  # a constant, which lives as long as the words
            return places.get(id(x)) or HOST.address(x)

        words = loop.call_words(whole, arguments, where, self.threads, self.length >= LONG)
        words[SCRATCH] = Address(0, 0)
        self._addresses = [(n, *word) for n, word in enumerate(words) if isinstance(word, Address)]
        self._words = array("q", [0 if isinstance(word, Address) else word for word in words])
        self._failures = [len(words) - len(loop.words) + i for i in loop.failures]
        self._block = max(1, int(CALL / max(loop.work, 1)))
        self.call, self._memory = loop.functions["whole"], Scratch()

    def run(self, arrays: list[Any], empty: Callable[[int, Shape, Any], Any]) -> list[Any] | None:
        """The outputs; None if a step fails, for which NumPy raises an error."""
        for i, order in self._copies:
            arrays[i] = np.array(arrays[i], order=order)
        made: list[Any] = self._none[:]
        for n, shape, dtype in self._made:
            made[n] = x = empty(n, shape, dtype)
            arrays.append(x)
        for n in self._zeros:
            made[n][...] = 0
        words, length = self._words[:], self.length
        with self._memory.of(self._size) as scratch:
            starts = [scratch, *map(data_address, arrays)]
            for n, number, offset in self._addresses:
                words[n] = starts[number] + offset
            for first in range(0, length, self._block):
                words[FIRST], words[LAST] = first, min(length, first + self._block)
                self.call(words.buffer_info()[0])
                if words[RAN] < words[LAST]:
                    break
        return None if any(words[i] for i in self._failures) else made


class LoopInC:
    """Runs the steps of a loop: by one C call if the whole step is compiled, else one by one.

    Parameters
    ----------
    backend : CPUBackend
    plan : KernelPlan
        The plan of one step.
    """

    def __init__(self, backend: Any, plan: Any) -> None:
        self._backend, self._plan = backend, plan
        self._constants = plan.open[: len(plan.open) - plan.count]
        #: Programs and their steps, by the products that are loop nests in them.
        self._programs: dict[frozenset[int], tuple[Program, list[Step]]] = {}
        self._known: Cache = Cache("loops in C", LAYOUTS)
        #: How the steps run, for `debugprint`, once they have.
        self.remark = ""
        self._given: Callable[[Any], Any] = list
        self._orders = _orders(plan.program)

    def __call__(self, steps: Steps, length: int) -> int:
        """Run the steps one by one, and return how many ran."""
        steps = steps.after(self._given)
        for step in range(length):
            if not steps.runs(step):
                return step
            self._plan.run(steps(step), None)
        return length

    def in_one_call(self, call: LoopCall, inputs: Sequence[Any]) -> list[Any] | None:
        """The outputs of a loop, all of whose steps run in C; None if they do not."""
        if self._plan.is_by_numpy:  # always, or so far
            return None
        arrays = [x if x.__class__ is np.ndarray else np.asarray(x) for x in inputs]
        layouts = [thread_count(), *[(x.shape, x.strides, x.dtype, x.flags.aligned) for x in arrays]]
        known, bound = call.bound
        if known != layouts:
            bound = self._bound(call, arrays)
            call.bound = layouts, bound
        return None if bound is None else bound.run(arrays, call.empty)

    def _bound(self, call: LoopCall, arrays: list[Any]) -> BoundLoop | None:
        """The calls of a loop, for operands of the layouts of these."""
        op, threads, functions = call.op, thread_count(), self._functions()
        length = op.length_of(arrays)
        if not length or functions is None:
            return None
        operands = self._operands(call, [x[...] for x in arrays])
        whole = Nested.of(self, op, operands.arrays, operands.made, {})
        arguments = self.step_arguments(whole.arguments)
        key = threads, *[_layout(x) if isinstance(x, Argument) else None for x in arguments]
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._made(arguments, min(length, 2), threads, functions)
        if not isinstance(known, CompiledLoop):
            return None
        self.remark = self.remark or "all steps of a loop run in one call of C"
        return BoundLoop(known, whole, arguments, operands, threads)

    def _operands(self, call: LoopCall, arrays: list[Any]) -> Operands:
        """The operands: states as steps leave them, and constant matrices in the order that products read."""
        op = call.op
        made, copies = op.outputs(arrays, call.wanted, partial(new_array, None)), list[tuple[int, Any]]()
        states, _, constants = op.parts(range(len(arrays)))
        orders = {i: "C" for i in states if arrays[i].strides != made[i].strides}
        if op.length_of(arrays) > MANY:
            orders |= {i: "C" for i in constants if not arrays[i].flags.c_contiguous}
            numbers = {id(arrays[i]): i for i in constants}
            leaves = self._given(op.laid_out(arrays, made, op.order(1)))
            for i, order in self._orders.items():
                number = numbers.get(id(leaves[i].array)) if isinstance(leaves[i], Argument) else None
                if number is not None:
                    orders[number] = _order(arrays[number], order)
        for i, order in orders.items():
            if i in states or not arrays[i].flags[f"{order}_CONTIGUOUS"]:
                copies.append((i, order))
                arrays[i] = np.array(arrays[i], order=order)  # type: ignore[call-overload]
        return Operands(arrays, made, copies)

    def after(self, given: Callable[[Any], Any]) -> LoopInC:
        """The same, of arguments from which `given` makes a step's."""
        found = copy(self)
        found._given = given
        return found

    def _functions(self) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self._backend.c_functions(
            c_text(FOLDER / "loops.c", {}), ("run", "copy", "whole")
        )
        return found

    def step_arguments(self, arguments: Sequence[Argument]) -> list[Any]:
        """The arguments of a step, of those of a loop."""
        return [Argument(x) if isinstance(x, np.ndarray) else x for x in (*self._given(arguments), *self._constants)]

    def nested(self, arguments: Sequence[Any], length: int) -> CompiledLoop:
        """The calls of a loop in another's step, on one thread; NotCompiled where there are none."""
        functions = self._functions()
        if self._plan.is_by_numpy or functions is None:
            raise NotCompiled("NumPy runs its steps")
        return CompiledLoop(self._traced(arguments, min(length, 2)), len(arguments), None, functions, self._backend)

    def _traced(self, arguments: Sequence[Any], length: int) -> Trace:
        """The calls of a step, for the layouts of these arguments; NotCompiled if one has no compiled form."""
        if not all(_is_regular(x) for x in arguments if isinstance(x, Argument)):
            raise NotCompiled("an array is unaligned")
        values = [x.at(0, length) if isinstance(x, Argument) else x for x in arguments]
        program, steps = self._compiled(values)
        added = [self._backend.value_of(x) for x in program.leaves[len(values) :]]
        wrapped = [Argument(x) if isinstance(x, np.ndarray) else x for x in added]
        return Trace(program, steps, [*arguments, *wrapped], [*values, *added])

    def _made(self, arguments: Sequence[Any], length: int, threads: int, functions: Any) -> CompiledLoop | bool:
        """The calls for the layouts of these arguments; False if they cannot be compiled."""
        try:
            trace = self._traced(arguments, length)
        except NotCompiled as error:
            return self._tell(str(error))
        rows, reason = trace.rows(), "one thread would run what several can"
        for axes in (None,) if rows is None else (rows, None):
            try:
                known = CompiledLoop(trace, len(arguments), axes, functions, self._backend)
            except NotCompiled as error:
                reason = str(error)
                continue
            if known.alone / min(known.parts, threads) - known.alone / threads <= STEP:
                return known
        return self._tell(reason)

    def _tell(self, reason: str) -> bool:
        """Log, once, which op leaves the compiled loop, and why; False."""
        if "one by one" not in self.remark:
            self.remark = f"the steps of a loop run one by one, for {reason}"
            lazy.logging.getLogger(__name__).warning(self.remark)
        return False

    def _compiled(self, values: list[Any]) -> tuple[Program, list[Step]]:
        """The program in which products are loop nests where they are small, and its steps; of the leaves' values."""
        program = self._plan.program
        shapes = shapes_of(program, [np.shape(x) for x in values])
        small = small_products(program, shapes)
        if small not in self._programs:
            program = contracted(program, small)
            added = [self._backend.value_of(x) for x in program.leaves[len(values) :]]
            known = [*values, *added, *[None] * len(program.instructions)]
            implementations = partial(implementation, self._backend, program, None, {})
            self._programs[small] = program, self._plan.compiled(program, implementations, known)
        return self._programs[small]


def _orders(program: Program) -> dict[int, str]:
    """The matrices among the leaves of which products read contiguous columns in one order, and that order.

    Of those by which vectors alone are multiplied, ``"A"``: the longer axis is contiguous.
    """
    first, found = len(program.leaves), dict[int, set[str]]()
    matrix = {i: (i, "CF") for i in range(first) if getattr(program.type_of(i), "ndim", 0) == 2}
    for i, (op, inputs, _) in enumerate(program.instructions, first):
        if op.index_map.axis_order == (1, 0) and inputs[0] in matrix:
            leaf, orders = matrix[inputs[0]]
            matrix[i] = leaf, orders[::-1]
            continue
        is_product = isinstance(op, ProductOperator)
        by_vector = is_product and 1 in (program.type_of(x).ndim for x in inputs)
        for place, x in enumerate(inputs):
            if x in matrix:
                leaf, orders = matrix[x]
                order = "A" if by_vector else orders[0] if is_product and place else ""
                found.setdefault(leaf, set()).add(order)
    outputs = {matrix[i][0] for i in program.outputs if i in matrix}
    return {
        i: orders.pop() for i, orders in found.items() if len(orders) == 1 and "" not in orders and i not in outputs
    }


def _order(x: np.ndarray, order: str) -> str:
    """The order of a matrix, where `"A"` is that of long rows."""
    rows, columns = x.shape
    return {"A": "F" if rows > columns else "C"}.get(order, order)


def _layout(x: Argument) -> Any:
    """The cache key of an argument: shape, strides, dtype, axis and alignment."""
    shape = x.array.shape if x.axis is None else (*x.array.shape[: x.axis], *x.array.shape[x.axis + 1 :])
    is_aligned = x.array.flags.aligned and (x.first is None or x.first.flags.aligned)
    return shape, x.array.strides, x.array.dtype, x.axis, is_aligned


def _is_regular(x: Argument) -> bool:
    """Whether an argument's arrays are plain aligned NumPy arrays, so that one layout holds for all steps."""
    arrays = [y for y in (x.array, x.first, x.last) if y is not None]
    return all(type(y) is np.ndarray and is_in_elements(y) for y in arrays)


def _argument_words(x: Any, address_of: Callable[[Any], Any]) -> list[Any]:
    """The words of the struct of an argument; zeros for a number."""
    if not isinstance(x, Argument):
        return [0, 0, 0, 0, 0]
    start, stride, mask = address_of(x.array), 0, 0
    first, last = (0 if y is None else address_of(y) for y in (x.first, x.last))
    if x.axis is not None:
        begin, *others = [int(i) for i in x.indices[:3]]
        turns = len(others) > 1 and others[1] == begin  # between two arrays
        start, mask = _moved(start, x.array.strides[x.axis] * begin), 1 if turns else -1
        stride = x.array.strides[x.axis] * (others[0] - begin) if others else 0
    return [start, stride, mask, first, last]
