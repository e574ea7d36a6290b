"""`function`: a compiled program, called repeatedly with other values and sizes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from typing import Any
from weakref import ref

import numpy as np

from optree.arrays import is_foreign, is_value, on_host
from optree.cache import Cache
from optree.compile import reference
from optree.compile.aliasing import Region
from optree.compile.pipeline import Options, lower, stage_text
from optree.compile.program import Plan, Steps, check_sizes, leaf_shape
from optree.errors import BackendError, DTypeError, OperandError, OptreeError, ReentryError, clock, describe, line_of
from optree.locks import Locked
from optree.records import NamedTuple
from optree.run import debug
from optree.run.memory import MemoryReport, memory_of
from optree.run.profile import Profile, TimedSteps
from optree.run.updates import assignments, checked_updates, pairs_of
from optree.tree.lazy import LazyValue, lazy_values, settle
from optree.tree.node import OpTreeNode, flat_list, from_flat_list, uncollected
from optree.tree.printing import as_html, listing
from optree.tree.substitution import replace
from optree.tree.tensor import Tensor
from optree.tree.types import TensorType
from optree.tree.variable import Input, Variable, caller_origin, check_same_backend, variable_of

#: Modes: programs run on the backend; by `perform`, without rewrites; or by `perform` with all checks.
KINDS = ("default", "reference", "debug")


class ModeError(OptreeError, ValueError):
    """An unknown mode."""


class _Mode(NamedTuple):
    kind: str = "default"
    without: tuple[str, ...] = ()


class Mode(_Mode):
    """The mode in which a function runs.

    Attributes
    ----------
    kind : {'default', 'reference', 'debug'}
    without : tuple of str
        The names of rewrites to leave out (`optree.compile.pipeline.PASSES`).
    """

    __slots__ = ()

    def __new__(cls, kind: str = "default", without: tuple[str, ...] = ()) -> Mode:
        if kind not in KINDS:
            raise ModeError(f"there is no mode {kind!r}; there are {', '.join(KINDS)}")
        return super().__new__(cls, kind, without)


#: Maximum entries of a function's caches of checked argument sizes and specs.
SIZES = 1024

#: Weak references to the backends, oldest first: functions without tensors run on the last.
_backends: list[Callable[[], Any]] = []


def last_backend() -> Any:
    """The current backend, on which functions without tensors run: the last one made that is alive, or None."""
    return next((found for made in reversed(_backends) if (found := made()) is not None), None)


def imported(x: object, what: str) -> Any:
    """An argument; another library's array as the current backend reads it (`Backend.imported`)."""
    if not is_foreign(x):
        return x
    backend = last_backend()
    return on_host(x, what) if backend is None else backend.imported(x, what)


def backends() -> list[Any]:
    """The backends that are alive, the oldest first."""
    return [found for made in _backends if (found := made()) is not None]


def use_backend(backend: object) -> None:
    """Make a backend the current one, on which functions without tensors run."""
    _backends[:] = [*(made for made in _backends if made() is not None), ref(backend)]


@contextmanager
def running_on(backend: object) -> Iterator[None]:
    """Make a backend the current one within a block; None changes nothing."""
    before = _backends[:]
    if backend is not None:
        use_backend(backend)
    try:
        yield
    finally:
        _backends[:] = before


def function(
    inputs: Sequence[Variable],
    outputs: object = None,
    updates: object = None,
    givens: object = None,
    mode: str | Mode | None = None,
    name: str | None = None,
    on_unused_input: str = "raise",
    profile: bool = False,
    allow_input_downcast: bool | None = None,
    memory: str | None = None,
) -> Function:
    """A Python function that computes outputs from inputs, and then updates tensors.

    Parameters
    ----------
    inputs : sequence of Input or Tensor
        Its arguments, in order; as keywords they have the variables' names. Of a tensor, dtype and rank alone matter.
    outputs : Variable or list of Variable, optional
        The values it returns: one, a list, or None.
    updates : dict or list of pairs, optional
        From tensors to trees, whose values are written there in order, after everything has been computed.
    givens : dict or list of pairs, optional
        From operands in the trees to their replacements.
    mode : str or Mode, optional
        ``'default'``; ``'reference'``, op by op, without rewrites; or ``'debug'``, which checks every op.
    name : str, optional
        Its name in errors.
    on_unused_input : {'raise', 'warn', 'ignore'}
        The response to an input that no output depends on.
    profile : bool
        Whether its kernels and calls run one by one and are timed (`Function.profile`), in the default mode.
    allow_input_downcast : bool, optional
        Whether arguments are converted where that loses precision: all, none, or (None) Python's floats alone.
    memory : {'report'}, optional
        Print what its plan needs (`Function.memory`) before it first runs for arguments of some sizes.

    Returns
    -------
    Function
        It returns tensors on the backend of the trees' tensors; without tensors, on the current backend; without a
        backend, NumPy arrays. Values of other types are returned unchanged.

    Raises
    ------
    OperandError, ShapeError, DTypeError, BackendError
        If the inputs, outputs, updates and givens are inconsistent.

    Examples
    --------
    >>> x = TensorType("float32", (None,))("x")
    >>> total = be.zeros((), name="total")
    >>> add = function([x], be.sum(x * x), updates={total: total + be.sum(x, keepdims=False)})
    >>> add([1.0, 2.0]).get(), add(x=[3.0]).get(), total.get()
    (array([5.], dtype=float32), array([9.], dtype=float32), array(6., dtype=float32))
    """
    options = mode, name, on_unused_input, profile, allow_input_downcast, memory
    return Function(inputs, outputs, updates, givens, *options)


class Function(Locked):
    """A compiled function, made by `function`.

    Attributes
    ----------
    inputs : list of Variable
    outputs : list of Variable
    updates : list of (Tensor, Variable)
    name : str or None
    program : Program
        The program that runs; its outputs are the outputs, then the updates.
    arguments_of : dict
        From its inputs to the leaves that they are; a tensor's is an Input.
    """

    def __init__(
        self,
        inputs: Sequence[Variable],
        outputs: Any,
        updates: object,
        givens: object,
        mode: Any,
        name: str | None,
        on_unused_input: str,
        profile: bool,
        allow_input_downcast: bool | None,
        memory: str | None = None,
    ) -> None:
        super().__init__()
        if memory not in (None, "report"):
            raise OperandError(f"function: memory is 'report' or None, not {memory!r}")
        options = mode, name, on_unused_input, profile, allow_input_downcast, memory
        self._arguments = (inputs, outputs, updates, givens, *options)
        self._downcast, self._reports = allow_input_downcast, memory is not None
        self.name, self.mode = name, mode if isinstance(mode, Mode) else Mode("default" if mode is None else mode)
        self.inputs = _checked_inputs(inputs)
        is_one = isinstance(outputs, Variable | LazyValue)
        self._returns = "none" if outputs is None else "one" if is_one else "list"
        if not is_one and (is_value(outputs) or is_foreign(outputs) or not isinstance(outputs, Iterable | None)):
            raise OperandError(f"function: the outputs are a variable or a list of them, not {describe(outputs)}")
        given = [] if outputs is None else [outputs] if is_one else list(outputs)
        self.outputs = [variable_of(x, "function: an output") for x in given]
        self.updates = [] if updates is None else checked_updates("function", updates, self.inputs)
        values = [*self.outputs, *(value for _, value in self.updates)]
        self.backend = self._backend(values)
        self.arguments_of = {x: _stand_in(x) for x in self.inputs}
        if givens is not None:
            values = replace(values, dict(pairs_of(givens, "function", "givens")))
        values = replace(values, {x: self.arguments_of[x] for x in self.inputs if isinstance(x, Tensor)})
        self._dtypes, self._wrapped = self._results([x.type for x in values[: len(self.outputs)]])
        targets = [target for target, _ in self.updates]
        written = assignments(list(zip(targets, values[len(self.outputs) :], strict=True)))
        own = Options() if self.backend is None else self.backend.lowering
        self._options = own._replace(fixed=True, rewrites=self.mode.kind == "default", without=self.mode.without)
        shown = self._options._replace(shown=True)
        self.written = lower([*values[: len(self.outputs)], *written], shown, last="program")
        self.program = lower(self.written, shown, first="passes")
        self._check_leaves(on_unused_input)
        self._timed = TimedSteps(self.planned(), self.backend) if profile else None
        self._plan = self._compile() if self._timed is None else self._timed
        value_of = reference.value_of if self.backend is None else self.backend.value_of
        arguments, leaves = list(self.arguments_of.values()), self.program.leaves
        #: The leaves' values, None for an argument's, and the index of each argument among them.
        self._known = [None if isinstance(leaf, Input) else value_of(leaf) for leaf in leaves]
        self.argument_indices = [next((i for i, leaf in enumerate(leaves) if leaf is x), None) for x in arguments]
        self._sizes_seen = Cache("sizes of functions' arguments", SIZES)
        self._arrays_seen = Cache("arrays as functions' arguments", SIZES)
        self._last_kinds: tuple[Any, ...] | None = None
        if not self.inputs:
            self._check_sizes(self._known)
        #: The memory that the updates write: arguments that overlap it are copied first.
        self._region = Region([target.array for target in targets]) if targets and self.inputs else None
        self._targets = list(dict.fromkeys(target.root for target in targets))
        self._clock = clock  # it may still run when the interpreter has cleared its modules
        self._writer = f"{self}, a function made at {line_of(caller_origin())},"

    def _backend(self, roots: Sequence[Any]) -> Any:
        leaves = [x for x in lower(roots, last="program").leaves if isinstance(x, Variable)]
        found = check_same_backend("function", [*self.inputs, *leaves, *(target for target, _ in self.updates)])
        return last_backend() if found is None else found

    def _results(self, types: Sequence[Any]) -> tuple[list[Any], Callable[..., Any]]:
        """The outputs' dtypes, None for values that are returned as they are; and the function that wraps a value."""
        dtypes = [type.dtype if isinstance(type, TensorType) else None for type in types]
        if self.backend is None or None in dtypes:
            return dtypes, partial(_wrapped, self.backend)
        return dtypes, self.backend.tensor_of

    def _check_leaves(self, on_unused_input: str) -> None:
        if on_unused_input not in ("raise", "warn", "ignore"):
            raise OperandError(f"on_unused_input is 'raise', 'warn' or 'ignore', not {on_unused_input!r}")
        arguments = set(self.arguments_of.values())
        for leaf in self.program.leaves:
            if isinstance(leaf, Input) and leaf not in arguments:
                raise OperandError(f"{self}: the outputs need {describe(leaf)}, which is not among the inputs")
        for x, argument in self.arguments_of.items():
            if argument not in {leaf for leaf in self.program.leaves if isinstance(leaf, Input)}:
                message = f"{self}: nothing needs the input {describe(x)}; on_unused_input='ignore' allows that"
                if on_unused_input == "raise":
                    raise OperandError(message)
                if on_unused_input == "warn":
                    warnings.warn(message, stacklevel=4)

    @uncollected
    def _compile(self) -> Any:
        runs_here = self.mode.kind == "default"
        if not runs_here or self.backend is None:
            run = self._debug if self.mode.kind == "debug" else partial(reference.evaluate, self.program)
            if self.backend is not None:
                return self.backend.on_host(self.program, run)
            return Plan(lambda values, roots: run(values))
        return self.backend.compile(self.program, reuse=True)

    def _debug(self, values: list[Any]) -> list[Any]:
        before = deepcopy(values)
        found = debug.evaluate(self.program, values)
        debug.check_rewrites(self.written, before, self.mode.without)
        return found

    @property
    def profile(self) -> Profile | None:
        """The time, flops and bytes of each kernel and call, if they are timed; None before the first call."""
        return self._timed.profile() if self._timed is not None and self._timed.times else None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the outputs, and then write the updates.

        Raises
        ------
        OperandError
            If an argument is missing, given twice, or not of its input's type.
        ShapeError
            If the arguments' sizes are inconsistent; nothing has been written then.
        ReentryError
            If an op of it calls it while it runs.
        """
        values = self._known
        if self.inputs or args or kwargs:
            values = self._values(args, kwargs)
        if self.lock._is_owned():
            raise ReentryError(
                f"{self} is called by an op of its own, while a call is using its memory; a second function of the "
                "same outputs has memory of its own"
            )
        if lazy_values and self._targets:
            settle(self._targets)
        if self._region is not None:
            self._copy_aliased(values)
        try:
            with self.lock:  # not acquire and try: an interrupt between the two would leave it locked
                found = self._plan.run(values, None)
        except BaseException:
            if self.lock._is_owned():  # in Python 3.14, an interrupt comes between __enter__ and the block, too
                self.lock.release()
            raise
        if self._targets:  # as `Tensor.advance`, without a call for each
            clock, writer = self._clock, self._writer
            clock[0] = now = clock[0] + 1
            for target in self._targets:
                target.written = 0 if target.written < 0 else now
                target.writer = writer
        if not self._dtypes:
            return None if self._returns == "none" else []
        origin, wrapped = caller_origin(), self._wrapped
        results = [wrapped(value, dtype, origin) for dtype, value in zip(self._dtypes, found, strict=False)]
        return results[0] if self._returns == "one" else results

    def _copy_aliased(self, values: list[Any]) -> None:
        """Copy the arguments aliased with an update's target: all are read before any is written."""
        touches = self._region.touches  # type: ignore[union-attr]
        for i in self.argument_indices:
            if i is not None and touches(values[i]):
                with self.backend.active():
                    values[i] = values[i].copy()

    def _values(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The leaves' values for these arguments, checked unless they are arrays of types and sizes seen before."""
        values = self._known.copy()
        array = np.ndarray
        kinds = tuple(
            [
                x.spec if x.__class__ is Tensor else (x.dtype, x.shape) if x.__class__ is array else _spec_of(x)
                for x in args
            ]
        )
        # Equal tuples of the same objects: a comparison takes a fifth of the time of a hash.
        if not kwargs and (kinds == self._last_kinds or kinds in self._arrays_seen):
            self._last_kinds = kinds
            for i, x in zip(self.argument_indices, args, strict=True):
                if i is not None:
                    values[i] = x.array if isinstance(x, Tensor) else x
            return values
        given = self._in_order(args, kwargs) if kwargs or len(args) != len(self.inputs) else args
        arrays = [
            self._filtered(number, x, value) for number, (x, value) in enumerate(zip(self.inputs, given, strict=True))
        ]
        for i, array in zip(self.argument_indices, arrays, strict=True):
            if i is not None:
                values[i] = array
        self._check_sizes(values)
        if not kwargs and all(map(_is_unchanged, self.inputs, args, arrays)):
            self._arrays_seen[kinds] = None
        return values

    def memory(self, *args: object, **kwargs: object) -> MemoryReport:
        """The memory that a call with these arguments needs; nothing runs.

        Raises
        ------
        OperandError
            If an argument is missing, given twice, or not of its input's type; or if no backend runs the function.
        """
        return self._memory(self.leaves_of(*args, **kwargs))

    def leaves_of(self, *args: object, **kwargs: object) -> list[Any]:
        """The values of its program's leaves for these arguments."""
        return self._values(args, kwargs) if self.inputs or args or kwargs else self._known

    def _memory(self, values: Sequence[Any]) -> MemoryReport:
        plan = self.planned()
        return memory_of(plan, [*values, *plan.constants])

    def planned(self) -> Steps:
        """The steps that run it, for reports.

        Raises
        ------
        OperandError
            If no backend runs the function, for its mode or because there is none.
        """
        if self.backend is None or self.mode.kind != "default":
            raise OperandError(f"{self}: its steps are those of a backend, in the default mode; it has none")
        found: Steps = self.backend.planned(self.program)
        return found

    def _in_order(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The arguments in the inputs' order."""
        if len(args) > len(self.inputs):
            raise OperandError(f"{self} takes {len(self.inputs)} arguments, not {len(args)}")
        given: dict[Variable, Any] = dict(zip(self.inputs, args, strict=False))
        for name, value in kwargs.items():
            named = [x for x in self.inputs if getattr(x, "name", None) == name]
            if len(named) != 1:
                known = ", ".join(x.label for x in self.inputs)
                raise OperandError(f"{self} has {len(named) or 'no'} inputs of the name {name!r}; it has {known}")
            if named[0] in given:
                raise OperandError(f"{self}: the argument {name} is given twice")
            given[named[0]] = value
        missing = [x.label for x in self.inputs if x not in given]
        if missing:
            raise OperandError(f"{self}: missing {', '.join(missing)}")
        return [given[x] for x in self.inputs]

    def _filtered(self, number: int, x: Variable, value: object) -> Any:
        wanted = x.type.any_size if isinstance(x, Tensor) else x.type
        if isinstance(value, LazyValue):
            value = value.tensor
        elif isinstance(value, OpTreeNode):
            value = value.astensor()
        elif self.backend is not None and isinstance(wanted, TensorType) and is_foreign(value):
            value = self.backend.imported(value, f"{self}: argument {number} ({x.label})")
        if isinstance(value, Tensor) and self.backend is not None and value.backend is not self.backend:
            raise BackendError(f"{self}: argument {number} ({x.label}) is of {value.backend}, not {self.backend}")
        try:
            value = wanted.filter(value) if self._downcast is None else wanted.filter(value, False, self._downcast)
        except (TypeError, ValueError) as error:
            kind = type(error) if isinstance(error, OptreeError) else OperandError
            is_loss = kind is DTypeError and not self._downcast and _converts(wanted, value)
            remedy = ", and a function made with allow_input_downcast=True does" if is_loss else ""
            raise kind(f"{self}: argument {number} ({x.label}) is refused by {wanted!r}: {error}{remedy}") from error
        if isinstance(value, Tensor):
            return value.array if self.backend is not None else value.get()
        return self.backend.borrowed(value) if self.backend is not None and isinstance(value, np.ndarray) else value

    def _check_sizes(self, values: Sequence[Any]) -> None:
        given = tuple([None if i is None else leaf_shape(values[i]) for i in self.argument_indices])
        if given in self._sizes_seen:
            return
        shapes = [leaf_shape(value) for value in values[: len(self.written.leaves)]]
        check_sizes(self.written, shapes)  # rewrites drop ops whose only effect is a check
        if self._reports:
            print(f"{self}: {self._memory(values)}")
        self._sizes_seen[given] = None

    def __str__(self) -> str:
        return self.name or f"function({', '.join(x.label for x in self.inputs)})"

    __repr__ = __str__
    _repr_html_ = as_html

    def __reduce__(self) -> tuple[Any, ...]:
        # All trees in one list: what they share, such as a random draw, stays shared.
        _, _, _, givens, *options = self._arguments
        pairs = pairs_of(givens, "function", "givens") if givens is not None else []
        trees = flat_list([*self.outputs, *(value for _, value in self.updates), *(value for _, value in pairs)])
        targets, replaced = [target for target, _ in self.updates], [x for x, _ in pairs]
        return _unpickled, (self._returns, self.inputs, len(self.outputs), targets, replaced, trees, options)


def _unpickled(
    returns: str,
    inputs: Sequence[Any],
    count: int,
    targets: Sequence[Tensor],
    replaced: Sequence[Any],
    trees: Sequence[Any],
    options: Sequence[Any],
) -> Function:
    """A pickled function, compiled again."""
    found = from_flat_list(trees)
    outputs, values, givens = found[:count], found[count : count + len(targets)], found[count + len(targets) :]
    returned = None if returns == "none" else outputs[0] if returns == "one" else outputs
    updates = [*zip(targets, values, strict=True)] or None
    return Function(inputs, returned, updates, [*zip(replaced, givens, strict=True)] or None, *options)


def debugprint(what: object, file: Any = None, stage: str | None = None) -> Any:
    """Print the program, one line for each step: number, op, inputs, type, and the line that built it.

    Parameters
    ----------
    what : Function, or Variable
    file : file, or 'str'
        The standard output by default. With ``'str'`` the text is returned, not printed.
    stage : str, optional
        Print the result of one stage of the pipeline instead: ``'program'``, ``'passes'``, ``'copies'``, ``'order'``,
        ``'parts'``, ``'fusion'``, ``'source'`` or ``'plan'`` (`optree.compile.pipeline`).

    Raises
    ------
    OperandError
        If there is no such stage.
    """
    text = _program_text(what) if stage is None else _stage_text(stage, what)
    if file == "str":
        return text
    print(text, file=file)
    return file


def _program_text(what: Any) -> str:
    """The program of a function, or of a tree as it was written."""
    is_function = isinstance(what, Function)
    program = what.program if is_function else lower(lower([what], last="program"), first="order")
    text = listing(program) if what.backend is None else listing(program, what.backend.remark)
    remark = what._plan.remark if is_function else None
    return text if remark is None else f"{text}\n{remark()}"


def _stage_text(stage: str, what: Any) -> str:
    """The text of a stage of lowering a function or a tree."""
    if isinstance(what, Function):
        return stage_text(what.written, stage, what._options, what.backend, is_flat=True)
    options = Options() if what.backend is None else what.backend.lowering
    return stage_text([what], stage, options, what.backend)


def _wrapped(backend: Any, value: Any, dtype: Any, origin: Any) -> Any:
    """An output's value as the caller gets it: a tensor, an array, or the value itself."""
    if dtype is None:
        return value
    return np.asarray(value, dtype) if backend is None else backend.tensor_of(value, dtype, origin)


def _spec_of(x: object) -> Any:
    """The spec of a tensor of a subclass; None for other arguments."""
    return x.spec if isinstance(x, Tensor) else None


def _is_unchanged(input: Variable, given: object, array: np.ndarray) -> bool:
    """Whether an argument is an array that was accepted as it is, for its dtype and shape alone."""
    if isinstance(given, Tensor):
        return given.array is array
    return given.__class__ is np.ndarray and given is array and type(input.type) is TensorType


def _stand_in(x: Variable) -> Input:
    """The program's leaf for an input; for a tensor, a new Input of its type and backend."""
    if isinstance(x, Input):
        return x
    argument = Input(x.type, x.label)
    argument.spec = x.spec
    return argument


def _checked_inputs(inputs: object) -> list[Variable]:
    if isinstance(inputs, Variable) or not isinstance(inputs, Sequence):
        raise OperandError(f"function: the inputs are a list of variables, not {describe(inputs)}")
    for i, x in enumerate(inputs):
        if not isinstance(x, Input | Tensor):
            raise OperandError(f"function: input {i} is an Input or a Tensor, not {describe(x)}")
        if any(x is other for other in inputs[:i]):
            raise OperandError(f"function: {describe(x)} is given as an input twice")
    return list(inputs)


def _converts(wanted: Any, value: Any) -> bool:
    """Whether a type takes a value with a loss."""
    try:
        wanted.filter(value, False, True)
    except (TypeError, ValueError):
        return False
    return True
