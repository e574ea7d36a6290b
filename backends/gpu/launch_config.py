"""Launch configurations of loop nests on a CUDA device: the variant of each kernel, grid, block and shared memory.

The rules depend on sizes, strides, alignment and the device's limits alone, so
the same call runs the same kernels and gives the same bits.

- A vectorised access has as many elements as 16 bytes hold of the widest array, or a half or quarter of them, as the
  alignment of all contiguous arrays allows. Where that makes less than 8 bytes, but all arrays have one itemsize and
  each row has the same offset from 16 bytes in all that are written (rows of odd lengths), accesses are of 16 bytes,
  and the first and the last of a row are partial. Reads with another offset are combined of two accesses. A thread has
  64 bytes in flight before it uses the first of them, if it has that much to load, and the other threads of the device
  have work.
- Where some arrays are contiguous along another loop than the rest, blocks of 256 threads transpose tiles of 32 by 32
  elements in shared memory.
- A row of at most 8 accesses for each lane of a warp is reduced by as many lanes as leave 4 to each, and at least as
  many as make 64 contiguous bytes; a longer one by a block of 128 or 256 threads with at most 8 accesses each. Rows
  are cached in registers, with at most 128 bytes of live values in a thread of a warp and 64 in one of a block.
- Of longer rows, values that several stages need are cached in shared memory, where three blocks are resident on a
  multiprocessor with them, or two, or one of 512 threads. Where none is, reads alone are cached, and values that are
  expensive are recomputed. Where rows are too long for that too, their first accesses are cached, as many as shared
  memory holds, and the others are read again.
- Columns are reduced by blocks of 256 threads, 32 along the columns, or as many as take 128 bytes; more where columns
  are so short that a thread has fewer than 8 accesses, and fewer where there are no more columns. Values that several
  stages need are cached in shared memory where they take at most a quarter of a block's limit, with one column for
  each thread; reads alone in blocks of 512 threads, with columns of 32 bytes, where three quarters of them fit, and
  each multiprocessor has two such blocks to run. Otherwise a thread has as many columns as 16 bytes hold, at most 4,
  or a half or quarter of them, as the alignment of all arrays allows, half of the device's resident threads have 8
  accesses, and a thread's accumulators take at most 64 bytes.
- Where there are fewer blocks than twice the multiprocessors, or, in a nest of one stage, than make half of the
  device's resident threads, the reduction is split into parts of at least 8 accesses for each thread, so that there
  are at most as many: all are resident at once, as far as registers allow, without a tail.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd, prod
from typing import Any

from backends.execution.printer_common import accumulator_dtype
from backends.gpu.codegen.variant import (
    BYTES_IN_FLIGHT,
    TILE,
    Variant,
    contiguous_arrays,
    kernel_names,
    live_bytes,
    loaded_bytes,
    slot_bytes,
    static_bytes,
)
from optree.compile.loopnest import LoopNest, online_of, stages_of, strided_reads
from optree.dtypes import wide_dtype
from optree.errors import BackendError

#: Bytes of a vectorised access.
ACCESS_BYTES = 16

#: The least accesses of rows that may begin unaligned: two of them are partial.
MIN_SHIFTED_ACCESSES = 16

#: The maximum accesses of a thread to a row that is cached in registers, and the least to a part of a split row.
MAX_ROW_ACCESSES = 8

#: The maximum bytes that a thread of an elementwise nest loads at once, in half of its registers.
MAX_LOADED = 512

#: The maximum accesses of a thread in flight.
MAX_IN_FLIGHT = 16

#: The maximum bytes of a row in a thread's registers: in a block half as many as in a warp, so that another block is
#: resident, and loads while the first computes.
ROW_BYTES = {"warp": 128, "block": 64}

#: The maximum instructions of several accesses in flight, and half of that where they stay in registers: loops over
#: them are unrolled.
MAX_INSTRUCTIONS = 512

#: The maximum threads of a block, by its teams.
BLOCK_THREADS = {"": 256, "tiles": 256, "warp": 128, "block": 256, "columns": 256}

#: The threads of a block that caches rows in shared memory, by the number of such blocks resident on a multiprocessor.
CACHED_ROW_THREADS = {3: 256, 2: 256, 1: 512}

#: Bytes of shared memory that a multiprocessor reserves for each resident block.
RESERVED_SHARED = 1 << 10

#: Bytes of static and dynamic shared memory that a block may have without opting in to more.
DEFAULT_SHARED = 48 << 10

#: The columns of a block, and the maximum of a thread.
BLOCK_COLUMNS = 32
THREAD_COLUMNS = 4

#: The least bytes of each row that a block of columns reads together.
LINE_BYTES = 128

#: The bytes of a row that memory moves at once, and the least share of columns of as many bytes that is worth caching.
SECTOR_BYTES, CACHED_SHARE = 32, 0.75

#: The maximum number of parts of a split row.
MAX_PARTS = 1024

#: The maximum blocks of a grid along x; kernels are grid-stride loops.
MAX_GRID = 2**31 - 1

#: The elements from which indices have 64 bits; below it, a grid's stride beyond the last index does not overflow.
INT32_LIMIT = 1 << 30


@dataclass(frozen=True)
class DeviceLimits:
    """A CUDA device's limits."""

    multiprocessors: int
    #: The maximum shared memory of a block in bytes.
    shared: int
    #: The maximum resident threads of a multiprocessor.
    threads: int


#: The limits assumed for each architecture where there is no device: those of T4, A100, A40, L40S, H100, B200, B300,
#: RTX 5090 and GB10.
DEVICES = {
    "sm_75": DeviceLimits(40, 64 << 10, 1024),
    "sm_80": DeviceLimits(108, 163 << 10, 2048),
    "sm_86": DeviceLimits(84, 99 << 10, 1536),
    "sm_89": DeviceLimits(142, 99 << 10, 1536),
    "sm_90": DeviceLimits(132, 227 << 10, 2048),
    "sm_100": DeviceLimits(148, 227 << 10, 2048),
    "sm_103": DeviceLimits(148, 227 << 10, 2048),
    "sm_120": DeviceLimits(170, 99 << 10, 1536),
    "sm_121": DeviceLimits(48, 99 << 10, 1536),
}


#: The compute capabilities that CUDA 12 compiles for, and CUDA 13 does not.
CUDA12_CAPABILITIES = frozenset("50 52 53 60 61 62 70 72".split())

#: What to do about one of them.
USE_CUDA12 = (
    "CUDA 13 compiles for compute capability 7.5 and newer: pip install '.[gpu-cuda12]' installs CUDA 12, in an "
    "environment without wheels for CUDA 13"
)


def limits_of(arch: str) -> DeviceLimits:
    """The limits assumed for an architecture; BackendError if there is none."""
    if arch.removeprefix("sm_") in CUDA12_CAPABILITIES:
        raise BackendError(f"there are no kernels for {arch}: {USE_CUDA12}")
    if arch not in DEVICES:
        raise BackendError(f"there is no architecture {arch!r}; there are {', '.join(DEVICES)}")
    return DEVICES[arch]


@dataclass(frozen=True)
class Launch:
    """The launch of one kernel."""

    name: str
    #: Blocks along x and y.
    grid: tuple[int, int]
    #: Threads.
    block: int
    #: Bytes of dynamic shared memory.
    shared: int = 0


@dataclass(frozen=True)
class LaunchConfig:
    """The kernels' variant and launches, for a nest and the layout of its arrays."""

    variant: Variant
    #: In order.
    launches: tuple[Launch, ...]
    #: The accesses of a split row that one block has.
    part: int = 0
    #: The number of blocks that share a row.
    parts: int = 1
    #: The elements of each array of parts.
    entries: int = 0
    #: The accesses of a row that are cached in shared memory, where that is a part.
    cached_accesses: int = 0


def configure(
    nest: LoopNest,
    sizes: Sequence[int],
    strides: Sequence[Sequence[int]],
    addresses: Sequence[int],
    device: DeviceLimits,
) -> LaunchConfig:
    """The launch configuration of a nest on arrays.

    `sizes`: the sizes of the loops.
    `strides`: for each array its strides along the loops, in elements.
    `addresses`: the addresses of the arrays.
    """
    extents = (sum(abs(stride) * (n - 1) for stride, n in zip(each, sizes, strict=True)) for each in strides)
    wide_index = max(max(extents, default=0), prod(sizes)) >= INT32_LIMIT
    vector, shifted, unaligned = _vector(nest, sizes, strides, addresses)
    while vector > 1 and not (shifted or nest.reductions) and vector * loaded_bytes(nest)[0] > MAX_LOADED:
        vector //= 2
    if strided_reads(nest) and static_bytes(nest, "tiles", BLOCK_THREADS["tiles"]) <= DEFAULT_SHARED:
        tiles = prod(-(-n // TILE) if axis in (nest.across, nest.rank - 1) else n for axis, n in enumerate(sizes))
        return LaunchConfig(Variant(1, wide_index, "tiles"), (Launch("kernel", (tiles, 1), BLOCK_THREADS["tiles"]),))
    whole = nest.columns or (sizes[-1] % vector == 0 and not shifted)
    variant = Variant(vector, wide_index, whole=whole, shifted=shifted, unaligned=unaligned)
    if not nest.reductions:
        return _elements(nest, sizes, variant, device)
    if nest.columns:
        return _columns(nest, sizes, variant, device)
    return _rows(nest, sizes, variant, device)


def _vector(
    nest: LoopNest, sizes: Sequence[int], strides: Sequence[Sequence[int]], addresses: Sequence[int]
) -> tuple[int, bool, tuple[int, ...]]:
    """The elements of a vectorised access, whether rows may begin unaligned, and the reads with another offset."""
    contiguous = contiguous_arrays(nest)
    if not contiguous:
        return 1, False, ()
    itemsizes = {nest.arrays[array].itemsize for array in contiguous}
    widest = max(itemsizes)
    most = vector = ACCESS_BYTES // widest
    #: The arrays by the offsets of their rows, but for those where rows of an inner loop have several.
    offsets: dict[tuple[Any, ...], list[int]] = {}
    for array in contiguous:
        others = {axis: stride for axis, stride in enumerate(strides[array]) if axis != nest.vector and sizes[axis] > 1}
        size = nest.arrays[array].itemsize
        vector = max(1, gcd(vector * size, addresses[array], *(stride * size for stride in others.values())) // size)
        if not any(stride % most for axis, stride in others.items() if axis >= nest.outer):
            steps = ((axis, stride % most) for axis, stride in others.items() if stride % most)
            offsets.setdefault((addresses[array] % (most * size), *steps), []).append(array)
    if vector * widest < ACCESS_BYTES // 2 and offsets and len(itemsizes) == 1 and not nest.columns:
        aligned = max(offsets.values(), key=lambda arrays: (arrays[-1] >= len(nest.reads), len(arrays)))
        unaligned = tuple(array for array in contiguous if array not in aligned)
        if max(unaligned, default=-1) < len(nest.reads) and sizes[-1] >= MIN_SHIFTED_ACCESSES * most:
            return most, True, unaligned
    if nest.columns:
        return gcd(vector, sizes[nest.vector]), False, ()
    return min(vector, 1 << sizes[-1].bit_length() - 1), False, ()


def _power(count: int) -> int:
    """The least power of two that is not below a count."""
    return 1 << max(count - 1, 0).bit_length()


def _in_flight(nest: LoopNest, vector: int, most: int) -> int:
    """The accesses that a thread loads before it uses the first, a power of two."""
    size = vector * min(loaded_bytes(nest))
    found = min(most, MAX_IN_FLIGHT, BYTES_IN_FLIGHT // size if size else 1, MAX_INSTRUCTIONS // (nest.cost * vector))
    return 1 << max(found, 1).bit_length() - 1


def _elements(nest: LoopNest, sizes: Sequence[int], variant: Variant, device: DeviceLimits) -> LaunchConfig:
    chunks, threads = variant.chunks(sizes[-1]) * prod(sizes[:-1]), BLOCK_THREADS[""]
    accesses = _in_flight(nest, variant.vector, chunks // (device.multiprocessors * device.threads))
    launch = Launch("kernel", (min(MAX_GRID, -(-chunks // (threads * accesses))), 1), threads)
    return LaunchConfig(replace(variant, accesses=accesses, threads=threads), (launch,))


def _rows(nest: LoopNest, sizes: Sequence[int], variant: Variant, device: DeviceLimits) -> LaunchConfig:
    teams, vector, slots = prod(sizes[: nest.outer]), variant.vector, slot_bytes(nest)
    accesses = variant.chunks(sizes[-1]) * prod(sizes[nest.outer : -1])
    size = vector * live_bytes(nest)
    several = min(MAX_ROW_ACCESSES, 2 * MAX_INSTRUCTIONS // (nest.cost * vector))
    cached_accesses = {team: min(several, most // size if size else several) for team, most in ROW_BYTES.items()}
    if accesses <= 32 * cached_accesses["warp"]:
        contiguous = min(_power(accesses), BYTES_IN_FLIGHT // (vector * min(dtype.itemsize for dtype in nest.arrays)))
        width = min(32, max(_power(-(-accesses // min(4, cached_accesses["warp"]))), contiguous))
        blocks = min(MAX_GRID, -(-teams * width // BLOCK_THREADS["warp"]))
        variant = replace(variant, team="warp", width=width, threads=BLOCK_THREADS["warp"])
        variant = replace(variant, cache="registers", accesses=-(-accesses // width))
        return LaunchConfig(variant, (Launch("kernel", (blocks, 1), BLOCK_THREADS["warp"]),))
    threads = min(BLOCK_THREADS["block"], max(128, _power(-(-accesses // MAX_ROW_ACCESSES))))
    variant = replace(variant, team="block", threads=BLOCK_THREADS["block"])
    parts = _parts(teams, accesses, threads, bool(slots), device)
    online = online_of(nest) is not None
    if parts > 1:
        variant = replace(variant, split=True, online=online, accesses=_in_flight(nest, vector, MAX_ROW_ACCESSES))
        return _split(nest, variant, teams, accesses, parts, threads)
    if accesses <= BLOCK_THREADS["block"] * cached_accesses["block"]:
        threads = max(threads, _power(-(-accesses // cached_accesses["block"])))
        found = replace(variant, cache="registers", accesses=-(-accesses // threads))
        return LaunchConfig(found, (Launch("kernel", (min(MAX_GRID, teams), 1), threads),))
    if slots and not (online and not slot_bytes(nest, False, online)):
        return _cached_rows(nest, variant, teams, accesses, device, online)
    variant = replace(variant, online=online, accesses=_in_flight(nest, vector, -(-accesses // threads)))
    return LaunchConfig(variant, (Launch("kernel", (min(MAX_GRID, teams), 1), threads),))


def _cached_rows(
    nest: LoopNest, variant: Variant, teams: int, accesses: int, device: DeviceLimits, online: bool
) -> LaunchConfig:
    """Blocks that cache rows in shared memory, whole or in part."""
    static, resident, shared, cached_accesses = static_bytes(nest, "block", BLOCK_THREADS["block"]), 0, 0, accesses
    for cache in ("shared", "part"):
        itemsize = sum(slot_bytes(nest, cache == "shared", online and cache == "part"))
        shared = itemsize * (-(-accesses * variant.vector // 16) * 16)
        total = shared + static + RESERVED_SHARED
        resident = next((n for n in CACHED_ROW_THREADS if total * n <= device.shared + RESERVED_SHARED), 0)
        if resident:
            break
    else:
        resident, elements = 1, (device.shared - static) // itemsize // 16 * 16
        cached_accesses, shared = elements // variant.vector, elements * itemsize
    threads = CACHED_ROW_THREADS[resident]
    variant = replace(variant, cache=cache if shared else "", online=online and cache == "part", threads=threads)
    most = min(MAX_ROW_ACCESSES, -(-accesses // threads))
    variant = replace(variant, accesses=_in_flight(nest, variant.vector, most))
    launch = Launch("kernel", (min(MAX_GRID, teams), 1), threads, shared)
    return LaunchConfig(variant, (launch,), cached_accesses=cached_accesses)


def _columns(nest: LoopNest, sizes: Sequence[int], variant: Variant, device: DeviceLimits) -> LaunchConfig:
    columns, rows, threads = prod(sizes[: nest.outer]), prod(sizes[nest.outer :]), BLOCK_THREADS["columns"]
    slots, smallest, vector = slot_bytes(nest), min(dtype.itemsize for dtype in nest.arrays), variant.vector

    def width_of(vector: int) -> int:
        """The number of threads along the columns."""
        least = max(BLOCK_COLUMNS, LINE_BYTES // (smallest * vector), threads // _power(-(-rows // MAX_ROW_ACCESSES)))
        return min(_power(columns // vector), least)

    shared = sum(slots) * (-(-rows * width_of(1) // 16) * 16)
    cached = 0 < shared <= device.shared // 4
    stages = stages_of(nest)
    parts_bytes = [
        [wide_dtype(r.dtype).itemsize + accumulator_dtype(r).itemsize for r in stage.reductions] for stage in stages
    ]
    most = 1 if cached else min(THREAD_COLUMNS, ROW_BYTES["block"] // max(map(sum, parts_bytes)))
    enough = MAX_ROW_ACCESSES * device.multiprocessors * device.threads // 2
    while vector > 1 and (vector > most or columns // vector * rows < enough):
        vector //= 2
    if (
        slots
        and not cached
        and (found := _cached_columns(nest, columns, rows, replace(variant, vector=vector), device))
    ):
        return found
    width = width_of(vector)
    blocks, lanes = -(-columns // (vector * width)), threads // width
    variant = replace(variant, vector=vector, team="columns", width=width, threads=threads)
    variant = replace(variant, accesses=_in_flight(nest, vector, min(2 * MAX_IN_FLIGHT // vector, -(-rows // lanes))))
    parts, online = _parts(blocks, rows * width, threads, bool(slots), device), online_of(nest) is not None
    if parts > 1:
        return _split(nest, replace(variant, split=True, online=online), blocks, rows, parts, threads)
    launch = Launch("kernel", (min(MAX_GRID, blocks), 1), threads, shared if cached else 0)
    return LaunchConfig(replace(variant, cache="shared" if cached else "", online=online and not cached), (launch,))


def _cached_columns(
    nest: LoopNest, columns: int, rows: int, variant: Variant, device: DeviceLimits
) -> LaunchConfig | None:
    """Blocks that cache most of a sector's columns in shared memory; None where they are too few or too long."""
    threads, online = CACHED_ROW_THREADS[1], online_of(nest) is not None
    itemsize, size = sum(slot_bytes(nest, False, online)), SECTOR_BYTES // min(dtype.itemsize for dtype in nest.arrays)
    if not itemsize or size % variant.vector or columns // size < 2 * device.multiprocessors:
        return None
    held = (device.shared - static_bytes(nest, "columns", threads)) // (itemsize * size) // 16 * 16
    if held < CACHED_SHARE * rows:
        return None
    width, shared = size // variant.vector, min(held, -(-rows // 16) * 16) * itemsize * size
    variant = replace(variant, team="columns", width=width, threads=threads, cache="part", online=online)
    most = min(2 * MAX_IN_FLIGHT // variant.vector, -(-rows * width // threads))
    variant = replace(variant, accesses=_in_flight(nest, variant.vector, most))
    launch = Launch("kernel", (min(MAX_GRID, -(-columns // size)), 1), threads, shared)
    return LaunchConfig(variant, (launch,), cached_accesses=min(held, rows))


def _parts(blocks: int, accesses: int, threads: int, reread: bool, device: DeviceLimits) -> int:
    """The number of blocks that each row is split among; 1 where there are enough blocks, or rows are short.

    `reread`: whether a later stage reads rows again: split rows are not cached.
    """
    capacity = device.multiprocessors * max(1, device.threads // (2 * threads))
    enough = 2 * device.multiprocessors if reread else capacity
    return (
        min(MAX_PARTS, -(-accesses // (threads * MAX_ROW_ACCESSES)), max(1, capacity // blocks))
        if blocks < enough
        else 1
    )


def _split(nest: LoopNest, variant: Variant, blocks: int, accesses: int, parts: int, threads: int) -> LaunchConfig:
    """A kernel for each stage, whose blocks have parts of rows; then one that joins the last parts."""
    part = -(-accesses // parts)
    parts = -(-accesses // part)
    grids = ((name, (blocks, 1 if name == "end" else parts)) for name in kernel_names(nest, variant))
    launches = tuple(Launch(name, grid, threads) for name, grid in grids)
    columns = variant.width * variant.vector if nest.columns else 1
    return LaunchConfig(variant, launches, part, parts, blocks * columns * parts)
