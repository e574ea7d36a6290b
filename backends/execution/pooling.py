"""Derivatives of pools, as statements of C and of CUDA where a window meets one of its elements."""

from __future__ import annotations

from optree.networks.pooling import AvgUnpool, MaxUnpool
from optree.records import NamedTuple


class Kind(NamedTuple):
    """The statements of a derivative, on a window's ``y`` and index ``z``, an element ``x``, and a ``t`` beside it.

    Attributes
    ----------
    arrays : str
        Those of x, y and z that take part; x is written.
    begin : str
        The start of each window that an element is in, with the number of its ``cells``.
    meet : str
        What happens where they meet.
    is_by_index : bool
        Whether a window meets no other element than the one that its index tells.
    """

    arrays: str
    begin: str
    meet: str
    is_by_index: bool = False


#: By op class its kind.
KINDS: dict[type, Kind] = {
    MaxUnpool: Kind("xyz", "", "x += y;", is_by_index=True),
    AvgUnpool: Kind("xy", "t = y / cells;", "x += t;"),
}
