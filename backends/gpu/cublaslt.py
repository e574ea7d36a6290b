"""Bindings of NVIDIA's cuBLASLt, for matrix products on a CUDA device, by ctypes (`cublasLt.h`).

CuPy installs the library, but does not bind it; and its calls of cuBLAS cannot be captured. nvmath-python has bindings,
but takes three packages and 0.4 seconds to import, for the few functions that are needed here.

Matrices are in column-major order here, as in the library.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any
from weakref import finalize

import numpy as np

from optree.dtypes import is_bfloat16, is_complex, real_dtype
from optree.errors import BackendError, DeviceMemoryError

#: `cudaDataType_t` and `cublasComputeType_t`.
_TYPES = {"float32": 0, "float64": 1, "float16": 2, "complex64": 4, "complex128": 5, "bfloat16": 14}
_IN_FLOAT32, _IN_FLOAT64, _IN_TF32 = 68, 70, 77

#: `cublasOperation_t`.
_PLAIN, _TRANSPOSED = 0, 1

#: `cublasLtMatmulDescAttributes_t` and `cublasLtEpilogue_t`.
_TRANSPOSE_A, _TRANSPOSE_B, _EPILOGUE, _BIAS_POINTER = 3, 4, 7, 8
_WITH_BIAS = 4

#: `cublasLtMatrixLayoutAttribute_t`.
_BATCH_COUNT, _BATCH_STRIDE = 5, 6

#: `cublasLtMatmulPreferenceAttributes_t`, of the alignments A's, which B's, C's and D's follow, and the
#: `cublasLtReductionScheme_t` of split-K sums in the compute type.
_MAX_WORKSPACE, _REDUCTIONS, _ALIGNMENT = 1, 3, 5
_IN_COMPUTE_TYPE = 2

#: The maximum workspace of a product in bytes: NVIDIA's recommendation for Hopper, the largest of any device.
WORKSPACE = 32 << 20

#: The maximum alignment of addresses that algorithms distinguish.
ALIGNED = 256

_NO_MEMORY, _NOT_SUPPORTED = 3, 15


@dataclass(frozen=True)
class Matrix:
    """The layout of a matrix, or of a batch of them, in elements."""

    rows: int
    columns: int
    #: The stride between columns.
    leading_dimension: int
    #: The stride between matrices.
    batch_stride: int = 0


@dataclass(frozen=True)
class Problem:
    """A product ``d = alpha * a @ b + beta * c`` with a bias: all that the choice of its algorithm depends on."""

    #: The dtypes of a and b, and of c and d: the same, or float32 for sums of halves.
    dtype: np.dtype
    target: np.dtype
    #: Whether float32 is multiplied in TensorFloat-32.
    tf32: bool
    #: The number of matrices of a batch.
    count: int
    a: Matrix
    b: Matrix
    c: Matrix
    d: Matrix
    #: Whether a and b are transposed.
    transposed: tuple[bool, bool]
    #: The alignment in bytes of a vector that is added to each column; 0 where there is none.
    bias: int
    #: The alignments in bytes of a, b, c and d.
    aligned: tuple[int, ...]


class Choice(ctypes.Structure):
    """An algorithm and its workspace in bytes: `cublasLtMatmulHeuristicResult_t`."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


_POINTER, _INT, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t

#: The parameters of functions, by their names without ``cublasLt``; all but the last return a `cublasStatus_t`.
_FUNCTIONS: dict[str, Sequence[Any]] = {
    "Create": (_POINTER,),
    "Destroy": (_POINTER,),
    "MatmulDescCreate": (_POINTER, _INT, _INT),
    "MatmulDescDestroy": (_POINTER,),
    "MatmulDescSetAttribute": (_POINTER, _INT, _POINTER, _SIZE),
    "MatrixLayoutCreate": (_POINTER, _INT, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int64),
    "MatrixLayoutDestroy": (_POINTER,),
    "MatrixLayoutSetAttribute": (_POINTER, _INT, _POINTER, _SIZE),
    "MatmulPreferenceCreate": (_POINTER,),
    "MatmulPreferenceDestroy": (_POINTER,),
    "MatmulPreferenceSetAttribute": (_POINTER, _INT, _POINTER, _SIZE),
    "MatmulAlgoGetHeuristic": (*(_POINTER,) * 7, _INT, _POINTER, _POINTER),
    "Matmul": (*(_POINTER,) * 14, _SIZE, _POINTER),
    "GetStatusName": (_INT,),
}


def installed() -> Any:
    """The library, loaded; BackendError if it is not found."""
    try:
        # The same library as CuPy's, which uses this finder, too.
        return ctypes.CDLL(import_module("cuda.pathfinder").load_nvidia_dynamic_lib("cublasLt").abs_path)
    except (ImportError, OSError, RuntimeError) as error:
        raise BackendError(
            f"products on a GPU need NVIDIA's cuBLASLt, which does not load ({str(error).splitlines()[0]}); "
            "pip install 'cupy-cuda13x[ctk]' installs it"
        ) from error


class CuBLASLt:
    """A handle of the library on the current device.

    `library`: a `ctypes.CDLL`.
    """

    def __init__(self, library: Any) -> None:
        self._functions = {}
        for name, arguments in _FUNCTIONS.items():
            function = self._functions[name] = getattr(library, f"cublasLt{name}")
            function.argtypes = list(arguments)
            function.restype = ctypes.c_char_p if name == "GetStatusName" else ctypes.c_int
        self.handle = self.made("Create")
        finalize(self, self._functions["Destroy"], self.handle).atexit = False  # the driver may be unloaded before

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function; BackendError, DeviceMemoryError if it does not succeed."""
        status = self._functions[name](*arguments)
        if status:
            raise self._refused(name, status)

    def _refused(self, name: str, status: int) -> Exception:
        said = f"cublasLt{name}: {self._functions['GetStatusName'](status).decode()} ({status})"
        return DeviceMemoryError(said) if status == _NO_MEMORY else BackendError(said)

    def made(self, name: str, *arguments: Any) -> int:
        """The handle that a function creates, through its first argument."""
        made = ctypes.c_void_p()
        self.call(name, ctypes.byref(made), *arguments)
        return made.value or 0

    def set(self, kind: str, which: int, attribute: int, value: Any) -> None:
        """Set an attribute of a descriptor, layout or preference."""
        self.call(f"{kind}SetAttribute", which, attribute, ctypes.byref(value), ctypes.sizeof(value))

    def best(self, *given: int) -> Choice | None:
        """The best algorithm by the heuristics, for a descriptor, layouts and preference; None if there is none."""
        choice, count = Choice(), ctypes.c_int(0)
        find = self._functions["MatmulAlgoGetHeuristic"]
        status = find(self.handle, *given, 1, ctypes.byref(choice), ctypes.byref(count))
        if status not in (0, _NOT_SUPPORTED):
            raise self._refused("MatmulAlgoGetHeuristic", status)
        return choice if status == choice.state == 0 < count.value else None


class Algorithm:
    """The best algorithm for a problem by the library's heuristics, with its descriptors."""

    def __init__(self, library: CuBLASLt, problem: Problem) -> None:
        is_double, parts = real_dtype(problem.dtype) == np.float64, 2 if is_complex(problem.dtype) else 1
        compute = _IN_FLOAT64 if is_double else _IN_TF32 if problem.tf32 else _IN_FLOAT32
        self._library, self._parts = library, parts
        self._number = (ctypes.c_double if is_double else ctypes.c_float) * parts
        self._made: list[tuple[str, int]] = []
        finalize(self, _destroy, library, self._made).atexit = False
        scale = problem.dtype.name if parts == 2 else "float64" if is_double else "float32"
        self._operation = self._new("MatmulDesc", compute, _TYPES[scale])
        for attribute, transposed in zip((_TRANSPOSE_A, _TRANSPOSE_B), problem.transposed, strict=True):
            value = ctypes.c_int32(_TRANSPOSED if transposed else _PLAIN)
            library.set("MatmulDesc", self._operation, attribute, value)
        if problem.bias:
            library.set("MatmulDesc", self._operation, _EPILOGUE, ctypes.c_uint32(_WITH_BIAS))
            # The heuristics use the alignment of the address alone.
            library.set("MatmulDesc", self._operation, _BIAS_POINTER, ctypes.c_void_p(problem.bias))
        read, written = (_TYPES["bfloat16" if is_bfloat16(x) else x.name] for x in (problem.dtype, problem.target))
        pairs = (read, problem.a), (read, problem.b), (written, problem.c), (written, problem.d)
        self._layouts = [self._layout(kind, matrix, problem.count) for kind, matrix in pairs]
        #: None where the library has no algorithm.
        self.choice = library.best(self._operation, *self._layouts, self._preference(problem.aligned))

    def _new(self, kind: str, *arguments: Any) -> int:
        made = self._library.made(f"{kind}Create", *arguments)
        self._made.append((kind, made))
        return made

    def _layout(self, kind: int, matrix: Matrix, count: int) -> int:
        layout = self._new("MatrixLayout", kind, matrix.rows, matrix.columns, matrix.leading_dimension)
        self._library.set("MatrixLayout", layout, _BATCH_COUNT, ctypes.c_int32(count))
        self._library.set("MatrixLayout", layout, _BATCH_STRIDE, ctypes.c_int64(matrix.batch_stride))
        return layout

    def _preference(self, aligned: Sequence[int]) -> int:
        preference = self._new("MatmulPreference")
        self._library.set("MatmulPreference", preference, _MAX_WORKSPACE, ctypes.c_uint64(WORKSPACE))
        self._library.set("MatmulPreference", preference, _REDUCTIONS, ctypes.c_uint32(_IN_COMPUTE_TYPE))
        for operand, alignment in enumerate(aligned):
            self._library.set("MatmulPreference", preference, _ALIGNMENT + operand, ctypes.c_uint32(alignment))
        return preference

    def run(
        self, addresses: Sequence[int], alpha: float, beta: float, bias: int | None, workspace: int, stream: int
    ) -> None:
        """Launch the product on a stream; not thread-safe.

        `addresses`: the addresses of a, b, c and d; c is not read where beta is 0.
        `bias`, `workspace`: the addresses of the bias and the workspace.
        """
        if bias is not None:
            self._library.set("MatmulDesc", self._operation, _BIAS_POINTER, ctypes.c_void_p(bias))
        assert self.choice is not None
        (a, b, c, d), (of_a, of_b, of_c, of_d) = addresses, self._layouts
        first, second = (self._number(*(z.real, z.imag)[: self._parts]) for z in (alpha, beta))
        operands = ctypes.byref(first), a, of_a, b, of_b, ctypes.byref(second), c, of_c, d, of_d
        algorithm = ctypes.byref(self.choice)
        memory = workspace, self.choice.workspace
        self._library.call("Matmul", self._library.handle, self._operation, *operands, algorithm, *memory, stream)


def _destroy(library: CuBLASLt, made: Sequence[tuple[str, int]]) -> None:
    for kind, each in made:
        library.call(f"{kind}Destroy", each)
