"""Examples of ops: the operands and parameters that tests and documentation draw."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

#: Operands and parameters, as `Examples.cases` has them.
Cases = tuple[tuple[tuple[Any, ...], dict[str, Any]], ...]


class Examples:
    """The examples of an op. Attributes that a class does not give are inherited.

    Attributes
    ----------
    cases : tuple, optional
        Operands and parameters on which every promise is checked. Each is
        ``((operand, ...), {parameter: value})``, where a tuple is the shape of a floating operand drawn from `sample`,
        a list has an integer operand's values, and a number is itself. An elementwise op needs none.
    sample : tuple of float, optional
        An interval on which the op is smooth; by default from -2 to 2.
    takes_floats : bool, optional
        Whether it takes floating operands, as by default; if not, a tuple in `cases` is the shape of an integer one.
    random_props : callable or False, optional
        From a choice and an operand to parameters, for `optree.testing.random_tree`; False: it draws none of the op.
    """

    def __init__(
        self,
        cases: Cases | None = None,
        sample: tuple[float, float] | None = None,
        takes_floats: bool | None = None,
        random_props: Callable[..., dict[str, Any]] | Literal[False] | None = None,
    ) -> None:
        self.cases, self.sample, self.takes_floats, self.random_props = cases, sample, takes_floats, random_props


#: Those of an op that gives none.
DEFAULT = Examples((), (-2.0, 2.0), True)


def examples_in(cls: type) -> Any:
    """The `Examples` of a class of ops, with the inherited attributes."""
    found = Examples()
    for kind in cls.__mro__:
        given = kind.__dict__.get("examples", ())
        given = vars(given) if isinstance(given, Examples) else {"cases": given} if "examples" in vars(kind) else {}
        for name, value in given.items():
            if getattr(found, name) is None:
                setattr(found, name, value)
    return found
