"""Variable, the base of all operands with a type, and the leaves without a backend: Constant and Input."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from functools import wraps
from types import FrameType
from typing import Any, NoReturn

import numpy as np

from optree.arrays import check_unmasked, frozen, is_foreign
from optree.cache import Cache
from optree.errors import (
    BackendError,
    DTypeError,
    Labelled,
    OperandError,
    OptreeError,
    Origin,
    ShapeError,
    brief,
    class_of,
    clock,
    describe,
)
from optree.instead import refuse_attributes, remedy_for
from optree.registry import APPLICATIONS, FUNCTIONS, METADIFF, f
from optree.tree import numpy_protocol, printing
from optree.tree.gradient_types import contribution_to, sum_of_deltas
from optree.tree.telling import warn_at
from optree.tree.types import HUGE, NUMBERS, WEAK, Spec, TensorType, Type, array_of, as_dtype, check_name, one_or_many

#: The specs of Python numbers as constants: distinct from those of arrays, because they are weak.
WEAK_SPECS = {
    number: Spec.own(TensorType(dtype, ()))
    for number, dtype in zip(NUMBERS, ("bool", "int64", "float64", "complex128"), strict=True)
}


#: `OpTreeNode`, which `optree.tree.node` sets: nodes are variables.
Node: Any = None

#: Maximum entries of an op's cache of applications.
INFERENCES = 4096


def new_cache() -> Cache:
    """A new cache of an op's applications: operand specs -> op_dict."""
    return Cache("types of ops' values", INFERENCES)


def binary(name: str, depth: int = 1, slow: Callable[[Any, Any], Any] | None = None) -> Callable[[Any, Any], Variable]:
    """A binary operator, by its op's name; it caches applications by its operands' specs.

    `depth`: the frames between the operator and the user's line.
    `slow`: called where the op has not been applied to operands of these types before; by default the op's function.
    Most nodes are made here, without a call.
    """
    applications, new, frame_at = APPLICATIONS.setdefault(name, new_cache()), tuple.__new__, sys._getframe
    slow, now, least, most = slow or (lambda x, y: FUNCTIONS[name](x, y)), clock, -HUGE, HUGE

    def method(self: Any, other: Any) -> Any:
        try:
            spec = getattr(other, "spec", None)
            if spec is None:
                spec = other.__class__
                if spec is int and not least < other < most:
                    return slow(self, other)
            op_dict = applications.get((self.spec, spec))
        except Exception:  # of a foreign object's attribute, which may raise anything
            op_dict = None
        if op_dict is None:
            return slow(self, other)
        node = new(Node, (op_dict, self, other))
        node.spec = op_dict.value_spec
        frame = frame_at(depth)
        node.origin = (frame.f_code, frame.f_lasti, now[0])
        return node

    return method


def unary(name: str, depth: int = 1, slow: Callable[[Any], Any] | None = None) -> Callable[[Any], Variable]:
    """The same for a unary operator."""
    applications, new, frame_at = APPLICATIONS.setdefault(name, new_cache()), tuple.__new__, sys._getframe
    slow, now = slow or (lambda x: FUNCTIONS[name](x)), clock

    def method(self: Any) -> Any:
        op_dict = applications.get((self.spec,))
        if op_dict is None:
            return slow(self)
        node = new(Node, (op_dict, self, None))
        node.spec = op_dict.value_spec
        frame = frame_at(depth)
        node.origin = (frame.f_code, frame.f_lasti, now[0])
        return node

    return method


def reflected(
    name: str, depth: int = 1, slow: Callable[[Any, Any], Any] | None = None
) -> Callable[[Any, Any], Variable]:
    """The same for a reflected operator, whose left operand is a number."""
    applications, new, frame_at = APPLICATIONS.setdefault(name, new_cache()), tuple.__new__, sys._getframe
    slow, now, least, most = slow or (lambda x, y: FUNCTIONS[name](y, x)), clock, -HUGE, HUGE

    def method(self: Any, other: Any) -> Any:
        kind = other.__class__
        op_dict = applications.get((kind, self.spec))
        if op_dict is None or (kind is int and not least < other < most):
            return slow(self, other)
        node = new(Node, (op_dict, other, self))
        node.spec = op_dict.value_spec
        frame = frame_at(depth)
        node.origin = (frame.f_code, frame.f_lasti, now[0])
        return node

    return method


def by_numpy(function: Any) -> Callable[..., Any]:
    """A method of NumPy's arrays, by NumPy's function of an array."""

    @wraps(function)
    def method(self: Any, *args: Any, **options: Any) -> Any:
        return self.__array_function__(function, (), (self, *args), options)

    method.__doc__ = f"``np.{function.__name__}`` of this operand."
    return method


def metadiff(name: str) -> Callable[..., Any]:
    """A method of Metadiff's nodes, which `optree.compat.metadiff` implements."""

    def method(self: Any, *args: Any, **options: Any) -> Any:
        return METADIFF[name](self, *args, **options)

    return method


class Elements:
    """A variable's value, indexed as a NumPy array is."""

    __slots__ = ("_whole",)
    __iter__ = None  # iteration by __getitem__ would not end over an axis of unknown size

    def __init__(self, whole: Any) -> None:
        self._whole = whole

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(self._whole.type, TensorType):
            raise OperandError(f"{describe(self._whole)} is no array, and has no elements to index")
        return f.gather(self._whole, index)


class Variable(Labelled):
    """An operand with a type: `OpTreeNode`, `Tensor`, `Input` or `Constant`.

    Python's operators on a variable build nodes. So does ``==``: compare variables by ``is``.
    """

    __slots__ = ()

    spec: Any
    origin: Origin | None

    #: The `Apply` whose output this is, and the output's index; None for a leaf.
    owner: Any = None
    index: int | None = None

    #: pandas' operators leave their operands to ours: ``series * x`` is a tree.
    __pandas_priority__ = 5000

    # By identity, because == builds a tree.
    __hash__ = object.__hash__
    _repr_html_ = printing.as_html

    @property
    def type(self) -> Any:
        """The `Type` of its values: for a tensor, dtype and shape."""
        return self.spec.type

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each axis."""
        return self.type.shape

    @property
    def dtype(self) -> np.dtype:
        """The NumPy dtype of its elements."""
        return self.type.dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.type.shape)

    @property
    def size(self) -> int:
        """The number of elements; ShapeError if an axis's size is not known before the function is called."""
        shape = self.type.shape
        if None in shape:
            raise ShapeError(
                f"size: {describe(self)}: an axis's size is known when the function is called; f.count(x) is a tree"
            )
        return math.prod(shape)

    @property
    def backend(self) -> Any:
        """The backend that owns the operand's tensors; None where it has none."""
        return self.spec.backend

    @property
    def label(self) -> str:
        """Its name in a printed tree."""
        raise NotImplementedError

    @property
    def T(self) -> Any:
        """The operand with its axes in reverse order."""
        return self.transpose()

    @property
    def mT(self) -> Any:
        """The operand with its last two axes exchanged."""
        return self.swapaxes(-1, -2)

    @property
    def real(self) -> Any:
        """The real part; the operand itself where it is real."""
        return f.real(self) if self.dtype.kind == "c" else self

    @property
    def imag(self) -> Any:
        """The imaginary part; of a real operand zeros, as a tree."""
        return f.imag(self)

    def transpose(self, *axes: Any) -> Any:
        """The operand with its axes in the order given, or reversed."""
        return f.transpose(self, one_or_many(axes))

    @property
    def at(self) -> Any:
        """The value's elements by index: ``tree.at[1:, 0]``. A tree's own ``tree[1]`` is its first operand."""
        return Elements(self)

    def reshape(self, *shape: Any) -> Any:
        """The operand in another shape of the same size; one axis may be -1."""
        return f.reshape(self, one_or_many(shape) or ())

    def flatten(self) -> Variable:
        """A 1-D tree of the operand's elements, in C order."""
        return f.ravel(self)

    def astype(self, dtype: Any, copy: bool = True) -> Variable:
        """A tree of the operand's values in another dtype; without `copy`, itself if it has that."""
        return f.cast(self, as_dtype(dtype)) if copy or as_dtype(dtype) != self.dtype else self

    def view(self, dtype: Any = None) -> NoReturn:
        """Raises: NumPy's method reinterprets an array's bytes as another dtype, which tensors do not."""
        wanted = "dtype" if dtype is None else brief(dtype)
        raise OperandError(
            f"view: the bytes of {self.label} are not read as another dtype: x.astype({wanted}) is a tree of its "
            f"values in one, x.get().view({wanted}) NumPy's view of a copy, and x[...] a tensor's view of its own dtype"
        )

    # Python's operators

    __add__, __radd__ = binary("add"), reflected("add")
    __sub__, __rsub__ = binary("sub"), reflected("sub")
    __mul__, __rmul__ = binary("mul"), reflected("mul")
    __truediv__, __rtruediv__ = binary("div"), reflected("div")
    __floordiv__, __rfloordiv__ = binary("floor_divide"), reflected("floor_divide")
    __mod__, __rmod__ = binary("mod"), reflected("mod")
    _power, __rpow__ = binary("pow", depth=2), reflected("pow")
    __matmul__, __rmatmul__ = binary("matmul"), reflected("matmul")
    __and__, __rand__ = binary("bitwise_and"), reflected("bitwise_and")
    __or__, __ror__ = binary("bitwise_or"), reflected("bitwise_or")
    __xor__, __rxor__ = binary("bitwise_xor"), reflected("bitwise_xor")
    __lshift__, __rlshift__ = binary("left_shift"), reflected("left_shift")
    __rshift__, __rrshift__ = binary("right_shift"), reflected("right_shift")
    __lt__, __le__, __gt__, __ge__ = binary("lt"), binary("le"), binary("gt"), binary("ge")
    __eq__, __ne__ = binary("eq"), binary("ne")  # type: ignore[assignment]
    __neg__, __abs__ = unary("neg"), unary("abs")
    __pos__, __invert__ = unary("positive"), unary("invert")

    def __pow__(self, other: Any) -> Variable:
        if other.__class__ in WEAK:  # which may make a product of it
            # As in NumPy: the square of a bool is np.square's int8, where np.power's is an int64.
            is_bool = getattr(self.type, "dtype", None) == np.bool_
            return f.square(self) if is_bool and other.__class__ is int and other == 2 else f.pow(self, other)
        return self._power(other)

    def __divmod__(self, other: object) -> tuple[Variable, Variable]:
        return f.divmod(self, other)

    def __rdivmod__(self, other: object) -> tuple[Variable, Variable]:
        return f.divmod(other, self)

    # NumPy's array methods: the functions of the same names

    all, any = by_numpy(np.all), by_numpy(np.any)
    argmax, argmin = by_numpy(np.argmax), by_numpy(np.argmin)
    argpartition, argsort = by_numpy(np.argpartition), by_numpy(np.argsort)
    conj, conjugate = by_numpy(np.conjugate), by_numpy(np.conjugate)
    copy = by_numpy(np.copy)
    cumprod, cumsum = by_numpy(np.cumprod), by_numpy(np.cumsum)
    diagonal, trace = by_numpy(np.diagonal), by_numpy(np.trace)
    dot = by_numpy(np.dot)
    max, min = by_numpy(np.max), by_numpy(np.min)
    mean, prod, sum = by_numpy(np.mean), by_numpy(np.prod), by_numpy(np.sum)
    ravel, squeeze, swapaxes = by_numpy(np.ravel), by_numpy(np.squeeze), by_numpy(np.swapaxes)
    repeat, round = by_numpy(np.repeat), by_numpy(np.round)
    searchsorted, take = by_numpy(np.searchsorted), by_numpy(np.take)
    std, var = by_numpy(np.std), by_numpy(np.var)

    def clip(self, min: Any = None, max: Any = None, out: Any = None, **options: Any) -> Any:
        """``np.clip`` of this operand."""
        return np.clip(self, min, max, out=out, **options)

    # Derivatives

    def generate_add_delta(self, adjoints: dict[Variable, Any], delta: object) -> None:
        """Add one contribution to this operand's adjoint (Nervana graph, "Computing Derivatives").

        A delta is summed over the axes along which this operand was broadcast, and cast to
        its dtype if that is floating. A delta of `NullType` makes the adjoint null; one of
        `DisconnectedType` adds nothing.

        Raises
        ------
        GradientError
            If the delta's shape is neither the operand's nor one that it broadcasts to,
            or its dtype is not floating.
        """
        adjoints[self] = sum_of_deltas(adjoints.get(self), contribution_to(self, delta))

    # Metadiff's methods of nodes

    is_input_dependent, is_differentiable = metadiff("is_input_dependent"), metadiff("is_differentiable")
    get_grad_level, get_parents = metadiff("get_grad_level"), metadiff("get_parents")
    get_arguments, get_ancestors = metadiff("get_arguments"), metadiff("get_ancestors")
    get_parent_grad, generate_gradients = metadiff("get_parent_grad"), metadiff("generate_gradients")
    send_grad_message = metadiff("send_grad_message")
    equals, copy_to = metadiff("equals"), metadiff("copy_to")

    def get_data_type(self) -> Any:
        """The value's dtype, or its type if it is no array."""
        return self.dtype if isinstance(self.type, TensorType) else self.type

    def get_shape(self) -> Any:
        """The value's shape."""
        return self.shape

    # Values

    def __bool__(self) -> bool:
        if is_neon(self.backend):  # neon's programs ask whether they have a tree
            return True
        raise TypeError(
            f"{self.label} is a lazy expression without a truth value; "
            "compare operands by `is`, or ask for the value: bool(x.asnumpyarray())"
        )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError(f"the value of {self.label} cannot be had as a NumPy array without a copy")
        array = self.asnumpyarray()
        return array if dtype is None else array.astype(dtype, copy=False)

    def execute(self) -> Any:
        """Run the tree: an assignment returns its target, any other tree a new tensor.

        Raises
        ------
        OperandError
            If it is no tree.
        BackendError
            If no operand has a backend.
        """
        return self._home().execute(self)

    def astensor(self) -> Any:
        """The value as a new tensor."""
        return self._home().evaluate([self])[0]

    def asnumpyarray(self) -> np.ndarray:
        """The value as a new NumPy array."""
        raise NotImplementedError

    def to_numpy(self) -> np.ndarray:
        """The value as a new NumPy array, by the name that Matplotlib and pandas use."""
        return self.asnumpyarray()

    def get(self) -> np.ndarray:
        """The value as a new NumPy array, as `Tensor.get`."""
        return self.asnumpyarray()

    def _home(self) -> Any:
        backend = self.spec.backend
        if backend is None:
            raise BackendError(f"{describe(self)}: no operand lives on a backend; make one a tensor with be.array")
        return backend

    def item(self, *index: Any) -> Any:
        """The only element, or that at a flat index or at one for each axis, as a Python number."""
        if index:
            return (self.at[index] if len(index) > 1 else f.ravel(self).at[index[0]]).item()
        shape = self.type.shape
        if None in shape or math.prod(shape) != 1:
            raise ShapeError(f"{self.label} of shape {shape} has {self.size} elements, not one")
        return self.asnumpyarray().item()

    def tolist(self) -> Any:
        """The value as nested lists of Python numbers; a number for a 0-dimensional operand."""
        return self.asnumpyarray().tolist()

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else str(self)

    def __float__(self) -> float:
        return float(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __round__(self, digits: int | None = None) -> Any:
        return round(self.item(), digits)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        tree = numpy_protocol.call_ufunc(ufunc, method, inputs, kwargs)
        others = (x for x in inputs if hasattr(type(x), "__array_ufunc__"))
        if tree is NotImplemented and all(isinstance(x, _NUMPYS_AND_OURS) for x in others):
            raise numpy_protocol.no_equal(ufunc if method == "__call__" else getattr(ufunc, method))
        return tree

    def __array_function__(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tree = numpy_protocol.call_function(func, args, kwargs)
        if tree is NotImplemented and all(issubclass(kind, _NUMPYS_AND_OURS) for kind in types):
            raise numpy_protocol.no_equal(func, self.backend)
        return tree


#: The classes of arguments that no third library's protocol could handle.
_NUMPYS_AND_OURS = (np.ndarray, np.generic, Variable)


refuse_attributes(Variable)


class Constant(Variable):
    """A variable whose value is part of the tree.

    An array is copied, so a later change to it does not reach the tree.

    Parameters
    ----------
    type : Type
    value : object
        It is converted by `Type.filter`, or a TypeError says why it cannot be.
    name : str, optional
        Its name in printed trees.
    """

    __slots__ = ("name", "origin", "spec", "value")

    def __init__(self, type: Any, value: Any, name: str | None = None) -> None:
        self.name = check_name(name)
        self.origin = None
        self.spec = Spec(type)
        self.value = frozen(type.filter(value))

    @classmethod
    def weak(cls, number: Any) -> Constant:
        """A Python number as a variable of weak dtype."""
        constant = cls.__new__(cls)
        constant.name = constant.origin = None
        constant.value, constant.spec = number, WEAK_SPECS[number.__class__]
        return constant

    @property
    def is_weak(self) -> bool:
        """Whether the value is a Python number."""
        return self.spec is WEAK_SPECS.get(type(self.value))

    @property
    def label(self) -> str:
        if self.name:
            return self.name
        shape = getattr(self.type, "shape", ())
        return str(self.value) if shape == () else f"constant{shape}"

    def asnumpyarray(self) -> np.ndarray:
        return np.array(self.value)

    def __reduce__(self) -> tuple[Any, ...]:
        return (constant, (self.value, self.name)) if self.is_weak else (Constant, (self.type, self.value, self.name))

    def __str__(self) -> str:
        return self.label

    def __repr__(self) -> str:
        return f"Constant({self.value!r})"


def constant(value: object, name: str | None = None) -> Constant:
    """A constant of a value's own type, which for a Python number is weak.

    Raises
    ------
    OperandError
        If the value is neither a number nor a NumPy array or scalar.

    Examples
    --------
    >>> constant(2).type, constant(np.float32(2)).type
    (TensorType(int64, ()), TensorType(float32, ()))
    """
    if type(value) in NUMBERS:
        found = Constant.weak(value)
        found.name = name
        return found
    if not isinstance(value, np.ndarray | np.generic):
        raise OperandError(f"constant: a number or a NumPy array is wanted, not {class_of(value)} {brief(value)}")
    return Constant(TensorType(value.dtype, value.shape), value, name)


class Input(Variable):
    """A leaf without memory: an argument of a function.

    `Type.make_variable` makes one. As an output of an `Apply` it represents the node
    that computes it.

    Parameters
    ----------
    type : Type
        A size of None in a `TensorType` is known only at the call.
    name : str, optional
    """

    __slots__ = ("__weakref__", "index", "name", "origin", "owner", "spec")

    def __init__(self, type: Any, name: str | None = None) -> None:
        self.name = check_name(name)
        self.origin = self.owner = self.index = None
        self.spec = Spec(type)

    @property
    def label(self) -> str:
        return self.name or f"input-{id(self):#x}"

    def asnumpyarray(self) -> np.ndarray:
        raise OperandError(f"{self.label} is an input: it has no value outside a function's call")

    __iter__ = None  # as in `Elements`

    def __getitem__(self, index: Any) -> Variable:
        return self.at[index]

    def __reduce__(self) -> tuple[Any, ...]:
        return Input, (self.type, self.name)

    def __str__(self) -> str:
        return self.label

    def __repr__(self) -> str:
        return f"Input({self.type!r}, {self.name!r})"


Type.Variable = Input


#: Tensors, trees and inputs, numbers, and arrays.
Operand = Variable | complex | np.generic | np.ndarray


def as_operand(value: Any, what: object) -> Any:
    """Convert a value to an operand: a variable or a Python number.

    NumPy scalars and arrays become constants of their own dtype.

    Raises
    ------
    OperandError, DTypeError
        If the value is of another type; `what` names the op.
    """
    if isinstance(value, Constant) and value.is_weak:
        return value.value
    if isinstance(value, Variable):
        if getattr(getattr(value, "op", None), "name", None) == "assign":
            raise OperandError(
                f"{what}: an assignment is no operand, and {describe(value)} is one; execute() it, and use its target"
            )
        return value if type(value) is not Input or value.owner is None else value.owner.outputs[value.index]
    if type(value) in NUMBERS:
        return value
    if hasattr(type(value), "__optree__"):  # an array of `optree.xp`
        return value.__optree__()
    if is_foreign(value):
        value = array_of(value, str(what))
    if isinstance(value, np.ndarray | np.generic):
        check_unmasked(value, what)
        try:
            return constant(value)
        except DTypeError as error:
            raise DTypeError(f"{what}: {error}") from None
    raise OperandError(
        f"{what}: an operand is a tensor, an op-tree, a number or a NumPy array, "
        f"not {class_of(value)} {brief(value)}{remedy_for(value)}"
    )


def is_neon(backend: Any) -> bool:
    """Whether a backend is in neon's mode: its operands keep at least two dimensions."""
    return backend is not None and backend.is_neon


def any_neon(operands: Iterable[Any]) -> bool:
    """Whether one of the operands is on a backend in neon's mode."""
    return any(is_neon(getattr(x, "backend", None)) for x in operands)


def as_columns(op: Any, operands: list[Any]) -> list[Any]:
    """The operands; on a backend in neon's mode, 1-D constants are reshaped to columns, for ops that take them."""
    backends = [getattr(x, "backend", None) for x in operands]
    backend = next(filter(is_neon, backends), None)
    if backend is None or not backend.takes_columns(op):
        return operands
    return [
        constant(x.value.reshape(-1, 1), x.name) if isinstance(x, Constant) and x.ndim == 1 else x for x in operands
    ]


def as_variable(operand: object) -> Variable:
    """The operand, with a Python number as a weak constant."""
    return operand if isinstance(operand, Variable) else constant(operand)


def variable_of(value: object, what: str) -> Variable:
    """A value as a variable: `as_operand`, with a Python number as a weak constant."""
    return as_variable(as_operand(value, what))


def spec_of(operand: object) -> Any:
    """The operand's spec: a `Spec`, or the class of a Python number."""
    return operand.spec if isinstance(operand, Variable) else type(operand)


def number_of(x: object) -> Any:
    """The number of a weak constant; None for other operands."""
    return x.value if isinstance(x, Constant) and x.is_weak else None


def is_complex_operand(x: object) -> bool:
    """Whether a value is complex; of another library's object it does not ask."""
    known = isinstance(x.type, TensorType) if isinstance(x, Variable) else isinstance(x, (np.ndarray, np.generic))
    return type(x) is complex or (known and x.dtype.kind == "c")  # type: ignore[attr-defined]


def conjugated(x: Any) -> Any:
    """The complex conjugate of a variable; one that is not complex itself, as a gradient that is disconnected."""
    return f.conjugate(x) if is_complex_operand(x) else x


def for_dtype(x: Any, dtype: np.dtype, what: str) -> Any:
    """An operand to be cast to a dtype: of a complex one for a real dtype the real part, with NumPy's warning."""
    if dtype.kind in "cb" or not is_complex_operand(x) or type(x) is complex:
        return x
    x = variable_of(x, what)
    lost = f"{what}: the imaginary part of {describe(x)} is dropped in {dtype}; z.real says so, and does not warn"
    warn_at(caller_frame(), lost, np.exceptions.ComplexWarning)
    return f.real(x)


def check_real(x: Any, what: str) -> Any:
    """The operand; DTypeError if it is complex, for a function that is of real numbers."""
    if is_complex_operand(x):
        raise DTypeError(
            f"{what}: it does not take complex numbers, and was given {describe(x)}; "
            "z.real, z.imag and be.abs(z) are real"
        )
    return x


def in_dtype(x: Variable, dtype: np.dtype, what: str | None = None) -> Variable:
    """An operand cast to a dtype, itself if it has that dtype; DTypeError if an imaginary part would be lost."""
    if x.dtype == dtype:
        return x
    if dtype.kind not in "cb" and is_complex_operand(x):
        check_real(x, what or OptreeError.called() or f"a value of {dtype}")
    return f.cast(x, dtype)


def check_same_backend(what: object, operands: Any) -> Any:
    """The operands' common backend; None where no operand has one; BackendError if they have several."""
    found = None
    for operand in operands:
        backend = getattr(operand, "backend", None)
        if backend is None or (found is not None and backend is found.backend):
            continue
        if found is not None:
            raise BackendError(
                f"{what}: {describe(found)} is of {found.backend}, {describe(operand)} of {backend}; "
                "copy one over with be.array(x.get())"
            )
        found = operand
    return None if found is None else found.backend


# The lines that make operands


#: The packages of frames so far: op-tree's, and others.
_own: set[Any] = set()


_others: set[Any] = set()


def is_own_package(package: object) -> bool:
    """Whether a package is one of op-tree's, by its name."""
    if package not in _own and package not in _others:
        (_own if str(package).partition(".")[0] in ("optree", "backends") else _others).add(package)
    return package in _own


def caller_origin() -> Origin:
    """The innermost line on the stack outside op-tree; the caller of this function is inside."""
    frame, own, others = sys._getframe(2), _own, _others
    while frame is not None:
        package = frame.f_globals.get("__package__")
        if package not in own and (package in others or not is_own_package(package)):
            return frame.f_code, frame.f_lasti, clock[0]
        frame = frame.f_back  # type: ignore[assignment]
    frame = sys._getframe(2)
    return frame.f_code, frame.f_lasti, clock[0]


def caller_frame() -> FrameType:
    """The frame of the same line, for a warning."""
    frame = innermost = sys._getframe(1)
    while is_own(frame) and frame.f_back is not None:
        frame = frame.f_back
    return innermost if is_own(frame) else frame


def is_own(frame: FrameType) -> bool:
    """Whether a frame runs code of op-tree's."""
    return is_own_package(frame.f_globals.get("__package__"))


def is_of(package: str, frame: FrameType) -> bool:
    """Whether a frame runs code of a package or of one within it."""
    return str(frame.f_globals.get("__name__")).partition(".")[0] == package
