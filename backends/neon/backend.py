"""NeonBackend, neon's surface over a backend of ours, and its constructors by neon's names."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from backends import lazy
from backends.cpu import CPUBackend
from backends.neon.measures import Measures
from backends.neon.objects import make_current
from optree.errors import BackendArgumentError, names
from optree.run.function import use_backend


class NeonBackend(Measures):
    """A backend in neon's mode, with all of the methods of neon's backends.

    neon's CPU and GPU backends differ in places. This is one rule for both, on every device.
    """

    @staticmethod
    def backend_choices() -> list[str]:
        """The names of the backends."""
        return sorted(CONSTRUCTORS)

    @staticmethod
    def allocate_backend(name: str, **options: Any) -> Any:
        """A new backend, by name and its constructor's arguments."""
        if name not in CONSTRUCTORS:
            raise BackendArgumentError(f"there is no backend {name!r}; there are {names(CONSTRUCTORS)}")
        return CONSTRUCTORS[name](**options)


@cache
def neon_class(base: Any) -> type[Any]:
    """A backend's class in neon's mode."""
    return type(base.__name__, (NeonBackend, base), {"__doc__": base.__doc__, "__module__": base.__module__})


def NervanaCPU(
    rng_seed: int | None = None,
    default_dtype: Any = "float32",
    hist_bins: int = 64,
    hist_offset: int = -48,
    compat_mode: str | None = None,
    num_devices: int | None = None,
    stochastic_round: bool | int = False,
    device_id: int = 0,
    deterministic: Any = None,
) -> Any:
    """A CPU backend in neon's mode, by the arguments of neon's class of this name.

    Examples
    --------
    >>> NervanaCPU(default_dtype="float64").zeros(2).shape
    (2, 1)
    """
    return _made(CPUBackend, rng_seed, default_dtype, stochastic_round, device_id, compat_mode, hist_bins, hist_offset)


def NervanaGPU(
    rng_seed: int | None = None,
    default_dtype: Any = "float32",
    stochastic_round: bool | int = False,
    device_id: int = 0,
    bench: bool = False,
    scratch_size: int = 0,
    hist_bins: int = 64,
    hist_offset: int = -48,
    compat_mode: str | None = None,
    enable_winograd: Any = True,
    num_devices: int | None = None,
    deterministic: Any = None,
) -> Any:
    """A GPU backend in neon's mode, by the arguments of neon's class of this name."""
    kind = lazy.gpu.GPUBackend
    made = _made(kind, rng_seed, default_dtype, stochastic_round, device_id, compat_mode, hist_bins, hist_offset)
    made.bench, made.enable_winograd = bench, enable_winograd
    return made


def _made(
    kind: Any,
    seed: int | None,
    dtype: Any,
    stochastic_round: Any,
    device_id: int,
    mode: str | None,
    bins: int,
    offset: int,
) -> Any:
    made = neon_class(kind)(seed, dtype, 0, stochastic_round, device_id, mode)
    made.set_hist_buffers(bins, offset)
    use_backend(made)
    make_current(made)
    return made


#: Backend name -> the function that makes one.
CONSTRUCTORS: dict[str, Callable[..., Any]] = {"cpu": NervanaCPU, "gpu": NervanaGPU}
