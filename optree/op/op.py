"""Op, the contract of operations, with defaults.

The contract is Theano's and Aesara's; `generate_adjoints` is Nervana graph's.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from types import FunctionType
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import numpy as np

from optree.cache import Cache
from optree.dtypes import own_dtypes
from optree.errors import AxisError, DefinitionError, DTypeError, OperandError, ShapeError, brief, describe
from optree.instead import instead_of_parameter
from optree.op.apply import Apply, applied_by, check_complex, explained, written
from optree.op.batching import by_index_map, in_loop
from optree.op.examples import DEFAULT, Cases, Examples
from optree.op.index_map import DerivedMap, IndexMap
from optree.op.registration import check_and_register
from optree.op.unlisted import MARKS, has_unlisted
from optree.tree.gradient_types import grad_undefined
from optree.tree.node import OpDict, OpTreeNode, applied
from optree.tree.types import WEAK, Shape, Spec, TensorType, Type, check_fits, is_huge, promote, weak_dtype
from optree.tree.variable import (
    Constant,
    Variable,
    as_columns,
    as_operand,
    as_variable,
    caller_origin,
    check_same_backend,
    new_cache,
    spec_of,
)

#: Maximum instances of a class that `make` caches, by parameters, and entries of the cache of a function's arguments.
SHARED, ARGUMENTS = 4096, 256

#: The classes of parameters that are cached, with dtypes, alone and in tuples; not float, as 0.0 equals -0.0.
EXACT = (int, bool, str, type(None))


class _Token:
    """A unique object, for keys."""

    __slots__ = ("__weakref__",)


#: A token for each op, by its identity, and pattern of its value.
_tokens: WeakValueDictionary[Any, _Token] = WeakValueDictionary()

_MAPS = ("index_map", "view_map")


class _ViewMap:
    """The `view_map` of an op that follows from its `index_map`, which depends on its parameters."""

    def __get__(self, op: Op, owner: object) -> dict[int | None, list[int]]:
        found: dict[int | None, list[int]] = (owner if op is None else op).index_map.view_map
        return found


class Op:
    """An operation with its parameters, without operands.

    A subclass with a `name` is registered: it gets a method on every backend, NumPy protocol support, and its
    tests. Ops are immutable and compare equal by class and `__props__`; without `__props__`, by identity.

    Attributes
    ----------
    name : str
        The op's name in trees and on backends.
    operands : tuple of str, or None
        The operands' names, in order; None for a variadic op, of two operands or more.
    __props__ : tuple of str
        The parameters' names; class attributes are their defaults.
    numpy : callable
        The value, as a function of NumPy arrays and of the parameters by name; called on a tensor, NumPy's own builds
        this op. Or a method ``numpy(*arrays)``; then `optree.registry.numpy_function` names NumPy's function.
    kernel : str, callable or None
        The value of one element as a C expression of ``{0}``, ``{1}``, ...; functions by their generic names
        (<tgmath.h>), the type of the result as ``T``, literals as ``(T)0.5``. One that depends on parameters or dtypes
        is a method ``kernel(*dtypes)``, of the dtypes that the operands are computed in. None for an op that is not
        elementwise.
    examples : tuple or Examples
        Operands and parameters on which the tests check every promise, and how more are drawn
        (`optree.op.examples.Examples`). An elementwise op needs none.
    commutative : bool
        Whether operands may be exchanged.
    index_map : IndexMap
        Which elements of its operands an element of the value is computed from (`optree.op.index_map`).
    destroy_map, view_map : dict
        Output index to the inputs that it overwrites, or is a view of; None to those overwritten that none aliases.
        `view_map` follows from `index_map`, unless it is given.
    takes_complex : bool
        Whether operands may be complex; None where it follows from the rest: `numpy` is a ufunc of complex numbers, or
        `index_map` says that elements are moved, as by views, or not read.
    raises : bool
        Whether it may raise on operands of valid types and sizes, where no kernel computes it and it is no view.
        Assignments run after such ops, so that all are made or none.
    widened : tuple of str
        The dtypes computed in float32 and rounded: bfloat16, and float16 where NumPy's own loop is slow.
    fill : callable, optional
        A method ``fill(out, *operands)`` that writes the value into an array of any layout, which shares no memory with
        the operands, or raises before. `numpy` may follow from it.
    draws : bool
        Whether it draws random numbers: in `optree.vmap`, each example has draws of its own.
    itypes, otypes : list of Type, optional
        The inputs' and outputs' types, from which `make_node` follows.
    default_output : int, optional
        The one output that calling the op returns.
    """

    name: ClassVar[str | None] = None
    operands: ClassVar[tuple[str, ...] | None] = ()
    __props__: ClassVar[tuple[str, ...] | None] = None
    numpy: ClassVar[Any] = None
    kernel: ClassVar[Any] = None
    examples: ClassVar[Examples | Cases] = DEFAULT
    commutative: ClassVar[bool] = False
    index_map: ClassVar[IndexMap] = IndexMap()
    destroy_map: ClassVar[dict[int | None, list[int]]] = {}
    view_map: ClassVar[dict[int | None, list[int]]] = _ViewMap()  # type: ignore[assignment]
    takes_complex: ClassVar[bool | None] = None
    raises: ClassVar[bool] = True
    widened: ClassVar[tuple[str, ...]] = ("bfloat16",)
    fill: ClassVar[Callable[..., None] | None] = None
    draws: ClassVar[bool] = False
    itypes: ClassVar[Sequence[Type] | None] = None
    otypes: ClassVar[Sequence[Type] | None] = None
    default_output: ClassVar[int | None] = None

    _instances: ClassVar[Cache] = Cache("ops by parameters", 0)

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if "numpy" in cls.__dict__ and not _is_method(cls.__dict__["numpy"], cls):
            cls.numpy = staticmethod(cls.__dict__["numpy"])
        if "make_node" in cls.__dict__:
            cls.make_node = explained(cls.__dict__["make_node"])  # type: ignore[method-assign]
        mapped, viewed = (next(vars(x)[name] for x in cls.__mro__ if name in vars(x)) for name in _MAPS)
        if isinstance(viewed, _ViewMap | DerivedMap):
            cls.view_map = mapped.view_map if isinstance(mapped, IndexMap) else _ViewMap()  # type: ignore[assignment]
        cls._instances = Cache("ops by parameters", SHARED)
        check_and_register(cls, Op, function_of)

    def __init__(self, *args: Any, **props: Any) -> None:
        names = self.prop_names()
        if len(args) > len(names):
            raise OperandError(f"{usage(type(self))} was given {len(args)} values for its parameters")
        for name, value in {**dict(zip(names, args, strict=False)), **props}.items():
            if name not in names:
                raise OperandError(f"{usage(type(self))} has no parameter {name!r}{instead_of_parameter([name])}")
            setattr(self, name, value)

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        op = super().__new__(cls)
        op.__dict__["applications"] = new_cache()  # a frozen dataclass refuses setattr
        return op

    applications: Cache

    #: Whether `make` caches it for these parameters.
    is_shared: bool = False

    #: Whether `check_parameters` has passed.
    is_checked: bool = False

    # Parameters

    @classmethod
    def prop_names(cls) -> tuple[str, ...]:
        """The parameters' names."""
        return cls.__props__ or ()

    @property
    def props(self) -> dict[str, Any]:
        """The parameters by name."""
        return {name: getattr(self, name) for name in self.__props__ or ()}

    @classmethod
    def make(cls, **props: Any) -> Any:
        """The op with these parameters; the same object for the same parameters.

        Raises
        ------
        TypeError
            If there is no parameter of a given name.
        """
        try:
            key = tuple(sorted([(name, _hashable(value)) for name, value in props.items()])) if props else ()
            found = cls._instances.get(key)
        except TypeError:  # a parameter that cannot be hashed or ordered
            return cls(**props)
        if found is None:
            found = cls(**props)
            found.__dict__["is_shared"] = True
            cls._instances[key] = found
        return found

    def with_props(self, **changed: Any) -> Any:
        """The op with other values of some parameters."""
        return self.make(**{**self.props, **changed})

    def __setattr__(self, name: str, value: object) -> None:
        if self.is_shared:
            raise DefinitionError(
                f"{self}: its trees share this op, and it cannot be changed; "
                f"{type(self).__name__}(...) is an op of your own, that can until it is used"
            )
        object.__setattr__(self, name, value)

    @property
    def is_alone(self) -> bool:
        """Whether it shares no plan with equal ops: without `__props__`, or with other attributes at its first use."""
        own = self.__dict__
        if "alone" not in own:
            props = self.__props__
            # A fast path for most ops, which have parameters alone; another thread may use the op meanwhile.
            is_plain = props is not None and all(x in MARKS or x[0] == "_" or x in props for x in tuple(own))
            is_plain = is_plain and not any("__slots__" in vars(kind) for kind in type(self).__mro__)
            own["alone"] = not is_plain and (props is None or has_unlisted(self))
        return own["alone"]  # type: ignore[no-any-return]

    def identity(self) -> Any:
        """The key by which ops are equal: class and parameters; the op itself without `__props__`."""
        return self if self.__props__ is None else (type(self), tuple(map(_hashable, self.props.values())))

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(self) is not type(other) or self.__props__ is None or self.__hash__() != hash(other):
            return False
        return self.identity() == other.identity()  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return object.__hash__(self) if self.__props__ is None else hash(self.identity())

    def __str__(self) -> str:
        props = ", ".join(f"{key}={value!r}" for key, value in self.props.items())
        name = self.name or type(self).__name__
        return f"{name}{{{props}}}" if props else name

    __repr__ = __str__

    def destroyed_inputs(self) -> list[int]:
        """The inputs that the op overwrites, by destroy_map."""
        return sorted({i for inputs in self.destroy_map.values() for i in inputs}) if self.destroy_map else []

    def shared_inputs(self) -> set[int]:
        """The inputs that an output may alias, by view_map or destroy_map."""
        if not (self.view_map or self.destroy_map):  # a fast path for most ops
            return set()
        return {
            i
            for mapping in (self.view_map, self.destroy_map)
            for output, inputs in mapping.items()
            if output is not None
            for i in inputs
        }

    def defines(self, method: str) -> bool:
        """Whether the op, or its class, overrides this method of the contract."""
        return method in self.__dict__ or getattr(type(self), method) is not getattr(Op, method)

    @property
    def gives_shape(self) -> bool:
        """Whether the value's shape follows from the operands' shapes, by `output_shape`."""
        return type(self).index_map.gives_shape or self.defines("output_shape")

    def __copy__(self) -> Any:
        return self  # immutable

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        if self.is_shared:
            return partial(type(self).make, **self.props), ()
        # By its attributes, and not by its parameters: its __init__ may take others.
        return _restored, (type(self),), self.state()

    def state(self) -> dict[str, Any]:
        """The attributes set on the op itself, without its caches."""
        found = vars(self).copy()  # at once: other threads may use the op for the first time meanwhile
        return {name: value for name, value in found.items() if name not in MARKS}

    # Building

    @classmethod
    def children(cls) -> int:
        """The number of children of a node of this op in the binary tree."""
        return 2 if cls.operands is None else min(len(cls.operands), 2)

    @classmethod
    def function(cls, *args: Any, **kwargs: Any) -> Any:
        """Apply the op, with parameters after the operands or by name."""
        operands, props = sorted_arguments(cls, args, kwargs)
        return cls.make(**props)(*operands)

    @classmethod
    def parameters(cls) -> list[inspect.Parameter]:
        """The parameters of `function`, for its signature."""
        if cls.function.__func__ is not Op.function.__func__:  # type: ignore[attr-defined]
            own = list(inspect.signature(cls.function).parameters.values())
            if any(p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in own):
                return [p.replace(annotation=p.empty) for p in own]
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        operands = [inspect.Parameter(name, kind) for name in cls.operands or ()]
        return operands + [inspect.Parameter(n, kind, default=getattr(cls, n)) for n in cls.prop_names()]

    def __call__(self, *inputs: Any, **kwargs: Any) -> Any:
        """Apply the op: the output, or the list of outputs.

        Raises
        ------
        OperandError, ShapeError, DTypeError, AxisError, BackendError
            If the op cannot be applied to them.
        """
        try:
            specs = tuple([getattr(x, "spec", x.__class__) for x in inputs])
            op_dict = self.applications.get(specs)
            if op_dict is not None and not (int in specs and any(map(is_huge, inputs))):
                return applied(op_dict, inputs)
        except Exception:  # of a foreign object's attribute, which may raise anything
            pass
        if self.makes_nodes():
            if self.itypes is None:
                check_complex(self, [x for x in inputs if type(x) is complex or isinstance(x, Variable)])
            return self._outputs_of(applied_by(self, self.make_node, inputs, kwargs))
        operands = as_columns(self, [as_operand(x, self) for x in inputs])
        return applied(self._apply(operands, tuple(map(spec_of, operands))), operands)

    def makes_nodes(self) -> bool:
        """Whether the op defines `make_node` or `itypes`, and does not use its traits."""
        return self.itypes is not None or self.defines("make_node")

    def _outputs_of(self, apply: object) -> Any:
        if not isinstance(apply, Apply):
            raise DefinitionError(f"{self}: make_node returns an Apply, not {describe(apply)}")
        for node in (apply.node, *apply.outputs):
            node.origin = caller_origin()  # the line that wrote the op, and not that of its make_node
        if self.default_output is not None:
            return apply.outputs[self.default_output]
        return apply.outputs[0] if len(apply.outputs) == 1 else apply.outputs

    def make_node(self, *inputs: Any) -> Apply:
        """Apply the op to inputs; an application's own inputs give an equivalent one.

        An op overrides it, on the class or an instance, or defines `itypes` and `otypes`, or uses traits.

        Raises
        ------
        TypeError
            If the op cannot be applied to these inputs.
        """
        if self.itypes is None:
            return self(*inputs).owner
        if self.otypes is None or len(inputs) != len(self.itypes):
            raise OperandError(f"{self} takes {len(self.itypes)} inputs and gives otypes; {len(inputs)} were given")
        wrapped = [self._typed(x, t) for x, t in zip(inputs, self.itypes, strict=True)]
        return Apply(self, wrapped, [t() for t in self.otypes])

    def node_of(self, *operands: Variable) -> Any:
        """The node that applies the op to operands; for several outputs, the tuple of them."""
        return self.make_node(*map(as_variable, operands)).node if self.makes_nodes() else self(*operands)

    def application_of(self, node: OpTreeNode) -> Apply:
        """The `Apply` of a node that has this op."""
        return Apply.of_node(node)

    def output_index(self, node: Variable) -> int:
        """The index of a node with this op among its application's outputs."""
        return 0

    def _typed(self, value: object, wanted: Type) -> Variable:
        if not isinstance(value, Variable):
            return Constant(wanted, value)
        if not wanted.holds(value.type):
            raise OperandError(f"{self}: {describe(value)} is not of the type {wanted!r}")
        return value

    def _apply(self, operands: list[Any], specs: tuple[Any, ...]) -> OpDict:
        """The op_dict for operands of these specs, cached unless it depends on a number's value."""
        known = self.applications.get(specs)
        if known is not None and not any(map(is_huge, operands)):
            return known
        if not self.gives_shape:
            raise DefinitionError(
                f"{self}: write make_node, or give itypes and otypes, or take a trait such as ElementwiseOperator"
            )
        self._check_count(operands)
        backend = check_same_backend(self, operands)
        types = [as_variable(x).type for x in operands]
        for x, t in zip(operands, types, strict=True):
            if not isinstance(t, TensorType):
                raise OperandError(f"{self}: it is for tensors, which {describe(x)} is not")
        try:
            bound = self.bind(types, backend)
            shape = bound.output_shape(*(t.shape for t in types))
        except AxisError as error:
            raise AxisError(f"{error}: {describe(operands[0])}") from None
        except ShapeError as error:
            listed = " and ".join(describe(x) for x in operands)
            raise ShapeError(f"{self.name}: {listed}: {error}") from None
        dtypes = [weak_dtype(spec) for spec in specs]
        if any(t.dtype.kind == "c" for t in types):
            check_complex(self, operands)
        try:
            *loop, out = bound.resolve_dtypes(*dtypes)
        except TypeError:
            listed = ", ".join(describe(x) for x in operands)
            raise DTypeError(f"{self.name}: there is no {self.name} for {listed}") from None
        op_dict = bound.op_dict(TensorType(out, shape), backend, shapes=[t.shape for t in types])
        varies = False
        for x, dtype in zip(operands, loop, strict=False):
            if type(x) in WEAK:
                check_fits(x, dtype, self)
                varies = varies or dtype.kind in "iu"
        if varies:  # another number may not fit
            return op_dict
        self.applications[specs] = op_dict
        return op_dict

    def plan_sizes(self, *shapes: Shape) -> Any:
        """Of operands' shapes what the code depends on, beyond axes of size 1, for plan keys; None for nothing."""

    def _check_count(self, operands: Sequence[Any]) -> None:
        names = self.operands
        if len(operands) != len(names) if names is not None else len(operands) < 2:
            wanted = "two operands or more" if names is None else f"{len(names)} operands ({', '.join(names)})"
            raise OperandError(f"{self} takes {wanted}, not {len(operands)}")

    def op_dict(self, type: Type, backend: object, children: int | None = None, shapes: Sequence[Shape] = ()) -> OpDict:
        """The first element of a node that applies the op, to operands of these shapes, and has this type."""
        shape = {"shape": type.shape} if isinstance(type, TensorType) else {}
        return self.op_dict_of({**shape, "op": self.name or str(self), **self.props}, type, backend, children, shapes)

    def op_dict_of(
        self, entries: dict[str, Any], type: Type, backend: object, children: int | None, shapes: Sequence[Shape]
    ) -> OpDict:
        """The same with other entries, which print."""
        spec = Spec(type, backend)
        sizes = self.plan_sizes(*shapes) if shapes else None
        return OpDict(entries, self, spec, self._token(spec.token if sizes is None else (spec.token, sizes)), children)

    def _token(self, pattern: object) -> _Token:
        self.check_parameters()
        if self.is_alone:
            return self.__dict__.setdefault("tokens", {}).setdefault(pattern, _Token())
        # Not by the op itself, which holds its op_dicts and so the token: neither would ever go.
        return _tokens.setdefault((self.identity(), pattern), _Token())

    def check_parameters(self) -> None:
        """Raise DefinitionError for parameters without a hash, before the first tree is made."""
        if self.is_checked or self.__props__ is None:  # compared by identity
            return
        for name, value in self.props.items():
            try:
                hash(value)
            except TypeError:  # such as a tuple with an array
                why = (
                    "which has no hash, and ops are told apart by their parameters; give a tuple, or make it an operand"
                )
                raise DefinitionError(f"{type(self).__name__}: its parameter {name} is {brief(value)}, {why}") from None
        self.__dict__["is_checked"] = True

    def bind(self, types: Sequence[TensorType], backend: object) -> Any:
        """The op with its parameters normalised for operands of these types."""
        return self

    def output_shape(self, *shapes: Shape) -> Shape:
        """The value's shape from the operands' shapes, by default by `index_map`.

        Raises
        ------
        ShapeError
            If the shapes are invalid; the message need not name the operands.
        """
        if not self.gives_shape:
            raise DefinitionError(f"{self}: define output_shape, or take it from a trait such as ElementwiseOperator")
        return self.index_map.value_shape(*shapes)

    def resolve_dtypes(self, *dtypes: np.dtype | type) -> tuple[np.dtype, ...]:
        """The dtypes that the operands are computed in, and the value's after them.

        By default those of the op's ufunc, or else the operands' common dtype. That of a
        weak Python number is `int`, `float` or `complex`.
        """
        return own_dtypes(self.numpy, dtypes) or (promote(*dtypes),) * (len(dtypes) + 1)

    # Running

    def value(self, *arrays: np.ndarray) -> Any:
        """The value on NumPy arrays and Python numbers, by `numpy` or `fill`."""
        numpy = self.numpy
        if getattr(numpy, "__self__", None) is self:
            return numpy(*arrays)
        if numpy is not None:
            return numpy(*arrays, **self.props)
        if self.fill is not None:
            return written(self, arrays)
        raise DefinitionError(
            f"{self}: write numpy or fill, or perform(self, node, inputs, output_storage); "
            "the values of its kernel are compared with theirs"
        )

    def perform(self, node: Apply, inputs: Sequence[Any], output_storage: Sequence[list[Any]]) -> None:
        """Compute the outputs from the inputs' values into one-element lists.

        Parameters
        ----------
        node : Apply
            Inputs and outputs with their types.
        inputs : list
            The values: arrays, Python numbers, or values of the inputs' own types.
        output_storage : list of list
            A cell for each output. It holds None, or the value of the call before, whose memory may be reused.
        """
        output_storage[0][0] = self.value(*inputs)

    def make_thunk(
        self, node: Apply, storage_map: Any, compute_map: Any, no_recycling: Any, impl: str | None = None
    ) -> Callable[[], None]:
        """A function without arguments that computes the outputs' cells from the inputs'.

        Parameters
        ----------
        node : Apply
        storage_map : dict
            From each input and output to the one-element list with its value.
        compute_map : dict
            From each to a one-element list that tells whether it has been computed.
        no_recycling : list
            Outputs whose cells are emptied before each call.
        impl : str, optional
            ``'py'``, or None for whichever there is.
        """
        inputs = [storage_map[x] for x in node.inputs]
        outputs = [storage_map[x] for x in node.outputs]

        def thunk() -> None:
            for x in no_recycling:
                storage_map[x][0] = None
            self.perform(node, [cell[0] for cell in inputs], outputs)
            for x in node.outputs:
                compute_map[x][0] = True

        return thunk

    def infer_shape(self, node: Apply, shapes: Sequence[Shape]) -> list[Shape]:
        """The outputs' shapes, from the inputs'."""
        return [self.output_shape(*shapes)]

    def flops(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
        """The number of floating-point operations, for profiles."""
        return sum(int(np.prod(shape, dtype=np.int64)) for shape in outputs)  # type: ignore[arg-type, misc]

    def do_constant_folding(self, node: Apply) -> bool:
        """Whether the op may be evaluated at compile time if its inputs are all constants."""
        return not self.destroy_map

    # Batches

    def batch(self, inputs: Sequence[Any], batched: Sequence[bool]) -> Any:
        """The value for a batch of examples, by which `optree.vmap` applies the op to each: its batching rule.

        `index_map` or the rule of a trait serves most ops. ``batch = Op.batch_in_loop`` serves any that overwrites
        nothing.

        Parameters
        ----------
        inputs : list of operand
        batched : list of bool
            For each input whether it has an axis of examples, the first. Another is the same for all examples.

        Returns
        -------
        OpTreeNode, or list of them for an op of several outputs
            With an axis of examples in front.
        """
        return by_index_map(self, inputs, batched)

    def batch_in_loop(self, inputs: Sequence[Any], batched: Sequence[bool]) -> Any:
        """A batching rule: the op applied to one example after another, in a loop as by `scan`."""
        return in_loop(self, inputs, batched)

    # Derivatives

    def grad(self, inputs: Sequence[Variable], output_gradients: Sequence[Any]) -> Sequence[Any]:
        """The gradient of the cost by each input, from those by the outputs (vjp).

        A gradient is a tree of a floating dtype and of its input's shape, or of one that the input broadcasts to, which
        is then summed. Where there is no derivative, it is None, or `grad_undefined` or `grad_not_implemented` with the
        reason; where the outputs' elements do not depend on the input's, a variable of `DisconnectedType`.

        Parameters
        ----------
        inputs : list of Variable
        output_gradients : list of Variable
            One of `DisconnectedType` for an output that the cost does not use. That for an output of integers is zero.
        """
        raise DefinitionError(
            f"{type(self).__name__}: grad was forgotten: write grad(self, inputs, output_gradients), "
            "or be a NonDifferentiableOperator"
        )

    def grad_inputs(self, inputs: Sequence[Variable]) -> list[Variable]:
        """The inputs as `grad` is given them."""
        return list(inputs)

    def generate_adjoints(self, adjoints: dict[Variable, Any], delta: Variable | list[Any], *args: Variable) -> None:
        """Send each operand its delta, by default from `grad`.

        The derivative by an operand without a delta is zero. The delta of an op with several
        outputs is the list that `grad` takes.
        """
        gradients = self.grad(self.grad_inputs(args), delta if isinstance(delta, list) else [delta])
        if not isinstance(gradients, list | tuple) or len(gradients) != len(args):
            raise DefinitionError(f"{self}.grad returns a list of {len(args)} gradients, not {describe(gradients)}")
        for i, (operand, gradient) in enumerate(zip(args, gradients, strict=True)):
            if gradient is None and i in self.index_map.shape_only:
                continue
            if type(operand) is Constant and operand.is_weak:  # a Python number has no derivative
                continue
            if gradient is None:
                gradient = grad_undefined(self, i, operand)
            operand.generate_add_delta(adjoints, gradient)

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        """For each input and output, whether the output's elements depend on the input's.

        By default they do, except for inputs of which only the shape is used.

        Parameters
        ----------
        node : Apply
        """
        unread = self.index_map.shape_only
        return [[i not in unread] * len(node.outputs) for i in range(len(node.inputs))]

    def R_op(self, inputs: Sequence[Variable], eval_points: Sequence[Any]) -> Sequence[Any]:
        """The Jacobian-vector product (jvp).

        It is optional: `Rop` differentiates `grad` instead.

        Parameters
        ----------
        inputs : list of Variable
        eval_points : list of Variable or None
            The tangent of each input, of its shape; None if it is zero.

        Returns
        -------
        list
            One for each output, of its shape or broadcast to it; None if it is zero.
        """
        raise DefinitionError(f"{self}: it has no R_op of its own; optree.Rop differentiates its grad instead")


def _is_method(function: object, cls: type) -> bool:
    """Whether a class's `numpy` is a method that it defines, and not a function of arrays and parameters."""
    return isinstance(function, FunctionType) and function.__qualname__ == f"{cls.__qualname__}.numpy"


def _restored(cls: type[Op]) -> Any:
    return cls.__new__(cls)


def _hashable(value: object) -> Any:
    """A key of a parameter that distinguishes 0.0 from -0.0, and 1 from True."""
    return (type(value), repr(value)) if isinstance(value, bool | int | float | complex | tuple) else value


# Functions of ops


def for_complex(call: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a `__call__` that differs for complex operands alone, so that cached applications need not ask it."""
    call.for_complex = True  # type: ignore[attr-defined]
    return call


def function_of(cls: Any) -> Callable[..., Any]:
    """The op's function, with the class's documentation and the signature of its operands and parameters."""
    plain = cls.function.__func__ is Op.function.__func__  # type: ignore[attr-defined]
    plain = plain and (cls.__call__ is Op.__call__ or hasattr(cls.__call__, "for_complex"))
    call = _application(cls) if plain and cls.operands else _general(cls)
    call.__name__ = call.__qualname__ = str(cls.name)
    call.__doc__ = cls.__doc__
    call.__signature__ = inspect.Signature(cls.parameters())  # type: ignore[attr-defined]
    return call


def _general(cls: Any) -> Callable[..., Any]:
    """`cls.function` as a function of its own."""

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return cls.function(*args, **kwargs)
        except TypeError as error:
            _check_taken(cls, args, kwargs, error)
            raise

    return call


def _check_taken(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any], error: TypeError) -> None:
    """Raise OperandError if an op's function does not take these arguments, which the error may say."""
    try:
        inspect.signature(cls.function).bind(*args, **kwargs)
    except TypeError as refusal:
        raise OperandError(f"{usage(cls)}: {refusal}{instead_of_parameter(kwargs)}") from error


def _application(cls: Any) -> Callable[..., Any]:
    """`cls.function`, with a fast path for cached parameters and operand specs."""
    new, origin, count, known = tuple.__new__, caller_origin, len(cls.operands), Cache("ops by arguments", ARGUMENTS)

    def call(*args: Any, **kwargs: Any) -> Any:
        key: Any = None
        if kwargs or len(args) != count:
            values = (*args[count:], *kwargs.values())
            kinds = (*map(type, values),)  # 1 is not True
            key = values, kinds, *kwargs
            if tuple in kinds:
                key = (*key, *[(*map(type, value),) for value in values if type(value) is tuple])
        try:
            op = known.get(key)
        except TypeError:  # not hashable
            return cls.function(*args, **kwargs)
        if op is None:
            if len(args) < count or kwargs.keys() & set(cls.operands) or not all(map(_is_exact, (key or ((),))[0])):
                return cls.function(*args, **kwargs)
            _, props = sorted_arguments(cls, args, kwargs)
            op = known[key] = cls.make(**props)
        if count == 1:
            x, y = args[0], None
            try:
                op_dict = op.applications.get((getattr(x, "spec", None),))
            except Exception:  # of a foreign object's attribute, which may raise anything
                op_dict = None
        elif count == 2:
            x, y = args[0], args[1]
            try:
                first, second = getattr(x, "spec", x.__class__), getattr(y, "spec", y.__class__)
                op_dict = op.applications.get((first, second))
            except Exception:
                first = second = op_dict = None
            if (first is int and is_huge(x)) or (second is int and is_huge(y)):
                op_dict = None
        else:
            op_dict = None
        if op_dict is None:
            return op(*args[:count])
        node = new(OpTreeNode, (op_dict, x, y))
        node.spec = op_dict.value_spec
        node.origin = origin()
        return node

    return call


def _is_exact(value: object) -> bool:
    """Whether a parameter of a class is only equal to those that mean the same; of a tuple, its elements."""
    kinds = map(type, value) if type(value) is tuple else (type(value),)
    return all(kind in EXACT or issubclass(kind, np.dtype) for kind in kinds)


def sorted_arguments(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Sort an op's arguments into operands, and parameters by name; OperandError if the number is wrong."""
    names = cls.operands
    if names is None:
        raise NotImplementedError(f"{cls.__name__}: an op of any number of operands defines function")
    operands = list(args[: len(names)])
    for name in names[len(operands) :]:
        if name not in kwargs:
            raise OperandError(f"{usage(cls)}: {name} is missing")
        operands.append(kwargs.pop(name))
    extra = dict(zip(cls.prop_names(), args[len(names) :], strict=False))
    if len(extra) < len(args) - len(names):
        raise OperandError(f"{usage(cls)} was given {len(args)} arguments")
    for name in extra.keys() & kwargs.keys():
        raise OperandError(f"{usage(cls)} was given {name} twice")
    return operands, {**extra, **kwargs}


def usage(cls: Any) -> str:
    """The signature of an op's function, for errors: ``sum(x, axis=None, keepdims=True)``."""
    return f"{cls.name or cls.__name__}{inspect.Signature(cls.parameters())}"
