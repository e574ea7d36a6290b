"""The files of an exported function in CUDA: its kernels, and a host function that launches them in order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from backends.execution.printer_common import Lines, braced
from backends.export.library import DTYPES, Call, Files, Polynomial, definitions, parts_of_kernel, word
from backends.gpu.codegen import printer as cuda
from backends.gpu.codegen.variant import TILE, Variant, static_bytes
from backends.gpu.launch_config import BLOCK_THREADS, DEFAULT_SHARED, INT32_LIMIT
from optree.compile.loopnest import LoopNest, online_of, strided_reads

#: The most elements of a row that a warp reduces; a block reduces longer ones, and those of open sizes.
SHORT_ROW = 1024


def launch_of(nest: LoopNest, sizes: Sequence[Polynomial]) -> tuple[Variant, str]:
    """The variant of a nest for all sizes, of single elements, and its number of blocks."""

    def count(first: int, last: int) -> str:
        return " * ".join(x.factor for x in sizes[first:last]) or "1"

    if strided_reads(nest) and static_bytes(nest, "tiles", BLOCK_THREADS["tiles"]) <= DEFAULT_SHARED:
        tiled = (nest.across, nest.rank - 1)
        parts = (f"PARTS({x}, {TILE})" if axis in tiled else x.factor for axis, x in enumerate(sizes))
        return Variant(team="tiles"), " * ".join(parts)
    if not nest.reductions:
        return Variant(), f"PARTS({count(0, nest.rank)}, {BLOCK_THREADS['']})"
    outer, rows = count(0, nest.outer), sizes[nest.outer :]
    if nest.columns:
        return Variant(team="columns", width=32), f"PARTS({outer}, 32)"
    if all(x.degree == 0 for x in rows) and _product_at(rows, 0) <= SHORT_ROW:
        return Variant(team="warp", width=32, threads=BLOCK_THREADS["warp"]), f"PARTS({outer}, 4)"
    return Variant(team="block", online=online_of(nest) is not None), outer


def _product_at(sizes: Sequence[Polynomial], open_size: int) -> int:
    """The largest product of sizes, if no open size is larger than this."""
    found = 1
    for x in sizes:
        found *= x.at(open_size)
    return found


class CudaFiles(Files):
    """The texts of the files in CUDA."""

    end, cmake, qualifier, largest = ".cu", "CMakeLists_cuda.txt", "static __device__ ", INT32_LIMIT
    status, where = "DEVICE_ERROR", ", in the memory of the device"

    def parameters(self) -> list[tuple[str, str]]:
        blas = [("cublasHandle_t ", "blas")] * bool(self.products)
        return [*super().parameters(), ("cudaStream_t ", "stream"), *blas]

    def sources(self) -> dict[str, str]:
        return {f"{self.name}.cu": self.filled("function.cu"), f"{self.name}_kernels.cuh": self.texts["kernels"]}

    def made_texts(self) -> dict[str, Any]:
        self.launches: Lines = []
        found = super().made_texts()
        headers = ["<cuda_runtime_api.h>", *["<cublas_v2.h>"] * bool(self.products)]
        found["includes"] = "".join(f"\n#include {header}" for header in headers)
        found["libraries"] = " ".join(["CUDA::cudart", *["CUDA::cublas"] * bool(self.products)])
        types = {"float32": ("float", "S"), "float64": ("double", "D")}
        products = (dict(zip(("type", "letter"), types[x], strict=True), dtype=x) for x in self.products)
        found["products"] = "".join(self.filled("products.cu", **each) for each in products)
        found["launches"] = "\n".join(
            ["", "   Launches, in order: a kernel, its blocks, and the threads of each.", *self.launches, ""]
        )
        return found

    def kernel_texts(self) -> tuple[str, str]:
        helpers, kernels = dict[str, None](), Lines()
        for (nest, variant), number in self.kernels.items():
            head = cuda.preamble(cuda.CudaPrinter(nest, variant))
            text = cuda.source(nest, variant).removeprefix("\n".join(head))
            helpers |= dict.fromkeys(x.strip("\n") for x in definitions(head[:-1]))  # the last defines Index
            kernels.append(re.sub(r"\b(kernel|Join\d+)\b", rf"{self.name}_\1_{number}", text).strip("\n"))
        for dtype in sorted({kind.key for kind in self.library.regions if kind.kind == "count"}):
            start = f'extern "C" __global__ void {self.name}_set_{dtype}'
            kernels.append(f"{start}({cuda.CUDA.types[dtype]} *to, double value)\n{{\n    *to = value;\n}}")
        comment = f"/* The kernels of {self.name}: see {self.name}.h. */"
        return "", "\n\n".join([comment, "typedef int Index;", *helpers, *kernels, ""])

    def fits(self, size: int) -> bool:
        kernels = (call for call in self.library.calls if call.what[0] == "kernel")
        domains = (call.numbers[len(call.regions) :][: call.what[1].rank] for call in kernels)
        return super().fits(size) and all(_product_at(sizes, size) < self.largest for sizes in domains)

    def slot_of(self, region: int) -> object:
        is_count = self.library.regions[region].kind == "count"
        return ("count", region) if is_count else super().slot_of(region)

    def constants(self) -> Lines:
        lines = Lines()
        for n, (kind, key) in enumerate(self.library.regions):
            if kind == "constant":
                address = f"cudaGetSymbolAddress((void **)&constant{n}, values_of_constant{n})"
                lines += [
                    f"{DTYPES[key[0]]} *constant{n} = NULL;",
                    f"if ({address} != cudaSuccess)",
                    f"    {self.fail}",
                ]
            elif kind == "count":
                value = f"word_of((double)({self.library.bytes[n]}))"
                words = f"const int64_t words[] = {{AT({self.pointer(n)}, 0), {value}}};"
                call = f"if (launch((const void *){self.name}_set_{key}, 1, 1, stream, words))"
                lines += braced([words, call, f"    {self.fail}"])
        if self.products:
            lines += ["if (cublasSetStream(blas, stream) != CUBLAS_STATUS_SUCCESS)", f"    {self.fail}"]
        return lines

    def constant_name(self, region: int) -> str:
        return f"values_of_constant{region}"

    def member(self, name: str) -> Lines:
        address = f"cudaGetSymbolAddress((void **)&tensors->{name}, values_of_{name})"
        return [f"if ({address} != cudaSuccess)", f"    {self.fail}"]

    def call(self, call: Call) -> Lines:
        kind, what, given = (*call.what, None, None)[:3]
        numbers = call.numbers[len(call.regions) :]
        arrays = [f"AT({self.pointer(n)}, {at})" for n, at in zip(call.regions, call.numbers, strict=False)]
        if kind == "product":
            self.launches.append(f"   cublas: a product, in {what}")
            words = [arrays, numbers[:9], [given], numbers[9:]]
            return self.lines_of(call, words, f"multiply_{what}(words, blas)", True)
        sizes, strides, _ = parts_of_kernel(what, numbers)
        variant, blocks = launch_of(what, sizes)
        kernel = f"{self.name}_kernel_{self.kernels.setdefault((what, variant), len(self.kernels))}"
        rank, count = what.rank, len(what.reads)
        of: dict[str, Any] = {f"a{p}": pointer for p, pointer in enumerate(what.pointers(arrays))}
        for axis, x in enumerate(sizes):
            of |= {f"n{axis}": x, f"m{axis}": f"divisor({x})"}
        of |= {f"s{i // rank}_{i % rank}": x for i, x in enumerate(strides[: rank * len(what.arrays)])}
        of |= zip(what.bounds, strides[rank * len(what.arrays) :], strict=True)
        of |= {f"c{count + i}": word(*each) for i, each in enumerate(given)}
        self.launches.append(f"   {kernel}: {blocks}, {variant.threads}")
        run = f"launch((const void *){kernel}, {blocks}, {variant.threads}, stream, words)"
        given = [of[x] for x in cuda.parameter_names(what, variant)]
        return self.lines_of(call, [given[i : i + 8] for i in range(0, len(given), 8)], run, True)

    def work(self, call: Call) -> str:
        return ""

    # The test program

    def setup(self) -> Lines:
        return ["cublasHandle_t blas;", "cublasCreate(&blas);"] if self.products else []
