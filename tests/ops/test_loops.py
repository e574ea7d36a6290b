"""Loops: against the same steps written one after the other, with derivatives; compiled once; captured as one graph."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from harness.compiling import needs_compiler
from harness.counting import allocated
from harness.homes import home

import optree
from backends import gen_backend
from optree import Input, TensorType
from optree.errors import DTypeError, OperandError, ShapeError
from optree.registry import f
from optree.tree.node import OpTreeNode, post_order, variables_of


@pytest.fixture
def be(home_kind: str) -> Any:
    return home(home_kind, datatype=np.float64)


def unrolled(step: Any, initial: Any, sequences: Any, reverse: bool = False, axis: int = 0) -> Any:
    """The same loop as a tree of all its steps, for tuples of states, sequences and outputs."""
    length, states, made = sequences[0].shape[axis], initial, []
    for t in range(length)[:: -1 if reverse else 1]:
        states, outputs = step(states, tuple(f.slice(x, (slice(None),) * axis + (t,)) for x in sequences))
        made.append(outputs)
    made = made[:: -1 if reverse else 1]
    return states, tuple(f.stack(parts, axis=axis) for parts in zip(*made, strict=True))


def network(w: Any, b: Any) -> Any:
    """A step with two states, two slices and two outputs, whose weights are used twice."""

    def step(states: Any, slices: Any) -> Any:
        (h, c), (x, gate) = states, slices
        h = f.tanh(x + f.dot(h, w) + b)
        c = c * f.sig(gate) + f.dot(h * c, w)
        return (h, c), (h * c, f.sum(c, axis=1, keepdims=False))

    return step


def drawn(be: Any, steps: int = 4, axis: int = 0, batch: int = 2, units: int = 3) -> list[Any]:
    """Two states, two sequences, weights and a bias."""
    rng = np.random.RandomState(0)
    cut = [steps, batch] if axis == 0 else [batch, steps]
    shapes = [(batch, units), (batch, units), (*cut, units), (*cut, 1), (units, units), (units,)]
    return [be.array(rng.normal(size=shape) * 0.5, name=name) for shape, name in zip(shapes, "hcxgwb", strict=True)]


def cost(states: Any, outputs: Any) -> Any:
    return sum(f.sum(f.square(x) * (i + 1.0)) for i, x in enumerate((*states, *outputs)))


@pytest.mark.matrix(least=2)
@pytest.mark.parametrize(("reverse", "axis"), [(False, 1), (True, 0)])
def test_values_and_derivatives_are_those_of_all_steps(be: Any, reverse: bool, axis: int) -> None:
    h, c, x, gate, w, b = operands = drawn(be, axis=axis)
    step = network(w, b)
    ours = be.scan(step, (h, c), (x, gate), reverse=reverse, axis=axis)
    theirs = unrolled(step, (h, c), (x, gate), reverse, axis)
    for got, wanted in zip([*ours[0], *ours[1]], [*theirs[0], *theirs[1]], strict=True):
        np.testing.assert_allclose(got.asnumpyarray(), wanted.asnumpyarray(), rtol=1e-12)
    first = [optree.grad(cost(*each), operands) for each in (ours, theirs)]
    second = [optree.grad(sum(f.sum(f.square(g)) for g in gradients), operands) for gradients in first]
    for found, expected in (first, second):
        for got, wanted in zip(be.evaluate(found), be.evaluate(expected), strict=True):
            np.testing.assert_allclose(got.get(), wanted.get(), rtol=1e-9, atol=1e-9)


@pytest.mark.matrix
@pytest.mark.parametrize(("reverse", "axis"), [(False, 0), (True, 1)])
@pytest.mark.parametrize(("truncate", "is_open"), [(1, True), (3, False), (3, True), (5, False), (9, True)])
def test_derivatives_of_the_last_steps_alone(be: Any, reverse: bool, axis: int, truncate: int, is_open: bool) -> None:
    """Are those of a loop over these, from states that do not depend on anything."""
    steps = 5
    h, c, x, gate, w, b = operands = drawn(be, steps, axis)
    first = max(steps - truncate, 0)
    early, late = slice(0, first), slice(first, steps)
    if reverse:
        early, late = slice(steps - first, steps), slice(0, steps - first)
    parts = [(slice(None),) * axis + (part,) for part in (early, late)]
    states = (h, c)
    if first:
        states = unrolled(network(w, b), states, tuple(be.array(y.get()[parts[0]]) for y in (x, gate)), reverse, axis)[
            0
        ]
        states = tuple(be.array(y.asnumpyarray()) for y in states)
    seen = tuple(be.array(y.get()[parts[1]]) for y in (x, gate))
    wanted = be.evaluate(
        optree.grad(cost(*unrolled(network(w, b), states, seen, reverse, axis)), [*states, *seen, w, b])
    )
    expected = [np.zeros(y.shape) for y in operands]
    for i, y in enumerate(wanted):
        if i in (2, 3):
            expected[i][parts[1]] = y.get()
        elif i > 1 or not first:
            expected[i] = y.get()
    given: list[Any] = [h, c, x, gate, w, b]
    if is_open:
        given[2:4] = [
            TensorType("float64", tuple(None if n == axis else m for n, m in enumerate(y.shape)))() for y in (x, gate)
        ]
    states, outputs = f.scan(
        network(*given[4:]), tuple(given[:2]), tuple(given[2:4]), reverse=reverse, axis=axis, truncate=truncate
    )
    gradients = optree.function(given[2:4] if is_open else [], optree.grad(cost(states, outputs), given))
    for got, want in zip(gradients(*([x, gate] if is_open else [])), expected, strict=True):
        np.testing.assert_allclose(got.get(), want, rtol=1e-9, atol=1e-12)


def test_central_differences() -> None:
    operands = drawn(home("cpu", datatype=np.float64), steps=3)

    def whole(h: Any, c: Any, x: Any, gate: Any, w: Any, b: Any) -> Any:
        return cost(*f.scan(network(w, b), (h, c), (x, gate), reverse=True))

    optree.check_grad(whole, operands)
    optree.check_grad(lambda *xs: sum(f.sum(f.square(g)) for g in optree.grad(whole(*xs), list(xs[3:]))), operands)


def test_each_part_of_the_result_has_its_own_derivative(be: Any) -> None:
    h, c, x, gate, w, b = operands = drawn(be)
    step = network(w, b)
    ours, theirs = be.scan(step, (h, c), (x, gate)), unrolled(step, (h, c), (x, gate))
    for got, wanted in zip([*ours[0], *ours[1]], [*theirs[0], *theirs[1]], strict=True):
        pairs = [optree.grad(f.sum(y * y), operands, disconnected_inputs="ignore") for y in (got, wanted)]
        for mine, other in zip(*map(be.evaluate, pairs), strict=True):
            np.testing.assert_allclose(mine.get(), other.get(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("mode", [None, "reference", "debug"])
@pytest.mark.parametrize("jit", [True, "auto", False])
def test_the_derivative_by_a_state_without_axes(jit: Any, mode: Any) -> None:
    """Which an element of the states before each step holds: a view of it, not its value."""
    be = home("cpu", datatype=np.float64, jit=jit)
    x, s = be.array([0.5, -1.0, 2.0]), be.array(0.3)
    (last, _), values, slopes = be.scan(lambda s, v: (f.tanh(s * v), None), s, x), [0.3], []
    for v in x.get():
        values.append(np.tanh(values[-1] * v))
        slopes.append((1 - values[-1] ** 2) * v)
    by_s, by_x = optree.function([], optree.grad(last, [s, x]), mode=mode)()
    np.testing.assert_allclose(by_s.get(), np.prod(slopes), rtol=1e-12)
    np.testing.assert_allclose(by_x.get()[-1], slopes[-1] / 2.0 * values[-2], rtol=1e-12)


@pytest.mark.parametrize("none", [None, [], ()])
def test_without_sequences_there_are_no_slices(be: Any, none: Any) -> None:
    def step(s: Any, slices: Any) -> Any:
        assert slices == none
        return s * 2.0, None

    assert be.scan(step, be.array(1.0), none, 3)[0].item() == 8.0


def test_forms_of_states_slices_and_outputs(be: Any) -> None:
    x = be.array([1.0, 2.0, 4.0])
    total, sums = be.scan(lambda s, v: (s + v, s), be.array(0.0), x)
    assert total.item() == 7 and sums.asnumpyarray().tolist() == [0, 1, 3]
    total, nothing = be.scan(lambda s, v: (s + v[0] * v[1], None), be.array(0.0), [x, x])
    assert nothing is None and total.item() == 21
    states, outputs = be.scan(lambda s, v: ([s[1], s[0] + v], (s[0],)), [be.array(0.0), be.array(1.0)], x)
    assert isinstance(states, list) and isinstance(outputs, tuple)
    assert [y.item() for y in states] == [3.0, 5.0] and outputs[0].asnumpyarray().tolist() == [0, 1, 1]
    doubled, none = be.scan(lambda s, none: (s * 2, none), be.array(1.0), length=5)
    assert doubled.item() == 32 and none is None
    _, same = be.scan(lambda s, v: (s, be.array(3.0)), be.array(1.0), x)
    assert same.asnumpyarray().tolist() == [3, 3, 3], "what is the same in every step"
    counted, _ = be.scan(lambda s, v: (s + np.int64(v.ndim + 1), None), be.array(np.int64(0)), x)
    assert counted.item() == 3 and counted.dtype == np.int64


def test_no_steps_leave_the_states(be: Any) -> None:
    h, c, x, gate, w, b = drawn(be, steps=0)
    (last, _), (joined, _) = be.scan(network(w, b), (h, c), (x, gate))
    assert np.array_equal(last.asnumpyarray(), h.get()) and joined.asnumpyarray().shape == (0, 2, 3)
    found = be.evaluate(optree.grad(f.sum(last * last), [h, w]))
    np.testing.assert_allclose(found[0].get(), 2 * h.get())
    assert not found[1].get().any()


def test_a_step_is_compiled_once_whatever_the_length(be: Any) -> None:
    h, c, _, _, w, b = drawn(be)
    x, gate = (TensorType("float64", (None, 2, n))(name) for n, name in ((3, "x"), (1, "gate")))
    whole = cost(*f.scan(network(w, b), (h, c), (x, gate)))
    run = optree.function([x, gate], [whole, *optree.grad(whole, [w, b])])
    compiles = []
    for steps in (1, 7, 30):
        _, _, seen, gates, *_ = drawn(be, steps)
        before = be.stats()["compiles"]
        got = [y.get() for y in run(seen, gates)]
        compiles.append(be.stats()["compiles"] - before)
        theirs = cost(*unrolled(network(w, b), (h, c), (seen, gates)))
        wanted = be.evaluate([theirs, *optree.grad(theirs, [w, b])])
        for mine, other in zip(got, wanted, strict=True):
            np.testing.assert_allclose(mine, other.get(), rtol=1e-9, atol=1e-12)
    assert compiles[1:] == [0, 0]


def test_trees_of_other_lengths_share_a_plan(be: Any) -> None:
    counts = []
    for steps in (2, 5, 9):
        h, c, x, gate, w, b = drawn(be, steps)
        (last, _), _ = be.scan(network(w, b), (h, c), (x, gate))
        last.asnumpyarray()
        counts.append(be.stats()["compiles"])
    assert counts[0] == counts[1] == counts[2]


def test_what_is_the_same_in_every_step_is_computed_before(be: Any) -> None:
    w, x = be.ones((3, 3), name="w"), be.ones((4, 2, 3), name="x")

    def step(h: Any, x: Any) -> Any:
        return f.dot(h + x, f.exp(f.transpose(w)) * 0.1), None

    last, _ = be.scan(step, be.zeros((2, 3)), x)
    body = last.owner.op.body
    assert [node.op.name for node in body.order] == ["add", "dot"] and len(body.constants) == 1


@pytest.mark.parametrize("axis", [0, 1])
def test_gradients_by_a_matrix_times_vectors_are_one_product_after_the_loop(be: Any, axis: int) -> None:
    rng = np.random.RandomState(0)
    w, s, x = operands = [be.array(rng.normal(size=shape) * 0.5) for shape in ((3, 3), (3,), ((4, 3), (3, 4))[axis])]

    def step(states: Any, slices: Any) -> Any:
        s = f.tanh(f.dot(w, states[0]) + f.dot(slices[0], w))
        return (s,), (f.dot(w, s * s),)

    pairs = be.scan(step, (s,), (x,), axis=axis), unrolled(step, (s,), (x,), axis=axis)
    ours, theirs = (optree.grad(cost(*each), operands) for each in pairs)
    for got, wanted in zip(be.evaluate(ours), be.evaluate(theirs), strict=True):
        np.testing.assert_allclose(got.get(), wanted.get(), rtol=1e-9, atol=1e-12)
    nodes = [x for x in post_order([ours[0]], variables_of) if isinstance(x, OpTreeNode)]
    assert [x.op.name for x in nodes].count("tensordot") == 1
    assert all(state.ndim < 2 for x in nodes if x.op.name == "scan" for state in x.op.body.states)


def test_equal_steps_are_equal_ops(be: Any) -> None:
    h, _, x, *_ = drawn(be)

    def loop(number: float) -> Any:
        return be.scan(lambda s, v: (s * number + v, None), h, x)[0].owner.op

    one, two, other = loop(2.0), loop(2.0), loop(3.0)
    assert one == two and hash(one) == hash(two) and one != other
    assert copy.deepcopy(one) == one and "a step of 2 operations on 1 states" in str(one)


@pytest.mark.parametrize("mode", ["reference", "debug"])
def test_other_modes_compute_the_same(mode: str) -> None:
    be = home("cpu", datatype=np.float64, jit=False)
    h, c, x, gate, w, b = operands = drawn(be)
    whole = cost(*be.scan(network(w, b), (h, c), (x, gate)))
    trees = [whole, *optree.grad(whole, operands)]
    for got, wanted in zip(optree.function([], trees, mode=mode)(), be.evaluate(trees), strict=True):
        np.testing.assert_allclose(got.get(), wanted.get(), rtol=1e-10, atol=1e-12)


@needs_compiler
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_kernels_compute_the_same(dtype: str) -> None:
    found = []
    for jit in (False, True):
        be = gen_backend("cpu", datatype=dtype, jit=jit)
        operands = h, c, x, gate, w, b = drawn(be, steps=6, batch=4, units=8)
        whole = cost(*be.scan(network(w, b), (h, c), (x, gate)))
        run = optree.function([], [whole, *optree.grad(whole, list(operands))])
        run()
        found.append([y.get() for y in run()])
    unit = float(np.finfo(dtype).eps)
    for one, other in zip(*found, strict=True):
        assert one.dtype == dtype
        np.testing.assert_allclose(one, other, rtol=60 * unit, atol=60 * unit)


def test_what_nothing_needs_is_not_kept() -> None:
    be = home("cpu", jit=False)
    x, h = be.zeros((1000, 1), name="x"), be.zeros((100, 100), name="h")
    last, _ = be.scan(lambda h, x: (h * 0.5 + x, None), h, x)
    run = optree.function([], f.sum(last))
    assert allocated(run) < 6 * 100 * 100 * 4, "two states, and what a step computes on the way"


@pytest.mark.parametrize("jit", [False, pytest.param(True, marks=needs_compiler)])
def test_a_function_keeps_the_memory_of_a_loops_outputs_that_it_does_not_return(jit: bool) -> None:
    be = gen_backend("cpu", datatype=np.float64, jit=jit)
    x, h = Input(TensorType("float64", (None, 50))), be.zeros(50)
    last, joined = f.scan(lambda h, x: (f.tanh(h + x), h * x), h, x)
    run = optree.function([x], [last, f.sum(joined), optree.grad(f.sum(f.square(joined)), h)])
    parts = np.random.default_rng(0).normal(size=(400, 50))
    assert allocated(lambda: run(parts)) < 1.5 * parts.nbytes, (
        "neither the outputs nor the states before each step are new"
    )
    returned = optree.function([x], [last, joined, f.transpose(joined), optree.grad(f.sum(f.square(joined)), x)])
    first = returned(parts)
    before = [y.get().copy() for y in first]
    for given in (parts * 2, parts[:30], parts):
        again = returned(given)
    for kept, y, z in zip(before, first, again, strict=True):
        np.testing.assert_array_equal(y.get(), kept)  # what was returned stays
        np.testing.assert_array_equal(z.get(), kept)


@pytest.mark.usefixtures("folder")
def test_a_training_step_is_one_cuda_graph(gpu: Any) -> None:
    cpu = gen_backend("cpu", jit=False)
    found = []
    for be in (gpu, cpu):
        h, c, _, gate, w, b = drawn(be)
        x = TensorType("float32", (4, 2, 3))("x")
        whole = cost(*f.scan(network(w, b), (h, c), (x, gate)))
        step = optree.function(
            [x], whole, updates={p: p - 0.05 * g for p, g in zip((w, b), optree.grad(whole, [w, b]), strict=True)}
        )
        given = be.array(np.random.RandomState(1).normal(size=(4, 2, 3)))
        found.append([step(given).item() for _ in range(5)])
    np.testing.assert_allclose(*found, rtol=1e-4)
    assert gpu.stats()["graphs"]["captures"] == 1 and gpu.stats()["host_calls"] == 0


def test_draws_are_made_before_the_loop(be: Any) -> None:
    x = be.zeros((3, 4))
    mask = be.rand((3, 4)) < 0.5
    _, outputs = be.scan(lambda s, v: (s, f.where(v[1], v[0] + 1, v[0])), be.array(0.0), (x, mask))
    assert set(np.unique(outputs.asnumpyarray())) <= {0.0, 1.0}


def test_each_step_draws_anew(be: Any) -> None:
    """The numbers of all steps are one draw; those that were drawn before are the same in every step."""
    x, w, before = be.ones((4, 2)), be.array([2.0, 3.0]), be.rand(2)

    def run(step: Any, *sequences: Any) -> Any:
        be.rng_state.set([5, 0])
        last, joined = be.scan(step, be.zeros(2), sequences or None, None if sequences else 4)
        return [y.get() for y in be.evaluate([last, joined, optree.grad(np.sum(last), w)])]

    be.rng_state.set([5, 0])
    all_steps = be.rand((4, 2)).asnumpyarray()
    for step, given in (
        (lambda s, _: (s + w * be.rand(2), s), ()),
        (lambda s, _: (s + w * be.rand(s), s), ()),
        (lambda s, v: (s + w * be.rand(v[0]), s), (x,)),
    ):
        last, joined, by_w = run(step, *given)
        np.testing.assert_allclose(by_w, all_steps.sum(0), rtol=1e-12)
        np.testing.assert_allclose(last, by_w * [2.0, 3.0], rtol=1e-12)
        np.testing.assert_allclose(np.diff(joined, axis=0), all_steps[:3] * [2.0, 3.0], rtol=1e-12)
    _, joined, _ = run(lambda s, _: (s + w, before))
    assert (joined == joined[0]).all()


def test_draws_of_loops_in_loops_of_batches_and_of_open_lengths_are_all_different(be: Any) -> None:
    def once(s: Any, _: Any) -> Any:
        return s, be.rand(3)

    def nested(s: Any, _: Any) -> Any:
        return s, be.scan(once, s, length=2)[1]

    joined = be.scan(nested, be.array(0.0), length=4)[1].asnumpyarray()
    assert joined.shape == (4, 2, 3) and len(np.unique(joined)) == 24
    batch = optree.vmap(lambda s: be.scan(nested, s, length=4)[1])(be.zeros(2)).asnumpyarray()
    assert batch.shape == (2, 4, 2, 3) and len(np.unique(batch)) == 48
    x = TensorType("float64", (None, 3))("x")
    run = optree.function([x], be.scan(lambda s, v: (s, v * 0 + be.rand(v)), be.array(0.0), x)[1])
    assert [len(np.unique(run(np.ones((n, 3))).get())) for n in (0, 1, 5)] == [0, 3, 15]
    with pytest.raises(OperandError, match="standard_gamma.* in a step overwrites .* draw for all steps before"):
        be.scan(lambda s, v: (s, be.standard_gamma(v)), be.array(0.0), be.ones(3))


def test_what_does_not_fit_is_named(be: Any) -> None:
    for wrong in (0, True, 1.5):
        with pytest.raises(OperandError, match="scan: truncate, a number of steps or None, is an integer of 1 or more"):
            be.scan(lambda s, v: (s, v), be.array(0.0), be.ones(3), truncate=wrong)
    for step in (3, be.ones(2)):
        with pytest.raises(OperandError, match="scan: step is a function of states and slices of sequences, not"):
            be.scan(step, be.array(0.0), be.ones(3))
    x, h = be.ones((4, 3), name="x"), be.ones(3, name="h")
    with pytest.raises(ShapeError, match=r"makes the shape \(2, 3\) of state 0, h \(3,\)"):
        be.scan(lambda s, v: (be.ones((2, 3)) + s, None), h, x)
    rows = Input(TensorType("float64", (None, None)), "rows")
    with pytest.raises(ShapeError, match=r"broadcasts axis 0 of state 0, one \(1,\).*begin with a state of that size"):
        be.scan(lambda s, v: (s + v, None), be.ones(1, name="one"), rows)
    with pytest.raises(DTypeError, match=r"makes float64 of state 0, h .*astype\('float32'\) in the step"):
        be.scan(lambda s, v: (s + v, None), be.ones(3, "float32", name="h"), x)
    with pytest.raises(OperandError, match="returns 2 new states; it was given 1"):
        be.scan(lambda s, v: ((s, s), None), h, x)
    with pytest.raises(OperandError, match="returns its new states and its outputs, not"):
        be.scan(lambda s, v: s, h, x)
    with pytest.raises(OperandError, match=r"a state is the number 0\.0.*np\.float32"):
        be.scan(lambda s, v: (s, None), 0.0, x)
    with pytest.raises(ShapeError, match=r"y \(5, 3\).*has 5 steps along axis 0, and x .* has 4"):
        be.scan(lambda s, v: (s, None), h, (x, be.ones((5, 3), name="y")))
    with pytest.raises(ShapeError, match=r"x .*has 4 steps along axis 0, and length has 7"):
        be.scan(lambda s, v: (s, None), h, x, length=7)
    with pytest.raises(OperandError, match="without sequences, length is the number of steps, not None"):
        be.scan(lambda s, v: (s, None), h)
    open_size = TensorType("float64", (None,))
    a, b = open_size("a"), open_size("b")
    run = optree.function([a, b], be.scan(lambda s, v: (s + v[0] + v[1], None), be.array(0.0), (a, b))[0])
    assert run([1.0, 2.0], [3.0, 4.0]).item() == 10
    with pytest.raises(ShapeError, match="its sequences have 1 and 2 steps"):
        run([1.0], [3.0, 4.0])


def test_shapes_of_a_step_are_inferred_once_for_calls_of_equal_sizes(be: Any) -> None:
    total, _ = be.scan(lambda total, x: (total + be.tanh(x), None), be.zeros(3), be.ones((4, 3)))
    body = total.owner.op.body
    first = body.shapes([(3,), (3,)])
    assert body.shapes([(3,), (3,)]) is first
    assert body.shapes([(5,), (5,)]) == [(5,)]
    assert body.shapes([(3,), (3,)]) == first


def test_complex_states_are_those_of_the_steps_written_out_with_derivatives() -> None:
    """Complex and real states, sequences and constants, whose gradients are of their own dtypes."""
    be, rng = home("cpu", datatype=np.float64), np.random.default_rng(0)
    shapes, names = [(2, 3), (2, 3), (2, 2, 3), (3, 3), (3,), (3, 3)], "hcxwbv"
    drawn = [rng.normal(size=s) + 1j * rng.normal(size=s) for s in shapes]
    operands = [
        be.array(0.4 * (x.real if n in "cbv" else x), "float64" if n in "cbv" else "complex128", n)
        for x, n in zip(drawn, names, strict=True)
    ]
    h, c, x, w, b, v = operands

    def step(states: Any, slices: Any) -> Any:
        (h, c), (x,) = states, slices
        h = f.tanh(f.dot(h, w) * 0.5 + x * b) + f.dot(c, v)
        return (h, c * f.absolute(h) + f.imag(h)), (h * c, f.angle(h))

    found = []
    for states, outputs in (be.scan(step, (h, c), (x,), reverse=True), unrolled(step, (h, c), (x,), True)):
        total = sum(f.sum(f.absolute(y) ** 2 * (i + 1.0) + f.imag(y)) for i, y in enumerate((*states, *outputs)))
        first = optree.grad(total, operands)
        assert [y.dtype for y in first] == [y.dtype for y in operands]
        second = optree.grad(sum(f.sum(f.absolute(y) ** 2) for y in first), [h, b])
        found.append([y.get() for y in be.evaluate([total, *first, *second])])
    for got, wanted in zip(*found, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-8, atol=1e-9)
