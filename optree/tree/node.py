"""OpTreeNode, the immutable tuple that trees are made of, and its traversals."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import wraps
from types import FrameType
from typing import Any, NoReturn, TypeVar, cast

import numpy as np

from optree.errors import (
    OperandError,
    Origin,
    TupleAccessError,
    TupleAccessWarning,
    UnknownOpError,
    brief,
    clock,
    names,
)
from optree.registry import OPS
from optree.tree import printing, variable
from optree.tree.numpy_protocol import write_out
from optree.tree.telling import tell
from optree.tree.types import NUMBERS, TensorType, weak_dtype
from optree.tree.variable import Variable, as_operand, as_variable, caller_origin, is_neon, is_of, is_own, spec_of

_Function = TypeVar("_Function", bound=Callable[..., Any])

#: The classes of operands that are no variables.
_PLAIN = frozenset((*NUMBERS, type(None)))

#: The parts of a node, its op_dict, left and right operand: what iterating over it gives, which warns users.
parts_of = tuple.__iter__

#: On a traversal's stack, the mark of a node below it whose operands have been visited.
FINISHED = object()


class OpDict(dict):
    """A node's first element: its op, with the type of its value.

    It prints as a plain dict, and is immutable because equal nodes share one. ``dict(op_dict)`` is a mutable copy.

    `op`: Op.
    `value_spec`: the type and backend of the node's value. Not named `spec`, the attribute by which operators recognise
    operands.
    `token`: one object for each op with the dtype and broadcast pattern of its value, for plan keys.
    `children`: the number of the node's operands, left and right, that are not None.
    """

    __slots__ = ("children", "op", "token", "value_spec")

    op: Any
    value_spec: Any
    token: object

    def __init__(
        self, entries: dict[str, Any], op: Any, spec: object, token: object, children: int | None = None
    ) -> None:
        super().__init__(entries)
        self.op, self.value_spec, self.token = op, spec, token
        self.children = op.children() if children is None else children

    def _refuse(self, *args: object, **kwargs: object) -> NoReturn:
        raise TypeError("an op_dict is shared by equal nodes and cannot be changed; build a new node")

    __setitem__ = __delitem__ = __ior__ = _refuse  # type: ignore[assignment]
    clear = pop = popitem = setdefault = update = _refuse  # type: ignore[assignment]

    __hash__ = object.__hash__  # type: ignore[assignment]  # by identity: equal ones may print alike and differ

    def __eq__(self, other: object) -> bool:
        return dict.__eq__(self, other)

    def __reduce__(self) -> tuple[Any, ...]:
        return _op_dict_again, (dict(self), self.op, self.value_spec and self.value_spec.type, self.children)


#: The op_dict of ``args`` nodes, which chain operands beyond two.
ARGS = OpDict({"op": "args"}, None, None, object(), children=2)


class OpTreeNode(Variable, tuple):  # type: ignore[misc]
    """A tuple ``(op_dict, left, right)``: an operation and its operands.

    The constructor takes the dict's shape, if it has one, without a check; `build` checks the operands and infers the
    shape and dtype. An operand is a node, a tensor, an input, a constant, a Python number, or None. Operands beyond two
    are chained in ``args`` nodes on the right, so every tree is binary. A shared subtree is one object.

    Parameters
    ----------
    op_dict : dict
        ``{'op': name, 'shape': shape, ...}`` with the op's own properties.
    left, right : operand, optional

    Notes
    -----
    The structure is that of neon's Op-Tree document.
    """

    origin: Origin
    known_owner: Any = None

    #: Whether it is the seed of a gradient, the derivative of a cost by itself.
    starts_gradient = False

    #: Its cached signature, once it has run alone or been assigned.
    ran: tuple[tuple[Any, ...], list[Any]] | None = None
    #: Whether it has run together with others.
    ran_beside = False

    def __new__(cls, op_dict: dict[str, Any], left: object = None, right: object = None) -> OpTreeNode:
        if not isinstance(op_dict, OpDict):
            left, right = (x if x is None else as_operand(x, str(op_dict.get("op"))) for x in (left, right))
            op_dict = _unchecked(op_dict, left, right)
        node = tuple.__new__(cls, (op_dict, left, right))
        node.spec = op_dict.value_spec
        node.origin = caller_origin()
        return node

    @staticmethod
    def build(op: str, left: object, right: object = None, out: object = None, **props: object) -> Any:
        """A node with checked operands, and inferred shape and dtype.

        Parameters
        ----------
        op : str
            A registered op's name.
        left, right : operand, optional
            None where the op takes fewer operands; a chain of ``args`` nodes on
            the right where it takes more than two.
        out : Tensor, optional
            The target: the value is written there at once, and it is returned.
        **props
            The op's own properties, such as ``axis``.

        Raises
        ------
        UnknownOpError, OperandError, ShapeError, DTypeError, AxisError, BackendError
            If the node is invalid.

        Examples
        --------
        >>> x = be.ones((2, 3), name="x")
        >>> OpTreeNode.build("sum", x, axis=1)
        ({'shape': (2, 1), 'op': 'sum', 'axis': 1, 'keepdims': True}, x, None)
        """
        node = find_op(op).make(**props)(*operands_of((op, left, right)))
        return node if out is None else write_out(node, out)

    def asnumpyarray(self) -> np.ndarray:
        """The value as a new NumPy array."""
        return self.astensor().get()

    @property
    def op(self) -> Any:
        """The `Op` that the node applies."""
        op_dict, _, _ = parts_of(self)  # quicker than its own `__getitem__`
        return op_dict.op

    @property
    def owner(self) -> Any:  # type: ignore[override]
        """The `Apply` whose output this is."""
        if self.known_owner is None:
            self.known_owner = self.op.application_of(self)
        return self.known_owner

    @property
    def index(self) -> int:  # type: ignore[override]
        """Its index among its owner's outputs."""
        return self.op.output_index(self)

    @property
    def inputs(self) -> list[Any]:
        """All operands, in order."""
        return operands_of(self)

    @property
    def label(self) -> str:
        return self[0]["op"]

    def key(self) -> tuple[Any, ...]:
        """The plan key: trees with equal keys share one plan.

        It contains ops, dtypes, ranks, the broadcast pattern and which leaves are the
        same, but not sizes or the values of numbers.
        """
        return signature(self)[0]

    def traverse(self, stack: list[Any] | None = None) -> list[Any]:
        """The tree in post-order, as a list that may be edited and given to `from_stack`.

        A leaf is listed as it is, an operation as its op_dict after its operands. A shared
        subtree is listed once, followed by a `Shared` mark; the same mark is its other uses.

        Parameters
        ----------
        stack : list, optional
            The list to append to; by default a new one.
        """
        stack = [] if stack is None else stack
        stack.extend(flat_list([self]))
        return stack

    @staticmethod
    def from_stack(stack: Iterable[Any]) -> Any:
        """The tree of a post-order list such as `traverse` gives, built with `build`.

        Raises
        ------
        OperandError
            If an operation has too few operands, or some are left over.
        """
        values = from_flat_list(stack)
        if len(values) != 1:
            raise OperandError(f"a post-order list leaves one tree, not {len(values)}")
        return values[0]

    @staticmethod
    def optree_to_list(tree: object) -> Any:
        """The tree as nested lists ``[op_dict, left, right]`` that may be edited.

        A shared subtree is one list.
        """
        return _map_tree(tree, _tree_children, lambda node, left, right: [dict(node[0]), left, right])

    @staticmethod
    def list_to_optree(nested: object) -> Any:
        """The tree of nested lists such as `optree_to_list` gives, built with `build`."""
        return _map_tree(nested, _list_children, lambda entry, left, right: _from_dict(entry[0], left, right))

    def pp(self) -> str:
        """The tree with one line for each node, operands indented below; a shared subtree is printed once."""
        return printing.lines(self)

    def __str__(self) -> str:
        return printing.text(self)

    __repr__ = __str__

    def __copy__(self) -> OpTreeNode:
        return self  # immutable

    def __reduce__(self) -> tuple[Any, ...]:
        # As a flat list: pickling recurses, and a tree may be deeper than the stack.
        return OpTreeNode.from_stack, (self.traverse(),)

    def __iter__(self) -> Iterator[Any]:
        frame = sys._getframe(1)
        return parts_of(self) if is_own(frame) else iterated(self, frame)

    def __len__(self) -> int:
        return len(self.astensor()) if "pandas" in sys.modules and _pandas_asks() else tuple.__len__(self)

    def __getitem__(self, index: Any) -> Any:
        if "pandas" in sys.modules and _pandas_asks():
            return self.get()[index]
        if hasattr(index, "__index__") and not isinstance(index, Variable):
            try:
                return tuple.__getitem__(self, index)
            except IndexError:
                kind: type[Exception] = IndexError
        else:
            kind = TypeError
        raise kind(
            f"a node is a tuple (op_dict, left, right) and takes 0, 1 or 2 as index, not {brief(index)}; "
            "tree.at[...] and be.slice(tree, ...) give its value's elements"
        )

    def __setitem__(self, index: object, value: object) -> NoReturn:
        raise TypeError(
            f"{self.label} is a lazy expression without memory to write to: t = tree.astensor() is a tensor of its "
            "value, t[...] = ... writes a part, and np.where(mask, x, tree) chooses"
        )


variable.Node = OpTreeNode


def _pandas_asks() -> bool:
    """Whether the caller's caller is pandas, for which a tree is its value: to it a tuple is a sequence of values."""
    return is_of("pandas", sys._getframe(2))


def iterated(tree: OpTreeNode, frame: FrameType) -> Iterator[Any]:
    """The parts of a tree for a line outside op-tree, which is warned; pandas and Matplotlib get values.

    It raises TupleAccessError where OPTREE_TUPLE_ACCESS is ``error``. In neon's mode it is silent.
    """
    while is_of("numpy", frame) and frame.f_back is not None:
        frame = frame.f_back
    if is_of("pandas", frame) or is_of("matplotlib", frame):  # they ask what the elements are
        return iter(tree.get())
    spec = tree.spec  # None of an args node, which only a walk over trees meets
    if spec is not None and not is_neon(spec.backend):
        tell("tuple_access", TupleAccessWarning, TupleAccessError, frame, lambda: _PARTS.format(tree.label))
    return parts_of(tree)


_PARTS = (
    "this line iterates over the tree of {} or unpacks it, and gets the tuple's op_dict, left and right, as neon's "
    "programs do, and not values. tree.at[i] indexes the value, tree.get() is its array, and for row in "
    "tree.astensor() loops over its rows; tree[0], tree[1] and tree[2] are the parts, without a warning. "
    "OPTREE_TUPLE_ACCESS=error raises this, and =ignore says nothing, as does "
    "optree.settings.override(tuple_access='ignore') for a block of code"
)


class Shared:
    """A mark in a post-order list: at its first occurrence it names the tree before it, later it refers to that."""

    def __repr__(self) -> str:
        return f"shared-{id(self):#x}"


def applied(op_dict: OpDict, operands: Sequence[Any]) -> OpTreeNode:
    """A node, operands beyond two in a chain of ``args`` nodes."""
    count, new, origin = len(operands), tuple.__new__, caller_origin()
    right = operands[-1] if count > 1 else None
    for i in range(count - 2, 0, -1):
        right = new(OpTreeNode, (ARGS, operands[i], right))
        right.spec, right.origin = ARGS.value_spec, origin
    node = new(OpTreeNode, (op_dict, operands[0] if count else None, right))
    node.spec, node.origin = op_dict.value_spec, origin
    return node


def find_op(name: object) -> Any:
    """The op class of a name; UnknownOpError if there is none."""
    try:
        return OPS[name]
    except (KeyError, TypeError):
        raise UnknownOpError(f"there is no op {name!r}; there are {names(OPS)}") from None


def _unchecked(entries: dict[str, Any], left: object, right: object) -> OpDict:
    """The op_dict of a user's own dict, whose shape is not checked."""
    name = entries.get("op")
    if name == "args":
        return ARGS
    if "shape" not in entries:
        entries = {"shape": _from_dict(entries, left, right).shape, **entries}
    kind, operands = find_op(name), operands_of((entries, left, right))
    types = [as_variable(x).type for x in operands]
    backend = next((x.backend for x in operands if getattr(x, "backend", None) is not None), None)
    op = kind.make(**{key: entries[key] for key in kind.prop_names() if key in entries}).bind(types, backend)
    dtype = entries.get("dtype")
    if dtype is None:
        dtype = op.resolve_dtypes(*(weak_dtype(spec_of(x)) for x in operands))[-1]
    return op.op_dict_of(entries, TensorType(dtype, entries["shape"]), backend, None, [x.shape for x in types])


def operands_of(node: Any) -> list[Any]:
    """The operands of a node, including those in its chain of ``args`` nodes."""
    _, left, right = parts_of(node)
    operands = [] if left is None else [left]
    while type(right) is OpTreeNode:
        op_dict, operand, rest = parts_of(right)
        if op_dict is not ARGS:
            break
        operands.append(operand)
        right = rest
    if right is not None:
        operands.append(right)
    return operands


def variables_of(entry: object) -> list[Any]:
    """The operands of a node that are variables; none of a leaf."""
    return [x for x in operands_of(entry) if isinstance(x, Variable)] if isinstance(entry, OpTreeNode) else []


def key_of(leaf: Any) -> Any:
    """The entry of a leaf in plan keys, where it occurs first."""
    return leaf.__class__ if leaf.__class__ in _PLAIN else leaf.spec.token


def signature(root: OpTreeNode) -> tuple[tuple[Any, ...], list[Any]]:
    """A tree's plan key, and its leaves in post-order."""
    return signature_of([root]) if root.ran is None else root.ran


def signature_of(
    roots: Sequence[Any], old: list[OpTreeNode] | None = None, since: int = -1
) -> tuple[tuple[Any, ...], list[Any]]:
    """The plan key of trees that run together, and their leaves in post-order.

    The key lists each tree in pre-order: a node by its op's token, followed by None if it
    has no right operand; a tensor or constant by its spec's token; a number by its class;
    and a repeated operand by its index among all operands that are no numbers.

    `old`: receives the nodes that were built before the last write to any tensor.
    `since`: nodes built at this time or earlier are not added to `old`.
    """
    key: list[Any] = []
    leaves: list[Any] = []
    numbers: dict[Any, int] = {}
    *pending, entry = reversed(roots)
    now: int = clock[0]
    # Hot: every repeated assignment comes through here. CPython calls `key.append(x)` faster than a bound method.
    while True:
        kind = entry.__class__
        if kind is OpTreeNode:
            count = len(numbers)
            number = numbers.setdefault(entry, count)
            if number != count:
                key.append(number)
            else:
                op_dict, left, right = parts_of(entry)
                key.append(op_dict.token)
                if old is not None:
                    built = entry.origin[2]
                    if built != now and built > since:
                        old.append(entry)
                if right is None:
                    key.append(None)
                else:
                    pending.append(right)
                entry = left
                continue
        elif kind in _PLAIN:
            key.append(kind)
            if entry is not None:
                leaves.append(entry)
        else:
            count = len(numbers)
            number = numbers.setdefault(entry, count)
            if number != count:
                key.append(number)
            else:
                key.append(entry.spec.token)
                leaves.append(entry)
        if not pending:
            break
        entry = pending.pop()
    return tuple(key), leaves


def flat_list(roots: Sequence[Any]) -> list[Any]:
    """Trees in post-order, as `OpTreeNode.traverse` lists one; what several of them share is listed once."""
    stack: list[Any] = []
    parents = _count_parents(roots)
    marks: dict[int, Shared] = {}
    pending: list[Any] = [*reversed(roots)]
    while pending:
        entry = pending.pop()
        if entry is FINISHED:
            node = pending.pop()
            stack.append(node[0])
            if parents[id(node)] > 1:
                stack.append(marks.setdefault(id(node), Shared()))
        elif not isinstance(entry, OpTreeNode):
            stack.append(entry)
        elif id(entry) in marks:
            stack.append(marks[id(entry)])
        else:
            pending += (entry, FINISHED)
            pending.extend(child for child in (entry[2], entry[1]) if child is not None)
    return stack


def from_flat_list(stack: Iterable[Any]) -> list[Any]:
    """The trees of a list such as `flat_list` gives."""
    values: list[Any] = []
    shared: dict[int, Any] = {}
    for entry in stack:
        if isinstance(entry, Shared):
            if id(entry) in shared:
                values.append(shared[id(entry)])
            elif values:
                shared[id(entry)] = values[-1]
            else:
                raise OperandError(f"{entry} marks the tree before it, and there is none")
        elif isinstance(entry, dict) and "op" in entry:
            values.append(_rebuild(entry, values))
        else:
            values.append(entry)
    return values


def _count_parents(roots: Sequence[Any]) -> dict[int, int]:
    """The number of uses of each node in some trees, by its id."""
    counts: dict[int, int] = {}
    for root in roots:
        counts[id(root)] = counts.get(id(root), 0) + 1
    for node in post_order(roots, _tree_children):
        for child in _tree_children(node):
            counts[id(child)] = counts.get(id(child), 0) + 1
    return counts


def _tree_children(entry: object) -> Iterator[Any]:
    if not isinstance(entry, OpTreeNode):
        return iter(())
    return (child for child in parts_of(entry) if isinstance(child, OpTreeNode))


def _list_children(entry: Any) -> Iterator[Any]:
    return (child for child in entry if isinstance(child, list))


def _map_tree(root: Any, children: Callable[[Any], Iterator[Any]], make: Callable[[Any, Any, Any], Any]) -> Any:
    """Rebuild a binary tree, each distinct branch once; leaves are unchanged."""
    made: dict[int, Any] = {}
    branch = type(root)
    for entry in post_order([root], children):
        if isinstance(entry, branch):
            own = parts_of(entry) if isinstance(entry, tuple) else entry
            _, left, right = (*own, None, None)[:3]  # a user's list may omit None
            made[id(entry)] = make(entry, made.get(id(left), left), made.get(id(right), right))
    return made.get(id(root), root)


def _rebuild(op_dict: dict[str, Any], values: list[Any]) -> Any:
    """The node of an op_dict, with operands popped off the stack."""
    if isinstance(op_dict, OpDict):
        count = op_dict.children
    else:
        count = 2 if op_dict["op"] == "args" else _op_of(op_dict).children()
    if len(values) < count:
        raise OperandError(f"{op_dict['op']} takes {count} operands off the stack, which holds {len(values)}")
    operands = values[len(values) - count :]
    del values[len(values) - count :]
    return _from_dict(op_dict, *operands)


def _from_dict(op_dict: dict[str, Any], left: object = None, right: object = None) -> Any:
    if op_dict.get("op") == "args":
        return OpTreeNode(op_dict, left, right)
    op = _op_of(op_dict)
    if op is not getattr(op_dict, "op", None):
        op = op.make(**{key: value for key, value in op_dict.items() if key in op.prop_names()})
    return op.node_of(*operands_of((op_dict, left, right)))


def _op_dict_again(entries: dict[str, Any], op: Any, type: Any, children: int) -> OpDict:
    """An op_dict, unpickled."""
    return ARGS if op is None else op.op_dict_of(entries, type, None, children, ())


def _op_of(op_dict: dict[str, Any]) -> Any:
    """An op_dict's op; of a user's dict, the op class that it names."""
    return op_dict.op if isinstance(op_dict, OpDict) else find_op(op_dict.get("op"))


# Iterative traversals, as recursion would overflow on deep trees; and the garbage collector's pause


def post_order(roots: Iterable[Any], inputs_of: Callable[[Any], Iterable[Any]]) -> list[Any]:
    """Every distinct object reached from the roots, by identity, each after its inputs."""
    order: list[Any] = []
    done: set[int] = set()
    pending: list[Any] = list(reversed(list(roots)))
    while pending:
        entry = pending.pop()
        if entry is FINISHED:
            order.append(pending.pop())
        elif id(entry) not in done:
            done.add(id(entry))
            inputs = list(inputs_of(entry))
            if inputs:
                pending += (entry, FINISHED, *reversed(inputs))
            else:
                order.append(entry)
    return order


def uncollected(function: _Function) -> _Function:
    """A decorator for what builds from large trees: the garbage collector is paused meanwhile.

    What is built lives on. The collector would find no garbage, and visit every node and instruction again and again:
    half of the time of lowering a long tree.
    """

    @wraps(function)
    def paused(*args: object, **kwargs: object) -> Any:
        global _is_paused
        if not gc.isenabled():
            return function(*args, **kwargs)
        try:
            _is_paused = True
            gc.disable()
            return function(*args, **kwargs)
        finally:
            gc.enable()
            _is_paused = False

    return cast(_Function, paused)


_is_paused = False


def _resume() -> None:
    """Let the collector run in a child that was forked while another thread had paused it."""
    if _is_paused:
        gc.enable()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_resume)
