"""Convolutions, what both backends know of them: the roles of operands, and the kernel that continues with one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from backends.execution.specialize import ExecutableKernel, FusedKernel
from optree.cache import Cache
from optree.networks.convolution import MOST, Conv, ConvInput, ConvTranspose, ConvWeights
from optree.records import NamedTuple

T = TypeVar("T")

#: By op class, which operand, or the value (-1), are images x, weights, and images y.
ROLES: dict[type, tuple[int, int, int]] = {
    Conv: (0, 1, -1),
    ConvInput: (-1, 1, 0),
    ConvTranspose: (-1, 1, 0),
    ConvWeights: (0, -1, 1),
}


def three(values: Sequence[T], none: T) -> list[T]:
    """Values of spatial axes, after those of axes that are not there."""
    return [none] * (MOST - len(values)) + list(values)


class Shapes(NamedTuple):
    """Those of one run of a convolution with an epilogue.

    Attributes
    ----------
    known : dict
        Of the values that it uses for their shapes alone.
    operands : list of tuple
        Of the convolution's operands.
    value : tuple of int
        Of its value.
    sizes : dict
        Of the kernel's domain, by axis.
    """

    known: dict[int, tuple[int, ...]]
    operands: list[tuple[int, ...]]
    value: tuple[int, ...]
    sizes: dict[int, int]


class ConvolutionKernel(ExecutableKernel):
    """A convolution and the kernel that continues with it.

    Parameters
    ----------
    convolution : Convolution
    kernel : FusedKernel
    operands : sequence of int
        The convolution's, among the values of the program.
    value : int
        The convolution's value.
    is_stored : bool
        Whether other steps need the value.
    """

    def __init__(
        self, convolution: Any, kernel: FusedKernel, operands: Sequence[int], value: int, is_stored: bool
    ) -> None:
        self.convolution, self.kernel, self.operands, self.value = convolution, kernel, operands, value
        self.rank, self.reduced, self.memory, self.sizes = kernel.rank, kernel.reduced, kernel.memory, kernel.sizes
        self.reads = list(dict.fromkeys([*operands[:2], *(i for i in kernel.reads if i != value)]))
        self.shape_inputs = list(dict.fromkeys([*operands[2:], *kernel.shape_inputs]))
        self.uses = {*self.reads, *self.shape_inputs, *(i for i, _ in kernel.numbers)}
        self.writes = [*kernel.writes, *[value] * is_stored]
        self.axes = {**dict.fromkeys(operands, ()), **kernel.axes}
        # Blocks read the convolution's operands after others have written.
        self.last_read = {**kernel.last_read, **dict.fromkeys(operands[:2], 1)}
        self.written_in = {**kernel.written_in, value: 0}
        self.layouts = Cache("convolutions with epilogues by layout", 64)

    def shapes(self, values: Sequence[Any]) -> Shapes:
        """The shapes of a run on the program's values."""
        known = dict(zip(self.shape_inputs, self.input_shapes(values), strict=True))
        operands = [*(values[i].shape for i in self.operands[:2]), *(known[i] for i in self.operands[2:])]
        shape = self.convolution.op.output_shape(*operands)
        along = zip(self.axes[self.value], shape, strict=True)
        return Shapes(known, operands, shape, {axis: size for axis, size in along if axis is not None})

    def outputs(self, sizes: dict[int, int], targets: Sequence[Any]) -> list[Any]:
        """The arrays to write: the targets, and new ones where there are none."""
        dtypes = self.kernel.dtypes
        return [
            self.memory.empty(tuple(1 if axis is None else sizes[axis] for axis in self.axes[i]), dtypes[i])
            if target is None
            else target
            for i, target in zip(self.writes, targets, strict=True)
        ]
