"""Children that are forked while another thread is at work: what it had locked is free there, for it is not."""

from __future__ import annotations

import os

import pytest
from harness.compiling import in_children

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

#: An op that waits, as a function or an assignment runs it in another thread, and a child forked meanwhile.
FORKED = """
import os, signal, threading
import numpy as np
import optree
from backends import gen_backend
from optree.op.traits import NonDifferentiableOperator, UnaryOperator

begun, go_on, parent = threading.Event(), threading.Event(), os.getpid()

def wait(x):
    if os.getpid() == parent and threading.current_thread() is not threading.main_thread():
        begun.set()
        go_on.wait(30)
    return x + 1

class Waiting(NonDifferentiableOperator, UnaryOperator):
    {definition}
    def output_shape(self, *shapes):
        return shapes[0]

be = gen_backend("cpu", jit=False)
x, z = be.ones(3), be.zeros(3)
{call}
thread = threading.Thread(target=call)
thread.start()
assert begun.wait(30)
child = os.fork()
if child == 0:
    signal.alarm(20)
    call()
    os._exit(z.get().tolist() != [2, 2, 2])
_, status = os.waitpid(child, 0)
go_on.set()
thread.join()
assert status == 0, status
call()
assert z.get().tolist() == [2, 2, 2]
"""

VALUE = """
    def numpy(self, *arrays):
        return wait(arrays[0])
"""

THUNK = """
    def make_thunk(self, node, storage_map, compute_map, no_recycling, impl=None):
        (x,), (y,) = node.inputs, node.outputs
        return lambda: storage_map[y].__setitem__(0, wait(storage_map[x][0]))
"""

FUNCTION = """
call = optree.function([], updates={z: Waiting()(x)})
"""

ASSIGNMENT = """
def call():
    z[:] = Waiting()(x)
"""


FORKING = """
import os, signal
import optree
from backends import gen_backend
from optree.op.traits import NonDifferentiableOperator, UnaryOperator

class Forking(NonDifferentiableOperator, UnaryOperator):
    def numpy(self, *arrays):
        global child
        child = os.fork()
        if child == 0:
            signal.alarm(20)
        return arrays[0] + 1

    def output_shape(self, *shapes):
        return shapes[0]

be = gen_backend("cpu", jit=False)
x, z = be.ones(3), be.zeros(3)
step = optree.function([], updates={z: Forking()(x)})
step()
first = child
assert z.get().tolist() == [2, 2, 2]
step()
if first == 0 or child == 0:
    os._exit(0)
assert os.waitpid(first, 0)[1] == 0 and os.waitpid(child, 0)[1] == 0
"""


DRAWING = """
import os, signal
from backends import gen_backend

be = gen_backend("cpu", rng_seed=1)

def drawn(number, seeded):
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        if seeded:
            be.gen_rng(1 + number)
        os.write(sender, (be.rand(4).asnumpyarray().tobytes() + be.rng.rand(2).tobytes()))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    return os.read(receiver, 100)

assert len({drawn(number, seeded=False) for number in range(3)}) == 1
assert len({drawn(number, seeded=True) for number in range(3)}) == 3
"""


FORKED_WHILE = """
import os, signal, threading
import numpy as np
from backends import gen_backend
from optree.tree.types import Spec, TensorType, Type
from optree.ops import random

begun, go_on, parent = threading.Event(), threading.Event(), os.getpid()

def wait():
    if os.getpid() == parent and threading.current_thread() is not threading.main_thread():
        begun.set()
        go_on.wait(30)

class SlowState:
    def __getitem__(self, i):
        wait()
        return 0

    def __setitem__(self, i, value):
        pass

class SlowType(Type):
    @property
    def plan_key(self):
        wait()
        return "slow"

be, other = gen_backend("cpu", rng_seed=1), gen_backend("cpu", rng_seed=1)
other.from_host = lambda array: (wait(), array)[1]
held = {
    "state": lambda: random.take_blocks(SlowState(), 1),
    "spec": lambda: Spec(SlowType()),
    "shape": lambda: other.rand((7, 7)),
}
thread = threading.Thread(target=held[HELD])
thread.start()
assert begun.wait(30)
child = os.fork()
if child == 0:
    signal.alarm(20)
    assert be.rand((3, 11)).asnumpyarray().shape == (3, 11)
    os._exit(0)
_, status = os.waitpid(child, 0)
go_on.set()
thread.join()
assert status == 0, status
"""


def test_children_run_and_draw_whatever_another_thread_had_locked() -> None:
    calls = {"value": (VALUE, FUNCTION), "thunk": (THUNK, FUNCTION), "shared": (THUNK, ASSIGNMENT)}
    cases = {
        name: FORKED.format(definition=definition.strip(), call=call.strip())
        for name, (definition, call) in calls.items()
    }
    cases |= {name: FORKED_WHILE.replace("HELD", repr(name)) for name in ("state", "spec", "shape")}
    head = "import numpy, optree, optree.op.traits, optree.ops.random; from backends import gen_backend"
    in_children(head, {**cases, "an op that forks, which ends in both": FORKING, "draws of children": DRAWING})


#: A child that is forked while another thread is within the first use of a module, which the child uses too.
IMPORTED_LATER = """
import os, signal, threading, time
import importlib.abc, sys

class Slow(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == {module!r} and threading.current_thread() is not threading.main_thread():
            begun.set()
            time.sleep(1)

begun = threading.Event()
sys.meta_path.insert(0, Slow())
import optree
from backends import gen_backend
be = gen_backend("cpu", jit=False)

def use():
    return {use}

assert {module!r} not in sys.modules
thread = threading.Thread(target=use)
thread.start()
assert begun.wait(30)
child = os.fork()
if child == 0:
    signal.alarm(20)
    use()
    os._exit(0)
_, status = os.waitpid(child, 0)
thread.join()
assert status == 0, status
"""


USES = {
    "optree.rest": "be.rand((3,)).get()",
    "optree.xp.namespace": "float(be.xp.sum(be.xp.asarray([1.0])))",
    "optree.autodiff.api": "optree.grad",
    "optree.train.checkpoints": "optree.train.saved",
}


def test_a_child_can_use_what_a_thread_was_importing() -> None:
    cases = {module: IMPORTED_LATER.format(module=module, use=use) for module, use in USES.items()}
    in_children("import numpy", cases)
