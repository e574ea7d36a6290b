"""Where trees run: `gen_backend` makes a backend."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from backends import (
    intact,  # noqa: F401 the first: what follows fails where optree is another package
    lazy,
)
from backends.backend import Backend
from backends.cpu import CPUBackend
from optree import settings
from optree.compile.program import Program
from optree.errors import BackendError, OperandError, describe, names
from optree.run.function import Function, use_backend
from optree.tree.variable import Variable

if TYPE_CHECKING:
    from backends.gpu.launch_config import Launch

#: From each backend's name to its class, or what gives it.
BACKENDS: dict[str, Callable[[], type[Backend]]] = {"cpu": lambda: CPUBackend, "gpu": lambda: lazy.gpu.GPUBackend}


def gen_backend(
    backend: str = "cpu",
    rng_seed: int | None = None,
    datatype: Any = np.float32,
    batch_size: int = 0,
    stochastic_round: bool | int = False,
    device_id: int = 0,
    compat_mode: str | None = None,
    **options: Any,
) -> Backend:
    """A new backend. Those made before stay usable; functions without tensors run on the last.

    Parameters
    ----------
    backend : str
        ``'cpu'`` or ``'gpu'``.
    rng_seed : int, optional
        Makes its random numbers the same in every run.
    datatype : dtype
        The floating dtype of new tensors that are given none.
    batch_size : int
        The last axis of buffers from `Backend.iobuf`.
    stochastic_round : bool
        Whether values assigned to float16 and bfloat16 tensors are rounded up or down by chance.
    device_id : int
        Which GPU; the CPU backend has one device, 0.
    compat_mode : str, optional
        ``'neon'`` for neon's shapes (at least 2-D, columns), reductions (axes
        are kept) and gradients of ties (each in full).
    jit : {'auto', True, False}
        Whether the CPU backend runs fused kernels compiled to C: ``'auto'``, by default, where they pay
        (`backends.cpu.plan`), always, or never: then NumPy runs them, large ones in blocks, as without a compiler.
        Whether the GPU backend runs fused kernels at all: True, by default, or False.
    allocator : {'pool', 'async'}
        Where the GPU backend's memory comes from: CuPy's pool, by default, or CUDA's stream-ordered allocator.
    launcher : {'cupy', 'pycuda'}
        What launches the GPU backend's kernels; CuPy by default.
    graphs : bool
        Whether the GPU backend captures functions as CUDA graphs; True by default.
    tf32 : bool
        Whether the GPU backend multiplies float32 in TensorFloat-32, of 10 bits; False, whatever ``CUPY_TF32`` says.

    Raises
    ------
    BackendError, SettingError
        If there is no such backend, mode or option, an OPTREE_ variable is wrong, or a compiler, say, is missing.

    Examples
    --------
    >>> be = gen_backend("cpu", rng_seed=0)
    >>> (be.ones(3) + 1).asnumpyarray()
    array([2., 2., 2.], dtype=float32)
    """
    if not isinstance(backend, str) or backend not in BACKENDS:
        raise BackendError(f"there is no backend {backend!r}; there are {names(BACKENDS)}")
    make = BACKENDS[backend]()
    _check_given(backend, make, options)
    made = make(rng_seed, datatype, batch_size, stochastic_round, device_id, compat_mode, **options)
    use_backend(made)
    return made


def _check_given(backend: str, make: Callable[..., Backend], options: Mapping[str, Any]) -> None:
    """Refuse options that the backend does not have, and variables of the environment that are wrong."""
    kinds = inspect.signature(make).parameters.values()
    known = [parameter.name for parameter in kinds if parameter.kind is parameter.KEYWORD_ONLY]
    for name in options.keys() - set(known):
        raise BackendError(f"the backend {backend!r} has no option {name!r}; it has {names(known)}")
    settings.read()


def source(what: Variable | Function, target: str = "c", arch: str = "sm_90") -> list[str]:
    """The source of the kernels that a tree or a function runs as where it is compiled, one for each kernel.

    Nothing is compiled or run, and no compiler, CuPy or GPU is needed. What calls
    of NumPy or CuPy do has no source, and arrays in another layout than C order can have another.

    Parameters
    ----------
    what : Variable or Function
        Sizes that it does not know count as 64.
    target : str
        The language: ``'c'`` or ``'cuda'``.
    arch : str
        For CUDA, which lays kernels out by sizes and the device's limits, the
        architecture of a GPU, of which a usual card stands for all:
        ``'sm_75'``, ``'sm_80'``, ``'sm_89'``, ``'sm_90'`` or ``'sm_100'``.

    Raises
    ------
    BackendError
        If there is no such target or architecture.

    Examples
    --------
    >>> be = gen_backend("cpu")
    >>> (kernel,) = source(be.exp(be.ones(9)) * 2)
    >>> [line.strip() for line in kernel.splitlines() if "exp(v" in line]
    ['const float v2 = (float)(exp(v0));']
    """
    return lazy.inspection.sources(_program("source", what), target, arch)


def launches(what: Variable | Function, target: str = "cuda", arch: str = "sm_90") -> list[Launch]:
    """The launches of the kernels that a tree or a function runs as on a GPU, in order.

    Nothing is compiled or run, and no CuPy or GPU is needed.

    Parameters
    ----------
    what : Variable or Function
        Sizes that it does not know count as 64.
    target : str
        ``'cuda'``.
    arch : str
        As `source` takes it.

    Returns
    -------
    list of Launch
        Each has a ``name``, a ``grid`` of blocks along x and y, the threads of a
        ``block``, and the bytes of dynamic ``shared`` memory of one. A kernel whose
        rows are shared out to several blocks is launched once for each walk of a row.

    Raises
    ------
    BackendError
        If there is no such architecture, or the target is another.

    Examples
    --------
    >>> be = gen_backend("cpu")
    >>> launches(be.softmax(be.ones((512, 1000)), axis=1))
    [Launch(name='kernel', grid=(128, 1), block=128, shared=16128)]
    """
    return lazy.inspection.launched(_program("launches", what), target, arch)


def _program(asked: str, what: Variable | Function) -> Program:
    """The program of a tree or a function."""
    if isinstance(what, Function):
        return what.program
    if not isinstance(what, Variable):
        raise OperandError(f"{asked}: a tree or a function is wanted, not {describe(what)}")
    return Backend.program([what])


__all__ = ["BACKENDS", "Backend", "gen_backend", "launches", "source"]
