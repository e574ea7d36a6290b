"""How kernels are laid out on a GPU, by numbers alone: within each device's limits, every element once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Any

import numpy as np
import pytest
from harness.device import ATTRIBUTES, DEFAULT
from harness.golden import CUDA_TREES
from hypothesis import given
from hypothesis import strategies as st

from backends import gen_backend, launches
from backends.backend import Backend
from backends.execution.printer_common import accumulator_dtype
from backends.gpu.codegen.variant import Variant
from backends.gpu.kernel import divisor
from backends.gpu.launch_config import (
    BLOCK_THREADS,
    CACHED_ROW_THREADS,
    DEVICES,
    INT32_LIMIT,
    DeviceLimits,
    LaunchConfig,
    configure,
)
from backends.inspection import specialize_all
from optree.compile.loopnest import LoopNest
from optree.tree.types import TensorType

#: Of every CUDA device: blocks along x and y, threads of a block.
BLOCKS_X, BLOCKS_Y, MOST_THREADS = (ATTRIBUTES[number] for number in (5, 6, 1))

EVERY = {
    **DEVICES,
    "one multiprocessor": DeviceLimits(1, 48 << 10, 1024),
    "a thousand": DeviceLimits(1000, 256 << 10, 2048),
}


@pytest.fixture
def be() -> Any:
    """The CPU's backend: sources and launches are those of a tree, without a device."""
    return gen_backend("cpu")


def _input(shape: tuple[int, ...], dtype: str = "float32") -> Any:
    return TensorType(dtype, shape)("x")


#: A tree for each kind of nest, the number of its loops, and how many of them are kept.
TREES: dict[str, tuple[Any, int]] = {
    "elements": (lambda be, dtype: be.sqrt(_input((64,), dtype)) + 1, 1),
    "broadcast": (lambda be, dtype: _input((8, 64), dtype) * _input((64,), dtype), 2),
    "all": (lambda be, dtype: be.sum(_input((64,), dtype)), 1),
    "rows": (lambda be, dtype: be.sum(_input((8, 64), dtype), axis=1) * 2, 2),
    "columns": (lambda be, dtype: be.sum(_input((64, 8), dtype), axis=0) + 1, 2),
    "softmax of rows": (lambda be, dtype: be.softmax(_input((8, 64), dtype), axis=1), 2),
    "long softmax of rows": (lambda be, dtype: be.softmax(be.erf(be.sin(_input((8, 64), dtype))), axis=1), 2),
    "softmax of columns": (lambda be, dtype: be.softmax(_input((64, 8), dtype), axis=0), 2),
    "planes of columns": (lambda be, dtype: be.sum(_input((3, 64, 8), dtype), axis=1), 3),
}


@cache
def nest_of(name: str, dtype: str = "float32") -> LoopNest:
    found: list[LoopNest] = []

    def keep(nest: LoopNest) -> Any:
        found.append(nest)
        return lambda pointers, numbers, layout: None

    make, rank = TREES[name]
    specialize_all(Backend.program([make(gen_backend("cpu", jit=False), dtype)]), keep)
    (nest,) = found
    assert nest.rank == rank
    return nest


def steps_of(nest: LoopNest, sizes: Sequence[int]) -> list[list[int]]:
    """Those of arrays in C order, columns with the reduced loop before the one along which elements lie."""
    order = list(range(nest.rank))
    if nest.columns:
        order[nest.vector], order[nest.vector + 1] = order[nest.vector + 1], order[nest.vector]
    found = []
    for level in nest.levels:
        axes = {"once": [], "outer": [a for a in order if a < nest.outer], "inner": order}[level]
        steps, step = [0] * nest.rank, 1
        for axis in reversed(axes):
            steps[axis], step = step, step * sizes[axis]
        found.append(steps)
    if not nest.reductions and nest.rank == 2:  # a row for all
        found[1][0] = 0
    return found


def laid_out(
    nest: LoopNest, sizes: Sequence[int], device: DeviceLimits = DEVICES["sm_90"], offset: int = 0
) -> LaunchConfig:
    return configure(nest, sizes, steps_of(nest, sizes), [256 + offset] * len(nest.arrays), device)


def check_limits(nest: LoopNest, config: LaunchConfig, device: DeviceLimits) -> None:
    variant, team, static = config.variant, config.variant.team, 0
    if team in ("block", "columns"):
        static = sum(
            (32 if team == "block" else BLOCK_THREADS[team]) * accumulator_dtype(r).itemsize for r in nest.reductions
        )
    assert static <= DEFAULT
    for launch in config.launches:
        (x, y), block = launch.grid, launch.block
        assert 1 <= x <= BLOCKS_X and 1 <= y <= BLOCKS_Y
        assert 32 <= block <= min(MOST_THREADS, variant.threads) and block % 32 == 0
        assert variant.threads in ((BLOCK_THREADS[team], *CACHED_ROW_THREADS.values()) if team == "block" else (block,))
        assert launch.shared >= 0 and launch.shared + static <= device.shared
        assert (launch.shared > 0) == (variant.cache in ("shared", "part"))
    assert config.entries == 0 or config.variant.split


def accesses_of(nest: LoopNest, reduced: Sequence[int], variant: Variant) -> int:
    """How many accesses a row has; of columns each row is one."""
    return prod(reduced) if nest.columns else variant.chunks(reduced[-1]) * prod(reduced[:-1])


def counted(nest: LoopNest, sizes: Sequence[int], config: LaunchConfig) -> np.ndarray:
    """How often each access to each row is some thread's, as the kernels' loops share them out."""
    launch, variant, width = config.launches[0], config.variant, config.variant.width
    (blocks, parts), block = launch.grid, launch.block
    if not nest.reductions:
        chunks = variant.chunks(sizes[-1]) * prod(sizes[:-1])
        found = np.zeros(chunks, int)
        for start in range(blocks):
            for u in range(variant.accesses):
                for thread in range(block):
                    first = (start * variant.accesses + u) * block + thread
                    found[first :: blocks * block * variant.accesses] += 1
        return found
    reduced = sizes[nest.outer :]
    accesses = accesses_of(nest, reduced, variant)
    teams = {"warp": block // width, "columns": 1}.get(variant.team, 1)
    lanes = {"warp": width, "columns": block // width}.get(variant.team, block)
    places = prod(sizes[: nest.outer])
    places = -(-places // (width * variant.vector)) if nest.columns else places
    if variant.cache == "registers":
        assert lanes * (variant.accesses - 1) < accesses <= lanes * variant.accesses
    found = np.zeros((places, accesses), int)
    for team in range(min(blocks * teams, places)):
        for part in range(parts):
            start, end = (
                (part * config.part, min((part + 1) * config.part, accesses)) if variant.split else (0, accesses)
            )
            assert start < end
            for lane in range(min(lanes, end - start)):
                found[team :: blocks * teams, start + lane : end : lanes] += 1
    return found


SIZES = st.one_of(st.integers(1, 70), st.integers(1, 3000))


@given(data=st.data())
@pytest.mark.parametrize("name", TREES)
def test_every_element_is_one_threads(name: str, data: Any) -> None:
    nest = nest_of(name, data.draw(st.sampled_from(["float32", "float64"])))
    sizes = [data.draw(SIZES if axis == nest.rank - 1 else st.integers(1, 40)) for axis in range(nest.rank)]
    device = EVERY[data.draw(st.sampled_from(sorted(EVERY)))]
    config = laid_out(nest, sizes, device, data.draw(st.sampled_from([0, 4, 8])))
    check_limits(nest, config, device)
    assert (counted(nest, sizes, config) == 1).all()
    if nest.columns:
        assert config.variant.width <= 256 and BLOCK_THREADS["columns"] % config.variant.width == 0


@given(data=st.data())
@pytest.mark.parametrize("name", TREES)
def test_the_largest_arrays_are_within_every_devices_limits(name: str, data: Any) -> None:
    """Up to 2^40 elements, which no memory here holds."""
    nest = nest_of(name, data.draw(st.sampled_from(["float32", "float64"])))
    powers = [data.draw(st.integers(0, 40)) for _ in range(nest.rank)]
    scale = max(1.0, sum(powers) / 40)
    sizes = [2 ** int(power / scale) + data.draw(st.integers(0, 1)) for power in powers]
    for device in EVERY.values():
        config = laid_out(nest, sizes, device)
        check_limits(nest, config, device)
        assert config.variant.wide_index == (prod(sizes) >= INT32_LIMIT)
        if config.variant.split:
            accesses = accesses_of(nest, sizes[nest.outer :], config.variant)
            assert config.part * (config.parts - 1) < accesses <= config.part * config.parts


def test_indices_have_64_bits_from_where_32_might_not_do() -> None:
    nest = nest_of("elements")
    for count, is_wide in ((INT32_LIMIT - 1, False), (INT32_LIMIT, True), (2**31, True), (2**33 + 5, True)):
        config = laid_out(nest, [count])
        assert config.variant.wide_index == is_wide
        (launch,) = config.launches
        # Beyond its last element a thread looks one step of the whole grid further.
        assert is_wide or -(-count // config.variant.vector) + launch.grid[0] * launch.block < 2**31
    far = configure(nest, [1000], [[-(1 << 21)], [1]], [256, 256], DEVICES["sm_90"])
    assert far.variant.wide_index, "few elements, far apart"


@given(number=st.integers(0, 2**31 - 1), by=st.one_of(st.integers(1, 2**31 - 1), st.integers(1, 3000)))
def test_kernels_divide_by_multiplying(number: int, by: int) -> None:
    for each in (number, number // by * by, max(0, number // by * by - 1)):
        factor, shift = divisor(by) & 0xFFFFFFFF, divisor(by) >> 32
        assert ((2 * each * factor) >> 32) >> shift == each // by


def test_more_blocks_than_a_grid_has_go_on_in_steps() -> None:
    config = laid_out(nest_of("planes of columns"), [2**31, 200, 2**6])
    assert config.launches[0].grid[0] == BLOCKS_X and config.variant.wide_index


@pytest.mark.parametrize("name", TREES)
def test_the_same_sizes_are_laid_out_the_same(name: str) -> None:
    nest = nest_of(name)
    for sizes in ([48] * nest.rank, [7] * (nest.rank - 1) + [70000]):
        first = laid_out(nest, sizes)
        assert (
            first
            == laid_out(nest, sizes, offset=1 << 20)
            == laid_out(nest, list(sizes), DeviceLimits(**vars(DEVICES["sm_90"])))
        )


def test_accesses_are_of_16_bytes_where_all_arrays_allow_it() -> None:
    for dtype, most in (("float32", 4), ("float64", 2)):
        nest = nest_of("elements", dtype)
        itemsize = 16 // most
        assert laid_out(nest, [1000]).variant.vector == most
        assert laid_out(nest, [1001]).variant.vector == most, "the last elements are taken one by one"
        (step,) = steps_of(nest, [1000])[0]
        apart = configure(nest, [1000], [[step], [step]], [256 + itemsize, 256], DEVICES["sm_90"])
        combined = (4, (0,)) if itemsize == 4 else (1, ())  # of two accesses; 8 bytes do
        assert (apart.variant.vector, apart.variant.unaligned) == combined
        apart = configure(nest, [10], [[step], [step]], [256 + itemsize, 256], DEVICES["sm_90"])
        assert apart.variant.vector == 1, "few elements have both"
        assert laid_out(nest, [1000], offset=8).variant.vector == 8 // itemsize
        assert laid_out(nest, [most - 1]).variant.vector == most // 2
        assert laid_out(nest_of("rows", dtype), [5, 1000]).variant.vector == most
        assert laid_out(nest_of("rows", dtype), [5, 1002]).variant.vector == 2, "where each other row begins"
        variant = laid_out(nest_of("broadcast", dtype), [5, 1001]).variant
        expected = (4, True, (1,)) if itemsize == 4 else (1, False, ())
        assert (variant.vector, variant.shifted, variant.unaligned) == expected, "the row for all is aligned"


def test_rows_of_odd_lengths_are_accessed_by_16_bytes_where_all_arrays_begin_alike() -> None:
    for dtype, most in (("float16", 8), ("float32", 4)):
        nest = nest_of("rows", dtype)

        def found(n: int, nest: LoopNest = nest, offset: int = 0) -> tuple[int, bool, bool]:
            variant = laid_out(nest, [5, n], offset=offset).variant
            return variant.vector, variant.shifted, variant.whole

        assert found(1001) == (most, True, False)
        assert found(1000) == (most, False, True)
        assert found(1000, offset=16 // most) == (most, True, False), "beside a boundary"
        assert found(1000 + most // 2) == (most // 2, False, True), "8 bytes do"
        assert found(16 * most - 1) == (1, False, True), "short ones are mostly ends"
        assert laid_out(nest, [5, 1001]).variant.chunks(1001) == -(-(1000 + most) // most)
        assert laid_out(nest_of("elements", dtype), [1000], offset=16 // most).variant.shifted
        assert found(1001, nest_of("softmax of rows", dtype)) == (most, True, False), "floats that are kept take two"
        assert laid_out(nest_of("broadcast", dtype), [5, 1001]).variant.unaligned == (1,), "the row for all is aligned"


def test_teams_grow_with_rows() -> None:
    nest, device = nest_of("rows"), DEVICES["sm_90"]
    found = [
        (g.variant.team, g.variant.width, g.variant.accesses, g.launches[0].block)
        for n in (1, 3, 32, 256, 1024)
        for g in [laid_out(nest, [9999, n])]
    ]
    warp = [(1, 1), (4, 1), (4, 2), (16, 4), (32, 8)]
    assert found == [("warp", width, accesses, 128) for width, accesses in warp]
    longer = [laid_out(nest, [9999, n]) for n in (1028, 4096, 8192, 1 << 16)]
    found = [(g.variant.team, g.variant.cache, g.variant.accesses, g.launches[0].block) for g in longer]
    assert found == [
        ("block", "registers", 3, 128),
        ("block", "registers", 8, 128),
        ("block", "registers", 8, 256),
        ("block", "", 4, 256),
    ]
    few, many = laid_out(nest, [2, 1 << 20]), laid_out(nest, [4 * device.multiprocessors, 1 << 20])
    assert few.variant.split and not many.variant.split
    assert few.part >= 8 * few.launches[0].block and few.parts == 128, "parts have some work for each thread"
    # What is kept is split less willingly.
    assert not laid_out(nest_of("softmax of rows"), [2 * device.multiprocessors, 1 << 15]).variant.split


def test_rows_stay_in_registers_then_in_shared_memory_and_then_in_part() -> None:
    device = DEVICES["sm_90"]

    def found(n: int, device: DeviceLimits = device, dtype: str = "float32") -> tuple[Any, ...]:
        config = laid_out(nest_of("softmax of rows", dtype), [4096, n], device)
        (launch,) = config.launches
        assert launch.grid == (1024 if config.variant.team == "warp" else 4096, 1)
        return config.variant.cache, launch.block, launch.shared

    assert found(1000) == ("registers", 128, 0)
    assert found(4096) == ("registers", 256, 0)
    assert found(1 << 14) == ("shared", 256, 65536), "of three blocks on a multiprocessor"
    assert found(20000) == ("shared", 256, 80000), "of two"
    assert found(32000) == ("shared", 512, 128000), "of one"
    assert found(57000) == ("shared", 512, 228032)
    assert found(57000)[2] + 32 * (4 + 8) <= device.shared, "with what warps join"
    assert found(1 << 16) == ("part", 512, 232064), "58,016 of 65,536 elements"
    assert found(20000, DEVICES["sm_75"]) == ("part", 512, 65152)
    assert found(38000, dtype="float16") == ("shared", 512, 228000), "2 bytes are read, and 4 made of them"
    assert found(40000, dtype="float16") == ("part", 256, 80000), "all that is read"


@given(n=st.integers(1 << 16, 1 << 22), dtype=st.sampled_from(["float16", "float32", "float64"]))
def test_as_much_of_a_row_stays_as_a_block_has_room_for(n: int, dtype: str) -> None:
    size = np.dtype(dtype).itemsize
    for name, device in EVERY.items():
        config = laid_out(nest_of("softmax of rows", dtype), [4096, n], device)
        (launch,), vector = config.launches, config.variant.vector
        assert config.cached_accesses * vector * size <= launch.shared, name
        if config.cached_accesses * vector < n:
            assert device.shared - launch.shared < 32 * (max(size, 4) + 8) + 16 * size, name


def test_several_loads_are_under_way_where_there_is_work_for_all_threads() -> None:
    one, two = nest_of("elements"), nest_of("broadcast")
    assert [laid_out(one, [n]).variant.accesses for n in (1 << 16, 1 << 20, 1 << 21, 1 << 22, 1 << 24)] == [
        1,
        1,
        1,
        2,
        4,
    ]
    assert laid_out(one, [1 << 24]).launches[0].grid == (4096, 1)
    apart = configure(one, [1 << 24], [[2], [1]], [256, 260], DEVICES["sm_90"])
    assert apart.variant.accesses == 4, "of which the first and last are partial"
    assert laid_out(two, [1 << 12, 1 << 12]).variant.accesses == 2, "two arrays, each of 16 bytes, twice"
    assert laid_out(nest_of("columns"), [1 << 14, 1 << 10]).variant.accesses == 4
    assert laid_out(nest_of("columns"), [1 << 14, 1 << 10], offset=4).variant.accesses == 16, "of 4 bytes"
    assert laid_out(nest_of("all"), [1 << 24]).variant.accesses == 4
    long = nest_of("softmax of rows")
    assert {laid_out(long, [300, n]).variant.accesses for n in (16000, 20000, 1 << 16)} == {4}
    assert long.cost * 4 * 4 <= 512


def test_long_kernels_are_not_repeated_often() -> None:
    """The code that NVRTC makes grows with the accesses of a thread."""
    nest = nest_of("long softmax of rows")
    for n in (64, 256, 600, 1024, 4096, 1 << 14, 1 << 16):
        variant = laid_out(nest, [4096, n]).variant
        assert variant.accesses * variant.vector * nest.cost <= 1024, n
    assert laid_out(nest, [4096, 1024]).variant.team == "block", "of more threads, for fewer accesses each"


def test_columns_fill_the_device() -> None:
    """With half of its threads, as far as whole parts go; some rows each, if need be."""
    for sizes in ((40, 1 << 20), (1 << 10, 1 << 14), (1 << 13, 1 << 13), (1 << 14, 1 << 12), (1 << 20, 1 << 10)):
        for name, device in DEVICES.items():
            config = laid_out(nest_of("columns"), sizes, device)
            (columns, parts), block = config.launches[0].grid, config.launches[0].block
            threads = columns * (parts + 1) * block
            assert threads >= device.multiprocessors * device.threads / 2, (sizes, name)
    assert laid_out(nest_of("columns", "float64"), (1 << 13, 1 << 13)).variant.width == 32
    assert laid_out(nest_of("columns", "uint8"), (1 << 13, 1 << 13)).variant.width == 32


def test_a_thread_has_several_columns_where_there_are_enough() -> None:
    def found(nest: LoopNest, columns: int, rows: int, offset: int = 0) -> tuple[int, int, str]:
        variant = laid_out(nest, [columns, rows], offset=offset).variant
        return variant.vector, variant.width, variant.cache

    nest, bytes_ = nest_of("columns"), nest_of("columns", "uint8")
    assert found(nest, 1 << 13, 1 << 13) == (4, 32, ""), "512 bytes of each row"
    assert found(nest_of("columns", "float16"), 1 << 13, 1 << 13) == (4, 32, ""), "of 8 bytes"
    assert found(nest_of("columns", "float64"), 1 << 13, 1 << 13) == (2, 32, "")
    assert found(bytes_, 1 << 13, 1 << 13) == (4, 32, "")
    assert found(bytes_, 8191, 1 << 13) == (1, 128, ""), "128 bytes of each row"
    assert found(nest, (1 << 13) + 2, 1 << 13) == found(nest, 1 << 13, 1 << 13, offset=8) == (2, 32, "")
    assert found(nest, 1 << 13, 1 << 10) == (4, 32, "") and found(nest, 1 << 13, 1 << 8) == (1, 32, "")
    assert found(nest_of("softmax of columns"), 1 << 20, 256) == (1, 32, "shared"), "what stays is not read again"
    assert found(nest_of("softmax of columns"), 1 << 13, 1 << 13) == (4, 2, "part"), "32 bytes of each row"
    assert found(nest_of("softmax of columns"), 1 << 13, 1 << 14) == (4, 32, ""), "less than half of them would stay"
    assert found(nest_of("softmax of columns"), 1 << 11, 1 << 13)[2] == "", "too few for the device"


def test_short_columns_leave_no_thread_idle() -> None:
    nest = nest_of("planes of columns")
    found = [(g.variant.width, g.launches[0].grid) for n in (2, 16, 64) for g in [laid_out(nest, [1 << 20, 2, n])]]
    assert found == [(256, (4096, 1)), (128, (8192, 1)), (32, (32768, 1))]
    assert laid_out(nest, [1, 3, 9999]).variant.width == 4, "of few columns, all"


@pytest.mark.matrix
@pytest.mark.parametrize("shape", [(64, 1000), (5000, 33), (3, 1 << 20), (1 << 20, 3), (1 << 16, 256), (4096, 4096)])
@pytest.mark.parametrize("axis", [0, 1, None])
@pytest.mark.parametrize("arch", DEVICES)
def test_what_follows_a_reduction_changes_no_launch(be: Any, shape: Any, axis: Any, arch: str) -> None:
    x = _input(shape)
    alone = launches(be.sum(x, axis=axis), arch=arch)
    for tree in (be.sum(x, axis=axis) * 2 + 1, be.sqrt(be.sum(be.square(x), axis=axis)), -be.mean(x - 1, axis=axis)):
        assert launches(tree, arch=arch) == alone


@pytest.mark.matrix(least=4)
@pytest.mark.parametrize("tree", CUDA_TREES, ids=lambda tree: tree.__name__)
def test_the_golden_trees_fill_every_device(be: Any, tree: Any) -> None:
    """No launch has fewer blocks than the device has multiprocessors, but where there is little to do."""
    for arch, device in DEVICES.items():
        for launch in launches(tree(be), arch=arch):
            few = launch.name == "end" or tree.__name__ in (
                "broadcast",
                "mixed_dtypes",
                "mandelbrot",
                "adam",
                "cross_entropy",
                "softmax_in_parts",
                "pool",
                "spaced",
                "sum_of_taps",
            )
            assert few or prod(launch.grid) >= device.multiprocessors
