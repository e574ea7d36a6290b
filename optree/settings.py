"""The settings: every OPTREE_ environment variable, its type, default, meaning and current value.

A variable is read once, at its first use or as the first backend is made.
`override` changes settings for a block of code:

>>> with override(num_threads=2):
...     value("num_threads")
2
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from math import ceil, inf
from pathlib import Path
from types import MappingProxyType
from typing import Any

from optree.errors import OptreeError, names
from optree.records import NamedTuple

#: The stages that can be printed: those of `optree.compile.pipeline`, and the two of backends.
STAGES = ("program", "passes", "copies", "order", "parts", "fusion", "source", "plan")


#: The maximum number of threads of a kernel, each of which may have scratch memory.
MAX_THREADS = 256


class SettingError(OptreeError, ValueError):
    """Raised for an unknown setting or an invalid value."""


class Setting(NamedTuple):
    """The description of a setting."""

    #: Its name in the environment.
    variable: str
    #: The accepted values, in words.
    takes: str
    #: Its value from text, or from what `override` is given; raises ValueError for any other.
    read: Callable[[Any], Any]
    #: Its value where the environment has none.
    default: Any
    #: The effect, in a sentence.
    meaning: str


def _count(given: Any) -> int:
    number = int(given)
    if isinstance(given, bool | float) or number < 1:
        raise ValueError
    return number


def _seconds(given: Any) -> float:
    number = float(given)
    if not 0 < number < float("inf"):
        raise ValueError
    return number


def _switch(given: object) -> bool:
    if given not in ("0", "1", False, True):
        raise ValueError
    return bool(int(given))


def _folder(given: Any) -> Path:
    path = Path(given)
    if str(path).startswith("~") and os.environ.get("HOME") == "":  # ~ would expand to the root
        raise ValueError
    return path.expanduser().absolute()


def _one_of(*words: str) -> Callable[[Any], str]:
    def read(given: object) -> str:
        if given not in words:
            raise ValueError
        return str(given)

    return read


def _shown(given: Any) -> frozenset[str]:
    words = frozenset(given.replace(",", " ").split() if isinstance(given, str) else given)
    if not words <= frozenset(STAGES):
        raise ValueError
    return words


#: Name -> setting. The name is the variable's, without OPTREE_ and in lower case.
SETTINGS: Mapping[str, Setting] = MappingProxyType(
    {
        setting.variable.removeprefix("OPTREE_").lower(): setting
        for setting in (
            Setting(
                "OPTREE_CACHE_BYTES",
                "an integer of 1 or more",
                _count,
                1 << 30,
                "The bytes of compiled kernels cached on disk; above that, the least recently used are deleted.",
            ),
            Setting(
                "OPTREE_CACHE_DIR",
                "a folder",
                _folder,
                None,
                "The folder of compiled kernels. A relative path is resolved when the process makes its first "
                "backend. The default is optree in XDG_CACHE_HOME, or in ~/.cache.",
            ),
            Setting(
                "OPTREE_COMPILE_SECONDS",
                "a number of seconds above 0",
                _seconds,
                60.0,
                "How long a C compiler may take for one kernel before it is stopped.",
            ),
            Setting(
                "OPTREE_NUM_THREADS",
                "an integer of 1 or more",
                _count,
                None,
                "The threads that a kernel may use, at most 256. The default is OMP_NUM_THREADS, or one for each "
                "processor within the quota of the control group.",
            ),
            Setting(
                "OPTREE_ROUNDING",
                "store or each",
                _one_of("store", "each"),
                "store",
                "Where kernels round float16 and bfloat16, which they compute in float32: where a value is stored, or "
                "after each op, as NumPy does. It is read when a tree is compiled.",
            ),
            Setting(
                "OPTREE_SHOW",
                f"names of stages separated by commas, of {', '.join(STAGES)}",
                _shown,
                frozenset(),
                "Stages of lowering that are printed to the standard error stream, each as it is made; source is each "
                "kernel's.",
            ),
            Setting(
                "OPTREE_STALE_TREES",
                "warn, error or ignore",
                _one_of("warn", "error", "ignore"),
                "warn",
                "The response if a tree first runs after one of its tensors was written, and so reads the new value.",
            ),
            Setting(
                "OPTREE_SYNC",
                "0 or 1",
                _switch,
                False,
                "Whether the host waits for a GPU after each step, and no step is captured as a CUDA graph, so that a "
                "kernel's fault is raised by its own step.",
            ),
            Setting(
                "OPTREE_TUPLE_ACCESS",
                "warn, error or ignore",
                _one_of("warn", "error", "ignore"),
                "warn",
                "The response if a line iterates over a tree or unpacks it, and so gets its op_dict and operands.",
            ),
        )
    }
)

_environment: dict[str, Any] = {}


class _Overrides(threading.local):
    """The values that `override` has set in this thread."""

    # Not a context variable: backends run kernels in their own context, where NumPy does not warn.
    values: Mapping[str, Any] = MappingProxyType({})


_overrides = _Overrides()


def value(name: str) -> Any:
    """The value of a setting now.

    Raises
    ------
    SettingError
        If there is no such setting, or the environment has a value that it cannot take.
    """
    if name in _overrides.values:
        return _overrides.values[name]
    if name not in _environment:
        setting = _setting(name)
        given = os.environ.get(setting.variable, "")
        _environment[name] = _checked(setting, given) if given.strip() else setting.default
    return _environment[name]


def thread_count() -> int:
    """The number of threads that a kernel may use."""
    return min(value("num_threads") or _default_count(), MAX_THREADS)


@cache
def _default_count() -> int:
    """The first number of OMP_NUM_THREADS, or the processors that this process may run on, within its quota."""
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if first.isdecimal() and int(first) > 0:
        return int(first)
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, ceil(min(count, _quota())))


def _quota(membership: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> float:
    """The CPU quota of Linux's control groups for this process, such as a container's, in processors; inf without one.

    More threads than that would use up the quota, because threads spin for a moment before they sleep.

    `membership`: the file of the process's groups.
    `root`: the folder of version 2's hierarchy, and of version 1's, by controller.
    """
    found = inf
    try:
        groups = [line.split(":", 2)[1:] for line in membership.read_text().splitlines() if line.count(":") > 1]
    except OSError:
        return found
    for controllers, group in groups:
        if controllers and "cpu" not in controllers.split(","):
            continue
        folder = (root / "cpu" if controllers else root) / group.lstrip("/")
        for each in (folder, *folder.parents):
            # Above the groups there is no such file, and "max" or -1 is no limit.
            with suppress(OSError, ValueError):
                if controllers:
                    quota, period = ((each / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
                else:
                    quota, period = (each / "cpu.max").read_text().split()
                found = min(found, int(quota) / int(period)) if int(quota) > 0 else found
    return found


def carried(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that it runs with this thread's settings in any thread."""
    values = _overrides.values

    def call(*args: object) -> Any:
        before, _overrides.values = _overrides.values, values
        try:
            return function(*args)
        finally:
            _overrides.values = before

    return call


@contextmanager
def override(**values: object) -> Iterator[None]:
    """Set these settings within a block, in this thread alone; None stands for the default."""
    checked = {}
    for name, given in values.items():
        setting = _setting(name)
        checked[name] = setting.default if given is None else _checked(setting, given)
    before = _overrides.values
    _overrides.values = {**before, **checked}
    try:
        yield
    finally:
        _overrides.values = before


def read() -> None:
    """Read all variables of the environment, so that a wrong one is an error early."""
    for name in SETTINGS:
        value(name)


def reread() -> None:
    """Clear the values that were read, so that the environment is read again at the next use."""
    _environment.clear()


def _setting(name: str) -> Setting:
    if name not in SETTINGS:
        raise SettingError(f"there is no setting {name!r}; there are {names(SETTINGS)}")
    return SETTINGS[name]


def _checked(setting: Setting, given: object) -> Any:
    try:
        return setting.read(given)
    except (ValueError, TypeError, OverflowError, RuntimeError):  # RuntimeError: no home folder for ~
        raise SettingError(f"{setting.variable} takes {setting.takes}, not {given!r}") from None
