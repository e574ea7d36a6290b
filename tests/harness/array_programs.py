"""Random programs of the array API standard's arrays: of writes, views and values, the same for every namespace."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest


class Program:
    """Random statements on arrays of one namespace: with one seed the same for each.

    Names hold arrays that are views of one another or are not, wait or do not.
    """

    def __init__(self, xp, seed):
        self.xp, self.random = xp, random.Random(seed)
        self.names = [xp.asarray(np.arange(12.0).reshape(3, 4) * 0.1 + i) for i in range(3)]
        self.names.append(xp.asarray(xp.asarray(1.5) * xp.asarray(0.5)))  # without dimensions, and it waits
        #: Without elements: each waits for numbers that others have, too.
        self.empty = []

    def pick(self):
        return self.random.choice(self.names)

    def same_shape(self, x):
        found = [y for y in self.names if y.shape == x.shape]
        return self.random.choice(found) if found else x

    def value(self, x):
        """An expression of the shape of x."""
        y, z = self.same_shape(x), self.same_shape(x)
        number = self.random.choice((0.5, 0.25, -0.5))
        return self.random.choice(
            (
                lambda: y,
                lambda: y * number,
                lambda: y + z * number,
                lambda: y - y,
                lambda: (y * number + z) * 0.5,
                lambda: self.xp.where(y > z, y, z * number),
                lambda: self.xp.flip(y) if y.ndim else self.xp.flip(y) * 1.0,  # of NumPy's, a number
                lambda: number,
                lambda: y * number + self.xp.sum(z) * 0.125,
            )
        )()

    def step(self):
        kind = self.random.randrange(15)
        i = self.random.randrange(len(self.names))
        x = self.pick()
        if kind < 3:
            new = self.value(x)
            if type(new) is not float:
                self.names[i] = self.xp.asarray(new)  # NumPy makes numbers of arrays without dimensions
        elif kind == 3:
            self.names[i] = self.view(x)
        elif kind == 4:
            x += self.value(x)
        elif kind == 5:
            x *= 0.5
        elif kind == 6:
            part = self.view(x)
            part[...] = self.value(part)
        elif kind == 7 and x.ndim:
            x[:1] = self.value(x[:1])
        elif kind == 8:
            x[x > 1.0] = 0.25
        elif kind == 9 and x.ndim:
            x[[0, -1]] = x[[-1, 0]] * 0.5
        elif kind == 10:
            return float(self.xp.sum(x))
        elif kind == 11 and x.ndim:
            return [float(self.xp.max(row)) for row in x]
        elif kind == 12 and len(self.names) < 8:
            self.names.append(self.xp.asarray(self.value(x) * 1.0 + x))
        elif kind == 13:
            total = self.xp.asarray(self.xp.sum(x) * 0.125)
            self.names[i] = total if self.names[i].ndim == 0 else self.names[i]
            self.empty.append(self.xp.asarray(self.xp.reshape(x, (-1,))[:0] - total))
        elif kind == 14 and self.empty:
            return np.asarray(self.random.choice(self.empty)).size
        return None

    def view(self, x):
        if not x.ndim:
            return self.random.choice((lambda: x.T, lambda: self.xp.reshape(x, ()), lambda: x[...]))()
        return self.random.choice(
            (
                lambda: x[1:] if x.shape[0] > 1 else x[...],
                lambda: x[::-1],
                lambda: x[0, ...],
                lambda: x.T,
                lambda: self.xp.reshape(x, (-1,)) if x.ndim == 1 else x[None][0],
                lambda: x[..., :2],
            )
        )()

    def run(self, steps):
        told = [self.step() for _ in range(steps)]
        return told, [np.asarray(x) for x in (*self.empty, *self.names)]


def assert_alike(xp: Any, seed: int, steps: int = 60) -> None:
    """A program of a namespace means what it means in NumPy's: all that it is told, and all that is left."""
    told, values = Program(xp, seed).run(steps)
    expected, numpys = Program(np, seed).run(steps)
    for one, other in zip(told, expected, strict=True):
        assert (one is None) == (other is None)
        assert one is None or one == pytest.approx(other, rel=1e-9, abs=1e-9)
    for one, other in zip(values, numpys, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)
