"""Every op that has a kernel expression, on each dtype that it computes in, with operands and what they are to give."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

import numpy as np

import optree.ops  # noqa: F401
from backends.cpu.codegen.printer import C
from backends.execution.printer_common import packed, unpacked
from optree.dtypes import finfo, in_float32, is_complex, is_floating, real_dtype
from optree.op.examples import examples_in
from optree.op.traits import kernel_of
from optree.registry import OPS
from optree.tree.types import TensorType, as_dtype

#: Ops whose value the C library and NumPy may round differently, and by how many units in the last place at most.
ROUNDED = """exp exp2 expm1 log log2 log10 log1p sin cos tan arcsin arccos arctan sinh cosh tanh arcsinh arccosh
    arctanh arctan2 hypot pow half_power cbrt sig sig2 sech2 tanh2 safelog erf logaddexp"""
ULPS = {**dict.fromkeys(ROUNDED.split(), 4), "sech2": 6}  # which rounds exp, a sum, a product and a quotient

#: Ops that may give either zero where 0.0 and -0.0 tie: NumPy's own answer depends on the processor.
EITHER_ZERO = {"maximum", "minimum", "relu"}


class Case(NamedTuple):
    """An op with the dtypes that its operands are computed in, and that of its value."""

    op: Any
    operands: tuple[np.dtype, ...]
    result: np.dtype
    expression: str

    def __str__(self) -> str:
        props = [str(value).replace("-", "minus") for value in self.op.props.values()]
        return "_".join([self.op.name, *props, *map(str, dict.fromkeys(self.operands))])

    def source(self) -> str:
        """The C function that applies the expression to arrays."""
        names = [f"x{i}" for i in range(len(self.operands))]
        arrays = "".join(f"const {C.types[str(dtype)]} *a{i}, " for i, dtype in enumerate(self.operands))
        loads = "".join(
            f"        const {C.type_of(dtype)} x{i} = {unpacked(f'a{i}[i]', dtype)};\n"
            for i, dtype in enumerate(self.operands)
        )
        uses = "".join(f"        (void){x};\n" for x in names)
        made = C.converted(f"({self.expression.format(*names)})", self.result)
        return (
            f"void {self}({arrays}{C.types[str(self.result)]} *out, int64_t n) {{\n"
            f"    typedef {C.type_of(self.result)} T;\n    for (int64_t i = 0; i < n; i++) {{\n{loads}{uses}"
            f"        out[i] = {packed(made, self.result)};\n    }}\n}}\n"
        )


def _cases() -> Iterator[Case]:
    for cls in OPS.values():
        if cls.kernel is None or not cls.__module__.startswith("optree."):
            continue
        count = len(cls.operands)
        rows = [(as_dtype(name),) * count for name in C.types]
        if count == 2:
            rows += [tuple(map(np.dtype, row)) for row in (("int64", "uint64"), ("uint64", "int64"))]
        seen = set()
        for props, dtypes in product(_props(cls), rows):
            case = _case(cls.make(**props), dtypes)
            if case is not None and str(case) not in seen:
                seen.add(str(case))
                yield case


def _props(cls: Any) -> list[dict[str, Any]]:
    """The parameters that an op is tried with: those of its examples."""
    found = {str(props): props for _, props in examples_in(cls).cases} if cls.prop_names() else {}
    return list(found.values()) or [{}]


def _case(op: Any, dtypes: tuple[np.dtype, ...]) -> Case | None:
    """The case of an op on operands of these dtypes; None where it has no value or no kernel for them."""
    bound = op.bind([TensorType(dtype, ()) for dtype in dtypes], None)
    try:
        *operands, result = bound.resolve_dtypes(*dtypes)
    except TypeError:
        return None
    expression = kernel_of(bound, operands)
    if expression is None or "philox_" in expression:  # which a draw's tests compile with its functions
        return None
    if any(str(dtype) not in C.types for dtype in (*operands, result)):
        return None
    return Case(bound, tuple(operands), result, expression)


def special_values(dtype: np.dtype) -> np.ndarray:
    """Values at which functions have been wrong."""
    if dtype.kind == "b":
        return np.array([False, True])
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        near = [limits.min, limits.min + 1, limits.max - 1, limits.max, 0, 1, 2, 3, 5, 7, 10, 100]
        return np.array(near + ([-1, -2, -3, -7, -10, -100] if dtype.kind == "i" else []), dtype)
    info = finfo(dtype)
    sizes = [0.0, info.smallest_subnormal, 3 * info.smallest_subnormal, info.tiny, 1e-22, info.eps]
    sizes += [0.25, 0.46875, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 4.5, 6.0, 10.0, 88.0, 95.0, 104.0, 710.0, 735.0, 746.0]
    sizes += [2.0**22 + 0.5, 2.0**31, 2.0**53, info.max, np.inf]
    with np.errstate(over="ignore"):
        return np.array([*sizes, *(-size for size in sizes), np.nan], dtype)


def random_values(dtype: np.dtype, count: int, rng: np.random.Generator) -> np.ndarray:
    """Half of the values near zero, half over the whole range."""
    if dtype.kind == "b":
        return rng.integers(0, 2, count).astype(bool)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        small = rng.integers(max(limits.min, -20), 20, count, dtype, endpoint=True)
        return np.where(rng.random(count) < 0.5, small, rng.integers(limits.min, limits.max, count, dtype, True))
    wide = rng.standard_normal(count) * 10.0 ** rng.uniform(-8, 8, count)
    with np.errstate(over="ignore"):
        return np.where(rng.random(count) < 0.5, rng.standard_normal(count) * 3, wide).astype(dtype)


def operands_for(case: Case) -> list[np.ndarray]:
    """Operands of one length: each special value with each, random ones, and equal ones."""
    rng = np.random.default_rng(7)
    specials = [special_values(dtype) for dtype in case.operands]
    if len(specials) > 2:  # a choice: every pairing is more than is needed
        specials = [rng.choice(values, 400) for values in specials]
    else:
        specials = [grid.ravel() for grid in np.meshgrid(*specials, indexing="ij")]
    drawn = [random_values(dtype, 500, rng) for dtype in case.operands]
    with np.errstate(all="ignore"):
        equal = [drawn[0].astype(dtype) for dtype in case.operands]
    columns = zip(specials, drawn, equal, strict=True)
    arrays = [np.ascontiguousarray(np.concatenate(parts)) for parts in columns]
    keep = _is_defined(case, arrays)
    return [array[keep] for array in arrays]


def _is_defined(case: Case, arrays: list[np.ndarray]) -> np.ndarray:
    """Where it is said what the value is: a float cast to an integer dtype must fit it, or be a negative that wraps."""
    if case.op.name != "cast" or not is_floating(case.operands[0]) or case.result.kind not in "iu":
        return np.ones(arrays[0].shape, bool)
    limits = np.iinfo(case.result)
    whole, least = np.trunc(arrays[0].astype(np.float64)), float(limits.min)
    if case.result.kind == "u" and platform.machine().lower() in ("x86_64", "amd64"):
        least = -(2.0 ** (63 if case.result.itemsize == 8 else 31))  # beyond which NumPy's own depend on the length
    return (whole >= least) & (whole < float(limits.max))


def ulps_between(got: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The distance in units in the last place; 0 for two nans, inf for a nan or inf that only one has."""
    with np.errstate(all="ignore"):
        unit = np.spacing(np.maximum(np.abs(got), np.abs(wanted)))
        distance = np.abs(got - wanted) / unit
    same = (got == wanted) | (np.isnan(got) & np.isnan(wanted))
    distance = np.where(np.isfinite(got) & np.isfinite(wanted), distance, np.inf)
    return np.where(same, 0.0, distance)


def _numpy_value(case: Case, arrays: list[np.ndarray]) -> np.ndarray:
    if case.op.name == "fill_like":  # it takes one value for all elements, and here each is tried
        return arrays[1]
    with np.errstate(all="ignore"):
        return np.asarray(in_float32(case.op, case.result)(*arrays))


def compare(case: Case, arrays: list[np.ndarray], got: np.ndarray) -> None:
    """Raise unless this is the op's NumPy value."""
    wanted = _numpy_value(case, arrays)
    assert wanted.dtype == case.result
    if is_complex(case.result):
        parts = [np.ascontiguousarray(x).view(real_dtype(case.result)) for x in (got, wanted)]
        wrong = (ulps_between(*parts) > 0).reshape(-1, 2).any(axis=1)
    elif is_floating(case.result):
        wrong = ulps_between(got, wanted) > ULPS.get(case.op.name, 0)
        if case.op.name not in EITHER_ZERO:
            wrong |= (got == 0) & (wanted == 0) & (np.signbit(got) != np.signbit(wanted))
    else:
        wrong = got != wanted
    places = np.flatnonzero(wrong)[:5]
    shown = [f"{tuple(a[i] for a in arrays)}: kernel {got[i]!r}, NumPy {wanted[i]!r}" for i in places]
    assert not shown, f"{case.op.name}: `{case.expression}` differs at " + "; ".join(shown)


CASES = list(_cases())
