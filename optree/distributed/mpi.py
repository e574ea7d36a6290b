"""MPI through mpi4py, for arrays in the host's memory.

Before each collective operation the ranks compare its description by an all-reduce of 16 bytes. So a mismatch is an
error instead of a wrong result or a deadlock. Operations are nonblocking and polled with a timeout. A process that ends
tells the others by the same comparison.
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from hashlib import blake2b
from threading import TIMEOUT_MAX, get_ident
from types import TracebackType
from typing import Any, TypeGuard

import mpi4py
import numpy as np

# Importing this starts no MPI. `_leave` ends it: mpi4py would in forked children too.
mpi4py.rc(initialize=False, finalize=False)
from mpi4py import MPI  # noqa: E402

from optree.arrays import Array, stored  # noqa: E402
from optree.distributed.engine import Engine, as_bytes, exchange_of, narrowed, spec_of, wide  # noqa: E402
from optree.distributed.errors import DistributedError  # noqa: E402
from optree.distributed.launch import Launch  # noqa: E402

#: The maximum bytes of the description of an operation.
WORDS = 240

#: Arrays of fewer bytes are reduced on one rank and broadcast; of larger ones, each rank reduces a part.
SMALL = 1 << 16

#: The number of polls without a pause, and the maximum pause between two polls in seconds.
POLLS, PAUSE = 50, 1e-4

#: The tags of point-to-point operations, and of messages about them.
DATA, HEAD, WAITS = 1, 2, 3

#: The seconds that other ranks have to print their errors before this one ends all processes.
GRACE = 1.0

LEAVES = "the end of its program"


class MPIEngine(Engine):
    """The collective operations of an MPI communicator.

    `comm` (mpi4py.MPI.Comm, optional): by default a copy of ``MPI.COMM_WORLD``.
    `timeout`: the seconds that a rank waits for others before it raises an error.
    """

    name = "mpi"

    def __init__(self, comm: Any = None, timeout: float = 45.0) -> None:
        self._comm = (MPI.COMM_WORLD if comm is None else comm).Dup()
        self._control = self._comm.Dup()
        self.rank, self.size, self.timeout = self._comm.rank, self._comm.size, timeout
        self.overlaps = self.size > 1 and _operations is not None
        self._process = os.getpid()
        self._count = 0
        self._words = "nothing yet"
        self._failed = ""
        self._sending: list[tuple[Any, Any]] = []  # requests, and the memory that they need
        self._waiting: dict[int, str] = {}
        _engines.append(self)

    def begin(self, method: str, x: Array, *args: Any, out: Array | None = None) -> tuple[Any, Callable[[], None]]:
        self.refuse_children()
        if not self.overlaps:
            return super().begin(method, x, *args, out=out)
        shapes = {"all_reduce": x.shape, "all_gather": (self.size, *x.shape), "reduce_scatter": x.shape[1:]}
        made = np.empty(shapes[method], x.dtype) if out is None else out
        job = _operations.run(getattr(self, method), x, *args, made)  # type: ignore[union-attr]

        def finish() -> None:
            job.result()

        return made, finish

    # Agreement of the ranks

    def agree(self, words: str) -> None:
        self._settle()
        if self._failed:
            raise DistributedError(f"{self._who} has failed before: {self._failed}")
        self._count += 1
        self._say(f"{words} (operation {self._count})" if words != LEAVES else words)
        said = int.from_bytes(blake2b(self._words.encode(), digest_size=7).digest(), "big")
        given, largest = np.array([said, -said], np.int64), np.empty(2, np.int64)
        self._wait(self._comm.Iallreduce(given, largest, MPI.MAX))
        if largest[0] != -largest[1]:
            self._disagree()

    def _settle(self) -> None:
        """Wait until the thread of operations is idle, so that operations run in the order in which they begin."""
        self.refuse_children()
        if _operations is not None:
            _operations.settle()

    @property
    def is_of_this_process(self) -> bool:
        """Whether this process is the rank itself, not a forked child."""
        return self._process == os.getpid()

    def refuse_children(self) -> None:
        """Raise an error in a forked child, which has the rank's memory but is no rank."""
        if not self.is_of_this_process:
            raise DistributedError(
                f"process {os.getpid()} is a child that {self._who}, process {self._process}, has forked, and is no "
                "rank: let the rank itself call what ranks do together"
            )

    def _disagree(self) -> None:
        mine, texts = _encoded(self._words), np.empty((self.size, WORDS), np.uint8)
        self._wait(self._comm.Iallgather(mine, texts))
        ranks: dict[str, list[int]] = {}
        for rank, text in enumerate(texts):
            ranks.setdefault(_decoded(text), []).append(rank)
        listed = "; ".join(f"{_listed(those)} at {text}" for text, those in ranks.items())
        self._fail(f"{self._who}: the ranks are not at one operation: {listed}")

    def _say(self, words: str) -> None:
        self._words = words

    @property
    def _who(self) -> str:
        return f"rank {self.rank} of {self.size}"

    def _fail(self, message: str) -> None:
        self._failed = message
        raise DistributedError(message)

    def _wait(self, *requests: Any) -> None:
        """Wait for requests with a timeout; the error names the ranks that have not arrived."""
        start, polls, announced = time.monotonic(), 0, False
        try:
            while not MPI.Request.Testall(list(requests)):
                polls += 1
                if polls > POLLS:
                    time.sleep(min(PAUSE, 1e-6 * polls))
                waited = time.monotonic() - start
                if waited > self.timeout / 2 and not announced:
                    announced = True
                    self._announce()
                if waited > self.timeout:
                    self._late()
        except MPI.Exception as error:
            self._fail(f"{self._who}: {self._words}: {error}")

    def _announce(self) -> None:
        """Tell the other ranks at which operation this rank waits."""
        said = _encoded(self._words)
        for rank in range(self.size):
            if rank != self.rank:
                self._sending.append((self._control.Isend(said, rank, WAITS), said))

    def _late(self) -> None:
        """Raise an error that names the ranks that wait too, and those that do not."""
        waiting = {self.rank: self._words}
        status = MPI.Status()
        while self._control.Iprobe(MPI.ANY_SOURCE, WAITS, status):
            text = np.empty(WORDS, np.uint8)
            self._control.Recv(text, status.source, WAITS)
            waiting[status.source] = _decoded(text)
        absent = [rank for rank in range(self.size) if rank not in waiting]
        others = [f"rank {rank} waits at {words}" for rank, words in sorted(waiting.items()) if rank != self.rank]
        gone = f"{_listed(absent)} {'has' if len(absent) == 1 else 'have'} not come, or ended" if absent else ""
        listed = "; ".join([*others, gone] if gone else others)
        self._fail(f"{self._who} has waited {self.timeout:g} seconds at {self._words}: {listed}")

    # The operations

    def all_reduce(self, x: Array, kind: str, out: Array | None = None) -> Any:
        self.agree(f"all_reduce, {kind} of {spec_of(x)}")
        given = wide(x)
        op = {"max": MPI.MAX, "min": MPI.MIN}.get(kind, MPI.SUM)
        made = out if _is_of(out, given) else np.empty_like(given)
        if given.nbytes < SMALL or self.size == 1:
            # All ranks receive one rank's result: sums computed on each could differ in their last bits.
            self._wait(self._comm.Ireduce(given, made if self.rank == 0 else None, op, 0))
            self._wait(self._comm.Ibcast(made, 0))
        else:
            self._reduce_parts(given, op, made)
        if kind == "mean":
            np.divide(made, made.dtype.type(self.size), out=made)
        return stored(narrowed(made, x), out)

    def _reduce_parts(self, given: Array, op: Any, made: Array) -> None:
        """Reduce into an array; each rank computes a part."""
        share = -(-given.size // self.size)
        flat, whole = given.reshape(-1), made.reshape(-1)
        if given.size % self.size:
            flat = whole = np.zeros(share * self.size, given.dtype)
            flat[: given.size] = given.reshape(-1)
        part = np.empty(share, given.dtype)
        self._wait(self._comm.Ireduce_scatter_block(flat, part, op))
        self._wait(self._comm.Iallgather(part, whole))
        if given.size % self.size:
            made[...] = whole[: given.size].reshape(made.shape)

    def all_gather(self, x: Array, out: Array | None = None) -> Any:
        self.agree(f"all_gather of {spec_of(x)}")
        made = np.empty((self.size, *x.shape), x.dtype) if out is None else out
        self._wait(self._comm.Iallgather(as_bytes(x), as_bytes(made)))
        return made

    def reduce_scatter(self, parts: Array, out: Array | None = None) -> Any:
        self.agree(f"reduce_scatter of {spec_of(parts)}, the parts of all ranks")
        given = wide(parts)
        made = out if _is_of(out, given) else np.empty(given.shape[1:], given.dtype)
        self._wait(self._comm.Ireduce_scatter_block(given, made, MPI.SUM))
        return stored(narrowed(made, parts), out)

    def broadcast(self, x: Array, root: int) -> Any:
        self.agree(f"broadcast of rank {root}'s {spec_of(x)}")
        made = np.array(x, order="C")
        self._wait(self._comm.Ibcast(as_bytes(made), root))
        return made

    def reduce(self, x: Array, root: int) -> Any:
        self.agree(f"reduce, sum of {spec_of(x)} to rank {root}")
        given = wide(x)
        made = np.zeros_like(given)
        self._wait(self._comm.Ireduce(given, made if self.rank == root else None, MPI.SUM, root))
        return narrowed(made, x)

    def all_to_all(self, parts: Array) -> Any:
        self.agree(f"all_to_all of {spec_of(parts)}, the parts for all ranks")
        made = np.empty_like(parts, order="C")
        self._wait(self._comm.Ialltoall(as_bytes(parts), as_bytes(made)))
        return made

    def exchange(self, x: Array, to: int | None, source: int | None) -> Any:
        self._settle()
        if self._failed:
            raise DistributedError(f"{self._who} has failed before: {self._failed}")
        self._say(exchange_of(x, to, source))
        # The message is copied and sent asynchronously, so that two ranks can send to each other without a deadlock.
        self._sending = [(request, memory) for request, memory in self._sending if not request.Test()]
        if to is not None:
            memory, head = np.array(x, order="C"), _encoded(spec_of(x))
            self._sending.append((self._comm.Isend(head, to, HEAD), head))
            self._sending.append((self._comm.Isend(as_bytes(memory), to, DATA), memory))
        made = np.zeros(x.shape, x.dtype)
        if source is not None:
            head = np.empty(WORDS, np.uint8)
            self._wait(self._comm.Irecv(head, source, HEAD))
            if _decoded(head) != spec_of(x):
                self._fail(f"{self._who}: recv of {spec_of(x)} from rank {source}, which sends {_decoded(head)}")
            self._wait(self._comm.Irecv(as_bytes(made), source, DATA))
        return made

    def split(self, color: int) -> Engine:
        self.agree("split")
        found = self._comm.Split(color, self.rank)
        made = MPIEngine(found, self.timeout)
        found.Free()
        return made

    # The end

    def leave(self) -> None:
        """Tell the other ranks that this one ends; raises an error if they continue."""
        if self._failed or self.size == 1:
            return
        timeout, self.timeout = self.timeout, float("inf")  # MPI would wait for the others' ends too
        try:
            self.agree(LEAVES)
            self._wait(*[request for request, _ in self._sending])
        finally:
            self.timeout = timeout

    @property
    def has_failed(self) -> bool:
        return bool(self._failed)

    def where(self) -> str:
        """The rank and its last operation, for errors."""
        return f"{self._who} fails; its last operation was {self._words}"


class OperationThread:
    """A thread that runs operations asynchronously, in the order in which they are submitted."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "optree-mpi", self._begin)
        self._jobs: deque[Future[Any]] = deque()
        self._ident = 0

    def _begin(self) -> None:
        self._ident = get_ident()

    def run(self, call: Callable[..., Any], *args: Any) -> Future[Any]:
        """Submit a call."""
        while self._jobs and self._jobs[0].done():
            self._jobs.popleft()
        job = self._pool.submit(call, *args)
        self._jobs.append(job)
        return job

    def settle(self) -> None:
        """Wait for the end of all calls; their errors are raised by their futures."""
        while self._jobs and get_ident() != self._ident:
            wait([self._jobs.popleft()])


def _wait_until_all_ranks_call_init(timeout: float) -> None:
    """Start MPI. If not all processes start it in time, end this one with a traceback that shows this function.

    If a rank has ended before, the others wait in C code that holds the GIL, so no Python error could be raised.
    """
    faulthandler.dump_traceback_later(min(timeout, TIMEOUT_MAX), exit=True, file=2)
    try:
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
    finally:
        faulthandler.cancel_dump_traceback_later()


def started(be: Any, launch: Launch, timeout: float) -> MPIEngine:
    """The engine of all processes, which MPI knows."""
    global _operations, _finalizes
    if _engines:
        _engines[0].refuse_children()
    if not MPI.Is_initialized():
        _wait_until_all_ranks_call_init(timeout)
        _finalizes = True
    if _operations is None and MPI.Query_thread() == MPI.THREAD_MULTIPLE:
        _operations = OperationThread()
    if not _engines:
        sys.excepthook = _ended
        atexit.register(_leave)
    return MPIEngine(None, timeout)


#: All engines of this process, the oldest first.
_engines: list[MPIEngine] = []

#: The thread of operations; None if MPI accepts calls from one thread only.
_operations: OperationThread | None = None

#: Whether MPI was started here, and so is finalized here.
_finalizes = False

_print_exception = sys.excepthook


def _ended(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Print an uncaught error and end all ranks, which would wait for this one."""
    _print_exception(kind, error, traceback)
    if _engines and _engines[0].size > 1 and _engines[0].is_of_this_process:
        print(_engines[0].where(), file=sys.stderr, flush=True)
        _end_all()


def _end_all() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    time.sleep(GRACE)
    _delete_shared_memory()
    MPI.COMM_WORLD.Abort(1)


def _delete_shared_memory() -> None:
    """Delete the shared memory files of this job, which MPICH leaves when a job is aborted."""
    with suppress(OSError), open("/proc/self/maps", encoding="utf-8") as maps:
        for file in {line.split()[-1] for line in maps if "/dev/shm/mpich_shm_" in line}:
            with suppress(OSError):
                os.unlink(file)


def _leave() -> None:
    """Leave all groups, the latest first, and finalize MPI, at the end of the process."""
    if not _engines[0].is_of_this_process:
        return
    try:
        for engine in reversed(_engines):
            engine.leave()
    except DistributedError as error:
        print(error, file=sys.stderr)
    if any(engine.has_failed for engine in _engines):
        _end_all()
    if _finalizes and not MPI.Is_finalized():
        MPI.Finalize()


def _listed(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _is_of(out: Array | None, given: Array) -> TypeGuard[Array]:
    """Whether an output array has the dtype of the reduction."""
    return out is not None and out.dtype == given.dtype


def _encoded(text: str) -> np.ndarray:
    found = np.zeros(WORDS, np.uint8)
    data = text.encode()[:WORDS]
    found[: len(data)] = np.frombuffer(data, np.uint8)
    return found


def _decoded(data: np.ndarray) -> str:
    return data.tobytes().rstrip(b"\0").decode(errors="replace")
