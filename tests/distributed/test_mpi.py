"""Several processes with real MPI: results are those of one process, in the same bits in each run, and none hangs."""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import runpy
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

import numpy as np
import pytest

from backends import gen_backend
from optree import train
from optree.distributed import init

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
LAUNCHER = Path(sys.executable).parent / "mpiexec"

pytestmark = pytest.mark.slow

if find_spec("mpi4py") is None or not LAUNCHER.exists():
    pytest.skip("mpi4py and mpiexec are not installed: pip install mpi4py mpich", allow_module_level=True)

from on_ranks import CHECKS, HOST_ONLY  # noqa: E402 it imports mpi4py

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


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_checks_on_ranks(ranks: int, sample: Any) -> None:
    """Three processes make a third of the checks, one and two fewer; all make all of them with --all."""
    names = sample([*CHECKS], least=len(CHECKS) // 3 if ranks == 3 else 3)
    found = outcomes(ranks, names)
    assert found.keys() == set(names)
    assert {name: found[name] for name in names if name != "bits"} == dict.fromkeys(set(names) - {"bits"}, "ok")


def test_checks_on_more_ranks(request: Any) -> None:
    """Four processes make all checks with --all, and else those of training and its files."""
    names = ("training_equals_one_process_with_the_whole_batch", "checkpoints_are_written_once_and_read_by_all")
    names = CHECKS if request.config.getoption("all") else names
    assert outcomes(4, names).keys() == set(names)


def test_checks_on_a_stand_in_for_nccl(sample: Any) -> None:
    names = sample([name for name in CHECKS if name not in HOST_ONLY])
    assert outcomes(2, names, "nccl") == dict.fromkeys(names, "ok")


def test_bits_are_the_same_in_each_run() -> None:
    first, second = (outcomes(2, ["bits"])["bits"] for _ in range(2))
    assert len(first) > 1000 and first == second


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

FAILURES = {
    "another shape": ("group.all_reduce(be.zeros((2, 2))).astensor()", OTHERS, ["float32 (2, 2)", "float32 (3,)"]),
    "another dtype": ("group.all_reduce(be.zeros(3, 'int64')).astensor()", OTHERS, ["int64 (3,)", "float32 (3,)"]),
    "another operation": ("group.all_gather(x).astensor()", OTHERS, ["all_gather", "all_reduce, sum"]),
    "another root": ("group.broadcast(x, 1).astensor()", "group.broadcast(x, 0).astensor()", ["rank 0's", "rank 1's"]),
    "fewer calls": ("pass", OTHERS, ["at the end of its program", "all_reduce, sum of float32 (3,)"]),
    "more calls": (OTHERS, "pass", ["at the end of its program", "all_reduce, sum of float32 (3,)"]),
    "an exception": ("1 / 0", OTHERS, ["ZeroDivisionError", "rank 2 of 3 fails", "all_reduce, sum of float32 (3,)"]),
    "no coming": (
        "time.sleep(100)",
        f"group.engine.timeout = 4.0; {OTHERS}",
        ["rank 2 has not come", "all_reduce, sum of float32 (3,)", "4 seconds"],
    ),
    "another shape sent": (
        "group.send(be.zeros(4), 0).astensor()",
        "group.recv(x, 2).astensor() if group.rank == 0 else None",
        ["recv of float32 (3,) from rank 2, which sends float32 (4,)"],
    ),
}


def test_failures_end_all_ranks_with_an_error_that_says_why() -> None:
    """Each program is a second's wait at its end: they run three at a time."""

    def run(name: str) -> tuple[subprocess.CompletedProcess[str], float]:
        last, others, _ = FAILURES[name]
        start = time.monotonic()
        made = launch(3, "-c", FAILS.format(last=last, others=others))
        return made, time.monotonic() - start

    with ThreadPoolExecutor(3) as pool:
        found = dict(zip(FAILURES, pool.map(run, FAILURES), strict=True))
    for name, (made, seconds) in found.items():
        assert made.returncode != 0, name
        for text in FAILURES[name][2]:
            assert text in made.stderr, f"{name}: {made.stderr}"
        assert seconds < 90, name


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
    made = launch(3, "-c", textwrap.dedent(program))
    assert made.returncode != 0 and "in _wait_until_all_ranks_call_init" in made.stderr, made.stderr[-2000:]
    assert time.monotonic() - begin < 60


def test_a_rank_that_is_killed_ends_all() -> None:
    last = f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})"
    start = time.monotonic()
    made = launch(3, "-c", FAILS.format(last=last, others=OTHERS))
    assert made.returncode != 0 and time.monotonic() - start < 60
    assert "goes on" not in made.stdout


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


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="shared memory has no files")
def test_a_run_that_fails_leaves_no_shared_memory() -> None:
    last = """
    with open("/proc/self/maps") as maps:
        print({line.split()[-1] for line in maps if "mpich_shm" in line})
    1 / 0
    """
    made = launch(3, "-c", FAILS.format(last=textwrap.indent(textwrap.dedent(last), "    ").strip(), others=OTHERS))
    assert made.returncode != 0
    (files,) = (ast.literal_eval(line) for line in made.stdout.splitlines() if "mpich_shm" in line)
    assert files and not any(Path(file).exists() for file in files)


def test_two_products_are_divided_among_processes_as_in_the_example() -> None:
    script = ROOT / "examples" / "tensor_parallel.py"
    alone = runpy.run_path(str(script))
    be = gen_backend("cpu", rng_seed=0, jit="always")
    losses = alone["trained"](be, init(be, "alone"))
    made = launch(2, str(script))
    assert made.returncode == 0, made.stderr
    assert "2 processes, 48 hidden units each" in made.stdout
    printed = [float(x) for x in made.stdout.split(":")[1].split()]
    np.testing.assert_allclose(printed, losses[::13], atol=2e-4)


def test_the_digits_are_learned_by_two_processes_as_by_one(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    script = ROOT / "examples" / "digits.py"
    pytest.importorskip("sklearn")
    monkeypatch.syspath_prepend(str(script.parent))
    options = ["--epochs", "1", "--batch-size", "100", "--output"]
    digits = importlib.import_module("digits")
    digits.main(["--distributed", *options, str(tmp_path / "1")])
    one = capsys.readouterr()
    two = launch(2, str(script), "--distributed", *options, str(tmp_path / "2"))
    assert two.returncode == 0, two.stderr
    plans, accuracy = two.stdout.splitlines()[:2]
    assert "0 after it" in plans and one.out.splitlines()[1] == accuracy
    assert one.err.splitlines() == two.stderr.splitlines()
    folders = [tmp_path / ranks / "checkpoints" for ranks in ("1", "2")]
    found = [train.read(folder) for folder in folders]
    for name, array in found[0].items():
        np.testing.assert_allclose(found[1][name], array, rtol=1e-3, atol=1e-4, err_msg=name)
    # What two processes have written, one reads.
    digits.main([*options, str(tmp_path / "2"), "--resume"])
    assert capsys.readouterr().out.splitlines()[1] == accuracy
