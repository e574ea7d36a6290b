"""Loop nests as ISO C99, without pragmas, builtins or extensions: a third dialect, to show how little one needs."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from functools import partial

from backends.cpu.compiler import Compiler, compile_source, find_compiler
from backends.execution.memory import Memory
from backends.execution.printer_common import (
    Access,
    Dialect,
    Lines,
    Printer,
    braced,
    complex_types,
    functions_called,
    without_unused,
)
from backends.execution.specialize import CheckedCall, Layout, Operands, Run
from optree.compile.loopnest import LoopNest, Stage

STRICT = ("-std=c99", "-pedantic-errors", "-Wall", "-Werror")

PLAIN = Dialect(
    {
        "bool": "_Bool",
        **{f"{sign}int{bits}": f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)},
        "float32": "float",
        "float64": "double",
        **{name: name for name in ("complex64", "complex128")},
    },
    byte="_Bool",
    inline="static",
)


def source(nest: LoopNest) -> str:
    """The C99 source of a nest: a function of addresses, sizes, strides and numbers, in one array."""
    printer = PlainPrinter(nest)
    body = [*printer.arguments(), *printer.outer_loops(), *printer.once_stores()]
    lines = ["#include <stdint.h>", "#include <tgmath.h>", "", *complex_types([nest], PLAIN)]
    lines += functions_called(nest, PLAIN)
    return "\n".join([*lines, "void kernel(const int64_t *a)", *braced(without_unused(body)), ""])


class PlainPrinter(Printer):
    """A nest as loops, one in another."""

    dialect = PLAIN

    def __init__(self, nest: LoopNest) -> None:
        super().__init__(nest, cache=False)
        self.outer_axes = range(nest.outer if nest.reductions else 0)
        self.inner_axes = range(len(self.outer_axes), nest.rank)

    def arguments(self) -> Lines:
        """The sizes, strides and numbers by name, and what is computed of them alone."""
        arrays, rank = len(self.nest.arrays), self.nest.rank
        lines = [f"const int64_t n{axis} = a[{arrays + axis}];" for axis in range(rank)]
        lines += [f"const int64_t s{p}_{axis} = a[{arrays + rank * (p + 1) + axis}];" for p, axis in self.strides()]
        words = enumerate(self.nest.bounds, arrays + rank * (arrays + 1))
        lines += [f"const int64_t {name} = a[{word}];" for word, name in words]
        return [*lines, *self.numbers(), *self.once()]

    def base_pointer(self, array: int) -> str:
        return f"({self.pointer_type(array)})a[{array}]"

    def number(self, value: int) -> str:
        arrays, rank = len(self.nest.arrays), self.nest.rank
        word = arrays * (rank + 1) + rank + len(self.nest.bounds) + value - len(self.nest.reads)
        return f"*(const {self.type_of(value)} *)(a + {word})"

    def outer_loops(self) -> Lines:
        """The outer loops, with the stages in them."""
        return self.loops(self.outer_axes, [*self.outer_pointers(), *self.at_outer_index()])

    def outer_pointers(self) -> Lines:
        vector = f"i{self.nest.vector}" if self.nest.columns else ""
        return self.pointers(self.without_vector(self.outer_axes), ("outer", "inner"), vector)

    def stage_loops(self, stage: Stage) -> Lines:
        """The inner loops."""

        def offset(array: int) -> str:
            return "0" if self.nest.columns else self.vector_offset(array, f"i{self.nest.vector}")

        def load(array: int) -> str:
            found, condition = (
                self.loaded(array, f"y{array}", offset(array)),
                self.within(array, range(self.nest.rank), "i{}".format),
            )
            return f"{condition} ? {found} : {self.outside(array)}" if condition else found

        access = Access(
            load=load,
            part=lambda r: f"r{r.value}",
            cache=str,
            store=lambda array, value: f"y{array}[{offset(array)}] = {self.stored(array, value)};",
        )
        pointers = self.stage_pointers(stage, self.without_vector(self.inner_axes))
        return self.loops(self.inner_axes, [*pointers, *self.element(stage, access)])

    def loops(self, axes: Sequence[int], body: Lines) -> Lines:
        for axis in reversed(axes):
            body = [f"for (int64_t i{axis} = 0; i{axis} < n{axis}; i{axis}++)", *braced(body)]
        return body

    def without_vector(self, axes: Iterable[int]) -> list[int]:
        return [axis for axis in axes if axis != self.nest.vector]


class PlainKernel:
    """A nest compiled as C99, to run in the place of `backends.cpu.runtime.CompiledNest`."""

    def __init__(self, nest: LoopNest) -> None:
        found = find_compiler()
        assert found is not None
        self._function = compile_source(
            source(nest), "kernel", compiler=Compiler((*found.command, *STRICT), found.identity)
        )

        self._nest = nest

    def call(self, operands: Operands, memory: Memory) -> Run:
        """A call that checks the layout of its arrays in Python."""
        return CheckedCall(operands, memory, partial(self._run, operands.layout))

    def _run(self, layout: Layout, addresses: Sequence[int], numbers: Sequence[int]) -> None:
        sizes, strides = layout
        packed = array("q", [*self._nest.pointers(addresses), *sizes, *strides, *numbers])
        self._function(packed.buffer_info()[0])
