"""Backend, the base class of backends: tensors' memory, plans, and the functions of operands."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from functools import wraps
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import ref

import numpy as np

from backends import lazy
from backends.creation import Creation
from backends.functions import Functions
from backends.random import RandomMethods
from optree.arrays import is_foreign, on_host
from optree.cache import Cache, cache_stats
from optree.compile.aliasing import outlined, owners_of
from optree.compile.pipeline import Options, lower
from optree.compile.program import Instruction, Note, Plan, Program, Steps
from optree.dtypes import is_floating
from optree.errors import BackendArgumentError, BackendError, OperandError, Origin, brief, describe, names
from optree.instead import instead
from optree.locks import cached_property
from optree.op.parameters import PARAMETERS
from optree.op.traits import ElementwiseOperator
from optree.ops.assignment import Assign
from optree.records import NamedTuple
from optree.registry import FUNCTIONS, NUMPY_FUNCTIONS, OPS
from optree.run.updates import assignments, checked_updates
from optree.tree.lazy import lazy_values, settle
from optree.tree.node import OpDict, OpTreeNode, applied, key_of, parts_of, uncollected
from optree.tree.numpy_protocol import call_function, write_out, write_outs
from optree.tree.tensor import Tensor, signature_of_assigned, signature_of_evaluated, signature_of_together
from optree.tree.types import DTYPES, NUMBERS, TensorType, as_dtype, integer_of
from optree.tree.variable import Constant, Input, Variable, check_same_backend

#: Maximum plans of a backend; a new one evicts the oldest.
PLANS = 4096


class Within(NamedTuple):
    """A compiled function of arrays, for calls within a step of a plan."""

    #: Of a list of the arrays.
    run: Callable[[Any], Any]
    #: Calls it many times: of the arrays of all calls (`optree.ops.loop_steps.Steps`), and their number.
    loop: Callable[[Any, int], Any]
    #: Whether a CUDA graph can capture it.
    is_captured: bool = False
    #: Whether `loop` ends before a call that a flag says is not to run, and returns the number of calls.
    reads_flag: bool = False

    @classmethod
    def of(cls, run: Callable[[Any], Any], is_captured: bool = False) -> Within:
        """A function that is called once for each step of a loop."""

        def loop(steps: Any, count: int) -> None:
            for step in range(count):
                run(steps(step))

        return cls(run, loop, is_captured)

    def after(self, given: Callable[[Any], Any]) -> Within:
        """The same of arrays from which `given` makes its own."""
        run, loop, is_captured, reads_flag = self
        after = getattr(loop, "after", None)
        return Within(
            lambda arrays: run(given(arrays)),
            (lambda steps, count: loop(steps.after(given), count)) if after is None else after(given),
            is_captured,
            reads_flag,
        )


class Backend(RandomMethods, Functions):
    """Memory and execution for tensors, with every function of operands as a method.

    Every op and every function composed of ops is a method: ``be.tanh(x)``,
    ``be.mean(x, axis=0)``. They return trees; with ``out=``, they run at once
    and return `out`. If no operand is a tensor (``be.exp(2.0)``), the first becomes one.

    Make backends with `backends.gen_backend`. `copy.copy` and `copy.deepcopy` return the
    backend itself, so a tensor's copy stays on it. A pickled one becomes the current backend.

    Attributes
    ----------
    datatype : numpy.dtype
        The default dtype of new tensors.
    batch_size : int
        The last axis of buffers from `iobuf`.
    compat_mode : str or None
        ``'neon'`` for neon's shapes, reductions and ties.
    rng : numpy.random.RandomState
        For draws on the host, seeded by `rng_seed`.
    """

    name: str

    #: Methods for plans and subclasses, which `dir` leaves out.
    internal: ClassVar[frozenset[str]] = frozenset(
        "active allocate borrowed check_adopted compile compiles compiling computed executions exported forget_plans "
        "from_host home imported internal compile_within is_neon lowered lowering modes noting on_host over owned "
        "planned plans program put received remark run_assignment show sources target tensor_cls tensor_of to_host "
        "uploads value_of within".split()
    )

    #: The compatibility modes of the class.
    modes: ClassVar[tuple[str | None, ...]] = (None,)

    #: The number of devices of its kind.
    devices: int = 1

    #: From a program, a language and for CUDA an architecture to its kernels' sources. The package sets it, as it
    #: imports the printers of every language.
    sources: ClassVar[Callable[..., list[str]]]

    #: The files of a function in another language, by name (`optree.export`). The package sets it, as it prints both.
    exported: ClassVar[Callable[..., dict[str, bytes]]]

    #: The backend that a pickled one becomes; the package sets it, as it makes backends.
    received: ClassVar[Callable[..., Backend]]

    def __init__(
        self,
        rng_seed: int | None = None,
        datatype: Any = np.float32,
        batch_size: int = 0,
        stochastic_round: bool | int = False,
        device_id: int = 0,
        compat_mode: str | None = None,
    ) -> None:
        if compat_mode not in self.modes:
            raise BackendArgumentError(f"compat_mode is one of {self.modes}, not {compat_mode!r}")
        for name, number in (("batch_size", batch_size), ("device_id", device_id)):
            if isinstance(number, bool) or not isinstance(number, int | np.integer) or number < 0:
                raise BackendError(f"{name} is an integer of 0 or more, not {brief(number)}")
        if device_id >= self.devices:
            raise BackendError(f"device_id {device_id}: {self.name} devices are numbered from 0 to {self.devices - 1}")
        if not isinstance(stochastic_round, int | np.bool_):
            raise BackendError(f"stochastic_round is True or False, not {brief(stochastic_round)}")
        self.datatype = as_dtype(datatype)
        if not is_floating(self.datatype):
            raise BackendArgumentError(f"datatype is a floating dtype, not {self.datatype}")
        self.batch_size = batch_size
        self.stochastic_round = bool(stochastic_round)
        self.device_id = device_id
        self.compat_mode = compat_mode
        self.home = ref(self)
        self.plans = Cache("plans", PLANS)
        self.compiles = 0
        self.executions = 0
        self._seed_states(rng_seed)

    @property
    def bsz(self) -> int:
        """The batch size, by neon's name for it."""
        return self.batch_size

    @bsz.setter
    def bsz(self, size: int) -> None:
        self.batch_size = size

    @property
    def default_dtype(self) -> Any:
        """NumPy's class of the default dtype of new tensors, by neon's name."""
        return self.datatype.type

    # The interface of subclasses, with that of `Creation`

    def owned(self, value: object, dtype: np.dtype | None = None) -> Any:
        """A plan's output as an array of this backend in C order, cast to a dtype if one is given."""
        raise NotImplementedError

    def borrowed(self, array: np.ndarray) -> Any:
        """A NumPy array that a plan may read: itself, or a copy on the device."""
        raise NotImplementedError

    def imported(self, array: object, what: str) -> Any:
        """Another library's array (`is_foreign`) as NumPy's or a tensor that reads its memory; OperandError if none."""
        return on_host(array, what)

    def to_host(self, array: np.ndarray, blocking: bool = True) -> np.ndarray:
        """A copy of an array of this backend as a NumPy array; if not `blocking`, the copy may be asynchronous."""
        raise NotImplementedError

    def on_host(self, program: Program, run: Callable[[list[Any]], Sequence[Any]]) -> Plan:
        """A plan, on this backend's arrays, from a function that runs a program on NumPy arrays."""
        return Plan(lambda values, roots: run(values))

    def remark(self, instruction: Instruction) -> str:
        """A remark of `debugprint` on how this backend runs an instruction."""
        return ""

    @property
    def lowering(self) -> Options:
        """The options of lowering for this backend."""
        return Options()

    def show(self, program: Program, stage: str, is_function: bool = False) -> str:
        """The text of a stage of this backend for a program.

        `stage`: one of 'source', 'plan'; the source of its kernels, for arrays in C order; or the steps that run, with
        their memory.
        `is_function`: whether it is a function's, whose tensors keep their shapes.
        """
        raise NotImplementedError

    def compiling(self) -> Backend | None:
        """A backend like this one that compiles every kernel; None if there is none, or this one does."""
        return None

    def synchronize(self) -> None:
        """Wait until the device has finished; the CPU runs synchronously."""

    def uploads(self) -> Callable[[np.ndarray], Callable[[], Tensor]]:
        """A function that copies arrays, as `array` does, from any thread, for the one that calls this to compute with.

        It returns at once, and what it returns gives the tensor. A device copies meanwhile, on a stream of its own.
        """

        def upload(array: np.ndarray) -> Callable[[], Tensor]:
            tensor = self.array(array)
            return lambda: tensor

        return upload

    def planned(self, program: Program) -> Steps:
        """The steps that run a program, for reports; they run it, too."""
        raise NotImplementedError

    def compile(self, program: Program, reuse: bool = False) -> Plan:
        """Compile a program to a plan.

        `reuse`: whether the plan is for one caller at a time, so that its steps may reuse their outputs' memory from
        call to call.
        """
        raise NotImplementedError

    def compile_within(self, program: Program) -> Within:
        """A program as a function of its leaves' values, for calls within a step."""
        plan = self.compile(program)
        return Within.of(lambda values: plan.run(values, None))

    def within(self, key: object, build: Callable[[], tuple[Sequence[Any], Sequence[Any]]]) -> Within:
        """A function of arrays that writes into some of them, for a call that runs it many times; compiled once.

        `key` (hashable): all that the function depends on.
        `build`: gives inputs for the arrays that are read and a `target` for each that is written, and assignments to
        these.
        """
        found = self.plans.get(("within", key))
        if found is None:
            leaves, roots = build()
            program = self.program(roots, shown=True)
            compiled = self.compile_within(outlined(program))
            self.compiles += 1
            found = self.plans["within", key] = compiled.after(_leaves(self, program, leaves))
        return found  # type: ignore[no-any-return]

    def target(self, type: TensorType) -> Tensor:
        """A tensor for `within` to assign to, of a type and without memory for its elements; None is any size."""
        sizes = tuple(2 if n is None else n for n in type.shape)
        return Tensor(self, np.broadcast_to(self.allocate((), type.dtype), sizes))

    # Running trees

    def execute(self, tree: OpTreeNode) -> Tensor:
        """Run an assignment and return its target; run any other tree and return its value in a new tensor.

        Parameters
        ----------
        tree : OpTreeNode

        Raises
        ------
        OperandError
            If it is no tree.
        BackendError
            If the tree is on another backend.

        Examples
        --------
        >>> be.execute(be.ones(2) + 1).get()
        array([2., 2.], dtype=float32)
        """
        if tree.__class__ is not OpTreeNode:
            remedy = "; be.evaluate runs a list" if isinstance(tree, list | tuple) else ""
            raise OperandError(f"execute: a tree is wanted, not {describe(tree)}{remedy}")
        op_dict, target, value = parts_of(tree)
        if op_dict.op.__class__ is not Assign:
            return self.evaluate([tree])[0]
        if tree.spec.home is not self.home:
            check_same_backend("execute", [tree, self.rng_state])
        self.run_assignment(op_dict, target, value, tree.origin)
        return target

    def run_assignment(self, op_dict: OpDict, target: Tensor, value: object, origin: Origin) -> None:
        """Run an assignment to one of this backend's tensors, given by the parts of its node and the node's origin."""
        if lazy_values:
            settle([target])
        if value.__class__ is OpTreeNode:  # its signature is cached on it and outlives the assignment
            if value.ran is None:
                value.ran = signature_of_assigned(value, target, origin)
            value_key, leaves = value.ran
        else:
            value_key, leaves = key_of(value), [value]
        values, index = [target.array], None
        for leaf in leaves:
            if leaf is target:
                index = len(values)
            elif leaf.__class__ is Tensor:
                values.append(leaf.array)
            else:
                values.append(leaf if leaf.__class__ in NUMBERS else self.value_of(leaf, False))
        key = op_dict.token, index, value_key
        roots = (op_dict, target, value, origin)
        plan: Any = self.plans.get(key)
        if plan is None:
            plan = self._plan(key, roots, len(values))
        self.executions += 1
        plan.run(values, roots)
        target.advance(origin)

    def put(self, target: Tensor, part: OpDict, number: Any) -> None:
        """Write a Python number that fits into a part of a tensor, given by the application of a view op to it."""
        target._viewed(part)._assign_whole(number)

    def evaluate(self, trees: Sequence[Any]) -> list[Tensor]:
        """The values of trees in new tensors, computed together.

        Shared subtrees are computed, and their random numbers drawn, once.

        Parameters
        ----------
        trees : list or tuple
            Trees, tensors and numbers. All are computed before the next line runs, so weights may be written then.

        Returns
        -------
        list of Tensor

        Examples
        --------
        >>> w = be.array([1.0, 2.0])
        >>> loss = be.sum(w * w)
        >>> [x.get() for x in be.evaluate([loss, optree.grad(loss, w)])]
        [array([5.], dtype=float32), array([2., 4.], dtype=float32)]

        Raises
        ------
        OperandError
            If `trees` is no list or tuple, or an item is no tree, tensor or number.
        BackendError
            If a tree is on another backend.
        """
        if isinstance(trees, Variable) or not isinstance(trees, list | tuple):  # a tree is a tuple
            remedy = "; put it into a list: be.evaluate([x])" if isinstance(trees, Variable) else ""
            raise OperandError(f"evaluate: a list of trees is wanted, not {describe(trees)}{remedy}")
        if len(trees) == 1 and trees[0].__class__ is OpTreeNode:
            (tree,) = trees
            op_dict, _, _ = parts_of(tree)  # quicker than `tree.op`
            if op_dict.op.__class__ is not Assign:
                return self.computed(trees)
        assigns = False
        for tree in trees:
            if tree.__class__ is OpTreeNode:
                op_dict, _, _ = parts_of(tree)
                assigns = assigns or isinstance(op_dict.op, Assign)
            elif not isinstance(tree, Variable) and type(tree) not in NUMBERS:
                raise OperandError(f"evaluate: a tree, tensor or number is wanted in the list, not {describe(tree)}")
        if not trees:
            return []
        if assigns:
            for tree in trees:  # first, as later trees are meant to read what the assignments write
                _check_stale(tree)
            return [self.execute(tree) for tree in trees]
        return self.computed(trees)

    def computed(self, trees: Sequence[Any]) -> list[Tensor]:
        """The values of operands, none of them an assignment, in new tensors made where they were."""
        if len(trees) == 1 and trees[0].__class__ is OpTreeNode:
            (tree,) = trees
            key, leaves = tree.ran = tree.ran or signature_of_evaluated(tree)
            return [self.tensor_of(self._run(key, leaves, trees)[0], None, tree.origin)]
        key, leaves = signature_of_together(trees)
        values = self._run(key, leaves, trees)
        return [self.tensor_of(x, None, getattr(tree, "origin", None)) for x, tree in zip(values, trees, strict=True)]

    def update(self, updates: object) -> None:
        """Write the values of trees into tensors, after all have been computed.

        They are computed together, as by `evaluate`; if one fails, nothing is written.
        For updates that run often, `optree.function` is faster.

        Parameters
        ----------
        updates : dict or list of pairs
            From tensors to operands: ``be.update([(w, w - rate * g), (v, v * 0.9)])``.

        Raises
        ------
        OperandError
            If a target is no tensor, or two of them share an element.
        DTypeError, ShapeError
            If a value cannot be written to its target.
        BackendError
            If a target or operand is on another backend.

        Examples
        --------
        >>> a, b = be.array([1.0, 2.0]), be.array([3.0, 4.0])
        >>> be.update([(a, b), (b, a)])
        >>> a.get(), b.get()
        (array([3., 4.], dtype=float32), array([1., 2.], dtype=float32))
        """
        written = assignments(checked_updates("update", updates))
        if not written:
            return
        if lazy_values:
            settle([assignment[1] for assignment in written])
        key, leaves = signature_of_together(written)
        owners: dict[int, int] = {}  # the schedule depends on which leaves share memory
        aliases = [owners.setdefault(id(owner), len(owners)) for owner in owners_of(leaves)]
        self._run(("update", *aliases, key), leaves, written)
        for assignment in written:
            assignment[1].advance(assignment.origin)

    def tensor_of(self, value: object, dtype: np.dtype | None = None, origin: Origin | None = None) -> Any:
        """A new tensor over a plan's output, without the checks of `adopt`; made at an origin or the caller's line."""
        array = self.owned(value, dtype)
        return self.over(array, origin=origin) if self.is_neon else self.tensor_cls(self, array, origin=origin)

    def _run(self, key: tuple[Any, ...], leaves: Sequence[Any], roots: Sequence[Any]) -> Sequence[Any]:
        plan: Any = self.plans.get(key)
        is_own = len(roots) == 1 and roots[0].spec.home is self.home  # the common case
        if plan is None or not (is_own or all(root.spec.home in (self.home, None) for root in roots)):
            plan = self._plan(key, roots, len(leaves))
        self.executions += 1
        values = [
            x.array if x.__class__ is Tensor else x if x.__class__ in NUMBERS else self.value_of(x, False)
            for x in leaves
        ]
        return plan.run(values, roots)

    @uncollected
    def _plan(self, key: tuple[Any, ...], roots: Sequence[Any], leaves: int) -> Any:
        roots = _trees(roots)
        check_same_backend("execute", [*roots, self.rng_state])
        program = self.program(roots, shown=True)
        plan = self.compile(program)
        constants = [self.value_of(leaf) for leaf in program.leaves[leaves:]]
        if constants:  # those that rewrites added
            compiled = plan
            plan = Plan(lambda values, roots: compiled.run([*values, *constants], roots))
        self.compiles += 1
        self.plans[key] = plan
        return plan

    def forget_plans(self) -> None:
        """Evict the older half of the plans; they are compiled again at their next use, from kernels cached on disk."""
        for key in list(self.plans)[: (len(self.plans) + 1) // 2]:
            self.plans.pop(key, None)

    @staticmethod
    def program(roots: Sequence[Any], shown: bool = False) -> Program:
        """The program of trees: flattened, rewritten and scheduled; printed by ``OPTREE_SHOW``, if it is to run."""
        program: Program = lower(roots, Options(shown=shown))
        return program

    def lowered(self, program: Program, shown: bool = False) -> Program:
        """The program, lowered to the ops that this backend's kernels have."""
        found: Program = lower(program, self.lowering._replace(shown=shown), "parts", "parts")
        return found

    def noting(self, program: Program, is_lowered: bool = True) -> Note:
        """The `note` of a program's steps, which names the failed instruction by its node in the trees that ran."""

        def note(error: Exception, index: int, roots: Sequence[Any] | None) -> None:
            ran = program if roots is None else self.program(_trees(roots))
            ran = self.lowered(ran) if is_lowered and roots is not None else ran
            error.add_note(f"while running {describe(ran.instructions[index].node)}")

        return note

    def value_of(self, leaf: object, is_kept: bool = True) -> Any:
        """A leaf's value for a plan: an array, a Python number, or a constant's value.

        `is_kept`: whether it is used after this call, too.
        """
        if leaf.__class__ in NUMBERS:
            return leaf
        if isinstance(leaf, Tensor):
            return leaf.array
        if isinstance(leaf, Input):
            raise BackendError(f"{leaf.label} is an input: only a function can give it a value")
        return leaf.value if isinstance(leaf, Constant) else leaf

    def info(self) -> str:
        """The device and the executor of assignments."""
        raise NotImplementedError

    def stats(self) -> dict[str, Any]:
        """Counts since the backend was made: plans compiled and cached, assignments run; and the process's caches."""
        counts = {"compiles": self.compiles, "plans": len(self.plans), "executions": self.executions}
        return {**counts, "caches": cache_stats()}

    # Functions

    @property
    def linalg(self) -> NumPyModule:
        """NumPy's linear algebra: ``be.linalg.solve(a, b)`` means what ``np.linalg.solve(a, b)`` does."""
        return NumPyModule(self, np.linalg)

    @property
    def fft(self) -> NumPyModule:
        """NumPy's Fourier transforms: ``be.fft.rfft(x)`` means what ``np.fft.rfft(x)`` does."""
        return NumPyModule(self, np.fft)

    @cached_property
    def xp(self) -> Any:
        """The array API standard on this backend (`optree.xp`): arrays with NumPy's meaning, still fused."""
        return lazy.namespace.Namespace(self)

    def _function(self, name: str) -> Callable[..., Any]:
        try:
            method = _method(self, name if not name.startswith("_") else "")
        except KeyError:
            near = lazy.difflib.get_close_matches(name, [known for known in dir(self) if not known.startswith("_")], 3)
            meant = instead("backend", name) or (f"; did you mean {' or '.join(near)}?" if near else "")
            raise AttributeError(
                f"the backend has no function {name!r}{meant}; dir(be) and docs/functions.md list all that it has"
            ) from None
        self.__dict__[name] = method
        return method

    if not TYPE_CHECKING:  # type checkers know the functions by `Functions`, and refuse other names
        __getattr__ = _function

    def __dir__(self) -> list[str]:
        own = {name for name in super().__dir__() if not name.startswith("_")}
        return sorted({*own, *FUNCTIONS} - self.internal)

    def __copy__(self) -> Backend:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Backend:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Where it arrives, it is the current backend; where there is none, a new one with these options."""
        return self.received, (self.name, self.datatype, self.batch_size, self.compat_mode)

    def __repr__(self) -> str:
        return f"{self.name} backend {id(self):#x}"


def _leaves(backend: Backend, program: Program, given: Sequence[Any]) -> Callable[[Sequence[Any]], list[Any]]:
    """From the values of some leaves, of which the program may read but a part, to those of all; others are known."""
    indices = [next((i for i, leaf in enumerate(program.leaves) if leaf is x), None) for x in given]
    known = [None if i in indices else backend.value_of(leaf) for i, leaf in enumerate(program.leaves)]
    pairs = [(n, i) for n, i in enumerate(indices) if i is not None]

    def leaves(arrays: Sequence[Any]) -> list[Any]:
        values = known.copy()
        for n, i in pairs:
            values[i] = arrays[n]
        return values

    return leaves


def _trees(roots: Sequence[Any]) -> Sequence[Any]:
    """The trees that run, of which an assignment may be given by its parts (`Backend.run_assignment`)."""
    if roots[0].__class__ is not OpDict:
        return roots
    op_dict, *operands, origin = roots
    node = applied(op_dict, operands)
    node.origin = origin
    return [node]


def _check_stale(tree: object) -> None:
    """Warn if a tree that has not run is stale, as running it does."""
    if type(tree) is not OpTreeNode:
        return
    if not isinstance(tree.op, Assign):
        tree.ran = tree.ran or signature_of_evaluated(tree)
    elif type(tree[2]) is OpTreeNode:
        tree[2].ran = tree[2].ran or signature_of_assigned(tree[2], tree[1], tree.origin)


#: The paragraphs that every method's help has, and that the helps of elementwise functions and reductions have second.
WITH_OUT = "With `out`, a tensor, it runs at once, writes its value there, and returns `out`."
OPERANDS = "operands are tensors, trees, numbers and arrays, and broadcast. The value is a tree, which runs later."
KEPT = """The reduced axes are kept with size 1, as neon's are; ``keepdims=False`` drops them, as NumPy does. So with N
labels ``be.argmax(scores, axis=1) == labels`` is of shape (N, N), and
``be.argmax(scores, axis=1, keepdims=False) == labels`` is of shape (N,)."""

#: The classes of first operands that a method converts to a tensor.
_VALUES = frozenset((*NUMBERS, np.ndarray, *(dtype.type for dtype in DTYPES)))


def _with_tensor(backend: Backend, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """A function's arguments, the first converted to a tensor if it is a number and none is a variable."""
    if not args or isinstance(args[0], Variable) or any(isinstance(a, Variable) for a in args[1:]):
        return args
    first = backend.imported(args[0], "the first operand") if is_foreign(args[0]) else args[0]
    if type(first) in _VALUES or first is not args[0]:
        return (backend.array(first, getattr(first, "dtype", None)), *args[1:])
    return args


#: NumPy's functions of a size, which make tensors of the backend's dtype.
FREQUENCIES = ("fftfreq", "rfftfreq")


class NumPyModule:
    """A module of NumPy's on a backend's operands: ``be.linalg.norm`` means what ``np.linalg.norm`` does."""

    def __init__(self, backend: Backend, module: ModuleType) -> None:
        self._backend, self._module, self._name = backend, module, module.__name__.rpartition(".")[2]

    def __getattr__(self, name: str) -> Callable[..., Any]:
        theirs: Any = None if name.startswith("_") else getattr(self._module, name, None)
        backend = self._backend
        if name in FREQUENCIES and theirs is not None:
            return lambda n, d=1.0: backend.array(theirs(integer_of(n, f"{name}: n", 1), d), backend.datatype)
        if theirs not in NUMPY_FUNCTIONS:
            raise AttributeError(f"be.{self._name} has no function {name!r}; it has {names(dir(self))}")

        @wraps(theirs)
        def function(*args: Any, **kwargs: Any) -> Any:
            found = call_function(theirs, _with_tensor(backend, args), kwargs)
            trees = (found,) if found.__class__ is OpTreeNode or not isinstance(found, tuple) else found
            _several(backend, f"{self._name}.{name}", trees, None)
            return found

        function.__doc__ = NUMPY_FUNCTIONS[theirs].__doc__
        return function

    def __dir__(self) -> list[str]:
        found = ((name, getattr(self._module, name)) for name in self._module.__all__)
        return sorted(name for name, theirs in found if name in FREQUENCIES or theirs in NUMPY_FUNCTIONS)


def _method(backend: Backend, name: str) -> Callable[..., Any]:
    """A function of operands as a backend's method: with ``out``, and a first number converted to a tensor."""
    function = FUNCTIONS[name]
    own, own_name = inspect.signature(function), name
    takes_out = "out" in own.parameters
    homes = (backend.home, None)

    def method(*args: object, out: object = None, **kwargs: object) -> Any:
        args = _with_tensor(backend, args)
        if takes_out:
            kwargs["out"] = out
        tree = FUNCTIONS[own_name](*args, **kwargs)  # looked up at each call: the op may have been redefined
        if tree.__class__ is not OpTreeNode and isinstance(tree, tuple | list):  # of several values
            return _several(backend, own_name, tree, out)
        if tree.spec.home not in homes:
            raise _foreign(backend, own_name, tree)
        return tree if out is None or takes_out else write_out(tree, out)

    if not takes_out:
        target = inspect.Parameter("out", inspect.Parameter.KEYWORD_ONLY, default=None)
        variable = [p for p in own.parameters.values() if p.kind is p.VAR_KEYWORD]
        plain = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
        own = own.replace(parameters=[*plain, target, *variable])
    method.__signature__ = own  # type: ignore[attr-defined]
    method.__name__ = function.__name__
    method.__doc__ = _help_of(dict.get(OPS, function.__name__), function.__name__, function.__doc__ or "", own)
    return method


def _help_of(op: Any, name: str, text: str, signature: inspect.Signature) -> str:
    """A function's docstring as a method's, with what many functions share: paragraphs, parameters and an example."""
    introduction, sections = _sections_of(text)
    summary, *paragraphs = introduction.split("\n\n")
    keepdims = signature.parameters.get("keepdims")
    shared = [KEPT] if keepdims is not None and keepdims.default is True else []
    if op is not None and issubclass(op, ElementwiseOperator):
        numpys = op.numpy.__name__ if isinstance(op.numpy, np.ufunc) else ""
        shared = [f"Elementwise{f', as ``np.{numpys}``' if numpys else ''}: {OPERANDS}"]
        if numpys:
            given = ", ".join(op.operands)
            values = ", ".join(["np.array([1, 2])", "np.array([3, 1])"][: len(op.operands)])
            call = f"np.allclose(be.{name}({given}).get(), np.{numpys}({given}))"
            sections.setdefault("Examples", f"Examples\n--------\n>>> {given} = {values}\n>>> {call}\nTrue")
    described = sections.pop("Parameters", "") or sections.pop("Attributes", "")
    sections = {"Parameters": _parameters(name, described, signature), **sections}
    return "\n\n".join([summary, *shared, *paragraphs, WITH_OUT, *sections.values()])


def _sections_of(text: str) -> tuple[str, dict[str, str]]:
    """A docstring's text before its sections, and these by name."""
    introduction, *sections = re.split(r"\n\n(?=\w+\n---)", inspect.cleandoc(text))
    return introduction, {section.partition("\n")[0]: section for section in sections}


def _parameters(of: str, described: str, signature: inspect.Signature) -> str:
    """The section of parameters, in order: those that a function's own section describes, and those of `PARAMETERS`."""
    items = re.split(r"\n(?=\S)", described.partition("---\n")[2]) if described else []
    own = {name: item for item in items for name in re.findall(r"\w+", item.partition("\n")[0].partition(" : ")[0])}
    lines = ["Parameters", "----------"]
    for name, parameter in signature.parameters.items():
        found = PARAMETERS.get(f"{of}.{name}") or (None if name == "out" else PARAMETERS.get(name))
        kind, meaning = found or ("", "")
        if name in own and own[name] not in lines:
            lines.append(own[name])
        elif kind and name not in own:
            default = "" if parameter.default is parameter.empty else f", default {parameter.default!r}"
            if parameter.default is None:
                default = "" if "optional" in kind or "None" in kind else ", optional"
            lines += [f"{name} : {kind}{default}", *([f"    {meaning}"] if meaning else [])]
    return "\n".join([*lines, *(item for item in items if item not in lines)])


for _class in (Creation, RandomMethods):
    for _function in filter(inspect.isfunction, vars(_class).values()):
        if _function.__doc__ and ">>> " in _function.__doc__:  # a function for users
            _text, _own = _sections_of(_function.__doc__)
            _listed = _parameters(_class.__name__, _own.pop("Parameters", ""), inspect.signature(_function))
            _function.__doc__ = "\n\n".join([_text, _listed, *_own.values()])


def _several(backend: Backend, name: str, trees: Any, out: Any) -> Any:
    """A function's trees, all of this backend; with `out`, as many tensors, these, written."""
    pending = list(trees)
    while pending:  # they may be nested, and None
        tree = pending.pop()
        if tree.__class__ is not OpTreeNode and isinstance(tree, tuple | list):
            pending += tree
        elif tree is not None and tree.spec.home not in (backend.home, None):
            raise _foreign(backend, name, tree)
    if out is None:
        return trees
    if type(out) not in (tuple, list) or len(out) != len(trees):
        raise OperandError(f"{name}: out is a tensor for each of {len(trees)} values, not {brief(out)}")
    written = write_outs(trees, out)
    return type(trees)(*written) if hasattr(trees, "_fields") else type(trees)(written)


def _foreign(backend: Backend, name: str, tree: OpTreeNode) -> BackendError:
    """The error for a tree of another backend."""
    return BackendError(
        f"{name}: {describe(tree)} is of {tree.backend}, not of {backend}; copy its operands "
        "over with be.array(x.get()), or call the other backend's function"
    )
