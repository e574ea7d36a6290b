"""Loops in C: the values and derivatives of the same steps run one by one, and how many steps are still run so."""

from __future__ import annotations

import threading
from itertools import chain, groupby, islice
from typing import Any

import numpy as np
import pytest
from harness.compiling import needs_compiler
from harness.op_examples import examples_for, has_examples

import optree
from backends import gen_backend
from backends.cpu import backend
from backends.cpu.routines import loops
from backends.cpu.runtime import C
from optree import settings
from optree.compile.fusion import Call
from optree.compile.pipeline import lower
from optree.op.index_map import is_view
from optree.op.traits import CopyOperator
from optree.ops.contraction import ProductOperator, TensorDot
from optree.ops.structure import Output
from optree.registry import OPS, f
from optree.testing.examples import Example

pytestmark = needs_compiler


def shifted(states: Any, slices: Any) -> Any:
    """A step of kernels, views and copies: what a value of a state is made of is at other indices, too."""
    (alpha,), (x,) = states, slices
    before = f.pad(alpha[:, :-1], ((0, 0), (1, 0)), -2.0)
    new = f.tanh(f.logaddexp(alpha, before) + x)
    return (new,), (new * 2,)


def joined(states: Any, slices: Any) -> Any:
    """A step with two states, of which one is not needed before each step, copies of both, and a reduction."""
    (a, b), (x,) = states, slices
    wide = f.concatenate([b[:, 1:], a[:, :1] * 0.5], axis=1)
    total = f.sum(f.square(wide), axis=1)
    return (a * 0.5 + x / (1 + total), wide), (f.max(a, axis=1, keepdims=True),)


def by_columns(states: Any, slices: Any) -> Any:
    """A step whose reductions are of columns, and need scratch memory of each thread."""
    (a,), (x,) = states, slices
    return (f.softmax(a + x, axis=0) - f.mean(a, axis=0),), (a,)


def of_integers(states: Any, slices: Any) -> Any:
    (a,), (x,) = states, slices
    count = f.cast(f.flat_indices(a), a.dtype)
    return (f.where(f.gt(x, 0), f.mod(a + count, 7), a),), (f.gt(a, 3),)


def of_complex_numbers(states: Any, slices: Any) -> Any:
    """A step whose states are pairs, of elementwise functions and a sum."""
    (a,), (x,) = states, slices
    new = f.exp(a * 0.1j) * x * 0.3 + a / (1 + f.absolute(a))
    return (new,), (f.sum(new * f.conjugate(x), axis=1, keepdims=True), f.imag(a))


def of_products(states: Any, slices: Any) -> Any:
    """A step of small products: of matrices, vectors, stacks and more axes, either operand from the step before."""
    a, x = states[0] * 0.2, slices[0] * 0.2
    gram = f.tanh(f.dot(a, f.transpose(x)))
    row = f.dot(gram, f.dot(x, f.sum(a, axis=0, keepdims=False)))
    stack = f.matmul(f.expand_dims(gram, 0), f.stack([a, x * 0.5]))
    total = f.tensordot(stack, f.dot(row, a), ((2,), (0,)))
    column = f.dot(f.expand_dims(row, 1), f.slice(x, (slice(0, 1), slice(None))))
    return (f.tanh(f.sum(stack, axis=0, keepdims=False) * 0.1 + column),), (total, f.dot(gram, gram))


STEPS = {
    "of products": (of_products, 1, "float32"),
    "of products in float64": (of_products, 1, "float64"),
    "of products in float16": (of_products, 1, "float16"),
    "shifted": (shifted, 1, "float32"),
    "shifted in float64": (shifted, 1, "float64"),
    "shifted in float16": (shifted, 1, "float16"),
    "joined": (joined, 2, "float32"),
    "by columns": (by_columns, 1, "float64"),
    "of complex numbers": (of_complex_numbers, 1, "complex64"),
    "of integers": (of_integers, 1, "int64"),
}


@pytest.fixture
def in_c(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of steps that each loop has run in C."""
    counts: list[int] = []
    whole, in_one_call = loops.LoopInC.in_one_call, loops.BoundLoop.run

    def counted(self: Any, *args: Any) -> Any:
        counts.append(0)
        return whole(self, *args)

    def noted(self: Any, *args: Any) -> Any:
        outputs = in_one_call(self, *args)
        counts[-1] += 0 if outputs is None else self.length  # none: a step failed, and they run one by one
        return outputs

    monkeypatch.setattr(loops.LoopInC, "in_one_call", counted)
    monkeypatch.setattr(loops.BoundLoop, "run", noted)
    return counts


def operands(name: str, length: int, shape: tuple[int, int] = (3, 5), axis: int = 0) -> tuple[Any, ...]:
    """A step, its states and its sequence, as NumPy arrays."""
    step, states, dtype = STEPS[name]
    rng = np.random.default_rng(length)
    drawn = [rng.normal(size=shape) * 3 for _ in range(states)]
    sequence = rng.normal(size=(*shape[:axis], length, *shape[axis:]))
    return step, [x.astype(dtype) for x in drawn], sequence.astype(dtype), dtype


def results(be: Any, name: str, length: int, reverse: bool, axis: int, shape: tuple[int, int]) -> list[np.ndarray]:
    """The states, the outputs, and the derivatives of a cost by the states and the sequence before."""
    step, states, sequence, dtype = operands(name, length, shape, axis)
    tensors = [be.array(x, dtype) for x in (*states, sequence)]
    found, outputs = be.scan(step, tuple(tensors[:-1]), (tensors[-1],), reverse=reverse, axis=axis)
    roots = [*found, *outputs]
    if dtype != "int64":
        cost = sum(
            f.sum(f.square(f.cast(f.absolute(x) if x.dtype.kind == "c" else x, np.dtype("float64")))) for x in roots
        )
        roots += optree.grad(cost, tensors)
    run = optree.function([], roots)
    run()
    return [x.get() for x in run()]


@pytest.mark.matrix
@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize(("length", "reverse", "axis"), [(10, False, 0), (11, True, 0), (12, False, 1), (37, True, 2)])
def test_values_and_derivatives_are_those_of_steps_one_by_one(
    in_c: list[int], name: str, length: int, reverse: bool, axis: int, request: pytest.FixtureRequest
) -> None:
    if length == 37:  # of each step, once
        request.getfixturevalue("optimised")
    by_numpy, compiled = gen_backend("cpu", jit=False), gen_backend("cpu", jit=True)
    wanted = results(by_numpy, name, length, reverse, axis, (3, 5))
    in_c.clear()
    found = results(compiled, name, length, reverse, axis, (3, 5))
    assert in_c and set(in_c) == {length}
    unit = float(np.finfo(found[0].dtype).eps) if found[0].dtype.kind in "fc" else 0
    for got, expected in zip(found, wanted, strict=True):
        assert got.dtype == expected.dtype
        np.testing.assert_allclose(got, expected, rtol=200 * unit, atol=200 * unit)


def of_matrices(states: Any, slices: Any) -> Any:
    """A step of linear algebra of small matrices, with a stack of two and a right side that is a vector."""
    a, x = states[0], slices[0]
    gram = f.matmul(x, f.matrix_transpose(x)) + f.where(np.eye(x.shape[-2], dtype=bool), 2, 0.1 * f.tanh(a))
    columns = f.solve(gram, x)
    vector = f.expand_dims(f.solve(f.sum(gram, axis=0, keepdims=False), x.at[0, :, 0]), 1)
    sign, log = f.slogdet(gram)
    factor = f.cholesky(gram * 0.5 + 0.5 * f.matrix_transpose(gram))
    total = f.expand_dims(f.expand_dims(f.log(f.det(gram)) + sign * log, 1), 1)
    return (f.tanh(f.matmul(f.inv(gram), factor) + total * 0.01 + vector),), (columns, total)


@pytest.mark.matrix
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_linear_algebra_of_small_matrices(in_c: list[int], dtype: str, size: int) -> None:
    rng = np.random.default_rng(size)
    sequence, state = rng.normal(size=(6, 2, size, size)), rng.normal(size=(2, size, size))
    found = []
    for jit in (False, True):
        be = gen_backend("cpu", jit=jit)
        h, x = be.array(state, dtype), be.array(sequence, dtype)
        (new,), outputs = be.scan(of_matrices, (h,), (x,))
        roots = [new, *outputs]
        cost = sum(f.sum(f.square(each)) for each in roots)
        found.append([y.get() for y in optree.function([], [*roots, *optree.grad(cost, [h, x])])()])
    assert in_c == [6, 6]
    for got, expected in zip(*found[::-1], strict=True):
        np.testing.assert_allclose(got, expected, rtol=2e4 * np.finfo(dtype).eps, atol=1e3 * np.finfo(dtype).eps)


def test_a_singular_matrix_in_a_step_is_numpys_error(in_c: list[int]) -> None:
    be = gen_backend("cpu", jit=True)
    x = be.array(np.stack([np.eye(3), np.ones((3, 3)), np.eye(3)]), "float64")
    for op, message in ((f.inv, "Singular"), (f.cholesky, "positive definite")):
        with pytest.raises(np.linalg.LinAlgError, match=message):
            be.scan(lambda h, part, op=op: (h + op(part), None), be.zeros((3, 3), "float64"), x)[0].asnumpyarray()
    assert in_c == [0, 0]  # called, and failed, so that NumPy repeated the steps
    determinant = be.scan(lambda h, part: (h + f.det(part), None), be.zeros((), "float64"), x)[0]
    assert determinant.asnumpyarray() == 2


def test_cofactors_of_a_singular_matrix(in_c: list[int]) -> None:
    be = gen_backend("cpu", jit=True)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 3, 1)) * rng.normal(size=(4, 1, 3)) + np.diag([0.0, 0.0, 1.0])
    t = be.array(x, "float64")
    total = be.scan(lambda h, part: (h + f.det(part), None), be.zeros((), "float64"), t)[0]
    slopes = optree.function([], [optree.grad(total, t)])()[0].get()
    for part, slope in zip(x, slopes, strict=True):
        minors = [[np.delete(np.delete(part, i, 0), j, 1) for j in range(3)] for i in range(3)]
        signs = (-1.0) ** np.add.outer(range(3), range(3))
        np.testing.assert_allclose(slope, signs * np.linalg.det(np.array(minors)), atol=1e-14)
    assert in_c == [4]


@pytest.mark.usefixtures("optimised")
def test_a_stencil_computes_its_state_where_the_next_step_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    be, counts = gen_backend("cpu", jit=True), list[int]()
    run = loops.BoundLoop.run

    def counted(self: Any, *args: Any) -> Any:
        counts.append(self.loop.count)
        return run(self, *args)

    monkeypatch.setattr(loops.BoundLoop, "run", counted)
    u = np.random.default_rng(0).normal(size=(9, 7))

    def step(u: Any, _: Any) -> Any:
        inner = u.at[2:, 1:-1] + u.at[:-2, 1:-1] + u.at[1:-1, 2:] + u.at[1:-1, :-2] - 4 * u.at[1:-1, 1:-1]
        return u + 0.1 * f.pad(inner, ((1, 1), (1, 1))), None

    last, _ = be.scan(step, be.array(u, "float64"), length=5)
    found = optree.function([], last)().get()
    for _ in range(5):
        inner = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1]
        u = u + 0.1 * np.pad(inner, 1)
    np.testing.assert_allclose(found, u, rtol=1e-12)
    assert counts == [2]  # kernels, and no copy


def test_other_sizes_of_small_products_compile_nothing(in_c: list[int]) -> None:
    be = gen_backend("cpu", jit=True)
    counts = []
    for rows, length in ((3, 5), (7, 5), (2, 9)):
        h, x, w = be.ones((rows, 4)), be.ones((length, rows, 4)), be.ones((4, 4))
        be.scan(lambda h, x, w=w: (f.tanh(h @ w + x), None), h, x)[0].asnumpyarray()
        counts.append(be.compiles)
    assert counts == counts[:1] * 3 and in_c == [5, 5, 9]


@pytest.mark.parametrize("length", [1, 2, 3, 10, 517])
def test_every_number_of_steps(in_c: list[int], length: int) -> None:
    be = gen_backend("cpu", jit=True)
    x = np.random.default_rng(0).integers(-9, 9, (length, 4)).astype("float64")
    # A state of which no value before a step is needed alternates between two arrays.
    (total, last), sums = be.scan(
        lambda states, part: ((states[0] + part, part), states[0] * 2 - states[1]),
        (be.zeros(4, "float64"), be.zeros(4, "float64")),
        be.array(x, "float64"),
    )
    found, final, joined = optree.function([], [total, last, sums])()
    before = np.concatenate([np.zeros((1, 4)), x.cumsum(0)[:-1]])
    np.testing.assert_array_equal(found.get(), x.sum(0))
    np.testing.assert_array_equal(final.get(), x[-1])
    np.testing.assert_array_equal(joined.get(), before * 2 - np.concatenate([np.zeros((1, 4)), x[:-1]]))
    assert in_c == [length]


def calls_of(trees: list[Any]) -> list[Any]:
    """The ops of trees that are neither kernels nor views, copies or products: those that a step may leave C for."""
    fused = lower(trees, C, last="fusion")
    ops = [fused.program.instructions[step.instruction].op for step in fused.steps if isinstance(step, Call)]
    own = (CopyOperator, ProductOperator, TensorDot, Output)
    return [op for op in ops if not (is_view(op) or isinstance(op, own))]


@pytest.mark.matrix
@pytest.mark.parametrize("name", sorted(OPS))
def test_a_step_of_any_op_is_compiled_if_kernels_compute_it(
    in_c: list[int], caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """Of each op with its parameters, one example: kernels are tested on the others."""
    examples = sorted(examples_for(name), key=lambda example: example.label) if has_examples(name) else []
    for example in chain.from_iterable(islice(own, 1) for _, own in groupby(examples, lambda example: example.label)):
        values = example.draw()
        moving = [i for i, x in enumerate(example.operands) if isinstance(x, tuple)]
        if not moving or any(np.size(x) == 0 for x in values):
            continue
        be = gen_backend("cpu", jit=True)
        given = [be.array(x, x.dtype) if isinstance(x, np.ndarray) else x for x in values]
        alone = list(outputs_of(example.tree(given)))

        def step(
            state: Any, slices: Any, given: list[Any] = given, moving: list[int] = moving, example: Example = example
        ) -> Any:
            own = dict(zip(moving, slices, strict=True))
            return state + 1, tuple(outputs_of(example.tree([own.get(i, x) for i, x in enumerate(given)])))

        sequences = tuple([be.array(np.stack([values[i]] * 3), values[i].dtype) for i in moving])
        in_c.clear()
        caplog.clear()
        _, joined = be.scan(step, be.array(0.0), sequences)
        wanted, found = be.evaluate(alone), optree.function([], list(joined))()
        for one, three in zip(wanted, found, strict=True):
            np.testing.assert_allclose(three.get(), np.stack([one.get()] * 3), rtol=1e-9, atol=1e-12)
        calls = calls_of(alone)
        told = [x.getMessage() for x in caplog.records if "one by one" in x.getMessage()]
        assert bool(told) == (in_c == [0])
        if not all(x.size for x in wanted):
            continue
        assert in_c == [3] or any(str(op.name) in text for op in calls for text in told), (str(example), told)


def outputs_of(tree: Any) -> list[Any]:
    """The outputs of an op's tree."""
    return tree if isinstance(tree, list) else [tree]


def test_what_else_a_step_calls_is_run_one_by_one(in_c: list[int], caplog: pytest.LogCaptureFixture) -> None:
    be = gen_backend("cpu", jit=True)
    x, w = np.random.default_rng(0).normal(size=(20, 3, 3)), np.eye(3) * 0.5
    state, _ = be.scan(
        lambda h, part: (f.sort(h @ w + part, axis=1), None), be.zeros((3, 3), "float64"), be.array(x, "float64")
    )
    run = optree.function([], state)
    run()
    expected = np.zeros((3, 3))
    for part in x:
        expected = np.sort(expected @ w + part, axis=1)
    np.testing.assert_allclose(state.asnumpyarray(), expected, rtol=1e-12)
    assert set(in_c) == {0}
    (told,) = [x.getMessage() for x in caplog.records if "one by one" in x.getMessage()]
    assert "sort" in told and "has no compiled form" in told
    assert told in optree.debugprint(run, file="str")
    run = optree.function([], be.scan(lambda h, part: (h + part, None), be.zeros((3, 3)), be.ones((9, 3, 3)))[0])
    assert "one call of C" not in optree.debugprint(run, file="str")
    run()
    assert "all steps of a loop run in one call of C" in optree.debugprint(run, file="str")


class Row(optree.Op):
    """The row of a matrix that an index names, as a view: where that begins, the index says, not the shapes."""

    __props__ = ()
    operands = ("x", "index")
    view_map = {0: [0]}

    def make_node(self, x: Any, index: Any) -> Any:
        return optree.Apply(self, [x, index], [optree.TensorType(x.dtype, x.shape[1:])()])

    def infer_shape(self, node: Any, shapes: Any) -> list[Any]:
        return [shapes[0][1:]]

    def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
        x, index = inputs
        output_storage[0][0] = x[int(index)]


@pytest.mark.parametrize("multiplies", [False, True])
def test_views_that_other_values_choose_are_taken_in_each_step(multiplies: bool) -> None:
    be = gen_backend("cpu", jit=True)
    table, indices = np.random.default_rng(0).integers(-9, 9, (20, 6)).astype("float64"), np.arange(20)[::-1].copy()
    rows, w = be.array(table, "float64"), be.array(np.eye(6), "float64")

    def step(h: Any, index: Any) -> Any:
        return (f.dot(h, w) if multiplies else h) + Row()(rows, index), None

    total, _ = be.scan(step, be.zeros((16, 6), "float64"), be.array(indices, "int64"))
    np.testing.assert_array_equal(total.asnumpyarray(), np.broadcast_to(table.sum(0), (16, 6)))


def test_layouts_of_constants_and_sequences_and_arrays_without_elements(in_c: list[int]) -> None:
    half = gen_backend("cpu", jit=True).array(0.5, "float64")
    rng = np.random.default_rng(0)
    x, c = (optree.Input(optree.TensorType("float64", (None,) * ndim)) for ndim in (3, 2))
    run = optree.function([x, c], f.scan(lambda h, part: (h * half + part * c, h), f.fill_like(c, 0.0), x)[1])
    for shape in ((12, 3, 4), (12, 3, 4), (30, 2, 7), (12, 0, 4), (12, 3, 1)):
        parts = rng.normal(size=shape)
        for given in (parts, np.asfortranarray(parts), parts[::-1, :, ::-1]):
            constant = rng.normal(size=shape[1:])
            state, expected = np.zeros(shape[1:]), []
            for part in given:
                expected.append(state)
                state = state * 0.5 + part * constant
            np.testing.assert_allclose(run(given, constant), np.array(expected), rtol=1e-12)
            assert in_c[-1] == len(parts)


@pytest.mark.usefixtures("optimised")
@pytest.mark.parametrize("threads", [1, 2])
def test_large_steps_share_their_kernels_among_threads(in_c: list[int], threads: int) -> None:
    be = gen_backend("cpu", jit=True)
    with settings.override(num_threads=threads):
        wanted = results(gen_backend("cpu", jit=False), "by columns", 10, False, 0, (300, 400))
        in_c.clear()
        found = results(be, "by columns", 10, False, 0, (300, 400))
    assert set(in_c) == {10}
    for got, expected in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.usefixtures("optimised")
def test_threads_that_run_the_same_loop_do_not_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "CALL", 1 << 62)  # without the interpreter's lock for longer
    be, wrong = gen_backend("cpu", jit=True), list[int]()
    zeros = be.zeros(64, "float64")

    def run(i: int) -> None:
        x = be.array(np.full((20_000, 64), float(i + 1)), "float64")
        whole = optree.function([], be.scan(lambda h, x: (f.concatenate([h[1:], h[:1]]) + x, None), zeros, x)[0])
        for _ in range(20):
            wrong.append(np.count_nonzero(whole().get() != 20_000.0 * (i + 1)))

    workers = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    assert wrong == [0] * 80


@pytest.mark.usefixtures("optimised")
def test_a_long_loop_runs_its_small_kernels_as_one_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "LONG", 20)
    texts, compiled = list[str](), loops.compile_source

    def noted(text: str, *args: Any, **options: Any) -> Any:
        texts.append(text)
        return compiled(text, *args, **options)

    monkeypatch.setattr(loops, "compile_source", noted)
    for count, name in enumerate(("of products", "joined", "shifted"), 1):
        be = gen_backend("cpu", jit=True)
        step, states, sequence, dtype = operands(name, 20)
        tensors = [be.array(x, dtype) for x in (*states, sequence)]
        run = optree.function([], be.scan(step, tuple(tensors[:-1]), (tensors[-1],))[1])
        found = run()[0].get()
        assert len(texts) == count
        np.testing.assert_array_equal(run()[0].get(), found)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loops, "LONG", 21)
            np.testing.assert_allclose(run()[0].get(), found, rtol=1e-5, atol=1e-6)
        assert len(texts) == count
    assert "memcpy((void *)" in "".join(texts)  # small copies are no calls


def scan_in_scan(be: Any, x: Any, w: Any) -> Any:
    """Outputs and states of the inner loop, read backwards, of a transposed state, with a product packed once."""
    inner = lambda h, row: (f.tanh(f.dot(h, w) + row), f.sum(h, keepdims=False))  # noqa: E731

    def step(state: Any, part: Any) -> Any:
        h, totals = be.scan(inner, f.transpose(state), part, reverse=True)
        return f.transpose(h) + 0.1 * f.mean(totals, keepdims=False), totals

    return f.concatenate([f.ravel(y) for y in be.scan(step, w * 0.3, x)])


def while_in_scan(be: Any, x: Any, w: Any) -> Any:
    """A loop that runs no step, some of them, or all."""

    def step(state: Any, part: Any) -> Any:
        bound = f.sum(f.square(part), keepdims=False)
        found = be.while_loop(
            lambda y: f.sum(f.square(y), keepdims=False) < bound, lambda y: y * 1.3 + f.tanh(y) * 0.1, state, 4
        )
        return found * 0.5 + f.dot(part[0], w), found

    return f.concatenate([f.ravel(y) for y in be.scan(step, x[0, 0] * 0.5, x)])


def scan_in_while(be: Any, x: Any, w: Any) -> Any:
    """A loop with a condition, whose step is a loop."""
    inner = lambda h, part: (f.tanh(f.dot(w, h) + part), None)  # noqa: E731
    first = x[0, 0], be.array(np.int64(0))
    step = lambda s: (be.scan(inner, s[0], x[1])[0] + s[0], s[1] + 1)  # noqa: E731
    return be.while_loop(
        lambda s: f.logical_and(f.sum(f.square(s[0]), keepdims=False) < 1e3, s[1] < 5), step, first, 9
    )[0]


def mean_in_scan(be: Any, x: Any, w: Any) -> Any:
    """A mean over an inner loop's steps, whose number the outer step does not know."""

    def step(state: Any, part: Any) -> Any:
        last, sums = be.scan(lambda c, row: (f.tanh(c) + row, f.sum(c)), state, w)
        return last + 0.1 * f.mean(sums, keepdims=False), part

    return be.scan(step, x[0, 0], x[:, 0])[0]


def constants_in_scan(be: Any, x: Any, w: Any) -> Any:
    """A transposed matrix that each outer step computes, for many inner steps; both states begin with one tensor."""

    def step(states: Any, part: Any) -> Any:
        a, b = states
        c = f.transpose(f.tanh(w + f.expand_dims(a, 1) * part))
        inner = lambda s, _: ((f.tanh(f.sum(c * s[1], axis=1, keepdims=False)), s[0] * 0.9), None)  # noqa: E731
        states, _ = be.scan(inner, (a, b), length=9)
        return states, states[0]

    return be.scan(step, (x[0, 0], x[0, 0]), x)[1]


@pytest.mark.usefixtures("optimised")
@pytest.mark.parametrize("formula", [scan_in_scan, while_in_scan, scan_in_while, mean_in_scan, constants_in_scan])
def test_a_loop_in_a_loop_runs_in_the_same_call(
    in_c: list[int], formula: Any, caplog: pytest.LogCaptureFixture
) -> None:
    rng = np.random.default_rng(3)
    x, w = rng.normal(size=(7, 3, 3)), rng.normal(size=(3, 3)) * 0.5
    x[2] *= 1e-3  # no step's condition is true
    found = {}
    for jit in (True, False):
        be = gen_backend("cpu", jit=jit, datatype=np.float64)
        tensors = be.array(x), be.array(w)
        value = formula(be, *tensors)
        run = optree.function([], [value, *optree.grad(f.sum(f.square(value)), tensors)])
        found[jit] = [[y.get() for y in run()] for _ in range(2)]
        if jit:
            assert len(in_c) == 4 and all(in_c), "two loops in each call, all of their steps in C"
            assert not [each for each in caplog.records if "one by one" in each.getMessage()]
    for once, again, expected in zip(*found[True], found[False][0], strict=True):
        np.testing.assert_array_equal(once, again)
        np.testing.assert_allclose(once, expected, rtol=1e-9, atol=1e-12)


def test_second_derivatives_of_a_while_loop_with_checkpoints(caplog: pytest.LogCaptureFixture) -> None:
    found = []
    for jit in (True, False):
        be = gen_backend("cpu", jit=jit, datatype=np.float64)
        for limit, checkpoints in ((5, 2), (40, 4)):
            x = be.array([100.0, 3.0])
            y = be.while_loop(
                lambda y, x=x: f.any(f.absolute(y * y - x) > 1e-6),
                lambda y, x=x: (y + x / y) / 2,
                x + 1,
                limit,
                checkpoints,
            )
            slope = optree.grad(f.sum(y * y * y), x)
            found.append([z.get() for z in optree.function([], [y, slope, optree.grad(f.sum(slope), x)])()])
    assert not [each for each in caplog.records if "one by one" in each.getMessage()]
    np.testing.assert_allclose(found[:2], found[2:], rtol=1e-9)


@pytest.mark.usefixtures("optimised")
@pytest.mark.parametrize("jit", [True, "always"])
def test_no_call_changes_the_bits_where_all_calls_are_compiled(jit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a run that is resumed gives the bits of one that went on."""
    monkeypatch.setattr(loops, "LONG", 30)
    monkeypatch.setattr(backend, "REPEATED", 2)
    be = gen_backend("cpu", jit=jit)
    x, a = (be.array(values) for values in (np.sin(np.arange(680.0)).reshape(40, 17), np.eye(17) + 0.1))

    def step(state: Any, x: Any) -> Any:
        state = (state - be.mean(state)) / be.sqrt(be.var(state) + 1) + x * be.exp(-state * state)
        return state, be.dot(a, be.reshape(state, (17, 1)))

    outputs = be.scan(step, be.zeros((17,)), x)[1]
    run = optree.function([], [outputs, optree.grad(be.sum(outputs), x), be.tanh(be.dot(x[:4], a))])
    first = [value.get() for value in run()]
    for _ in range(4):
        for value, known in zip(run(), first, strict=True):
            np.testing.assert_array_equal(value.get(), known)
