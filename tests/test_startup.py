"""The modules that a first result loads: a program that needs neither a compiler nor a GPU waits for neither."""

from __future__ import annotations

import importlib
import pickle
from pathlib import Path

import pytest
from harness.compiling import done, in_children, needs_compiler, python

import optree
from optree.records import NamedTuple

FIRST = """
import sys
import numpy
known = set(sys.modules)
from backends import gen_backend
be = gen_backend("cpu", jit=True)
z = be.empty(4096)
z[:] = be.multiply(be.full(4096, 2), 3) + be.sin(be.zeros(4096))  # a composed function, and an op
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
    *("backends.gpu.launch_config", "optree.autodiff.api", "optree.autodiff.jacobians"),
    *("optree.testing", "optree.testing.conformance", "optree.xp", "optree.xp.array"),
    *("optree.rest", "optree.networks.convolution", "optree.ops.linalg", "optree.ops.softmax", "dataclasses"),
    *("backends.cpu.libraries", "backends.cpu.routines.convolution", "backends.cpu.ahead", "backends.execution.loops"),
    *("backends.cpu.routines.loops", "backends.cpu.routines.loop_trace", "backends.cpu.row_axes"),
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


#: Each, in a process of its own, is the first thing that asks for an op of the families that are imported later.
FIRST_ASKED = {
    "a method": "assert be.softmax(x, axis=1).shape == x.shape",
    "a function": "from optree.registry import f; assert f.cumsum(x, axis=0).shape == x.shape",
    "NumPy": "assert np.median(x).item() == 1 and abs(np.linalg.norm(x).item() - 6**0.5) < 1e-6",
    "an operator": "y = be.ones((2, 3), dtype=np.int32); assert (y & y).asnumpyarray().all()",
    "a node": "assert optree.OpTreeNode.build('logsumexp', x).op.name == 'logsumexp'",
    "a name": "from optree.registry import FUNCTIONS, OPS; assert 'conv' in OPS and FUNCTIONS.get('lstm')",
    "a list": "from optree.registry import FUNCTIONS, OPS; assert {'conv', 'add'} <= {*OPS} & {*FUNCTIONS.keys()}",
    "a module": "from optree.ops.scattering import IndexAdd; assert be.conv and optree.ops.scan and IndexAdd",
    "an attribute": "assert optree.networks.vision.__name__ == 'optree.networks.vision'",
    "a length": "from optree.registry import OPS; assert len(OPS) == len(OPS.items()) == len([*OPS.values()]) > 150",
    "a pickle": "import pickle; assert pickle.loads(%r).name == 'softmax'",
    "threads": """
from threading import Barrier, Thread
barrier, found = Barrier(4), []
def ask(name):
    barrier.wait()
    found.append(getattr(be, name)(x, axis=1))
threads = [Thread(target=ask, args=[name]) for name in ("softmax", "cumsum", "logsumexp", "sort")]
[thread.start() for thread in threads], [thread.join() for thread in threads]
assert len(found) == 4
""",
    "a taken name": """
from optree.op.traits import ElementwiseOperator, UnaryOperator
try:
    class Mine(UnaryOperator, ElementwiseOperator):
        name, numpy, kernel = "sort", np.tanh, "tanh({0})"
        def grad(self, inputs, output_gradients): return output_gradients
except optree.errors.OptreeError as error:
    assert "sort" in str(error) and "optree.ops." in str(error)
else:
    raise AssertionError
""",
    "a function of the user's": """
from optree.registry import f, function
@function()
def roll(x): return x
be.softmax(x, axis=1)
assert f.roll is roll
""",
}


def test_ops_that_are_imported_later_are_there_for_whoever_asks_first() -> None:
    sent = pickle.dumps(optree.registry.OPS["softmax"].make())
    asked = {name: code % sent if "%r" in code else code for name, code in FIRST_ASKED.items()}
    head = "import numpy as np, optree; from optree import registry; from backends import gen_backend"
    made = "be = gen_backend('cpu', jit=False); x = be.ones((2, 3)); (x + np.tanh(x)).asnumpyarray()"
    in_children(f"{head}\n{made}\nassert not registry.is_complete", asked)


def test_a_named_tuple_is_as_those_of_typing() -> None:
    class Pair(NamedTuple):
        """Two."""

        first: int
        second: tuple[int, ...] = ()

        @property
        def both(self) -> tuple[int, ...]:
            return self.first, *self.second

    pair = Pair(1)
    assert (pair, pair.both, pair._replace(second=(2,)).both) == ((1, ()), (1,), (1, 2))
    assert repr(pair) == "Pair(first=1, second=())" and Pair.__doc__ == "Two." and Pair.__module__ == __name__
    assert Pair.__annotations__ == {"first": "int", "second": "tuple[int, ...]"} and Pair.__match_args__ == pair._fields
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'first'"):
        Pair()  # type: ignore[call-arg]


#: Programs that are the first to import the package. No op, function or method depends on what else was asked for.
PROGRAMS = {
    "attributes": "import optree; assert optree.grad and optree.metadiff.Metadiff and optree.check_grad",
    "a star": "from optree import *; assert grad and check_grad and metadiff",
    "a backend": "from backends import gen_backend; assert (gen_backend('cpu').ones(3) + 1).is_input_dependent()",
    "former names": """
import optree
from optree.op import traits
from optree.ops.traits import UnaryOperator
from optree.ops.op import Op
from optree.ops.apply import Apply
from optree import traits as public
assert UnaryOperator is traits.UnaryOperator is public.UnaryOperator
assert Op is optree.Op and Apply is optree.Apply
""",
    "families": """
from optree import registry
import backends
registries = registry.OPS, registry.FUNCTIONS, registry.NUMPY_FUNCTIONS
before = [each.known() for each in registries]
assert not registry.is_complete
registry.complete()
assert registry.is_complete
for known, each in zip(before, registries):
    assert known and len(known) < len(each) and all(each[name] is value for name, value in known.items())
""",
    "modules": f"""
import importlib
import backends, optree
from optree.registry import FUNCTIONS, NUMPY_FUNCTIONS, OPS
def known():
    kinds = optree.Variable, optree.OpTreeNode, optree.Tensor, backends.Backend
    return [set(x) for x in (FUNCTIONS, NUMPY_FUNCTIONS, OPS, *map(dir, kinds))]
before = known()
for name in {sorted(name for name in UNNEEDED if name.startswith(("optree", "backends")))}:
    importlib.import_module(name)
assert known() == before
""",
}


def test_a_process_starts_without_what_is_loaded_later() -> None:
    in_children("import numpy", PROGRAMS)
