"""MPI through mpi4py, for arrays in the host's memory.

Before each collective operation the ranks compare what they are about to do, by a sum of 16 bytes, so that they part
with an error, and not with wrong numbers or waiting for ever. Operations are begun and then polled, with a limit of
time, and a process that ends tells the others, by the same comparison.
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
from typing import Any

import mpi4py
import numpy as np

# Importing this starts no MPI. `_leave` ends it: mpi4py would in forked children too.
mpi4py.rc(initialize=False, finalize=False)
from mpi4py import MPI  # noqa: E402

from optree.arrays import stored  # noqa: E402
from optree.distributed.engine import Engine, as_bytes, exchange_of, narrowed, spec_of, wide  # noqa: E402
from optree.distributed.errors import DistributedError  # noqa: E402
from optree.distributed.launch import Launch  # noqa: E402

#: The bytes of what a rank says that it does.
WORDS = 240

#: Sums of fewer bytes are made on one rank and broadcast; of more, a part on each rank.
SMALL = 1 << 16

#: Polls without a pause, and the longest pause between two, in seconds.
POLLS, PAUSE = 50, 1e-4

#: Tags of operations between two ranks, and of the words about them.
DATA, HEAD, WAITS = 1, 2, 3

#: The seconds that other ranks have to say why they fail, before this one ends all.
GRACE = 1.0

LEAVES = "the end of its program"


class MPIEngine(Engine):
    """The operations of a communicator.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm, optional
        By default a copy of that of all processes.
    timeout : float
        The seconds after which a rank that waits raises.
    """

    name = "mpi"

    def __init__(self, comm: Any = None, timeout: float = 45.0) -> None:
        self._comm = (MPI.COMM_WORLD if comm is None else comm).Dup()
        self._control = self._comm.Dup()
        self.rank, self.size, self.timeout = self._comm.rank, self._comm.size, timeout
        self.overlaps = self.size > 1 and _beside is not None
        self._process = os.getpid()
        self._count = 0
        self._words = "nothing yet"
        self._failed = ""
        self._sending: list[tuple[Any, Any]] = []  # requests, and the memory that they need
        self._waiting: dict[int, str] = {}
        _engines.append(self)

    def begin(self, method: str, x: Any, *args: Any, out: Any = None) -> tuple[Any, Callable[[], None]]:
        self.refuse_children()
        if not self.overlaps:
            return super().begin(method, x, *args, out=out)
        shapes = {"all_reduce": x.shape, "all_gather": (self.size, *x.shape), "reduce_scatter": x.shape[1:]}
        made = np.empty(shapes[method], x.dtype) if out is None else out
        job = _beside.run(getattr(self, method), x, *args, made)  # type: ignore[union-attr]

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
        """Wait until all that runs beside this thread has ended: operations run in the order in which they begin."""
        self.refuse_children()
        if _beside is not None:
            _beside.settle()

    @property
    def is_of_this_process(self) -> bool:
        """Whether this process is the rank, and no child that it has forked."""
        return self._process == os.getpid()

    def refuse_children(self) -> None:
        """Raise an error in a forked child: it has the rank's memory, and is none."""
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
        """Wait for requests, with a limit; raises an error that names the ranks that have not come."""
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
        """Tell the other ranks what this one waits at."""
        said = _encoded(self._words)
        for rank in range(self.size):
            if rank != self.rank:
                self._sending.append((self._control.Isend(said, rank, WAITS), said))

    def _late(self) -> None:
        """Fail, naming the ranks that wait too, and those that do not."""
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

    def all_reduce(self, x: Any, kind: str, out: Any = None) -> Any:
        self.agree(f"all_reduce, {kind} of {spec_of(x)}")
        given = wide(x)
        op = {"max": MPI.MAX, "min": MPI.MIN}.get(kind, MPI.SUM)
        made = out if _is_of(out, given) else np.empty_like(given)
        if given.nbytes < SMALL or self.size == 1:
            # One rank's result for all: with sums made on each, last bits could differ.
            self._wait(self._comm.Ireduce(given, made if self.rank == 0 else None, op, 0))
            self._wait(self._comm.Ibcast(made, 0))
        else:
            self._reduce_parts(given, op, made)
        if kind == "mean":
            np.divide(made, made.dtype.type(self.size), out=made)
        return stored(narrowed(made, x), out)

    def _reduce_parts(self, given: Any, op: Any, made: Any) -> None:
        """Reduce into an array; each rank makes a part."""
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

    def all_gather(self, x: Any, out: Any = None) -> Any:
        self.agree(f"all_gather of {spec_of(x)}")
        made = np.empty((self.size, *x.shape), x.dtype) if out is None else out
        self._wait(self._comm.Iallgather(as_bytes(x), as_bytes(made)))
        return made

    def reduce_scatter(self, parts: Any, out: Any = None) -> Any:
        self.agree(f"reduce_scatter of {spec_of(parts)}, the parts of all ranks")
        given = wide(parts)
        made = out if _is_of(out, given) else np.empty(given.shape[1:], given.dtype)
        self._wait(self._comm.Ireduce_scatter_block(given, made, MPI.SUM))
        return stored(narrowed(made, parts), out)

    def broadcast(self, x: Any, root: int) -> Any:
        self.agree(f"broadcast of rank {root}'s {spec_of(x)}")
        made = np.array(x, order="C")
        self._wait(self._comm.Ibcast(as_bytes(made), root))
        return made

    def reduce(self, x: Any, root: int) -> Any:
        self.agree(f"reduce, sum of {spec_of(x)} to rank {root}")
        given = wide(x)
        made = np.zeros_like(given)
        self._wait(self._comm.Ireduce(given, made if self.rank == root else None, MPI.SUM, root))
        return narrowed(made, x)

    def all_to_all(self, parts: Any) -> Any:
        self.agree(f"all_to_all of {spec_of(parts)}, the parts for all ranks")
        made = np.empty_like(parts, order="C")
        self._wait(self._comm.Ialltoall(as_bytes(parts), as_bytes(made)))
        return made

    def exchange(self, x: Any, to: int | None, source: int | None) -> Any:
        self._settle()
        if self._failed:
            raise DistributedError(f"{self._who} has failed before: {self._failed}")
        self._say(exchange_of(x, to, source))
        # The message is copied, and sent while this rank goes on: two that send to each other do not wait for ever.
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
        """Tell the other ranks that this one ends; raises if they go on."""
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


class Beside:
    """A thread that runs operations in the order in which they are given, while the one that gives them goes on."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "optree-mpi", self._begin)
        self._jobs: deque[Future[Any]] = deque()
        self._ident = 0

    def _begin(self) -> None:
        self._ident = get_ident()

    def run(self, call: Callable[..., Any], *args: Any) -> Future[Any]:
        """Begin a call."""
        while self._jobs and self._jobs[0].done():
            self._jobs.popleft()
        job = self._pool.submit(call, *args)
        self._jobs.append(job)
        return job

    def settle(self) -> None:
        """Wait for the end of all calls; what they raise is for those who asked for them."""
        while self._jobs and get_ident() != self._ident:
            wait([self._jobs.popleft()])


def _wait_until_all_ranks_call_init(timeout: float) -> None:
    """Start MPI; if not all processes do within a number of seconds, end this one, with a traceback that names this.

    A rank that has ended before leaves the others waiting, in C that holds the GIL: no Python could raise an error.
    """
    faulthandler.dump_traceback_later(min(timeout, TIMEOUT_MAX), exit=True, file=2)
    try:
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
    finally:
        faulthandler.cancel_dump_traceback_later()


def started(be: Any, launch: Launch, timeout: float) -> MPIEngine:
    """The engine of all processes; MPI knows them."""
    global _beside, _finalizes
    if _engines:
        _engines[0].refuse_children()
    if not MPI.Is_initialized():
        _wait_until_all_ranks_call_init(timeout)
        _finalizes = True
    if _beside is None and MPI.Query_thread() == MPI.THREAD_MULTIPLE:
        _beside = Beside()
    if not _engines:
        sys.excepthook = _ended
        atexit.register(_leave)
    return MPIEngine(None, timeout)


#: All engines of this process, the oldest first.
_engines: list[MPIEngine] = []

#: What runs operations that have begun; None where MPI takes calls from one thread alone.
_beside: Beside | None = None

#: Whether MPI was started here, and so ends here.
_finalizes = False

_print_exception = sys.excepthook


def _ended(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Print an error that nothing has caught, and end all ranks, which would wait for this one."""
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
    """Delete the files of the memory that this job's ranks share: MPICH leaves them when a job is aborted."""
    with suppress(OSError), open("/proc/self/maps", encoding="utf-8") as maps:
        for file in {line.split()[-1] for line in maps if "/dev/shm/mpich_shm_" in line}:
            with suppress(OSError):
                os.unlink(file)


def _leave() -> None:
    """At the end of the process, leave all groups, the latest first, and end MPI."""
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


def _is_of(out: Any, given: Any) -> bool:
    """Whether an array is of the dtype that is reduced."""
    return out is not None and out.dtype == given.dtype


def _encoded(text: str) -> np.ndarray:
    found = np.zeros(WORDS, np.uint8)
    data = text.encode()[:WORDS]
    found[: len(data)] = np.frombuffer(data, np.uint8)
    return found


def _decoded(data: np.ndarray) -> str:
    return data.tobytes().rstrip(b"\0").decode(errors="replace")
