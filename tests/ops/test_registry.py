"""Every promise of every registered op. A new op is tested by existing, and fails where nothing covers it."""

from __future__ import annotations

import ast
import contextlib
import warnings
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.composed import COMPOSED, composed_examples
from harness.each import for_each
from harness.expected import MEANINGS
from harness.expressions import EITHER_ZERO
from harness.homes import home
from harness.linalg_cases import LINALG
from harness.narrow import of_any_dtype
from harness.op_examples import examples_for

from optree import Autodiff, OpTreeNode, grad
from optree.dtypes import bfloat16, finfo, is_complex, is_floating
from optree.errors import BackendError, DTypeError, OperandError, OptreeError, ShapeError
from optree.op.examples import examples_in
from optree.op.op import Op
from optree.op.traits import ElementwiseOperator, NonDifferentiableOperator, ReductionOperator
from optree.registry import FUNCTIONS, OPS, f
from optree.testing import check_op
from optree.testing.comparison import compare, scale_of
from optree.testing.conformance import LAYOUTS, MIXED, PROMISES, check_backend
from optree.testing.examples import Example, Runner, examples_of, inputs_for
from optree.tree.types import DTYPES

#: Ops and functions that are none of their operands' values, or of some alone, and the tests that they have instead.
ELSEWHERE = {
    "assign": "tree/test_assignment.py",
    "attention": "ops/test_attention.py",
    "cholesky": "ops/test_linalg.py",
    "cofactors": "ops/test_linalg.py",
    "complex": "ops/test_complex.py",
    "det": "ops/test_linalg.py",
    "eig": "ops/test_linalg.py",
    "eigh": "ops/test_linalg.py",
    "eigvals": "ops/test_linalg.py",
    "eigvalsh": "ops/test_linalg.py",
    "inv": "ops/test_linalg.py",
    "output": "compile/test_program.py",
    "pinv": "ops/test_linalg.py",
    "pinv_by_tolerances": "ops/test_linalg.py",
    "roots": "ops/test_complex.py",
    "qr": "ops/test_linalg.py",
    "rand": "ops/test_random.py",
    "scan": "ops/test_loops.py",
    "slogdet": "ops/test_linalg.py",
    "solve": "ops/test_linalg.py",
    "standard_gamma": "ops/test_sampling.py",
    "standard_normal": "ops/test_random.py",
    "stochastic_cast": "ops/test_random.py",
    "svd": "ops/test_linalg.py",
    "svdvals": "ops/test_linalg.py",
    "take_blocks": "ops/test_random.py",
    "while_loop": "ops/test_while_loop.py",
}

PURE = {name: op for name, op in sorted(OPS.items()) if name not in ELSEWHERE}
ELEMENTWISE = [
    name
    for name, op in PURE.items()
    if issubclass(op, ElementwiseOperator) and not op.prop_names() and name in MEANINGS
]
#: Python's arithmetic operators by the ops that they build: their methods' names without the underscores.
ALL = (*(dtype for dtype in DTYPES if not is_complex(dtype)), bfloat16())


@pytest.fixture(scope="module")
def cpu(home_kind: str) -> Any:
    """One backend for all that only reads from it."""
    return home(home_kind, datatype=np.float64)


@pytest.fixture(scope="module")
def other(home_kind: str) -> Any:
    """Another backend."""
    return home(home_kind)


@pytest.fixture(scope="module")
def neon(home_kind: str) -> Any:
    """A backend in neon's mode."""
    return home(home_kind, datatype=np.float64, compat_mode="neon")


def _tensors(backend: Any, values: Any) -> list[Any]:
    names = iter(("first", "second", "third", "fourth"))
    return [backend.array(x, x.dtype, next(names)) if isinstance(x, np.ndarray) else x for x in values]


def _quietly(function: Any, *args: Any, **props: Any) -> Any:
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return function(*args, **props)


# Nothing escapes


@for_each("name", {**OPS, **ELSEWHERE})
def test_every_op_has_a_meaning(name: str) -> None:
    if name in ELSEWHERE:
        module = ast.parse((Path(__file__).parent.parent / ELSEWHERE[name]).read_text())
        tests = [x for x in module.body if isinstance(x, ast.FunctionDef) and x.name.startswith("test_")]
        assert any(_mentions(test, name) and _asserts(test) for test in tests), f"{ELSEWHERE[name]} is to test {name}"
    else:
        assert name in MEANINGS, f"{name}: say in tests/harness/expected.py what it means, not by its own value"


def _mentions(test: ast.FunctionDef, op: str) -> bool:
    """Whether a test's code, its decorators and not its name, uses an op by its name or its class's."""
    said = {OPS[op].__name__, op} if op in OPS else {op}
    for node in ast.walk(test):
        found = {"Attribute": "attr", "Name": "id", "Constant": "value"}.get(type(node).__name__)
        if found is not None and getattr(node, found) in said:
            return True
    return False


def _asserts(test: ast.FunctionDef) -> bool:
    return any(
        isinstance(x, ast.Assert) or (isinstance(x, ast.Call) and "assert" in ast.dump(x.func)) for x in ast.walk(test)
    )


@for_each("name", PURE)
def test_every_op_has_examples(name: str) -> None:
    examples = examples_of(PURE[name])
    assert all(len(e.operands) == len(PURE[name].operands or e.operands) for e in examples)


@for_each("name", [n for n, op in PURE.items() if not issubclass(op, NonDifferentiableOperator)])
def test_every_differentiable_op_has_an_example_of_its_gradient(name: str) -> None:
    covered = set()
    for example in examples_of(PURE[name]):
        values = example.draw()
        inputs = inputs_for(values)
        tree = example.tree(inputs)
        if tree.dtype.kind in "fc" and tree.size:
            covered |= {i for i, x in enumerate(values) if isinstance(x, np.ndarray) and x.dtype.kind == "f" and x.size}
    assert covered, f"{name}: its examples differentiate nothing; give one with a floating operand"


@for_each("name", FUNCTIONS)
def test_every_function_is_an_op_or_composed(name: str) -> None:
    called = FUNCTIONS[name].__name__
    assert any(called in each for each in (OPS, COMPOSED, LINALG, ELSEWHERE)), (
        f"{name}: say in tests/harness/composed.py what it means"
    )


VIEWS = [name for name, op in PURE.items() if op.view_map]


@pytest.mark.parametrize("name", VIEWS)
def test_every_view_is_what_compilers_take_a_view_for(name: str) -> None:
    """An op declares each fact that holds on all its examples, so that passes treat it like its kin."""
    op = OPS[name]
    assert op.index_map.is_view, f"{name} has a view_map: let its index map say which"
    for example in examples_of(op):  # NumPy's value of some views without dimensions is a number, without memory
        values, tree = example.draw(), _value(example)[1]
        viewed = tree.op.value(*values)
        is_view = isinstance(viewed, np.ndarray) and (not viewed.size or np.may_share_memory(viewed, values[0]))
        assert is_view or not op.index_map.rearranges, example
    found = [_moved(example) for example in examples_of(op)]
    assert all(once for once, _ in found) is op.index_map.rearranges, f"{name}: an index map of SELECTED or the like"
    kept = [tree_op.index_map.moves_axes for _, tree_op in found]
    assert all(kept) or not all(in_order for in_order, _ in map(_in_order, examples_of(op))), f"{name}: RESHAPED"


def _moved(example: Example) -> tuple[bool, Any]:
    """Whether no element of an example's value is there twice, and the op that makes it."""
    values, tree = _value(example)
    return np.unique(values).size == values.size, tree.op


def _in_order(example: Example) -> tuple[bool, Any]:
    """Whether an example's value is its first operand in C order, and the op that makes it."""
    values, tree = _value(example)
    return np.array_equal(values.ravel(), np.ravel(example.draw()[0])), tree.op


def _value(example: Example) -> tuple[np.ndarray, Any]:
    values = example.draw()
    inputs = inputs_for(values)
    tree = example.tree(inputs)
    return np.asarray(Runner([tree], inputs)(values)[0]), tree


# The promises that need no word on what the op means

#: All but one are of ops and derivatives alone, and are checked by the reference: they need no backend.
OF_OPS = [promise for promise in PROMISES if promise != "backend"]


@pytest.mark.parametrize("promise", OF_OPS)
@for_each("name", PURE, sampled=True)
def test_promise(name: str, promise: str) -> None:
    for example in examples_of(PURE[name]):
        PROMISES[promise](example, None)


#: Those that a function does not keep because its ops keep them.
OF_FUNCTIONS = [p for p in OF_OPS if p not in ("clauses", "facts", "identity", "perform", "type", "weak_numbers")]


@pytest.mark.parametrize("promise", OF_FUNCTIONS)
@for_each("name", COMPOSED, sampled=True)
def test_promise_of_a_composed_function(name: str, promise: str) -> None:
    for example, _ in composed_examples(name):
        PROMISES[promise](example, None)


@pytest.mark.matrix
@pytest.mark.parametrize("name", [*PURE, *COMPOSED])
def test_a_backend_gives_what_the_reference_gives(name: str, cpu: Any) -> None:
    """Each example in every layout, and with few examples, in every dtype; else in three, which change in turn."""
    examples, narrow = examples_for(name), [*MIXED[1:], bfloat16()]
    in_turn = len(examples) >= len(LAYOUTS) or name in COMPOSED or cpu.name == "gpu"
    for number, example in enumerate(examples):
        few = narrow if len(examples) <= len(narrow) else np.roll(np.array(narrow, object), 2 * number)[:2]
        check_backend(example, cpu, number if in_turn else None, (MIXED[0], *few))


@for_each("name", PURE)
def test_an_op_takes_floats_as_it_says(name: str) -> None:
    taken = False
    for example in examples_of(PURE[name]):
        with contextlib.suppress(DTypeError):
            example.tree(inputs_for(example.draw(np.float64)))
            taken = True
    assert taken is examples_in(PURE[name]).takes_floats


def test_check_op_checks_them_all(be64: Any) -> None:
    check_op("tanh")
    check_op(OPS["where"])
    assert be64.stats()["executions"] > 0


# The value


@for_each("name", PURE, sampled=True)
def test_value_on_examples(name: str) -> None:
    for example in examples_of(PURE[name]):
        _compare_with_meaning(example, MEANINGS[name], example.op.props)


@for_each("name", COMPOSED, sampled=True)
def test_value_of_a_composed_function(name: str) -> None:
    for example, meaning in composed_examples(name):
        _compare_with_meaning(example, meaning, {})


def _compare_with_meaning(example: Example, meaning: Any, props: Any) -> None:
    """Compare the reference's value, which a backend's is compared with."""
    for dtype in (*MIXED, bfloat16()):
        values = example.draw(dtype)
        inputs = inputs_for(values)
        try:
            tree = example.tree(inputs)
        except DTypeError:
            assert not (example.takes_floats and is_floating(np.dtype(dtype))), f"{example} is refused on {dtype}"
            if isinstance(meaning, np.ufunc):
                with pytest.raises(TypeError):
                    _quietly(meaning, *values, **props)
            continue
        wanted = _quietly(of_any_dtype(meaning), *values, **props)
        note = f"on {dtype} operands"
        (got,) = Runner([tree], inputs)(values)
        compare(got, wanted, example, note, ulps=16, scale=scale_of(example, values))


def _edges(dtype: np.dtype, count: int) -> list[np.ndarray]:
    """Extremes and special values of a dtype, every one with every other."""
    if dtype.kind == "b":
        points = np.array([False, True])
    elif dtype.kind in "iu":
        limits = np.iinfo(dtype)
        points = np.array([limits.min, limits.min + 1, 0, 1, 2, 3, 7, limits.max - 1, limits.max], dtype)
        if dtype.kind == "i":
            points = np.append(points, np.array([-1, -2, -7], dtype))
    else:
        info = finfo(dtype)
        sizes = [0.0, info.smallest_subnormal, info.tiny, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 10.5, info.max, np.inf]
        points = np.array([*sizes, *(-s for s in sizes), np.nan, 1 + info.eps, 1 - info.epsneg], dtype)
    if count == 3:
        points = points[:: max(1, len(points) // 8)]
    grid = np.meshgrid(*[points] * count, indexing="ij")
    return [np.ascontiguousarray(part) for part in grid]


@for_each(("name", "dtype"), product(ELEMENTWISE, ALL), sampled=True)
def test_special_values(name: str, dtype: np.dtype, cpu: Any) -> None:
    op = PURE[name].make()
    values = _edges(dtype, len(PURE[name].operands or "xy"))
    if name == "pow" and dtype.kind == "i":
        values[1] = np.where(values[1] < 0, dtype.type(0), values[1])  # NumPy refuses 2 ** -1 in integers
    try:
        wanted = _quietly(of_any_dtype(MEANINGS[name]), *values)
    except TypeError:
        with pytest.raises(DTypeError, match=name):
            op(*_tensors(cpu, values))
        return
    got = op(*_tensors(cpu, values)).asnumpyarray()
    if name in EITHER_ZERO:
        wanted = np.where((got == 0) & (wanted == 0), got, wanted)
    compare(got, wanted, name, f"on special values of {dtype}")


@for_each("name", [n for n in ELEMENTWISE if len(PURE[n].operands or "xy") == 2], sampled=True)
def test_promotion_is_numpys(name: str) -> None:
    op, meaning = PURE[name].make(), of_any_dtype(MEANINGS[name])
    for left, right in product(ALL, ALL):
        x, y = np.ones(2, left), np.ones((), right)
        for values in ((x, y), (x, 1), (x, 1.0), (1, x), (1.0, x), (x, True)):
            try:
                wanted = _quietly(meaning, *values)
            except TypeError:
                with pytest.raises(DTypeError):
                    op(*inputs_for(values))
                continue
            tree = op(*inputs_for(values))
            note = f"{name} of {left} and {right if values[1] is y else values}"
            assert tree.dtype == wanted.dtype, f"{note} is {tree.dtype}, and NumPy's {wanted.dtype}"


ARITHMETIC = [f"__{r}{n}__" for n in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow") for r in ("", "r")]
COMPARISONS = [f"__{n}__" for n in ("lt", "le", "gt", "ge", "eq", "ne")]


@for_each(
    ("method", "number"), product([*ARITHMETIC, *COMPARISONS], [False, True, 0, 1, 2, 3, 0.5, 1.0, 2.0]), sampled=True
)
def test_operators_with_numbers_are_numpys(method: str, number: Any, cpu: Any) -> None:
    """Python's operators, of which NumPy's ``**`` is not always the ufunc: value, and dtype, or a refusal."""
    for dtype in ALL:
        x = np.array([0, 1, 1], dtype)
        tensor = cpu.array(x, dtype)
        try:
            wanted = _quietly(of_any_dtype(lambda x: getattr(x, method)(number)), x)
        except TypeError:
            with pytest.raises(DTypeError):
                getattr(tensor, method)(number)
            continue
        tree = getattr(tensor, method)(number)
        assert tree.dtype == wanted.dtype, f"{method} of {dtype} and {number!r} is {tree.dtype}, not {wanted.dtype}"
        compare(tree.asnumpyarray(), wanted, method, f"{method} of {dtype} and {number!r}")


@for_each("name", ELEMENTWISE)
def test_operands_without_strides(name: str, cpu: Any) -> None:
    op = PURE[name]
    shapes = [(2, 1), (1, 3), (1, 1)][: len(op.operands or "xy")]
    values = Example(op.make(), tuple(shapes), examples_in(op).sample, name).draw()
    tensors = [cpu.over(np.broadcast_to(cpu.array(x).raw(), (2, 3))) for x in values]
    got = op.make()(*tensors).asnumpyarray()
    wanted = _quietly(MEANINGS[name], *(np.broadcast_to(x, (2, 3)) for x in values))
    compare(got, wanted, name, "on broadcast memory")


@for_each("name", ELEMENTWISE)
def test_into_an_operand(name: str, cpu: Any) -> None:
    """x[:] = op(x) and x.T[:] = op(x): the right side is read before the left is written."""
    op = PURE[name]
    count = len(op.operands or "xy")
    values = Example(op.make(), ((3, 3),) * count, examples_in(op).sample, name).draw()
    wanted = _quietly(MEANINGS[name], *values)
    if wanted.dtype != np.float64:
        return
    for place, turned in product(range(count), (False, True)):
        tensors = _tensors(cpu, values)
        target = tensors[place].T if turned else tensors[place]
        target[...] = op.make()(*tensors)
        compare(target.get(), wanted, name, f"written into operand {place}{', transposed' * turned}")


SIZES = (1e-30, 1e-20, 1e-7, 1e-3, 0.3, 1.0, 1.7, 10.0, 80.0, 1e5, 1e20, 1e30)


@for_each("name", [n for n in ELEMENTWISE if not issubclass(PURE[n], NonDifferentiableOperator)])
def test_gradients_of_every_size(name: str, cpu: Any) -> None:
    """In float32 the gradient is what it is in float64, rounded: nothing on the way to it is too large or small."""
    points = np.array([*SIZES, *(-s for s in SIZES)], np.float32)
    count = len(PURE[name].operands or "xy")
    grid = [np.ascontiguousarray(g) for g in np.meshgrid(*[points if count < 3 else points[::3]] * count)]
    found = []
    for dtype in (np.float32, np.float64):
        tensors = _tensors(cpu, [g.astype(dtype) for g in grid])
        found.append([g.asnumpyarray() for g in grad(f.sum(PURE[name].make()(*tensors)), tensors)])
    for narrow, wide in zip(*found, strict=True):
        with np.errstate(all="ignore"):
            known = np.isfinite(wide) & (np.abs(wide) < 1e38)
            error = np.abs(narrow - wide)[known]
        allowed = 1e-4 * np.abs(wide[known]) + 1e-37
        worst = [tuple(float(g[known][i]) for g in grid) for i in np.flatnonzero(~(error <= allowed))[:3]]
        assert not worst, f"{name}: at {worst} the float32 gradient is not the float64 one"


# Other ways to the same op


@for_each("name", FUNCTIONS)
def test_every_function_is_a_backends_method(name: str, cpu: Any) -> None:
    method = getattr(cpu, name)
    assert method.__doc__, f"{name} has no documentation"
    assert name in dir(cpu)


@for_each("name", ELEMENTWISE)
def test_a_backends_method_and_build_make_the_op(name: str, cpu: Any) -> None:
    op = PURE[name]
    values = Example(op.make(), ((2, 3),) * len(op.operands or "xy"), examples_in(op).sample, name).draw()
    tensors = _tensors(cpu, values)
    tree = getattr(cpu, name)(*tensors)
    assert tree.op == op.make()
    if len(tensors) < 3:
        assert OpTreeNode.build(name, *tensors).op == op.make()
    out = cpu.zeros(tree.shape, tree.dtype)
    assert getattr(cpu, name)(*tensors, out=out) is out
    compare(out.get(), _quietly(MEANINGS[name], *values), name, "with out=")
    for alias in [other for other, function in FUNCTIONS.known().items() if function is FUNCTIONS[name]]:
        assert getattr(cpu, alias)(*tensors).op == op.make(), alias


# neon's mode


@for_each("name", PURE, sampled=True)
def test_in_neons_mode_everything_is_2d_at_least(name: str, neon: Any) -> None:
    for example in examples_of(PURE[name]):
        if any(isinstance(x, tuple) and len(x) < 2 for x in example.operands):
            continue  # which are columns there, and do not fit as they do here
        try:
            tree = example.tree(_tensors(neon, example.draw()))
        except ShapeError as error:  # a list of indices is a column too
            assert any(isinstance(x, list) for x in example.operands) or "neon's mode" in str(error)
            continue
        if tree.backend is None:
            continue
        assert tree.ndim >= 2, f"{example} is {tree.ndim}-D"
        assert tree.asnumpyarray().shape == tree.shape
        for gradient in _neon_gradients(tree, neon):
            assert gradient.ndim >= 2


def _neon_gradients(tree: Any, backend: Any) -> list[Any]:
    read = [x for i, x in enumerate(tree.inputs) if i not in tree.op.index_map.shape_only]
    floating = [x for x in read if hasattr(x, "dtype") and x.dtype.kind == "f" and x.backend is backend]
    if tree.dtype.kind != "f" or isinstance(tree.op, NonDifferentiableOperator) or not tree.size:
        return []
    return Autodiff(tree, backend).get_grad_asnumpyarray(floating)


# What bad operands get


def _operands_for(name: str, backend: Any) -> tuple[Any, list[Any]]:
    example = next(
        e for e in examples_of(PURE[name]) if all(not isinstance(x, tuple) or x == () or len(x) for x in e.operands)
    )
    return example.op, _tensors(backend, example.draw(np.float32 if example.takes_floats else None))


@for_each("name", PURE)
def test_a_foreign_operand_is_named(name: str, cpu: Any) -> None:
    op, operands = _operands_for(name, cpu)
    for place in range(len(operands)):
        for foreign in ("text", object(), None):
            given = [foreign if i == place else x for i, x in enumerate(operands)]
            with pytest.raises(OperandError, match=f"{name}.*{type(foreign).__name__}"):
                op(*given)
        given = [[1.0, 2.0] if i == place else x for i, x in enumerate(operands)]
        with pytest.raises((OperandError, DTypeError), match=f"{name}|gather"):  # a list may be an index, but no floats
            op(*given)


@for_each("name", PURE)
def test_a_wrong_count_of_operands_is_named(name: str, cpu: Any) -> None:
    op, operands = _operands_for(name, cpu)
    for given in ([], operands[:1] * 9) if type(op).operands is not None else ([],):
        with pytest.raises(OperandError, match=f"{name}.*operand.*not"):
            op(*given)


@for_each("name", [n for n, op in PURE.items() if op.operands is None or len(op.operands) > 1])
def test_an_operand_of_another_backend_is_named(name: str, cpu: Any, other: Any) -> None:
    op, operands = _operands_for(name, cpu)
    places = [i for i, x in enumerate(operands) if hasattr(x, "backend")]
    if len(places) < 2:
        pytest.skip("its examples have one tensor")
    operands[places[-1]] = other.array(operands[places[-1]].get(), operands[places[-1]].dtype, "stranger")
    with pytest.raises(BackendError, match=f"{name}.*first.*stranger"):
        op(*operands)


@for_each("name", [n for n in ELEMENTWISE if len(PURE[n].operands or "xy") > 1])
def test_shapes_that_do_not_broadcast_are_named(name: str, cpu: Any) -> None:
    dtype = np.float64 if examples_in(PURE[name]).takes_floats else np.int64
    operands = [cpu.ones((2, 3), dtype, name="wide"), cpu.ones((4,), dtype, name="long"), cpu.ones((), dtype)]
    with pytest.raises(ShapeError, match=rf"{name}: wide \(2, 3\).*long \(4,\)"):
        PURE[name].make()(*operands[: len(PURE[name].operands or "xy")])


@pytest.mark.parametrize("name", [n for n, op in PURE.items() if issubclass(op, ReductionOperator)])
def test_axes_that_are_not_there_are_named(name: str, cpu: Any) -> None:
    x = cpu.ones((2, 3), name="x")
    for axis in (2, -3):
        with pytest.raises(OptreeError, match=rf"{name}.*axis {axis}.*2 dim"):
            f.__dict__[name](x, axis=axis)
    with pytest.raises(OptreeError, match=f"{name}.*axis"):
        f.__dict__[name](x, axis=1.5)
    if name not in ("argmax", "argmin"):
        with pytest.raises(OptreeError, match=f"{name}.*twice"):
            f.__dict__[name](x, axis=(0, 0))


@pytest.mark.parametrize("name", [n for n, op in PURE.items() if issubclass(op, ReductionOperator)])
def test_reducing_nothing(name: str, cpu: Any) -> None:
    empty = cpu.zeros((0, 3), name="empty")
    meaning = MEANINGS[name]
    try:
        wanted = _quietly(meaning, empty.get(), axis=0, keepdims=True)
    except ValueError:
        with pytest.raises(ShapeError, match=rf"{name}.*empty \(0, 3\).*identity"):
            f.__dict__[name](empty, axis=0)
    else:
        compare(f.__dict__[name](empty, axis=0).asnumpyarray(), wanted, name, "of nothing")
    assert f.__dict__[name](empty, axis=1).shape == (0, 1)


def test_an_op_has_no_more_facts_than_the_design_has() -> None:
    facts = [x for x, kind in Op.__annotations__.items() if "ClassVar" in kind and (x == "__props__" or x[0] != "_")]
    assert len(facts) <= 18, f"a fact that one compiler or layer asks for is a trait, or a row of its table: {facts}"
