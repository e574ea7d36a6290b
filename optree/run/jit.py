"""jit: a Python function of arrays, compiled as an `optree.function` for each kind of its arguments."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import update_wrapper
from types import MethodType
from typing import Any

import numpy as np

from optree.arrays import is_array, is_foreign
from optree.cache import Cache
from optree.errors import DTypeError, OperandError, describe
from optree.run.function import Function, Mode, imported
from optree.tree.lazy import LazyValue
from optree.tree.node import post_order
from optree.tree.substitution import inputs_of
from optree.tree.tensor import Tensor
from optree.tree.types import Spec, TensorType
from optree.tree.variable import Input, Variable, variable_of

#: Maximum functions that one Python function is compiled as.
FUNCTIONS = 256

#: The number of functions at which a warning names the reason.
MANY = 64

#: Classes of arguments whose values are part of the program.
PLAIN = (bool, int, float, str, type(None))


def jit(
    function: Callable[..., Any] | None = None,
    *,
    static_argnames: str | Iterable[str] = (),
    static_shapes: bool = False,
    mode: str | Mode | None = None,
) -> Any:
    """A decorator: a Python function of arrays, run as one program.

    At its first call for each set of dtypes and ranks of its array arguments, and of which of their sizes are 1, the
    Python function is called once, on inputs of open sizes, and `optree.function` compiles the trees that it returns.
    Other calls run that. So it must not depend on the arrays' values or sizes, and what it does beside returning trees
    happens once: prints, appended lists, writes into tensors. Tensors that it reads but that are no arguments are read
    anew in each call. A function that asks for sizes (`x.shape[0]` in `range` or `reshape`) takes `static_shapes`.

    Parameters
    ----------
    function : callable
        Its array arguments are tensors, arrays of `optree.xp`, NumPy's and other libraries', and NumPy's scalars, or
        lists, tuples and dicts of them. Python numbers, strings and None are part of the program:
        each value compiles another; ``np.float32(rate)`` is an argument. It
        returns trees, arrays or numbers, or lists, tuples and dicts of them, or None.
    static_argnames : str or iterable of str
        Parameters of other values, which are part of the program; they are hashable.
    static_shapes : bool, optional
        Whether shapes are part of the program: each set of shapes compiles another, in which `x.shape` has numbers.
    mode : str or Mode, optional
        As of `optree.function`.

    Returns
    -------
    Jitted
        Its `functions` are those that there are so far. It returns tensors where the
        Python function returns trees. On trees with inputs it is the Python function
        itself, so that one may call another, and derivatives go through.

    Raises
    ------
    OperandError
        If there is no parameter of a static name, or an argument is of no such kind.

    Examples
    --------
    >>> @jit
    ... def scaled(x, axis=-1):
    ...     return x / be.max(x, axis=axis)
    >>> scaled(be.array([1.0, 4.0])).get(), scaled(be.array([1.0, 2.0, 8.0])).get(), len(scaled.functions)
    (array([0.25, 1.  ], dtype=float32), array([0.125, 0.25 , 1.   ], dtype=float32), 1)
    """
    if function is None:
        return lambda decorated: Jitted(decorated, static_argnames, static_shapes, mode)
    return Jitted(function, static_argnames, static_shapes, mode)


class Jitted:
    """A function of `jit`, compiled for each kind of its arguments."""

    def __init__(
        self,
        function: Callable[..., Any],
        static_argnames: str | Iterable[str],
        static_shapes: bool,
        mode: str | Mode | None,
    ) -> None:
        if not callable(function):
            raise OperandError(f"jit: a function is wanted, not {describe(function)}; parameters are given by name")
        update_wrapper(self, function)
        self._function, self._static_shapes, self._mode = function, static_shapes, mode
        self._name = getattr(function, "__name__", type(function).__name__)
        self._signature = inspect.signature(function)
        self._static = {static_argnames} if isinstance(static_argnames, str) else set(static_argnames)
        unknown = sorted(map(str, self._static - self._signature.parameters.keys()))
        if unknown:
            known = ", ".join(self._signature.parameters)
            raise OperandError(f"jit of {self._name}: it has no parameter {unknown[0]!r} to be static; it has {known}")
        self._known: Cache = Cache("functions of jit", FUNCTIONS)
        #: The same by the specs of positional arguments, where all are tensors.
        self._known_of_tensors: Cache = Cache("functions of jit by tensors", FUNCTIONS)

    @property
    def functions(self) -> list[Function]:
        """The compiled functions in the cache, oldest first."""
        return [function for function, _ in self._known.values()]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program of this kind of arguments.

        Raises
        ------
        TypeError
            If they are not what the function takes.
        OperandError
            If one of them is no array, number, string or None, and not static.
        """
        specs: Any = None
        if not kwargs and not self._static:
            given = [x.tensor if isinstance(x, LazyValue) else x for x in args]
            specs = tuple([x.spec if isinstance(x, Tensor) else None for x in given])
            found = self._known_of_tensors.get(specs)
            if found is not None:
                function, rebuilt = found
                return rebuilt(function(*given))
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arrays: list[tuple[str, Any]] = []
        layout = tuple([(name, self._key_of(name, value, arrays)) for name, value in bound.arguments.items()])
        if any(_is_symbolic(x) for _, x in arrays):
            return self._function(*args, **kwargs)
        key = layout, *[self._kind_of(x) for _, x in arrays]
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._compiled(bound, arrays)
            if len(self._known) == MANY:
                warnings.warn(
                    f"{self._name}: {MANY} sets of arguments are compiled now, each of its own; a number that changes "
                    "from call to call is an argument as np.float32(x), and part of the program as a Python number",
                    stacklevel=2,
                )
        if specs is not None and None not in specs:
            self._known_of_tensors[specs] = found
        function, rebuilt = found
        return rebuilt(function(*[x for _, x in arrays]))

    def __get__(self, instance: object, owner: object = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __repr__(self) -> str:
        return f"jit({self._name})"

    def _key_of(self, name: str, value: object, arrays: list[tuple[str, Any]]) -> Any:
        """The key of an argument, whose arrays are appended to `arrays`; OperandError if it is of another kind."""
        if name in self._static:
            try:
                hash(value)
            except TypeError:
                raise OperandError(
                    f"{self._name}: the static argument {name} is to be hashable, and {describe(value)} is not"
                ) from None
            return type(value), value

        def leaf(x: object) -> Any:
            if is_argument(x):
                own = x.tensor if isinstance(x, LazyValue) else imported(x, f"{self._name}: the argument {name}")
                arrays.append((name if x is value else f"{name}[{len(arrays)}]", own))
                return ARRAY
            if type(x) in PLAIN:
                return type(x), repr(x)
            raise OperandError(
                f"{self._name}: the argument {name} {'is' if x is value else 'holds'} {describe(x)}, which is no "
                f"array, number, string or None; static_argnames=({name!r},) makes it part of the program"
            )

        return _frozen(mapped(leaf, value))

    def _kind_of(self, x: Any) -> Any:
        """The kind of an array that a program is compiled for: a size of 1 is part of it, because it may broadcast."""
        home = x.spec.home if isinstance(x, Variable) else None
        return x.dtype, tuple(x.shape) if self._static_shapes else tuple([size == 1 for size in x.shape]), home

    def _input_for(self, name: str, x: Any) -> Input:
        """The input that stands for an array while the function is called."""
        try:
            kind = TensorType(x.dtype, x.shape)
        except DTypeError as error:
            raise DTypeError(f"{self._name}: the argument {name}: {error}") from None
        found = Input(kind if self._static_shapes else kind.any_size, name)
        if isinstance(x, Variable):
            found.spec = Spec(found.type, x.backend)
        return found

    def _compiled(self, bound: inspect.BoundArguments, arrays: Sequence[tuple[str, Any]]) -> Any:
        """The function that runs for arguments of these kinds, and what makes the returned value of its outputs."""
        inputs = [self._input_for(name, x) for name, x in arrays]
        rest = iter(inputs)
        traced = inspect.BoundArguments(self._signature, bound.arguments.copy())  # type: ignore[arg-type]
        for name, value in bound.arguments.items():
            if name not in self._static:
                traced.arguments[name] = mapped(lambda x: next(rest) if is_argument(x) else x, value)
        outputs: list[Any] = []

        def leaf(x: object) -> Any:
            if x is not None:
                outputs.append(self._output(x))
            return None if x is None else ARRAY

        try:
            returned = mapped(leaf, self._function(*traced.args, **traced.kwargs))
        except Exception as error:
            if not self._static_shapes:
                error.add_note(
                    f"{self._name} is traced by jit with sizes that are open: x.shape has None for them; "
                    "jit(static_shapes=True) compiles it for each set of shapes, which are numbers then"
                )
            raise
        function = Function(inputs, outputs, None, None, self._mode, self._name, "ignore", False, None)

        def rebuilt(values: Sequence[Any]) -> Any:
            rest = iter(values)
            return mapped(lambda x: x if x is None else next(rest), returned)

        return function, rebuilt

    def _output(self, x: object) -> Variable:
        try:
            return variable_of(x, self._name)
        except OperandError as error:
            raise OperandError(
                f"{self._name}: it returns {describe(x)}, and jit takes trees, arrays and numbers, lists, tuples and "
                "dicts of them, and None"
            ) from error


class _Mark:
    """A mark of where an array is in a nested value."""


ARRAY = _Mark()


def is_argument(x: object) -> bool:
    """Whether an argument is an array of any kind, and no part of the program."""
    return isinstance(x, Variable | np.generic) or is_array(x) or is_foreign(x)


def _is_symbolic(x: object) -> bool:
    """Whether an argument has no value of its own: an input, or a tree with one."""
    if isinstance(x, Tensor) or not isinstance(x, Variable):
        return False
    return any(isinstance(entry, Input) for entry in post_order([x], inputs_of))


def mapped(leaf: Callable[[Any], Any], value: object) -> Any:
    """A value with a function applied to all that is in its lists, tuples and dicts."""
    if isinstance(value, Variable) or not isinstance(value, list | tuple | dict):
        return leaf(value)
    if isinstance(value, dict):
        return {key: mapped(leaf, each) for key, each in value.items()}
    parts = [mapped(leaf, each) for each in value]
    return parts if isinstance(value, list) else type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)


def _frozen(value: object) -> Any:
    """A nested value as one that can be hashed."""
    if isinstance(value, dict):
        return dict, *[(key, _frozen(each)) for key, each in value.items()]
    return (type(value), *map(_frozen, value)) if isinstance(value, list | tuple) else value
