"""A stand-in for CuPy, on NumPy's memory: it refuses what CuPy refuses, so that code runs on it only if it would there.

Its arrays convert to NumPy's only when asked by name, it takes none of NumPy's
beside its own, and has the functions, parameters, ufunc loops and attributes
that `cupy_namespace.json` lists, and no others. What CuPy leaves open or does
wrongly without a word is an error here: a kernel that writes over what it
reads, an index that is assigned two values, work on another device's array.
"""

from __future__ import annotations

import inspect
import json
import warnings
from collections.abc import Callable, Sequence
from functools import cache, partial
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from harness.cupy_linalg import Linalg
from harness.cupy_namespace import FILE
from harness.cupy_values import in_halves, of_last_nan, take
from harness.fake_cuda import DEFAULT, TF32, Machine, MemoryPointer, cuda_of
from optree.dtypes import bfloat16

DATA = json.loads(FILE.read_text())

#: NumPy's functions whose result is no array.
PLAIN = ("shape", "ndim", "size", "result_type", "can_cast", "may_share_memory")


def fake_cupy(devices: int = 1, memory: int = 1 << 32) -> Any:
    """A module that stands in for CuPy, on a simulated machine, which is its attribute `machine`."""
    module: Any = ModuleType("cupy")
    module.machine = Machine(devices, memory)
    module.cuda = cuda_of(module.machine)
    module._core = SimpleNamespace(
        get_compute_type=lambda dtype: module.machine.compute_type,
        set_compute_type=lambda dtype, kind: setattr(module.machine, "compute_type", kind),
        _routines_linalg=SimpleNamespace(COMPUTE_TYPE_DEFAULT=DEFAULT, COMPUTE_TYPE_TF32=TF32),
    )
    module.__version__ = f"{DATA['version']} (stand-in)"
    module.get_default_memory_pool = lambda: module.cuda.default_pool
    module.ndarray = type("ndarray", (Array,), {"module": module, "__module__": "cupy"})
    for name, loops in DATA["ufuncs"].items():
        setattr(module, name, Ufunc(module, name, **loops))
    for name, parameters in DATA["functions"].items():
        if hasattr(np, name):  # which some versions have no more
            setattr(module, name, _function(module, name, parameters))
    module.matmul = Ufunc(module, "matmul", 2, 1, [f"{c}{c}->{c}" for c in "?bBhHiIlLqQefdFD"])
    module.linalg = Linalg(partial(_call, module), Array)
    creation = Creation(module)
    for name in ("array", "asarray", "ascontiguousarray", "from_dlpack"):
        setattr(module, name, getattr(creation, name))
    return module


class Array:
    """`cupy.ndarray`; `host` is where its values are, which code under test does not know."""

    module: Any
    __array_priority__ = 100

    def __init__(
        self, shape: Any, dtype: Any = float, memptr: Any = None, strides: Any = None, *, order: str = "C"
    ) -> None:
        if strides is not None:
            there = memptr.array
            self._lie(as_strided(there.host, shape, strides), there if there.base is None else there.base)
            return
        if memptr is not None:
            there, itemsize = memptr.array, np.dtype(dtype).itemsize
            strides = itemsize * np.cumprod([1, *shape[:0:-1]])[::-1][: len(shape)]
            first = there.host.reshape(-1).view(np.uint8)[:itemsize].view(dtype)
            self._lie(as_strided(first, shape, strides), there if there.base is None else there.base, there.device.id)
            return
        self._lie(_allocated(self.module, lambda: np.empty(shape, dtype, order)))  # type: ignore[call-overload]

    @classmethod
    def over(cls, host: np.ndarray, base: Any = None, device: int | None = None) -> Any:
        """An array in memory that is there."""
        found = cls.__new__(cls)
        found._lie(host, base, device)
        return found

    def _lie(self, host: np.ndarray, base: Any = None, device: int | None = None) -> None:
        self.host, self.base = host, base
        self.device = self.module.cuda.Device(device)

    # What CuPy refuses

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. "
            "Please use `.get()` to construct a NumPy array explicitly."
        )

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        ours = getattr(self.module, ufunc.__name__, None)
        if method != "__call__" or ours is None:
            return NotImplemented
        if "out" in kwargs:
            (kwargs["out"],) = kwargs["out"]
        return ours(*inputs, **kwargs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        namespaces = {"numpy": self.module, "numpy.linalg": self.module.linalg}
        ours = getattr(namespaces.get(func.__module__), func.__name__, None)
        if ours is None:
            return NotImplemented
        if not all(issubclass(kind, self.module.ndarray | np.ndarray) for kind in types):
            return NotImplemented
        return ours(*args, **kwargs)

    # What it is

    def __getattr__(self, name: str) -> Any:
        if name not in DATA["ndarray"]:
            raise AttributeError(f"cupy.ndarray has no attribute {name!r}")
        found = getattr(self.host, name)
        if not callable(found):
            return self._view(found) if isinstance(found, np.ndarray) else found
        return lambda *args, **kwargs: _call(self.module, name, found, args, kwargs, [self])

    def _view(self, host: np.ndarray) -> Any:
        return self.over(host, self if self.base is None else self.base, self.device.id)

    @property
    def data(self) -> Any:
        return MemoryPointer(self)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        _check_device(self.module, [self])  # CuPy names the current stream, which is to be this device's
        # The device stands there for the stand-in; CUDA knows it by the address.
        return {**self.host.__array_interface__, "version": 3, "device": self.device.id}

    def __dlpack__(self, *, stream: Any = None, **kwargs: Any) -> Any:
        _check_device(self.module, [self])
        return self

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.device.id

    @property
    def real(self) -> Any:
        """The real parts, a view; assigning to it writes them."""
        return self._view(self.host.real) if self.host.dtype.kind == "c" else self

    @real.setter
    def real(self, value: Any) -> None:
        self.real[...] = value

    @property
    def imag(self) -> Any:
        """The imaginary parts, a view; of real numbers zeros."""
        is_complex = self.host.dtype.kind == "c"
        return self._view(self.host.imag) if is_complex else _new(self.module, lambda: np.zeros_like(self.host))

    @imag.setter
    def imag(self, value: Any) -> None:
        self.imag[...] = value

    def __len__(self) -> int:
        return len(self.host)

    def __repr__(self) -> str:
        return f"cupy:{self.host!r}"

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec)

    def __bool__(self) -> bool:
        return bool(self.get())

    def __float__(self) -> float:
        return float(self.get())

    def __int__(self) -> int:
        return int(self.get())

    def __deepcopy__(self, memo: Any) -> Any:
        return self.copy()

    # Values

    def get(self, stream: Any = None, order: str = "C", out: Any = None, blocking: bool = True) -> np.ndarray:
        self.module.machine.to_host += 1
        if out is None:
            out = np.empty_like(self.host, order=order)  # type: ignore[call-overload]
        assert blocking or isinstance(out.base, bytearray), "a copy into pageable memory is waited for"
        out[...] = self.host
        return out

    def set(self, arr: Any, stream: Any = None) -> None:
        assert stream is not None and isinstance(arr.base, bytearray), "a copy from pageable memory is waited for"
        self.host[...] = arr

    def item(self) -> Any:
        return self.get().item()

    def copy(self, order: str = "C") -> Any:
        _check_device(self.module, [self])
        return _new(self.module, lambda: self.host.copy(order=order))  # type: ignore[arg-type]

    def astype(self, dtype: Any, order: str = "K", casting: Any = None, subok: Any = None, copy: bool = True) -> Any:
        if not copy and self.host.dtype == dtype:
            return self
        _check_device(self.module, [self])
        return _new(self.module, lambda: self.host.astype(dtype, order=order))  # type: ignore[call-overload]

    def __getitem__(self, index: Any) -> Any:
        host_index = _index(self, index)
        if any(x.dtype == bool for x in host_index if isinstance(x, np.ndarray)):  # how many has to be known
            self.module.machine.to_host += 1
        found = self.host[host_index]
        if isinstance(found, np.ndarray) and (np.may_share_memory(found, self.host) or not found.size):
            return self._view(found)
        if not _has_arrays(host_index):  # one element, a view of no dimensions
            return self._view(self.host[(*host_index, ...)])
        _check_device(self.module, [self])
        return _new(self.module, lambda: np.asarray(found))

    def __setitem__(self, index: Any, value: Any) -> None:
        host_index = _index(self, index)
        if isinstance(value, np.ndarray) and value.ndim:
            raise ValueError("non-scalar numpy.ndarray cannot be used for fill")
        _check_device(self.module, [self, value])
        if isinstance(value, Array):
            if not _has_arrays(host_index):
                _check_overlap(self.host[(*host_index, *[...] * (... not in host_index))], [value.host])
            value = value.host
        if _has_arrays(host_index):
            _check_single(self.host, host_index, value)
        with np.errstate(all="ignore"):
            self.host[host_index] = value

    __hash__ = None  # type: ignore[assignment]


def _operator(name: str, swapped: bool, in_place: bool) -> Callable[..., Any]:
    def method(self: Any, *others: Any) -> Any:
        operands = (*others, self) if swapped else (self, *others)
        if in_place:
            return getattr(self.module, name)(*operands, out=self)
        return getattr(self.module, name)(*operands)

    return method


for _python, _ufunc in {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "truediv": "true_divide",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "pow": "power",
    "matmul": "matmul",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "lshift": "left_shift",
    "rshift": "right_shift",
}.items():
    setattr(Array, f"__{_python}__", _operator(_ufunc, swapped=False, in_place=False))
    setattr(Array, f"__r{_python}__", _operator(_ufunc, swapped=True, in_place=False))
    if _python != "matmul":
        setattr(Array, f"__i{_python}__", _operator(_ufunc, swapped=False, in_place=True))
for _python, _ufunc in {
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
    "eq": "equal",
    "ne": "not_equal",
    "neg": "negative",
    "abs": "absolute",
    "invert": "invert",
}.items():
    setattr(Array, f"__{_python}__", _operator(_ufunc, swapped=False, in_place=False))


class Ufunc:
    """A ufunc with CuPy's loops: the first that takes the operands, whatever NumPy would choose."""

    def __init__(self, module: Any, name: str, nin: int, nout: int, types: Sequence[str]) -> None:
        self.module, self.name, self.nin = module, name, nin
        self.loops: list[Any] = [tuple(entry.split("->")) for entry in types]
        if name == "matmul":  # computed in float32 and rounded
            self.loops.insert(-4, ((bfloat16(), bfloat16()), bfloat16()))

    def __call__(self, *args: Any, out: Any = None, dtype: Any = None, casting: str = "same_kind") -> Any:
        if len(args) != self.nin:
            raise TypeError(f"{self.name}: wrong number of arguments")
        for x in args:
            if not isinstance(x, Array | np.generic | bool | int | float | complex):
                raise TypeError(f"Unsupported type {type(x)}")
        _check_device(self.module, [*args, out])
        hosts = [x.host if isinstance(x, Array) else x for x in args]
        inputs, output = self._loop(hosts)
        fast = self.name == "matmul" and output == "f" and self.module.machine.compute_type == TF32
        if out is not None and not np.can_cast(output, out.dtype, "same_kind"):
            raise TypeError(f"{self.name}: output of {output} does not go into {out.dtype}")

        def computed() -> Any:
            operands = [np.asarray(x).astype(c, copy=False) for x, c in zip(hosts, inputs, strict=True)]
            if self.name == "power" and inputs[1] in {*"bhilq"}:  # CuPy takes any exponent without a word
                operands[1] = np.maximum(operands[1], 0)
            if fast:  # as the multipliers of such a device: 10 bits of each number
                operands = [(x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) for x in operands]
            return getattr(np, self.name)(*operands)

        def compute() -> np.ndarray:
            return np.asarray(computed()).astype(output)

        if isinstance(output, str) and len(output) > 1:  # of several outputs
            return tuple(
                _new(self.module, lambda i=i, c=c: np.asarray(computed()[i], c))  # type: ignore[misc]
                for i, c in enumerate(output)
            )
        if out is None:
            return _new(self.module, compute)
        with np.errstate(all="ignore"):
            found = compute()
        if out.shape != found.shape:
            raise ValueError(f"{self.name}: the output has shape {out.shape}, and the value {found.shape}")
        _check_overlap(out.host, [x for x in hosts if isinstance(x, np.ndarray)])
        out.host[...] = found
        return out

    def _loop(self, hosts: Sequence[Any]) -> Any:
        strong = [x.dtype for x in hosts if hasattr(x, "dtype")]
        common = np.result_type(*(x.dtype if hasattr(x, "dtype") else x for x in hosts)) if strong else None
        dtypes = [x.dtype if hasattr(x, "dtype") else common or np.asarray(x).dtype for x in hosts]
        for inputs, output in self.loops:
            if all(np.can_cast(d, c, "safe") for d, c in zip(dtypes, inputs, strict=True)):
                return inputs, output
        raise TypeError(f"Wrong type ({dtypes}) of arguments for cupy_{self.name}")


class Creation:
    """The functions that take NumPy's arrays."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def array(self, obj: Any, dtype: Any = None, copy: bool = True, order: str = "K", blocking: bool = False) -> Any:
        if isinstance(obj, Array):
            dtype = obj.dtype if dtype is None else dtype
            is_ordered = order != "C" or obj.host.flags.c_contiguous
            if not copy and obj.dtype == dtype and is_ordered:
                return obj
            return _new(self.module, lambda: obj.host.astype(dtype, order=order))  # type: ignore[call-overload]
        if hasattr(obj, "__cuda_array_interface__"):
            interface = obj.__cuda_array_interface__
            host = np.asarray(SimpleNamespace(__array_interface__=interface))
            return self.array(self.module.ndarray.over(host, obj, interface.get("device")), dtype, copy, order)
        self.module.machine.to_device += isinstance(obj, np.ndarray)
        return _new(self.module, lambda: np.array(obj, dtype, order=order))  # type: ignore[call-overload]

    def asarray(self, a: Any, dtype: Any = None, order: Any = None, *, copy: Any = None, blocking: bool = False) -> Any:
        return self.array(a, dtype, copy=False, order=order or "K")

    def ascontiguousarray(self, a: Any, dtype: Any = None) -> Any:
        return self.array(a, dtype, copy=False, order="C")

    def from_dlpack(self, array: Any, *, device: Any = None, copy: Any = None) -> Any:
        return array.__dlpack__(stream=self.module.machine.stream.ptr or 1)


def _function(module: Any, name: str, parameters: Any) -> Callable[..., Any]:
    """CuPy's function of a name: it has its parameters, and does what NumPy's does."""
    theirs = getattr(np, name)

    def function(*args: Any, **kwargs: Any) -> Any:
        if parameters is not None:
            _check_call(name, len(args), tuple(kwargs))
        if name == "where" and not isinstance(args[0], Array):
            raise AttributeError(f"{type(args[0]).__name__!r} object has no attribute 'astype'")
        if name.endswith("_like") and not kwargs.get("shape"):
            kwargs.pop("shape", None)  # CuPy takes a shape of () for none
        return _call(module, name, theirs, args, kwargs, _arrays_in((args, kwargs)))

    return function


@cache
def _check_call(name: str, count: int, keywords: tuple[str, ...]) -> None:
    """Raise a TypeError for arguments that CuPy's function does not take: so many, and those of these names."""
    kinds = {kind.value: kind for kind in type(inspect.Parameter.KEYWORD_ONLY)}
    parameters = [
        inspect.Parameter(n, kinds[kind], default=None if has_default else inspect.Parameter.empty)
        for n, kind, has_default in DATA["functions"][name]
    ]
    inspect.Signature(parameters).bind(*[None] * count, **dict.fromkeys(keywords))


def _call(module: Any, name: str, function: Any, args: Any, kwargs: Any, arrays: Sequence[Any]) -> Any:
    """A function of NumPy's on arrays of ours, its value one of ours."""
    if name == "take":
        function = partial(take, function.__self__) if hasattr(function, "__self__") else take
    if name in ("argmax", "argmin") and arrays[0].dtype.kind == "f":  # CuPy finds any of several nans
        function = of_last_nan(function)
    if name in ("sum", "mean") and arrays[0].dtype.kind == "f":  # CuPy adds up by halves, over every axis
        function = in_halves(function, kwargs.get("dtype") or arrays[0].dtype)
        kwargs = {key: value for key, value in kwargs.items() if key != "dtype"}
    out = kwargs.get("out")
    if out is not None:
        _check_overlap(out.host, [x.host for x in arrays if x is not out])

    def compute() -> Any:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of the mean of nothing
            return function(*_hosts(args), **{key: _hosts(value) for key, value in kwargs.items()})

    if out is not None:
        compute()
        return out
    found = compute()
    return found if name in PLAIN else _wrapped(module, found, arrays)


def _wrapped(module: Any, found: Any, arrays: Sequence[Any]) -> Any:
    if isinstance(found, list | tuple):
        return [_wrapped(module, x, arrays) for x in found]
    if not isinstance(found, np.ndarray | np.generic):
        return found
    for x in arrays:
        if isinstance(found, np.ndarray) and np.may_share_memory(found, x.host):
            if x.host.flags.writeable:  # of CuPy's arrays none is read-only, nor one that is broadcast
                found.setflags(write=True)
            return x if found is x.host else x._view(found)
    _check_device(module, arrays)
    return _new(module, lambda: np.asarray(found))


def _new(module: Any, compute: Callable[[], np.ndarray]) -> Any:
    """An array on the current device, in memory of its own."""
    return module.ndarray.over(_allocated(module, compute))


def _allocated(module: Any, compute: Callable[[], np.ndarray]) -> np.ndarray:
    """Where such an array's values are."""
    with np.errstate(all="ignore"):
        host = compute()
    if host.base is not None or not host.flags.owndata:
        host = host.copy(order="K")
    module.machine.allocate(host)
    module.machine.kernels += 1
    return host


def _hosts(value: Any) -> Any:
    """A value with the memory of our arrays in their places; NumPy's arrays are refused, as CuPy refuses them."""
    if isinstance(value, Array):
        return value.host
    if isinstance(value, np.ndarray):
        raise TypeError(f"Unsupported type {type(value)}")
    if isinstance(value, list | tuple):
        return type(value)(_hosts(x) for x in value)
    return value


def _arrays_in(value: Any) -> list[Any]:
    if isinstance(value, Array):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [x for part in parts for x in _arrays_in(part)]


def _check_device(module: Any, values: Sequence[Any]) -> None:
    for x in values:
        if isinstance(x, Array) and x.device.id != module.machine.device:
            raise ValueError(
                "Array device must be same as the current device: "
                f"array device = {x.device.id} while current = {module.machine.device}"
            )


def _check_overlap(target: Any, operands: Sequence[np.ndarray]) -> None:
    """A kernel reads and writes in no order: what it writes it may read at the same place alone."""
    for x in operands:
        same = target.shape == x.shape and target.strides == x.strides and target.ctypes.data == x.ctypes.data
        assert same or not np.shares_memory(target, x), "a kernel writes over what it reads"


def _index(array: Array, index: Any) -> Any:
    """An index in NumPy's terms; CuPy wraps what is out of range."""
    entries = index if isinstance(index, tuple) else (index,)
    found: list[Any] = []
    axis = 0
    for i, entry in enumerate(entries):
        if isinstance(entry, np.ndarray | list):
            raise TypeError(f"Unsupported type {type(entry)}")
        if entry is Ellipsis:
            axis = array.host.ndim - sum(1 for e in entries[i + 1 :] if e is not None)
        elif isinstance(entry, Array):
            host = entry.host
            if host.dtype.kind == "b":
                axis += host.ndim - 1
            else:
                host = host % array.host.shape[axis] if array.host.shape[axis] else host
            entry = host
        axis += entry is not None and entry is not Ellipsis
        found.append(entry)
    return tuple(found)


def _has_arrays(index: Any) -> bool:
    return any(isinstance(entry, np.ndarray) for entry in index)


def _check_single(array: np.ndarray, index: Any, value: Any) -> None:
    places = np.arange(array.size).reshape(array.shape)[index]
    values = np.broadcast_to(value, places.shape)
    for place in np.unique(places) if np.unique(places).size < places.size else ():
        here = values[places == place]
        same = (here == here[0]) | (here != here)
        assert same.all(), "which value stays is open where an element is assigned several"
