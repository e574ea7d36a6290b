"""The facts of ops that a GPU alone asks for: what a CUDA graph captures, and what reports its errors otherwise."""

from __future__ import annotations

from typing import Any

from optree.autodiff.recompute import Afterwards, Checkpointed
from optree.networks.recurrent import Parts
from optree.networks.vision import RegionOperator
from optree.op.index_map import is_view
from optree.ops.assignment import Assign, Joined
from optree.ops.factorisation import LapackOperator
from optree.ops.indexing import Gather, Take, TakeAlongAxis
from optree.ops.joining import Concatenate
from optree.ops.labels import CheckLabels
from optree.ops.random import TakeBlocks
from optree.ops.shape import Unslice

#: Ops that check index arrays and raise; in a CUDA graph the host raises later.
CHECKED: set[type] = {Gather, Take, TakeAlongAxis, CheckLabels, RegionOperator}

#: Ops that a CUDA graph captures where no kernel computes them: they copy and launch. A user's op is added here.
CAPTURED: set[type] = {Gather, Take, TakeAlongAxis, Concatenate, Unslice, TakeBlocks, Assign, Joined, Parts}
CAPTURED |= {CheckLabels, Checkpointed, Afterwards}

#: Ops that call linear algebra, whose failures CuPy reports only on request.
LAPACK: set[type] = {LapackOperator}


def is_among(op: Any, table: set[type]) -> bool:
    """Whether an op's class, or one that it is derived from, is in a table."""
    return not table.isdisjoint(type(op).__mro__)


def is_captured(op: Any) -> bool:
    """Whether a CUDA graph captures an op that no kernel computes: it is in the table, or a view."""
    return is_view(op) or is_among(op, CAPTURED)
