"""A filter in frequencies, ``abs(ifft2(fft2(x) * h)) ** 2``, with its gradient; complex expressions; a quantum circuit.

The variants take turns in one process (`timing`). NumPy's and SciPy's gradients are written by hand; JAX is compared
where it is installed. Results are compared first.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import scipy.fft
from timing import options_of, rounds_of

import optree
from backends import gen_backend

SIZE = 1024

#: The qubits of the circuit, and its layers of gates on two neighbours.
QUBITS, LAYERS = 16, 3

#: The value, and the value with the gradient of the sum of its squares: of x and h.
Variant = tuple[Callable[[], Any], Callable[[], Any]]


#: Expressions by a library of arrays, of complex z and c, and real x.
EXPRESSIONS: dict[str, Callable[..., Any]] = {
    "exp(1j * x) * x": lambda m, z, c, x: m.exp(1j * x) * x,
    "a Mandelbrot step": lambda m, z, c, x: m.where(m.abs(z) > 2, z, z * z + c),
    "layer norm": lambda m, z, c, x: (z - m.mean(z, axis=1, keepdims=True)) / m.std(z, axis=1, keepdims=True) * c,
}


def by_optree(x: np.ndarray, h: np.ndarray) -> Variant:
    """Two compiled functions of this project's."""
    be = gen_backend("cpu", jit="always")
    z, filtered = be.array(x), be.array(h)
    value = np.abs(np.fft.ifft2(np.fft.fft2(z) * filtered)) ** 2
    cost = be.sum(value * value, keepdims=False)
    return optree.function([], value), optree.function([], [value, optree.grad(cost, z)])


def by_hand(x: np.ndarray, h: np.ndarray, library: Any, **options: Any) -> Variant:
    """Arrays, by a library's transforms."""

    def parts() -> tuple[Any, Any]:
        y = library.ifft2(library.fft2(x, **options) * h, **options)
        return y, np.square(y.real) + np.square(y.imag)

    def both() -> Any:
        y, value = parts()
        y *= 4 * value
        spectrum = library.fft2(y, **options)
        spectrum *= h.conj()
        return value, library.ifft2(spectrum, **options)

    return lambda: parts()[1], both


def by_jax(x: np.ndarray, h: np.ndarray) -> Variant:
    """``jax.jit``; its gradient is the conjugate of ours."""
    jax: Any = import_module("jax")
    jnp = jax.numpy
    z, filtered = jnp.asarray(x), jnp.asarray(h)

    def value(z: Any, h: Any) -> Any:
        return jnp.abs(jnp.fft.ifft2(jnp.fft.fft2(z) * h)) ** 2

    def cost(z: Any, h: Any) -> Any:
        found = value(z, h)
        return jnp.sum(found * found), found

    one, both = jax.jit(value), jax.jit(jax.grad(cost, has_aux=True))

    def with_gradient() -> Any:
        gradient, found = jax.block_until_ready(both(z, filtered))
        return found, gradient.conj()

    return lambda: jax.block_until_ready(one(z, filtered)), with_gradient


def circuit(einsum: Any, state: Any, gates: Any) -> Any:
    """The state after gates of two qubits, each a product with two axes of the state."""
    names = "abcdefghijklmnop"[:QUBITS]
    for first, gate in gates:
        a, b = names[first], names[first + 1]
        state = einsum(f"yz{a}{b},{names}->{names.replace(a, 'y').replace(b, 'z')}", gate, state)
    return state


def circuits() -> dict[str, Callable[[], Any]]:
    """The circuit, by each library."""
    rng = np.random.default_rng(0)
    state = np.zeros((2,) * QUBITS, np.complex64)
    state[(0,) * QUBITS] = 1
    firsts = [q for layer in range(LAYERS) for q in range(layer % 2, QUBITS - 1, 2)]
    drawn = [np.linalg.qr(rng.normal(size=(4, 4)) + 1j * rng.normal(size=(4, 4)))[0] for _ in firsts]
    gates = [x.reshape(2, 2, 2, 2).astype(np.complex64) for x in drawn]
    be = gen_backend("cpu")
    ours = optree.function(
        [], circuit(np.einsum, be.array(state), list(zip(firsts, map(be.array, gates), strict=True)))
    )
    found: dict[str, Callable[[], Any]] = {
        "op-tree": ours,
        "NumPy": lambda: circuit(np.einsum, state, zip(firsts, gates, strict=True)),
        "NumPy, optimize": lambda: circuit(partial(np.einsum, optimize=True), state, zip(firsts, gates, strict=True)),
    }
    try:
        jax: Any = import_module("jax")
    except ImportError:
        return found
    by = jax.jit(lambda state, gates: circuit(jax.numpy.einsum, state, zip(firsts, gates, strict=True)))
    operands = jax.numpy.asarray(state), list(map(jax.numpy.asarray, gates))
    return {**found, "JAX": lambda: jax.block_until_ready(by(*operands))}


def expressed(expression: Callable[..., Any], *arrays: np.ndarray) -> dict[str, Callable[[], Any]]:
    """An expression by each library."""
    be = gen_backend("cpu", jit="always")
    found: dict[str, Callable[[], Any]] = {"op-tree": optree.function([], expression(np, *map(be.array, arrays)))}
    found["NumPy"] = lambda: expression(np, *arrays)
    try:
        jax: Any = import_module("jax")
    except ImportError:
        return found
    by, operands = jax.jit(partial(expression, jax.numpy)), [jax.numpy.asarray(x) for x in arrays]
    return {**found, "JAX": lambda: jax.block_until_ready(by(*operands))}


def compared(title: str, variants: dict[str, Callable[[], Any]], wanted: list[Any], options: Any) -> None:
    """Compare the results, and print minima."""
    for name, function in variants.items():
        for got, right in zip(_arrays(function()), wanted, strict=True):
            assert np.abs(got - right).max() < 1e-4 * np.abs(right).max(), name
    functions = [*variants.values()]
    for _ in range(3):  # kernels are compiled
        functions[0]()
    best = [min(times) for times in rounds_of(functions, options.rounds, options.calls, pause=0.01)]
    print(f"\n{title}: minima, and op-tree's over it")
    for name, seconds in zip(variants, best, strict=True):
        print(f"  {name:<20} {seconds * 1e3:8.1f} ms   {best[0] / seconds:5.2f}")


def main(arguments: list[str] | None = None) -> None:
    """Print ratios of minima, ours over each other library's."""
    options = options_of(__doc__ or "", 7, 1, arguments)
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(SIZE, SIZE)) + 1j * rng.normal(size=(SIZE, SIZE))).astype(np.complex64)
    h = np.exp(1j * rng.normal(size=(SIZE, SIZE))).astype(np.complex64)
    variants = {
        "op-tree": by_optree(x, h),
        "NumPy": by_hand(x, h, np.fft),
        "SciPy": by_hand(x, h, scipy.fft),
        "SciPy, two workers": by_hand(x, h, scipy.fft, workers=2),
    }
    try:
        variants["JAX"] = by_jax(x, h)
    except ImportError:
        print("JAX is not installed")
    for which, title in enumerate(("value", "value and gradient")):
        functions = {name: variant[which] for name, variant in variants.items()}
        compared(f"{title}, {SIZE} x {SIZE} complex64", functions, _arrays(functions["NumPy"]()), options)
    for title, expression in EXPRESSIONS.items():
        found = expressed(expression, x, h, x.real.copy())
        compared(f"{title}, {SIZE} x {SIZE} complex64", found, _arrays(found["NumPy"]()), options)
    found = circuits()
    compared(f"a circuit of {QUBITS} qubits and {LAYERS} layers", found, _arrays(found["NumPy"]()), options)


def _arrays(found: Any) -> list[np.ndarray]:
    several = isinstance(found, tuple | list) and not isinstance(found, optree.Tensor)
    return [x.get() if isinstance(x, optree.Tensor) else np.asarray(x) for x in (found if several else [found])]


if __name__ == "__main__":
    main()
