"""Backends, which run trees; `gen_backend` makes one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

import optree
from backends import (
    intact,  # noqa: F401 first: the other imports fail where optree is another package
    lazy,
)
from backends.backend import Backend
from backends.cpu import CPUBackend
from backends.neon.objects import Block, NervanaObject, make_current
from optree import settings
from optree.compile.program import Program
from optree.errors import BackendArgumentError, BackendError, OperandError, describe, names
from optree.run.function import Function, last_backend, use_backend
from optree.tree.variable import Variable

if TYPE_CHECKING:
    from backends.gpu.launch_config import Launch

#: Backend name -> a function that returns its class, so that CuPy is imported lazily.
BACKENDS: dict[str, Callable[[], type[Backend]]] = {"cpu": lambda: CPUBackend, "gpu": lambda: lazy.gpu.GPUBackend}


#: Options of neon's, of no effect: there is one device, and all is deterministic.
NEONS = ("max_devices", "deterministic", "deterministic_update")


def __getattr__(name: str) -> Any:
    if name != "Autodiff":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return optree.Autodiff


def gen_backend(
    backend: str = "cpu",
    rng_seed: int | None = None,
    datatype: object = np.float32,
    batch_size: int = 0,
    stochastic_round: bool | int = False,
    device_id: int = 0,
    compat_mode: str | None = None,
    **options: object,
) -> Backend:
    """A new backend. Earlier ones stay usable; functions without tensors run on the last one made.

    Parameters
    ----------
    backend : str
        ``'cpu'`` or ``'gpu'``.
    rng_seed : int, optional
        The seed, for reproducible random numbers.
    datatype : dtype
        The default floating dtype of new tensors.
    batch_size : int
        The last axis of buffers from `Backend.iobuf`.
    stochastic_round : bool
        Whether values assigned to float16 and bfloat16 tensors are rounded stochastically.
    device_id : int
        The GPU's number; the CPU backend has one device, 0.
    compat_mode : {None, 'neon', 'caffe'}
        ``'neon'`` for neon's shapes (at least 2-D, columns), reductions (which keep axes), gradients of ties (each
        operand gets the full delta) and methods (`backends.neon`). ``'caffe'`` also rounds the sizes of pools up.
    jit : {'auto', 'always', True, False}
        On the CPU, whether kernels are compiled to C: where that pays (`backends.cpu.backend`), the default; always,
        with True there must be a compiler; or never. Without compiled kernels NumPy runs each op.
        On the GPU, whether there are fused kernels at all: True, the default, or False.
    allocator : {'pool', 'async'}
    launcher : {'cupy', 'pycuda'}
        On a GPU, CuPy's memory pool or CUDA's stream-ordered allocator; and the library that launches kernels.
    graphs : bool
        Whether functions are captured as CUDA graphs on a GPU; True by default.
    tf32 : bool
        Whether float32 is multiplied in TensorFloat-32 (10 bits) on a GPU; False, whatever ``CUPY_TF32`` is.
    cudnn : bool, optional
        Whether cuDNN computes convolutions on a GPU; by default, where `nvidia-cudnn-frontend` is installed.

    Raises
    ------
    BackendError, SettingError
        If there is no such backend, mode or option, an OPTREE_ variable is wrong, or a compiler or driver is missing.

    Examples
    --------
    >>> be = gen_backend("cpu")
    >>> (be.ones(3) + 1).asnumpyarray()
    array([2., 2., 2.], dtype=float32)
    """
    make = _class_of(backend, compat_mode)
    given = _checked(backend, make, options)
    made = make(rng_seed, datatype, batch_size, stochastic_round, device_id, compat_mode, **given)
    use_backend(made)
    make_current(made)
    return made


def _class_of(backend: str, compat_mode: str | None) -> Callable[..., Backend]:
    """A backend's class, in neon's mode if there is one."""
    if not isinstance(backend, str) or backend not in BACKENDS:
        raise BackendArgumentError(f"there is no backend {backend!r}; there are {names(BACKENDS)}")
    kind = BACKENDS[backend]()
    return kind if compat_mode is None else lazy.neon.neon_class(kind)  # type: ignore[no-any-return]


def _checked(backend: str, make: Callable[..., Backend], options: Mapping[str, Any]) -> dict[str, Any]:
    """A backend's own options; unknown ones, and wrong environment variables, are refused."""
    options = {name: value for name, value in options.items() if name not in NEONS}
    kinds = inspect.signature(make).parameters.values()
    known = [parameter.name for parameter in kinds if parameter.kind is parameter.KEYWORD_ONLY]
    for name in options.keys() - set(known):
        raise BackendError(f"the backend {backend!r} has no option {name!r}; it has {names(known)}")
    settings.read()
    return options


def source(what: Variable | Function, target: str = "c", arch: str = "sm_90") -> list[str]:
    """The source of each kernel of a tree or a function, for arrays in C order.

    Nothing is compiled or run, and no compiler, CuPy or GPU is needed. Library calls have
    no source. Arrays in another layout may be specialized to another source.

    Parameters
    ----------
    what : Variable or Function
        Unknown sizes count as 64.
    target : str
        The language: ``'c'`` or ``'cuda'``.
    arch : str
        For CUDA, the architecture, whose limits determine the launch configuration: ``'sm_75'``, ``'sm_80'``,
        ``'sm_86'``, ``'sm_89'``, ``'sm_90'``, ``'sm_100'``, ``'sm_103'``, ``'sm_120'`` or ``'sm_121'``. One common
        card represents each (`backends.gpu.launch_config.DEVICES`).

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
    """The kernel launches of a tree or a function on a GPU, in order.

    Nothing is compiled or run, and no CuPy or GPU is needed.

    Parameters
    ----------
    what : Variable or Function
        Unknown sizes count as 64.
    target : str
        ``'cuda'``.
    arch : str
        As in `source`.

    Returns
    -------
    list of Launch
        Each has a ``name``, a ``grid`` of blocks along x and y, the threads of a
        ``block``, and the bytes of dynamic ``shared`` memory of one. A kernel whose
        rows are split among several blocks is launched once for each pass over a row.

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


def _sources(program: Program, target: str, arch: object = "sm_90") -> list[str]:
    return lazy.inspection.sources(program, target, arch)  # type: ignore[no-any-return]


def _exported(f: Function, *given: Any) -> dict[str, bytes]:
    """The files of a function in another language; another backend's is copied to the CPU, where it is traced."""
    be: Any = f.backend
    if be.name != "cpu":
        be = _class_of("cpu", be.compat_mode)(None, be.datatype, be.batch_size, False, 0, be.compat_mode)
    return lazy.export.exported(f, be, *given)  # type: ignore[no-any-return]


def _received(name: str, datatype: np.dtype, batch_size: int, compat_mode: str | None) -> Backend:
    """The current backend, to which what was pickled comes; if there is none, a new one of the same kind."""
    found: Backend | None = last_backend()
    if found is None:
        found = gen_backend(name, datatype=datatype, batch_size=batch_size, compat_mode=compat_mode)
        _received_backends.append(found)
    return found


#: The backends that pickles made, which no name refers to.
_received_backends: list[Backend] = []

Backend.sources, Backend.received = staticmethod(_sources), staticmethod(_received)
Backend.exported = staticmethod(_exported)

__all__ = ["BACKENDS", "Autodiff", "Backend", "Block", "NervanaObject", "gen_backend", "launches", "source"]
