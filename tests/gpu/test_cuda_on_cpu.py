"""CUDA kernels on the CPU: right ones give right results in every order, and faults are found."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.harness import cuda
from tests.harness import cuda_samples as samples
from tests.harness.cuda import ORDERS, KernelFault, Module, load, needs_gxx
from tests.harness.cuda_samples import without_each
from tests.harness.nvrtc import compile_cuda, needs_nvrtc

pytestmark = needs_gxx

RIGHT = {
    "softmax": samples.SOFTMAX,
    "columns": samples.COLUMNS,
    "add_up": samples.TWO_STAGES,
    "copy": samples.COPY,
    "warps": samples.WARPS,
    "halves": samples.HALVES,
    "scale": samples.STRUCT,
    "functions": samples.FUNCTIONS,
}

#: What samples.FUNCTIONS makes of 1.75.
FUNCTIONS = [
    0xDEADBEEF * 0xD2511F53 >> 32,
    float(0xFEDCBA9876543210 >> 24),
    24 + 2400 + 50000,
    6 << 28,  # 0110 at one end is 0110 at the other
    np.inf,
    float(np.float32(1.75).view(np.uint32)),
    1.5,
    2**31 - 1 + 0 - 2,
    2.0**63,
    -4 + 2.5 + 1.5 + 9 + 5,
    1,
    1,
    2 * (1.75**2 + 1) + 2.75 + 5.25,
    -2 + 1.75 + 2 + 1 + 0,
    3.5,
    4 + 2 + 32,
    0x1DE - 2,
    32 + 1 + 1,
    5,
    8,
    20,
    1,
]

#: A sanitizer compiles all kernels once more, which takes seconds.
SANITIZERS = [None, *(pytest.param(name, marks=pytest.mark.matrix(least=0)) for name in ("address", "thread"))]

rng = np.random.default_rng(3)


def needs(sanitize: str | None) -> None:
    if sanitize is not None and (reason := cuda.why_no_sanitizer(sanitize)):
        pytest.skip(reason)


@cache
def right(sanitize: str | None) -> dict[str, Module]:
    needs(sanitize)
    return dict(zip(RIGHT, load(list(RIGHT.values()), sanitize), strict=True))


def faulty(source: str, sanitize: str | None = None) -> Module:
    needs(sanitize)
    every = [text for name, text in vars(samples).items() if name.isupper() and text not in RIGHT.values()]
    return _loaded(tuple(every), sanitize)[every.index(source)]


@cache
def _loaded(sources: tuple[str, ...], sanitize: str | None) -> list[Module]:
    return load(sources, sanitize)


# Right kernels


def check_softmax(module: Module, **how: Any) -> None:
    for rows, n, block in ((3, 1000, 256), (2, 17, 64), (1, 1, 32)):
        x = rng.normal(size=(rows, n)).astype(np.float32)
        y = np.zeros_like(x)
        module.launch("softmax", rows, block, [x, y, n], **how)
        e = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
        np.testing.assert_allclose(y, e / e.sum(axis=1, keepdims=True), rtol=1e-5)


def check_columns(module: Module, **how: Any) -> None:
    x = rng.normal(size=(50, 70))
    y = np.zeros(70)
    module.launch("columns", 3, (32, 8), [x, y, *x.shape], shared=8 * 33 * 8, **how)
    np.testing.assert_allclose(y, x.sum(axis=0))


def check_add_up(module: Module, **how: Any) -> None:
    x = rng.normal(size=5000).astype(np.float32)
    parts, finished, y = np.zeros(5, np.float32), np.zeros(1, np.uint32), np.zeros(1, np.float32)
    module.launch("add_up", 5, 128, [x, parts, finished, y, x.size], **how)
    np.testing.assert_allclose(y[0], x.sum(), rtol=1e-3)
    assert finished == [0]


def check_copy(module: Module, **how: Any) -> None:
    for n in (1, 4, 1003):
        x = rng.normal(size=n).astype(np.float32)
        y = np.zeros_like(x)
        module.launch("copy", 2, 96, [x, y, n], **how)
        np.testing.assert_array_equal(x, y)


def check_warps(module: Module, **how: Any) -> None:
    x = rng.integers(-9, 9, size=64).astype(np.int32)
    sums, ballots, neighbours = np.zeros_like(x), np.zeros(64, np.uint32), np.zeros_like(x)
    module.launch("warps", 1, 64, [x, sums, ballots, neighbours], **how)
    np.testing.assert_array_equal(sums, x.reshape(4, 16).sum(axis=1).repeat(16))
    bits = ((x > 0).reshape(2, 32) * (1 << np.arange(32))).sum(axis=1)
    np.testing.assert_array_equal(ballots, bits.repeat(32))
    np.testing.assert_array_equal(neighbours, np.where(np.arange(64) % 32, np.roll(x, 1), x))


def check_halves(module: Module, **how: Any) -> None:
    x, y = (rng.normal(size=500).astype(np.float16) * 10.0 ** rng.integers(-6, 4) for _ in range(2))
    x[:6], y[:6] = [np.inf, np.nan, 65504, 6e-8, -0.0, 1e-5], [1, 1, 2, 0.5, 1, 1e-3]
    x, y = x.astype(np.float16), y.astype(np.float16)
    z, b = np.zeros_like(x), np.zeros(500, np.uint16)
    module.launch("halves", 8, 64, [x, y, z, b, 500], **how)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(z, x * y)
        exact = (x + y).astype(np.float32)
    brain = (b.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_allclose(brain, exact, rtol=2**-8)
    np.testing.assert_array_equal(np.signbit(z[4]), True)


def check_scale(module: Module, **how: Any) -> None:
    x, z, y = rng.normal(size=(7, 5)), rng.normal(size=7), np.zeros(7)
    axes = ((x[:, 2], np.int32(5)), (z, np.int32(1)))
    module.launch("scale", 1, 32, [(axes, y, np.float32(0.5), np.int8(-1)), 7], **how)
    np.testing.assert_array_equal(y, -0.5 * (x[:, 2] + z))


def check_functions(module: Module, **how: Any) -> None:
    y = np.zeros(len(FUNCTIONS))
    module.launch("functions", 1, 1, [np.array([1.75]), y], **how)
    np.testing.assert_array_equal(y, FUNCTIONS)


@pytest.mark.parametrize("sanitize", SANITIZERS)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", RIGHT)
def test_right_kernels_are_right_and_clean(name: str, order: str, sanitize: str | None) -> None:
    module = right(sanitize)[name]
    for seed in range(3 if order == "shuffled" and sanitize is None else 1):
        globals()[f"check_{name}"](module, order=order, seed=seed)


@needs_nvrtc
@pytest.mark.parametrize("name", RIGHT)
def test_the_same_source_is_cuda(name: str) -> None:
    assert name in compile_cuda(RIGHT[name]).usage


def test_halves_are_rounded_as_numpys_are() -> None:
    every = np.arange(65536, dtype=np.uint16).view(np.float16)
    with np.errstate(all="ignore"):
        between = np.nextafter(every.astype(np.float64), 0) * (1 + 2**-11)
        rounded = between.astype(np.float16)
    source = """#include <cuda_fp16.h>
    extern "C" __global__ void both(const double *x, __half *y, const __half *h, float *wide)
    {
        const int i = blockIdx.x * blockDim.x + threadIdx.x;
        y[i] = __double2half(x[i]);
        wide[i] = __half2float(h[i]);
    }"""
    y, wide = np.zeros_like(every), np.zeros(65536, np.float32)
    load([source])[0].launch("both", 64, 1024, [between, y, every, wide])
    np.testing.assert_array_equal(y, rounded)
    np.testing.assert_array_equal(wide, every.astype(np.float32))
    np.testing.assert_array_equal(np.signbit(wide), np.signbit(every))


# Faults

EVERY_RUN = {
    "DIVERGENT_BARRIER": r"k: threads diverge: 40 wait at __syncthreads of line 4, first thread \(0, 0, 0\) of block "
    r"\(0, 0, 0\); 24 have ended, first thread \(40, 0, 0\)",
    "TWO_BARRIERS": r"32 wait at __syncthreads of line 5, .*; 32 wait at __syncthreads of line 7",
    "ENDED_LANES": r"20 wait at a shuffle of line 5, mask ffffffff, .*; 44 have ended",
    "OTHER_MASKS": r"wait at a shuffle of line 4, mask ffffffff",
    "DISAGREEING_MASKS": r"1 wait at a shuffle of line 4, mask 00000003, .*; 2 wait at .*, mask 00000007",
    "NOT_IN_MASK": r"line 4: thread \(\d+, 0, 0\) of block \(0, 0, 0\) is not in its own mask 0000ffff",
    "MISALIGNED": r"line 4: a misaligned access, of 16 bytes' alignment",
    "STATIC_OVERRUN": r"line 5: the index 64 is out of bounds",
    "WILD": r"an access to memory that is not there",
    "DEEP": r"an access to memory that is not there",
    "DIVISION": r"an integer division by zero",
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", EVERY_RUN)
def test_faults_that_every_run_finds(name: str, order: str) -> None:
    module = faulty(getattr(samples, name))
    with pytest.raises(KernelFault, match=EVERY_RUN[name]):
        module.launch("k", 1, 64, [np.zeros(68, np.int32)], order=order)
    check_softmax(right(None)["softmax"])  # what comes after is as if nothing had been


@pytest.mark.parametrize("order", ORDERS)
def test_a_frame_larger_than_its_stack_ends_at_that_stacks_guard_page(order: str) -> None:
    """It once went beyond: the threads that Python started later died of what it wrote there."""
    with pytest.raises(KernelFault) as raised:
        faulty(samples.DEEP).launch("k", 1, 64, [np.zeros(64, np.int32)], order=order)
    told = re.search(r"thread \((\d+), 0, 0\) .* not there, at 0x([0-9a-f]+)$", str(raised.value))
    stacks, page = cuda._Library._stacks, 4096
    assert told and stacks
    stack = stacks + int(told[1]) * 17 * page
    assert stack <= int(told[2], 16) < stack + page


@pytest.mark.parametrize("sanitize", SANITIZERS[:2])
def test_a_kernel_that_does_not_end_is_ended(sanitize: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "LIMIT", 0.3)
    module = faulty(samples.ENDLESS, sanitize)
    with pytest.raises(KernelFault, match="goes on and on"):
        module.launch("k", 1, 64, [np.zeros(64, np.int32)])
    with ThreadPoolExecutor(1) as pool, pytest.raises(KernelFault, match="goes on and on"):
        pool.submit(module.launch, "k", 1, 64, [np.zeros(64, np.int32)]).result()
    module.launch("k", 1, 64, [np.ones(64, np.int32)])


@pytest.mark.matrix(least=0)
@pytest.mark.parametrize("name", ["HIDDEN_OVERRUN", "DYNAMIC_OVERRUN", "OVERRUN", "STATIC_OVERRUN", "MISALIGNED"])
def test_overruns_that_the_address_sanitizer_finds(name: str) -> None:
    module = faulty(getattr(samples, name), "address")
    told = {"STATIC_OVERRUN": "out of bounds", "MISALIGNED": "misaligned"}.get(name, r"AddressSanitizer.*\n.*of size 4")
    with pytest.raises(KernelFault, match=told):
        module.launch("k", 1, 64, [np.zeros(64, np.int32)], shared=256)


@pytest.mark.matrix(least=0)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("name", "blocks"), [("RACE", 1), ("RACE_BETWEEN", 1), ("WARP_RACE_BETWEEN", 1), ("BLOCKS_RACE", 2)]
)
def test_races_that_the_thread_sanitizer_finds(name: str, blocks: int, order: str) -> None:
    module = faulty(getattr(samples, name), "thread")
    with pytest.raises(KernelFault, match=r"(?s)data race.*\.cu:\d"):
        module.launch("k", blocks, 64, [np.zeros(64, np.int32)], order=order)


@pytest.mark.matrix(least=0)
def test_a_warps_barrier_orders_its_warp_alone() -> None:
    module = faulty(samples.WARP_RACE, "thread")
    x = np.arange(64, dtype=np.int32)
    module.launch("k", 1, 64, [x])
    np.testing.assert_array_equal(x, np.arange(64) ^ 1)
    other = load([samples.WARP_RACE.replace("^ 1", "^ 32"), samples.WARP_RACE.replace("__syncwarp();", "")], "thread")
    for wrong in other:
        with pytest.raises(KernelFault, match="data race"):
            wrong.launch("k", 1, 64, [x])


@pytest.mark.matrix(least=0)
def test_every_barrier_left_out_is_found(sample: Any) -> None:
    needs("thread")
    cases = [
        (name, text)
        for name in ("softmax", "columns", "add_up")
        for fence in ("__syncthreads();", "__threadfence();")
        for text in without_each(fence, RIGHT[name])
    ]
    assert len(cases) == 4 + 2 + 2 + 2
    missed, cases = [], sample(cases)
    for (name, text), module in zip(cases, load([text for _, text in cases], "thread"), strict=True):
        try:
            globals()[f"check_{name}"](module)
        except KernelFault as fault:
            assert "data race" in str(fault)
        else:
            missed.append(text)
    assert not missed, missed[0]


def test_shared_memory_is_each_blocks_own() -> None:
    source = """extern "C" __global__ void k(float *x, float *y)
    {
        __shared__ float s[32];
        extern __shared__ float d[];
        x[blockIdx.x * 32 + threadIdx.x] = s[threadIdx.x];
        y[blockIdx.x * 32 + threadIdx.x] = d[threadIdx.x];
        s[threadIdx.x] = d[threadIdx.x] = 1;
    }"""
    module = load([source])[0]
    for order in ORDERS:
        arrays = [np.zeros((3, 32), np.float32) for _ in range(2)]
        module.launch("k", 3, 32, arrays, shared=128, order=order)
        for given in arrays:
            assert not np.isin(given, (0.0, 1.0)).any()


def test_orders_are_orders() -> None:
    source = """extern "C" __global__ void k(int *turn, int *when)
    {
        when[blockIdx.x * blockDim.x + threadIdx.x] = (*turn)++;
    }"""
    module = load([source])[0]
    seen = {}
    for order, seed in (("forward", 0), ("backward", 0), ("shuffled", 1), ("shuffled", 2)):
        when = np.zeros(128, np.int32)
        module.launch("k", 2, 64, [np.zeros(1, np.int32), when], order=order, seed=seed)
        seen[order, seed] = list(when)
    assert seen["forward", 0] == list(range(128))
    assert seen["backward", 0] == list(range(127, -1, -1))
    assert sorted(seen["shuffled", 1]) == sorted(seen["shuffled", 2]) == list(range(128))
    assert seen["shuffled", 1] != seen["shuffled", 2]


# Launches


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"args": [None, None]}, "takes 3 arguments, not 2"),
        ({"args": [np.zeros(4), None, 0]}, "argument 0: a pointer to 4 bytes takes no array of float64"),
        ({"args": [1, None, 0]}, "argument 0: a pointer takes an array"),
        ({"args": [None, None, 0.5]}, "argument 2: an integer takes no 0.5"),
        ({"args": [None, None, 2**63]}, "argument 2: int too big"),
        ({"block": 512}, "512 threads in a block, where it is compiled for 256"),
        ({"block": (1, 1, 128)}, "block"),
        ({"grid": 0}, "at least 1"),
        ({"grid": (1, 65536)}, "65535"),
        ({"shared": 232449}, "shared memory"),
    ],
)
def test_a_launch_that_does_not_fit_says_so(change: dict[str, Any], told: str) -> None:
    given: dict[str, Any] = {"grid": 1, "block": 32, "args": [None, None, 0], **change}
    with pytest.raises(KernelFault, match=told):
        right(None)["softmax"].launch("softmax", **given)


def test_a_struct_of_another_size_is_refused() -> None:
    with pytest.raises(KernelFault, match="a struct of 48 bytes, and 8 are given"):
        right(None)["scale"].launch("scale", 1, 1, [(np.zeros(1),), 1])


def test_a_source_that_is_wrong_shows_its_line() -> None:
    with pytest.raises(cuda.CompileError, match=r"source1\.cu:2:"):
        load([samples.COPY, '\nextern "C" __global__ void k(int *x) { x[0] = missing; }'])


@pytest.mark.parametrize("sanitize", SANITIZERS[:2])
def test_views_are_written_where_they_lie(sanitize: str | None) -> None:
    x = np.zeros((4, 8), np.float32)
    right(sanitize)["copy"].launch("copy", 1, 32, [np.ones(4, np.float32), x[2, 4:], 4])
    assert x.sum() == 4 and (x[2, 4:] == 1).all()


@pytest.mark.matrix(least=0)
def test_without_a_switch_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """ucontext, which other processors have, is tested on this one."""
    monkeypatch.setattr(cuda, "FLAGS", (*cuda.FLAGS, "-DCUDA_ON_CPU_UCONTEXT"))
    check_softmax(load([samples.SOFTMAX])[0])
    with pytest.raises(KernelFault, match="diverge"):
        load([samples.DIVERGENT_BARRIER])[0].launch("k", 1, 64, [np.zeros(64, np.int32)])
