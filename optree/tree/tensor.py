"""Tensor, a leaf with memory on a backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from functools import partial
from math import prod
from types import CodeType
from typing import Any, ClassVar

import numpy as np

from optree.arrays import is_foreign, on_host
from optree.cache import Cache
from optree.dtypes import can_cast, is_bfloat16, is_narrow
from optree.errors import OperandError, Origin, ShapeError, StaleTreeError, StaleTreeWarning, clock, describe, line_of
from optree.locks import import_later
from optree.registry import APPLICATIONS, FUNCTIONS, NUMPY_FUNCTIONS, OPS, f
from optree.tree import indexing as indices
from optree.tree.node import OpTreeNode, parts_of, post_order, signature_of
from optree.tree.numpy_protocol import write_out
from optree.tree.telling import tell
from optree.tree.types import NUMBERS, Spec, TensorType, array_of, check_fits, check_name, is_huge
from optree.tree.variable import Variable, as_operand, caller_frame, caller_origin, is_neon, new_cache

#: Maximum entries of the cache from kinds of array to specs.
SPECS = 4096

_specs = Cache("specs of arrays", SPECS)

#: The applications of assignments.
_assignments = APPLICATIONS.setdefault("assign", new_cache())


def _spec_of(array: Any, backend: Any) -> Spec:
    """The spec of a tensor over an array, cached by dtype, shape and backend."""
    key = array.dtype, array.shape, backend.home
    found = _specs.get(key)
    if found is None:
        found = Spec(TensorType(array.dtype, array.shape), backend)
        _specs[key] = found
    return found


def is_everything(index: object) -> bool:
    """Whether an index is ``[:]`` or ``[...]``."""
    return index is Ellipsis or (index.__class__ is slice and index.start is index.stop is index.step is None)


def in_place(name: str) -> Callable[[Tensor, Any], Tensor]:
    """An augmented operator, by its op's name."""
    return lambda self, other: self._in_place(FUNCTIONS[name], other)


class Tensor(Variable):
    """A named array in a backend's memory.

    Tensors come from a backend's functions (`be.zeros`, `be.array`, ...) and
    from views of other tensors. ``t[index] = expression`` runs the expression.

    Attributes
    ----------
    array : array
        The backend's own array over the memory.
    name : str or None
        Its name in printed trees and errors.
    base : Tensor or None
        The tensor that this one is a view of.
    view_op : Op or None
        The op that gives this view of `base`; derivatives propagate through it.
    written : int
        Of a tensor that is no view, the time of the last write to its memory (`errors.clock`); -1 while its values
        are uninitialised.
    writer : Origin, str or None
        The line, or the function, that wrote it then.
    """

    __slots__ = (
        *("__weakref__", "_backend", "array", "base", "name", "origin", "spec", "view_op"),
        *("holder", "is_shared", "part_of", "runs", "writer", "written"),
    )

    #: Functions may still run when the interpreter has cleared its modules.
    _clock: ClassVar[list[int]] = clock

    #: Whether `rounded` changes what is written, of tensors of any dtype; neon's have bits that users set.
    rounding: Any = False

    origin: Origin
    writer: Origin | str | None
    #: Of a tensor that is no view: the origins of trees that were assigned to it, by bytecode offset.
    runs: dict[Any, Origin] | None
    #: Of a tensor that is no view: a weak reference to the last `optree.tree.lazy.LazyValue` over it; and whether
    #: another library may write to it, unseen, so that what reads it must not be lazy.
    holder: Any
    is_shared: bool
    #: Of a tensor in the memory of a vector that it is no view of, that vector and the index of its first element.
    part_of: tuple[Tensor, int] | None

    def __init__(
        self,
        backend: Any,
        array: Any,
        name: str | None = None,
        base: Tensor | None = None,
        view: Any = None,
        origin: Origin | None = None,
        spec: Spec | None = None,
    ) -> None:
        self.array = array
        self._backend = backend
        self.name, self.base, self.view_op = name if name is None else check_name(name), base, view
        self.spec = _spec_of(array, backend) if spec is None else spec
        self.origin = caller_origin() if origin is None else origin
        self.written, self.writer, self.runs = 0, None, None
        self.holder, self.is_shared, self.part_of = None, False, None

    # Properties

    @property
    def backend(self) -> Any:
        """The backend that owns the memory."""
        return self._backend

    @property
    def label(self) -> str:
        return self.name or f"tensor-{id(self):#x}"

    @property
    def root(self) -> Tensor:
        """The tensor that owns the memory: the last in the chain of bases."""
        tensor = self
        while tensor.base is not None:
            tensor = tensor.base
        return tensor

    @property
    def version(self) -> int:
        """The time of the last write to its memory, which views share; each write advances the clock."""
        return self.root.written

    def advance(self, writer: Origin | str | None) -> None:
        """Record a write to the memory by `writer`."""
        tensor = self
        while tensor.base is not None:
            tensor = tensor.base
        clock = self._clock
        clock[0] = now = clock[0] + 1
        tensor.written = 0 if tensor.written < 0 else now  # no tree can have meant uninitialised values
        tensor.writer = writer

    @property
    def nbytes(self) -> int:
        """The bytes of all elements."""
        return self.size * self.dtype.itemsize

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements are contiguous in C order."""
        return bool(self.array.flags.c_contiguous)

    def __str__(self) -> str:
        values, threshold = self._excerpt()
        with np.printoptions(threshold=threshold):
            return str(values)

    def __repr__(self) -> str:
        values, threshold = self._excerpt()
        written = np.array2string(values, separator=", ", prefix="Tensor(", threshold=threshold)
        name = f", name={self.name!r}" if self.name else ""
        return f"Tensor({written}{name}, shape={self.shape}, dtype={self.dtype}, backend={self.backend.name})"

    def _excerpt(self) -> tuple[np.ndarray, int]:
        """The values, or of a large tensor the edges that NumPy prints, and NumPy's print threshold for them."""
        options = np.get_printoptions()
        threshold, edge, array = options["threshold"], options["edgeitems"], self.array
        if self.size <= threshold:
            return self.get(), threshold
        with self.backend.active():
            for axis, size in enumerate(self.shape):
                if size > 2 * edge + 1:  # one more than is printed, so that NumPy prints an ellipsis
                    ends = (slice(edge + 1), slice(size - edge, None))
                    array = np.concatenate([array[(slice(None),) * axis + (end,)] for end in ends], axis)
        return self.backend.to_host(array), 0

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError(f"{self.label} has no dimensions, and so no length")
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    # Values

    def raw(self) -> Any:
        """The backend's own array over the memory (NumPy's or CuPy's), not a copy."""
        return self.array

    def get(self, blocking: bool = True) -> np.ndarray:
        """The values as a new NumPy array.

        Parameters
        ----------
        blocking : bool
            If False, a GPU copies asynchronously: the array holds the values after `be.synchronize()`.
        """
        return self.backend.to_host(self.array, blocking)

    def asnumpyarray(self) -> np.ndarray:
        """The values as a new NumPy array, as `get`."""
        return self._backend.to_host(self.array)

    def __index__(self) -> int:
        if self.dtype.kind not in "iu":
            raise TypeError(f"{self.label} of {self.dtype} is no index; only an integer tensor is")
        return int(self.item())

    def set(self, values: object) -> Tensor:
        """Copy an array of this tensor's shape into it; returns the tensor.

        Raises
        ------
        ShapeError
            If the shapes differ.
        """
        array = array_of(values, f"set: {self.label}")
        if array.shape != self.shape and not (array.ndim == 1 and array.size == self.size and is_neon(self.backend)):
            raise ShapeError(f"set: an array of shape {array.shape} is not of the shape {self.shape} of {self.label}")
        self[...] = values if isinstance(values, list | tuple) else array
        return self

    def fill(self, value: object) -> Tensor:
        """Set every element to a number; returns the tensor."""
        self[...] = value
        return self

    def sort(self, axis: int = -1) -> None:
        """Sort the elements along an axis in place, as NumPy's method does; ``be.sort(x, axis)`` is a tree."""
        self[...] = f.sort(self, axis)

    def put(self, indices: Any, values: Any, mode: str = "raise") -> None:
        """Write values at flat indices in place, as NumPy's method does."""
        NUMPY_FUNCTIONS[np.put](self, indices, values, mode)

    def copy(self, name: str | None = None) -> Tensor:
        """A new tensor with the same values, in C order."""
        with self.backend.active():
            return self.backend.over(self.array.copy(order="C"), name)

    def __copy__(self) -> Tensor:
        return self.copy(self.name)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if self.base is not None:
            return _view_of(deepcopy(self.base, memo), self.view_op, self.name)
        if self.part_of is not None:
            vector, start = self.part_of
            return part_of(deepcopy(vector, memo), start, self.shape, self.name)
        return self.copy(self.name)

    def __reduce__(self) -> tuple[Any, ...]:
        """By value: it arrives on the current backend, or on one as its own; a view stays one of its base."""
        if self.base is not None:
            return _view_of, (self.base, self.view_op, self.name)
        if self.part_of is not None:
            return part_of, (*self.part_of, self.shape, self.name)
        values = self.array if isinstance(self.array, np.ndarray) else self.get()
        return _restored, (self._backend, values, self.name)

    def copy_from(self, source: object) -> Tensor:
        """Copy a tensor, array or tree of this shape into it; returns the tensor."""
        if isinstance(source, Tensor) and source.backend is not self.backend:
            source = source.get()
        return self.set(source) if not isinstance(source, Variable) else self._assign(source)

    def _assign(self, source: Variable) -> Tensor:
        if source.shape != self.shape:
            raise ShapeError(f"copy_from: shape {source.shape} of {source.label} is not {self.shape} of {self.label}")
        self[...] = source
        return self

    # Views

    def _view(self, tree: Any) -> Tensor:
        """The view that a tree of one view op on this tensor describes."""
        op_dict, _, _ = parts_of(tree)
        return self._viewed(op_dict, tree.origin)

    def _viewed(self, op_dict: Any, origin: Origin | None = None) -> Tensor:
        """The view of a view op's application to this tensor; made at an origin or at the caller's line."""
        op = op_dict.op
        array = op.numpy(self.array)  # a method, of all view ops
        return type(self)(self._backend, array, None, self, op, origin, op_dict.value_spec)

    @property
    def at(self) -> Tensor:
        """The tensor itself, so that ``x.at[1:, 0]`` works for tensors and trees."""
        return self

    @property
    def T(self) -> Any:
        """A view with the axes in reverse order."""
        return self._view(f.transpose(self))

    @property
    def real(self) -> Any:
        """A view of the real parts; the tensor itself where it is real."""
        return self._view(f.real(self)) if self.dtype.kind == "c" else self

    @real.setter
    def real(self, value: Any) -> None:
        self.real[...] = value

    @property
    def imag(self) -> Any:
        """A view of the imaginary parts; of a real tensor zeros, as a tree."""
        return self._view(f.imag(self)) if self.dtype.kind == "c" else f.imag(self)

    @imag.setter
    def imag(self, value: Any) -> None:
        if self.dtype.kind != "c":
            raise OperandError(f"imag: {describe(self)} is real, and has no imaginary part to write")
        self.imag[...] = value

    def transpose(self, *axes: Any) -> Tensor:
        """A view with the axes in the order given, or reversed.

        Raises
        ------
        AxisError
            If `axes` is not a permutation of the tensor's axes.
        """
        return self._view(super().transpose(*axes))

    def reshape(self, *shape: Any) -> Tensor:
        """A view of another shape with as many elements; one size may be -1.

        Raises
        ------
        ShapeError
            If the number of elements differs, or the memory cannot be viewed so:
            ``be.reshape(x, shape)`` is a tree that copies then.
        """
        view = self._view(super().reshape(*shape))
        if self.size and not np.may_share_memory(view.array, self.array):
            raise ShapeError(
                f"reshape: the memory of {self.label} {self.shape} cannot be viewed as {view.shape}; "
                "be.reshape(x, shape) copies, and x.copy().reshape(shape) does"
            )
        return view

    def ravel(self, order: str = "C") -> Any:
        """A 1-D view of the elements; a tree of them where the memory is not contiguous."""
        tree = super().ravel(order)
        return self._view(tree) if self.is_contiguous else tree

    def squeeze(self, axis: object = None) -> Tensor:
        """A view without axes of size 1: those given, or all."""
        return self._view(super().squeeze(axis))

    def swapaxes(self, axis1: int, axis2: int) -> Tensor:
        """A view with two axes exchanged."""
        return self._view(super().swapaxes(axis1, axis2))

    def __getitem__(self, index: Any) -> Any:
        """A view for integers and slices; a tree of the gathered values for index arrays."""
        known = indices.known_slice(self.spec, index)
        if known is not None:
            return self._viewed(known)
        template, arrays = indices.parse(index, self.shape, f"index of {self.label}")
        if arrays:
            return OPS["gather"].make(index=template)(self, *arrays)
        return self._viewed(self._part(index, template))

    def _part(self, index: object, template: indices.Template) -> Any:
        """The op_dict of the view at an index without arrays, which is cached."""
        op_dict, _, _ = parts_of(OPS["slice"].make(index=template)(self))
        indices.remember_slice(self.spec, index, op_dict)
        return op_dict

    def take(self, indices: object, axis: int | None = None, out: object = None, **options: Any) -> Any:
        """A tree of the elements at `indices` along an axis; with `out`, written there at once."""
        return super().take(indices, axis, out, **options) if options else write_out(f.take(self, indices, axis), out)

    # Assignment

    def __setitem__(self, index: Any, value: Any) -> None:
        """Run an expression and write its value here.

        Raises
        ------
        ShapeError, DTypeError, NumberOverflowError, BackendError
            If the value cannot be written here; the tensor is then unchanged.
        """
        if not isinstance(value, Variable):
            value = self._from_host(value)
        part = isinstance(value, Tensor) and value.base is self
        if not part and is_everything(index):
            self._assign_whole(value)
        elif isinstance(index, Variable) and index.dtype.kind == "b":
            self._assign_masked(index, value)
        else:
            known = indices.known_slice(self.spec, index)
            if known is None:
                template, arrays = indices.parse(index, self.shape, f"index of {self.label}")
                if arrays:
                    f.assign(self, OPS["scatter"].make(index=template)(self, self.rounded(value), *arrays)).execute()
                    return
                known = self._part(index, template)
            if value.__class__ in NUMBERS:
                self._backend.put(self, known, value)
            elif not (part and value.view_op == known.op):  # as t[2:5] += 1 ends
                self._viewed(known)._assign_whole(value)

    def _assign_whole(self, value: object) -> None:
        """Run the assignment of an operand to all elements; cached applications take a fast path, without a node."""
        try:
            op_dict = _assignments.get((self.spec, getattr(value, "spec", value.__class__)))
        except Exception:  # of a foreign object's attribute, which may raise anything
            op_dict = None
        is_rounded = self.rounding or (self._backend.stochastic_round and is_narrow(self.spec.type.dtype))
        if op_dict is None or is_rounded or (value.__class__ is int and is_huge(value)):
            self._backend.execute(OPS["assign"].make()(self, value))
        else:
            self._backend.run_assignment(op_dict, self, value, caller_origin())

    def _from_host(self, value: object) -> Any:
        """The operand for an assigned value that is no variable: a constant for an array, or a number."""
        if value.__class__ is float and self.spec.type.dtype.kind == "f":
            return value
        what = f"assignment to {self.label}"
        if is_foreign(value):
            value = on_host(value, what)
        array = array_of(value, what) if isinstance(value, list | tuple) else value
        if isinstance(value, list | tuple | int | float | complex | np.generic):  # an array's wrap around, as in NumPy
            check_fits(array, self.dtype, what)
        if not isinstance(array, np.ndarray):
            return value
        return as_operand(array.reshape(-1, 1) if array.ndim == 1 and is_neon(self.backend) else array, what)

    def _assign_masked(self, mask: Variable, value: object) -> None:
        if isinstance(value, Variable) and value.size != 1:  # how many elements are selected is known only now
            self[mask.asnumpyarray()] = value
            return
        if mask.shape != self.shape[: mask.ndim]:
            raise ShapeError(f"the mask's shape {mask.shape} does not fit the shape {self.shape} of {self.label}")
        mask = f.expand_dims(mask, tuple(range(mask.ndim, self.ndim)))
        f.assign(self, f.where(mask, f.cast(self.rounded(value), self.dtype), self)).execute()

    def rounded(self, value: object) -> Any:
        """The value to write: with `stochastic_round`, a wider floating one stochastically rounded."""
        if not is_narrow(self.dtype) or not self.backend.stochastic_round:
            return value
        if not (isinstance(value, Variable) and value.dtype in (np.float32, np.float64)):
            return value
        return f.stochastic_cast(self.backend.rng_state, value, dtype=self.dtype)

    # In place: Python's augmented operators

    __iadd__, __isub__ = in_place("add"), in_place("sub")
    __imul__, __itruediv__ = in_place("mul"), in_place("div")
    __ifloordiv__, __imod__ = in_place("floor_divide"), in_place("mod")
    __ipow__, __imatmul__ = in_place("pow"), in_place("matmul")
    __iand__, __ior__, __ixor__ = in_place("bitwise_and"), in_place("bitwise_or"), in_place("bitwise_xor")
    __ilshift__, __irshift__ = in_place("left_shift"), in_place("right_shift")

    def _in_place(self, operation: Any, other: Any) -> Tensor:
        tree = operation(self, other)
        if not can_cast(tree.dtype, self.dtype, "same_kind"):
            raise OperandError(
                f"{tree.label}: the value is {tree.dtype}, which does not go into {self.label} of {self.dtype} in place"
            )
        if len(tree.shape) > len(self.shape):  # an assignment drops leading axes of size 1, NumPy's operators do not
            raise ShapeError(f"{tree.label}: its shape {tree.shape} is not the {self.shape} of {self.label} in place")
        self[...] = tree
        return self

    # Other libraries

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> Any:
        if not copy:
            self._give_away()
        is_host = self.array.__class__ is np.ndarray
        if is_host and stream not in (None, -1):  # -1: that nothing is to be waited for
            raise BufferError(f"{self.label} is in the CPU's memory, which has no stream {stream!r}: leave it out")
        given = {
            "stream": None if is_host else stream,
            "max_version": max_version,
            "dl_device": dl_device,
            "copy": copy,
        }
        try:
            with self.backend.active():  # the consumer waits for the current stream, which must be this device's
                # Older libraries know some of these alone.
                return self.array.__dlpack__(**{name: x for name, x in given.items() if x is not None})
        except BufferError as error:
            if not is_bfloat16(self.dtype):
                raise
            raise BufferError(
                f"{self.label} is bfloat16, which NumPy does not give to other libraries ({error}); "
                "be.cast(x, 'float32').astensor() is a tensor that it does"
            ) from error

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if is_bfloat16(self.dtype):
            raise AttributeError(f"__cuda_array_interface__ has no name for the bfloat16 of {self.label}; DLPack has")
        with self.backend.active():
            interface = self.array.__cuda_array_interface__  # an AttributeError for NumPy's arrays
        self._give_away()
        return interface

    def _give_away(self) -> None:
        """Run the lazy values that read this memory, to which another library may write at once, unseen."""
        self.root.is_shared = True
        import_later("optree.tree.lazy").settle([self])


def _restored(backend: Any, values: np.ndarray, name: str | None) -> Tensor:
    """A pickled tensor, in the memory that the values arrived in where that can be written."""
    with backend.active():
        return backend.over(backend.owned(values), name)  # type: ignore[no-any-return]


def part_of(vector: Tensor, start: int, shape: tuple[int, ...], name: str | None) -> Tensor:
    """A tensor in the memory of a vector from an index on, which is no view of it to derivatives."""
    found: Tensor = vector.backend.over(vector.array[start : start + prod(shape)].reshape(shape), name)
    found.part_of = vector, start
    return found


def _view_of(base: Tensor, op: Any, name: str | None) -> Tensor:
    """The view of a tensor by a view op."""
    return type(base)(base.backend, op.value(base.array), name, base, op)


# Stale trees: trees that first run after one of their tensors was written, and read the new value.
#
# A tree reads its tensors when it runs, not when it is built, as neon's do. That is intended where a tree runs
# repeatedly, and a trap in code ported line by line from NumPy. So the first run of a tree checks the nodes that were
# built before the last write, and warns where a tensor under one has been written since. Nodes that the same line has
# run before are not checked: a loop may build an expression anew around a gradient that was built once. Nothing is
# checked when a tree runs again, nor in a tree built since the last write.

#: The bounds of the tables of lines: all, and those of one tensor.
LINES, LINES_OF_TENSOR = 4096, 256

#: Line -> its code object, referenced so that its id is not reused, and when it last ran a tree without a target.
_runs: dict[tuple[int, int], tuple[CodeType, int]] = {}

Signature = tuple[tuple[Any, ...], list[Any]]


def signature_of_assigned(value: OpTreeNode, target: Tensor, origin: Origin) -> Signature:
    """The signature of a tree that runs for the first time, into a tensor, by an assignment built at `origin`.

    Raises
    ------
    StaleTreeError
        If it is stale, and OPTREE_STALE_TREES says ``error``; with ``warn`` it is a warning.
    """
    line: Any = origin[1]
    view, root = target.view_op, target
    if value.ran_beside:
        return signature_of([value])
    if view is not None:  # one line may assign to several views of a tensor
        line, root = (line, id(view)), target.root
    runs = root.runs
    if runs is None:
        runs = root.runs = {}
    old: list[OpTreeNode] = []
    before = runs.get(line)
    since = before[2] if before is not None and before[0] is origin[0] else -1
    found = signature_of([value], old, since)
    if old:
        _look(old, found[1])
    if before is None and len(runs) >= LINES_OF_TENSOR:
        runs.clear()
    runs[line] = origin
    return found


def signature_of_evaluated(tree: OpTreeNode) -> Signature:
    """The signature of a tree that runs alone, for the first time.

    It raises StaleTreeError, as `signature_of_assigned` does.
    """
    old: list[OpTreeNode] = []
    found = signature_of([tree], None if tree.ran_beside else old)
    code, offset, built = tree.origin
    line, now = (id(code), offset), clock[0]
    before = _runs.get(line)
    if old:
        # One that was built before the last write has not run, even if its line has.
        since = before[1] if before is not None and built == now else -1
        old = [node for node in old if node.origin[2] > since]
        if old:
            _look(old, found[1])
    if before is None and len(_runs) >= LINES:
        _runs.clear()
    _runs[line] = code, now
    return found


def signature_of_together(roots: Sequence[Any]) -> Signature:
    """The signature of operands that run together.

    It raises StaleTreeError, as `signature_of_assigned` does.
    """
    nodes = [root for root in roots if root.__class__ is OpTreeNode]
    new = [node for node in nodes if node.ran is None and not node.ran_beside]
    if not new:
        return signature_of(roots)
    code, offset, _ = new[0].origin
    line, now = (id(code), offset), clock[0]
    old: list[OpTreeNode] = []
    before = _runs.get(line)
    found = signature_of(roots, old, before[1] if before is not None else -1)
    if old:
        _look(old if len(new) == len(nodes) else _beside(old, set(map(id, nodes)) - set(map(id, new))), found[1])
    if before is None and len(_runs) >= LINES:
        _runs.clear()
    _runs[line] = code, now
    if len(nodes) > 1:
        for node in new:
            node.ran_beside = True
    return found


def _beside(old: list[OpTreeNode], known: set[int]) -> list[OpTreeNode]:
    """The nodes that are not under those with known ids, which have run before."""
    under = {id(x) for x in post_order([node for node in old if id(node) in known], children_of)}
    return [node for node in old if id(node) not in under]


def _look(old: list[OpTreeNode], leaves: Sequence[Any]) -> None:
    """Warn if one of these nodes was built before a tensor under it was written."""
    stale = _first_stale(old, leaves)
    if stale is not None:  # once for each line that runs one
        tell("stale_trees", StaleTreeWarning, StaleTreeError, caller_frame(), partial(_message, *stale))


def _first_stale(old: list[OpTreeNode], leaves: Sequence[Any]) -> tuple[OpTreeNode, Tensor] | None:
    """A node that was built before a tensor under it was written, and the tensor."""
    newest = max((leaf.version for leaf in leaves if isinstance(leaf, Tensor)), default=0)
    suspects = [node for node in old if node.origin[2] < newest]
    known = {id(node) for node in old}
    hidden = False
    for node in suspects:  # the common case: the tensor is its operand
        for operand in children_of(node):
            if not isinstance(operand, Tensor):
                hidden = hidden or id(operand) not in known
            elif operand.version > node.origin[2]:
                return _named(node, suspects), operand
    return _stale_above(suspects) if hidden else None


def _stale_above(suspects: list[OpTreeNode]) -> tuple[OpTreeNode, Tensor] | None:
    """The same where the tensor may be under nodes that are not suspects."""
    newest: dict[int, Tensor] = {}
    for entry in post_order(suspects, children_of):
        if isinstance(entry, Tensor):
            newest[id(entry)] = entry
            continue
        found = [newest[id(x)] for x in children_of(entry) if id(x) in newest]
        if found:
            newest[id(entry)] = max(found, key=lambda tensor: tensor.version)
    for node in suspects:
        tensor = newest.get(id(node))
        if tensor is not None and tensor.version > node.origin[2]:
            return _named(node, suspects), tensor
    return None


def _named(node: OpTreeNode, suspects: list[OpTreeNode]) -> OpTreeNode:
    """The node, or if its line is inside op-tree, as a gradient's is, one above it with a user's line."""
    return next((x for x in (node, *suspects) if line_of(x.origin) is not None), node)


def _message(node: OpTreeNode, tensor: Tensor) -> str:
    writer = tensor.root.writer
    by = writer if isinstance(writer, str) else line_of(writer)
    made = line_of(node.origin)
    return (
        f"{describe(tensor)} was written{f' by {by}' if by else ''} after the tree of {node.label}"
        f"{f' at {made}' if made else ''} was built, and before it ran: a tree reads its tensors when it runs, so it "
        "takes the new values. For the old ones, run the tree before the write, be.evaluate([tree]), or let it read a "
        "copy, x.copy(); several tensors are written together by be.update, or by the updates of an optree.function. "
        "OPTREE_STALE_TREES=error raises this, and =ignore says nothing"
    )


def children_of(entry: object) -> list[Any]:
    """A node's operands, left and right, that are nodes or tensors."""
    if entry.__class__ is not OpTreeNode:
        return []
    _, left, right = parts_of(entry)
    return [x for x in (left, right) if x.__class__ is OpTreeNode or isinstance(x, Tensor)]
