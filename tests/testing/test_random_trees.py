"""Random trees against NumPy run op by op, and their gradients against finite differences.

Hypothesis builds them from the registry and shrinks what fails to the smallest
tree that does. Each run draws the same trees; ``--hypothesis-profile=long``
draws others, and many more.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from fuzz import SETTINGS, run
from harness.compiling import needs_compiler
from harness.homes import home
from harness.trees import SHAPES, SMOOTH, USABLE, Exactness, assert_alike, leaves_of, run_by_numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from backends import gen_backend
from optree import OpTreeNode, check_grad, grad
from optree.compile.program import flatten
from optree.compile.reference import evaluate, value_of
from optree.op.traits import ReductionOperator
from optree.registry import OPS, f
from optree.testing.comparison import central_difference
from optree.testing.examples import Runner, inputs_for
from optree.testing.random_trees import random_tree
from optree.tree.node import operands_of, post_order


@pytest.fixture(scope="module")
def cpu(home_kind: str) -> Any:
    """One backend for all trees, so that plans are kept and met again."""
    return home(home_kind, datatype=np.float64)


@pytest.fixture(scope="module")
def kernels() -> Any:
    """A backend that runs all it can by kernels."""
    return gen_backend("cpu", datatype=np.float64, jit=True)


DTYPES = st.tuples(*[st.sampled_from(["float64", "float32", "int32", "bool", "int64", "uint8"])] * len(SHAPES))


@given(data=st.data(), dtypes=DTYPES)
def test_a_random_tree_is_numpy_run_op_by_op(cpu: Any, data: Any, dtypes: Any) -> None:
    exactness = Exactness()
    leaves = leaves_of(cpu, dtypes)
    tree = random_tree(
        lambda options: data.draw(st.sampled_from(options)),
        leaves,
        data.draw(st.integers(1, 12)),
        USABLE,
        exactness.accepts,
    )
    if not isinstance(tree, OpTreeNode):
        return
    wanted, largest = run_by_numpy(tree)
    exact = not exactness.is_rounded(tree)
    assert_alike(tree.asnumpyarray(), wanted, tree, largest, exact)
    program = flatten([tree])
    (by_reference,) = evaluate(program, [value_of(leaf) for leaf in program.leaves])
    assert_alike(np.asarray(by_reference), wanted, tree, largest, exact)
    target = cpu.empty(tree.shape[::-1], tree.dtype).T
    target[...] = tree
    assert_alike(target.get(), wanted, tree, largest, exact)


@needs_compiler
@settings(max_examples=min(80, settings.default.max_examples))  # a compiler takes a tenth of a second for each kernel
@given(data=st.data(), dtypes=DTYPES, size=st.integers(3, 12))
def test_a_random_tree_by_compiled_kernels(kernels: Any, data: Any, dtypes: Any, size: int) -> None:
    """To the bit where all is exact, else within 4 units in the last place for each operation, of the largest value."""
    exactness = Exactness()
    leaves = leaves_of(kernels, dtypes)
    tree = random_tree(lambda options: data.draw(st.sampled_from(options)), leaves, size, USABLE, exactness.accepts)
    if not isinstance(tree, OpTreeNode):
        return
    wanted, largest = run_by_numpy(tree)
    target = kernels.empty(tree.shape[::-1], tree.dtype).T
    target[...] = tree
    for got in (tree.asnumpyarray(), target.get()):
        assert_alike(got, wanted, tree, largest, not exactness.is_rounded(tree), 4 * size)


@given(data=st.data(), place=st.integers(0, len(SHAPES) - 1))
def test_a_random_tree_written_into_a_leaf(cpu: Any, data: Any, place: int) -> None:
    """The right side is read before the left is written, wherever the left stands in it."""
    leaves = leaves_of(cpu, ["float64"] * len(SHAPES))
    target = leaves[place]
    exactness = Exactness()
    tree = random_tree(lambda options: data.draw(st.sampled_from(options)), leaves, 6, USABLE, exactness.accepts)
    if tree.dtype != np.float64 or not isinstance(tree, OpTreeNode):
        return
    for view in (target, target.T, target[..., ::-1] if target.ndim else target):
        before = target.get()
        wanted, largest = run_by_numpy(tree)
        try:
            np.broadcast_to(wanted, view.shape)
        except ValueError:
            continue
        view[...] = tree
        assert_alike(view.get(), np.broadcast_to(wanted, view.shape), tree, largest, not exactness.is_rounded(tree))
        target.set(before)


def check_directions(function: Any, leaves: Any, tolerance: float = 1e-5) -> None:
    """Compare a backend's gradient with central differences of the reference along a random direction of each leaf.

    That is as strict as a difference for each element, at a quarter of the evaluations, but does not name the element:
    `check_grad` does, if one is wrong.
    """
    cost, rng = function(*leaves), np.random.RandomState(0)
    gradients = cost.backend.evaluate(grad(cost, list(leaves)))
    values = [x.get() for x in leaves]
    inputs = inputs_for(values)
    run = Runner([function(*inputs)], inputs)  # a view of a leaf is moved with it
    for i, (x, gradient) in enumerate(zip(leaves, gradients, strict=True)):
        direction = rng.uniform(0.5, 1.5, x.shape) * rng.choice([-1, 1], x.shape)

        def along(moved: Any, i: int = i, direction: Any = direction) -> float:
            return run([*values[:i], values[i] + moved[0] * direction, *values[i + 1 :]])[0].item()

        slope = float(central_difference(along, [np.zeros(())], 0, 1e-4))
        if not abs(slope - np.sum(gradient.get() * direction)) <= tolerance * max(1.0, abs(slope)):
            check_grad(function, leaves, rtol=tolerance, atol=tolerance)
            raise AssertionError(f"the derivative by {x.label} along {direction} is {slope}, not of {gradient.get()}")


@given(data=st.data())
def test_the_gradient_of_a_random_smooth_tree(cpu: Any, data: Any) -> None:
    leaves = leaves_of(cpu, ["float64"] * len(SHAPES), low=-1.0)
    choices: list[Any] = []

    def choose(options: Any) -> Any:
        choices.append(data.draw(st.integers(0, len(options) - 1)))
        return options[choices[-1]]

    size = data.draw(st.integers(1, 8))
    random_tree(choose, leaves, size, SMOOTH)

    def again(*tensors: Any) -> Any:
        replay = iter(choices)
        tree = random_tree(lambda options: options[next(replay)], tensors, size, SMOOTH)
        # Every leaf takes part, so that each has a derivative, if only of this.
        return f.sum(f.tanh(tree)) + sum((f.sum(x * x) for x in tensors), 0.0)

    check_directions(again, leaves)


def test_every_op_that_can_be_in_a_random_tree_gets_into_one(cpu: Any) -> None:
    missing = {*USABLE, *(name for name, op in OPS.items() if issubclass(op, ReductionOperator))}
    leaves = leaves_of(cpu, ["float64", "float64", "float64", "int32", "int32", "bool"])
    for seed in range(800):
        if not missing:
            break
        exactness = Exactness()
        tree = random_tree(random.Random(seed).choice, leaves, 15, USABLE, exactness.accepts)
        nodes = post_order([tree], lambda x: operands_of(x) if isinstance(x, OpTreeNode) else ())
        missing -= {x.op.name for x in nodes if isinstance(x, OpTreeNode)}
    assert not missing, f"never drawn: {sorted(missing)}"


def test_the_same_seed_makes_the_same_tree(cpu: Any) -> None:
    leaves = leaves_of(cpu, ["float64"] * len(SHAPES))
    one, two = (random_tree(random.Random(7).choice, leaves, 12) for _ in range(2))
    assert str(one) == str(two)
    assert one.key() == two.key()


@pytest.mark.parametrize("way", SETTINGS)
def test_settings_of_the_fuzzer_are_those_of_the_executors(way: str) -> None:
    """They patch constants by name, which may be removed."""
    with SETTINGS[way]():
        pass


@pytest.mark.matrix(least=2)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(12))
def test_a_random_program_is_numpys(seed: int) -> None:
    """Programs of `make fuzz`, on the backends that compile nothing."""
    with np.errstate(all="ignore"):
        assert run(seed, ["numpy", "stand-in"]) is None
