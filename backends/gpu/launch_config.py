"""How loop nests are laid out on a CUDA device: the variant of each kernel, its grids, blocks and shared memory.

The rules look at sizes, steps and the device's own limits, and at nothing else,
so the same call runs the same kernels and gives the same bits.

- An access is of as many elements as 16 bytes hold of the widest array, or half as many or a quarter, as all arrays
  that have elements side by side are aligned. Where that makes less than 8 bytes, but all arrays have elements of one
  size and each row begins equally far from 16 bytes in all of them (rows of odd lengths), accesses are of 16, and
  the first and the last of a row are taken element by element. A thread has 64 bytes under way before it uses the
  first of them, if it has so many to load, and the other threads of the device have something to do.
- Where some arrays lie along another loop than the rest, blocks of 256 threads
  hand over tiles of 32 by 32 elements in shared memory.
- A row of at most 8 accesses for each lane of a warp is reduced by so many lanes that each has 4, if 64 bytes of the
  row lie together in the warp; a longer one by a block of 128 or 256 threads with at most 8 accesses each. They have
  their accesses in registers, with at most 128 bytes of what several stages need in a warp and 64 in a block.
- Of a row that is too long for that, what several stages need stays in shared memory, where that holds it for three
  blocks on a multiprocessor, for two, or for one, of 512 threads. Where not even that, what is read stays there alone,
  and what is dear is made again. Where a row is too long for that too, its first accesses stay, as many as a block has
  room for, and the others are read again.
- Columns are reduced by blocks of 256 threads, 32 side by side, or as many as take 128 bytes; more where columns are so
  short that a thread has fewer than 8 accesses, and fewer where there are no more. What several stages need stays in
  shared memory where it takes at most a quarter of what a block may have, beside the few kilobytes by which the block
  joins its threads, with one column for each thread. Otherwise a thread has as many columns as 16 bytes hold, at most
  4, or half as many or a quarter, as all arrays are aligned, as half of the threads that the device has at once find 8
  accesses, and as a thread accumulates at most 64 bytes.
- Where blocks would be fewer than the device has multiprocessors, twice, or where there is one stage, than make half
  of the threads that the device has at once, the reduced loops are split into parts of at least 8 accesses for each
  thread, so that they do: what registers leave room for runs at once, without a rest that runs alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd, prod

from backends.execution.dialect import accumulator_dtype, compute_dtype
from backends.gpu.codegen.printer import TILE, kernel_names, static_bytes
from backends.gpu.codegen.variant import (
    BYTES_IN_FLIGHT,
    Variant,
    contiguous_arrays,
    live_bytes,
    loaded_bytes,
    slot_bytes,
)
from optree.compile.loopnest import LoopNest, stages_of, strided_reads

#: Bytes that a thread accesses at once.
ACCESS = 16

#: Rows may begin within an access from so many accesses on: two of them are taken element by element.
ENDS = 16

#: A thread has at most so many accesses to a row that registers keep, and at least so many to a part of a row.
ACCESSES = 8

#: And at most so many under way.
SEVERAL = 16

#: A thread keeps at most so many bytes of a row in registers: in a block half as many as in a warp, so that another
#: block on the multiprocessor finds registers, and loads while the first computes.
HELD = {"warp": 128, "block": 64}

#: A thread has several accesses under way only where all take at most so many instructions, and twice as many where
#: they stay in registers: what is compiled grows with them.
LONG = 512

#: How many threads a block has at most, by its teams.
THREADS = {"": 256, "tiles": 256, "warp": 128, "block": 256, "columns": 256}

#: How many it has where shared memory keeps rows, by how many blocks a multiprocessor has room for.
ALONGSIDE = {3: 256, 2: 256, 1: 512}

#: Bytes of shared memory that a multiprocessor needs for each block beside its own.
RESERVED = 1 << 10

#: Bytes of shared memory that any block may have, static and dynamic together, without being asked for beforehand.
STATIC = 48 << 10

#: Columns of a block, and of a thread at most, where it has several.
COLUMNS = 32
COLUMNS_EACH = 4

#: And so many bytes of each row, if they are not columns enough.
LINE = 128

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
    threads : int
        Threads that a multiprocessor has at once.
    """

    multiprocessors: int
    shared: int
    threads: int


#: What stands for a device of an architecture where there is none: T4, A100, L40S, H100 and B200.
DEVICES = {
    "sm_75": Device(40, 64 << 10, 1024),
    "sm_80": Device(108, 163 << 10, 2048),
    "sm_89": Device(142, 99 << 10, 1536),
    "sm_90": Device(132, 227 << 10, 2048),
    "sm_100": Device(148, 227 << 10, 2048),
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
    part : int
        How many accesses of a row are one block's.
    parts : int
        How many blocks share a row.
    entries : int
        How many elements each array of parts has.
    held : int
        How many accesses of a row shared memory keeps, where it keeps a part.
    """

    variant: Variant
    launches: tuple[Launch, ...]
    part: int = 0
    parts: int = 1
    entries: int = 0
    held: int = 0


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
    vector, shifted = _vector(nest, sizes, steps, addresses)
    crossing = strided_reads(nest)
    if crossing and static_bytes(nest, "tiles", THREADS["tiles"]) <= STATIC:
        tiles = prod(-(-n // TILE) if axis in (nest.across, nest.rank - 1) else n for axis, n in enumerate(sizes))
        return Geometry(Variant(1, wide, "tiles"), (Launch("kernel", (tiles, 1), THREADS["tiles"]),))
    variant = Variant(vector, wide, whole=nest.columns or (sizes[-1] % vector == 0 and not shifted), shifted=shifted)
    if not nest.reductions:
        return _elements(nest, sizes, variant, device)
    if nest.columns:
        return _columns(nest, sizes, variant, device)
    return _rows(nest, sizes, variant, device)


def _vector(
    nest: LoopNest, sizes: Sequence[int], steps: Sequence[Sequence[int]], addresses: Sequence[int]
) -> tuple[int, bool]:
    """How many elements a thread accesses at once, and whether rows begin within an access."""
    together = contiguous_arrays(nest)
    if not together:
        return 1, False
    kept = [nest.dtype_of(value).itemsize for stage in stages_of(nest) for value in stage.stores]
    widest = max([nest.arrays[place].itemsize for place in together] + kept)
    most = vector = ACCESS // widest
    alike, reduced = set(), nest.columns
    for place in together:
        others = {axis: step for axis, step in enumerate(steps[place]) if axis != nest.vector and sizes[axis] > 1}
        size = nest.arrays[place].itemsize
        vector = max(1, gcd(vector * size, addresses[place], *(step * size for step in others.values())) // size)
        alike.add((size, addresses[place] % (most * size), *(step % most for step in others.values())))
        reduced |= any(step % most for axis, step in others.items() if axis >= nest.outer)
    if vector * widest < ACCESS // 2 and len(alike) == 1 and not reduced and sizes[-1] >= ENDS * most:
        return most, True
    if nest.columns:
        return gcd(vector, sizes[nest.vector]), False
    return min(vector, 1 << sizes[-1].bit_length() - 1), False


def _power(count: int) -> int:
    """The least power of two that is not below a count."""
    return 1 << max(count - 1, 0).bit_length()


def _under_way(nest: LoopNest, vector: int, most: int) -> int:
    """How many accesses a thread loads before it uses the first, a power of two."""
    bytes_ = vector * min(loaded_bytes(nest))
    found = min(most, SEVERAL, BYTES_IN_FLIGHT // bytes_ if bytes_ else 1, LONG // (nest.cost * vector))
    return 1 << max(found, 1).bit_length() - 1


def _elements(nest: LoopNest, sizes: Sequence[int], variant: Variant, device: Device) -> Geometry:
    chunks, threads = variant.chunks(sizes[-1]) * prod(sizes[:-1]), THREADS[""]
    accesses = _under_way(nest, variant.vector, chunks // (device.multiprocessors * device.threads))
    launch = Launch("kernel", (min(BLOCKS, -(-chunks // (threads * accesses))), 1), threads)
    return Geometry(replace(variant, accesses=accesses, threads=threads), (launch,))


def _rows(nest: LoopNest, sizes: Sequence[int], variant: Variant, device: Device) -> Geometry:
    places, vector, slots = prod(sizes[: nest.outer]), variant.vector, slot_bytes(nest)
    accesses = variant.chunks(sizes[-1]) * prod(sizes[nest.outer : -1])
    bytes_ = vector * live_bytes(nest)
    several = min(ACCESSES, 2 * LONG // (nest.cost * vector))
    held = {team: min(several, most // bytes_ if bytes_ else several) for team, most in HELD.items()}
    if accesses <= 32 * held["warp"]:
        together = min(_power(accesses), BYTES_IN_FLIGHT // (vector * min(dtype.itemsize for dtype in nest.arrays)))
        width = min(32, max(_power(-(-accesses // min(4, held["warp"]))), together))
        blocks = min(BLOCKS, -(-places * width // THREADS["warp"]))
        variant = replace(variant, team="warp", width=width, threads=THREADS["warp"])
        variant = replace(variant, cache="registers", accesses=-(-accesses // width))
        return Geometry(variant, (Launch("kernel", (blocks, 1), THREADS["warp"]),))
    threads = min(THREADS["block"], max(128, _power(-(-accesses // ACCESSES))))
    variant = replace(variant, team="block", threads=THREADS["block"])
    parts = _parts(places, accesses, threads, bool(slots), device)
    if parts > 1:
        variant = replace(variant, split=True, accesses=_under_way(nest, vector, ACCESSES))
        return _split(nest, variant, places, accesses, parts, threads)
    if accesses <= THREADS["block"] * held["block"]:
        threads = max(threads, _power(-(-accesses // held["block"])))
        found = replace(variant, cache="registers", accesses=-(-accesses // threads))
        return Geometry(found, (Launch("kernel", (min(BLOCKS, places), 1), threads),))
    if slots:
        return _kept(nest, variant, places, accesses, device)
    variant = replace(variant, accesses=_under_way(nest, vector, -(-accesses // threads)))
    return Geometry(variant, (Launch("kernel", (min(BLOCKS, places), 1), threads),))


def _kept(nest: LoopNest, variant: Variant, places: int, accesses: int, device: Device) -> Geometry:
    """Rows that shared memory keeps, whole or in part."""
    joined, beside, bytes_, held = static_bytes(nest, "block", THREADS["block"]), 0, 0, accesses
    for kept in ("shared", "part"):
        size = sum(slot_bytes(nest, kept == "shared"))
        bytes_ = size * (-(-accesses * variant.vector // 16) * 16)
        taken = bytes_ + joined + RESERVED
        beside = next((count for count in ALONGSIDE if taken * count <= device.shared + RESERVED), 0)
        if beside:
            break
    else:
        beside, elements = 1, (device.shared - joined) // size // 16 * 16
        held, bytes_ = elements // variant.vector, elements * size
    threads = ALONGSIDE[beside]
    variant = replace(variant, cache=kept if bytes_ else "", threads=threads)
    most = min(ACCESSES, -(-accesses // threads))
    variant = replace(variant, accesses=_under_way(nest, variant.vector, most))
    return Geometry(variant, (Launch("kernel", (min(BLOCKS, places), 1), threads, bytes_),), held=held)


def _columns(nest: LoopNest, sizes: Sequence[int], variant: Variant, device: Device) -> Geometry:
    columns, rows, threads = prod(sizes[: nest.outer]), prod(sizes[nest.outer :]), THREADS["columns"]
    slots, smallest, vector = slot_bytes(nest), min(dtype.itemsize for dtype in nest.arrays), variant.vector

    def width_of(vector: int) -> int:
        """How many threads stand side by side."""
        least = max(COLUMNS, LINE // (smallest * vector), threads // _power(-(-rows // ACCESSES)))
        return min(_power(columns // vector), least)

    bytes_ = sum(slots) * (-(-rows * width_of(1) // 16) * 16)
    kept = 0 < bytes_ <= device.shared // 4
    stages = stages_of(nest)
    parts_bytes = [
        [compute_dtype(r.dtype).itemsize + accumulator_dtype(r).itemsize for r in stage.reductions] for stage in stages
    ]
    most = 1 if kept else min(COLUMNS_EACH, HELD["block"] // max(map(sum, parts_bytes)))
    enough = ACCESSES * device.multiprocessors * device.threads // 2
    while vector > 1 and (vector > most or columns // vector * rows < enough):
        vector //= 2
    width = width_of(vector)
    places, lanes = -(-columns // (vector * width)), threads // width
    variant = replace(variant, vector=vector, team="columns", width=width, threads=threads)
    variant = replace(variant, accesses=_under_way(nest, vector, min(2 * SEVERAL // vector, -(-rows // lanes))))
    parts = _parts(places, rows * width, threads, bool(slots), device)
    if parts > 1:
        return _split(nest, replace(variant, split=True), places, rows, parts, threads)
    launch = Launch("kernel", (min(BLOCKS, places), 1), threads, bytes_ if kept else 0)
    return Geometry(replace(variant, cache="shared" if kept else ""), (launch,))


def _parts(places: int, accesses: int, threads: int, again: bool, device: Device) -> int:
    """How many blocks share a place; one where there are places enough, or rows are short.

    Parameters
    ----------
    again : bool
        Whether a later stage reads rows again: what is split is not cached.
    """
    blocks = device.multiprocessors * max(1, device.threads // (2 * threads))
    enough = 2 * device.multiprocessors if again else blocks
    return min(PARTS, -(-accesses // (threads * ACCESSES)), -(-blocks // places)) if places < enough else 1


def _split(nest: LoopNest, variant: Variant, places: int, accesses: int, parts: int, threads: int) -> Geometry:
    """A kernel for each stage, whose blocks take parts of rows; then one that joins the last parts."""
    part = -(-accesses // parts)
    parts = -(-accesses // part)
    grids = ((name, (places, 1 if name == "end" else parts)) for name in kernel_names(nest, True))
    launches = tuple(Launch(name, grid, threads) for name, grid in grids)
    columns = variant.width * variant.vector if nest.columns else 1
    return Geometry(variant, launches, part, parts, places * columns * parts)
