"""Fourier transforms by SciPy, where it is installed: several rows at once in a vector, on threads of its own.

The convolution of long vectors is a product of their transforms, by SciPy or NumPy.

With it two transforms of 1024 x 1024 and their gradient take 0.6 of the time by NumPy's. A transform along an axis that
is not the last is computed in place, in a copy with some space after each row: half of the time of a new array.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from importlib.util import find_spec
from itertools import product
from math import log2
from typing import Any

import numpy as np

from backends.execution.memory import LINE, empty_array
from optree.compile.program import Program
from optree.locks import import_later
from optree.settings import thread_count

#: The multiplications of a convolution for each n log2(n) of its transforms, of size n, from which these are quicker:
#: measured with sizes of 300 to a million, float32 and float64.
MULTIPLICATIONS = 32

#: The bytes between elements whose multiples are in one set of a core's first cache.
PERIOD = 4096


@cache
def has_scipy() -> bool:
    """Whether SciPy is installed, which is not imported."""
    return find_spec("scipy") is not None


def by_scipy(program: Program, index: int) -> bool:
    """`Routine.takes`: whether SciPy computes transforms."""
    return has_scipy()


def transform(backend: Any, op: Any) -> Callable[..., Any]:
    """`Routine.bind` of a transform, by SciPy's function of the name of NumPy's."""
    name, options = type(op).transform.__name__, op.options

    def by(x: np.ndarray) -> Any:
        loop, dtype = op.resolve_dtypes(x.dtype)
        function = partial(getattr(import_later("scipy.fft"), name), **options, workers=thread_count())
        if loop == dtype and op.axis < x.ndim - 1:
            spread = _spread(x.shape, dtype)
            spread[...] = x
            return function(spread, overwrite_x=True)
        return function(x.astype(loop, copy=False)).astype(dtype, copy=False)

    return by


def _spread(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Memory in which elements along an axis do not compete for one set of the cache."""
    sizes, stride = list(shape), dtype.itemsize
    for i in range(len(shape) - 1, 0, -1):
        if sizes[i] * stride % PERIOD == 0:
            sizes[i] += max(1, LINE // stride)
        stride *= sizes[i]
    return empty_array(tuple(sizes), dtype)[tuple(map(slice, shape))]


def transform_size(size: int, multiplications: int) -> int | None:
    """The size of the transforms by which a convolution of this size is computed; None if it takes less time without.

    It is the next product of 2, 3 and 5.
    """
    if multiplications < MULTIPLICATIONS * size * log2(size):
        return None
    found = 1 << (size - 1).bit_length()
    for three, five in product(range(size.bit_length()), repeat=2):
        odd = 3**three * 5**five
        found = min(found, odd << (-(-size // odd) - 1).bit_length())
    return found


def convolved(x: np.ndarray, y: np.ndarray, size: int) -> np.ndarray:
    """The full convolution of two vectors by transforms of a size, and zeros, in float64.

    The errors of transforms are relative to the largest elements, so those of float32 would lose the small ones.
    """
    library = import_later("scipy.fft" if has_scipy() else "numpy.fft")
    spectrum = library.rfft(x.astype(np.float64, copy=False), size)
    spectrum *= library.rfft(y.astype(np.float64, copy=False), size)
    return library.irfft(spectrum, size)  # type: ignore[no-any-return]
