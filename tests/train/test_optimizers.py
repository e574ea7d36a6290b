"""Each optimizer takes the steps that its formula in NumPy takes, packed or not, and torch's where there is one."""

from __future__ import annotations

from functools import partial
from typing import Any

import formulas
import numpy as np
import pytest

import optree
from backends import gen_backend, launches
from optree import TensorType, train
from optree.errors import DTypeError, OperandError, OptreeError, ParameterError

SHAPES = [(3, 4), (5,), (2, 2, 2), ()]
STEPS = 7

CASES = {
    "SGD": (partial(train.SGD, rate=0.1), partial(formulas.sgd, rate=0.1)),
    "momentum": (
        partial(train.SGD, rate=0.1, momentum=0.9, weight_decay=0.01),
        partial(formulas.sgd, rate=0.1, momentum=0.9, weight_decay=0.01),
    ),
    "Nesterov": (
        partial(train.SGD, rate=0.1, momentum=0.9, nesterov=True),
        partial(formulas.sgd, rate=0.1, momentum=0.9, nesterov=True),
    ),
    "RMSProp": (train.RMSProp, formulas.rmsprop),
    "centered RMSProp": (
        partial(train.RMSProp, momentum=0.5, centered=True),
        partial(formulas.rmsprop, momentum=0.5, centered=True),
    ),
    "Adagrad": (
        partial(train.Adagrad, rate_decay=0.1, initial_sum=0.2),
        partial(formulas.adagrad, rate_decay=0.1, initial_sum=0.2),
    ),
    "Adadelta": (train.Adadelta, formulas.adadelta),
    "Adam": (partial(train.Adam, rate=0.01), partial(formulas.adam, rate=0.01)),
    "Adam with decay": (
        partial(train.Adam, rate=0.01, weight_decay=0.1),
        partial(formulas.adam, rate=0.01, weight_decay=0.1),
    ),
    "AdamW": (partial(train.AdamW, rate=0.01), partial(formulas.adamw, rate=0.01)),
    "Adamax": (train.Adamax, formulas.adamax),
    "LAMB": (partial(train.LAMB, rate=0.01), partial(formulas.lamb, rate=0.01)),
    "LARS": (
        partial(train.LARS, rate=0.1, weight_decay=0.01),
        partial(formulas.lars, rate=0.1, weight_decay=0.01),
    ),
    "Lion": (partial(train.Lion, weight_decay=0.1), partial(formulas.lion, weight_decay=0.1)),
}

TORCH = {
    "SGD": ("SGD", {"lr": 0.1}),
    "momentum": ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    "Nesterov": ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "RMSProp": ("RMSprop", {}),
    "centered RMSProp": ("RMSprop", {"momentum": 0.5, "centered": True}),
    "Adagrad": ("Adagrad", {"lr_decay": 0.1, "initial_accumulator_value": 0.2}),
    "Adadelta": ("Adadelta", {}),
    "Adam": ("Adam", {"lr": 0.01}),
    "Adam with decay": ("Adam", {"lr": 0.01, "weight_decay": 0.1}),
    "AdamW": ("AdamW", {"lr": 0.01}),
    "Adamax": ("Adamax", {}),
}


def starts(seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape) for shape in SHAPES]


def problem(be: Any, packs: bool, dtype: str = "float64", shift: float = 1.0) -> tuple[list[Any], Any, Any]:
    """Weights, an input and a loss of both; the gradient by a weight is 2 * x * (w - shift) + cos(w)."""
    weights: Any = [be.array(w, dtype=dtype, name=f"w{i}") for i, w in enumerate(starts())]
    weights = train.packed(weights) if packs else weights
    x = TensorType(dtype, ())("x")
    loss = sum(be.sum(x * be.square(w - shift) + be.sin(w), keepdims=False) for w in weights)
    return weights, x, loss


def gradient(w: np.ndarray, x: float, shift: float = 1.0) -> np.ndarray:
    return 2 * x * (w - shift) + np.cos(w)


@pytest.mark.parametrize("packs", [False, True], ids=["alone", "packed"])
@pytest.mark.parametrize("name", CASES)
def test_steps_are_the_formulas(name: str, packs: bool) -> None:
    make, formula = CASES[name]
    be = gen_backend("cpu")
    weights, x, loss = problem(be, packs)
    opt = make(weights)
    step = optree.function([x], loss, updates=opt.updates(loss))
    expected, states = starts(), [{} for _ in SHAPES]
    for t in range(1, STEPS + 1):
        step(1 / t)
        expected = [formula(w, gradient(w, 1 / t), s, t) for w, s in zip(expected, states, strict=True)]
        for w, e in zip(weights, expected, strict=True):
            np.testing.assert_allclose(w.get(), e, rtol=1e-11, atol=1e-13)
    assert opt.step.item() == STEPS


@pytest.mark.parametrize("name", TORCH)
def test_steps_are_those_of_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    theirs, options = TORCH[name]
    be = gen_backend("cpu")
    weights, x, loss = problem(be, True)
    opt = CASES[name][0](weights)
    step = optree.function([x], loss, updates=opt.updates(loss))
    parameters = [torch.tensor(w, requires_grad=True) for w in starts()]
    other = getattr(torch.optim, theirs)(parameters, **options)
    for t in range(1, STEPS + 1):
        step(1 / t)
        other.zero_grad()
        sum(((w - 1) ** 2 / t + w.sin()).sum() for w in parameters).backward()
        other.step()
    for w, p in zip(weights, parameters, strict=True):
        np.testing.assert_allclose(w.get(), p.detach().numpy(), rtol=1e-9)


def test_the_update_of_packed_weights_is_one_kernel() -> None:
    # Beside one for each weight's gradient, and one for the powers and the step, which have no elements.
    for options in ({}, {"average": 0.99}):
        weights, x, loss = problem(gen_backend("cpu"), True, "float32")
        opt = train.AdamW(weights, 0.01, **options)
        assert len(launches(optree.function([x], loss, updates=opt.updates(loss)))) <= len(SHAPES) + 2


def test_products_go_directly_into_the_vector_of_gradients() -> None:
    be = gen_backend("cpu", jit=True)
    weights = train.packed([be.ones((4, 3), name="w"), be.ones(3, name="b")])
    x = TensorType("float32", (None, 4))("x")
    loss = be.sum(be.tanh(be.dot(x, weights[0]) + weights[1]), keepdims=False)
    opt = train.SGD(weights, 0.1)
    step = optree.function([x], loss, updates=opt.updates(loss))
    plan = optree.debugprint(step, file="str", stage="plan")
    assert "call Store" not in plan, plan  # not even the bias, which a kernel makes, is copied
    assert "dot(" in plan


def test_another_number_compiles_nothing() -> None:
    be = gen_backend("cpu", jit=True)

    def run(rate: Any, value: float, **numbers: Any) -> int:
        weights, x, loss = problem(be, True)
        opt = train.AdamW(weights, rate, **numbers)
        inputs = [x, rate] if isinstance(rate, optree.Input) else [x]
        step = optree.function(inputs, loss, updates=opt.updates(loss))
        step(1.0, value) if len(inputs) == 2 else step(1.0)
        before = be.stats()["kernels"]["misses"]
        step(1.0, 2 * value) if len(inputs) == 2 else step(2.0)
        assert be.stats()["kernels"]["misses"] == before
        return before

    first = run(0.3, 0.1)  # no two of its numbers are the same, which a kernel would take for one
    assert run(0.2, 0.1, beta1=0.8, epsilon=1e-3, weight_decay=0.3) == first
    run(TensorType("float32", ())("rate"), 0.1)


def test_numbers_are_inputs_tensors_and_trees() -> None:
    be = gen_backend("cpu")
    rate = TensorType(
        "float32",
        (),
    )("rate")
    decay = be.array(0.5, dtype="float64", name="decay")
    weights, x, loss = problem(be, True)
    opt = train.SGD(weights, rate, momentum=decay * 1.0)
    step = optree.function([x, rate], [loss, opt.rate], updates=opt.updates(loss))
    expected, states = starts(), [{} for _ in SHAPES]
    for t, number in enumerate([0.5, 0.25, 0.125], 1):
        decay.fill(1 / t)
        assert step(1.0, number)[1].item() == number
        expected = [
            formulas.sgd(w, gradient(w, 1.0), s, t, number, 1 / t) for w, s in zip(expected, states, strict=True)
        ]
    for w, e in zip(weights, expected, strict=True):
        np.testing.assert_allclose(w.get(), e, rtol=1e-12)


def test_a_schedule_reads_the_counter() -> None:
    be = gen_backend("cpu")
    schedule = train.schedules.warmup(train.schedules.cosine(0.1, 5), 2, 0.5)
    weights, x, loss = problem(be, False)
    opt = train.SGD(weights, schedule)
    step = optree.function([x], [loss, opt.rate], updates=opt.updates(loss))
    expected = starts()
    for t in range(STEPS):
        assert step(1.0)[1].item() == pytest.approx(schedule(t), abs=1e-12)
        expected = [w - schedule(t) * gradient(w, 1.0) for w in expected]
    for w, e in zip(weights, expected, strict=True):
        np.testing.assert_allclose(w.get(), e, rtol=1e-11)


def test_groups_have_numbers_of_their_own() -> None:
    be = gen_backend("cpu")
    weights, x, loss = problem(be, False)
    opt = train.AdamW(
        [{"weights": train.packed(weights[:2])}, {"weights": weights[2:], "weight_decay": 0.0, "rate": 0.1}], 0.01
    )
    members = opt.weights
    loss = sum(be.sum(x * be.square(w - 1.0) + be.sin(w), keepdims=False) for w in members)
    step = optree.function([x], loss, updates=opt.updates(loss))
    expected, states = starts(), [{} for _ in SHAPES]
    for t in range(1, 4):
        step(1.0)
        numbers = [{"rate": 0.01}] * 2 + [{"rate": 0.1, "weight_decay": 0.0}] * 2
        expected = [
            formulas.adamw(w, gradient(w, 1.0), s, t, **n) for w, s, n in zip(expected, states, numbers, strict=True)
        ]
    for w, e in zip(members, expected, strict=True):
        np.testing.assert_allclose(w.get(), e, rtol=1e-11)


@pytest.mark.parametrize("packs", [False, True], ids=["alone", "packed"])
def test_gradients_are_clipped(packs: bool) -> None:
    be = gen_backend("cpu")

    def change(**clip: Any) -> list[np.ndarray]:
        weights, x, loss = problem(be, packs)
        opt = train.SGD(weights, 1.0, **clip)
        optree.function([x], updates=opt.updates(loss))(1.0)
        return [w - now.get() for w, now in zip(starts(), weights, strict=True)]

    full = [gradient(w, 1.0) for w in starts()]
    norm = np.sqrt(sum(np.sum(g**2) for g in full))
    for g, found in zip(full, change(clip_value=0.5), strict=True):
        np.testing.assert_allclose(found, np.clip(g, -0.5, 0.5), rtol=1e-12)
    for g, found in zip(full, change(clip_norm=0.5), strict=True):
        np.testing.assert_allclose(found, g * min(1, 0.5 / (np.linalg.norm(g) + 1e-6)), rtol=1e-9)
    for g, found in zip(full, change(clip_global_norm=2.0), strict=True):
        np.testing.assert_allclose(found, g * min(1, 2.0 / (norm + 1e-6)), rtol=1e-9)
    for g, found in zip(full, change(clip_global_norm=1e9), strict=True):
        np.testing.assert_allclose(found, g, rtol=1e-12)


@pytest.mark.parametrize("packs", [False, True], ids=["alone", "packed"])
def test_accumulated_batches_make_the_step_of_their_mean(packs: bool) -> None:
    be = gen_backend("cpu")
    weights, x, loss = problem(be, packs)
    opt = train.Adam(weights, 0.01, accumulate=3)
    step = optree.function([x], loss, updates=opt.updates(loss))
    expected, states = starts(), [{} for _ in SHAPES]
    for t in range(1, 4):
        batches = [0.5 / t, 1.0, 2.0]
        for i, value in enumerate(batches):
            step(value)
            assert opt.step.item() == t - (i < 2)
        expected = [
            formulas.adam(w, np.mean([gradient(w, b) for b in batches], axis=0), s, t, rate=0.01)
            for w, s in zip(expected, states, strict=True)
        ]
        for w, e in zip(weights, expected, strict=True):
            np.testing.assert_allclose(w.get(), e, rtol=1e-10)


def test_an_average_of_the_weights_is_kept_and_given() -> None:
    be = gen_backend("cpu")
    weights, x, loss = problem(be, True)
    opt = train.SGD(weights, 0.1, average=0.75)
    step = optree.function([x], loss, updates=opt.updates(loss))
    expected = average = starts()
    for _ in range(4):
        step(1.0)
        expected = [w - 0.1 * gradient(w, 1.0) for w in expected]
        average = [0.75 * a + 0.25 * w for a, w in zip(average, expected, strict=True)]
    value = optree.function([], be.sum(weights[0]) + be.sum(weights[1]), givens=opt.averages)().item()
    assert value == pytest.approx(average[0].sum() + average[1].sum(), rel=1e-12)
    with pytest.raises(ParameterError, match="average=0.999"):
        _ = train.SGD(weights, 0.1).averages


@pytest.mark.parametrize("packs", [False, True], ids=["alone", "packed"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_weights_have_masters(dtype: str, packs: bool) -> None:
    be = gen_backend("cpu")
    w = be.full((4,), 1.0, dtype=dtype, name="w")
    b = be.full((3,), 1.0, dtype=dtype, name="b")
    weights = train.packed([w, b]) if packs else [w, b]
    loss = be.sum(weights[0], keepdims=False) + be.sum(weights[1], keepdims=False)
    opt = train.SGD(weights, 1e-4)
    step = optree.function([], loss, updates=opt.updates(loss))
    for _ in range(20):
        step()
    # A change of 1e-4 is less than half a unit in the last place of 1.0 in both dtypes: without masters nothing moves.
    np.testing.assert_allclose(opt.state["master.w"].get(), 1 - 20e-4, rtol=1e-6)
    np.testing.assert_array_equal(weights[0].get(), opt.state["master.w"].get().astype(weights[0].dtype))
    assert weights[1].get()[0] < 1


@pytest.mark.parametrize("packs", [False, True], ids=["alone", "packed"])
def test_a_dynamic_scale_skips_steps_that_overflow(packs: bool) -> None:
    be = gen_backend("cpu")
    weights: Any = [be.array([1.0, 2.0], dtype="float16", name="w"), be.array([1.0], dtype="float16", name="b")]
    weights = train.packed(weights) if packs else weights
    x = TensorType("float32", ())("x")
    loss = sum(be.sum(be.cast(be.square(w), "float32"), keepdims=False) for w in weights) * x
    scale = train.LossScale(initial=2.0**15, every=3)
    opt = train.Adam(weights, 0.01, loss_scale=scale)
    step = optree.function([x], loss, updates=opt.updates(loss))
    before = {name: tensor.get() for name, tensor in opt.state.items()}
    step(1.0)  # 2 * 2 * 2**15 overflows float16
    assert opt.state["loss_scale"].item() == 2.0**14
    for name, tensor in opt.state.items():
        if name != "loss_scale":
            np.testing.assert_array_equal(tensor.get(), before[name])
    np.testing.assert_array_equal(weights[0].get(), np.float16([1, 2]))
    step(2.0)
    assert opt.state["loss_scale"].item() == 2.0**13 and opt.step.item() == 0
    for count in (1, 2):
        step(1.0)
        assert opt.state["good_steps"].item() == count == opt.step.item()
    step(1.0)
    assert (opt.state["loss_scale"].item(), opt.state["good_steps"].item()) == (2.0**14, 0)
    assert weights[0].get()[1] < 2


def test_a_fixed_scale_changes_nothing_but_what_vanishes() -> None:
    be = gen_backend("cpu")
    found = []
    for scale in (None, 128.0):
        weights, x, loss = problem(be, True)
        opt = train.Adam(weights, 0.01, loss_scale=scale)
        optree.function([x], updates=opt.updates(loss))(1.0)
        found.append(weights[0].get())
    np.testing.assert_allclose(found[0], found[1], rtol=1e-12)


def test_what_is_not_finite_is_named_with_its_step() -> None:
    be = gen_backend("cpu")
    for packs in (False, True):
        weights: Any = [be.array([1.0, 2.0], name="w"), be.array([1.0], name="b")]
        weights = train.packed(weights) if packs else weights
        x = TensorType("float32", ())("x")
        loss = be.sum(be.square(weights[0]), keepdims=False) + be.sum(weights[1] * x, keepdims=False)
        opt = train.SGD(weights, 0.0, check_finite=True)
        step = optree.function([x], loss, updates=opt.updates(loss))
        step(1.0)
        opt.check()
        step(1.0)
        step(np.inf)
        step(np.nan)
        with pytest.raises(train.NonFiniteError, match="first time at step 2: in the loss, the gradient of b$"):
            opt.check()
    with pytest.raises(ParameterError, match="check_finite=True"):
        train.SGD(weights, 0.1).check()


def test_the_state_is_listed_by_weight() -> None:
    be = gen_backend("cpu")
    listed = []
    for packs in (False, True):
        weights, x, loss = problem(be, packs)
        opt = train.Adam(weights, 0.01, average=0.9, accumulate=2)
        optree.function([x], updates=opt.updates(loss))(1.0)
        listed.append({name: (tensor.shape, tensor.get().tolist()) for name, tensor in opt.state.items()})
    assert listed[0] == listed[1]
    assert {"mean.w0", "square.w2", "average.w3", "sum.w1", "power.beta2", "step", "batch"} <= listed[0].keys()


def test_weights_of_one_name_or_none_are_told_apart() -> None:
    be = gen_backend("cpu")
    weights = [be.ones(2, name="w"), be.ones(2, name="w"), be.ones(2)]
    assert sorted(train.SGD(weights, 0.1, momentum=0.9).state) == [
        "momentum.w_0",
        "momentum.w_1",
        "momentum.weight2",
        "step",
    ]


def test_packed_weights_are_the_same_weights() -> None:
    be = gen_backend("cpu")
    given = [be.array(w, name=f"w{i}") for i, w in enumerate(starts())]
    large, whole = be.ones((600, 600), name="large"), be.array([1, 2], name="whole", dtype="int64")
    found = train.packed([*given, large, whole])
    assert found[-2] is large and found[-1] is whole
    assert [x.name for x in found[:-2]] == [x.name for x in given]
    for old, new in zip(given, found, strict=False):
        assert old is not new
        np.testing.assert_array_equal(old.get(), new.get())
    assert train.packed(given[:1])[0] is given[0]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda be: train.Adam([], 0.1), OperandError, "a list of tensors or of groups"),
        (lambda be: train.Adam(be.ones(2), 0.1), OperandError, "a list of tensors or of groups"),
        (lambda be: train.Adam([be.ones(2) + 1], 0.1), OperandError, "a weight is a tensor"),
        (lambda be: train.Adam([be.ones(2, dtype="int64")], 0.1), DTypeError, "a weight is floating"),
        (lambda be: train.Adam([w := be.ones(2), w], 0.1), OperandError, "is given twice"),
        (lambda be: train.AdamW([be.ones(2)], 0.1, shard=2), OperandError, "shard is a group of processes"),
        (lambda be: train.SGD([w := be.ones(2)], 0.1).updates(be.sum(w), over=4), OperandError, "over is a group"),
        (lambda be: train.Adam([{"weights": [be.ones(2)], "beta": 0.1}]), OperandError, "no 'beta'; its numbers are"),
        (lambda be: train.Adam([{"rate": 0.1}]), OperandError, "a group is a dict of 'weights'"),
        (lambda be: train.Adam([be.ones(2)], loss_scale="static"), ParameterError, "'dynamic', not 'static'"),
        (lambda be: train.packed([1.0]), OperandError, "packed: a weight is a tensor"),
        (lambda be: train.Adam([be.ones(2)], "fast"), ParameterError, "Adam: rate is a number, a tree or a schedule"),
        (lambda be: train.Adam([be.ones(2)], None), ParameterError, "Adam: rate is a number, a tree or a schedule"),
        (lambda be: train.Adam([be.ones(2)], np.nan), ParameterError, "Adam: rate is 0 or more, not nan"),
        (lambda be: train.SGD([be.ones(2)], 0.1, momentun=0.9), ParameterError, "'momentun'; did you mean momentum"),
        (lambda be: train.AdamW([be.ones(2)], 0.1, beta_2=0.9), ParameterError, "AdamW: there is no option 'beta_2'"),
        (lambda be: train.Adam([be.ones(2)], 0.1, beta2=1), ParameterError, "beta2 is from 0 to below 1, not 1"),
        (lambda be: train.Adam([be.ones(2)], 0.1, epsilon=-1.0), ParameterError, "epsilon is 0 or more, not -1.0"),
        (
            lambda be: train.Adam([be.ones(2)], 0.1, accumulate=0),
            ParameterError,
            "accumulate is an integer of 1 or more",
        ),
        (lambda be: train.Adam([be.ones(2)], 0.1, accumulate=1.5), ParameterError, "an integer of 1 or more, not 1.5"),
        (lambda be: train.Adam([be.ones(2)], 0.1, average=2), ParameterError, "average is from 0 to 1, not 2"),
        (lambda be: train.Adam([be.ones(2)], 0.1, clip_norm=-1), ParameterError, "clip_norm is above 0, not -1"),
        (lambda be: train.Adam([be.ones(2)], 0.1, clip_value="1"), ParameterError, "clip_value is a number, a tree or"),
        (lambda be: train.Adam([be.ones(2)], 0.1, loss_scale=0.0), ParameterError, "loss_scale is above 0, not 0.0"),
        (lambda be: train.SGD([be.ones(2)], 0.1, nesterov=True), ParameterError, "nesterov .* momentum is 0"),
    ],
)
def test_what_is_no_optimizer_is_refused(make: Any, error: type[OptreeError], message: str) -> None:
    with pytest.raises(error, match=message):
        make(gen_backend("cpu"))


def test_an_optimizer_of_ones_own_names_its_options_in_its_parameters() -> None:
    class Signed(train.Optimizer):
        def __init__(self, weights: Any, rate: Any, share: float = 1.0, **options: Any) -> None:
            super().__init__(weights, rate, share=share, least=1e-3, **options)

        def formula(self, w: Any, g: Any, s: dict[str, Any], n: Any) -> tuple[Any, dict[str, Any]]:
            return w - n.rate * (n.share * g + n.least), {}

    be = gen_backend("cpu", jit=False)
    w = be.ones(1, name="w")
    optree.function([], [], updates=Signed([w], 0.5, share=0.5, weight_decay=0.0).updates(be.sum(w * w)))()
    assert w.item() == pytest.approx(0.4995)
    with pytest.raises(ParameterError, match="Signed: there is no option 'shares'; did you mean share"):
        Signed([w], 0.5, shares=0.5)


def test_a_number_of_many_elements_and_a_wrong_count_of_gradients_are_refused() -> None:
    be = gen_backend("cpu")
    w = be.ones(2, name="w")
    loss = be.sum(be.square(w))
    with pytest.raises(OperandError, match="one element"):
        train.SGD([w], be.ones(2)).updates(loss)
    with pytest.raises(OperandError, match="2 gradients for 1 weights"):
        train.SGD([w], 0.1).updates(loss, [w, w])
    assert train.SGD([w], 0.1).updates(loss, [w * 2])


@pytest.mark.parametrize("packs", [False, True], ids=["alone", "packed"])
def test_a_step_is_one_graph_on_a_gpu(packs: bool, folder: Any, gpu: Any) -> None:
    found = []
    for be in (gen_backend("cpu"), gpu):
        weights: Any = [be.array(w, dtype="float32", name=f"w{i}") for i, w in enumerate([np.ones((4, 3)), np.ones(3)])]
        weights = train.packed(weights) if packs else weights
        x = TensorType("float32", (None, 4))("x")
        loss = be.mean(be.square(be.tanh(be.dot(x, weights[0]) + weights[1]) - 0.5), keepdims=False)
        opt = train.AdamW(
            weights, train.schedules.cosine(0.1, 10), clip_global_norm=1.0, loss_scale="dynamic", average=0.9
        )
        step = optree.function([x], loss, updates=opt.updates(loss))
        data = np.linspace(-1, 1, 32, dtype=np.float32).reshape(8, 4)
        found.append([step(data).item() for _ in range(6)])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5)
    assert be.stats()["host_calls"] == 0
    assert "captured as a CUDA graph" in optree.debugprint(step, file="str")
