"""The PTX that NVRTC makes of kernels, interpreted: golden kernels and random trees against float64, and costs."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import cuda_samples as samples
from harness import cuda_trials as trials
from harness import golden, ptx
from harness.count_table import TITLE, table_of
from harness.counted import COUNTED
from harness.counts import HEAD, counts_of, pipes_of_ptx, resident_warps
from harness.emulated import Collector
from harness.interpreted import Interpreter
from harness.nvrtc import ARCHITECTURES, compile_cuda, needs_nvrtc, ptx_of, version
from harness.ptx_memory import Memory, PtxFault, conflicts_of, sectors_of
from harness.ptx_parser import parse
from harness.ptx_values import TENSOR_CORES, fma32, fma64, function_of, product_of_warps
from harness.sass import pipes_of

from backends import gen_backend
from backends.backend import Backend
from backends.gpu.codegen.device_functions import DEVICE_FUNCTIONS
from backends.gpu.launch_config import DeviceLimits
from backends.gpu.runtime import OPTIONS
from optree import function
from optree.dtypes import bfloat16, finfo
from optree.run.function import Function
from optree.tree.variable import Input

pytestmark = pytest.mark.slow

GOLDEN = Path(__file__).parent.parent / "golden"
COUNTS = GOLDEN / "counts.txt"
TABLE = Path(__file__).parent.parent.parent / "benchmarks" / "gpu.md"

#: A subnormal float32.
TINY = 2.0**-140


# Golden kernels


@pytest.fixture
def be() -> Any:
    """The CPU's backend: sources and launches are those of a tree, without a device."""
    return gen_backend("cpu")


def _softmax(x: np.ndarray) -> list[np.ndarray]:
    exponentials = np.exp(x - x.max(axis=1, keepdims=True))
    return [exponentials / exponentials.sum(axis=1, keepdims=True)]


def _norm(x: np.ndarray, axis: int, gain: Any = 1.0, bias: Any = 0.0) -> list[np.ndarray]:
    mean, var = x.mean(axis=axis, keepdims=True), x.var(axis=axis, keepdims=True)
    return [(x - mean) / np.sqrt(var + 1e-5) * gain + bias]


def _cross_entropy(x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
    (p,) = _softmax(x)
    return [-(y * np.log(p)).sum(keepdims=True) / len(x), (p * y.sum(axis=1, keepdims=True) - y) / len(x)]


#: Golden trees of so many rows, columns or elements on a device of so many multiprocessors, where kernels are the same
#: as of many on a large device; and what NumPy says in float64.
SMALL: dict[Callable[..., Any], tuple[int, int, Callable[..., list[np.ndarray]]]] = {
    golden.chain_of_millions: (1 << 15, 1, lambda a, b, c, d: [a * b + c * np.sin(d)]),
    golden.softmax_by_lanes: (70, 1, _softmax),
    golden.softmax_by_warps: (6, 1, _softmax),
    golden.softmax_by_blocks: (3, 1, _softmax),
    golden.softmax_of_long_rows: (2, 1, _softmax),
    golden.softmax_of_odd_rows: (5, 1, _softmax),
    golden.softmax_in_parts: (1 << 15, 2, _softmax),
    golden.layer_norm_by_warps: (6, 1, lambda x, gain, bias: _norm(x, 1, gain, bias)),
    golden.batch_norm_by_columns: (96, 1, lambda x: _norm(x, 0)),
    golden.batch_norm_in_parts: (4096, 17, lambda x: _norm(x, 0)),
    golden.cross_entropy: (8, 1, _cross_entropy),
}


@needs_nvrtc
@pytest.mark.matrix
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("tree", SMALL, ids=lambda tree: tree.__name__)
def test_golden_kernels_are_right_in_float64(tree: Any, arch: str) -> None:
    size, multiprocessors, expected = SMALL[tree]
    host = Interpreter(arch, device=DeviceLimits(multiprocessors, 227 << 10, 2048))
    be = host.backend()
    found = tree(be, size)
    if not isinstance(found, Function):
        found = function([leaf for leaf in Backend.program([found]).leaves if isinstance(leaf, Input)], [found])
    drawn = np.random.RandomState(1)
    operands = {x.name: (drawn.randn(*x.type.shape) * 2).astype(x.type.dtype) for x in found.inputs}
    results = found(*operands.values())
    kept = (GOLDEN / f"{tree.__name__}.cu").read_text()
    first = host.sources[0]  # what joins the rows of a cross entropy depends on their number
    assert first[first.index("\ntypedef") + 1 :] in kept
    wanted = expected(**{name: x.astype(np.float64) for name, x in operands.items()})
    for got, right in zip(results, wanted, strict=True):
        unit = np.finfo(got.dtype).eps
        assert got.shape == right.shape
        np.testing.assert_allclose(got.get(), right, rtol=32 * unit, atol=8 * unit * np.abs(right).max())


@needs_nvrtc
@pytest.mark.parametrize("tree", [golden.broadcast, golden.mixed_dtypes, golden.adam], ids=lambda tree: tree.__name__)
def test_golden_kernels_of_tensors_are_right(tree: Any) -> None:
    for arch in ARCHITECTURES:
        got = _run_small(tree, Interpreter(arch).backend())
        for ours, numpys in zip(got, _run_small(tree, gen_backend("cpu", jit=False)), strict=True):
            np.testing.assert_allclose(ours, numpys, rtol=1e-6)


def _run_small(tree: Any, be: Any) -> list[np.ndarray]:
    found = tree(be)
    if not isinstance(found, Function):
        return [found.asnumpyarray()]
    for rate in (0.1, 0.01):
        found(np.linspace(-2, 2, 64, dtype=np.float32), np.float32(rate))
    return [target.get() for target, _ in found.updates]


# Random trees


@needs_nvrtc
def test_random_trees_are_right(request: Any) -> None:
    """A seeded sample, in which every instruction and every dtype of random kernels comes up in time."""
    every = trials.random_trees()
    chance = random.Random(request.config.option.seed)
    chosen = every if request.config.getoption("all") else dict(chance.sample(sorted(every.items()), 16))
    collector = Collector()
    for trial in chosen.values():
        trial.run(collector.backend())
    arch = chance.choice(ARCHITECTURES)
    be = Interpreter(arch, list(dict.fromkeys(collector.sources))).backend()
    for seed, trial in chosen.items():
        try:
            trial.check(trial.run(be))
        except AssertionError as error:
            raise AssertionError(f"random tree {seed} on {arch}: {error}") from error


@needs_nvrtc
def test_a_wrong_instruction_is_noticed() -> None:
    """Each exchange of one instruction of a softmax for another gives other values, or is a fault."""
    host = Interpreter()
    x = np.random.RandomState(0).randn(3, 300).astype(np.float32)

    def run(be: Any) -> np.ndarray:
        return be.softmax(be.array(x), axis=1).asnumpyarray()

    right = run(host.backend())
    (source,) = host.sources
    text = ptx_of(source, "sm_90", OPTIONS)
    for old, new in [("ex2.approx.ftz.f32", "lg2.approx.ftz.f32"), ("bfly", "up"), ("shl.b32", "shr.u32"),
                     ("rcp.rn.f32", "sqrt.rn.f32"), ("sub.rn.f32", "add.rn.f32")]:  # fmt: skip
        assert old in text, old
        broken = Interpreter()
        broken.modules[source] = parse(text.replace(old, new)), ""
        try:
            found = run(broken.backend())
        except PtxFault:
            continue
        assert not np.allclose(found, right, rtol=1e-6), f"{new} for {old}"


# Faults


SCALE = """
extern "C" __global__ void k(const float *x, float *y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2 * x[i];
}
"""


MISALIGNED = """
extern "C" __global__ void k(int4 *x) { x[threadIdx.x] = *(const int4 *)((const int *)x + 1); }
"""


def _launched(source: str, *arrays: np.ndarray, words: Sequence[int] = (), block: int = 64, **options: Any) -> Any:
    memory = Memory()
    addresses = [memory.address(array) for array in arrays]
    module = parse(ptx_of(source, "sm_90"))
    machine = ptx.Machine(module, next(iter(module.functions)), (1, 1), block, [*addresses, *words], memory, **options)
    return machine.run()


@needs_nvrtc
def test_instructions_that_flush_subnormal_numbers_do() -> None:
    x = np.float32([TINY, -TINY, 2.0**-100, 1.0])
    for options, wanted in (((), [2 * TINY, -2 * TINY]), (("-ftz=true",), [0.0, -0.0])):
        y = np.zeros(4, np.float32)
        memory = Memory()
        module = parse(ptx_of(SCALE, "sm_90", options))
        words = [memory.address(x), memory.address(y), 4]
        ptx.Machine(module, "k", (1, 1), 32, words, memory).run()
        np.testing.assert_array_equal(y, [*wanted, 2.0**-99, 2.0])
        np.testing.assert_array_equal(np.signbit(y), np.signbit(x))


@needs_nvrtc
@pytest.mark.parametrize(
    ("source", "told"),
    [
        (samples.DIVERGENT_BARRIER, "wait at a barrier"),
        (samples.ENDED_LANES, "wait at a barrier"),
        (samples.NOT_IN_MASK, "not in the mask"),
        (MISALIGNED, "misaligned"),
        (samples.OVERRUN, "where no array is"),
        (samples.WILD, "where no array is"),
        (samples.STATIC_OVERRUN, "beyond the 256 bytes of shared"),
        (samples.DYNAMIC_OVERRUN, "beyond the 256 bytes of shared"),
    ],
)
def test_faults_are_told(source: str, told: str) -> None:
    with pytest.raises(PtxFault, match=told):
        _launched(source, np.zeros(64, np.int32), shared=256 if "extern __shared__" in source else 0)


@needs_nvrtc
def test_what_is_not_written_to_is_no_number() -> None:
    y = np.zeros(32, np.float32)
    _launched('extern "C" __global__ void k(float *y) { __shared__ float s[32]; y[threadIdx.x] = s[threadIdx.x]; }', y,
              block=32)  # fmt: skip
    assert np.isnan(y).all()


@needs_nvrtc
def test_an_endless_loop_ends(monkeypatch: Any) -> None:
    monkeypatch.setattr(ptx, "LIMIT", 1000)
    with pytest.raises(PtxFault, match="goes on after 1000"):
        _launched(samples.ENDLESS, np.zeros(32, np.int32))


@needs_nvrtc
def test_kernels_of_others_run() -> None:
    x, y = np.random.RandomState(0).randn(1, 3000).astype(np.float32), np.zeros((1, 3000), np.float32)
    _launched(samples.SOFTMAX, x, y, words=[3000], block=256)
    np.testing.assert_allclose(y, _softmax(x.astype(np.float64))[0], rtol=1e-6)
    x, y = np.random.RandomState(0).randn(2, 64).astype(np.float16)
    z, b = np.zeros(64, np.float16), np.zeros(64, np.uint16)
    _launched(samples.HALVES, x, y, z, b, words=[64])
    np.testing.assert_array_equal(z, x * y)


NEAR = """{functions}
extern "C" __global__ void k(const float *x, float *y)
{{
    for (int i = threadIdx.x; i < 65536; i += 1024) y[i] = {call};
}}
"""

#: The quicker functions of narrow dtypes, with the exact ones.
EXACT: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "near_exp(x[i])": np.exp,
    "near_log1p(x[i])": np.log1p,
    "near_sqrt(x[i])": np.sqrt,
    "near_tanh(x[i])": np.tanh,
    "near_quotient(1.0f, x[i])": np.reciprocal,
    "near_quotient(x[i], 3.0f)": lambda x: x / 3,
}


@needs_nvrtc
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("call", EXACT)
def test_functions_of_every_half_are_near_an_eighth_of_its_unit(call: str, dtype: str) -> None:
    """By approximations as far off as the manual allows."""
    kind = np.dtype(np.float16) if dtype == "float16" else bfloat16()
    halves = np.arange(1 << 16, dtype=np.uint16).view(kind)
    x, y = halves.astype(np.float32), np.zeros(1 << 16, np.float32)
    functions = "\n".join(DEVICE_FUNCTIONS[name] for name in (dtype, "near"))
    _launched(NEAR.format(functions=functions, call=call), x, y, block=1024)
    with np.errstate(all="ignore"):
        exact = EXACT[call](x.astype(np.float64))
        unit = np.abs(np.spacing(exact.astype(kind))).astype(np.float64)
        ordinary = np.isfinite(unit) & (np.abs(exact) < finfo(kind).max)
        np.testing.assert_array_less(np.abs(y - exact)[ordinary], unit[ordinary] / 8)
        rounded, wanted = (values[~ordinary].astype(kind).astype(float) for values in (y, exact))
        np.testing.assert_array_equal(rounded, wanted)
    assert (np.signbit(y) == np.signbit(exact))[~np.isnan(exact)].all()


# Values


def _as_float32(exact: Fraction) -> np.float32:
    """The nearest float32, ties to even, of a number within its normal range."""
    near = np.float32(float(exact))
    around = [np.nextafter(near, np.float32(end)) for end in (-np.inf, np.inf)] + [near]
    return min(around, key=lambda each: (abs(Fraction(float(each)) - exact), each.view(np.uint32) & 1))


@np.errstate(all="ignore")
def test_fused_multiply_adds_round_once() -> None:
    drawn = np.random.RandomState(0)
    a, b, c = (drawn.randn(300) * 2.0 ** drawn.randint(-30, 30, 300) for _ in range(3))
    c[:150] = -(a * b)[:150] * (1 + drawn.randint(-2, 3, 150) * 2.0**-52)  # what cancels
    exact = [Fraction(x) * Fraction(y) + Fraction(z) for x, y, z in zip(a, b, c, strict=True)]
    np.testing.assert_array_equal(fma64(a, b, c), [float(each) for each in exact])
    huge = np.array([2.0**1000, 2.0**-600, 2.0**1023, np.inf, 0.0])
    np.testing.assert_array_equal(
        fma64(huge, np.array([2.0**10, 2.0**-470, 2.0, 0.0, 1.0]), np.array([-1.0, 2.0**-1074, -(2.0**1023), 1, -0.0])),
        [2.0**1010, 2.0**-1070 + 2.0**-1074, 2.0**1023, np.nan, 0.0],
    )
    a, b, c = (each.astype(np.float32) for each in (a, b, c))
    c[:150] = (-(a * b) * (1 + drawn.randint(-2, 3, 300) * np.float32(2.0**-23)))[:150]
    exact = [Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)) for x, y, z in zip(a, b, c, strict=True)]
    np.testing.assert_array_equal(fma32(a, b, c), [_as_float32(each) for each in exact])
    down = fma32(a, b, c, "rm")
    assert all(Fraction(float(x)) <= each for x, each in zip(down, exact, strict=True))
    assert all(Fraction(float(np.nextafter(x, np.float32(np.inf)))) > each for x, each in zip(down, exact, strict=True))


@pytest.mark.parametrize(
    ("name", "operands", "wanted"),
    [
        ("cvt.rzi.s32.f32", [np.float32([1e20, -2.7, np.nan])], [2**31 - 1, -2, 0]),
        ("cvt.rni.s64.f64", [np.float64([2.5, 1e300, -np.inf])], [2, 2**63 - 1, -(2**63)]),
        ("cvt.sat.f32.f32", [np.float32([-1, 0.5, 2, np.nan])], [0, 0.5, 1, 0]),
        ("cvt.rn.bf16.f64", [np.float64([1 + 2.0**-8 + 2.0**-40])], [0x3F81]),
        ("shl.b32", [np.uint32([1, 1]), np.uint32([31, 32])], [1 << 31, 0]),
        ("shr.s32", [np.int32([-8, -8]), np.uint32([1, 99])], [-4, -1]),
        ("mul.hi.u32", [np.uint32([1 << 31]), np.uint32([6])], [3]),
        ("div.s32", [np.int32([-7, 7]), np.int32([2, -2])], [-3, -3]),
        ("rem.s32", [np.int32([-7, 7]), np.int32([2, -2])], [-1, 1]),
        ("bfi.b32", [np.uint32([0b11]), np.uint32([0xFF]), np.uint32([4]), np.uint32([3])], [0b10111111]),
        ("prmt.b32", [np.uint32([0x44332211]), np.uint32([0x88776655]), np.uint32([0x7610])], [0x88772211]),
        ("setp.ltu.f32", [np.float32([1, 2, np.nan]), np.float32([2, 1, 1])], [True, False, True]),
        ("setp.ne.f32", [np.float32([np.nan, 1]), np.float32([1, 2])], [False, True]),
        ("max.NaN.f32", [np.float32([np.nan, 1]), np.float32([1, 2])], [np.nan, 2]),
        ("max.f32", [np.float32([np.nan, 1]), np.float32([1, 2])], [1, 2]),
        ("add.rz.f32", [np.float32([1, -1]), np.float32([2.0**-25, -(2.0**-25)])], [1, -1]),
        ("ex2.approx.ftz.f32", [np.float32([0, -np.inf, 3])], [1, 0, 8]),
        ("add.ftz.f32", [np.float32([TINY, 1]), np.float32([TINY, TINY])], [0, 1]),
        ("mul.ftz.f32", [np.float32([2.0**-100, -(2.0**-140)]), np.float32([2.0**-40, 2.0**40])], [0, -0.0]),
        ("mul.f32", [np.float32([2.0**-100]), np.float32([2.0**-40])], [2.0**-140]),
        ("setp.gt.ftz.f32", [np.float32([TINY, 1]), np.float32([0, 0])], [False, True]),
        ("cvt.ftz.f64.f32", [np.float32([TINY, 1])], [0, 1]),
        ("cvt.rn.ftz.f32.f64", [np.float64([TINY, 1])], [0, 1]),
        ("cvt.rn.f32.f64", [np.float64([TINY])], [TINY]),
        ("clz.b32", [np.uint32([0, 1, 1 << 31])], [32, 31, 0]),
        ("cvt.rn.bf16x2.f32", [np.float32([1]), np.float32([-2])], [0x3F80C000]),
    ],
)
def test_instructions_compute_what_the_manual_says(name: str, operands: list[Any], wanted: list[Any]) -> None:
    base, *mods = name.split(".")
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(function_of(base, tuple(mods))[0](*operands), wanted)


@pytest.mark.parametrize(("kind", "depth"), TENSOR_CORES)
def test_products_of_warps_are_those_of_matrices(kind: str, depth: int) -> None:
    """With the elements where the manual's figures of m16n8k8 and m16n8k16 have them."""
    dtype, pack = TENSOR_CORES[kind, depth]
    rows, columns, added = (
        np.random.RandomState(i).randint(-8, 9, size=shape).astype(np.float32)
        for i, shape in enumerate(((16, depth), (depth, 8), (16, 8)))
    )
    lanes = [(lane // 4, lane % 4) for lane in range(32)]

    def registers(x: np.ndarray, places: Callable[[int, int], list[tuple[int, int]]]) -> np.ndarray:
        found = np.array([[x[at] for at in places(*lane)] for lane in lanes])
        return found.astype(dtype).view(np.uint32)[None]

    depths = range(0, depth, 4 * pack)
    left = registers(
        rows, lambda g, t: [(g + h, k + t * pack + e) for k in depths for h in (0, 8) for e in range(pack)]
    )
    right = registers(columns, lambda g, t: [(k + t * pack + e, g) for k in depths for e in range(pack)])
    places = np.array([[(g + h, 2 * t + e) for h in (0, 8) for e in (0, 1)] for g, t in lanes])
    c = added[places[..., 0], places[..., 1]][None]
    found = np.stack(product_of_warps(left, right, c, kind), axis=-1)[0]
    np.testing.assert_array_equal(found, (rows @ columns + added)[places[..., 0], places[..., 1]])


# Counts


def test_sectors_and_banks() -> None:
    lanes = np.arange(32)
    assert sectors_of(lanes * 4, lanes // 32) == 4 and sectors_of(lanes * 4 + 4, lanes // 32) == 5
    assert sectors_of(lanes * 128, lanes // 32) == 32 and sectors_of(lanes * 0, lanes // 32) == 1
    assert conflicts_of(lanes * 4, lanes, 4) == (1, 1) and conflicts_of(lanes * 0, lanes, 4) == (1, 1)
    assert conflicts_of(lanes * 8, lanes, 4) == (2, 1) and conflicts_of(lanes * 128, lanes, 4) == (32, 1)
    assert conflicts_of(lanes * 33 * 4, lanes, 4) == (1, 1)
    assert conflicts_of(lanes * 16, lanes, 16) == (4, 4) and conflicts_of(lanes * 8, lanes, 8) == (2, 2)


def test_resident_warps_are_those_of_the_tables() -> None:
    assert resident_warps("sm_90", 256, 32, 0) == 64 and resident_warps("sm_90", 256, 40, 0) == 48
    assert resident_warps("sm_90", 128, 96, 0) == 20 and resident_warps("sm_75", 256, 32, 0) == 32
    assert resident_warps("sm_90", 512, 32, 200 << 10) == 16 and resident_warps("sm_80", 32, 16, 0) == 32


@needs_nvrtc
def test_a_kernel_is_counted() -> None:
    memory = np.zeros(1 << 12, np.float32)
    start = -memory.ctypes.data % 256 // 4
    x, y = memory[start : start + 512], memory[start + 512 : start + 1024]
    counts = _launched(SCALE, x, y, words=[40])
    assert counts.bytes == {"load": 160, "store": 160} and counts.sectors == {"load": 5, "store": 5}
    assert counts.issued["ld.global.f32"] == 2 and counts.issued["mul.f32"] + counts.issued["add.f32"] == 2
    code = pipes_of(compile_cuda(SCALE).cubin)["k"]
    assert code["memory"] >= 2 and set(code) <= {"float", "integer", "memory", "control", "uniform"}


REPEATED = """#include <cuda_fp16.h>
extern "C" __global__ void k(const float *x, const __half *h, float *y) { float t = x[0]; %s y[0] = t; }
"""


@needs_nvrtc
@pytest.mark.parametrize("line", ["t = exp(t);", "t = y[1] - fabsf(t) * -t;", "t = t * __half2float(h[%d]);"])
def test_instructions_of_ptx_are_counted_as_the_machines(line: str) -> None:
    found = []
    for times in (4, 12):
        compiled = compile_cuda(REPEATED % "".join(line.replace("%d", str(i)) for i in range(times)), "sm_90")
        counts = Counter[str]()
        blocks = parse(compiled.ptx).functions["k"].blocks
        for instruction in (each for block in blocks for each in block.instructions):
            counts.update(pipes_of_ptx(instruction.name))
        found.append((counts, pipes_of(compiled.cubin)["k"]))
    (few, few_real), (many, many_real) = found
    for pipe in ("float", "integer", "slow"):
        assert many[pipe] - few[pipe] == many_real[pipe] - few_real[pipe], pipe


@needs_nvrtc
@pytest.mark.matrix
@pytest.mark.parametrize("name", COUNTED)
def test_counts_are_as_they_were(be: Any, name: str, request: Any) -> None:
    rows = {name: [found.row() for found in counts_of(be, COUNTED[name])]}
    kept_of, kept = _kept()
    if request.config.getoption("--update-golden"):
        kept = {**kept, **rows} if kept_of == version() else rows
        COUNTS.write_text(_table({each: kept[each] for each in COUNTED if each in kept}))
    elif kept_of == version():  # another assembler allots registers otherwise
        assert rows[name] == kept.get(name), "if it is meant: pytest --update-golden -n0, and read it"


def test_counts_are_kept_of_the_same_workloads() -> None:
    assert list(_kept()[1]) == list(COUNTED)


def test_the_benchmarks_table_is_of_the_counts(request: Any) -> None:
    text, table = TABLE.read_text(), "\n".join(table_of(_kept()[1]))
    if request.config.getoption("--update-golden"):
        begin = text.index(TITLE)
        text = text[:begin] + table + text[text.index("\n\n", begin) :]
        TABLE.write_text(text)
    assert table in text, "pytest tests/gpu/test_ptx.py --update-golden -n0 writes it"


def _table(rows: dict[str, list[list[str]]]) -> str:
    """The costs to store: a row for each kernel, by workload."""
    lines = [["workload", *HEAD], *([name, *row] for name, found in rows.items() for row in found)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = [" ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) for line in lines]
    return "\n".join([f"NVRTC {'.'.join(map(str, version()))}, sm_90", *text, ""])


def _kept() -> tuple[tuple[int, ...], dict[str, list[list[str]]]]:
    """The version of NVRTC and the rows that are kept."""
    if not COUNTS.exists():
        return (), {}
    first, _, *lines = COUNTS.read_text().splitlines()
    found: dict[str, list[list[str]]] = {}
    for name, *row in map(str.split, lines):
        found.setdefault(name, []).append(row)
    return tuple(map(int, first.split()[1].rstrip(",").split("."))), found
