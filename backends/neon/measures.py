"""Histograms of exponents, and times, by neon's names."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np

from backends.neon.hooks import Hooks
from optree.errors import ParameterError, brief
from optree.registry import f
from optree.tree.tensor import Tensor
from optree.tree.variable import constant

#: The rows of the buffer of histograms.
ROWS = 4096


class Mark:
    """A time, once it is recorded."""

    time: float | None = None


class Measures(Hooks):
    """Histograms and times on a backend in neon's mode."""

    hist_bins: int = 64
    hist_offset: int = -48
    hist_idx: int = 0
    hist_max: int = ROWS

    @property
    def hist_buf(self) -> Any:
        """The histograms, one in each row."""
        return self._hist_state()[0]

    @property
    def hist_map(self) -> dict[Any, int]:
        """The row of each tag."""
        return self._hist_state()[1]  # type: ignore[no-any-return]

    def _hist_state(self) -> tuple[Any, dict[Any, int]]:
        state = self.__dict__.get("_hist")
        if state is None:
            state = self.__dict__["_hist"] = self.empty((ROWS, self.hist_bins), "int32"), {}
        return state

    def set_hist_buffers(self, hist_bins: int, hist_offset: int) -> None:
        """Set the number of bins and the exponent of the first; histograms start anew where either changes."""
        if (hist_bins, hist_offset) != (self.hist_bins, self.hist_offset):
            self.hist_bins, self.hist_offset = hist_bins, hist_offset
            self._forget_histograms()

    def _forget_histograms(self) -> None:
        self.__dict__.pop("_hist", None)
        self.hist_idx = 0

    def compute_hist(self, tensor: Tensor, tag: Any) -> Any:
        """Count the exponents of the values of a tensor in the next row of the histograms, and return the row.

        The exponent is log2 of the absolute value, rounded. The first bin takes smaller ones too, zeros among them,
        and larger ones than the last bin's second are not counted.

        Raises
        ------
        ParameterError
            If all rows are used; `dump_hist_data` starts anew.
        """
        buffer, rows = self._hist_state()
        if self.hist_idx >= ROWS:
            raise ParameterError(f"hist: all {ROWS} rows are used, before {brief(tag)}; dump_hist_data starts anew")
        row, rows[tag] = self.hist_idx, self.hist_idx
        self.hist_idx += 1
        counts = buffer[row]
        self.replay("hist", _counted, (self.hist_bins, self.hist_offset), counts, tensor)
        return counts

    def dump_hist_data(self) -> tuple[Any, dict[Any, int]]:
        """The histograms and the row of each tag; they then start anew."""
        state = self._hist_state()
        self._forget_histograms()
        return state

    # Times

    def init_mark(self) -> Mark:
        """A mark of a time to come."""
        return Mark()

    def record_mark(self, marker: Mark) -> None:
        """Set a mark to the time at which what has been started is finished."""
        self.synchronize()
        marker.time = perf_counter()

    def synchronize_mark(self, marker: Mark) -> None:
        """Wait for a mark; all are of the past once they are recorded."""

    def get_time(self, start: Mark, end: Mark) -> float:
        """The milliseconds from mark to mark.

        Raises
        ------
        ParameterError
            If one is not recorded.
        """
        if start.time is None or end.time is None:
            raise ParameterError("get_time: record_mark has not set both marks")
        return (end.time - start.time) * 1e3


# The trees, from a key and operands to pairs of a target and a value


def _counted(key: tuple[int, int], counts: Any, x: Any) -> list[tuple[Any, Any]]:
    bins, offset = key
    values = f.absolute(f.cast(f.reshape(x, (-1, 1)), "float32"))
    index = f.rint(f.log2(values)) - offset
    index = f.where(f.eq(values, 0), f.fill_like(index, 0), f.maximum(index, 0))  # log2 of 0 is -inf, or raises
    # One bin more for what is not counted; the last bin takes one exponent more than the others.
    kept = f.where(index <= bins, f.minimum(index, bins - 1), f.fill_like(index, bins))
    picked = f.take(constant(np.zeros((bins + 1, 1), np.int32)), f.cast(kept, "int32"), axis=0)
    found = picked.op.grad(picked.inputs, [f.fill_like(picked, 1)])[0]  # ones added where they would be taken from
    return [(counts, f.transpose(f.slice(found, slice(0, bins))))]
