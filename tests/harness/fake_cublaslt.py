"""A stand-in for cuBLASLt, on NumPy's memory, entered as C enters it: it refuses what `cublasLt.h` refuses."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from itertools import count
from math import gcd
from typing import Any

import numpy as np

from backends.gpu import cublaslt
from harness.fake_cuda import Machine
from optree.dtypes import bfloat16

#: The library's numbers for dtypes and for what products are computed in.
DTYPES = {0: np.dtype("float32"), 1: np.dtype("float64"), 2: np.dtype("float16"), 14: bfloat16()}
DTYPES |= {4: np.dtype("complex64"), 5: np.dtype("complex128")}
COMPUTES = {68: np.float32, 70: np.float64, 77: np.float32}
IN_TF32 = 77

STATUS = {
    3: b"CUBLAS_STATUS_ALLOC_FAILED",
    7: b"CUBLAS_STATUS_INVALID_VALUE",
    14: b"CUBLAS_STATUS_INTERNAL_ERROR",
    15: b"CUBLAS_STATUS_NOT_SUPPORTED",
}
NAMES = {status: ctypes.create_string_buffer(name) for status, name in STATUS.items()}
SUCCESS, INVALID, INTERNAL, UNSUPPORTED = 0, 7, 14, 15

#: The attributes that there are, with their types.
ATTRIBUTES: dict[str, dict[int, Any]] = {
    "MatmulDesc": {3: ctypes.c_int32, 4: ctypes.c_int32, 7: ctypes.c_uint32, 8: ctypes.c_void_p},
    "MatrixLayout": {5: ctypes.c_int32, 6: ctypes.c_int64},
    "MatmulPreference": {1: ctypes.c_uint64, 3: ctypes.c_uint32, **dict.fromkeys(range(5, 9), ctypes.c_uint32)},
}

#: What products of longer rows than so many elements work in here.
LONG, WORKSPACE = 256, 640


class FakeCuBLASLt:
    """A stand-in for the loaded library of `backends.gpu.cublaslt.CuBLASLt`.

    Attributes
    ----------
    living : dict
        What was created and not destroyed.
    loaded : set
        The kinds of product whose algorithms are loaded: the first product of a kind loads its algorithm, which no
        capture allows.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.living: dict[int, dict[Any, Any]] = {}
        self.loaded: set[Any] = set()
        self._numbers = count(1)
        for name, arguments in cublaslt._FUNCTIONS.items():
            result = ctypes.c_void_p if name == "GetStatusName" else ctypes.c_int
            setattr(self, f"cublasLt{name}", ctypes.CFUNCTYPE(result, *arguments)(self._function(name)))

    def _function(self, name: str) -> Callable[..., Any]:
        for kind in ATTRIBUTES:
            if name == f"{kind}SetAttribute":
                return lambda which, attribute, buffer, size: self._set(kind, which, attribute, buffer, size)
            if name in ("Destroy", f"{kind}Destroy"):
                return lambda which: self.living.pop(which) and SUCCESS
        return {
            "Create": lambda to: self._create(to, {"kind": "handle"}),
            "MatmulDescCreate": lambda to, compute, scale: self._create(
                to, {"kind": "MatmulDesc", "compute": compute, "scale": scale, 3: 0, 4: 0, 7: 1, 8: None}
            ),
            "MatrixLayoutCreate": lambda to, dtype, rows, columns, lead: self._create(
                to, {"kind": "MatrixLayout", "dtype": DTYPES[dtype], "shape": (rows, columns), "lead": lead, 5: 1, 6: 0}
            ),
            "MatmulPreferenceCreate": lambda to: self._create(
                to, {"kind": "MatmulPreference", 1: 0, 3: 7, **dict.fromkeys(range(5, 9), 256)}
            ),
            "MatmulAlgoGetHeuristic": self._heuristic,
            "Matmul": self._matmul,
            "GetStatusName": lambda status: ctypes.addressof(NAMES[status]),
        }[name]

    def _create(self, to: int, made: dict[Any, Any]) -> int:
        number = next(self._numbers) << 8
        self.living[number] = made
        ctypes.c_void_p.from_address(to).value = number
        return SUCCESS

    def _set(self, kind: str, which: int, attribute: int, buffer: int, size: int) -> int:
        wanted = ATTRIBUTES[kind].get(attribute)
        if self.living[which]["kind"] != kind or wanted is None or size != ctypes.sizeof(wanted):
            return INVALID
        self.living[which][attribute] = wanted.from_address(buffer).value
        return SUCCESS

    def _heuristic(
        self,
        handle: int,
        operation: int,
        a: int,
        b: int,
        c: int,
        d: int,
        preference: int,
        most: int,
        to: int,
        found: int,
    ) -> int:
        asked, layouts = self.living[operation], [self.living[each] for each in (a, b, c, d)]
        if self.living[handle]["kind"] != "handle" or most < 1 or not _fit(asked, layouts):
            return INVALID
        if asked[7] == 4 and not asked[8]:
            return INVALID
        if asked[7] == 4 and (asked["compute"] == 70 or asked["scale"] == 4):  # no bias is added in these
            return UNSUPPORTED
        choice = cublaslt.Choice.from_address(to)
        aligned = [self.living[preference][place] for place in range(5, 9)]
        promised = sum(bytes_ << 16 * i for i, bytes_ in enumerate(aligned))
        choice.algorithm[:] = [operation, a, b, c, d, promised, gcd(asked[8] or 1, 256), 0]
        choice.workspace, choice.state = _workspace(asked, layouts), SUCCESS
        assert self.living[preference][1] >= WORKSPACE
        assert self.living[preference][3] == 2, "parts are to be summed in the dtype that they are computed in"
        ctypes.c_int.from_address(found).value = 1
        return SUCCESS

    def _matmul(
        self,
        handle: int,
        operation: int,
        alpha: int,
        a: int,
        of_a: int,
        b: int,
        of_b: int,
        beta: int,
        c: int,
        of_c: int,
        d: int,
        of_d: int,
        algorithm: int,
        workspace: int,
        size: int,
        stream: int,
    ) -> int:
        asked, layouts = dict(self.living[operation]), [dict(self.living[each]) for each in (of_a, of_b, of_c, of_d)]
        chosen = (ctypes.c_uint64 * 8).from_address(algorithm)
        addresses = [a, b, c, d]
        aligned = [chosen[5] >> 16 * i & 0xFFFF for i in range(4)]
        if (
            chosen[:5] != [operation, of_a, of_b, of_c, of_d]
            or (asked[8] or 0) % chosen[6]
            or not _fit(asked, layouts)
            or size < _workspace(asked, layouts)
        ):
            return INVALID
        if (stream or 0) != self.machine.stream.ptr or any(
            x % bytes_ for x, bytes_ in zip(addresses, aligned, strict=True)
        ):
            return INVALID
        # Its code is loaded when it first runs. CuPy's memory is aligned alike everywhere, so that is by kind alone.
        kind = *(asked[name] for name in ("compute", "scale", 3, 4, 7)), layouts[0]["dtype"], layouts[3]["dtype"]
        is_captured = self.machine.stream.recorded is not None
        if (kind not in self.loaded and is_captured) or getattr(self.machine, "is_broken", False):
            return INTERNAL
        self.loaded.add(kind)
        scale = DTYPES[asked["scale"]]
        by, added = (np.frombuffer(_bytes(z, scale.itemsize), scale)[0].item() for z in (alpha, beta))
        told = {"alpha": by, "beta": added, "bias": asked[7] == 4, "count": layouts[0][5], "workspace": workspace or 0}
        self.machine.products.append({**told, "operands": layouts[0]["dtype"], "value": layouts[3]["dtype"]})
        arrays = [_array(x, layout) for x, layout in zip(addresses, layouts, strict=True)]
        memory = _bytes(workspace, size) if size else np.empty(0, np.uint8)
        bias = _array(asked[8], {**layouts[3], "shape": (layouts[3]["shape"][0], 1), 5: 1}) if asked[7] == 4 else None
        read = arrays[:2] if bias is None else [*arrays[:2], bias]
        assert not any(np.may_share_memory(x, arrays[3]) for x in read), "a product writes over what it reads"

        def work() -> None:
            memory[...] = 0xCD
            x, y = (np.swapaxes(z, 1, 2) if asked[way] else z for z, way in zip(arrays, (3, 4), strict=False))
            wide = scale.type if scale.kind == "c" else COMPUTES[asked["compute"]]
            x, y = (_cut(z.astype(wide)) if asked["compute"] == IN_TF32 else z.astype(wide) for z in (x, y))
            _multiply(wide, x, y, by, added, bias, *arrays[2:])

        self.machine.kernels += 1
        self.machine.do(work, *arrays, memory, *([] if bias is None else [bias]))
        return SUCCESS


def _multiply(wide: Any, x: Any, y: Any, by: float, added: float, bias: Any, addend: Any, target: Any) -> None:
    """The value of a product, in a wider dtype."""
    with np.errstate(all="ignore"):
        value = wide(by) * (x @ y)
        if added:
            value += wide(added) * addend.astype(wide)
        if bias is not None:
            value += bias.astype(wide)
        target[...] = value.astype(target.dtype)


def _fit(asked: dict[Any, Any], layouts: list[dict[Any, Any]]) -> bool:
    """Whether the sizes, dtypes and numbers of matrices go together."""
    a, b, c, d = layouts
    (rows, inner), (other, columns) = (x["shape"][::-1] if asked[way] else x["shape"] for x, way in ((a, 3), (b, 4)))
    same = c["shape"] == d["shape"] == (rows, columns) and inner == other and inner > 0
    dtype = a["dtype"]  # sums of halves may be in float32, in which they are computed
    double, is_complex = dtype in (np.float64, np.complex128), dtype.kind == "c"
    outputs = [dtype] if double or is_complex or dtype == np.float32 else [dtype, np.dtype(np.float32)]
    computed = asked["compute"] in ((70,) if double else (68, 77) if dtype == np.float32 else (68,))
    alike = all(x[5] == d[5] >= 1 and x["lead"] >= x["shape"][0] for x in layouts)
    alike = alike and b["dtype"] == dtype and c["dtype"] == d["dtype"] in outputs
    return same and alike and computed and asked["scale"] == int(double) + 4 * is_complex


def _workspace(asked: dict[Any, Any], layouts: list[dict[Any, Any]]) -> int:
    inner = layouts[0]["shape"][0 if asked[3] else 1]
    return WORKSPACE if inner > LONG else 0


def _array(address: int, layout: dict[Any, Any]) -> np.ndarray:
    """A stack of matrices, which lie column after column."""
    rows, columns = layout["shape"]
    size, steps = layout["dtype"].itemsize, (layout[6], 1, layout["lead"])
    reach = sum(step * (n - 1) for step, n in zip(steps, (layout[5], rows, columns), strict=True)) + 1
    strides = tuple(step * size for step in steps)
    return np.ndarray((layout[5], rows, columns), layout["dtype"], _bytes(address, reach * size), strides=strides)


def _bytes(address: int, size: int) -> np.ndarray:
    return np.frombuffer((ctypes.c_uint8 * size).from_address(address), np.uint8)


def _cut(x: np.ndarray) -> np.ndarray:
    """Numbers as such a device multiplies them: 10 bits of each."""
    return (x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
