"""The CUDA source of some trees, as it was reviewed, and what it takes on each architecture."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from harness.golden import CUDA_TREES, check_golden, softmax_by_warps
from harness.nvrtc import ARCHITECTURES, compile_cuda, needs_nvrtc, ptx_of, under_way, version

from backends import gen_backend, launches, source
from backends.gpu.launch_config import DEVICES
from backends.gpu.runtime import OPTIONS
from optree import OpTreeNode, function
from optree.errors import BackendError, OperandError
from optree.tree.types import TensorType

GOLDEN = Path(__file__).parent.parent / "golden"
USAGE = GOLDEN / "usage.json"

trees = pytest.mark.parametrize("tree", CUDA_TREES, ids=lambda tree: tree.__name__)


@pytest.fixture
def be() -> Any:
    """The CPU's backend: sources and launches are those of a tree, without a device."""
    return gen_backend("cpu")


@trees
def test_the_source_is_the_one_that_was_reviewed(be, tree, request):
    kernels, found = source(tree(be), "cuda"), launches(tree(be))
    heads = [f"// {each.name}: grid {each.grid}, block {each.block}, shared {each.shared}" for each in found]
    # What all have in common, up to the type of indices, stands in backends/gpu/codegen/printer.py alone.
    text = "\n".join([*heads, "", *(kernel[kernel.index("\ntypedef") + 1 :] for kernel in kernels)])
    check_golden(text, GOLDEN / f"{tree.__name__}.cu", request)


def test_no_golden_file_is_left_over():
    assert {path.stem for path in GOLDEN.glob("*.cu")} == {tree.__name__ for tree in CUDA_TREES}


# What kernels take


def _usage(be: Any, tree: Any, arch: str) -> dict[str, dict[str, int]]:
    """The resources of each kernel of a tree on an architecture, by its number and name."""
    found = {}
    for number, kernel in enumerate(source(tree(be), "cuda", arch)):
        for name, usage in compile_cuda(kernel, arch, OPTIONS).usage.items():
            found[f"{number} {name}"] = asdict(usage)
    return found


@pytest.mark.matrix(least=1)
@needs_nvrtc
@trees
def test_no_kernel_spills_and_registers_are_as_they_were(be, tree, request):
    found = {arch: _usage(be, tree, arch) for arch in ARCHITECTURES}
    every = [usage for kernels in found.values() for usage in kernels.values()]
    assert every and all(usage["spill_stores"] == usage["spill_loads"] == usage["stack"] == 0 for usage in every)
    kept = json.loads(USAGE.read_text()) if USAGE.exists() else {}
    if request.config.getoption("--update-golden"):
        kept[tree.__name__] = {"NVRTC": list(version()), **found}
        USAGE.write_text(json.dumps({t.__name__: kept[t.__name__] for t in CUDA_TREES if t.__name__ in kept}, indent=1))
    known = kept[tree.__name__]
    if known["NVRTC"] == list(version()):  # another assembler allots registers otherwise
        assert found == {arch: known[arch] for arch in ARCHITECTURES}, "if it is meant: pytest --update-golden"


@needs_nvrtc
@pytest.mark.parametrize(
    ("tree", "count"),
    [
        (lambda be: be.sqrt(TensorType("float32", (1 << 24,))("x")), 4),
        (lambda be: be.sum(TensorType("float32", (1 << 24,))("x")), 4),
        (lambda be: be.sum(TensorType("float32", (512, 1 << 20))("x"), axis=0), 4),
        (lambda be: TensorType("float32", (4096, 8192))("x") * TensorType("float32", (8192,))("y"), 4),
        (softmax_by_warps, 8),
        (lambda be: be.softmax(TensorType("float32", (4096, 4096))("x"), axis=1), 4),
        (lambda be: be.softmax(TensorType("float32", (4096, 1 << 14))("x"), axis=1), 4),
        (lambda be: be.softmax(TensorType("float32", (4096, 1 << 16))("x"), axis=1), 4),
    ],
)
def test_loads_are_under_way_before_the_first_is_used(be, tree, count):
    assert max(under_way(text, OPTIONS) for text in source(tree(be), "cuda")) == count


@pytest.mark.parametrize(("shape", "axis"), [((2, 1 << 20), 1), ((1 << 16, 1024), 0), ((1 << 16, 1023), 0)])
def test_a_maximum_and_sums_of_exponentials_are_one_traversal(be, shape, axis):
    x = TensorType("float32", shape)("x")
    for tree in (be.softmax(x, axis), be.log_softmax(x, axis)):
        assert [launch.name for launch in launches(tree)] == ["stage0", "stage1"]
    assert [launch.name for launch in launches(be.logsumexp(x, axis))] == ["stage0", "end"]


@pytest.mark.matrix(least=1)
@needs_nvrtc
@pytest.mark.parametrize("length", [4, 32, 100, 1024])
def test_short_rows_of_halves_are_added_without_float64(be, length):
    """Cards but those for data centres have two units of float64 for 128 of float32."""
    x, numbers = TensorType("float16", (4096, length))("x"), TensorType("float32", (4096, length))("y")
    trees = be.sum(x, axis=1), be.softmax(x, axis=1), x - be.mean(x, axis=1), be.var(x, axis=1)
    assert not any("add.rn.f64" in ptx_of(text, "sm_89", OPTIONS) for tree in trees for text in source(tree, "cuda"))
    assert all("add.rn.f64" in ptx_of(text, "sm_89", OPTIONS) for text in source(be.sum(numbers, axis=1), "cuda"))


def test_usage_is_kept_of_the_same_trees():
    assert list(json.loads(USAGE.read_text())) == [tree.__name__ for tree in CUDA_TREES]


# What source and launches give


@pytest.mark.parametrize("arch", DEVICES)
def test_every_architecture_has_its_layout(be, arch):
    x = TensorType("float32", (64, 12000))("x")
    (text,), (launch, *_) = source(be.softmax(x, axis=1), "cuda", arch), launches(be.softmax(x, axis=1), arch=arch)
    assert ("extern __shared__" in text) == (launch.shared > 0)
    assert launch.shared <= DEVICES[arch].shared


def test_launches_are_the_sources_kernels(be):
    for tree in CUDA_TREES:
        names = [name for text in source(tree(be), "cuda") for name in _kernels(text)]
        assert [launch.name for launch in launches(tree(be))] == names


def _kernels(text: str) -> list[str]:
    return [line.split("(")[-2].split()[-1] for line in text.splitlines() if line.startswith('extern "C" __global__')]


def test_it_does_not_depend_on_what_is_unknown(be):
    x, known = TensorType("float32", (None, None))("x"), TensorType("float32", (64, 64))("x")
    assert source(be.softmax(x, axis=1), "cuda") == source(be.softmax(known, axis=1), "cuda")
    assert launches(be.softmax(x, axis=1)) == launches(be.softmax(known, axis=1))
    assert launches(function([x], be.softmax(x, axis=1))) == launches(be.softmax(x, axis=1))


def test_a_tree_of_calls_alone_launches_nothing(be):
    x, y = be.ones((5, 7)), be.ones((7, 5))
    assert launches(be.dot(x, y)) == source(be.dot(x, y), "cuda") == []
    z = be.empty((5, 7))
    assert source(OpTreeNode.build("assign", z, x * 2), "cuda") == source(x * 2, "cuda")


def test_no_text_of_a_users_is_in_it(be):
    x = TensorType("float32", (3, 4))("evil*/name")
    assert "evil" not in "".join(source(x * math.pi, "cuda")) and "3.14" not in "".join(source(x * math.pi, "cuda"))


def test_it_is_the_same_each_time(be):
    assert source(softmax_by_warps(be), "cuda") == source(softmax_by_warps(be), "cuda")


def test_wrong_arguments(be):
    with pytest.raises(BackendError, match="no architecture 'sm_11'; there are sm_75, sm_80"):
        source(be.ones(3) + 1, "cuda", "sm_11")
    with pytest.raises(BackendError, match="no architecture 'sm_11'"):
        launches(be.ones(3) + 1, arch="sm_11")
    with pytest.raises(BackendError, match="the target is 'cuda', not 'c'"):
        launches(be.ones(3) + 1, "c")
    with pytest.raises(OperandError, match="launches: a tree or a function is wanted"):
        launches(3.0)
