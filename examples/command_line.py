"""Options that the examples' command lines share."""

from __future__ import annotations

import argparse
from typing import Any


def parser_of(purpose: str) -> argparse.ArgumentParser:
    """A parser that knows where to run and from which seed; its help says what holds without an option."""
    formatter = argparse.ArgumentDefaultsHelpFormatter
    parser = argparse.ArgumentParser(description=purpose.splitlines()[0], formatter_class=formatter)
    parser.add_argument("--backend", choices=["cpu", "gpu"], default="cpu", help="where to run")
    parser.add_argument("--seed", type=whole(0, 2**32 - 1), default=0, help="of the first weights and the order")
    return parser


def whole(low: int, high: int | None = None) -> Any:
    """A reader of whole numbers from `low` up to `high`."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if number < low or (high is not None and number > high):
            bounds = f"{low} or more" if high is None else f"from {low} to {high}"
            raise argparse.ArgumentTypeError(f"{number} is not {bounds}")
        return number

    return read
