"""CUDA kernels of assignments: run on the CPU in several orders of threads, and compiled for real architectures.

Kernels of a group are traced and compiled together, by g++ and by NVRTC, in one test. NVRTC compiles each for one
architecture, by turns, and with --every-architecture for all of them. No device is needed, and none is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from harness.nvrtc import ARCHITECTURES, check_all, installed, needs_nvrtc, under_way
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
MANY = DeviceLimits(12, 4 << 10, 2048)

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
    "softmaxes in parts": (lambda: softmaxes((15000, 15001), ("float32", "float16")), MANY, {}),
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


def wide_indices(wide: bool) -> Any:
    """Whether every kernel gets indices of 64 bits."""
    return patch.object(launch_config, "INT32_LIMIT", 0 if wide else launch_config.INT32_LIMIT)


def _narrow_kinds(type: str) -> tuple[tuple[str, ...], ...]:
    accesses = (f"Vector<{type}, 8>",), ("int shift = (int)((unsigned long long)x0 / 2 % 8)",)  # of 16 bytes
    return (*accesses, (f"__shared__ {type} tile",), (f"{type} *const g",))


#: Words that a source of a group has together, for each kind of team and access that is to be among its kernels.
KINDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "staged": (
        *(
            (team,)
            for team in ("over_lanes(r", "over_block(r", "over_column(r", "extern __shared__", "stage1(", "end(")
        ),
        ("Vector<float, 4>",),
        ("int shift = (int)((unsigned long long)x0 / 4 % 4)",),
    ),
    "float16": _narrow_kinds("__half"),
    "bfloat16": _narrow_kinds("__nv_bfloat16"),
    "elementwise": (("__shared__ float tile",),),
    # A row that is read again in part, and columns that are reduced several at a time.
    "staged on a small device": (("(Index)held",), ("kernel(", "[e] = over_column(r")),
    "columns in part": (("(Index)held", "[e] = over_column(r"), ("(Index)held", "base_of", "over_column(r")),
    "staged on a few": (("stage1(", "[e] = over_column(r"),),
    # Traversals of two stages.
    "softmaxes on a small device": (("base_of", "(Index)held"), ("base_of", "shift ="), ("base_of", ", const int e)")),
    "softmaxes in parts": (("base_of(q",), ("base_of", ", const int e)")),
    "elementwise on a small device": (
        ("b0[4];", ", count);", "~parts"),
        ("b0[4];", "store(x1 + i, w1);", "~parts"),
        ("b0[2];", "quotient(k, m1)", "~parts"),
    ),
}


# Run


#: The sources that NVRTC has taken in this process: groups share some.
_compiled = set[str]()


@needs_gxx
@pytest.mark.parametrize("group", GROUPS)
def test_kernels_give_what_numpy_gives_in_every_order_of_threads(group: str, sample: Any, request: Any) -> None:
    _check(group, False, sample(list(trials_of(group, False).trials), least=1), sample, request)


@needs_gxx
@pytest.mark.parametrize("group", WIDE)
def test_the_same_with_indices_of_64_bits(group: str, sample: Any, request: Any) -> None:
    with wide_indices(True):
        _check(group, True, sample(list(trials_of(group, True).trials), least=1), sample, request)


def _check(group: str, wide: bool, names: list[str], sample: Any, request: Any) -> None:
    """Run trials whose kernels are compiled together, and let NVRTC compile them without a warning, where it is."""
    trials, errors = trials_of(group, wide), list[Exception]()
    for name in names:
        try:
            trials.check(name, names)
        except Exception as error:
            error.add_note(f"trial: {name}")
            errors.append(error)
    if errors:
        raise ExceptionGroup(f"{len(errors)} of {len(names)} trials", errors[:5])
    every = trials.sources(names)
    if len(names) == len(trials.trials):
        kinds = () if wide else KINDS.get(group, ())
        missing = [kind for kind in kinds if not any(is_of(source, kind) for source in every)]
        assert not missing, f"no source of {group} has {missing}"
        assert not wide or all("typedef long long Index;" in source for source in every)
        launches = trials.launches
        assert group != "staged" or wide or (any(x.shared for x in launches) and any(x.grid[1] > 1 for x in launches))
    if installed() is None:
        return
    sources = [source for source in every if source not in _compiled]
    _compiled.update(sources)
    options = (*OPTIONS, ODD) if group in ("ops", "reductions") else OPTIONS
    turn = [*GROUPS].index(group) + wide
    if request.config.option.every_architecture:
        for arch in ARCHITECTURES:
            check_all(sources, arch, options, assembles=True)
    else:
        drawn = sample(sources, least=1)
        for number in range(len(ARCHITECTURES)):
            arch = ARCHITECTURES[(turn + number) % len(ARCHITECTURES)]
            check_all(drawn[number :: len(ARCHITECTURES)], arch, options, assembles=number == 0)


def is_of(source: str, words: Sequence[str]) -> bool:
    """Whether a source has all these words, but those after a tilde."""
    return all(word[1:] not in source if word[0] == "~" else word in source for word in words)


# Compiled


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
