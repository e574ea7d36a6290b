"""Pools in no library: what happens where a window meets one of its elements, as statements of C and of CUDA."""

from __future__ import annotations

from optree.networks.pooling import ArgmaxPool, AvgPool, AvgUnpool, MaxPool, MaxUnpool, TakePool
from optree.records import NamedTuple


class Kind(NamedTuple):
    """The statements of a pool, on a window's ``y`` and index ``z``, an element ``x``, and a ``t`` beside it.

    Attributes
    ----------
    arrays : str
        Those of x, y and z that take part.
    writes : str
        The one that is written.
    begin : str
        The start of a window, or of each window that an element is in.
    meet : str
        What happens where they meet; the element's index in the window is its ``number``.
    end : str
        The end of a window, with the number of its ``cells``.
    is_by_index : bool
        Whether a window meets no other element than the one that its index tells.
    """

    arrays: str
    writes: str
    begin: str
    meet: str
    end: str = ""
    is_by_index: bool = False


MAXIMUM = Kind("xy", "y", "y = -INFINITY;", "y = x > y || x != x ? x : y;")

ARGMAX = Kind(
    "xz",
    "z",
    "z = -1, t = 0;",
    "const int is_better = (z < 0) | (x > t) | ((x != x) & (t == t)); t = is_better ? x : t; "
    "z = is_better ? number : z;",
)

#: Those that write x add to it.
ADD_BY_INDEX = Kind("xyz", "x", "", "x += y;", is_by_index=True)

TAKE_BY_INDEX = Kind("xyz", "y", "y = 0;", "y = x;", is_by_index=True)

MEAN = Kind("xy", "y", "y = 0;", "y += x;", "y /= cells;")

ADD_SHARES = Kind("xy", "x", "t = y / cells;", "x += t;")

#: By op class its kind, and which operands, or the value (-1), are the images x, the windows' y, and the indices z.
ROLES: dict[type, tuple[Kind, tuple[int | None, int | None, int | None]]] = {
    MaxPool: (MAXIMUM, (0, -1, None)),
    ArgmaxPool: (ARGMAX, (0, None, -1)),
    MaxUnpool: (ADD_BY_INDEX, (-1, 0, 1)),
    TakePool: (TAKE_BY_INDEX, (0, -1, 1)),
    AvgPool: (MEAN, (0, -1, None)),
    AvgUnpool: (ADD_SHARES, (-1, 0, None)),
}
