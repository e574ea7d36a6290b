"""The clock that versions go by: how many writes to tensors there have been.

A tensor's version is the time of its last write, and each node keeps the time at
which it was built (in its `origin`); so a tree can tell which of its tensors
were written since (`optree.tree.stale`).
"""

from __future__ import annotations

#: The time now. A list, so that operators, which make most nodes, read it without a call; what advances it makes no
#: call between reading and writing it, where another thread could come in.
clock: list[int] = [0]
