"""CUDA kernels of assignments: compiled for real architectures, and run on the CPU in several orders of threads.

NVRTC compiles each kernel for one architecture, by turns, and with --every-architecture for all of them. No device
is needed, and none is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from harness import cuda
from harness.cuda import KernelFault, needs_gxx
from harness.cuda_samples import without_each
from harness.cuda_trials import (
    columns,
    drawn,
    elementwise,
    narrow,
    ops,
    plain,
    random_trees,
    reductions,
    softmaxes,
    staged,
    views,
)
from harness.emulated import Collector, Emulator, Trial, Trials
from harness.nvrtc import ARCHITECTURES, check_all, needs_nvrtc, under_way
from harness.staged import normalised, softmax

from backends.gpu import launch_config
from backends.gpu.launch_config import DEVICES, DeviceLimits, Launch
from backends.gpu.runtime import OPTIONS
from optree.dtypes import bfloat16

pytestmark = pytest.mark.slow

#: A device so small that rows of some hundred elements do not stay in shared memory, and few threads fill it.
SMALL = DeviceLimits(1, 4 << 10, 32)

#: Several of these, which one place does not fill.
FEW = DeviceLimits(4, 4 << 10, 32)

#: One that few places fill, and that has shared memory for long rows.
ROOMY = DeviceLimits(1, 227 << 10, 2048)

#: One that has more places than rows, which are split among them.
MANY = DeviceLimits(32, 4 << 10, 2048)

#: One that keeps columns in part.
PARTIAL = DeviceLimits(1, 20 << 10, 2048)

FLOATS = ("float32", "float64", "float16")


def thinned(trials: dict[str, Trial], first: int, step: int) -> dict[str, Trial]:
    """Each so-many-th of trials that run elsewhere, too."""
    return dict(list(trials.items())[first::step])


GROUPS: dict[str, tuple[Callable[[], dict[str, Trial]], DeviceLimits, dict[str, Any]]] = {
    "ops": (ops, DEVICES["sm_90"], {}),
    "reductions": (reductions, DEVICES["sm_90"], {}),
    "staged": (staged, DEVICES["sm_90"], {}),
    "staged on a small device": (lambda: staged((3, 33, 257, 5000)), SMALL, {}),
    "staged on a few": (lambda: staged((257, 5000), ("float32",)), FEW, {}),
    "staged on a roomy device": (lambda: staged((17000, 40000, 60004), ("float32",)), ROOMY, {}),
    "columns in part": (columns, PARTIAL, {}),
    "softmaxes": (lambda: softmaxes((5, 5000, 5001), (*FLOATS, bfloat16())), DEVICES["sm_90"], {}),
    "softmaxes on a small device": (lambda: softmaxes((1201, 4000, 4001), (*FLOATS, bfloat16())), SMALL, {}),
    "softmaxes in parts": (lambda: softmaxes((40000, 40001), ("float32", "float16")), MANY, {}),
    "views": (views, DEVICES["sm_90"], {}),
    "elementwise": (elementwise, DEVICES["sm_90"], {}),
    "elementwise on a small device": (elementwise, SMALL, {}),
    "float16": (partial(narrow, np.dtype("float16")), DEVICES["sm_90"], {}),
    "float16 on a small device": (lambda: thinned(narrow(np.dtype("float16")), 0, 2), SMALL, {}),
    "bfloat16": (partial(narrow, bfloat16()), DEVICES["sm_90"], {}),
    "bfloat16 on a small device": (lambda: thinned(narrow(bfloat16()), 1, 2), SMALL, {}),
    "random trees": (random_trees, DEVICES["sm_90"], {"datatype": np.float64}),
}

#: With indices of 64 bits, which only arrays too large for a test would ask for.
WIDE: dict[str, tuple[Callable[[], dict[str, Trial]], DeviceLimits, dict[str, Any]]] = {
    "staged": (lambda: staged((3, 33, 5000), ("float32",)), DEVICES["sm_90"], {}),
    "views": (lambda: thinned(views(), 0, 3), DEVICES["sm_90"], {}),
    "elementwise": (elementwise, DEVICES["sm_90"], {}),
}

#: What NVRTC finds odd in an op's expression only because of the dtype that it is for: x < 0 of unsigned integers.
ODD = "--diag-suppress=186"


@cache
def trials_of(group: str, wide: bool) -> Trials:
    make, device, options = (WIDE if wide else GROUPS)[group]
    return Trials(make(), device, **options)


def sources_in(group: str, wide: bool = False, names: Iterable[str] | None = None) -> list[str]:
    """The sources of a group's trials of these names, or of all."""
    with wide_indices(wide):
        return trials_of(group, wide).sources(names)


def wide_indices(wide: bool) -> Any:
    """Whether every kernel gets indices of 64 bits."""
    return patch.object(launch_config, "INT32_LIMIT", 0 if wide else launch_config.INT32_LIMIT)


@cache
def those_that_run(session: pytest.Session, test: Callable[..., None], group: str) -> dict[str, None]:
    """The names of a group's cases of a test that run, in order."""
    cases = (item.callspec.params for item in session.items if getattr(item, "function", None) is test)
    return {params["name"]: None for params in cases if params["group"] == group}


def _names(groups: dict[str, Any]) -> list[Any]:
    return [pytest.param(group, name, id=f"{group}-{name}") for group, (make, *_) in groups.items() for name in make()]


# Run


@pytest.mark.matrix
@needs_gxx
@pytest.mark.parametrize(("group", "name"), _names(GROUPS))
def test_a_kernel_gives_what_numpy_gives_in_every_order_of_threads(group: str, name: str, request: Any) -> None:
    trials_of(group, False).check(name, those_that_run(request.session, request.function, group))


@pytest.mark.matrix
@needs_gxx
@pytest.mark.parametrize(("group", "name"), _names(WIDE))
def test_the_same_with_indices_of_64_bits(group: str, name: str, request: Any) -> None:
    with wide_indices(True):
        trials_of(group, True).check(name, those_that_run(request.session, request.function, group))


def check_has(group: str, *kinds: tuple[str, ...], without: str = "\0") -> None:
    """Assert that for each kind there is a source among a group's that has all its words, and not another."""
    missing = [*kinds]
    for name in trials_of(group, False).trials:
        sources = [source for source in sources_in(group, names=[name]) if without not in source]
        missing = [kind for kind in missing if not any(all(word in source for word in kind) for source in sources)]
        if not missing:
            return
    raise AssertionError(f"no source of {group} has {missing}")


@pytest.mark.matrix(least=0)
@needs_gxx
def test_every_kind_of_team_is_among_them() -> None:
    teams = ("over_lanes(r", "over_block(r", "over_column(r", "extern __shared__", "stage1(", "end(")
    vectors = ("Vector<float, 4>", "int shift = (int)((unsigned long long)x0 / 4 % 4)")
    check_has("staged", *((word,) for word in (*teams, *vectors)))
    for dtype, type in (("float16", "__half"), ("bfloat16", "__nv_bfloat16")):
        accesses = (f"Vector<{type}, 8>",), ("int shift = (int)((unsigned long long)x0 / 2 % 8)",)  # of 16 bytes
        check_has(dtype, *accesses, (f"__shared__ {type} tile",), (f"{type} *const g",))
    check_has("elementwise", ("__shared__ float tile",))
    launches = trials_of("staged", False).launches
    assert any(launch.shared for launch in launches) and any(launch.grid[1] > 1 for launch in launches)
    # A row that is read again in part, and columns that are reduced several at a time.
    check_has("staged on a small device", ("(Index)held",), ("kernel(", "[e] = over_column(r"))
    check_has("columns in part", ("(Index)held", "[e] = over_column(r"), ("(Index)held", "base_of", "over_column(r"))
    check_has("staged on a few", ("stage1(", "[e] = over_column(r"))
    # Traversals of two stages.
    words = "(Index)held", "shift =", ", const int e)"
    check_has("softmaxes on a small device", *(("base_of", word) for word in words))
    check_has("softmaxes in parts", ("base_of(q",), ("base_of", ", const int e)"))
    assert all("typedef long long Index;" in source for source in sources_in("views", True))
    several = ("b0[4];", ", count);"), ("b0[4];", "store(x1 + i, w1);"), ("b0[2];", "quotient(k, m1)")
    check_has("elementwise on a small device", *several, without="parts")


# Compiled


@pytest.mark.matrix(least=1)
@needs_nvrtc
@needs_gxx
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_kernel_compiles_without_a_warning(arch: str, request: pytest.FixtureRequest, sample: Any) -> None:
    """Of the trials that run, or a sample of them; of all trials, where none runs."""
    ran = [(group, False, test_a_kernel_gives_what_numpy_gives_in_every_order_of_threads) for group in GROUPS]
    ran += [(group, True, test_the_same_with_indices_of_64_bits) for group in WIDE]
    odd, others = dict[str, None](), dict[str, None]()
    for group, wide, test in ran:
        found = sources_in(group, wide, those_that_run(request.session, test, group) or None)
        (odd if group in ("ops", "reductions") else others).update(dict.fromkeys(found))
    rest = [source for source in others if source not in odd]
    for sources, options in ((list(odd), (*OPTIONS, ODD)), (rest, OPTIONS)):
        every = request.config.getoption("--every-architecture")
        check_all(sources if every else sample(sources[ARCHITECTURES.index(arch) :: len(ARCHITECTURES)]), arch, options)


def turned(be: Any) -> np.ndarray:
    return (be.array(drawn(0, 40, 67)).T + be.array(drawn(1, 67, 40))).asnumpyarray()


@needs_nvrtc
def test_all_loads_of_a_tile_are_under_way_before_the_first_is_used() -> None:
    (source,) = sources_of(turned)
    assert "tile0[lane]" in source and under_way(source, OPTIONS) == 2 * 4


# Sanitized


def centred(be: Any, x: Any, axis: int) -> np.ndarray:
    return (x - be.mean(x, axis=axis)).asnumpyarray()


def joined(be: Any, x: Any, axis: int) -> np.ndarray:
    """Several reductions by one kernel, more than there are arrays for their parts."""
    found = be.sum(x, axis=axis) + be.sum(x * x, axis=axis) * be.max(x, axis=axis)
    return (found - be.sum(x * 3, axis=axis) * be.min(x, axis=axis) + be.sum(x - 1, axis=axis)).asnumpyarray()


#: A run for each kind of team, with several places and reductions; "once" with one, which the barrier after a place
#: keeps apart from itself at the next. (Between several reductions, which alternate, another's barrier does, too.)
TEAMS: dict[str, Callable[[Any], Sequence[np.ndarray]]] = {
    "no team": lambda be: [(be.array(drawn(0, 40, 67))[:, 1:] * 2 + be.array(drawn(1, 66))).asnumpyarray()],
    "tiles, once": lambda be: [turned(be)],
    "warp": lambda be: [softmax(be, be.array(drawn(0, 9, 67)), 1).asnumpyarray()],
    "lanes": lambda be: [softmax(be, be.array(drawn(0, 70, 5)), 1).asnumpyarray()],
    "block, once": lambda be: [centred(be, be.array(drawn(0, 3, 1203)), 1)],
    "block": lambda be: [softmax(be, be.array(drawn(0, 3, 1203)), 1).asnumpyarray()],
    "block of many": lambda be: [joined(be, be.array(drawn(0, 3, 1203)), 1)],
    "columns of many": lambda be: [joined(be, be.array(drawn(0, 45, 70)), 0)],
    "split of many": lambda be: [joined(be, be.array(drawn(0, 2, 9003)), 1)],
    "split columns of many": lambda be: [joined(be, be.array(drawn(0, 1003, 40)), 0)],
    "part, once": lambda be: [centred(be, be.array(drawn(0, 3, 1203)), 1)],
    "part": lambda be: [softmax(be, be.array(drawn(0, 3, 1203)), 1).asnumpyarray()],
    "columns, once": lambda be: [centred(be, be.array(drawn(0, 45, 70)), 0)],
    "columns": lambda be: [softmax(be, be.array(drawn(0, 45, 70)), 0).asnumpyarray()],
    "several columns, once": lambda be: [centred(be, be.array(drawn(0, 45, 72)), 0)],
    "several columns": lambda be: [softmax(be, be.array(drawn(0, 45, 72)), 0).asnumpyarray()],
    "split, once": lambda be: [centred(be, be.array(drawn(0, 2, 9003)), 1)],
    "split": lambda be: [normalised(be, be.array(drawn(0, 2, 9003)), 1).asnumpyarray()],
    "split columns, once": lambda be: [centred(be, be.array(drawn(0, 1003, 40)), 0)],
    "several split columns, once": lambda be: [centred(be, be.array(drawn(0, 1003, 40)), 0)],
    "several split columns": lambda be: [normalised(be, be.array(drawn(0, 1003, 40)), 0).asnumpyarray()],
    "split columns": lambda be: [normalised(be, be.array(drawn(0, 1003, 40)), 0).asnumpyarray()],
}


def device_of(team: str) -> DeviceLimits:
    return FEW if "several split" in team else SMALL if team.startswith(("part", "several")) else DEVICES["sm_90"]


def sources_of(run: Callable[[Any], Any], device: DeviceLimits = DEVICES["sm_90"]) -> list[str]:
    collector = Collector(device)
    run(collector.backend())
    return list(dict.fromkeys(collector.sources))


class FewBlocks(Emulator):
    """As few blocks along x as there can be, so that each has several places, one after another."""

    def launch(self, kernel: Any, launch: Launch, words: Sequence[int]) -> None:
        super().launch(kernel, Launch(launch.name, (1, launch.grid[1]), launch.block, launch.shared), words)


def needs(sanitize: str) -> None:
    if reason := cuda.why_no_sanitizer(sanitize):
        pytest.skip(reason)


@cache
def _sanitized(sanitize: str, teams: tuple[str, ...]) -> FewBlocks:
    """An emulator, with the kernels of some teams compiled together."""
    needs(sanitize)
    sources = (source for team in teams for source in sources_of(TEAMS[team], device_of(team)))
    return FewBlocks(list(dict.fromkeys(sources)), sanitize=sanitize)


def _check_team(emulator: Emulator, team: str) -> None:
    emulator.device = device_of(team)
    (got,), (wanted,) = TEAMS[team](emulator.backend()), TEAMS[team](plain())
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.matrix(least=0)
@needs_gxx
@pytest.mark.parametrize("sanitize", ["address", "thread"])
@pytest.mark.parametrize("team", TEAMS)
def test_each_kind_of_team_is_clean_under_the_sanitizers(team: str, sanitize: str, request: Any) -> None:
    cases = (
        item.callspec.params for item in request.session.items if getattr(item, "function", None) is request.function
    )
    emulator = _sanitized(sanitize, tuple(case["team"] for case in cases if case["sanitize"] == sanitize))
    for emulator.order in ("shuffled",) if sanitize == "address" else ("forward", "shuffled"):
        _check_team(emulator, team)


@pytest.mark.matrix(least=0)
@needs_gxx
def test_every_barrier_left_out_of_a_kernel_is_found(sample: Any) -> None:
    needs("thread")
    every = [
        (team, source, text)
        for team in TEAMS
        if team.endswith("once")
        for source in sources_of(TEAMS[team], device_of(team))
        for text in without_each("__syncthreads();", source)
    ]
    assert len(every) == 2 + 2 + 2 + 3 + 3 + 3 + 3 + 3
    missed, cases = [], sample(every, least=4)
    clean = _sanitized("thread", tuple(dict.fromkeys(team for team, *_ in cases)))
    for (team, source, text), module in zip(cases, cuda.load([text for *_, text in cases], "thread"), strict=True):
        emulator = FewBlocks(sanitize="thread")
        emulator.modules = {**clean.modules, source: module}
        try:
            _check_team(emulator, team)
        except KernelFault as fault:
            assert "data race" in str(fault)
        else:
            missed.append((team, text))
    assert not missed, f"{len(missed)}, the first in {missed[0][0]}: {missed[0][1]}"


@pytest.mark.matrix(least=0)
@needs_gxx
def test_an_overrun_of_a_kernel_is_found() -> None:
    """An access one element further on than there are, in an end that no whole access covers."""
    needs("address")

    def run(be: Any) -> np.ndarray:
        return (be.array(drawn(0, 67)) * 2).asnumpyarray()

    (source,) = sources_of(run)
    assert "e < count ? p[e]" in source
    emulator = Emulator([source], sanitize="address")
    run(emulator.backend())
    emulator.modules[source] = cuda.load([source.replace("e < count ? p[e]", "e <= count ? p[e]")], "address")[0]
    with pytest.raises(KernelFault, match="AddressSanitizer"):
        run(emulator.backend())
