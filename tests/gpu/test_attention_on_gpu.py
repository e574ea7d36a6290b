"""Attention of halves by one kernel, and its gradient by two, emulated and interpreted, against float64."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from harness import ptx
from harness.cuda import ORDERS, KernelFault, why_no_sanitizer
from harness.cuda_samples import without_each
from harness.emulated import launch_at, loaded, module_of
from harness.golden import check_golden
from harness.nvrtc import ARCHITECTURES, compile_cuda, needs_nvrtc, ptx_of
from harness.ptx_memory import Memory
from harness.ptx_parser import parse

from backends import gen_backend
from backends.gpu.attention import FusedAttention
from backends.gpu.codegen.attention import Attention as Kernels
from backends.gpu.launch_config import DEVICES
from backends.gpu.runtime import OPTIONS
from optree.networks.attention import Attention, AttentionGradient
from optree.tree.types import as_dtype

pytestmark = pytest.mark.on_the_rig

GOLDEN = Path(__file__).parent.parent / "golden" / "attention"


class Case(NamedTuple):
    """Shapes of queries, keys and values, and what else there is."""

    query: tuple[int, ...]
    key: tuple[int, ...]
    value: tuple[int, ...]
    causal: bool = False
    mask: tuple[int, ...] = ()
    is_bias: bool = False
    dtype: str = "float16"
    scale: float | None = None


CASES = {
    "small": Case((5, 8), (7, 8), (7, 8)),
    "one": Case((1, 16), (1, 16), (1, 8), causal=True),
    "several tiles": Case((2, 70, 16), (2, 83, 16), (2, 83, 24), scale=0.3),
    "several blocks": Case((150, 40), (140, 40), (140, 40), causal=True),
    "more queries than keys": Case((90, 16), (20, 16), (20, 16), causal=True),
    "shared keys": Case((2, 3, 40, 32), (2, 1, 50, 32), (1, 1, 50, 32), mask=(2, 1, 1, 50), dtype="bfloat16"),
    "mask": Case((2, 36, 16), (2, 36, 16), (2, 36, 16), causal=True, mask=(36, 36)),
    "bias": Case((2, 20, 16), (2, 70, 16), (2, 70, 16), mask=(2, 1, 70), is_bias=True),
}


def drawn(case: Case) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Queries, keys, values and a delta in halves, and a mask, if any: of bools, it hides all keys of a query."""
    rng, dtype = np.random.RandomState(0), as_dtype(case.dtype)
    lead = np.broadcast_shapes(*(shape[:-2] for shape in case[:3]))
    shapes = [*case[:3], (*lead, case.query[-2], case.value[-1])]
    arrays = [rng.normal(size=shape).astype(dtype) for shape in shapes]
    if not case.mask:
        return arrays, []
    if case.is_bias:
        return arrays, [rng.normal(size=case.mask).astype(dtype)]
    mask = rng.uniform(size=case.mask) > 0.4
    if case.mask[-2] > 1:
        mask[..., -1, :] = False
    return arrays, [mask]


def expected(case: Case, arrays: Sequence[np.ndarray], masks: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The value and the logarithms of sums, and the derivatives with all leading axes, in float64."""
    query, key, value, delta = (x.astype(np.float64) for x in arrays)
    factor = query.shape[-1] ** -0.5 if case.scale is None else case.scale
    scores = query @ key.swapaxes(-1, -2) * factor
    if case.causal:
        scores = np.where(np.arange(scores.shape[-2])[:, None] >= np.arange(scores.shape[-1]), scores, -np.inf)
    for x in masks:
        scores = np.where(x, scores, -np.inf) if x.dtype == bool else scores + x.astype(np.float64)
    top = scores.max(axis=-1, keepdims=True)
    top = np.where(np.isinf(top), 0, top)
    total = np.exp(scores - top).sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        sums = np.where(total > 0, np.log(total) + top, np.inf)
    weights = np.exp(scores - sums)
    products = delta @ value.swapaxes(-1, -2)
    slopes = weights * (products - (products * weights).sum(axis=-1, keepdims=True)) * factor
    return [weights @ value, sums, slopes @ key, slopes.swapaxes(-1, -2) @ query, weights.swapaxes(-1, -2) @ delta]


class Run:
    """The kernels on the rig's memory, run by `emulator` in the place of the rig: a launcher of kernels.

    Attributes
    ----------
    launched : list of str
        The names of the kernels that have been launched.
    arrays : dict
        The arrays by their addresses.
    """

    def __init__(self, case: Case, emulator: Callable[..., None] | None = None) -> None:
        self.case, self.launched, self.arrays = case, list[str](), dict[int, np.ndarray]()
        self.device = gen_backend("gpu")
        self.device.kernels._launcher = self
        self._run = emulator or (lambda source, *launch, **_: launch_at(module_of(source), *launch))

    def load(self, image: bytes, names: Sequence[str], source: str) -> list[Any]:
        return [(source, name) for name in names]

    def bound(self, kernel: Any, grid: Any, block: Any, words: Any, shared: int = 0) -> Callable[[], None]:
        def launch() -> None:
            self.device.synchronize()  # its operands are there
            self.launched.append(kernel[1])
            self._run(*kernel, grid, block, words, shared, arrays=self.arrays)

        return launch

    def array(self, x: np.ndarray) -> Any:
        return self._noted(self.device.array(x, x.dtype).raw())

    def _noted(self, x: Any) -> Any:
        memory = (ctypes.c_char * x.nbytes).from_address(x.data.ptr)
        self.arrays[x.data.ptr] = np.ndarray(x.shape, x.dtype, memory)
        return x

    def forward(self, arrays: Sequence[Any], masks: Sequence[Any]) -> list[np.ndarray]:
        op = Attention(causal=self.case.causal, scale=self.case.scale)
        return self._outputs(op, [*arrays[:3], *masks])

    def backward(self, arrays: Sequence[Any], masks: Sequence[Any], sums: np.ndarray, along: Any) -> list[np.ndarray]:
        op = AttentionGradient(causal=self.case.causal, scale=self.case.scale)
        rest = [self.array(x.astype(np.float32)) for x in (along, sums)]
        return self._outputs(op, [*arrays, *rest, *masks])

    def _outputs(self, op: Any, inputs: Sequence[Any]) -> list[np.ndarray]:
        outputs = op.outputs

        def noted(*matrices: Any) -> list[Any]:
            return [self._noted(x) for x in outputs(*matrices)]

        op.outputs = noted
        return [x.get().astype(np.float64) for x in FusedAttention(self.device, op)(*inputs)]


def check(case: Case, emulator: Callable[..., None] | None = None, is_whole: bool = True) -> None:
    """Compare attention, and its gradient if wanted, with float64."""
    arrays, masks = drawn(case)
    run, wanted = Run(case, emulator), expected(case, arrays, masks)
    given, hidden = [run.array(x) for x in arrays], [run.array(x) for x in masks]
    rtol = 1e-2 if case.dtype == "bfloat16" else 2e-3
    found = run.forward(given, hidden)
    assert run.launched == ["attention"]
    if is_whole:
        along = (arrays[3].astype(np.float64) * wanted[0]).sum(axis=-1, keepdims=True)
        found += run.backward(given, hidden, wanted[1], along)
        assert run.launched == ["attention", "by_key", "by_query"]
    for got, right in zip(found, wanted, strict=False):
        finite = np.isfinite(right)
        np.testing.assert_array_equal(got[~finite], right[~finite])
        np.testing.assert_allclose(
            got[finite], right[finite], rtol=rtol, atol=rtol * max(1, np.abs(right[finite]).max())
        )


@pytest.mark.matrix(least=1)
@pytest.mark.parametrize("name", CASES)
def test_attention_and_its_gradient(name: str) -> None:
    check(CASES[name])


@pytest.mark.matrix(least=1)
@pytest.mark.parametrize("order", ORDERS)
def test_in_any_order_of_threads(order: str) -> None:
    check(CASES["mask"], lambda source, *launch, **_: launch_at(module_of(source), *launch, order, 7))


@pytest.mark.matrix(least=0)
@pytest.mark.parametrize("sanitize", ["address", "thread"])
def test_kernels_are_clean(sanitize: str) -> None:
    if reason := why_no_sanitizer(sanitize):
        pytest.skip(reason)

    def run(source: str, *launch: Any, arrays: dict[int, np.ndarray]) -> None:
        launch_at(loaded([source], sanitize)[0], *launch, arrays=arrays)

    check(CASES["mask"], run)


@pytest.mark.matrix(least=0)
def test_a_barrier_or_a_wait_left_out_is_found() -> None:
    if reason := why_no_sanitizer("thread"):
        pytest.skip(reason)
    for line, fault in (("__syncthreads();", KernelFault), ("wait_for_copies<0>();", AssertionError)):

        def run(source: str, *launch: Any, arrays: dict[int, np.ndarray], line: str = line) -> None:
            (source,) = without_each(line, source)
            launch_at(loaded([source], "thread" if "sync" in line else None)[0], *launch, arrays=arrays)

        with pytest.raises(fault):
            check(CASES["several tiles"], run, is_whole=False)


class Interpreted:
    """An emulator that interprets PTX, and has the counts of each kernel.

    Parameters
    ----------
    arch : str
    change : (str, str)
        A text of the PTX, and another in its place.
    """

    def __init__(self, arch: str = "sm_90", change: tuple[str, str] = ("", "")) -> None:
        self.arch, self.change, self.counts = arch, change, dict[str, ptx.Counts]()

    def __call__(
        self, source: str, name: str, grid: Any, block: Any, words: Any, shared: int, arrays: dict[int, np.ndarray]
    ) -> None:
        text, memory = ptx_of(source, self.arch, OPTIONS), Memory()
        assert self.change[0] in text
        for word in words:
            if word in arrays:
                memory.address(arrays[word])
        module = parse(text.replace(*self.change) if self.change[0] else text)
        self.counts[name] = ptx.Machine(module, name, grid[:2], block[0], words, memory, shared).run()


@needs_nvrtc
@pytest.mark.matrix(least=0)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_interpreted_kernels_are_right(arch: str) -> None:
    check(CASES["several tiles"], Interpreted(arch))
    if arch != "sm_75":
        check(CASES["mask"]._replace(dtype="bfloat16"), Interpreted(arch))


@needs_nvrtc
@pytest.mark.parametrize("change", [("cp.async.wait_group", "// "), (".x4.trans.", ".x4.")])
def test_a_wrong_instruction_of_tiles_is_noticed(change: tuple[str, str]) -> None:
    with pytest.raises(AssertionError):
        check(CASES["several tiles"], Interpreted(change=change), is_whole=False)


@needs_nvrtc
def test_no_score_is_in_memory_and_causal_order_skips_tiles() -> None:
    counts = []
    for causal in (False, True):
        run = Interpreted()
        check(Case((128, 64), (256, 64), (256, 64), causal=causal), run, is_whole=False)
        counts.append(run.counts["attention"])
    whole, causal = counts
    size = 128 * 64 * 2  # bytes of the queries, and half of those of keys and values
    assert whole.bytes == {"load": 5 * size, "store": size + 128 * 4}
    assert causal.bytes == {"load": 3 * size, "store": size + 128 * 4}
    (product,) = (name for name in whole.issued if name.startswith("mma"))
    assert whole.issued[product] == 2 * 128 * 256 * 64 // (16 * 8 * 16) == 2 * causal.issued[product]
    assert not whole.conflicts


@needs_nvrtc
@pytest.mark.matrix(least=0)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_tiles_fit_a_device(arch: str) -> None:
    """The largest tiles: registers of two blocks without spills, and shared memory of one."""
    shared = DEVICES[arch].shared
    for is_gradient in (False, True):
        kernels = Kernels(np.dtype(np.float16), 128, 128, False, None, 1, is_gradient, shared)
        usage = compile_cuda(kernels.source(), arch, OPTIONS).usage
        for kernel in kernels.kernels():
            assert kernel.shared(kernel.tiling) <= shared
            assert usage[kernel.name].spill_stores <= 16


@pytest.mark.parametrize("number", range(3), ids=["forward", "by_key", "by_query"])
def test_the_source_is_the_one_that_was_reviewed(number: int, request: Any) -> None:
    kernels = [
        *Kernels(np.dtype(np.float16), 64, 64, True, np.dtype(bool), 2, False, 227 << 10).kernels(),
        *Kernels(np.dtype(np.float16), 64, 64, False, None, 1, True, 227 << 10).kernels(),
    ]
    check_golden(kernels[number].source(), GOLDEN / f"{kernels[number].name}.cu", request)


def test_views_are_read_in_place_and_others_are_copied() -> None:
    case = CASES["small"]._replace(query=(2, 6, 16), key=(2, 6, 16), value=(2, 6, 16))
    arrays, _ = drawn(case)
    wanted = expected(case, arrays, [])[0]
    run = Run(case)
    heads = run.array(np.stack(arrays[:3]).transpose(0, 2, 1, 3).copy())  # tokens before heads
    views = [heads[i].swapaxes(0, 1) for i in range(3)]
    np.testing.assert_allclose(run.forward(views, [])[0], wanted, rtol=2e-3, atol=2e-3)
    odd = [run.array(np.concatenate([x, x[..., :1]], axis=-1))[..., :-1] for x in arrays[:3]]
    np.testing.assert_allclose(run.forward(odd, [])[0], wanted, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(
    ("shape", "dtype"), [((4, 7), "float16"), ((4, 136), "float16"), ((4, 16), "float32"), ((0, 16), "float16")]
)
def test_others_are_computed_in_tiles_of_products(shape: tuple[int, ...], dtype: str) -> None:
    case = CASES["small"]._replace(query=shape, key=shape, value=shape, dtype=dtype)
    arrays, _ = drawn(case)
    run = Run(case)
    found = run.forward([run.array(x) for x in arrays], [])[0]
    assert "attention" not in run.launched
    wanted = expected(case, arrays, [])[0] if shape[0] else np.zeros(shape)
    np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=2e-3)
