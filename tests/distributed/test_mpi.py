"""Several processes with real MPI: results are those of one process, in the same bits in each run, and none hangs."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from harness.each import for_each

from backends import gen_backend
from optree.distributed import init

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
LAUNCHER = Path(sys.executable).parent / "mpiexec"

pytestmark = pytest.mark.slow

if find_spec("mpi4py") is None or not LAUNCHER.exists():
    pytest.skip("mpi4py and mpiexec are not installed: pip install mpi4py mpich", allow_module_level=True)

from on_ranks import CHECKS, EXAMPLES, HOST_ONLY  # noqa: E402 it imports mpi4py

#: The checks that any number of ranks makes.
PLAIN = [name for name in CHECKS if name not in (*EXAMPLES, "bits")]

#: The most seconds that a program of this file takes on a busy machine.
MOST = 400


def launch(ranks: int, *command: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run a program on some processes."""
    paths = [str(ROOT), str(HERE.parent), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.run(
        [str(LAUNCHER), *options, "-n", str(ranks), sys.executable, *command],
        env=env,
        capture_output=True,
        text=True,
        timeout=MOST,
    )


def outcomes(ranks: int, names: Iterable[str], *options: str) -> Any:
    """The results of the checks of these names on some processes."""
    made = launch(ranks, str(HERE / "on_ranks.py"), *options, *names)
    assert made.returncode == 0, made.stdout[-2000:] + made.stderr[-6000:]
    return json.loads(made.stdout.splitlines()[-1])


@for_each("name", PLAIN, sampled=True)
def test_checks_alone(name: str) -> None:
    CHECKS[name](init(gen_backend("cpu", jit=False), "alone"))


@pytest.mark.matrix(least=0)
def test_checks_on_two_ranks_by_mpi_and_by_a_stand_in_for_nccl(sample: Any) -> None:
    """By MPI the examples, and the checks that four ranks do not make. Bits are the same in both runs."""
    found = []
    on_device = [name for name in CHECKS if name not in HOST_ONLY]
    for engine, names, always in (("mpi", PLAIN[1::2], [*EXAMPLES, "bits"]), ("nccl", on_device, ["bits"])):
        drawn = sample(names)
        found.append(outcomes(2, [*drawn, *always], engine))
        assert found[-1] == dict.fromkeys([*drawn, *always], "ok") | {"bits": found[0]["bits"]}
    assert len(found[0]["bits"]) > 1000


@pytest.mark.matrix(least=1)
@pytest.mark.parametrize("ranks", [3, 4])
def test_checks_on_more_ranks(ranks: int, sample: Any) -> None:
    """Of four, which wait for each other on few processors, every second check."""
    names = sample(PLAIN[:: ranks - 2], least=3)
    assert outcomes(ranks, names) == dict.fromkeys(names, "ok")


FAILS = """
import sys, time
import numpy as np
from backends import gen_backend
from optree.distributed import init
be = gen_backend("cpu", jit=False)
group = init(be)
x = be.array(np.ones(3))
for i in range(2):
    group.all_reduce(x).astensor()
if group.rank == group.size - 1:
    {last}
else:
    {others}
print("goes on", group.rank)
"""

OTHERS = "group.all_reduce(x).astensor()"

MAPS = """
    with open("/proc/self/maps") as maps:
        print({line.split()[-1] for line in maps if "mpich_shm" in line})
    1 / 0
"""

#: What ends all of some ranks: what the last one does, and the others do, and what errors say of it.
FAILURES = {
    "another shape": (2, "group.all_reduce(be.zeros((2, 2))).astensor()", OTHERS, ["float32 (2, 2)", "float32 (3,)"]),
    "fewer calls": (2, "pass", OTHERS, ["at the end of its program", "all_reduce, sum of float32 (3,)"]),
    "more calls": (2, OTHERS, "pass", ["at the end of its program", "all_reduce, sum of float32 (3,)"]),
    "an exception": (
        3,
        MAPS.strip(),
        OTHERS,
        ["ZeroDivisionError", "rank 2 of 3 fails", "all_reduce, sum of float32 (3,)"],
    ),
    "no coming": (
        2,
        "time.sleep(100)",
        f"group.engine.timeout = 4.0; {OTHERS}",
        ["rank 1 has not come", "all_reduce, sum of float32 (3,)", "4 seconds"],
    ),
    "another shape sent": (
        2,
        "group.send(be.zeros(4), 0).astensor()",
        "group.recv(x, 1).astensor()",
        ["recv of float32 (3,) from rank 1, which sends float32 (4,)"],
    ),
    "a signal": (2, f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})", OTHERS, []),
}


def test_failures_end_all_ranks_with_an_error_that_says_why(sample: Any) -> None:
    """Each program is a second's wait at its end: they run three at a time."""
    names = sample(list(FAILURES), least=2)

    def run(name: str) -> tuple[subprocess.CompletedProcess[str], float]:
        ranks, last, others, _ = FAILURES[name]
        start = time.monotonic()
        made = launch(ranks, "-c", FAILS.format(last=last, others=others))
        return made, time.monotonic() - start

    with ThreadPoolExecutor(3) as pool:
        found = dict(zip(names, pool.map(run, names), strict=True))
    for name, (made, seconds) in found.items():
        assert made.returncode != 0, name
        for text in FAILURES[name][3]:
            assert text in made.stderr, f"{name}: {made.stderr}"
        assert seconds < 90, name
        assert name != "a signal" or "goes on" not in made.stdout
        if name == "an exception":
            (files,) = (ast.literal_eval(line) for line in made.stdout.splitlines() if "mpich_shm" in line)
            assert files and not any(Path(file).exists() for file in files), "shared memory is left"


@pytest.mark.matrix(least=1)
@pytest.mark.skipif(sys.platform != "linux", reason="it is killed by a signal")
@pytest.mark.parametrize("status", [0, 1])
def test_a_rank_that_ends_before_init_ends_all(status: int) -> None:
    """MPI's start would wait for it for ever."""
    program = f"""
        import sys
        from backends import gen_backend
        from optree.distributed import init, launched
        if launched().rank == 1:
            sys.exit({status})
        init(gen_backend("cpu", jit=False), timeout=1)
    """
    begin = time.monotonic()
    made = launch(2, "-c", textwrap.dedent(program))
    assert made.returncode != 0 and "in _wait_until_all_ranks_call_init" in made.stderr, made.stderr[-2000:]
    assert time.monotonic() - begin < 60


@pytest.mark.matrix(least=0)
def test_a_child_that_a_rank_forks_does_not_speak_for_it() -> None:
    """However the child ends, the ranks go on; it is told of where it has used the group."""
    ends = ["sys.exit(0)", "sys.exit(3)", "1 / 0", "group.all_reduce(x).astensor()", "init(be)"]
    forked = """
    import os
    for i, end in enumerate({ends}):
        print("child", i, file=sys.stderr, flush=True)
        if not os.fork():
            exec(end)
            sys.exit(0)
        os.wait()
        print(group.all_reduce(x).get().tolist())
    """
    last = textwrap.indent(textwrap.dedent(forked.format(ends=ends)), "    ").strip()
    others = f"for i in range({len(ends)}): print(group.all_reduce(x).get().tolist())"
    made = launch(3, "-c", FAILS.format(last=last, others=others))
    assert made.returncode == 0, made.stderr
    assert made.stdout.count("[3.0, 3.0, 3.0]") == 3 * len(ends) and made.stdout.count("goes on") == 3
    _, *told = re.split(r"child \d\n", made.stderr)
    assert ["is a child that rank 2 of 3" in text for text in told] == [False, False, False, True, True], made.stderr
