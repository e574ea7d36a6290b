"""Where trees run: `gen_backend` makes a backend."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from backends.backend import Backend
from backends.cpu import CPUBackend
from backends.gpu import GPUBackend
from backends.kernels.source import sources
from optree.errors import BackendError, OperandError, describe, names
from optree.function import Function, use_backend
from optree.variable import Variable

BACKENDS: dict[str, Callable[..., Backend]] = {"cpu": CPUBackend, "gpu": GPUBackend}


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
        Whether values assigned to float16 tensors are rounded up or down by chance.
    device_id : int
        Which GPU; the CPU backend has one device, 0.
    compat_mode : str, optional
        ``'neon'`` for neon's shapes (at least 2-D, columns), reductions (axes
        are kept) and gradients of ties (each in full).
    jit : {'auto', True, False}
        Whether the CPU backend runs fused kernels compiled to C: ``'auto'``, by
        default, where they pay (`backends.kernels.plan`), always, or never. Without a C
        compiler, and with False, NumPy runs the same kernels, large ones in blocks.
        Whether the GPU backend runs fused kernels at all: True, by default, or False.
    allocator : {'pool', 'async'}
        Where the GPU backend's memory comes from: CuPy's pool, by default, or
        CUDA's stream-ordered allocator.
    launcher : {'cupy', 'pycuda'}
        What launches the GPU backend's kernels; CuPy by default.

    Raises
    ------
    BackendError
        If there is no such backend, mode or option of it, or this machine lacks something for it.

    Examples
    --------
    >>> be = gen_backend("cpu", rng_seed=0)
    >>> (be.ones(3) + 1).asnumpyarray()
    array([2., 2., 2.], dtype=float32)
    """
    make = BACKENDS.get(backend) if isinstance(backend, str) else None
    if make is None:
        raise BackendError(f"there is no backend {backend!r}; there are {names(BACKENDS)}")
    _check_options(backend, make, options)
    made = make(rng_seed, datatype, batch_size, stochastic_round, device_id, compat_mode, **options)
    use_backend(made)
    return made


def _check_options(backend: str, make: Callable[..., Backend], options: Mapping[str, Any]) -> None:
    kinds = inspect.signature(make).parameters.values()
    known = [parameter.name for parameter in kinds if parameter.kind is parameter.KEYWORD_ONLY]
    for name in options.keys() - set(known):
        raise BackendError(f"the backend {backend!r} has no option {name!r}; it has {names(known)}")


def source(what: Variable | Function, target: str = "c") -> list[str]:
    """The source of the kernels that a tree or a function runs as where it is compiled, one for each kernel.

    Nothing is compiled or run, and no compiler is needed. What calls of NumPy
    do has no source, and arrays in another layout than C order can have another.

    Parameters
    ----------
    what : Variable or Function
        Sizes that it does not know count as larger than 1.
    target : str
        The language: ``'c'``.

    Raises
    ------
    BackendError
        If there is no such target.

    Examples
    --------
    >>> be = gen_backend("cpu")
    >>> (kernel,) = source(be.exp(be.ones(9)) * 2)
    >>> [line.strip() for line in kernel.splitlines() if "exp(v" in line]
    ['const float v2 = (float)(exp(v0));']
    """
    if isinstance(what, Function):
        return sources(what.program, target)
    if not isinstance(what, Variable):
        raise OperandError(f"source: a tree or a function is wanted, not {describe(what)}")
    return sources(Backend.program([what]), target)


__all__ = ["BACKENDS", "Backend", "gen_backend", "source"]
