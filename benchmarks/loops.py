"""Loops with small steps, in op-tree, JAX and NumPy: filters, recurrences, stencils, samplers and Newton's method."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from sequences import Formula, Row, drawn

# A Kalman filter of 2 states and 1 observation: the squared innovations over their variances

TIMES = 300


def kalman_operands() -> list[np.ndarray]:
    """A transition, its noise, the observed combination of states, and the observations."""
    matrices = [[0.9, 0.2], [-0.1, 0.8]], [[0.1, 0.0], [0.0, 0.1]], [[1.0, 0.5]]
    return [*(np.array(x, np.float32) for x in matrices), *drawn((TIMES, 1), scale=1.0)]


def _kalman_step(a: Any, q: Any, h: Any, states: Any, y: Any) -> Any:
    m, p = states
    m, p = a @ m, a @ p @ a.T + q
    variance = h @ p @ h.T + 0.5
    innovation = y - h @ m
    gain = (p @ h.T) / variance
    states = m + (gain @ innovation.reshape((1,))), p - gain @ h @ p
    return states, (innovation * innovation / variance.reshape((1,))).reshape(())


def kalman_scan(be: Any, scan: Any) -> Formula:
    """The filter by a library's scan."""

    def formula(a: Any, q: Any, h: Any, y: Any) -> Any:
        return scan(partial(_kalman_step, a, q, h), (be.zeros((2,)), be.array(np.eye(2, dtype=np.float32))), y)[1]

    return formula


# A recurrence of some units, of one sequence


def tanh_operands(units: int, steps: int = 1000) -> list[np.ndarray]:
    """A matrix, the state before, and a sequence."""
    return drawn((units, units), (units,), (steps, units), scale=units**-0.5)


def tanh_scan(be: Any, scan: Any) -> Formula:
    """The recurrence by a library's scan."""

    def formula(a: Any, s: Any, x: Any) -> Any:
        def step(s: Any, x: Any) -> Any:
            s = be.tanh(a @ s + x)
            return s, s

        return scan(step, s, x)[1]

    return formula


# An LSTM of 16 units over 64 steps, of 8 sequences

UNITS = 16


def lstm_operands() -> list[np.ndarray]:
    """A sequence, and the weights of its slices and of the state."""
    return drawn((64, 8, UNITS), (UNITS, 4 * UNITS), (UNITS, 4 * UNITS), scale=0.3)


def lstm_scan(be: Any, scan: Any) -> Formula:
    """The LSTM by a library's scan."""

    def sigmoid(x: Any) -> Any:
        return 1 / (1 + be.exp(-x))

    def formula(x: Any, w: Any, u: Any) -> Any:
        def step(states: Any, x: Any) -> Any:
            h, c = states
            z = x @ w + h @ u
            enters, stays, new, leaves = be.split(z, 4, axis=1)
            c = sigmoid(stays) * c + sigmoid(enters) * be.tanh(new)
            h = sigmoid(leaves) * be.tanh(c)
            return (h, c), h

        zeros = be.zeros((8, UNITS))
        return scan(step, (zeros, zeros), x)[1]

    return formula


# Heat on a square whose edges are cold

SIDE, HEATS = 256, 200


def heat_operands() -> list[np.ndarray]:
    """The temperatures at first, and the conductivity."""
    return [*drawn((SIDE, SIDE), scale=1.0), np.array(0.2, np.float32)]


def heat_scan(be: Any, scan: Any) -> Formula:
    """The steps by a library's scan."""

    def formula(u: Any, k: Any) -> Any:
        def step(u: Any, _: Any) -> Any:
            around = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]
            return u + be.pad(k * (around - 4 * u[1:-1, 1:-1]), ((1, 1), (1, 1))), None

        return scan(step, u, None, length=HEATS)[0]

    return formula


# A Hamiltonian trajectory of a logistic regression, with the gradient of its density by hand

LEAPS, SIZE = 20, 0.01


def hmc_operands() -> list[np.ndarray]:
    """The features, the labels, and the position and momentum before."""
    x, label, position, momentum = drawn((569, 30), (569,), (30,), (30,), scale=1.0)
    return [x, (label > 0).astype(np.float32), position, momentum]


def hmc_scan(be: Any, scan: Any) -> Formula:
    """The leapfrogs by a library's scan."""

    def formula(x: Any, label: Any, position: Any, momentum: Any) -> Any:
        def slope(w: Any) -> Any:
            return (label - 1 / (1 + be.exp(-(x @ w)))) @ x - w

        def leap(states: Any, _: Any) -> Any:
            w, p = states
            p = p + SIZE / 2 * slope(w)
            w = w + SIZE * p
            return (w, p + SIZE / 2 * slope(w)), None

        w, p = scan(leap, (position, momentum), None, length=LEAPS)[0]
        return w + p

    return formula


# A loop in a loop: 50 implicit steps of a pendulum, each by 5 steps of Newton's method


def nested_operands() -> list[np.ndarray]:
    """Angles, and speeds."""
    return drawn((8,), (8,), scale=1.0)


def nested_scan(be: Any, scan: Any) -> Formula:
    """Both loops by a library's scan."""

    def formula(angle: Any, speed: Any) -> Any:
        def step(states: Any, _: Any) -> Any:
            angle, speed = states

            def newton(new: Any, _: Any) -> Any:
                excess = new - angle - 0.1 * (speed - 0.1 * be.sin(new))
                return new - excess / (1 + 0.01 * be.cos(new)), None

            new = scan(newton, angle, None, length=5)[0]
            return (new, speed - 0.1 * be.sin(new)), new

        return scan(step, (angle, speed), None, length=50)[1]

    return formula


# Newton's method for cube roots, until no element changes much

LIMIT, CLOSE = 100, 1e-5


def newton_operands() -> list[np.ndarray]:
    """The numbers whose roots are wanted."""
    return [np.linspace(1, 1000, 64, dtype=np.float32)]


def _newton(y: Any, x: Any) -> Any:
    return x - (x - y / (x * x)) / 3


def newton_ours(be: Any) -> Formula:
    """The roots by a while_loop."""

    def formula(y: Any) -> Any:
        def unfinished(states: Any) -> Any:
            return be.max(abs(states[1] - states[0])) > CLOSE

        return be.while_loop(unfinished, lambda states: (states[1], _newton(y, states[1])), (0 * y, y), LIMIT)[1]

    return formula


def newton_jax(jax: Any) -> Formula:
    """The roots by a scan of as many steps as the limit: while_loop has no derivative in reverse."""

    def formula(y: Any) -> Any:
        def step(states: Any, _: Any) -> Any:
            goes_on = abs(states[1] - states[0]).max() > CLOSE
            new = states[1], _newton(y, states[1])
            return tuple(jax.numpy.where(goes_on, *each) for each in zip(new, states, strict=True)), None

        return jax.lax.scan(step, (0 * y, y), None, length=LIMIT)[0][1]

    return formula


def newton_numpy() -> Formula:
    """The roots by Python's loop."""

    def formula(y: np.ndarray) -> np.ndarray:
        before, x, steps = 0 * y, y, 0
        while steps < LIMIT and abs(x - before).max() > CLOSE:
            before, x, steps = x, _newton(y, x), steps + 1
        return x

    return formula


def _numpy_scan(step: Any, state: Any, sequence: Any, length: int | None = None) -> tuple[Any, Any]:
    """A scan as a Python loop over arrays."""
    outputs = []
    for x in [None] * (length or 0) if sequence is None else sequence:
        state, output = step(state, x)
        outputs.append(output)
    return state, None if outputs[0] is None else np.stack(outputs)


def _row(name: str, operands: Any, formula: Any) -> Row:
    """A row whose formula is the same in all libraries."""
    peers = {
        "jax": lambda jax: formula(jax.numpy, jax.lax.scan),
        "numpy": lambda numpy: formula(numpy, _numpy_scan),
    }
    return Row(name, operands, lambda be: formula(be, be.scan), peers)


ROWS = (
    _row("Kalman filter, 2 states, 300 steps", kalman_operands, kalman_scan),
    *(
        _row(f"tanh(A @ s + x), s of {units}, 1,000 steps", partial(tanh_operands, units), tanh_scan)
        for units in (2, 16, 64)
    ),
    _row("LSTM, 16 units, 64 steps, 8 sequences", lstm_operands, lstm_scan),
    _row("heat, 256 x 256, 200 steps", heat_operands, heat_scan),
    _row("HMC, 20 leapfrogs on 569 x 30", hmc_operands, hmc_scan),
    _row("50 steps of 5 steps of Newton's method, 8 numbers", nested_operands, nested_scan),
    Row(
        "while_loop: cube roots of 64 numbers",
        newton_operands,
        newton_ours,
        {"jax": newton_jax, "numpy": lambda numpy: newton_numpy()},
    ),
)
