"""Distributed computing: collective operations as trees, and data parallel training.

The launcher tells each process its rank: ``mpiexec -n 4 python program.py``. Arrays are exchanged between CPUs by MPI
through mpi4py (extra ``mpi``), and between GPUs by NCCL through CuPy.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from optree.distributed.engine import Engine
from optree.distributed.errors import DistributedError
from optree.distributed.group import Group
from optree.distributed.launch import Launch, launched

__all__ = ["DistributedError", "Engine", "Group", "Launch", "init", "launched"]

#: The module of each engine, and the packages to install for it.
ENGINES = {
    "mpi": ("optree.distributed.mpi", "mpi4py: pip install mpi4py mpich"),
    "nccl": ("optree.distributed.nccl", "CuPy and NCCL: pip install '.[gpu]' installs both"),
}


def init(be: Any, engine: str | None = None, timeout: float = 45.0) -> Group:
    """The group of all processes of a launch; a collective call.

    All ranks receive rank 0's random state, so that they draw the same initial weights.

    Parameters
    ----------
    be : Backend
        The backend of this process's tensors. On a machine with several GPUs, make it by
        ``gen_backend("gpu", device_id=launched().local_rank)``.
    engine : {'mpi', 'nccl', 'alone'}, optional
        By default NCCL for a GPU and MPI for a CPU, or ``'alone'`` if there is one process.
    timeout : float
        The seconds that a rank waits for the others before it raises an error. While MPI starts, in this call, the
        process ends instead.

    Returns
    -------
    Group

    Raises
    ------
    DistributedError
        If the engine's package is missing, or the engine does not fit the backend or the launcher.

    Examples
    --------
    >>> from backends import gen_backend
    >>> init(gen_backend("cpu", jit="always"))
    rank 0 of 1 (alone)
    """
    launch, is_gpu = launched(), be.name == "gpu"
    if engine is None:
        engine = "alone" if launch.size == 1 else "nccl" if is_gpu else "mpi"
    if engine == "alone":
        return Group(be, Engine())
    if engine not in ENGINES:
        raise DistributedError(f"there is no engine {engine!r}; there are {', '.join([*ENGINES, 'alone'])}")
    if is_gpu is not (engine == "nccl"):
        raise DistributedError(f"{engine} does not carry the arrays of the backend {be.name!r}; leave engine= out")
    if engine == "mpi" and launch.by not in ("mpi", "alone"):
        raise DistributedError(f"{launch.by} starts no MPI; start it by mpiexec, or by srun --mpi=pmi2")
    if getattr(be, "jit", None) == "auto":
        raise DistributedError(
            "jit='auto' takes kernels when they are ready, at other times on each rank, and their last bits differ; "
            "make the backend with jit='always' or jit=False"
        )
    module, package = ENGINES[engine]
    try:
        started = import_module(module).started(be, launch, timeout)
    except ImportError as error:
        raise DistributedError(f"{engine} needs {package} ({error})") from error
    group = Group(be, started)
    group.same_draws()
    group.barrier()
    return group
