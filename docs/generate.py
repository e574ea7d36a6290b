"""Writes docs/functions.md: every function there is, from the registry and the docstrings.

``make functions`` runs it, and a test compares the file with `text`.
"""

from __future__ import annotations

import inspect
import operator
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import backends
import optree
from backends import Backend, gen_backend
from backends.random import RandomMethods
from optree import OpTreeNode, Tensor, TensorType, Variable, pictures, testing, train
from optree.registry import FUNCTIONS, NUMPY_FUNCTIONS, OPS
from optree.tree.numpy_protocol import REDUCTIONS

PATH = Path(__file__).with_name("functions.md")

#: Methods of `Backend` that run trees, or tell of it. The others that give tensors make new ones.
RUNNING = ("evaluate", "execute", "stats", "update")

BEGINNING = """# Functions

For users who look up a function: all public functions with their defaults. `make functions` generates this page from
the definitions; `help(be.tanh)` has more on each. In the examples, `be` is `gen_backend("cpu")`.

The functions of the first sections are methods of every backend: `be.tanh(x)`. Operands are tensors, trees, numbers and
NumPy arrays. Each function returns a tree; with `out=tensor` it runs at once, writes there, and returns that tensor.
Shapes, broadcasting and dtypes follow NumPy, but a reduction keeps its axes unless `keepdims=False`: for N labels,
`be.argmax(scores, axis=1) == labels` has shape (N, N), and with `keepdims=False` shape (N,). Other defaults that differ
from NumPy's or torch's are [listed below](#defaults-that-differ). Several names in one row are aliases. Functions with
a parameter `like` are used by derivatives and indexing.
"""

NUMPY = """
## NumPy's functions

On tensors and trees, these build trees with NumPy's semantics (`np.sum(x, axis=0)` drops the axis). `np.shape`,
`np.ndim` and `np.size` return at once; `np.allclose` and `np.array_equal` run the tree and return a bool. All other
functions, and arguments without an equivalent here, raise an error that names them.
"""

LINALG = """
The functions of `np.linalg` and `np.fft` in this list are also in the backend's `linalg` and `fft`, with NumPy's
semantics: `be.linalg.solve(a, b)`.
"""

ARRAY_METHODS = """
Methods with the name of a NumPy function have the semantics of NumPy's array methods, and return trees:
`x.sum(axis=0)` is `np.sum(x, axis=0)`, and drops the axis.
"""


DEFAULTS = """
## Defaults that differ

These defaults differ from those of the corresponding functions of NumPy or torch. `np.` functions and array methods on
tensors and trees have NumPy's defaults. A dash means that the library has no such function; "the same" agrees with
op-tree.

| op-tree | NumPy | torch | |
|---|---|---|---|
"""

SAME, NONE, NEEDED = "the same", "-", "must be given"
KEPT = "neon's: the reduced axes are kept, so `be.argmax(scores, axis=1) == labels` is (N, N)"

#: Functions, the parameter whose default differs, NumPy's and torch's, and what it is; without the reductions.
DIFFERENCES: tuple[tuple[tuple[str, ...], str, str, str, str], ...] = (
    (
        ("be.softmax", "be.log_softmax", "be.standardize"),
        "axis",
        NONE,
        NEEDED,
        "None is the only axis of a vector; of a "
        "matrix it must be given. SciPy's are over all elements, JAX's over the last axis, neon's over the first",
    ),
    (("be.logsumexp",), "axis", NONE, NEEDED, "None is all elements, as SciPy's and JAX's"),
    (("be.var", "be.std"), "ddof", SAME, "`correction=1`", "The divisor is count - ddof"),
    (
        ("be.median", "be.nanmedian"),
        "axis",
        SAME,
        SAME,
        "Of an even number, the mean of the middle two, as NumPy's; torch's is the lower",
    ),
    (("be.cumsum", "be.cumprod", "be.cummax", "be.cummin"), "axis", SAME, NEEDED, "None flattens"),
    (("be.cross",), "axis", SAME, "the first axis of size 3", ""),
    (("be.expand_dims",), "axis", NEEDED, NEEDED, ""),
    (("be.flip",), "axis", SAME, NEEDED, "None is all axes"),
    (("be.repeat",), "repeats", NEEDED, NEEDED, ""),
    (("be.reshape",), "newshape", NEEDED, NEEDED, "(-1,) flattens"),
    (("be.broadcast_to",), "shape", NEEDED, NEEDED, ""),
    (
        ("be.pad",),
        "pad_width",
        NEEDED,
        NEEDED,
        "Pairs for each axis from the first, as NumPy's; torch counts from the last",
    ),
    (("be.meshgrid",), "indexing", SAME, "`'ij'`", ""),
    (("be.histogram",), "bins", SAME, NEEDED, ""),
    (("be.linspace",), "num", SAME, NEEDED, ""),
    (
        ("be.array", "be.zeros", "be.ones", "be.empty", "be.full", "be.arange", "be.eye", "be.linspace"),
        "dtype",
        "float64; of Python's integers int64",
        "float32; of Python's integers int64",
        "None is the backend's `datatype`, float32 unless it was made with another, of Python's integers too",
    ),
    (
        ("be.rand", "be.uniform", "be.normal", "be.standard_normal"),
        "dtype",
        "float64",
        "float32",
        "None is the backend's `datatype`",
    ),
    (("be.batch_norm",), "training", NONE, "`False`; of the module `True`", ""),
    (("be.rms_norm",), "epsilon", NONE, "the dtype's `eps`", ""),
    (("be.layer_norm", "be.rms_norm"), "axis", NONE, "`normalized_shape` must be given", ""),
    (("be.avg_pool",), "count_padding", NONE, "`count_include_pad=True`", "Whether the divisor counts padding"),
    (("be.resize",), "method", NONE, "`'nearest'`", "torch's name is interpolate"),
    (("train.losses.cross_entropy",), "axis", NONE, "1", "The classes' axis"),
    (("train.losses.cross_entropy",), "ignored", NONE, "`ignore_index=-100`", ""),
    (
        ("train.losses.ctc",),
        "reduce",
        NONE,
        "the same",
        "The mean is over examples; torch's divides each loss by its number of labels before",
    ),
    (
        ("train.losses.kl_divergence",),
        "reduce",
        NONE,
        "the same",
        "The mean is over distributions: of a matrix, torch's `'batchmean'`; torch's `'mean'` is over elements",
    ),
    (("train.losses.focal",), "reduce", NONE, "`'none'` (torchvision)", ""),
    (("train.SGD",), "rate", NONE, "0.001", ""),
    (("train.Batches",), "shuffle", NONE, "`False`", ""),
)


def all_differences() -> Iterator[tuple[tuple[str, ...], str, str, str, str]]:
    """`DIFFERENCES`, after those of the reductions."""
    kept = [name for name in FUNCTIONS if default_of(FUNCTIONS[name], "keepdims") == "`keepdims=True`"]
    yield tuple(f"be.{name}" for name in kept), "keepdims", "`False`", "`False`", KEPT
    yield from DIFFERENCES


def differences() -> Iterator[str]:
    """The rows of the defaults that differ."""
    known = {"be": gen_backend("cpu"), "train": train}
    for calls, parameter, numpy, torch, remark in all_differences():
        functions = [operator.attrgetter(path)(known[home]) for home, _, path in (x.partition(".") for x in calls)]
        (ours,) = {default_of(function, parameter) for function in functions}
        listed = ", ".join(f"`{call}`" for call in calls)
        yield f"| {listed}: {ours} | {numpy} | {torch} | {remark} |\n"


def default_of(function: Callable[..., Any], parameter: str) -> str | None:
    """A parameter and its default, as one would write it; None if it has no such parameter."""
    found = inspect.signature(function).parameters.get(parameter)
    if found is None:
        return None
    return f"`{parameter}` {NEEDED}" if found.default is found.empty else f"`{parameter}={Written(found.default)!r}`"


def described(thing: Any) -> str:
    """The first paragraph of a docstring, as a cell of a table."""
    paragraph = (inspect.getdoc(thing) or "").split("\n\n")[0]
    return " ".join(paragraph.split()).replace("``", "`").replace("|", "\\|")


class Written:
    """A parameter's default as one would write it."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        scalar = isinstance(self.value, type) and issubclass(self.value, np.generic)
        return f"np.{self.value.__name__}" if scalar else repr(self.value)


def signature(function: Callable[..., Any], hidden: tuple[str, ...] = ()) -> str:
    """A function's parameters and their defaults, without the types and without those that are hidden."""
    own = inspect.signature(function)
    shown = [
        p.replace(annotation=p.empty, default=p.default if p.default is p.empty else Written(p.default))
        for name, p in own.parameters.items()
        if name not in hidden
    ]
    return str(own.replace(parameters=shown, return_annotation=own.empty))


def rows(entries: Iterable[tuple[str, str]]) -> Iterator[str]:
    """A table of what there is and what it gives."""
    yield "\n| | |\n|---|---|\n"
    for call, text in entries:
        yield f"| {call} | {text} |\n"


def families() -> dict[str, dict[str, list[str]]]:
    """The functions of operands by the module that defines them: a function's first name, and its others."""
    found: dict[str, dict[str, list[str]]] = {}
    first: dict[Callable[..., Any], str] = {}
    for name, function in FUNCTIONS.items():
        if hasattr(RandomMethods, name):  # the backend's own, which gives them its random state
            continue
        module = OPS[name].__module__ if name in OPS else function.__module__
        if not module.startswith("optree."):  # a user's own
            continue
        if function in first:
            next(f for f in found.values() if first[function] in f)[first[function]].append(name)
        else:
            first[function] = name
            found.setdefault(module, {})[name] = []
    return dict(sorted(found.items()))


@cache
def operators() -> dict[str, list[str]]:
    """How Python's operators write an op, by its name: those of `Variable`, asked what they build."""
    written: dict[str, list[str]] = {}
    for method in sorted(vars(Variable).keys() & vars(operator).keys()):
        apply = getattr(operator, method, None)
        if method.startswith("__") and inspect.isbuiltin(apply):
            kind = "int64" if method.strip("_") in ("and", "or", "xor", "invert", "lshift", "rshift") else "float32"
            x = TensorType(kind, (2, 2))("x")
            tree = apply(*[x] * len(inspect.signature(apply).parameters))
            text = (apply.__doc__ or "").removeprefix("Same as ").rstrip(".").replace("|", "\\|")
            written.setdefault(tree.op.name, []).append(text)
    return written


def function_rows(names: dict[str, list[str]], be: Backend) -> Iterator[tuple[str, str]]:
    """A row for each function of operands."""
    for name, others in names.items():
        written = [f"`{name}{signature(getattr(be, name), hidden=('out',))}`"]
        written += [f"`{other}`" for other in (*others, *operators().get(name, ()))]
        yield ", ".join(written), described(FUNCTIONS[name])


def method_rows(cls: type, wanted: Callable[[str, Any], bool] = lambda name, member: True) -> Iterator[tuple[str, str]]:
    """A row for each public method and property that a class defines."""
    for name, member in vars(cls).items():
        function = member.__func__ if isinstance(member, staticmethod) else member
        if name.startswith("_") or not (inspect.isfunction(function) or isinstance(member, property)):
            continue
        if wanted(name, function):
            # NumPy 2.5 added `descending`, which op-tree refuses; the page is the same under each NumPy.
            hidden = ("self", "descending")
            written = name if isinstance(member, property) else name + signature(function, hidden=hidden)
            yield f"`{written}`", described(getattr(cls, name))


def library_rows(module: Any) -> Iterator[tuple[str, str]]:
    """A row for each public function and class of a module."""
    own = [name for name, thing in vars(module).items() if getattr(thing, "__module__", None) == module.__name__]
    for name in getattr(module, "__all__", [name for name in own if not name.startswith("_")]):
        thing = getattr(module, name)
        if inspect.isfunction(thing):
            yield f"`{name}{signature(thing)}`", described(thing)
        elif inspect.isclass(thing):
            yield f"`{name}`", described(thing)


def listed(names: Iterable[str]) -> Iterator[str]:
    """Names one after the other, in a paragraph."""
    yield "\n" + textwrap.fill(", ".join(f"`{name}`" for name in names), 120, break_on_hyphens=False) + ".\n"


def numpy_name(function: Any) -> str:
    """A function's name in NumPy: ``np.linalg.solve``, ``np.add.reduce``."""
    ufunc = getattr(function, "__self__", None)
    owner = f"{ufunc.__name__}." if isinstance(ufunc, np.ufunc) else ""
    module = {"numpy.linalg": "linalg.", "numpy.fft": "fft."}.get(function.__module__, "")
    return f"np.{module}{owner}{function.__name__}"


def numpy_names() -> list[str]:
    """NumPy's names of the functions that build trees."""
    return sorted({numpy_name(each) for each in (*NUMPY_FUNCTIONS, *(ufunc.reduce for ufunc in REDUCTIONS))})


def text() -> str:
    """The whole page."""
    be = gen_backend("cpu")
    parts = [BEGINNING]
    for name, functions in families().items():
        parts += [f"\n## {described(sys.modules[name]).rstrip('.')}\n", *rows(function_rows(functions, be))]

    def makes_tensors(name: str, method: Any) -> bool:
        returned = inspect.signature(method).return_annotation if inspect.isfunction(method) else None
        return returned == "Tensor" and name not in RUNNING

    parts += ["\n## Random numbers\n", *rows(method_rows(RandomMethods))]
    made = [row for cls in Backend.__mro__ if cls is not RandomMethods for row in method_rows(cls, makes_tensors)]
    parts += ["\n## New tensors\n", *rows(made)]
    parts += ["\n## Running trees\n", *rows(method_rows(Backend, lambda name, _: name in RUNNING))]
    parts += ["\n## Methods of tensors and trees alike\n", ARRAY_METHODS, *rows(method_rows(Variable))]
    parts += ["\n## Methods of tensors\n", *rows(method_rows(Tensor))]
    parts += ["\n## Methods of trees (`OpTreeNode`)\n", *rows(method_rows(OpTreeNode))]
    for module in (backends, optree, train, train.losses, train.schedules, train.initializers, testing, pictures):
        parts += [f"\n## `{module.__name__}`\n", *rows(library_rows(module))]
    parts += [DEFAULTS, *differences()]
    parts += [NUMPY, *listed(numpy_names()), LINALG]
    return "".join(parts)


if __name__ == "__main__":
    PATH.write_text(text())
