"""What a first result loads, and runs: a program that needs neither a compiler nor a GPU waits for neither."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from harness.compiling import done, needs_compiler, python

import optree

FIRST = """
import sys
import numpy
known = set(sys.modules)
from backends import gen_backend
be = gen_backend("cpu", jit=True)
z = be.empty(4096)
z[:] = be.full(4096, 2) * 3 + be.sin(be.zeros(4096))
assert z.get().tolist() == [6.0] * 4096
print(be.stats()["kernels"]["disk_hits"], *sorted(set(sys.modules) - known))
"""

#: What starts programs, speaks to GPUs, derives, tests or draws on the host.
UNNEEDED = {
    *("subprocess", "tempfile", "shutil", "signal", "logging", "difflib", "random", "secrets", "hashlib"),
    *(
        "numpy.random",
        "backends.gpu",
        "backends.gpu.cuda_graphs",
        "backends.gpu.cupy_device",
        "backends.gpu.codegen.printer",
    ),
    *("backends.gpu.launch_config", "backends.cpu.numpy_blocks", "optree.autodiff.api", "optree.autodiff.jacobians"),
    *("optree.testing", "optree.testing.conformance", "optree.xp", "optree.xp.array"),
}


@needs_compiler
def test_a_first_result_with_its_kernel_on_disk_loads_what_it_needs(folder: Path) -> None:
    done(python(FIRST, OPTREE_CACHE_DIR=folder))
    hits, *loaded = done(python(FIRST, OPTREE_CACHE_DIR=folder)).split()
    assert int(hits) > 0
    assert "backends.cpu.backend" in loaded and UNNEEDED.isdisjoint(loaded)


def test_what_is_loaded_later_is_there() -> None:
    for name in UNNEEDED:
        assert importlib.import_module(name)
    assert all(getattr(optree, name) is not None for name in optree.__all__)
    assert optree.autodiff.api.grad is optree.grad
    with pytest.raises(AttributeError, match="module 'optree' has no attribute 'nothing'"):
        _ = optree.nothing


def test_a_process_starts_without_what_is_loaded_later() -> None:
    done(python("import optree; assert optree.grad and optree.metadiff.Metadiff and optree.check_grad"))
    done(python("from optree import *; assert grad and check_grad and metadiff"))
    done(python("from backends import gen_backend; assert (gen_backend('cpu').ones(3) + 1).is_input_dependent()"))


REGISTERED = """
import importlib, sys
import backends, optree
from optree.registry import FUNCTIONS, NUMPY_FUNCTIONS, OPS
def known():
    kinds = optree.Variable, optree.OpTreeNode, optree.Tensor, backends.Backend
    return [set(x) for x in (FUNCTIONS, NUMPY_FUNCTIONS, OPS, *map(dir, kinds))]
before = known()
for name in sys.argv[1:]:
    importlib.import_module(name)
assert known() == before
"""


def test_what_is_loaded_later_adds_nothing_to_what_programs_see() -> None:
    """No op, function or method is there or not by what else has been asked for."""
    names = [name for name in UNNEEDED if name.startswith(("optree", "backends"))]
    done(python(f"import sys; sys.argv[1:] = {names!r}\n{REGISTERED}"))
