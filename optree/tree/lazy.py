"""Lazy values: trees that have the meaning of the line that wrote them, and run when a value is asked for.

A tree reads its tensors when it runs. `LazyValue` holds a tree and has NumPy's meaning
all the same, because a tensor is not written before the lazy values that read it have run:
whatever writes tensors calls `settle` first. `optree.xp` gives it the face of an array.

Lazy values are bounded: by the operations of one tree, by the number of trees, and by the
bytes of tensors that nothing but a tree refers to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from functools import partial
from types import EllipsisType, NoneType
from typing import Any
from weakref import ref

from optree.arrays import overlap
from optree.dtypes import can_cast
from optree.errors import DTypeError, ShapeError, describe
from optree.locks import Locked
from optree.registry import f
from optree.tree.node import OpTreeNode, parts_of, post_order
from optree.tree.substitution import replace, with_values
from optree.tree.tensor import Tensor, children_of, is_everything
from optree.tree.types import TensorType

#: Maximum operations of a lazy value's tree.
OPERATIONS = 256

#: Maximum lazy values; one more lets the older half of them run together.
TREES = 64

#: The bytes of tensors that only trees refer to, above which trees run, beside those of the four largest.
BYTES = 1 << 26

#: The classes of the entries of an index that gives a view.
BASIC = (int, slice, NoneType, EllipsisType)

_running = Locked()


class _Entry(ref):
    """A weak reference to a `LazyValue`, with its tree's id."""

    __slots__ = ("key",)
    key: int


#: A tree's id -> its lazy value, which refers to the tree. The oldest is the first.
lazy_values: dict[int, _Entry] = {}

#: The nodes of all lazy values so far, each counted with the first value that it is part of.
_counted = [0]

#: The bytes of tensors that trees have been built on since `_spare` last looked at them.
_attached = [0]


def _forget(entry: Any) -> None:
    key = entry.key
    if lazy_values.get(key) is entry:
        del lazy_values[key]


def _alive() -> list[LazyValue]:
    """The lazy values, the oldest first."""
    return [found for entry in list(lazy_values.values()) if (found := entry()) is not None]


class LazyValue:
    """A tensor, or a tree whose value becomes one when it is asked for.

    Parameters
    ----------
    value : Tensor or OpTreeNode
        A node is of a backend, and not that of another `LazyValue`.
    base : LazyValue, optional
        Of which the value, a node of one view op on its tree, is a view.
    is_bounded : bool
        Whether the bounds of lazy values are checked for it alone; `together` checks those of several.

    Attributes
    ----------
    sources : set of Tensor
        The owners of the memory that is read (`Tensor.root`): at least those of the tensors in the tree.
    operations : int
        The nodes of the tree, or more.
    since : int
        The nodes of all lazy values that were counted before the first of the tree's. Those since then bound its
        operations, too: operands may share nodes, which adding their counts would count for each.
    """

    __slots__ = (
        "__weakref__",
        "_base",
        "_error",
        "_tensor",
        "_tree",
        "_views",
        "operations",
        "since",
        "sources",
        "was_assigned",
    )

    _tensor: Tensor | None
    _tree: OpTreeNode | None

    _error: Exception | None
    _views: Sequence[ref[LazyValue]]

    def __init__(self, value: Any, base: LazyValue | None = None, is_bounded: bool = True) -> None:
        self._base, self._error, self._views, self._tensor, self.was_assigned = base, None, (), None, False
        if value.__class__ is Tensor:
            self._hold(value)
            return
        may_exceed = self._defer(value)
        if base is not None:
            base._views = [*(view for view in base._views if view() is not None), ref(self)]
        if may_exceed and is_bounded:
            self._bound()

    @classmethod
    def together(cls, trees: Iterable[Any]) -> list[Any]:
        """Values that share most of what computes them, as gradients do: too many operations run as one program."""
        made = [cls(own(tree), is_bounded=False) for tree in trees]
        if any(each._is_long() for each in made):
            force(made)
        for each in made:
            each._bound()
        return made

    def _hold(self, tensor: Tensor) -> None:
        """Have a tensor as the value."""
        root = tensor if tensor.base is None else tensor.root
        root.holder = ref(self)
        self.sources, self.operations, self.was_assigned = {root}, 0, False
        self._tensor, self._base = tensor, None
        self._tree = None  # last: other threads look here first

    def _defer(self, tree: OpTreeNode) -> bool:
        """Have a tree as the value; whether that may exceed a bound."""
        # Hot: every operation of arrays comes through here.
        sources: set[Tensor] = set()
        operations, attached, new, is_shared = 1, 0, 1, False
        since = counted = _counted[0]
        seen: set[int] = set()
        _, *pending = parts_of(tree)
        while pending:
            entry = pending.pop()
            kind = entry.__class__
            if kind is Tensor:
                root = entry if entry.base is None else entry.root
                sources.add(root)
                is_shared = is_shared or root.is_shared
                attached += entry.array.nbytes
            elif kind is OpTreeNode:
                key = id(entry)
                found = lazy_values.get(key)
                known = None if found is None else found()
                if known is not None:
                    sources |= known.sources
                    operations += known.operations
                    since = known.since if known.since < since else since
                elif key not in seen:
                    seen.add(key)
                    operations += 1
                    new += 1
                    _, left, right = parts_of(entry)
                    pending += (left, right)
        _attached[0] += attached
        _counted[0] = counted = counted + new
        if operations > counted - since:
            operations = counted - since
        self.sources, self.operations, self.since, self._tree = sources, operations, since, tree
        entry = _Entry(self, _forget)
        entry.key = key = id(tree)
        lazy_values[key] = entry
        return is_shared or operations > OPERATIONS or len(lazy_values) > TREES or _attached[0] > BYTES

    def _is_long(self) -> bool:
        """Whether the tree has too many operations; they are counted where there may be."""
        if self.operations > OPERATIONS:
            self.operations = sum(entry.__class__ is OpTreeNode for entry in post_order([self._tree], children_of))
        return self.operations > OPERATIONS

    @property
    def tree(self) -> Any:
        """The operand for trees: the tensor if there is one, or else the tree.

        If it had to run before a write, and failed, that error is raised: now it would read other values.
        """
        if self._error is not None:
            raise self._error
        tree = self._tree
        return self._tensor if tree is None else tree

    @property
    def tensor(self) -> Tensor:
        """The value as a tensor; a lazy one runs."""
        if self._error is not None:
            raise self._error
        if self._tensor is None:
            force([self])
        return self._tensor  # type: ignore[return-value]

    @property
    def is_lazy(self) -> bool:
        """Whether the value has not been computed."""
        return self._tree is not None

    def view_by(self, tree: object) -> LazyValue | None:
        """The view that a node describes, of one view op on this value; None where it would be a copy."""
        if tree.__class__ is not OpTreeNode:
            return None
        op_dict, mine, other = parts_of(tree)
        if not op_dict.op.view_map or other is not None or mine is not self.tree:
            return None
        if tree.size > mine.size:  # a broadcast one, whose elements share addresses
            return None
        if self._tensor is None:
            return type(self)(tree, self)
        found = self._tensor._view(tree)
        shares = not found.size or overlap(found.array, self._tensor.array)
        return type(self)(found) if shares else None

    def assign(self, index: object, value: object) -> None:
        """Write an operand, or what another has, into the elements at an index, as one kernel where that can be."""
        with _running.lock:
            tensor = self._cleared(value)
            if isinstance(value, LazyValue):
                if value._tree is not None and self._takes(tensor, index, value):
                    return
                if tensor.root not in value.sources and not value.was_assigned:
                    value.was_assigned = True  # it runs with this assignment, and at a second one before: never thrice
                elif value._tensor is None:
                    force([value])
                value = value.tree
            tensor[index.tree if isinstance(index, LazyValue) else index] = value

    def _takes(self, tensor: Tensor, index: object, value: LazyValue) -> bool:
        """Run a lazy value straight into the elements at an index; from there it is copied if it is asked for again."""
        if value._has_views():
            return False
        target = tensor
        if not is_everything(index):
            if any(x.__class__ not in BASIC for x in (index if index.__class__ is tuple else (index,))):
                return False
            target = tensor[index]
        if target.spec.type is not value._tree.spec.type:  # type: ignore[union-attr]
            return False
        value._write(partial(target.__setitem__, Ellipsis))
        value.was_assigned = False
        if value._defer(f.copy(target)):
            value._bound()
        return True

    def _write(self, write: Callable[[Any], None]) -> None:
        """Write the tree's value, and be lazy no more: to be run before, as what else reads the target."""
        tree: Any = self._tree
        entry = lazy_values.pop(id(tree), None)
        try:
            write(tree)
        except BaseException:
            if entry is not None:
                lazy_values[id(tree)] = entry
            raise

    def apply(self, operation: Callable[[Any, Any], Any], value: object) -> None:
        """Write ``operation(self, value)`` here; that of a lazy value without views is lazy again.

        Raises
        ------
        ShapeError, DTypeError
            If what the operation gives has another shape, or a dtype that NumPy does not cast to this one.
        """
        with _running.lock:
            if self._tree is not None and self.become(partial(self._result, operation, value)):
                return
            tensor = self._cleared(value)
            if not isinstance(value, LazyValue) or value._tree is None:
                tensor[...] = self._result(operation, value)
            elif tensor.root in value.sources:
                after = tensor.backend.empty_like(value._tree)
                result = self._result(operation, value)
                value._write(lambda tree: tensor.backend.update([(tensor, result), (after, tree)]))
                _substitute(_give([value], [after]))
            else:
                if value.was_assigned:
                    force([value])
                value.was_assigned = True
                tensor[...] = self._result(operation, value)

    def _result(self, operation: Callable[[Any, Any], Any], value: object) -> Any:
        mine = self.tree
        tree = operation(mine, value.tree if isinstance(value, LazyValue) else value)
        if tree.spec.type is not mine.spec.type:
            if tree.shape != mine.shape:
                raise ShapeError(f"in place: {describe(tree)} is not of the shape {mine.shape} of {describe(mine)}")
            if not can_cast(tree.dtype, mine.dtype, "same_kind"):
                raise DTypeError(f"in place: {describe(tree)} does not go into {mine.dtype}; astype says that it shall")
            tree = f.cast(tree, mine.dtype)
        return own(tree)

    def _cleared(self, value: Any) -> Tensor:
        """The tensor, to be written with a value: lazy values that read it have run, and those within the value.

        The value itself stays lazy, unless another has run it.
        """
        tensor = self.tensor
        is_lazy = isinstance(value, LazyValue) and value._tree is not None
        if len(lazy_values) > is_lazy:  # others than the value
            wanted = [each for each in _readers({tensor.root}) if each is not value]
            if is_lazy:
                wanted += [each for each in _lazy_in([value._tree])[0] if each is not value]
            force(wanted, now=False)
        return tensor

    def _has_views(self) -> bool:
        """Whether something refers to a view of it."""
        return bool(self._views) and any(view() is not None for view in self._views)

    def become(self, tree: Any) -> bool:
        """Let a lazy value without views be another tree; whether it can.

        A function of none is called for it if so.
        """
        if self._tree is None or self._base is not None or self._has_views():
            return False
        new = tree() if isinstance(tree, partial) else tree
        lazy_values.pop(id(self._tree), None)
        self.was_assigned = False
        if self._defer(new):
            self._bound()
        return True

    def _bound(self) -> None:
        """Run the value at once if it may not be lazy, or the oldest ones if they are too many."""
        if self._tree is None:
            return
        if self._is_long() or any(root.is_shared for root in self.sources):
            force([self])
        if len(lazy_values) > TREES:
            force(_alive()[: TREES // 2], now=False)  # one by one, each run would rebuild the trees of all others
        if _attached[0] > BYTES:
            _spare()


def _lazy_in(trees: Iterable[Any]) -> tuple[list[LazyValue], set[int]]:
    """The lazy values with a tree within these, except views, which follow from their bases; and all nodes' ids."""
    found: list[LazyValue] = []
    inside: set[int] = set()
    pending = list(trees)
    while pending:
        entry = pending.pop()
        key = id(entry)
        if entry.__class__ is OpTreeNode and key not in inside:
            inside.add(key)
            known = lazy_values.get(key)
            held = None if known is None else known()
            if held is not None and held._base is None:
                found.append(held)
            _, left, right = parts_of(entry)
            pending += (left, right)
    return found, inside


def force(wanted: Sequence[LazyValue], now: bool = True) -> None:
    """Run lazy values together; those within their trees get their values, too.

    So everything that is referred to is computed once, as in NumPy, and what is not is fused away. So are the
    subtrees that other trees, which stay lazy, have in common with these.

    `now`: whether the values are asked for. If not, an error of one is raised when it is.
    """
    if not wanted:
        return
    with _running.lock:
        found: list[LazyValue] = []
        for each in wanted:
            owner = each
            while owner._tree is not None and owner._base is not None:
                owner = owner._base
            if owner._tree is not None:
                found.append(owner)
        if not found:
            return
        trees: list[Any] = [each._tree for each in found]
        shared: list[Any] = []
        is_read = False
        is_alone = len(lazy_values) == len(found) == 1  # nothing is within it, and nothing reads it
        if not is_alone:
            found, inside = _lazy_in(trees)
            trees = [each._tree for each in found]
            if len(lazy_values) > len(found):
                shared, is_read = _shared(trees, inside)
        try:
            tensors = trees[0].backend.computed(trees + shared)
        except Exception as error:
            if now:
                raise
            _set_aside(found, error)
        else:
            if is_alone:
                lazy_values.pop(id(trees[0]), None)
                found[0]._hold(tensors[0])
                return
            computed = _give(found, tensors)
            if is_read and lazy_values:
                computed.update(zip(shared, tensors[len(found) :], strict=True))
                _substitute(computed)


def _shared(trees: Sequence[Any], inside: set[int]) -> tuple[list[Any], bool]:
    """The largest subtrees of trees, but for views, that are in trees of other lazy values.

    Without the trees themselves; whether one of these, or of the subtrees, is in the others comes second.

    `inside`: the ids of all nodes of the trees.
    """
    tops = {id(tree) for tree in trees}
    found: list[Any] = []
    is_read = False
    seen: set[int] = set()
    pending: list[Any] = [each._tree for each in _alive() if id(each._tree) not in tops]
    while pending:
        entry = pending.pop()
        key = id(entry)
        if entry.__class__ is not OpTreeNode or key in seen:
            continue
        seen.add(key)
        op_dict, left, right = parts_of(entry)
        if key in tops:
            is_read = True
        elif key in inside and isinstance(entry.type, TensorType) and not op_dict.op.view_map:
            found.append(entry)
        else:
            pending += (left, right)
    return found, is_read or bool(found)


def _set_aside(found: Sequence[LazyValue], error: Exception) -> None:
    """Run trees that did not run together one by one, the innermost first; those that fail keep their error."""
    if len(found) == 1:
        (failed,) = found
        failed._error = error
        lazy_values.pop(id(failed._tree), None)
        return
    for each in reversed(found):
        if each._tree is not None:
            force([each], now=False)


def _give(found: Sequence[LazyValue], tensors: Sequence[Tensor]) -> dict[Any, Tensor]:
    """Give lazy values and their views the tensors, of which the first are theirs; those by tree."""
    computed: dict[Any, Tensor] = {}
    pending = list(zip(found, tensors, strict=False))
    for each, tensor in pending:
        tree = each._tree
        if tree is None:
            continue
        computed[tree] = tensor
        lazy_values.pop(id(tree), None)
        each._hold(tensor)
        for entry in each._views:
            view = entry()
            if view is not None and view._tree is not None:
                pending.append((view, tensor._view(view._tree)))
        each._views = ()
    return computed


def _substitute(computed: dict[Any, Tensor]) -> None:
    """Put the tensors of trees that have run into the lazy trees that contain them."""
    others = _alive()
    if not others:
        return
    before: list[Any] = [each._tree for each in others]
    is_exact = all(tensor.spec.type is tree.spec.type for tree, tensor in computed.items())  # no size was open
    after = with_values(before, computed) if is_exact else replace(before, computed)
    for each, old, new in zip(others, before, after, strict=True):
        if new is not old:
            lazy_values.pop(id(old), None)
            each._defer(new)


def settle(targets: Iterable[Tensor]) -> None:
    """Run the lazy values that read these tensors, which are about to be written."""
    force(_readers({target.root for target in targets}), now=False)


def _readers(roots: Set[Tensor]) -> list[LazyValue]:
    """The lazy values that read the memory of one of these tensors, the oldest first."""
    found = []
    for entry in list(lazy_values.values()):
        each = entry()
        if each is not None and not roots.isdisjoint(each.sources):
            found.append(each)
    return found


def _spare() -> None:
    """Run trees, the oldest first, while tensors that nothing else refers to have more than their bound of bytes."""
    with _running.lock:
        _attached[0] = 0
        for each in _alive():
            lost: dict[int, int] = {}
            for entry in post_order([other._tree for other in _alive()], children_of):
                if entry.__class__ is Tensor and not _is_held(entry):
                    lost[id(entry.root)] = entry.root.nbytes
            if sum(lost.values()) <= BYTES + 4 * max(lost.values(), default=0):
                return
            force([each], now=False)


def _is_held(tensor: Tensor) -> bool:
    holder = tensor.root.holder
    return holder is not None and holder() is not None


def own(tree: object) -> Any:
    """A value that no `LazyValue` has: a node as it is, if it is of none, and a copy of anything else."""
    return tree if tree.__class__ is OpTreeNode and id(tree) not in lazy_values else f.copy(tree)
