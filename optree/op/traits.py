"""The kinds of operation, as mixins that fill in the Op contract.

They are Metadiff's operator traits ("A guide to operators"), by its names. Earlier bases
precede later ones, as Python's method resolution order has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from optree.arrays import Array, portable
from optree.dtypes import own_dtypes, ufunc_dtypes
from optree.errors import AxisError, ShapeError
from optree.op.batching import by_axis
from optree.op.examples import Cases, Examples
from optree.op.index_map import BROADCAST, IndexMap, per_op, reduced, windowed
from optree.op.op import Op
from optree.records import NamedTuple
from optree.registry import associative, f
from optree.tree.gradient_types import is_discrete
from optree.tree.types import Shape, TensorType, normalise_axes, promote, weak_dtype
from optree.tree.variable import Variable, is_neon, number_of

#: The axes of a value and of each of its operands (None: whole) that blocks divide, and the least size of a block.
Blocks = tuple[int, tuple[int | None, ...], int]

#: Chooses an element of a sequence: by a random generator, or by Hypothesis, which can then shrink the tree.
Choose = Callable[[Sequence[Any]], Any]


def no_props(choose: Choose, x: Variable) -> dict[str, Any]:
    """`Examples.random_props` of an op without parameters."""
    return {}


def some_axes(choose: Choose, x: Variable) -> Any:
    """None, one axis or two of an operand, for random trees."""
    single = [*range(x.ndim), *range(-x.ndim, 0)]
    return choose([None, *single, *((i, j) for i in range(x.ndim) for j in range(i + 1, x.ndim))])


def one_axis(choose: Choose, x: Variable) -> dict[str, Any]:
    """`Examples.random_props` with one axis."""
    return {"axis": choose(range(-x.ndim, max(x.ndim, 1)))}


def any_axes(choose: Choose, x: Variable) -> dict[str, Any]:
    """`Examples.random_props` with None, one axis or two."""
    return {"axis": some_axes(choose, x)}


def given_axes(choose: Choose, x: Variable) -> dict[str, Any]:
    """`Examples.random_props` with one axis, two or all."""
    axis = some_axes(choose, x)
    return {"axis": tuple(range(x.ndim)) if axis is None else axis}


class NonDifferentiableOperator(Op):
    """An op whose derivative is zero or undefined: it sends no deltas."""

    takes_complex: ClassVar[bool | None] = False  # such as roundings and signs

    def generate_adjoints(self, adjoints: dict[Variable, Any], delta: Variable | list[Any], *args: Variable) -> None:
        return


class OrphanOperator(Op):
    """An op without differentiable operands."""

    __props__: ClassVar[tuple[str, ...] | None] = ()

    def grad(self, inputs: Sequence[Variable], output_gradients: Sequence[Any]) -> Sequence[Any]:
        return [None] * len(inputs)


class InputOperator(OrphanOperator):
    """The op of a tensor or input, for Metadiff's queries: it computes nothing."""


class ConstantOperator(OrphanOperator, NonDifferentiableOperator):
    """The op of a constant or number, for Metadiff's queries.

    Attributes
    ----------
    dtype : numpy.dtype, or None for a constant that is no array
    """

    __props__ = ("dtype",)
    dtype: Any = None


class UnaryOperator(Op):
    """An op of one operand."""

    operands: ClassVar[tuple[str, ...] | None] = ("x",)
    __props__: ClassVar[tuple[str, ...] | None] = ()


class BinaryOperator(Op):
    """An op of two operands."""

    operands = ("x", "y")
    __props__: ClassVar[tuple[str, ...] | None] = ()


@associative
class AssociativeOperator(Op):
    """An associative op of two operands or more."""

    operands = None
    __props__: ClassVar[tuple[str, ...] | None] = ()


class ElementwiseOperator(Op):
    """An elementwise op of operands that are broadcast together."""

    index_map = IndexMap(BROADCAST)

    def by_parts(self, *operands: Any) -> Any:
        """The value by the real and imaginary parts of operands, for kernels: its own two parts, or real numbers.

        Of a real operand the imaginary part is the number 0.0. None where a call of NumPy's function is better.
        """
        return None


class PartOperator(UnaryOperator):
    """The real or imaginary part of complex numbers, a view, which each kernel loads with the other part."""

    index_map = IndexMap(BROADCAST)
    view_map: ClassVar[dict[int | None, list[int]]] = {0: [0]}
    takes_complex = True
    raises = False
    #: The index of the part.
    part: ClassVar[int]


def kernel_of(op: Op, dtypes: Sequence[np.dtype]) -> str | None:
    """An op's kernel expression for operands computed in these dtypes; None where there is none."""
    if any(dtype.kind == "c" for dtype in dtypes) and not isinstance(op, PartOperator):
        return None
    expression: str | None = op.kernel(*dtypes) if callable(op.kernel) else op.kernel
    return expression


class NumberOperator(Op):
    """An op with another kernel where the last operand is a Python number: loop invariants are computed once."""

    def kernel_by_number(self, *dtypes: np.dtype) -> str | None:
        """The kernel expression for operands computed in these dtypes, the last a number."""
        raise NotImplementedError


class BlockOperator(Op):
    """An op whose value threads compute in blocks where there is no kernel."""

    def blocks(self, *shapes: tuple[int, ...]) -> Blocks | None:
        """The division for operands of these shapes; None where one block is best."""
        raise NotImplementedError


class UpdateOperator(Op):
    """An op whose value is its first operand with some elements changed."""

    takes_complex = True

    def update(self, out: Array, *arrays: Any) -> Any:
        """Write the value over the first operand and return it; nothing is written if it raises."""
        raise NotImplementedError


class LoopOperator(Op):
    """An op that runs a program of its own, its `body`, which backends compile."""


class DividedOperator(Op):
    """An op that a program may run as two, with other work between them."""

    def halves(self) -> tuple[Op, Op] | None:
        """Two ops for this one, or None: a `BeginningOperator`, and a `WaitingOperator` that waits for the value.

        The first takes this op's operands; the second takes the first one's value, and the operands but for the first.
        """
        return None


class BeginningOperator(Op):
    """An op that starts work that runs concurrently with later ops."""


class WaitingOperator(Op):
    """An op that waits for the work that a `BeginningOperator` has started."""


class CopyOperator(Op):
    """An op whose value is made up of copies of its operands, and of numbers."""

    takes_complex = True

    def copies(self, out: Array, *arrays: Array) -> Iterator[tuple[Any, Any]]:
        """The copies into an array, in order: a part of the array, and an operand or a number that goes there."""
        raise NotImplementedError

    @portable
    def fill(self, out: Array, *arrays: Array) -> None:  # type: ignore[override]
        for target, source in self.copies(out, *arrays):
            target[...] = source


def longest_axis(shape: tuple[int, ...], *but: int) -> int | None:
    """The longest axis of a shape, without some; None if there is no other."""
    return max((axis for axis in range(len(shape)) if axis not in but), key=shape.__getitem__, default=None)


def blocks_along(shape: tuple[int, ...], *but: int) -> Blocks | None:
    """`BlockOperator.blocks` of an op of one operand along its longest axis, without some, which the value has too."""
    axis = longest_axis(shape, *but)
    return None if axis is None else (axis, (axis,), 1)


def blocks_of_equal_shapes(op: Op, *shapes: tuple[int, ...]) -> Blocks | None:
    """`BlockOperator.blocks` of an elementwise op whose operands have one shape, or are numbers."""
    whole = [shape for shape in shapes if shape]
    axis = longest_axis(whole[0]) if whole and whole.count(whole[0]) == len(whole) else None
    return None if axis is None else (axis, tuple(axis if shape else None for shape in shapes), 1)


class MorphOperator(UnaryOperator):
    """An op of one operand that keeps its dtype."""

    def resolve_dtypes(self, *dtypes: np.dtype | type) -> tuple[np.dtype, ...]:
        dtype = promote(dtypes[0])
        return (dtype,) * (len(dtypes) + 1)


class FirstDtypeOperator(Op):
    """An op whose value has its first operand's dtype."""

    def resolve_dtypes(self, *dtypes: np.dtype | type) -> tuple[np.dtype, ...]:
        return (*map(promote, dtypes), promote(dtypes[0]))


class FloatOperator(Op):
    """An op whose value is floating; integers are promoted as by NumPy's ufuncs."""

    def resolve_dtypes(self, *dtypes: np.dtype | type) -> tuple[np.dtype, ...]:
        common = ufunc_dtypes(np.exp, (promote(*dtypes),))[-1]
        return own_dtypes(self.numpy, dtypes) or (common,) * (len(dtypes) + 1)

    def grad_inputs(self, inputs: Sequence[Variable]) -> list[Variable]:
        """The inputs, integers cast to the value's dtype: -x of an unsigned x would wrap."""
        whole = [i for i, x in enumerate(inputs) if number_of(x) is None and is_discrete(x)]
        if not whole:
            return list(inputs)
        numbers = [number_of(x) for x in inputs]
        dtype = self.resolve_dtypes(
            *(x.dtype if n is None else weak_dtype(type(n)) for x, n in zip(inputs, numbers, strict=True))
        )[-1]
        return [f.cast(x, dtype) if i in whole else x for i, x in enumerate(inputs)]


class IntegerOperator(NonDifferentiableOperator):
    """An op whose value is an int64."""

    def resolve_dtypes(self, *dtypes: np.dtype | type) -> tuple[np.dtype, ...]:
        return (*map(promote, dtypes), np.dtype("int64"))


class LogicalOperator(NonDifferentiableOperator):
    """An op whose value is a bool."""

    takes_complex: ClassVar[bool | None] = None

    def resolve_dtypes(self, *dtypes: np.dtype | type) -> tuple[np.dtype, ...]:
        return own_dtypes(self.numpy, dtypes) or (*map(promote, dtypes), np.dtype(bool))


class AxisOperator(Op):
    """An op along axes, whose value has its operand's shape unless it defines `output_shape`.

    Attributes
    ----------
    axis : int, tuple of int, or None
        None for all axes.
    """

    __props__: ClassVar[tuple[str, ...] | None] = ("axis",)
    axis: Any = None

    def bind(self, types: Sequence[TensorType], backend: object) -> Op:
        axes = self.axes(types[0].ndim)
        axis = self.axis if self.axis is None else axes if isinstance(self.axis, tuple | list) else axes[0]
        return self.with_props(axis=axis)

    @per_op(windowed())
    def index_map(self) -> IndexMap:
        return IndexMap(windowed(self.axis))

    batch = by_axis

    def axes(self, ndim: int) -> tuple[int, ...]:
        """The op's axes, non-negative, for an operand of `ndim` dimensions."""
        return normalise_axes(self.axis, ndim, str(self.name))


class GivenAxisOperator(AxisOperator, UnaryOperator):
    """An op along axes whose value has its operand's shape, so that no shape would tell of a wrong axis.

    The axis of an operand with two axes or more must be given: others' defaults are the first (neon's), the last
    (JAX's) and all of them (SciPy's). In neon's mode it is the first.
    """

    def bind(self, types: Sequence[TensorType], backend: object) -> Op:
        x = types[0]
        if self.axis is not None or x.ndim < 2:
            return super().bind(types, backend)
        if is_neon(backend):
            return self.with_props(axis=0)
        axes = tuple(range(x.ndim))
        raise AxisError(
            f"{self.name}: which of the {x.ndim} axes of x {x}? Give axis=-1 for the last, or axis={axes} for all"
        )


class CompositeOperator(Op):
    """An op that kernels compute as a tree of simpler ops.

    Attributes
    ----------
    for_kernels : {'all', 'windows', 'devices', 'hosts'}
        The kernels that the tree is for: all; where it has an `AffineOperator`, those with affine reads; those of a
        GPU, because a CPU takes less time by the op's value; or those with affine reads of a CPU.
    """

    for_kernels: ClassVar[str] = "all"

    def decompose(self, *inputs: Variable) -> Variable:
        """The value as a tree of simpler ops, of the same type and special values.

        It may depend on sizes of operands as far as `plan_sizes` says.
        """
        raise NotImplementedError


class Along(NamedTuple):
    """Operand's index along an axis of an affine read: ``(step * i + offset) // spacing`` where the value's is i."""

    #: The operand's axis; None for one of size 1, or where the operand has none.
    axis: int | None
    step: int
    offset: int
    #: The bounds of i, between which the operand is read.
    low: int
    high: int
    #: 1 where step is neither 1 nor -1.
    spacing: int = 1
    #: The operand is read where the remainder is below it; 1 where step is -1.
    cells: int = 1
    #: Whether the index is the remainder, in the place of the quotient.
    is_remainder: bool = False


class AffineOperator(Op):
    """An op whose elements are its first operand's at affine indices, and one number where these are out of bounds.

    Its `index_map` is `AFFINE` and its kernels read the operand itself, in the place of an array of the value. Of
    further operands the shape alone is read.
    """

    raises = False

    @property
    def outside(self) -> Any:
        """The number that is the value out of bounds."""
        return 0

    def along(self, *shapes: tuple[int, ...]) -> list[Along]:
        """For each axis of the value, the operand's index."""
        raise NotImplementedError


class Accumulator(NamedTuple):
    """The C expressions by which a kernel reduces elements, which are converted to the value's dtype before.

    Attributes
    ----------
    start : str
        The initial value; ``{lowest}`` and ``{highest}`` are the dtype's.
    combine : str
        Of ``{0}``, the accumulator, and ``{1}``, an element or another accumulator.
    finish : str
        The result, of ``{0}``, the accumulator, and ``{count}``, the number of elements.
    sums : bool
        Whether it is a sum, which kernels accumulate in a wider type.
    of_numbers : str
        A faster `combine` for elements without nan, for a reduction that propagates nan; or empty.
    absorbing : str
        The value at which a kernel may stop, because no further element changes it; or empty.
    rescaled : str
        Of a sum whose elements are relative to one reduced value, as ``exp(x - top)``: the sum relative to another,
        of ``{0}``, the accumulator, ``{1}``, the value that it is relative to, and ``{2}``, the other. A kernel may
        then add up elements while it still reduces that value (online softmax). Where some elements are left out by
        that value, ``{3}`` is the sum of all of them, another reduction. Or empty.
    replaces : str
        Of an extreme whose index is the result, flat in C order: the condition on which ``{1}``, a later element,
        replaces ``{0}``. The other expressions are of the elements' own dtype. Or empty.
    """

    start: str
    combine: str
    finish: str = "{0}"
    sums: bool = False
    of_numbers: str = ""
    absorbing: str = ""
    rescaled: str = ""
    replaces: str = ""

    @property
    def keeps_one(self) -> bool:
        """Whether the result of one element is that element, or its index."""
        return self.finish in ("{0}", "{0} / {count}")


class ReductionOperator(AxisOperator, UnaryOperator):
    """A reduction of one operand over axes.

    As in neon, the reduced axes are kept with size 1 unless ``keepdims=False``. On a backend in
    neon's mode they are always kept.

    Attributes
    ----------
    keepdims : bool
    has_identity : bool
        Whether the reduction over empty axes has a value.
    accumulator : Accumulator, optional
        Its computation by kernels.
    """

    __props__: ClassVar[tuple[str, ...] | None] = ("axis", "keepdims")
    keepdims: bool = True
    has_identity: ClassVar[bool] = True
    accumulator: ClassVar[Accumulator | None] = None

    examples: ClassVar[Examples | Cases] = Examples(
        (
            (((3, 4),), {}),
            (((3, 4),), {"axis": 0}),
            (((3, 4),), {"axis": -1, "keepdims": False}),
            (((2, 3, 4),), {"axis": (0, 2)}),
            (((2, 3, 4),), {"axis": (-1, 0), "keepdims": False}),
            (((1, 3),), {"axis": 0}),
            (((),), {"keepdims": False}),
            (((0, 3),), {"axis": 1}),
        ),
        random_props=lambda choose, x: {"axis": some_axes(choose, x), "keepdims": choose((True, False))},
    )

    @per_op(reduced())
    def index_map(self) -> IndexMap:
        return IndexMap(reduced(self.axis))

    def flops(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
        """One for each element of the operand."""
        return super().flops(outputs, inputs)

    def bind(self, types: Sequence[TensorType], backend: object) -> Op:
        return super().bind(types, backend).with_props(keepdims=bool(self.keepdims or is_neon(backend)))

    def output_shape(self, *shapes: Shape) -> Shape:
        (shape,) = shapes
        axes = self.axes(len(shape))
        if not self.has_identity and any(shape[i] == 0 for i in axes):
            raise ShapeError(f"the reduced axes {axes} of {shape} are empty, and {self.name} has no identity")
        if self.keepdims:
            return tuple(1 if i in axes else size for i, size in enumerate(shape))
        return tuple(size for i, size in enumerate(shape) if i not in axes)

    def accumulator_for(self, dtype: np.dtype) -> Accumulator | None:
        """The accumulator for elements of a dtype; None if kernels do not reduce them."""
        return self.accumulator

    def restore(self, reduced: Variable, x: Variable) -> Variable:
        """A value of this reduction's shape, with the reduced axes as size 1."""
        return reduced if self.keepdims else f.expand_dims(reduced, self.axes(x.ndim))

    def squeezed(self, reduced: Variable) -> Variable:
        """A value with the reduced axes as size 1, in this reduction's shape."""
        return reduced if self.keepdims else f.squeeze(reduced, self.axes(reduced.ndim))

    def spread(self, reduced: Variable, x: Variable) -> Variable:
        """A value of this reduction's shape, broadcast to the operand's."""
        return f.broadcast_like(self.restore(reduced, x), x)
