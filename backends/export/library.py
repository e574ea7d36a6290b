"""The files of an exported function in C, from templates: ``$name`` there is filled in here."""

from __future__ import annotations

import copy
import ctypes
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from backends.cpu.codegen import printer as c
from backends.cpu.codegen.registers import Tiles
from backends.cpu.codegen.transposes import transpose_functions
from backends.cpu.codegen.vector_math import WIDE_VECTORS, WITH_HEADERS
from backends.cpu.compiler import FLAGS, OPTIONAL_FLAGS, after_definitions
from backends.cpu.routines.vectors import vector_source
from backends.execution.printer_common import Lines, braced, functions_called, without_unused
from optree.compile.loopnest import LoopNest
from optree.errors import ExportError
from optree.records import NamedTuple
from optree.train import safetensors

_FOLDER = Path(__file__).parent / "templates"

#: The dtypes of exported functions, and their C types.
DTYPES = {
    **{f"{sign}int{bits}": f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "bool": "uint8_t",
    "float32": "float",
    "float64": "double",
}

#: The most bytes of weights that are written into the source, unless another place is asked for.
SMALL = 1 << 16

#: The relative differences that the test program allows: vector functions depend on the processor.
TOLERANCES = {"float32": "1e-4", "float64": "1e-10"}

#: Identifiers that labels do not get: C's and C++'s keywords, names of their headers, and those in the templates.
RESERVED = {*DTYPES.values(), *(_FOLDER / "reserved.txt").read_text().split()}


class Polynomial(dict[tuple[int, ...], int]):
    """A polynomial of the open sizes n0, n1, ...: from their powers to coefficients."""

    def __str__(self) -> str:
        terms = []
        for powers, number in sorted(self.items(), reverse=True):
            names = [f"n{i}" for i, power in enumerate(powers) for _ in range(power)]
            terms.append(" * ".join(names if names and number == 1 else [str(number), *names]))
        return " + ".join(terms).replace("+ -", "- ") or "0"

    @property
    def degree(self) -> int:
        """The largest sum of powers."""
        return max((sum(powers) for powers in self), default=0)

    @property
    def factor(self) -> str:
        """Itself as a factor."""
        return f"({self})" if len(self) > 1 else str(self)

    def at(self, size: int) -> int:
        """Its largest value if no open size is larger than this."""
        return sum(abs(number) * size ** sum(powers) for powers, number in self.items())


class Region(NamedTuple):
    """Memory: of an input, tensor or output (`key` is its number), a constant, a count of sizes, or scratch."""

    kind: str
    key: Any


class Call(NamedTuple):
    """A call."""

    #: ``('kernel', nest, numbers)``, each number with its dtype, or ``('product', dtype, rank of the stack)``.
    what: Any
    #: The memory of each array.
    regions: tuple[int, ...]
    #: The offset of each array in bytes; then of a kernel the layout and the bytes of its scratch arrays, and of a
    #: product the sizes and strides that `stacked_products.c` takes.
    numbers: tuple[Any, ...]
    comment: str


class Library(NamedTuple):
    """A function for all sizes.

    Of each open size, `dims` are the inputs and axes that have it, and `limits` its least and largest value. Of
    `regions` there are the bytes (of a count, its value), and of `outputs` the shapes and dtypes.
    """

    dims: list[list[tuple[int, int]]]
    limits: list[tuple[int, int]]
    inputs: list[Any]
    tensors: list[Any]
    regions: list[Region]
    bytes: list[Polynomial]
    calls: list[Call]
    outputs: list[tuple[Any, str]]


class _KernelPrinter(c.CPrinter):
    """A nest in C that reads numbers without casts of pointers, which one source with its callers must not have."""

    def number(self, value: int) -> str:
        address = super().number(value).partition(")")[2]
        return f"number_at{address}" if self.nest.dtype_of(value).kind == "f" else f"({self.type_of(value)})*{address}"


class _TilePrinter(Tiles, _KernelPrinter):
    """The same of a contraction in tiles."""


def portable(text: str) -> str:
    """Printed C as C99: what is an extension is marked as one, and vector functions may be turned off."""
    text = text.replace("_Generic", "__extension__ _Generic").replace("_Alignas(64)", "__attribute__((aligned(64)))")
    return text.replace("#if defined __x86_64__", "#if !defined OPTREE_PORTABLE && defined __x86_64__")


class Files:
    """The texts of a library's files."""

    #: The ending of sources, the template of the CMake file, the qualifier of arrays that the function reads.
    end, cmake, qualifier = ".c", "CMakeLists.txt", "static "
    #: The largest number, of bytes or of elements, that is computed with.
    largest = 1 << 56
    #: The last status, and where arrays are.
    status, where = "WRONG_INDEX", ""

    def __init__(self, library: Library, f: Any, name: str, weights: str) -> None:
        self.library, self.taken = library, set(RESERVED)
        self.sizes = [f"n{i}" for i in range(len(library.dims))]
        numbered = "constant", "slice", "turn", f"{c.NAME}_"
        count = max(len(library.regions), len(library.calls))
        self.taken.update(self.sizes, (f"{name}{i}" for name in numbered for i in range(count)))
        self.name = self.unique(name)
        while hasattr(ctypes.CDLL(None), self.name):  # a function of the C library's
            self.name = self.unique(f"{self.name}_of_optree")
        self.inputs = [self.unique(x.name or "x") for x in f.inputs]
        self.outputs = [self.unique("out") for _ in library.outputs]
        self.tensors = [self.unique(tensor.name or "w") for tensor in library.tensors]
        updated = {id(target.root) for target, _ in f.updates}
        self.consts = ["" if id(tensor) in updated else "const " for tensor in library.tensors]
        self.file = self.weights_file()
        size = sum(tensor.array.nbytes for tensor in library.tensors)
        self.in_source = not size or weights == "source" or (weights == "auto" and size <= SMALL)
        #: The nests, or their variants, and the numbers of their kernels.
        self.kernels: dict[Any, int] = {}
        self.products = sorted({call.what[1] for call in library.calls if call.what[0] == "product"})
        self.slots: dict[Any, list[str]] = {}
        for n, (region, size_of) in enumerate(zip(library.regions, library.bytes, strict=True)):
            if (key := self.slot_of(n)) is not None:
                self.slots.setdefault(key, []).append("8" if region.kind == "count" else str(size_of))
        self.limits = self.within()
        self.texts = self.made_texts()

    def all(self, f: Any, example: Sequence[Any] | None) -> dict[str, bytes]:
        """The files, by name."""
        found = self.sources() | {
            f"{self.name}.h": self.filled("function.h"),
            f"{self.name}_test{self.end}": self.test(*_example(self.library, f, example)),
            "CMakeLists.txt": self.filled(self.cmake),
        }
        made = {name: text.encode() for name, text in found.items()}
        return made if self.in_source else {**made, f"{self.name}.safetensors": self.file}

    def sources(self) -> dict[str, str]:
        """The sources, by name."""
        found = {f"{self.name}.c": self.filled("function.c")}
        for dtype in self.products:
            names = "divide", "multiply", "product_scratch", "multiply_stacks"
            renamed = {x: self.of_products(x, dtype) for x in names}
            number = "float" if dtype == "float32" else "double"
            found[f"{self.name}_products_{dtype}.c"] = portable(vector_source("stacked_products.c", number, **renamed))
        return found

    def slot_of(self, region: int) -> object:
        """The scratch memory that a region is in."""
        kind, key = self.library.regions[region]
        return key if kind == "scratch" else None

    def unique(self, label: str) -> str:
        """A label as an identifier that nothing else has."""
        found = re.sub(r"\W+", "_", label, flags=re.ASCII).strip("_") or "x"
        found = name = f"x{found}" if found[0].isdigit() else found
        n = 1
        while name in self.taken:
            name, n = f"{found}_{n}", n + 1
        self.taken.add(name)
        return name

    def of_products(self, function: str, dtype: str) -> str:
        return f"{self.name}_{function}_{dtype}"

    def within(self) -> list[tuple[int, int]]:
        """The limits of the open sizes, within which no number overflows."""
        largest = next((1 << n for n in range(31, -1, -1) if self.fits(1 << n)), 0)
        found = [(low, min(high, largest)) for low, high in self.library.limits]
        if not largest or not all(low <= high for low, high in found):
            raise ExportError(f"export: the function needs numbers above {self.largest}; fix smaller sizes")
        return found

    def fits(self, size: int) -> bool:
        """Whether no number is too large where no open size is larger than this."""
        numbers = [*(x for call in self.library.calls for x in call.numbers), *self.library.bytes]
        return all(x.at(size) < self.largest for x in numbers)

    @property
    def fail(self) -> str:
        """Return the last status."""
        return f"return {self.name.upper()}_{self.status};"

    def filled(self, template: str, **further: Any) -> str:
        return Template((_FOLDER / template).read_text()).substitute(self.texts, **further)

    def made_texts(self) -> dict[str, Any]:
        """The texts that fill the templates."""
        name, body = self.name, self.body()
        functions, kernels = self.kernel_texts()
        flags = [flag for flag in FLAGS if not flag.startswith(("-fPIC", "-shared", "-fvisibility"))]
        flags += [choice[0] for choice in OPTIONAL_FLAGS if "native" not in choice[0]]
        limits = zip(self.sizes, self.limits, strict=True)
        wrong = " || ".join(f"{n} < {low} || {n} > {high}" for n, (low, high) in limits)
        found: dict[str, Any] = {
            "name": name,
            "upper": name.upper(),
            "described": self.described(),
            "functions": functions,
            "kernels": kernels,
            "count": len(self.slots) + 1,
            "layout": "\n".join(braced(self.layout())),
            "alone": "" if all(self.consts) else ", if they update other tensors",
            "sizes": ", ".join(f"int64_t {n}" for n in self.sizes) or "void",
            "layout_parameters": ", ".join(["int64_t *at", *(f"int64_t {n}" for n in self.sizes)]),
            "layout_arguments": ", ".join(["at", *self.sizes]),
            "check_sizes": f"    if ({wrong})\n        return -1;" if wrong else "",
            "parameters": ", ".join(f"{type}{x}" for type, x in self.parameters()),
            "sources": " ".join([f"{name}.c", *(f"{name}_products_{dtype}.c" for dtype in self.products)]),
            "flags": " ".join(flags),
        }
        self.texts = found
        found |= {"includes": "", "launches": "", "status": self.status, "where": self.where}
        found |= {"tensors": self.tensor_type(), "arrays": self.arrays()}
        found["body"] = "\n".join(braced([*self.checks(wrong), *self.constants(), *body, "return 0;"]))
        return found | {"words": self.filled("words.c"), "entry": self.filled("body.c")}

    # The header

    def parameters(self) -> list[tuple[str, str]]:
        """The types and names of the function's parameters."""
        types = ["const void *" if x is None else f"const {DTYPES[str(x.dtype)]} *" for x in self.library.inputs]
        return [
            *[(f"const {self.name}_tensors *", "tensors")] * bool(self.tensors),
            *(("int64_t ", n) for n in self.sizes),
            *zip(types, self.inputs, strict=True),
            *((f"{DTYPES[dtype]} *", x) for x, (_, dtype) in zip(self.outputs, self.library.outputs, strict=True)),
            *(("void *", "scratch"), ("int64_t ", "scratch_size")),
        ]

    def described(self) -> str:
        """The parameters, a line each."""
        named = {at: n for n, places in zip(self.sizes, self.library.dims, strict=True) for at in places}
        lines = []
        for n, places, (low, high) in zip(self.sizes, self.library.dims, self.limits, strict=True):
            axes = " and ".join(f"axis {axis} of {self.inputs[i]}" for i, axis in places)
            lines.append(f"{n}: the size of {axes}, from {low} to {high}")
        for i, (x, type) in enumerate(zip(self.inputs, self.library.inputs, strict=True)):
            sizes = () if type is None else [named.get((i, axis), size) for axis, size in enumerate(type.shape)]
            lines.append(f"{x}: " + ("not used" if type is None else f"{type.dtype} {_shape(sizes)}"))
        for x, (shape, dtype) in zip(self.outputs, self.library.outputs, strict=True):
            lines.append(f"{x}: {dtype} {_shape(shape)}, written")
        lines.append(f"scratch: {self.name}_scratch({', '.join(self.sizes)}) bytes of memory")
        return "\n".join(f"   {line}" for line in lines)

    def tensor_type(self) -> str:
        """The struct of the tensors, and the function that fills it in."""
        name = self.name
        if not self.tensors:
            return ""
        members = [
            f"{const}{DTYPES[str(x.dtype)]} *{member}; /* {x.dtype} {_shape(x.shape)}{'' if const else ', updated'} */"
            for const, member, x in zip(self.consts, self.tensors, self.library.tensors, strict=True)
        ]
        lines = [
            "",
            "/* The function's tensors. */",
            "typedef struct {",
            *braced(members)[1:-1],
            f"}} {name}_tensors;",
            "",
        ]
        if self.in_source:
            return "\n".join([*lines, "/* Their values. */", f"int {name}_weights({name}_tensors *tensors);", ""])
        size = sum(tensor.array.nbytes for tensor in self.library.tensors)
        lines += [
            f"#define {name.upper()}_BYTES {size}",
            "",
            "/* Read their values into that much memory, as of malloc. */",
        ]
        return "\n".join([*lines, f"int {name}_load(const char *path, void *memory, {name}_tensors *tensors);", ""])

    # The source

    def kernel_texts(self) -> tuple[str, str]:
        """The functions that kernels call, each once, and the kernels."""
        helpers, kernels = dict[str, None](), Lines()
        for nest, number in self.kernels.items():
            printer = (_TilePrinter if nest.registers else _KernelPrinter)(nest)
            functions, body = printer.functions()
            called = [*(transpose_functions(nest) if nest.across >= 0 else []), *functions_called(nest, c.C)]
            helpers |= dict.fromkeys(definitions([*called, *printer.searches()]))
            head = f"KERNEL static void {c.NAME}(const int64_t *a)"
            text = "\n".join([*printer.joins(), *functions, head, *braced(without_unused(body)), ""])
            text = re.sub(rf"\b({c.NAME}|shared_loop|columns|accumulate|stage\d+|join\d+)\b", rf"\1_{number}", text)
            is_wide = c.prefers_wide_vectors(nest)
            wide = f"#pragma GCC push_options\n{WIDE_VECTORS}{text}#pragma GCC pop_options\n"
            kernels.append(wide if is_wide else text)
        for call in self.library.calls:
            if call.what[0] == "take":
                helpers[(_FOLDER / "take.c").read_text()] = None
            elif call.what[0] == "order":
                helpers[_order(*call.what[1:])] = None
        used = "\n".join([*helpers, *kernels])
        declared = [
            f"void {self.of_products('multiply_stacks', dtype)}(const int64_t *a);\n"
            f"int64_t {self.of_products('product_scratch', dtype)}(int64_t rows, int64_t columns, int64_t inner);\n"
            for dtype in self.products
        ]
        before = [after_definitions(used, WITH_HEADERS).removesuffix(used)] if kernels else []
        return portable("\n".join([*before, c.SHARED, *helpers])), portable("\n".join([*declared, *kernels]))

    def pointer(self, region: int) -> str:
        kind, key = self.library.regions[region]
        if kind in ("same", "slice"):
            return self.pointer(key) if kind == "same" else f"slice{region}"
        if (slot := self.slot_of(region)) is not None:
            return f"memory + at[{list(self.slots).index(slot)}]"
        if kind in ("constant", "count"):
            return f"{'&' if kind == 'count' else ''}constant{region}"
        return f"tensors->{self.tensors[key]}" if kind == "tensor" else getattr(self, f"{kind}s")[key]

    def loop(self, call: Call) -> Lines:
        """The lines that begin a loop over slices."""
        _, first, leave = call.what
        numbers = call.numbers[len(call.regions) :]
        lines = Lines([f"for (int64_t turn{first} = 0; turn{first} < {numbers[-1]}; turn{first}++) {{"])
        for n, step in enumerate(numbers[:-1]):
            at = f"{self.pointer(call.regions[n])}) + {call.numbers[n]} + turn{first} * {step.factor}"
            lines += [f"    const char *const slice{first + n} = (const char *)({at};", f"    (void)slice{first + n};"]
        if leave:
            flag = f"(const char *)({self.pointer(call.regions[-1])}) + {call.numbers[len(call.regions) - 1]}"
            lines += [f"    if (!*(const uint8_t *)({flag}))", f"        {leave};"]
        return lines

    def body(self) -> Lines:
        """The lines of all calls."""
        lines, depth = Lines(), 0
        for call in self.library.calls:
            kind = call.what[0]
            depth -= kind == "end"
            made = self.loop(call) if kind == "loop" else ["}"] if kind == "end" else self.call(call)
            lines += [f"{'    ' * depth}{line}" for line in made]
            depth += kind == "loop"
        return lines

    def call(self, call: Call) -> Lines:
        """The lines of a call."""
        kind, *rest = call.what
        numbers = call.numbers[len(call.regions) :]
        arrays = [f"AT({self.pointer(n)}, {at})" for n, at in zip(call.regions, call.numbers, strict=False)]
        what, given = (*rest, None, None)[:2]
        function = "_".join(call.what) if kind in ("take", "order") else ""
        if function:
            words = [arrays, numbers]
        elif kind == "product":
            function, split = self.of_products("multiply_stacks", what), 9
            words = [arrays, numbers[:split], ["AT(work, 0)", self.threads(call), "SHARE", given], numbers[split:]]
        else:
            function = f"{c.NAME}_{self.kernels.setdefault(what, len(self.kernels))}"
            sizes, strides, scratch = parts_of_kernel(what, numbers)
            places = [" + ".join(["0", *(f"LINES({x})" for x in scratch[:n])]) for n in range(len(scratch) + 1)]
            words = [what.pointers(arrays), sizes, strides, [word(*each) for each in given]]
            words += [[f"AT(work, {at})" for at in places[:-1]], [places[-1], self.threads(call), "SHARE"]]
        return self.lines_of(call, words, f"{function}(words)", kind == "take")

    def lines_of(self, call: Call, words: Iterable[Iterable[Any]], run: str, may_fail: bool) -> Lines:
        """The lines of a call of its words."""
        rows = [", ".join(map(str, row)) for row in words if row]
        rows = [f"const int64_t words[] = {{{rows[0]},", *(f"    {row}," for row in rows[1:-1]), f"    {rows[-1]}}};"]
        comments = [f"/* {line} */" for line in call.comment.replace("*/", "* /").split("\n")]
        return [*comments, *braced([*rows, *([f"if ({run})", f"    {self.fail}"] if may_fail else [f"{run};"])])]

    def threads(self, call: Call) -> str:
        kind, what, _ = call.what
        numbers = call.numbers[len(call.regions) :]
        sizes, cost = (numbers[:3], "1") if kind == "product" else (numbers[: what.rank], str(what.cost))
        return f"THREADS({' * '.join([cost, *(x.factor for x in sizes)])})"

    def work(self, call: Call) -> str:
        """The bytes that a call needs while it runs."""
        kind, what = call.what[0], (*call.what, None)[1]
        numbers = call.numbers[len(call.regions) :]
        if kind not in ("product", "kernel"):
            return ""
        if kind == "product":
            size = f"{self.of_products('product_scratch', what)}({', '.join(map(str, numbers[:3]))})"
            return f"LINES({size}) * {self.threads(call)}"
        total = " + ".join(f"LINES({size})" for size in parts_of_kernel(what, numbers)[2])
        return total if not total or what.split else f"({total}) * {self.threads(call)}"

    def layout(self) -> Lines:
        """The body of the function of the offsets of scratch memory."""
        lines = [*(f"(void){n};" for n in self.sizes), "int64_t end = 0, work = 0;"]
        for n, sizes in enumerate(self.slots.values()):
            size, *others = dict.fromkeys(sizes)
            for other in others:
                size = f"GREATER({size}, {other})"
            lines.append(f"at[{n}] = end, end += LINES({size});")
        works = dict.fromkeys(filter(None, map(self.work, self.library.calls)))
        return [
            *lines,
            *(f"work = GREATER(work, {x});" for x in works),
            f"at[{len(self.slots)}] = end;",
            "return end + work;",
        ]

    def arrays(self) -> str:
        """The constants, and the values of the tensors or the function that reads them."""
        constants = [(n, *key) for n, (kind, key) in enumerate(self.library.regions) if kind == "constant"]
        lines = [
            f"{self.qualifier}const {_array(self.constant_name(n), np.frombuffer(x, dtype))}"
            for n, dtype, _, x in constants
        ]
        if self.tensors and self.in_source:
            for const, x, tensor in zip(self.consts, self.tensors, self.library.tensors, strict=True):
                lines.append(f"{self.qualifier}{const}{_array(f'values_of_{x}', tensor.get())}")
            members = [line for x in self.tensors for line in self.member(x)]
            head = f"int {self.name}_weights({self.name}_tensors *tensors)"
            lines += ["", head, *braced([*members, "return 0;"]), ""]
        elif self.tensors:
            length = safetensors.LENGTH + int.from_bytes(self.file[: safetensors.LENGTH], "little")
            entries = json.loads(self.file[safetensors.LENGTH : length])
            begins = {x: entries[x]["data_offsets"][0] for x in self.tensors}
            types = {x: DTYPES[str(tensor.dtype)] for x, tensor in zip(self.tensors, self.library.tensors, strict=True)}
            members = [f"    tensors->{x} = ({types[x]} *)((char *)memory + {at});" for x, at in begins.items()]
            texts = {"header": _rows(map(str, self.file[:length]), 24), "length": length, "members": "\n".join(members)}
            lines.append(self.filled("loader.c", reader=self.filled(f"reader{self.end}"), **texts))
        return "\n".join(lines)

    def constant_name(self, region: int) -> str:
        return f"constant{region}"

    def member(self, name: str) -> Lines:
        """The lines that tell a tensor's values."""
        return [f"tensors->{name} = values_of_{name};"]

    def weights_file(self) -> bytes:
        file = BytesIO()
        arrays = {x: tensor.get() for x, tensor in zip(self.tensors, self.library.tensors, strict=True)}
        safetensors.write(file, arrays, {}, dict)
        return file.getvalue()

    def checks(self, wrong: str) -> Lines:
        """The beginning of the function."""
        upper, library = self.name.upper(), self.library
        unused = [x for x, type in zip(self.inputs, library.inputs, strict=True) if type is None]
        pointers = [*["tensors"] * bool(self.tensors), *(x for x in (*self.inputs, *self.outputs) if x not in unused)]
        nulls = " || ".join(f"!{x}" for x in (*pointers, *(f"tensors->{x}" for x in self.tensors)))
        lines = [f"if ({wrong})", f"    return {upper}_WRONG_SIZE;"] if wrong else []
        lines += [f"if ({nulls})", f"    return {upper}_NULL_POINTER;"] if nulls else []
        lines += [
            f"int64_t at[{len(self.slots) + 1}];",
            f"const int64_t needed = layout({self.texts['layout_arguments']});",
        ]
        lines += ["if (needed && (!scratch || scratch_size < needed + 64))", f"    return {upper}_SMALL_SCRATCH;"]
        lines += [
            "char *const memory = (char *)LINES((uintptr_t)scratch);",
            f"char *const work = memory + at[{len(self.slots)}];",
        ]
        return [*lines, *(f"(void){x};" for x in ("work", *unused))]

    def constants(self) -> Lines:
        """The numbers that follow from open sizes."""
        counts = [(n, key) for n, (kind, key) in enumerate(self.library.regions) if kind == "count"]
        return [f"const {DTYPES[x]} constant{n} = ({DTYPES[x]})({self.library.bytes[n]});" for n, x in counts]

    # The test program

    def test(self, arrays: Any, sizes: Any, after: Mapping[int, Any], results: Any) -> str:
        """A program that repeats one call, and compares its values."""
        name, library, upper = self.name, self.library, self.name.upper()
        used = [(x, a) for x, a, type in zip(self.inputs, arrays, library.inputs, strict=True) if type is not None]
        lines = [f"static const {_array(f'given_{x}', a)}" for x, a in used]
        given = list(zip(self.outputs, results, strict=True))
        lines += [f"static {DTYPES[str(a.dtype)]} given_{x}[{a.size}];" for x, a in given]
        expected = {f"called_{x}": a for x, a in given}
        expected |= {f"tensors.{self.tensors[n]}": a for n, a in after.items()}
        lines += [f"static const {_array(_expected(x), a)}" for x, a in expected.items()]
        body = [
            "(void)argc, (void)argv;",
            *(f"const int64_t {n} = {size};" for n, size in zip(self.sizes, sizes, strict=True)),
        ]
        if self.tensors:
            load = f'{name}_load(argc > 1 ? argv[1] : "{name}.safetensors", weights, &tensors)'
            read = [
                f"void *const weights = MEMORY({upper}_BYTES);",
                f"if (!weights || {load})",
                '    return puts("no weights"), 1;',
            ]
            body += [f"{name}_tensors tensors;", *([f"{name}_weights(&tensors);"] if self.in_source else read)]
        body += [
            f"const int64_t size = {name}_scratch({', '.join(self.sizes)});",
            "void *const scratch = MEMORY(size + 1);",
            *(f"const {DTYPES[str(a.dtype)]} *const called_{x} = GIVEN(given_{x});" for x, a in used),
            *(f"{DTYPES[str(a.dtype)]} *const called_{x} = GIVEN(given_{x});" for x, a in given),
            *self.setup(),
        ]
        unused = {x for x, type in zip(self.inputs, library.inputs, strict=True) if type is None}
        passed = {x: f"called_{x}" for x in (*self.inputs, *self.outputs)} | dict.fromkeys(unused, "NULL")
        passed |= {"tensors": "&tensors", "scratch_size": "size", "stream": "0"}
        arguments = ", ".join(passed.get(x, x) for _, x in self.parameters())
        body += [
            f"const int status = {name}({arguments});",
            "int count = 0;",
            "if (status)",
            '    return printf("status %d\\n", status), 1;',
        ]
        body += [f"DIFFERENT({x}, {_expected(x)}, {TOLERANCES.get(str(a.dtype), '0')})" for x, a in expected.items()]
        body += [
            "FREE(scratch);",
            *["FREE(weights);"] * (not self.in_source),
            'printf("%d values differ\\n", count);',
            "return count != 0;",
        ]
        texts = {"arrays": "\n".join(lines), "body": "\n".join(braced(body))}
        return self.filled(f"test{self.end}", **texts)

    def setup(self) -> Lines:
        """The lines of the test program before the call."""
        return []


def _order(dtype: str, kind: str) -> str:
    """The function that sorts; nan is the largest number."""
    less, first = ("<", "y") if kind == "ascending" else (">", "x")
    is_nan = f" || ({first} != {first} && {'xy'.replace(first, '')} == {'xy'.replace(first, '')})"
    before = f"#define BEFORE_{dtype}_{kind}(x, y) ((x) {less} (y){is_nan * dtype.startswith('float')})\n"
    names = {"name": f"order_{dtype}_{kind}", "type": DTYPES[dtype], "before": f"BEFORE_{dtype}_{kind}"}
    return before + Template((_FOLDER / "order.c").read_text()).substitute(names)


def _expected(name: str) -> str:
    return f"expected_{name.replace('.', '_')}"


def parts_of_kernel(nest: LoopNest, numbers: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
    """The sizes, the strides with the bounds of taps, and the bytes of scratch arrays, of a kernel's call."""
    first, last = nest.rank, nest.rank * (1 + len(nest.arrays)) + len(nest.bounds)
    return numbers[:first], numbers[first:last], numbers[last:]


def _shape(sizes: Iterable[Any]) -> str:
    return f"({', '.join(map(str, sizes))})"


def definitions(lines: Sequence[str]) -> list[str]:
    """Lines of C, divided into definitions: a function, with what stands before it."""
    found = [Lines()]
    for line in lines:
        found[-1].append(line)
        found += [[]] if line == "}" else []
    return ["\n".join(each) for each in found if each]


def word(number: int, dtype: str) -> str:
    """A number as 8 bytes."""
    return (
        f"word_of({_literal(np.int64(number).view(np.float64))})" if dtype == "float64" else _literal(np.int64(number))
    )


def _literal(x: Any) -> str:
    """A NumPy scalar as a C literal that is read as the same number."""
    if x.dtype.kind == "f":
        if not np.isfinite(x):
            return "NAN" if x != x else "INFINITY" if x > 0 else "-INFINITY"
        return np.format_float_scientific(x, unique=True, trim="0") + "f" * (x.dtype == np.float32)
    return "INT64_MIN" if int(x) == -(1 << 63) else f"{int(x)}{'u' * (int(x) >> 63)}"


def _rows(items: Iterable[str], count: int) -> str:
    items = [*items]
    return "\n".join(f"    {', '.join(items[i : i + count])}," for i in range(0, len(items), count))


def _array(name: str, values: object) -> str:
    """The definition of an array."""
    values = np.asarray(values)
    return f"{DTYPES[str(values.dtype)]} {name}[{values.size}] = {{\n{_rows(map(_literal, values.reshape(-1)), 8)}\n}};"


def _example(
    library: Library, f: Any, given: Sequence[Any] | None
) -> tuple[list[Any], list[int], Mapping[int, Any], list[Any]]:
    """The arguments, open sizes, updated tensors and outputs of one call of a copy of the function."""
    called, rng = copy.deepcopy(f), np.random.default_rng(0)
    known = {at: max(3 + n, library.limits[n][0]) for n, places in enumerate(library.dims) for at in places}
    arrays = []
    for n, x in enumerate(f.inputs):
        shape = [known.get((n, axis), 1) if size is None else size for axis, size in enumerate(x.type.shape)]
        drawn = rng.standard_normal(shape) if x.type.dtype.kind == "f" else rng.integers(0, 2, shape)
        arrays.append(np.asarray(drawn if given is None else given[n], x.type.dtype))
    results = called(*arrays)
    results = [] if results is None else results if isinstance(results, list) else [results]
    copies = {id(old.root): new.root for (old, _), (new, _) in zip(f.updates, called.updates, strict=True)}
    after = {n: copies[id(x)].get() for n, x in enumerate(library.tensors) if id(x) in copies}
    return arrays, [arrays[at[0][0]].shape[at[0][1]] for at in library.dims], after, [x.get() for x in results]
