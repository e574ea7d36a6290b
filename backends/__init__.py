"""Where trees run: `gen_backend` makes a backend."""

from __future__ import annotations

from typing import Any

import numpy as np

from backends.backend import Backend
from backends.cpu import CPUBackend


def gen_backend(
    backend: str = "cpu",
    rng_seed: int | None = None,
    datatype: Any = np.float32,
    batch_size: int = 0,
    stochastic_round: bool | int = False,
    device_id: int = 0,
    compat_mode: str | None = None,
) -> Backend:
    return CPUBackend(rng_seed, datatype, batch_size, stochastic_round, device_id, compat_mode)


__all__ = ["Backend", "gen_backend"]
