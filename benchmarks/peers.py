"""The libraries that workloads are run by, each at its best setting.

op-tree, JAX, torch and PyTensor run the workload's `formula`. NumPy, numexpr and Numba each run a method of the
workload.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from scipy import special
from workloads import Workload

import optree
from backends import gen_backend
from optree.dtypes import is_bfloat16

#: The timed call, which computes all results and waits for them, and a function that returns them.
Way = tuple[Callable[[], Any], Callable[[], Sequence[Any]]]

#: The number of elements from which Numba uses threads; below it one thread is quicker.
PARALLEL = 1 << 15

#: Numba's fastmath flags without those that assume that there are no NaNs and infinities.
FASTMATH = {"reassoc", "contract", "nsz"}

#: The functions of one operand that have the same name in all libraries.
PLAIN = ("exp", "log", "log1p", "sin", "sqrt", "tanh")


def names_of(module: Any, **others: Any) -> SimpleNamespace:
    """The argument `m` of formulas: a library's functions. A sum or mean along an axis keeps it; of all, it is 0-d."""

    def reduction(name: str) -> Callable[..., Any]:
        function = getattr(module, name)
        return lambda x, axis=None: function(x, axis=axis, keepdims=axis is not None)

    plain = {name: getattr(module, name) for name in PLAIN}
    return SimpleNamespace(**plain, sum=reduction("sum"), mean=reduction("mean"), **others)


class Peer:
    """A library. The constructor raises `ImportError` if it is not installed.

    Attributes
    ----------
    name : str
        Its column.
    module : str
        The module's name, if that is another.
    refusals : tuple of type
        The exceptions that it raises where it cannot do a workload.
    """

    name = module = ""
    refusals: tuple[type[Exception], ...] = ()

    def __init__(self) -> None:
        self.library: Any = importlib.import_module(self.module or self.name)
        self.version: str = self.library.__version__

    def way(self, workload: Workload, shapes: list[tuple[int, ...]]) -> Way:
        """A way to compute the workload into results of these shapes."""
        raise NotImplementedError


class NumPy(Peer):
    """NumPy: calls with `out=` and preallocated buffers; derivatives by hand."""

    name = "numpy"

    def way(self, workload: Workload, shapes: list[tuple[int, ...]]) -> Way:
        return workload.numpy(SimpleNamespace(**vars(np), erf=special.erf), *workload.copies())


class Optree(Peer):
    """op-tree: one function with updates, under ``jit=True``."""

    name = "optree"
    home = "cpu"

    def __init__(self) -> None:
        self.backend = be = gen_backend(self.home, jit=True)
        self.version = be.info()
        self.names = names_of(
            be,
            erf=be.erf,
            relu=be.relu,
            softmax=be.softmax,
            log_softmax=be.log_softmax,
            value_and_grad=lambda f, xs: ((value := f(xs)), optree.grad(value, list(xs))),
        )

    def way(self, workload: Workload, shapes: list[tuple[int, ...]]) -> Way:
        be = self.backend
        operands = [be.array(x, dtype=x.dtype) for x in workload.arrays]
        values = workload.formula(self.names, *operands)
        outs = operands[: workload.in_place] or [be.empty(x.shape, dtype=workload.dtype) for x in values]
        step = optree.function([], updates=dict(zip(outs, values, strict=True)))
        return step, lambda: [out.get() for out in outs]


class Numexpr(Peer):
    """numexpr: an expression parsed once, written to existing memory."""

    name = "numexpr"

    def way(self, workload: Workload, shapes: list[tuple[int, ...]]) -> Way:
        text, names = workload.numexpr(*workload.arrays)
        if not workload.numexpr_writes:
            return lambda: self.library.evaluate(text, names), lambda: [self.library.evaluate(text, names)]
        (out,) = (np.empty(shape, workload.dtype) for shape in shapes)
        return lambda: self.library.evaluate(text, names, out=out), lambda: [out]


class Numba(Peer):
    """Numba: loops by hand, over threads where they pay; sums in any order, NaN and infinities kept as they are."""

    name = "numba"

    def __init__(self) -> None:
        super().__init__()
        self.loops: dict[Any, Any] = {}

    def way(self, workload: Workload, shapes: list[tuple[int, ...]]) -> Way:
        parallel = workload.elements >= PARALLEL
        key = type(workload), workload.dtype, parallel
        if key not in self.loops:
            loop = workload.numba(self.library.prange, workload.dtype.type)
            self.loops[key] = self.library.njit(loop, parallel=parallel, fastmath=FASTMATH)
        loop, operands = self.loops[key], workload.copies()
        outs = [] if workload.in_place else [np.empty(shape, workload.dtype) for shape in shapes]
        return lambda: loop(*operands, *outs), lambda: outs or operands[: workload.in_place]


class Jax(Peer):
    """``jax.jit``; the buffers of the previous results are donated."""

    name = "jax"

    def __init__(self) -> None:
        super().__init__()
        self.library.config.update("jax_enable_x64", True)
        nn = self.library.nn
        self.names = names_of(
            self.library.numpy,
            erf=self.library.scipy.special.erf,
            relu=nn.relu,
            softmax=nn.softmax,
            log_softmax=nn.log_softmax,
            value_and_grad=lambda f, xs: self.library.value_and_grad(f)(xs),
        )

    def way(self, workload: Workload, shapes: list[tuple[int, ...]]) -> Way:
        jax, count = self.library, workload.in_place
        operands = [jax.numpy.array(x) for x in workload.arrays]
        kept = operands[:count] or [jax.numpy.zeros(shape, workload.dtype) for shape in shapes]
        rest = operands[count:]
        del operands

        def formula(kept: list[Any], rest: list[Any]) -> list[Any]:
            return list(workload.formula(self.names, *(kept if count else []), *rest))

        compiled = jax.jit(formula, donate_argnums=0, keep_unused=True)
        return self.run_of(compiled, kept, rest), lambda: [np.asarray(x) for x in kept]

    def run_of(self, compiled: Any, kept: list[Any], rest: list[Any]) -> Callable[[], None]:
        """The timed call: each result replaces the previous one."""

        def run() -> None:
            kept[:] = self.library.block_until_ready(compiled(list(kept), rest))

        return run


class Torch(Peer):
    """``torch.compile`` with static sizes; it fuses the copy of the results to existing memory."""

    name = "torch"
    device = "cpu"

    def __init__(self) -> None:
        super().__init__()
        torch = self.library
        torch.set_grad_enabled(False)
        self.names = names_of(
            torch,
            erf=torch.erf,
            relu=torch.relu,
            softmax=torch.softmax,
            log_softmax=torch.log_softmax,
            value_and_grad=lambda f, xs: torch.func.grad_and_value(f)(xs)[::-1],
        )

    def way(self, workload: Workload, shapes: list[tuple[int, ...]]) -> Way:
        operands = [self.tensor(x) for x in workload.copies()]
        outs = operands[: workload.in_place] or [self.tensor(np.empty(shape, workload.dtype)) for shape in shapes]

        def step(outs: list[Any], operands: list[Any]) -> None:
            for out, value in zip(outs, workload.formula(self.names, *operands), strict=True):
                out.copy_(value)

        return self.run_of(step, outs, operands), lambda: [self.on_host(out) for out in outs]

    def tensor(self, array: np.ndarray) -> Any:
        """An array as a tensor on the device."""
        if is_bfloat16(array.dtype):  # torch accepts no bfloat16 from NumPy
            return self.library.from_numpy(array.view(np.int16)).view(self.library.bfloat16).to(self.device)
        return self.library.from_numpy(array).to(self.device)

    def on_host(self, tensor: Any) -> np.ndarray:
        """A tensor's values as NumPy's."""
        return (tensor.float() if tensor.dtype is self.library.bfloat16 else tensor).cpu().numpy()

    def run_of(self, step: Callable[..., None], outs: list[Any], operands: list[Any]) -> Callable[[], Any]:
        """The timed call: a step that writes results."""
        self.library._dynamo.reset()  # else it treats the rows as new sizes of one function, and stops compiling
        compiled = self.library.compile(step, dynamic=False)
        return lambda: compiled(outs, operands)


class Pytensor(Peer):
    """PyTensor: a function with updates of shared variables, in C and with OpenMP."""

    name = "pytensor"

    def __init__(self) -> None:
        super().__init__()
        warnings.filterwarnings("ignore", "PyTensor could not link to a BLAS")  # nothing here needs one
        tensor = importlib.import_module("pytensor.tensor")
        special = importlib.import_module("pytensor.tensor.special")

        def value_and_grad(f: Any, xs: Any) -> Any:
            value = f(xs)
            return value, tensor.grad(value, list(xs))

        self.names = names_of(
            tensor,
            erf=tensor.erf,
            relu=lambda x: tensor.maximum(x, 0),
            softmax=special.softmax,
            log_softmax=special.log_softmax,
            value_and_grad=value_and_grad,
        )

    def way(self, workload: Workload, shapes: list[tuple[int, ...]]) -> Way:
        def shared(array: np.ndarray) -> Any:  # an axis of 1 is broadcast only where its type says so
            return self.library.shared(array, borrow=True, shape=tuple(1 if n == 1 else None for n in array.shape))

        with self.library.config.change_flags(floatX=str(workload.dtype), openmp=True):
            operands = [shared(x) for x in workload.copies()]
            outs = operands[: workload.in_place] or [shared(np.zeros(shape, workload.dtype)) for shape in shapes]
            values = workload.formula(self.names, *operands)
            run = self.library.function([], [], updates=list(zip(outs, values, strict=True)), mode="CVM")
        return run, lambda: [out.get_value(borrow=True) for out in outs]


#: In the order of the columns.
PEERS = (NumPy, Optree, Numexpr, Numba, Jax, Torch, Pytensor)
