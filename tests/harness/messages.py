"""Messages of errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from optree.errors import OptreeError


def message_of(kind: Any, make: Callable[[], Any]) -> str:
    """The message of the error, one of op-tree's own, that a call raises."""
    with pytest.raises(kind) as caught:
        make()
    assert isinstance(caught.value, OptreeError)
    return str(caught.value)
