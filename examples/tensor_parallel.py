"""A network of two products whose weights are divided among processes: mpiexec -n 2 python examples/tensor_parallel.py.

Each process has some columns of the first weights, and the rows of the second ones that meet them. So it computes some
of the hidden units, and its part of the sums of the second product. One operation adds the parts up.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import optree
from backends import gen_backend
from optree import distributed, train

INPUTS, HIDDEN, CLASSES, EXAMPLES, STEPS = 32, 96, 8, 256, 40


def share(be: Any, group: distributed.Group, whole: Any, axis: int) -> Any:
    """The part of a tensor, along an axis, that this process has."""
    size = whole.shape[axis] // group.size
    index = [slice(None)] * whole.ndim
    index[axis] = slice(group.rank * size, (group.rank + 1) * size)
    return be.array(whole.get()[tuple(index)], name=whole.name)


def trained(be: Any, group: distributed.Group) -> list[float]:
    """The loss of each step; all processes have the whole batch."""
    if HIDDEN % group.size:
        raise SystemExit(f"{HIDDEN} hidden units do not divide among {group.size} processes")
    first = train.initializers  # all processes draw the same numbers, and each takes its part
    w1 = share(be, group, first.kaiming_normal(be, (INPUTS, HIDDEN), name="w1"), 1)
    b1 = share(be, group, first.zeros(be, HIDDEN, name="b1"), 0)
    w2 = share(be, group, first.lecun_normal(be, (HIDDEN, CLASSES), name="w2"), 0)
    b2 = first.zeros(be, CLASSES, name="b2")  # the same on all

    x, y = optree.TensorType(be.datatype, (None, INPUTS))("x"), optree.TensorType("int64", (None,))("y")
    hidden = be.relu(be.dot(group.replicated(x), w1) + b1)
    scores = group.all_reduce(be.dot(hidden, w2), replicated=True) + b2
    loss = train.losses.cross_entropy(scores, y)
    step = optree.function([x, y], loss, updates=train.AdamW([w1, b1, w2, b2], 0.01).updates(loss))

    rng = np.random.default_rng(0)
    samples = rng.normal(size=(EXAMPLES, INPUTS)).astype(be.datatype)
    classes = (samples[:, :CLASSES] ** 2).argmax(axis=1)
    losses = [step(samples, classes).item() for _ in range(STEPS)]
    group.check_equal([b2])
    return losses


def main() -> None:
    """Train, and print the losses once."""
    be = gen_backend("cpu", rng_seed=0, jit="always")
    group = distributed.init(be)
    losses = trained(be, group)
    if group.rank == 0:
        print(f"{group.size} processes, {HIDDEN // group.size} hidden units each:", *(f"{x:.5f}" for x in losses[::13]))


if __name__ == "__main__":
    main()
