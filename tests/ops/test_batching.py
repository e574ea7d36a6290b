"""Batching rules: of every op and composed function, `vmap` is the stack of its values on each example."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from harness.composed import COMPOSED, composed_examples
from harness.linalg_cases import LINALG

from optree import Input, Op, TensorType, Variable, vmap
from optree.errors import BatchingError, DefinitionError, OptreeError
from optree.registry import OPS, f
from optree.testing.examples import Example, Runner, examples_of

#: The number of examples in a batch.
COUNT = 3


def _examples(name: str) -> list[Example]:
    if name in LINALG:
        return [Example(case.build, case.operands, (-2.0, 2.0), name) for case in LINALG[name]]
    try:
        return examples_of(OPS[name])
    except DefinitionError:
        return []


def _variants(x: np.ndarray) -> np.ndarray:
    """A batch of an operand: its elements, and others of them, so that all stay where the op takes them."""
    flat = x.reshape(-1)
    return np.stack([np.roll(flat, i * (flat.size // 2 + 1)).reshape(x.shape) for i in range(COUNT)])


def _patterns(values: Sequence[Any]) -> Iterator[list[bool]]:
    """Which operands differ between examples: each alone, and all."""
    arrays = [isinstance(x, np.ndarray) for x in values]
    for i, is_array in enumerate(arrays):
        if is_array and sum(arrays) > 1:
            yield [j == i for j in range(len(values))]
    if any(arrays):
        yield arrays


def _run(trees: Any, inputs: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    roots = list(trees) if isinstance(trees, list | tuple) and not isinstance(trees, Variable) else [trees]
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return [np.asarray(x) for x in Runner(roots, inputs)(values)]


def _inputs(values: Sequence[Any], is_open: bool = False) -> list[Any]:
    kinds = [TensorType(x.dtype, x.shape) if isinstance(x, np.ndarray) else None for x in values]
    return [x if kind is None else Input(kind.any_size if is_open else kind) for x, kind in zip(values, kinds, strict=True)]


def _check(example: Example, axis: int = 0) -> None:
    """Compare a batch with a loop, for each pattern of operands."""
    drawn = example.draw()
    for pattern in _patterns(drawn):
        values = [_variants(x) if each else x for x, each in zip(drawn, pattern, strict=True)]
        single = [x[0] if each else x for x, each in zip(values, pattern, strict=True)]
        inputs = _inputs(single)
        try:
            alone = Runner(*_trees(example.tree(inputs)), inputs)
        except OptreeError:
            continue  # an example of constants, for which the operand is to be known
        wanted = []
        for i in range(COUNT):
            given = [x[i] if each else x for x, each in zip(values, pattern, strict=True)]
            with np.errstate(all="ignore"):
                wanted.append([np.asarray(x) for x in alone(given)])
        inputs = _inputs(values)
        axes = tuple(0 if each else None for each in pattern)
        found = _run(vmap(lambda *x: example.tree(x), axes)(*inputs), inputs, values)
        for batch, *each in zip(found, *wanted, strict=True):
            told = f"{example}, batched: {pattern}"
            assert batch.dtype == each[0].dtype, told
            np.testing.assert_allclose(batch, np.stack(each), rtol=1e-11, atol=1e-12, err_msg=told)


def _trees(trees: Any) -> Any:
    return (list(trees) if isinstance(trees, list | tuple) and not isinstance(trees, Variable) else [trees],)


@pytest.mark.parametrize("name", sorted(OPS))
def test_of_every_op_a_batch_is_the_stack_of_its_values(name: str) -> None:
    examples = _examples(name)
    has_rule = OPS[name].leads_with_batch or OPS[name].batch is not Op.batch
    for example in examples:
        if has_rule:
            _check(example)
        else:
            with pytest.raises(BatchingError, match=r"no batching rule; write batch\(self"):
                _check(example)


@pytest.mark.parametrize("name", sorted(COMPOSED))
def test_of_every_composed_function_too(name: str) -> None:
    for example in composed_examples(name):
        with contextlib.suppress(BatchingError):
            _check(example)
