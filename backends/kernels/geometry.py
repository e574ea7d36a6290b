"""How loop nests are laid out on a CUDA device: the variant of each kernel, its grids, blocks and shared memory.

The rules look at sizes, steps and the device's own limits, and at nothing else,
so the same call runs the same kernels and gives the same bits.

- Without reductions, a thread takes as many elements as 16 bytes hold of the
  widest array, where all arrays that have elements side by side are aligned so.
- Where some arrays lie along another loop than the rest, blocks of 256 threads
  hand over tiles of 32 by 32 elements in shared memory.
- A row of up to 8 such accesses for each lane of a warp is reduced by so many
  lanes of a warp as it has accesses, rounded up to a power of two; a longer one by a block.
- Columns are reduced by blocks of 256 threads, 32 columns side by side; more where they are so short that a thread
  has fewer than 8 accesses, and fewer where there are no more.
- What several walks of a row need stays in shared memory where that holds it
  for two blocks on a multiprocessor (four, of warps or columns); where not, it is read again.
- Where blocks would be fewer than the device has multiprocessors, twice, the
  reduced loops are split into parts of at least 8 accesses for each thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from backends.kernels.cuda import THREADS, TILE, crossing_reads, kernel_names, slot_bytes
from backends.kernels.cuda_elements import Variant
from backends.kernels.loopnest import LoopNest, walks

#: Bytes that a thread accesses at once.
ACCESS = 16

#: A lane has at most so many accesses to a row that a warp reduces, and a thread at least so many to a part of a row.
ACCESSES = 8

#: Bytes of shared memory that any block may have without being asked for beforehand.
STATIC = 48 << 10

#: Columns of a block.
COLUMNS = 32

#: A split row has at most so many parts.
PARTS = 1024

#: A grid has at most so many blocks along x; kernels go on in steps of the whole grid.
BLOCKS = 2**31 - 1

#: Indices of 32 bits serve up to here; so a grid's step beyond the last does not overflow either.
NARROW = 1 << 30


@dataclass(frozen=True)
class Device:
    """A CUDA device's limits.

    Attributes
    ----------
    multiprocessors : int
    shared : int
        Bytes of shared memory that a block may have.
    """

    multiprocessors: int
    shared: int


#: What stands for a device of an architecture where there is none: T4, A100, L40S, H100 and B200.
DEVICES = {
    "sm_75": Device(40, 64 << 10),
    "sm_80": Device(108, 163 << 10),
    "sm_89": Device(142, 99 << 10),
    "sm_90": Device(132, 227 << 10),
    "sm_100": Device(148, 227 << 10),
}


@dataclass(frozen=True)
class Launch:
    """One kernel's launch.

    Attributes
    ----------
    name : str
    grid : tuple of int
        Blocks along x and y.
    block : int
        Threads.
    shared : int
        Bytes of dynamic shared memory.
    """

    name: str
    grid: tuple[int, int]
    block: int
    shared: int = 0


@dataclass(frozen=True)
class Geometry:
    """How a nest of certain sizes runs.

    Attributes
    ----------
    variant : Variant
    launches : list of Launch
        In order.
    width : int
        The lanes of a team that is a part of a warp; the columns of a block of columns.
    part : int
        How many accesses of a row are one block's.
    parts : int
        How many blocks share a row.
    entries : int
        How many elements each array of parts has.
    """

    variant: Variant
    launches: tuple[Launch, ...]
    width: int = 1
    part: int = 0
    parts: int = 1
    entries: int = 0


def geometry_of(
    nest: LoopNest, sizes: Sequence[int], steps: Sequence[Sequence[int]], addresses: Sequence[int], device: Device
) -> Geometry:
    """How a nest runs on arrays.

    Parameters
    ----------
    sizes : sequence of int
        The loops'.
    steps : sequence of sequence of int
        For each array its steps along the loops, in elements.
    addresses : sequence of int
        The arrays'.
    """
    reach = max((sum(abs(step) * (n - 1) for step, n in zip(each, sizes, strict=True)) for each in steps), default=0)
    wide = max(reach, prod(sizes)) >= NARROW
    vector = _vector(nest, sizes, steps, addresses)
    crossing = crossing_reads(nest)
    if crossing and sum(nest.reads[place].itemsize for place in crossing) * TILE * (TILE + 1) <= STATIC:
        tiles = prod(-(-n // TILE) if axis in (nest.across, nest.rank - 1) else n for axis, n in enumerate(sizes))
        return Geometry(Variant(1, wide, "tiles"), (Launch("kernel", (tiles, 1), THREADS["tiles"]),))
    if not nest.reductions:
        chunks = -(-sizes[-1] // vector) * prod(sizes[:-1])
        launch = Launch("kernel", (min(BLOCKS, -(-chunks // THREADS[""])), 1), THREADS[""])
        return Geometry(Variant(vector, wide), (launch,))
    if nest.columns:
        return _columns(nest, sizes, wide, device)
    return _rows(nest, sizes, vector, wide, device)


def _vector(nest: LoopNest, sizes: Sequence[int], steps: Sequence[Sequence[int]], addresses: Sequence[int]) -> int:
    """How many elements a thread accesses at once."""
    if nest.columns:
        return 1
    arrays = nest.arrays
    together = [place for place, step in enumerate(nest.steps) if step == 1 and nest.levels[place] == "inner"]
    together = [place for place in together if not nest.is_counted(place)]
    kept = [nest.dtype_of(value).itemsize for walk in walks(nest) for value in walk.stores]
    widest = max([arrays[place].itemsize for place in together] + kept, default=ACCESS)
    vector = ACCESS // max(widest, 4 if kept else 1)
    for place in together:
        others = [step for axis, step in enumerate(steps[place]) if axis != nest.vector and sizes[axis] > 1]
        if addresses[place] % (vector * arrays[place].itemsize) or any(step % vector for step in others):
            return 1
    return vector if together and sizes[-1] >= vector else 1


def _power(count: int) -> int:
    """The least power of two that is not below a count."""
    return 1 << max(count - 1, 0).bit_length()


def _rows(nest: LoopNest, sizes: Sequence[int], vector: int, wide: bool, device: Device) -> Geometry:
    places = prod(sizes[: nest.kept])
    accesses = -(-sizes[-1] // vector) * prod(sizes[nest.kept : -1])
    bytes_ = sum(slot_bytes(nest)) * (-(-accesses * vector // 16) * 16)
    if accesses <= 32 * ACCESSES:
        width = min(32, _power(accesses))
        teams = THREADS["warp"] // width
        cached = 0 < bytes_ * teams <= device.shared // 4
        launch = Launch(
            "kernel", (min(BLOCKS, -(-places // teams)), 1), THREADS["warp"], bytes_ * teams if cached else 0
        )
        return Geometry(Variant(vector, wide, "warp", cached), (launch,), width)
    threads = min(THREADS["block"], max(128, _power(accesses // ACCESSES)))
    parts = min(PARTS, -(-accesses // (threads * ACCESSES)), -(-4 * device.multiprocessors // places))
    if places < 2 * device.multiprocessors and parts > 1:
        return _split(nest, Variant(vector, wide, "block", split=True), places, accesses, parts, threads, 1)
    cached = 0 < bytes_ <= device.shared // 2
    launch = Launch("kernel", (min(BLOCKS, places), 1), threads, bytes_ if cached else 0)
    return Geometry(Variant(vector, wide, "block", cached), (launch,))


def _columns(nest: LoopNest, sizes: Sequence[int], wide: bool, device: Device) -> Geometry:
    columns, rows, threads = prod(sizes[: nest.kept]), prod(sizes[nest.kept :]), THREADS["columns"]
    width = min(_power(columns), max(COLUMNS, threads // _power(-(-rows // ACCESSES))))
    places = -(-columns // width)
    parts = min(PARTS, -(-rows // (threads // width * ACCESSES)), -(-4 * device.multiprocessors // places))
    if places < 2 * device.multiprocessors and parts > 1:
        return _split(nest, Variant(1, wide, "columns", split=True), places, rows, parts, threads, width)
    bytes_ = sum(slot_bytes(nest)) * (-(-rows * width // 16) * 16)
    cached = 0 < bytes_ <= device.shared // 4
    launch = Launch("kernel", (min(BLOCKS, places), 1), threads, bytes_ if cached else 0)
    return Geometry(Variant(1, wide, "columns", cached), (launch,), width)


def _split(
    nest: LoopNest, variant: Variant, places: int, accesses: int, parts: int, threads: int, width: int
) -> Geometry:
    """Each walk a kernel, whose blocks take parts of rows; then one that joins the last parts."""
    part = -(-accesses // parts)
    parts = -(-accesses // part)
    names = kernel_names(nest, variant)
    launches = tuple(Launch(name, (places, 1 if name == "end" else parts), threads) for name in names)
    return Geometry(variant, launches, width, part, parts, places * width * parts)
