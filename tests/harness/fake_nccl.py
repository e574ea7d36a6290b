"""A stand-in for CuPy's binding of NCCL: it checks what that checks, and carries arrays by MPI, through the host."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from mpi4py import MPI

#: The characters of dtypes that CuPy's binding knows.
DTYPES = "bBiIlLqQefdFD"

OPS = {"sum": MPI.SUM, "prod": MPI.PROD, "max": MPI.MAX, "min": MPI.MIN}


class NCCLBackend:
    """By the signatures of ``cupyx.distributed.NCCLBackend``."""

    def __init__(
        self, n_devices: int, rank: int, host: str = "127.0.0.1", port: int = 13333, use_mpi: bool = False
    ) -> None:
        self.comm = MPI.COMM_WORLD.Dup()
        assert (n_devices, rank) == (self.comm.size, self.comm.rank)
        assert use_mpi or (host and 0 < port < 65536)

    def _taken(self, array: Any) -> Any:
        assert array.flags.c_contiguous or array.flags.f_contiguous, "NCCL requires contiguous arrays"
        assert array.dtype.char in DTYPES, f"Unknown dtype {array.dtype} for NCCL"
        assert array.size, "an empty array has no pointer"
        return array.get()

    def all_reduce(self, in_array: Any, out_array: Any, op: str = "sum", stream: Any = None) -> None:
        given = self._taken(in_array)
        made = np.empty_like(given)
        self.comm.Allreduce(given, made, OPS[op])
        _fill(out_array, made)

    def reduce(self, in_array: Any, out_array: Any, root: int = 0, op: str = "sum", stream: Any = None) -> None:
        given = self._taken(in_array)
        made = np.empty_like(given)
        self.comm.Reduce(given, made, OPS[op], root)
        if self.comm.rank == root:
            _fill(out_array, made)

    def broadcast(self, in_out_array: Any, root: int = 0, stream: Any = None) -> None:
        given = np.array(self._taken(in_out_array))
        self.comm.Bcast(given, root)
        _fill(in_out_array, given)

    def reduce_scatter(self, in_array: Any, out_array: Any, count: int, op: str = "sum", stream: Any = None) -> None:
        given = self._taken(in_array)
        made = np.empty(out_array.shape, given.dtype)
        assert count == made.size
        self.comm.Reduce_scatter_block(given, made, OPS[op])
        _fill(out_array, made)

    def all_gather(self, in_array: Any, out_array: Any, count: int, stream: Any = None) -> None:
        given = self._taken(in_array)
        assert count == given.size
        made = np.empty(out_array.shape, given.dtype)
        self.comm.Allgather(given, made)
        _fill(out_array, made)

    def all_to_all(self, in_array: Any, out_array: Any, stream: Any = None) -> None:
        assert in_array.shape[0] == out_array.shape[0] == self.comm.size
        given = self._taken(in_array)
        made = np.empty_like(given)
        self.comm.Alltoall(given, made)
        _fill(out_array, made)

    def send(self, array: Any, peer: int, stream: Any = None) -> None:
        given = self._taken(array)
        _started.append((self.comm.Isend(given, peer), lambda: given))

    def recv(self, out_array: Any, peer: int, stream: Any = None) -> None:
        made = np.empty(out_array.shape, out_array.dtype)
        _started.append((self.comm.Irecv(made, peer), lambda: _fill(out_array, made)))


_started: list[Any] = []


def _fill(array: Any, made: np.ndarray) -> None:
    """Write where the device's array is stored, in the order of the stream."""
    array.module.machine.stream.synchronize()
    array.host[...] = made


def group_end() -> None:
    """End what has been started together."""
    MPI.Request.Waitall([request for request, _ in _started])
    for _, finish in _started:
        finish()
    _started.clear()


def modules(cupy: Any) -> dict[str, Any]:
    """Modules for `sys.modules`, beside a stand-in for CuPy."""
    nccl = SimpleNamespace(available=True, groupStart=lambda: None, groupEnd=group_end)
    return {
        "cupy": cupy,
        "cupy.cuda": SimpleNamespace(**{**vars(cupy.cuda), "nccl": nccl}),
        "cupy.cuda.nccl": nccl,
        "cupyx": cupy.linalg.cupyx,
        "cupyx.distributed": SimpleNamespace(NCCLBackend=NCCLBackend),
    }
