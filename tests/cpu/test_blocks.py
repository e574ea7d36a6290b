"""Kernels without a compiler: the tests of ops, kernels and random trees once more, in blocks; how those are cut."""

from __future__ import annotations

import itertools
import os
import threading
import tracemalloc
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from harness.blocks import in_blocks, small
from harness.compiling import done, python
from harness.each import for_each
from harness.threads import in_threads
from test_kernels import (  # noqa: F401
    drawn,
    test_a_number_is_passed_in_the_kind_that_each_use_needs,
    test_a_smaller_value_beside_larger_ones_is_made_once,
    test_a_smaller_value_beside_nothing,
    test_a_target_that_is_read_along_another_axis,
    test_a_target_that_is_read_elsewhere_is_read_first,
    test_elements_that_lie_as_no_c_arrays_do,
    test_every_dtype,
    test_every_layout,
    test_extremes_of_nans_and_infinities,
    test_kernels_give_what_numpy_gives,
    test_numbers_of_every_size,
    test_reductions_in_kernels_give_what_numpy_gives,
    test_what_the_kernel_uses_on_is_written_into_its_target_all_the_same,
)
from test_random_trees import (  # noqa: F401
    test_a_random_tree_is_numpy_run_op_by_op,
    test_a_random_tree_written_into_a_leaf,
)
from test_registry import (  # noqa: F401
    COMPOSED,
    PURE,
    examples_for,
    test_into_an_operand,
    test_operands_without_strides,
    test_special_values,
)
from test_stages import (  # noqa: F401
    TREES,
    normalised,
    test_a_target_that_is_read_again_in_a_later_stage,
    test_kernels_give_what_the_ops_give,
    test_of_nothing,
    test_reductions_of_integers,
)
from test_stages import test_special_values as test_special_values_of_stages  # noqa: F401

from backends import gen_backend
from backends.cpu.backend import SMALL_FOR_BLOCKS
from backends.cpu.numpy_blocks import MIN_ROWS, Tiling
from backends.execution.thread_pool import share
from optree import function
from optree.arrays import portable
from optree.dtypes import bfloat16
from optree.op.examples import Examples
from optree.op.traits import BinaryOperator, ElementwiseOperator
from optree.settings import override
from optree.testing.conformance import MIXED, check_backend

# The tests that are imported take their backends from these


@pytest.fixture(scope="module")
def cpu() -> Any:
    """One for all tests, each of which sets the size of blocks for itself."""
    with in_blocks(datatype=np.float64) as backend:
        return backend


@pytest.fixture(autouse=True)
def small_blocks(request: Any) -> Any:
    with small() if "cpu" in request.fixturenames else nullcontext():
        yield


@pytest.fixture
def compiled() -> Any:
    with in_blocks() as backend:
        yield backend


@pytest.fixture
def be() -> Any:
    """NumPy on whole arrays: what is small does not run in blocks."""
    return gen_backend("cpu", rng_seed=0, jit=False)


@pytest.fixture
def plain(be: Any) -> Any:
    return be


# How a domain is cut


@pytest.mark.parametrize(
    ("sizes", "reduced", "room", "whole", "takes"),
    [
        ((10,), (), 4, False, [4]),
        ((4, 6), (), 100, False, [4, 6]),
        ((10, 6), (), 12, False, [2, 6]),
        ((9, 6), (), 30, False, [5, 6]),  # rather than 5 and 4 rows, one short block: as equal as can be
        ((10, 6), (1,), 12, False, [2, 6]),
        ((10, 600), (1,), 100, False, [1, 100]),
        ((10, 600), (1,), 100, True, [1, 600]),
        ((600, 10), (0,), 100, False, [10, 10]),  # rows of what lies together, and several of them
        ((600, 1000), (0,), 1600, False, [MIN_ROWS, 200]),
        ((8, 10_000), (0,), 8000, False, [8, 1000]),
        ((600, 10), (0,), 100, True, [600, 10]),  # rows as long as they may be
        ((600, 500), (0,), 100, True, [600, 100]),
        ((600, 7), (0, 1), 70, False, [10, 7]),
        ((600, 7), (0, 1), 70, True, [600, 7]),
        ((), (), 1, False, []),
    ],
)
def test_blocks(sizes, reduced, room, whole, takes):
    tiling = Tiling(sizes, reduced, room, whole)
    assert list(tiling.tile_sizes) == takes
    seen = np.zeros(sizes, int)
    for block in tiling.tiles():
        seen[block] += 1
    assert np.all(seen == 1)
    assert max(np.prod(tiling.shape(block), dtype=int) for block in tiling.tiles()) == tiling.largest


def counted(monkeypatch: Any) -> list[int]:
    """The number of blocks of each kernel that runs."""
    found: list[int] = []

    def share_and_count(tasks: Any, worker: Any) -> None:
        found.append(len(tasks))
        share(tasks, worker)

    monkeypatch.setattr("backends.cpu.numpy_blocks.share", share_and_count)
    return found


def test_kernels_are_cut_and_small_work_is_not(monkeypatch):
    blocks = counted(monkeypatch)
    be = gen_backend("cpu", jit=False)
    x, small = be.ones(SMALL_FOR_BLOCKS), be.ones(SMALL_FOR_BLOCKS - 1)
    with override(block_bytes=12 * SMALL_FOR_BLOCKS // 4):
        assert (small * 2 + 1).asnumpyarray().max() == 3 and blocks == []
        assert (x * 2 + 1).asnumpyarray().max() == 3 and blocks == [4]  # of 12 bytes an element
        assert be.sum(x * 2).asnumpyarray().item() == 2 * SMALL_FOR_BLOCKS and blocks == [4, 3]


# Values


@for_each("name", [*PURE, *COMPOSED], sampled=True)
def test_every_op_gives_what_the_reference_gives(name: str, cpu: Any) -> None:
    """Two dtypes in turn in one layout: a block is a slice, of which no op knows how the whole is laid out."""
    dtypes = [*MIXED, bfloat16()]
    for number, example in enumerate(examples_for(name), len(name)):
        check_backend(example, cpu, number, [dtypes[n % len(dtypes)] for n in (2 * number, 2 * number + 1)])


def layouts(array: np.ndarray) -> list[np.ndarray]:
    """An array's values in every mix of stride signs, orders and gaps, and off the bounds of its elements."""
    found = [array, np.asfortranarray(array)]
    for signs in itertools.product((1, -1), repeat=array.ndim):
        flip = tuple(slice(None, None, sign) for sign in signs)
        found.append(np.ascontiguousarray(array[flip])[flip])
    wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
    wide[..., ::2] = array
    found.append(wide[..., ::2])
    off = np.zeros(array.nbytes + 1, np.uint8)[1:].view(array.dtype).reshape(array.shape)
    off[...] = array
    found.append(off)
    return found


@pytest.mark.matrix(least=4)
@pytest.mark.parametrize("block_bytes", [1, 100, 1000, 1 << 20])
@pytest.mark.parametrize("shape", [(5, 7), (1, 7), (5, 1), (0, 7), (5, 0), (2, 3, 4)])
def test_every_mix_of_layouts(shape, block_bytes):
    rng = np.random.RandomState(0)
    x, y = (rng.uniform(0.5, 2, shape).astype(np.float32) for _ in range(2))
    row, column = y[..., :1, :], y[..., :1]
    with in_blocks(block_bytes) as be:
        for a, b, c in itertools.product(layouts(x), layouts(y), (row, column, np.float32([2.0]))):
            target = np.empty(shape, np.float32, order="F")[..., ::-1]
            be.over(target)[...] = be.over(a) * be.over(b) + be.sqrt(be.over(c))
            np.testing.assert_array_equal(target, x * y + np.sqrt(c))


@pytest.mark.matrix
@pytest.mark.parametrize("tree", TREES, ids=lambda tree: tree.__name__)
@pytest.mark.parametrize("shape", [(4, 300), (300, 4), (70, 130), (1, 5), (600,), (20, 3, 50)])
def test_blocks_of_every_size_give_the_same(plain, tree, shape):
    x = np.random.RandomState(1).uniform(0.5, 2, shape).astype(np.float32)
    for block_bytes in (1, 700, 5000, 1 << 20):
        with in_blocks(block_bytes) as be:
            for axis in (*range(len(shape)), None):
                ours, wanted = (tree(b, b.array(x), axis).asnumpyarray() for b in (be, plain))
                assert ours.dtype == wanted.dtype
                np.testing.assert_allclose(ours, wanted, rtol=2e-4, atol=1e-6)


def test_results_do_not_depend_on_threads():
    x = np.random.RandomState(2).randn(40, 5000).astype(np.float32)
    found = []
    for threads in (1, 2, 5):
        with in_blocks(4096, threads) as be:
            a = be.array(x)
            trees = [be.sum(a * a), be.sum(a * 2, axis=0), be.mean(a - 1, axis=1), normalised(be, a, 1), be.exp(a) * a]
            found.append([tree.asnumpyarray() for tree in trees])
    for others in found[1:]:
        for one, other in zip(found[0], others, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(3_000_017,), (3, 700_001), (700_001, 3)])
def test_long_sums_are_as_accurate_as_numpys(dtype, shape):
    values = np.random.RandomState(0).uniform(0, 1, shape).astype(dtype)
    axis = int(np.argmax(shape))
    exact = np.sum(values.astype(np.longdouble), axis=axis, keepdims=True)
    be = gen_backend("cpu", jit=False)
    ours = be.sum(be.array(values, dtype) * 1.0, axis=axis).asnumpyarray()
    numpys = np.abs(np.sum(np.moveaxis(values, axis, -1).copy(), axis=-1, keepdims=True).ravel() - exact.ravel())
    assert np.all(np.abs(ours - exact).ravel() <= np.maximum(numpys, 2 * np.spacing(exact.astype(dtype)).ravel()))


def test_what_is_made_once_meets_what_all_blocks_have_reduced(be):
    with in_blocks(64) as blocks:
        x, step = drawn(0, 40, 30), np.float32([3.0])
        ours, wanted = (
            (b.sum(b.array(x) * (1 - 0.9 ** b.array(step)), axis=0) / (1 - 0.9 ** b.array(step))).asnumpyarray()
            for b in (blocks, be)
        )
        shared = []
        for b in (blocks, be):
            factor = 1 - 0.9 ** b.array(step)
            shared.append((b.sum(b.array(x) * factor) / b.exp(factor)).asnumpyarray())
    np.testing.assert_allclose(ours, wanted, rtol=1e-6)
    np.testing.assert_allclose(*shared, rtol=1e-6)


def test_a_matrix_of_pairs_is_never_made():
    x, y = (np.random.RandomState(i).randn(3000).astype(np.float32) for i in range(2))
    with in_blocks(1 << 18, 2) as be:
        a, b = be.array(x), be.array(y)
        tree = be.sum(be.exp(-be.square(be.expand_dims(a, 1) - be.expand_dims(b, 0))), axis=1)
        tracemalloc.start()
        ours = tree.asnumpyarray()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 3000 * 3000 * 4 / 8
    wanted = np.exp(-np.square(x[:, None] - y).astype(np.float64)).sum(1)
    np.testing.assert_allclose(ours.ravel(), wanted, rtol=1e-5)


# What may be written, and when


def test_an_operand_that_is_read_again_is_not_written_over(be):
    results = []
    with in_blocks(64) as blocks:
        for backend in (blocks, be):
            x, s = backend.array(np.arange(1.0, 41)), backend.array(np.full((1,), 2.0))
            total = function([], x + 1, updates={x: x * 2})()
            function([], updates={x: x * s, s: s + 1})()
            results.append([total.get(), x.get(), s.get()])
    for ours, wanted in zip(*results, strict=True):
        np.testing.assert_array_equal(ours, wanted)


def test_memory_that_is_looked_into_serves_no_other_value(be):
    x, v = drawn(0, 5, 7), drawn(1, 7, 5)
    with in_blocks(1 << 10) as blocks:
        ours, wanted = ((b.transpose(b.exp(b.array(x))) * b.sqrt(b.array(v))).asnumpyarray() for b in (blocks, be))
    np.testing.assert_array_equal(ours, wanted)


class Fussy(BinaryOperator, ElementwiseOperator):
    """The sum of operands that are below a bound."""

    kernel = "{0} + {1}"
    examples = Examples(sample=(0.0, 1.0))

    @portable
    def numpy(self, *arrays: Any) -> Any:
        if np.max(arrays[0]) > 10:
            raise ValueError("too large")
        return np.add(*arrays)

    def grad(self, inputs: Any, output_gradients: Any) -> Any:
        return [output_gradients[0], output_gradients[0]]


def test_an_op_of_a_users_that_fails_leaves_targets_as_they_were():
    with in_blocks(64, 2) as be:
        x, y = be.array(np.arange(40.0)), be.zeros(40)
        step = function([], updates={x: x * 2 + 1, y: Fussy()(x * 3, y) * 2})
        with pytest.raises(ValueError, match="too large") as caught:
            step()
        assert "Fussy" in "".join(caught.value.__notes__)
        np.testing.assert_array_equal(x.get(), np.arange(40.0))
        assert not y.get().any()
        x[:] = x / 100
        step()
        np.testing.assert_allclose(y.get(), np.arange(40) * 0.06, rtol=1e-6)


# Threads and processes


def test_a_task_that_fails_is_told_and_the_others_end():
    with override(num_threads=3):
        seen: list[int] = []

        def work(task: int) -> None:
            if task == 5:
                raise RuntimeError("five")
            seen.append(task)

        with pytest.raises(RuntimeError, match="five"):
            share(range(200), lambda: work)
        share(range(200, 300), lambda: work)
        assert set(range(200, 300)) <= set(seen)


def test_threads_help_each_other():
    """Each of two tasks waits for the other to have begun."""
    barrier = threading.Barrier(2, timeout=60)
    with override(num_threads=2):
        share(range(2), lambda: lambda task: barrier.wait())


def test_numpy_warns_in_no_thread():
    barrier, found = threading.Barrier(3, timeout=60), {}

    def work(task: int) -> None:
        barrier.wait()
        found[threading.get_ident()] = np.geterr()["divide"]

    with override(num_threads=3), np.errstate(all="raise"):
        share(range(3), lambda: work)
    assert found.pop(threading.get_ident()) == "raise"  # of which the backend takes care
    assert [*found.values()] == ["ignore"] * 2


def test_several_threads_run_kernels_at_once():
    def run(seed: int) -> None:
        x = np.random.RandomState(seed).randn(100, 50).astype(np.float32)
        with in_blocks(2000, 2) as be:
            for _ in range(10):
                np.testing.assert_allclose((be.array(x) * seed + 1).asnumpyarray(), x * seed + 1, rtol=1e-6)

    in_threads(run, 5)


FORKING = """
    import os, sys
    import numpy as np
    from backends import gen_backend

    be = gen_backend("cpu", jit=False)
    x = be.array(np.arange(1 << 20))
    def check():
        assert (x * 2 + 1).asnumpyarray()[-1] == (1 << 21) - 1
    check()
    child = os.fork()
    if not child:
        check()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    check()
    import atexit
    atexit.register(check)  # when no thread can begin any more
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_children_have_threads_of_their_own():
    done(python(FORKING, OPTREE_NUM_THREADS=3, OPTREE_BLOCK_BYTES=1 << 16))


# Where there is no compiler


def test_without_a_compiler_everything_runs_and_says_so(tmp_path):
    code = f"""
        import os
        os.chdir({str(tmp_path)!r})
        import logging
        logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[logging.FileHandler("log")])
        import numpy as np
        from backends import gen_backend
        be, again = gen_backend("cpu"), gen_backend("cpu")
        x = np.random.RandomState(0).randn(1024, 1024).astype(np.float32)
        y = (be.softmax(be.array(x), axis=1) * 2).asnumpyarray()
        e = np.exp(x - x.max(1, keepdims=True))
        np.testing.assert_allclose(y, 2 * e / e.sum(1, keepdims=True), rtol=1e-5)
        print(be.info(), be.stats()["kernels"]["misses"])
    """
    said = done(
        python(f"import os; os.chdir({str(tmp_path)!r})\n" + __import__("textwrap").dedent(code), PATH="", CC="")
    )
    assert "there is no C compiler" in said and "gcc or clang" in said and said.split()[-1] == "0"
    assert (tmp_path / "log").read_text().count("blocks") == 1


def test_what_jit_false_says(caplog):
    be = gen_backend("cpu", jit=False)
    assert "blocks" in be.info() and "jit=False" in be.info()


def test_what_looks_into_a_target_is_read_before_that_is_written():
    with in_blocks(1 << 10) as be:
        x = be.array(np.arange(6.0).reshape(2, 3), "float64")
        before, _ = function([], [be.broadcast_like(x, x), be.sum(x)], updates=[(x, be.exp(be.broadcast_like(x, x)))])()
        np.testing.assert_array_equal(before.get(), np.arange(6.0).reshape(2, 3))


def test_tests_for_nan_go_where_elements_do_not_lie_together():
    with in_blocks(1 << 10) as be:
        x = be.array(np.where(np.arange(4096) % 5, 1.0, np.nan).reshape(8, 8, 64), "float64")
        for name in ("isnan", "isinf", "finite"):
            found = getattr(be, name)(be.transpose(be.square(x))).asnumpyarray()
            np.testing.assert_array_equal(found, getattr(np, {"finite": "isfinite"}.get(name, name))(x.get().T))
            target = be.empty((8, 8, 64), "bool").T
            target[:] = getattr(be, name)(be.transpose(be.square(x)))
            np.testing.assert_array_equal(target.get(), found)
