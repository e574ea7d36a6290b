"""A logical clock that counts the writes to tensors.

A tensor's version is the time of its last write, and a node's `origin` holds the
time at which it was built. So `optree.tree.stale` can tell which tensors were written since.
"""

from __future__ import annotations

#: The time now. A list, so that operators, which make most nodes, read it without a call. Whatever advances it makes no
#: call between the read and the write, so that no other thread runs in between.
clock: list[int] = [0]
