"""Arrays handed over to kernels as they are: only where they lie as some did before, and with the right result."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import tracemalloc
from typing import Any

import numpy as np
import pytest
from harness.calls import calls_of
from harness.compiling import done, python
from harness.threads import in_threads

from backends import gen_backend
from backends.cpu import runtime
from backends.cpu.compiler import find_compiler
from backends.execution.specialize import FusedKernel
from optree import TensorType, function
from optree.errors import CompilerError
from optree.registry import f

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler")


@pytest.fixture
def be() -> Any:
    return gen_backend("cpu", rng_seed=0, jit=True)


@pytest.fixture
def general(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The layouts for which a kernel was specialized, by its writes."""
    met: list[Any] = []
    specialize = FusedKernel.specialize

    def counted(self: FusedKernel, arrays: Any, input_shapes: Any) -> Any:
        met.append(self.writes)
        return specialize(self, arrays, input_shapes)

    monkeypatch.setattr(FusedKernel, "specialize", counted)
    return met


def test_arrays_that_lie_as_others_did_are_handed_over(be, general):
    a, b, z = be.array(np.arange(6.0)), be.ones(6), be.empty(6)
    for step in range(5):
        z[:] = a * b + float(step)
        assert z.get().tolist() == [x + step for x in range(6)]
        a, b, z = be.array(np.arange(6.0)), be.ones(6), be.empty(6)  # others, perhaps in the same memory
    assert len(general) == 1
    new = (a * b + 1.0).astensor()
    again = (a * b + 1.0).astensor()
    assert len(general) == 2 and new is not again
    again[:] = 0
    assert new.get().tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def test_every_layout_gives_the_right_result(be, general):
    """Sizes, steps, offsets and numbers of axes that one plan serves."""
    memory = be.array(np.arange(48.0).reshape(6, 8))
    layouts = [memory, memory[:, ::2], memory[::-1], memory[1:4, 3:5], memory[:, ::2], memory[::3, ::-1], memory]
    for x in layouts * 2:
        z = be.empty(x.shape)
        z[:] = x * 2 + x
        np.testing.assert_array_equal(z.get(), x.get() * 3)
    assert 5 <= len(general) <= 2 * len(layouts)


def test_memory_that_is_read_elsewhere_is_not_written_first(be):
    for shift in (0, 1, 0, 2, 200, -1, -3):
        memory = be.array(np.arange(400.0))
        z, x = memory[50:150], memory[50 + shift : 150 + shift]
        wanted = x.get() * 2 + 1
        z[:] = x * 2 + 1
        np.testing.assert_array_equal(z.get(), wanted, err_msg=str(shift))


def test_an_array_that_is_laid_out_anew_in_its_place(be):
    x, z = be.array(np.arange(6.0).reshape(2, 3)), be.empty((2, 3))
    tree = x * 2 + 1
    for _ in range(3):
        z[:] = tree
    x.raw()[...] = 5
    z[:] = tree
    assert z.get().tolist() == [[11.0] * 3] * 2


def test_an_array_of_another_alignment(be, monkeypatch):
    def at(offset: int) -> np.ndarray:
        x = np.zeros(4 * 8 + 8, np.uint8)[offset : offset + 32].view(np.float32)
        x[...] = np.arange(8)
        return x

    addresses: list[int] = []
    call = runtime.CompiledNest.call

    def recorded(self: Any, operands: Any, memory: Any) -> Any:
        addresses.extend(map(memory.address, operands.reads.values()))
        return call(self, operands, memory)

    monkeypatch.setattr(runtime.CompiledNest, "call", recorded)
    for offsets in ((0, 4, 1, 3, 0), (1, 0)):  # whichever was first, C takes those alone that lie as C's arrays do
        f = function([x := TensorType("float32", (None,))("x")], x * 2 + x)
        for offset in offsets:
            assert f(at(offset)).get().tolist() == [3.0 * i for i in range(8)]
        assert addresses and not any(address % 4 for address in addresses)
        addresses.clear()


def test_many_shapes_are_handed_over(be, general):
    tensors = [be.array(np.arange(4.0 * n).reshape(4, n)) for n in range(2, 18)]
    for _ in range(3):
        for x in tensors:
            x[:] = x * 2 + 1
    assert len(general) == len(tensors), "a layout is found once for each"
    for n, x in enumerate(tensors, 2):
        np.testing.assert_array_equal(x.get(), np.arange(4.0 * n).reshape(4, n) * 8 + 7)


#: Views of a matrix, by what NumPy's functions and indices make of it and of a tensor alike.
VIEWS: dict[str, Any] = {
    "transpose": lambda x: np.transpose(x),
    "diagonal": lambda x: np.diagonal(x),
    "diagonal above": lambda x: np.diagonal(x, 2),
    "flip": lambda x: np.flip(x),
    "flat": lambda x: np.reshape(x, -1),
    "split": lambda x: np.reshape(x, (2, 3, -1)),
    "of a view": lambda x: np.transpose(np.flip(np.reshape(x, (3, 2, -1)), 1), (2, 0, 1)),
    "broadcast": lambda x: np.broadcast_to(np.expand_dims(x, 0), (3, *x.shape)),
}


@pytest.mark.parametrize("view", VIEWS)
def test_an_array_is_handed_over_in_place_of_its_view(be, general, view):
    """Arrays of other layouts, of which some views are copies, and others elsewhere in memory."""
    memory = np.arange(192.0, dtype="float32").reshape(12, 16)
    given = [be.array(memory)[:6, :8], be.array(memory[:6, :8]), be.array(memory)[1::2, ::-2], be.array(memory[6:, 8:])]
    for x in given * 2:
        wanted = VIEWS[view](x.get())
        z, total = be.empty(wanted.shape), be.empty(())
        for _ in range(2):
            z[:] = VIEWS[view](x) * 2 + 1
            total[:] = np.sum(VIEWS[view](x))
        np.testing.assert_array_equal(z.get(), wanted * 2 + 1)
        assert total.item() == wanted.sum()
    assert len(general) <= 6, "once for each layout"


def test_no_view_is_made_of_an_array_that_is_handed_over(be):
    x, y = be.array(np.arange(48.0).reshape(6, 8)), be.ones((8, 6))
    z = be.empty((8, 6))
    tree = np.transpose(np.reshape(np.flip(x, 1), (6, 8))) + np.transpose(np.flip(x, 0)) * y
    for _ in range(3):
        z[:] = tree
    assert "numpy" not in calls_of(lambda: z.__setitem__(slice(None), tree))
    copied = be.array(np.arange(96.0).reshape(6, 16))[:, :8]  # reshaped, it is a copy, which is made each time
    z = be.empty(48)
    flat = np.reshape(copied, -1) + 1
    for _ in range(3):
        z[:] = flat
    assert calls_of(lambda: z.__setitem__(slice(None), flat)).count("numpy") == 1
    copied[:] = 5
    z[:] = flat
    assert z.get().tolist() == [6.0] * 48


def test_a_view_that_a_call_reads_too_and_one_of_a_computed_value(be):
    x, values = TensorType("float32", (None, None))("x"), np.arange(12.0, dtype="float32").reshape(3, 4) % 5
    for given in (x, be.array(values)):
        flipped = np.flip(given, 1)
        outputs = [np.sort(flipped, axis=1), flipped * 2, np.transpose(np.sort(given, axis=1)) + 1]
        run = function([x] if given is x else [], outputs)
        for _ in range(4):
            found = run(values) if given is x else run()
            for each, wanted in zip(found, (np.sort(values), values[:, ::-1] * 2, np.sort(values).T + 1), strict=True):
                np.testing.assert_array_equal(each.get(), wanted)


def test_what_a_view_reads_is_not_written_first(be):
    memory = be.array(np.arange(64.0).reshape(8, 8))
    for target in (memory, memory[:4, :4], memory[3:7, 4:], be.empty((8, 8)), memory):
        for view in (np.flip, np.transpose, lambda x: np.flip(x, 0)):
            read = memory[: len(target), : target.shape[1]]
            tree = view(read) + 1
            for _ in range(3):
                wanted = view(read.get()) + 1
                target[:] = tree
                np.testing.assert_array_equal(target.get(), wanted)
    for start in (3, 5, 0, 6):
        tree = f.slice(memory, np.s_[4:6]) + 1
        for _ in range(3):
            wanted = memory.get()[4:6] + 1
            memory[start : start + 2] = tree
            np.testing.assert_array_equal(memory.get()[start : start + 2], wanted)


def test_a_function_reads_an_argument_in_place_of_its_views(be):
    x, y = TensorType("float32", (None, None))("x"), be.array(np.arange(12.0).reshape(3, 4))
    run = function([x], [np.sum(np.diagonal(y) * 2) + np.transpose(x), np.flip(x) + 1])
    values = np.arange(12.0, dtype="float32").reshape(3, 4)
    for given in (values, values + 1, np.asfortranarray(values), values[::-1], values):
        total, flipped = run(given)
        np.testing.assert_array_equal(total.get(), 2 * np.trace(y.get()) + given.T)
        np.testing.assert_array_equal(flipped.get(), np.flip(given) + 1)
    called = calls_of(lambda: run(values))
    assert "numpy" not in called, called


def test_draws_are_handed_over_too(be, general):
    x, z = be.array(np.arange(6.0)), be.empty(6)
    z[:] = x * be.rand(6)
    del general[:]
    values = []
    for _ in range(3):
        z[:] = x * be.rand(6)
        values.append(z.get())
    assert not general and all((x >= 0).all() and (x <= np.arange(6)).all() for x in values)
    assert len({tuple(x) for x in values}) == 3


def test_numbers_may_change(be):
    x, n, flags = be.array([1.0, 2.0]), be.array([1, 2], dtype="int32"), be.array([True, False], dtype="bool")
    z, m, r = be.empty(2), be.empty(2, dtype="int32"), be.empty(2, dtype="bool")
    for number in (0.5, -3.0, float("inf"), 1e-30):
        z[:] = x * number + 1
        np.testing.assert_array_equal(z.get(), x.get() * np.float32(number) + 1)
    for number in (2, -7, 2**30):
        m[:] = n * number
        np.testing.assert_array_equal(m.get(), n.get() * np.int32(number))
    for number in (3, -2):
        z[:] = x * number
        np.testing.assert_array_equal(z.get(), x.get() * np.float32(number))
    u, v = be.array([1, 2], dtype="uint64"), be.empty(2, dtype="uint64")
    for number in (3, 2**62, 2**63 - 1):
        v[:] = u * number
        np.testing.assert_array_equal(v.get(), u.get() * np.uint64(number))
    for flag in (True, False):
        r[:] = be.logical_or(flags, flag)
        assert r.get().tolist() == [True, flag]


def test_a_number_out_of_range_is_an_error(be):
    n, m = be.array([1, 2], dtype="int32"), be.empty(2, dtype="int32")
    for _ in range(2):
        m[:] = n * 3
    plan = list(be.plans.values())[-1]
    plan.run([m.array, n.array, 4], None)
    with pytest.raises((OverflowError, struct.error)):
        plan.run([m.array, n.array, 2**70], None)
    assert m.get().tolist() == [4, 8]
    plan.run([m.array, n.array, 5], None)
    assert m.get().tolist() == [5, 10]


def test_scalars_and_arrays_without_axes(be):
    f = function([x := TensorType("float64", ())("x")], x * 2 + 1)
    for value in (1.5, np.float64(2.5), np.array(3.5), 4):
        assert f(value).item() == float(value) * 2 + 1


def test_sizes_of_what_is_only_broadcast_to(be):
    x, s = TensorType("float32", (None, None))("x"), be.array([2.0], name="s")
    f = function([x], be.broadcast_like(s, x) * 3)
    for shape in ((2, 3), (3, 2), (2, 3), (1, 5)):
        assert f(np.zeros(shape, np.float32)).get().tolist() == np.full(shape, 6.0).tolist()


def test_sizes_that_follow_from_the_arrays_that_are_checked_are_not_asked_for(be):
    """Fills of one plan, whose sizes are those of their targets; and sums, whose count of terms is not theirs."""
    for shape in ((4, 3), (4, 5), (2, 3), (4, 3)):
        x, z = be.ones(shape), be.zeros(shape)
        fill, mean = np.full_like(x, 2), np.sum(np.full_like(x, 2), axis=1)
        total = be.zeros(shape[:1])
        for _ in range(3):
            z[:], total[:] = fill, mean
        assert z.get().tolist() == np.full(shape, 2.0).tolist()
        assert total.get().tolist() == [2.0 * shape[1]] * shape[0]
        assert "input_shapes" not in calls_of(lambda: z.__setitem__(slice(None), fill))  # noqa: B023


def test_several_threads(be):
    """One plan, arrays and numbers of each thread's own."""

    def work(number: int) -> None:
        x, z = be.full(1000, number), be.empty(1000)
        for step in range(200):
            z[:] = x * 2.0 + float(step)
            assert (z.get() == 2 * number + step).all()

    in_threads(work, 6)


def test_a_function_called_by_several_threads(be):
    x, w = TensorType("float32", (None,))("x"), be.ones(64, name="w")
    f = function([x], be.sum(x * w * 2, keepdims=False))

    def work(number: int) -> None:
        given = np.full(64, number, np.float32)
        assert {f(given).item() for _ in range(200)} == {128 * number}

    in_threads(work, 4)


FORKED = """
import os, numpy as np
from backends import gen_backend
be = gen_backend("cpu", jit=True)
x, z = be.ones(1 << 20), be.empty(1 << 20)
for _ in range(3):
    z[:] = x * 2 + 1
child = os.fork()
if child == 0:
    z[:] = x * 2 + 1
    x[:] = z * 1
    os._exit(0 if (x.get() == 3).all() else 1)
_, status = os.waitpid(child, 0)
raise SystemExit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_child_goes_on_with_what_its_parent_has_met():
    done = subprocess.run([sys.executable, "-c", FORKED], timeout=120, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_python_of_another_layout_has_no_kernels(monkeypatch):
    """On CPython, objects look as the headers say; elsewhere, NumPy runs what is not required to be compiled."""
    assert callable(runtime.builtin())
    monkeypatch.setattr(runtime, "_has_layout", lambda values: False)
    runtime.builtin.cache_clear()
    try:
        with pytest.raises(CompilerError, match="CPython"):
            (gen_backend("cpu", jit=True).ones(3) + 1.5).astensor()
        assert (gen_backend("cpu", jit="always").ones(3) + 1.5).get().tolist() == [2.5] * 3
    finally:
        runtime.builtin.cache_clear()


def test_repeated_assignments_keep_no_memory(be):

    x, z = be.ones(100), be.empty(100)

    def work(times: int) -> None:
        for step in range(times):
            z[:] = x * float(step) + 1
            be.sum(x * 2 + step).astensor()

    work(300)
    tracemalloc.start()
    try:
        work(100)
        before, _ = tracemalloc.get_traced_memory()
        work(2000)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 5000


def test_a_kernel_that_runs_as_the_interpreter_ends():
    """By which time modules have let go of what they had."""
    code = """
    import os, sys
    import numpy as np
    from backends import gen_backend
    from optree import function
    class Last:
        def __init__(self):
            be = gen_backend("cpu", jit=True)
            self.x, self.y = be.array(np.arange(6.0)), be.zeros(6)
            self.step = function([], updates={self.y: self.x * 2 + 1})
        def __del__(self, write=os.write):
            self.step()
            write(1, b"done")
    sys.last = Last()
    sys.last.step()
    sys.last.step()
    """
    assert done(python(code, PYTHONMALLOC="debug")) == "done"
