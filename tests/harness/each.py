"""One test of many short cases, which lists those that fail: pytest takes longer for a test than they take."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest


def for_each(names: str | tuple[str, ...], cases: Iterable[Any], sampled: bool = False) -> Callable[[Any], Any]:
    """A decorator like ``pytest.mark.parametrize``, by which one test runs all cases.

    Parameters
    ----------
    names : str or tuple of str
        The argument that a case is, or the arguments whose values it has.
    cases : iterable
    sampled : bool
        Whether the cases are a matrix, of which a sample runs where matrices are sampled.
    """
    listed, own = [*cases], (names,) if isinstance(names, str) else names

    def decorated(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def of_each(**given: Any) -> None:
            errors: list[BaseException] = []
            for case in given.pop("sample")(listed) if sampled else listed:
                values = (case,) if isinstance(names, str) else case
                try:
                    test(**given, **dict(zip(own, values, strict=True)))
                except pytest.skip.Exception:
                    continue
                except (Exception, pytest.fail.Exception) as error:
                    error.add_note(f"case: {', '.join(map(str, values))}")
                    errors.append(error)
            if len(errors) == 1:
                raise errors[0]
            if errors:
                failed = "; ".join(error.__notes__[-1].removeprefix("case: ") for error in errors)
                raise BaseExceptionGroup(f"{len(errors)} of {len(listed)} cases: {failed:.2000}", errors[:5])

        signature = inspect.signature(test)
        rest: Sequence[inspect.Parameter] = [p for p in signature.parameters.values() if p.name not in own]
        if sampled:
            rest = [*rest, inspect.Parameter("sample", inspect.Parameter.KEYWORD_ONLY)]
        of_each.__signature__ = signature.replace(parameters=rest)  # type: ignore[attr-defined]
        del of_each.__wrapped__  # type: ignore[attr-defined]
        return of_each

    return decorated
