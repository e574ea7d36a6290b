"""NVIDIA's cuBLASLt, which multiplies matrices on a CUDA device, by its C interface (`cublasLt.h`).

CuPy brings the library, but no way to it; and where it calls cuBLAS, it refuses
to be captured. nvmath-python binds it, and takes three packages and 0.4 seconds
to import, for the few functions that are needed here.

As in the library's own words, matrices are laid out column after column here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any
from weakref import finalize

import numpy as np

from optree.dtypes import is_bfloat16
from optree.errors import BackendError, DeviceMemoryError

#: `cudaDataType_t` and `cublasComputeType_t`.
_TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}
_IN_FLOAT32, _IN_FLOAT64, _IN_TF32 = 68, 70, 77

#: `cublasOperation_t`.
_PLAIN, _TRANSPOSED = 0, 1

#: `cublasLtMatmulDescAttributes_t` and `cublasLtEpilogue_t`.
_TRANSPOSE_A, _TRANSPOSE_B, _EPILOGUE, _BIAS_POINTER = 3, 4, 7, 8
_WITH_BIAS = 4

#: `cublasLtMatrixLayoutAttribute_t`.
_COUNT, _APART = 5, 6

#: `cublasLtMatmulPreferenceAttributes_t`, of the alignments A's, which B's, C's and D's follow, and the
#: `cublasLtReductionScheme_t` that keeps sums of parts in the dtype that they are computed in.
_MOST_WORKSPACE, _REDUCTIONS, _ALIGNMENT = 1, 3, 5
_IN_COMPUTE_TYPE = 2

#: Bytes of memory that a product may work in: what NVIDIA recommends for Hopper, the most of any.
WORKSPACE = 32 << 20

#: An address that is aligned to so many bytes is as good as any.
ALIGNED = 256

_NO_MEMORY, _NOT_SUPPORTED = 3, 15


@dataclass(frozen=True)
class Matrix:
    """How a matrix lies, or each of a stack of them, in elements.

    Attributes
    ----------
    rows, columns : int
    lead : int
        From column to column.
    apart : int
        From matrix to matrix.
    """

    rows: int
    columns: int
    lead: int
    apart: int = 0


@dataclass(frozen=True)
class Problem:
    """``d = alpha * a @ b + beta * c``, and a bias: all that the way to compute it depends on.

    Attributes
    ----------
    dtype : numpy.dtype
        Of all matrices.
    tf32 : bool
        Whether float32 is multiplied in TensorFloat-32.
    count : int
        How many matrices a stack has.
    a, b, c, d : Matrix
    transposed : tuple of bool
        Whether a and b lie transposed.
    bias : int
        To how many bytes the address of a vector is aligned that is added to each column; 0 where there is none.
    aligned : tuple of int
        To how many bytes the addresses of a, b, c and d are aligned.
    """

    dtype: np.dtype
    tf32: bool
    count: int
    a: Matrix
    b: Matrix
    c: Matrix
    d: Matrix
    transposed: tuple[bool, bool]
    bias: int
    aligned: tuple[int, ...]


class Choice(ctypes.Structure):
    """An algorithm, and how many bytes of memory it works in: `cublasLtMatmulHeuristicResult_t`."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


_POINTER, _INT, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t

#: The functions that are needed, by their names without ``cublasLt``; all but the last return a `cublasStatus_t`.
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
    """The library, loaded.

    Raises
    ------
    BackendError
        If it is not found.
    """
    try:
        # Where CuPy has loaded its own, it is that: CuPy needs this finder, too.
        return ctypes.CDLL(import_module("cuda.pathfinder").load_nvidia_dynamic_lib("cublasLt").abs_path)
    except (ImportError, OSError, RuntimeError) as error:
        raise BackendError(
            f"products on a GPU need NVIDIA's cuBLASLt, which does not load ({str(error).splitlines()[0]}); "
            "pip install 'cupy-cuda13x[ctk]' installs it"
        ) from error


class CuBLASLt:
    """The library on the device that is current when this is made.

    Parameters
    ----------
    library : ctypes.CDLL
    """

    def __init__(self, library: Any) -> None:
        self._functions = {}
        for name, arguments in _FUNCTIONS.items():
            function = self._functions[name] = getattr(library, f"cublasLt{name}")
            function.argtypes = list(arguments)
            function.restype = ctypes.c_char_p if name == "GetStatusName" else ctypes.c_int
        self.handle = self.made("Create")
        finalize(self, self._functions["Destroy"], self.handle).atexit = False  # the driver may have gone before

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function.

        Raises
        ------
        BackendError, DeviceMemoryError
            If it does not succeed.
        """
        status = self._functions[name](*arguments)
        if status:
            raise self._refused(name, status)

    def _refused(self, name: str, status: int) -> Exception:
        said = f"cublasLt{name}: {self._functions['GetStatusName'](status).decode()} ({status})"
        return DeviceMemoryError(said) if status == _NO_MEMORY else BackendError(said)

    def made(self, name: str, *arguments: Any) -> int:
        """What a function that creates something puts where its first argument points."""
        made = ctypes.c_void_p()
        self.call(name, ctypes.byref(made), *arguments)
        return made.value or 0

    def set(self, kind: str, which: int, attribute: int, value: Any) -> None:
        """Set an attribute of what was created."""
        self.call(f"{kind}SetAttribute", which, attribute, ctypes.byref(value), ctypes.sizeof(value))

    def best(self, *given: int) -> Choice | None:
        """The algorithm that the library thinks quickest, of a descriptor, layouts and preferences; None if none is."""
        choice, count = Choice(), ctypes.c_int(0)
        find = self._functions["MatmulAlgoGetHeuristic"]
        status = find(self.handle, *given, 1, ctypes.byref(choice), ctypes.byref(count))
        if status not in (0, _NOT_SUPPORTED):
            raise self._refused("MatmulAlgoGetHeuristic", status)
        return choice if status == choice.state == 0 < count.value else None


class Algorithm:
    """The library's algorithm for a problem, the quickest by its heuristics.

    Attributes
    ----------
    choice : Choice or None
        None where the library has no way.
    """

    def __init__(self, library: CuBLASLt, problem: Problem) -> None:
        name = "bfloat16" if is_bfloat16(problem.dtype) else problem.dtype.name
        is_double = name == "float64"
        compute = _IN_FLOAT64 if is_double else _IN_TF32 if problem.tf32 else _IN_FLOAT32
        self._library, self._number = library, ctypes.c_double if is_double else ctypes.c_float
        self._made: list[tuple[str, int]] = []
        finalize(self, _destroy, library, self._made).atexit = False
        self._operation = self._new("MatmulDesc", compute, _TYPES["float64" if is_double else "float32"])
        for attribute, transposed in zip((_TRANSPOSE_A, _TRANSPOSE_B), problem.transposed, strict=True):
            value = ctypes.c_int32(_TRANSPOSED if transposed else _PLAIN)
            library.set("MatmulDesc", self._operation, attribute, value)
        if problem.bias:
            library.set("MatmulDesc", self._operation, _EPILOGUE, ctypes.c_uint32(_WITH_BIAS))
            # The heuristics look at how the address is aligned, and at nothing there.
            library.set("MatmulDesc", self._operation, _BIAS_POINTER, ctypes.c_void_p(problem.bias))
        self._layouts = [
            self._layout(_TYPES[name], matrix, problem.count) for matrix in (problem.a, problem.b, problem.c, problem.d)
        ]
        self.choice = library.best(self._operation, *self._layouts, self._preference(problem.aligned))

    def _new(self, kind: str, *arguments: Any) -> int:
        made = self._library.made(f"{kind}Create", *arguments)
        self._made.append((kind, made))
        return made

    def _layout(self, kind: int, matrix: Matrix, count: int) -> int:
        layout = self._new("MatrixLayout", kind, matrix.rows, matrix.columns, matrix.lead)
        self._library.set("MatrixLayout", layout, _COUNT, ctypes.c_int32(count))
        self._library.set("MatrixLayout", layout, _APART, ctypes.c_int64(matrix.apart))
        return layout

    def _preference(self, aligned: Sequence[int]) -> int:
        preference = self._new("MatmulPreference")
        self._library.set("MatmulPreference", preference, _MOST_WORKSPACE, ctypes.c_uint64(WORKSPACE))
        self._library.set("MatmulPreference", preference, _REDUCTIONS, ctypes.c_uint32(_IN_COMPUTE_TYPE))
        for place, count in enumerate(aligned):
            self._library.set("MatmulPreference", preference, _ALIGNMENT + place, ctypes.c_uint32(count))
        return preference

    def run(
        self, addresses: Sequence[int], alpha: float, beta: float, bias: int | None, workspace: int, stream: int
    ) -> None:
        """Let the problem be computed on a stream; for one caller at a time.

        Parameters
        ----------
        addresses : sequence of int
            Of a, b, c and d; c is not read where beta is 0.
        alpha, beta : float
        bias, workspace : int
            Addresses.
        stream : int
        """
        if bias is not None:
            self._library.set("MatmulDesc", self._operation, _BIAS_POINTER, ctypes.c_void_p(bias))
        assert self.choice is not None
        (a, b, c, d), (of_a, of_b, of_c, of_d) = addresses, self._layouts
        first, second = self._number(alpha), self._number(beta)
        operands = ctypes.byref(first), a, of_a, b, of_b, ctypes.byref(second), c, of_c, d, of_d
        algorithm = ctypes.byref(self.choice)
        memory = workspace, self.choice.workspace
        self._library.call("Matmul", self._library.handle, self._operation, *operands, algorithm, *memory, stream)


def _destroy(library: CuBLASLt, made: Sequence[tuple[str, int]]) -> None:
    for kind, each in made:
        library.call(f"{kind}Destroy", each)
