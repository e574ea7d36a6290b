"""CuPy's ElementwiseKernel and ReductionKernel for the stand-in: their texts as loops of C++, run on the CPU."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from subprocess import run
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

TYPES = {"f": "float", "d": "double"}

HEAD = "#include <algorithm>\n#include <cmath>\n#include <cstddef>\nusing namespace std;\n"


@cache
def _compiled(source: str) -> Any:
    with TemporaryDirectory() as folder:
        text, library = Path(folder) / "kernel.cpp", Path(folder) / "kernel.so"
        text.write_text(source)
        run(["g++", "-shared", "-fPIC", "-ffp-contract=off", "-o", library, text], check=True)
        return ctypes.CDLL(str(library)).run


def _names(parameters: str) -> list[str]:
    """The names in a list of parameters, all of type ``T``."""
    pairs = [parameter.split() for parameter in parameters.split(",")]
    assert all(kind == "T" for kind, _ in pairs), "only T is known here"
    return [name for _, name in pairs]


class Kernel:
    """Base class of both kernels."""

    def __init__(self, module: Any, operands: str, results: str) -> None:
        self.module, self.operands, self.results = module, _names(operands), _names(results)

    def _hosts(self, args: Sequence[Any]) -> tuple[list[np.ndarray], list[np.ndarray]]:
        names = [*self.operands, *self.results]
        assert len(args) == len(names) and all(isinstance(x, self.module.ndarray) for x in args)
        hosts = [x.host for x in args]
        assert len({x.dtype for x in hosts}) == 1 and all(x.flags.c_contiguous for x in hosts[len(self.operands) :])
        return hosts[: len(self.operands)], hosts[len(self.operands) :]

    def _run(self, body: str, sizes: Sequence[int], arrays: Sequence[np.ndarray]) -> None:
        self.module.machine.kernels += 1
        names = [*self.operands, *self.results]
        parameters = ", ".join(["size_t count", "size_t length", *(f"T *{name}_" for name in names)])
        source = f'{HEAD}typedef {TYPES[arrays[0].dtype.char]} T;\nextern "C" void run({parameters}) {{\n{body}}}\n'
        _compiled(source)(*map(ctypes.c_size_t, sizes), *(ctypes.c_void_p(x.ctypes.data) for x in arrays))


class ElementwiseKernel(Kernel):
    """A text for each element."""

    def __init__(self, module: Any, in_params: str, out_params: str, operation: str, name: str) -> None:
        super().__init__(module, in_params, out_params)
        lines = [f"const T &{each} = {each}_[at];" for each in self.operands]
        lines += [f"T &{each} = {each}_[at];" for each in self.results]
        self.body = f"for (size_t at = 0; at < count; at++) {{\n{' '.join(lines)}\n{operation};\n}}\n"

    def __call__(self, *args: Any) -> None:
        operands, results = self._hosts(args)
        shape = results[0].shape
        spread = [np.ascontiguousarray(np.broadcast_to(x, shape)) for x in operands]
        self._run(self.body, [results[0].size, 0], [*spread, *results])


class ReductionKernel(Kernel):
    """A text for each element, one for two of what it gives, and one for what comes of all."""

    def __init__(
        self,
        module: Any,
        in_params: str,
        out_params: str,
        map_expr: str,
        reduce_expr: str,
        post_map_expr: str,
        identity: str,
        name: str,
    ) -> None:
        super().__init__(module, in_params, out_params)
        (result,) = self.results
        lines = " ".join(f"const T &{each} = {each}_[at * length + along];" for each in self.operands)
        self.body = (
            f"for (size_t at = 0; at < count; at++) {{\nT a = {identity};\nT &{result} = {result}_[at];\n"
            f"for (size_t along = 0; along < length; along++) {{\n{lines} T b = {map_expr}; a = {reduce_expr};\n}}\n"
            f"{post_map_expr};\n}}\n"
        )

    def __call__(self, *args: Any, axis: int | None = None, keepdims: bool = False) -> None:
        operands, (result,) = self._hosts(args)
        spread = np.broadcast_arrays(*operands)
        whole = spread[0].shape
        axes = tuple(range(len(whole))) if axis is None else (axis,)
        shape = [1 if place in axes else n for place, n in enumerate(whole) if keepdims or place not in axes]
        assert result.shape == tuple(shape), f"the result has shape {result.shape}, and the sums {shape}"
        last = range(-len(axes), 0)
        lying = [np.ascontiguousarray(np.moveaxis(x, axes, last)) for x in spread]
        count = math.prod(whole[place] for place in axes)
        self._run(self.body, [result.size, count], [*lying, result])


def add_kernels(module: Any) -> None:
    """Give the stand-in for CuPy both, and a `fuse` that leaves functions as they are."""
    module.ElementwiseKernel = partial(ElementwiseKernel, module)
    module.ReductionKernel = partial(ReductionKernel, module)
    module.fuse = lambda kernel_name=None: lambda function: function
