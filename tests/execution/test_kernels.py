"""Fused kernels: how many there are, what they give, and when they run."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from harness.staged import REDUCTIONS
from harness.threads import in_threads

from backends import gen_backend
from backends.cpu.backend import ALWAYS, WORK
from backends.cpu.codegen import printer as c
from backends.cpu.compiler import find_compiler
from backends.cpu.runtime import builtin, share_address
from backends.execution.executor import CallStep, KernelStep, steps_of
from backends.execution.specialize import FusedKernel, collapsed_axes
from optree import OpTreeNode, TensorType, function
from optree.compile.fusion import Call, Kernel, fuse
from optree.compile.pipeline import decompose
from optree.compile.program import ONE, Sizes, dims_of, flatten
from optree.errors import BackendError

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C compiler")


@pytest.fixture
def be() -> Any:
    return gen_backend("cpu", rng_seed=0)


@pytest.fixture
def compiled() -> Any:
    return gen_backend("cpu", rng_seed=0, jit=True)


def fused(program: Any) -> list[Any]:
    """A program's steps."""
    return fuse(program, Sizes(program))


def kernels_of(*trees: Any) -> list[list[str]]:
    """The ops of each kernel, and each call alone."""
    program = flatten(trees)
    names = [instruction.op.name for instruction in program.instructions]
    return [[names[i] for i in (s.instructions if isinstance(s, Kernel) else [s.instruction])] for s in fused(program)]


def drawn(seed: int, *shape: int) -> np.ndarray:
    return np.random.RandomState(seed).uniform(0.5, 2.0, shape).astype(np.float32)


# Dimensions and fusion


def test_axes_are_the_same_only_where_an_op_makes_them_so(be):
    x, y, row = be.ones((5, 7)), be.ones((5, 7)), be.ones((7,))
    program = flatten([x * 2 + row, be.sum(y, axis=1), be.transpose(y)])
    dims = dict(zip([*map(id, program.leaves), *range(99)], dims_of(program), strict=False))
    assert dims[id(row)] == dims[id(x)][1:] and not {*dims[id(x)]} & {*dims[id(y)]}
    assert dims_of(program)[program.outputs[1]] == (dims[id(y)][0], ONE)
    assert dims_of(program)[program.outputs[2]] == dims[id(y)][::-1]


def test_elementwise_operations_become_one_kernel(be):
    x, row, column = be.ones((5, 7)), be.ones((7,)), be.ones((5, 1))
    assert kernels_of(be.where(x > row, be.tanh(x * 2 + row), column)) == [["gt", "mul", "add", "tanh", "where"]]
    smaller = be.sqrt(column)  # which would be made once for each place of x
    assert kernels_of(x * smaller) == [["sqrt"], ["mul"]]


def test_what_is_no_kernel_stands_between(be):
    x, y = be.ones((5, 7)), be.ones((7, 5))
    assert kernels_of(be.exp(be.dot(x * 2, y + 1)) * 3) == [["mul"], ["add"], ["dot"], ["exp", "mul"]]


def test_several_values_of_one_domain_are_one_kernel(be):
    w, m, v, g = (be.ones((64, 32)) for _ in range(4))
    m2, v2 = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * be.square(g)
    kernels = [
        step for step in fused(flatten([m2, v2, w - 0.1 * m2 / (be.sqrt(v2) + 1e-8)])) if isinstance(step, Kernel)
    ]
    assert len(kernels) == 1 and len(kernels[0].writes) == 3


def test_a_kernel_never_waits_for_itself(be):
    x, y = be.ones((5, 5)), be.ones((5, 5))
    a = x + y
    program = flatten([be.dot(a, y) * a])
    steps = fused(program)
    assert [type(step) for step in steps] == [Kernel, Call, Kernel]


def test_steps_respect_what_is_overwritten(be):
    x, y = be.ones(8), be.ones(8)
    program = flatten([OpTreeNode.build("assign", x, y * 2), OpTreeNode.build("assign", y, y + 1)])
    steps = fused(program)
    order = [index for step in steps for index in step.instructions]
    names = [program.instructions[i].op.name for i in order]
    assert names.index("mul") < len(names) - 1 - names[::-1].index("assign")


def test_reductions_join_what_they_reduce(be):
    x, y = be.ones((5, 7)), be.ones((5, 7))
    assert kernels_of(be.mean(be.square(x - y)) * 2) == [["sub", "square", "mean", "mul"]]
    assert kernels_of(be.sum(x, axis=1) * be.max(x, axis=1)) == [["sum", "max", "mul"]]
    exponentials = be.exp(x - be.max(x, axis=1))
    assert kernels_of(exponentials / be.sum(exponentials, axis=1)) == [["max", "sub", "exp", "sum", "div"]]
    assert kernels_of(be.sum(x, axis=1), be.sum(x, axis=0)) == [["sum"], ["sum"]]


def test_a_sum_of_many_pairs_makes_no_matrix_of_them(be):
    x, y = be.ones((30,)), be.ones((40,))
    pairs = be.expand_dims(x, 1) - be.expand_dims(y, 0)
    steps = fused(flatten([be.sum(be.exp(-be.square(pairs)), axis=1)]))
    (kernel,) = [step for step in steps if isinstance(step, Kernel)]
    assert len(kernel.writes) == 1 and len(kernel.instructions) == 5


# Loop nests


@pytest.mark.parametrize(
    ("sizes", "strides", "expected"),
    [
        ([2, 3, 4], [[12, 4, 1]], ([24], [[1]])),
        ([2, 1, 4], [[4, 9, 1]], ([8], [[1]])),
        ([2, 3], [[3, 1], [0, 1]], ([2, 3], [[3, 1], [0, 1]])),
        ([2, 3], [[0, 0], [3, 1]], ([6], [[0], [1]])),
        ([4, 3], [[-3, -1]], ([12], [[-1]])),
        ([1, 1], [[1, 1]], ([1], [[0]])),
    ],
)
def test_axes_that_are_contiguous_together_are_joined(sizes, strides, expected):
    assert collapsed_axes(sizes, strides) == expected


def test_equal_nests_are_equal_source(be):
    assert c.source(_nest(be, be.ones(4) * 2 + 1)) == c.source(_nest(be, be.ones(9) * 3 + 5))


def _nest(be: Any, tree: Any) -> Any:
    program = flatten([tree])
    (kernel,) = fused(program)
    return FusedKernel(program, kernel, Sizes(program), lambda nest: None).nest(1, 1, (1, 1))


def loops_of(*trees: Any) -> list[tuple[int, int, tuple[int, ...]]]:
    """The loops, the kept loops and the innermost steps of each nest that trees of C-contiguous tensors need."""
    program = flatten(trees)
    found: list[tuple[int, int, tuple[int, ...]]] = []

    def compile(nest: Any) -> Any:
        found.append((nest.rank, nest.outer, nest.vector_strides))

    values = [getattr(leaf, "array", leaf) for leaf in program.leaves] + [None] * len(program.instructions)
    for kernel in fused(program):
        ours = FusedKernel(program, kernel, Sizes(program), compile)
        specialized = ours.specialize([*(values[i] for i in ours.reads), *[None] * len(ours.writes)], [])
        assert specialized is not None
        ours.compile(specialized.nest)
    return found


def test_loops_are_as_few_as_can_be(be):
    x, y, row, column = be.ones((5, 7)), be.ones((5, 7)), be.ones((7,)), be.ones((5, 1))
    assert loops_of(x * y + 1) == [(1, 1, (1, 1, 1))]
    assert loops_of(x * row) == [(2, 2, (1, 1, 1))]
    assert loops_of(x * column) == [(2, 2, (1, 0, 1))]
    assert loops_of(be.sum(x * y)) == [(1, 0, (1, 1, 0))]
    assert loops_of(be.sum(x * row, axis=1)) == [(2, 1, (-1, 0, 1))]  # of short rows, columns


# Values


@needs_compiler
@pytest.mark.parametrize("shape", [(), (1,), (7,), (5, 7), (3, 1, 4), (0, 3), (70, 900)])
def test_kernels_give_what_numpy_gives(compiled, be, shape):
    arrays = [drawn(i, *shape) for i in range(3)]
    results = []
    for backend in (compiled, be):
        x, y, z = (backend.array(a) for a in arrays)
        out = backend.empty(shape)
        out[...] = backend.where(x > y, backend.tanh(x * y + 0.5) / z, -backend.sqrt(z)) + 1
        results.append(out.get())
    np.testing.assert_allclose(*results, rtol=1e-6)


@needs_compiler
def test_every_layout(compiled):
    array = drawn(0, 12, 10)
    x = compiled.array(array)
    row, column = compiled.array(array[0]), compiled.array(array[:, :1])
    views = {
        "whole": (x, array),
        "flipped": (x[::-1, ::-1], array[::-1, ::-1]),
        "strided": (x[::2, 1::3], array[::2, 1::3]),
        "transposed": (x.T, array.T),
        "one column": (x[:, 3:4], array[:, 3:4]),
        "empty": (x[:0], array[:0]),
    }
    for view, values in views.values():
        for target in (compiled.empty(view.shape), compiled.empty(view.shape[::-1]).T):
            target[:] = view * 2 - be_broadcast(compiled, view, row, column)
            np.testing.assert_allclose(target.get(), values * 2 - numpy_broadcast(values, array), rtol=1e-6)


def be_broadcast(be: Any, view: Any, row: Any, column: Any) -> Any:
    return row[: view.shape[1]] if view.shape[1] <= 10 else column[:1]


def numpy_broadcast(values: np.ndarray, array: np.ndarray) -> np.ndarray:
    return array[0][: values.shape[1]] if values.shape[1] <= 10 else array[:1, :1]


@needs_compiler
@pytest.mark.parametrize("dtype", ["bool", "int8", "int32", "int64", "uint8", "uint64", "float32", "float64"])
def test_every_dtype(compiled, be, dtype):
    values = np.array([0, 1, 2, 3, 100], dtype)
    results = []
    for backend in (compiled, be):
        x = backend.array(values, dtype)
        tree = backend.where(x > 1, x, backend.maximum(x, x)) * 1.5 + backend.cast(x, np.float32)
        results.append((tree.asnumpyarray(), (x + x).asnumpyarray(), (x == x).asnumpyarray()))
    for ours, numpys in zip(*results, strict=True):
        assert ours.dtype == numpys.dtype
        np.testing.assert_array_equal(ours, numpys)


@needs_compiler
def test_numbers_of_every_size(compiled, be):
    small, wide = np.array([0, 44, 255], np.uint8), np.array([0, 2**63 + 5], np.uint64)
    cases = [
        lambda b: b.array(small) == 300,
        lambda b: b.array(small) > -1,
        lambda b: b.array(small) + 200,
        lambda b: b.array(wide) + (2**63 - 1),
        lambda b: b.array(small, np.float64) * 10**30,
        lambda b: b.where(b.array(small) > 1, True, False),
    ]
    for case in cases:
        ours, numpys = (case(b).asnumpyarray() for b in (compiled, be))
        assert ours.dtype == numpys.dtype
        np.testing.assert_array_equal(ours, numpys)


@needs_compiler
def test_special_values(compiled, be):
    values = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, 3e38, -1.0], np.float32)
    for name in ("exp", "log", "sin", "tanh", "sqrt", "sig", "relu", "abs", "floor", "reciprocal"):
        ours, numpys = (getattr(b, name)(b.array(values)).asnumpyarray() for b in (compiled, be))
        np.testing.assert_allclose(ours, numpys, rtol=2e-6, err_msg=name)
        np.testing.assert_array_equal(np.isnan(ours), np.isnan(numpys))


@pytest.mark.matrix
@needs_compiler
@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("shape", [(5, 7), (1, 9), (9, 1), (33, 700), (3, 0)])
def test_reductions_in_kernels_give_what_numpy_gives(compiled, be, name, shape):
    if 0 in shape and name in ("several", "softmax"):
        return  # the maximum of nothing is refused
    x, v = drawn(0, *shape), drawn(1, shape[1])
    ours, numpys = (REDUCTIONS[name](b, b.array(x), b.array(v)).asnumpyarray() for b in (compiled, be))
    assert ours.dtype == numpys.dtype
    np.testing.assert_allclose(ours, numpys, rtol=3e-6)


@needs_compiler
def test_extremes_of_nans_and_infinities(compiled, be):
    x = np.array([[1, np.nan, 2], [3, 1, 2], [-np.inf] * 3, [np.inf, 1, np.nan]], np.float32)
    for name in ("max", "min", "sum", "mean"):
        ours, numpys = (getattr(b, name)(b.array(x) * 1.0, axis=1).asnumpyarray() for b in (compiled, be))
        np.testing.assert_array_equal(ours, numpys)


@needs_compiler
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_long_sums_are_as_accurate_as_numpys(compiled, dtype):
    values = np.random.RandomState(0).uniform(0, 1, 3_000_017).astype(dtype)
    exact = np.sum(values.astype(np.longdouble))
    ours = (compiled.sum(compiled.array(values, dtype) * 1.0)).asnumpyarray().item()
    unit = float(np.spacing(np.asarray(exact, dtype)))
    assert abs(ours - float(exact)) <= max(abs(float(np.sum(values)) - float(exact)), unit)


@needs_compiler
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_compiler_puts_nothing_in_the_place_of_two_functions(compiled, dtype):
    values = np.tile(np.array([np.nan, 0.5, -0.25, 0.125], dtype), 8)
    pairs = [(outer, inner) for outer in ("sin", "cos", "sinh", "cosh") for inner in ("arctan", "arctanh")]
    x = compiled.array(values, dtype)
    found = compiled.evaluate([getattr(compiled, outer)(getattr(compiled, inner)(x)) for outer, inner in pairs])
    for (outer, inner), ours in zip(pairs, found, strict=True):
        wanted = getattr(np, outer)(getattr(np, inner)(values))
        np.testing.assert_allclose(ours.get(), wanted, rtol=8 * np.finfo(dtype).eps, err_msg=f"{outer} of {inner}")


@needs_compiler
def test_a_target_that_is_read_elsewhere_is_read_first(compiled):
    array = drawn(0, 50)
    x = compiled.array(array)
    x[1:] = x[:-1] * 2
    np.testing.assert_array_equal(x.get()[1:], array[:-1] * 2)
    y = compiled.array(drawn(1, 6, 6))
    before = y.get()
    y[:] = y.T + y
    np.testing.assert_array_equal(y.get(), before.T + before)
    y[:] = y * 2  # in place, where that is safe
    np.testing.assert_array_equal(y.get(), (before.T + before) * 2)


@needs_compiler
def test_what_the_kernel_uses_on_is_written_into_its_target_all_the_same(compiled):
    w, m = compiled.array(drawn(0, 40, 5), name="w"), compiled.array(drawn(1, 40, 5), name="m")
    before, addresses = (w.get(), m.get()), (w.array.ctypes.data, m.array.ctypes.data)
    mean = m * 0.5 + w
    step = function([], updates={m: mean, w: w - mean})
    step()
    np.testing.assert_array_equal(m.get(), before[1] * np.float32(0.5) + before[0])
    np.testing.assert_array_equal(w.get(), before[0] - m.get())
    assert addresses == (w.array.ctypes.data, m.array.ctypes.data)
    (kernel,) = step._plan.bound.steps
    assert len(kernel.assigned) == 2 and not kernel.plannable  # no array is made


@pytest.mark.parametrize("kind", ["a tensor", "transposed", "a row", "another dtype", "a cast sum"])
def test_what_is_copied_or_converted_is_written_by_a_kernel(compiled, kind):
    x, target = compiled.array(drawn(0, 40, 40), name="x"), compiled.zeros((40, 40), name="target")
    wide = compiled.array(drawn(1, 40, 40).astype("float64"), dtype="float64", name="wide")
    value = {"a tensor": x, "transposed": x.T, "a row": x[3], "another dtype": wide, "a cast sum": wide + x}[kind]
    program = decompose(compiled.program([OpTreeNode.build("assign", target, value)]))
    steps = fused(program)
    assert [type(step) for step in steps if not _is_view(program, step)] == [Kernel, Call]
    ran = steps_of(program, compiled._implementations(program, False), ALWAYS.executor, ALWAYS.options)
    assert [len(step.assigned) for step in ran if isinstance(step, KernelStep)] == [1]
    assert not any(isinstance(step, CallStep) and step.op.name == "assign" for step in ran)  # it has nothing left to do
    target[:] = value
    wanted = value.astensor().get() if isinstance(value, OpTreeNode) else value.get()
    np.testing.assert_array_equal(target.get(), np.broadcast_to(wanted.astype("float32"), (40, 40)))


def _is_view(program: Any, step: Any) -> bool:
    return isinstance(step, Call) and bool(program.instructions[step.instruction].op.view_map)


# When kernels run


@needs_compiler
def test_small_and_rare_work_waits_for_no_compiler(be):
    before = be.stats()["kernels"]
    x, big = be.ones(100), be.ones(1 << 20)
    for _ in range(50):
        (be.expm1(x) * 0.123).asnumpyarray()
    (be.expm1(big) * 0.123).asnumpyarray()
    assert be.stats()["kernels"] == before


@needs_compiler
def test_work_that_goes_on_gets_a_kernel_once(be):
    big = be.array(drawn(0, 1 << 18))
    target = be.empty(big.shape)

    def run() -> None:
        target[:] = be.log1p(be.square(big)) * 0.125 + 3

    builtin(), share_address()  # which count as well, where they are compiled
    runs = WORK // (4 << 18) + 3
    before = sum(be.stats()["kernels"][name] for name in ("misses", "disk_hits", "hits"))
    for _ in range(runs):
        run()
    assert sum(be.stats()["kernels"][name] for name in ("misses", "disk_hits", "hits")) == before + 1
    np.testing.assert_allclose(target.get(), np.log1p(np.square(big.get())) * 0.125 + 3, rtol=1e-6)


@needs_compiler
def test_many_pairs_of_a_few_are_large_work(be):
    x, y = be.array(drawn(0, 6000)), be.array(drawn(1, 6000))
    pairs = be.expand_dims(x, 1) - be.expand_dims(y, 0)
    tree = be.sum(be.exp(-be.square(pairs)), axis=1)
    tracemalloc.start()
    tree.asnumpyarray()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 6000 * 6000 * 4 / 4  # not even once is the matrix of pairs made


@needs_compiler
def test_sizes_and_numbers_compile_nothing(compiled):
    def run(n: int, factor: float) -> Any:
        x = compiled.array(drawn(0, n, 3))
        return x, (compiled.exp2(x) * factor).asnumpyarray()

    run(2, 0.5)
    before = compiled.stats()["kernels"]["misses"], compiled.stats()["compiles"]
    for n, factor in ((3, 0.25), (40, 7.0)):
        x, result = run(n, factor)
        np.testing.assert_allclose(result, np.exp2(x.get()) * np.float32(factor), rtol=1e-6)
    assert (compiled.stats()["kernels"]["misses"], compiled.stats()["compiles"]) == before


@needs_compiler
def test_threads_share_a_backend(compiled):
    def work(seed: int) -> None:
        values = drawn(seed, 100, 100)
        for _ in range(20):
            result = (compiled.array(values) * seed + 1).asnumpyarray()
            np.testing.assert_allclose(result, values * seed + 1, rtol=1e-6)

    in_threads(work, 6)


def test_info_and_wrong_choices(monkeypatch):
    assert "jit=False" in gen_backend("cpu", jit=False).info()
    with pytest.raises(BackendError, match="'auto', 'always', True or False"):
        gen_backend("cpu", jit="yes")
    monkeypatch.setattr("backends.cpu.backend.find_compiler", lambda: None)
    assert "gcc or clang" in gen_backend("cpu").info()
    with pytest.raises(BackendError, match="jit=True needs a C compiler"):
        gen_backend("cpu", jit=True)


# What went wrong once


@needs_compiler
def test_a_target_that_is_read_along_another_axis(compiled, be):
    results = []
    for backend in (compiled, be):
        x, a = backend.array(drawn(0, 4, 4)), backend.array(drawn(1, 4))
        a[:] = backend.sum(x * a, axis=1, keepdims=False)
        b = backend.array(drawn(2, 4))
        b[:] = backend.max(x - b, axis=1, keepdims=False)
        results.append([a.get(), b.get()])
    np.testing.assert_allclose(*results, rtol=1e-6)


@needs_compiler
def test_a_smaller_value_beside_larger_ones_is_made_once(compiled, be):
    results = []
    for backend in (compiled, be):
        x, r, s = backend.array(drawn(0, 4, 3)), backend.array(drawn(1, 3)), backend.ones((1,))
        function([], updates={x: x + r, r: r * 2})()
        function([], updates={x: x * s, s: s + 1})()
        q, t = backend.array(drawn(2, 1, 3)), backend.array(drawn(3, 4, 1))
        total = function([], backend.sum(x * t * q, axis=1) * s, updates={s: s * 2, q: q * 3})()
        results.append([v.get() for v in (x, r, s, q, total)])
    for ours, numpys in zip(*results, strict=True):
        np.testing.assert_allclose(ours, numpys, rtol=1e-6)


@needs_compiler
def test_a_smaller_value_beside_nothing(compiled):
    x, r = compiled.zeros((0, 3)), compiled.array(drawn(0, 3))
    nothing, doubled = function([], [x + r, r * 2])()
    assert nothing.shape == (0, 3)
    np.testing.assert_array_equal(doubled.get(), r.get() * 2)


@needs_compiler
def test_a_number_is_passed_in_the_kind_that_each_use_needs(compiled, be):
    results = []
    for backend in (compiled, be):
        flags, v = backend.array(np.array([True, False])), backend.array(drawn(0, 2))
        i = backend.array(np.array([3, 4]))
        trees = [
            backend.logical_and(flags, 0.5),
            backend.logical_or(flags, 0.25),
            backend.logical_and(flags, 1e30),
            backend.logical_and(v, float("nan")),
        ]
        both = function([], [backend.logical_and(v, 0.5), v // 0.5, v * 0.5, v + 0.5])()
        large = 2**60 + 1
        wide = function([], [backend.cast(i, "float64") * large, i + large])()
        results.append([t.asnumpyarray() for t in trees] + [t.get() for t in (*both, *wide)])
    for ours, numpys in zip(*results, strict=True):
        np.testing.assert_array_equal(ours, numpys)


@needs_compiler
def test_elements_that_lie_as_no_c_arrays_do(compiled):
    records = np.zeros(10, [("a", "i1"), ("b", "f4")])
    records["b"] = np.arange(10)
    x = TensorType("float32", (None,))("x")
    found = function([x], x * 2 + compiled.ones(()))(records["b"])
    np.testing.assert_array_equal(found.get(), np.arange(10) * 2 + 1)
