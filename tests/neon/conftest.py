"""Backends in neon's mode."""

from __future__ import annotations

from typing import Any

import pytest
from harness.homes import home


@pytest.fixture(params=["cpu", "stand-in"])
def ne(request: Any) -> Any:
    """A backend in neon's mode, of batches of 4."""
    given = request.config.getoption("home")
    if given and request.param not in given:
        pytest.skip("--home names another")
    return home(request.param, compat_mode="neon", batch_size=4, rng_seed=1)
