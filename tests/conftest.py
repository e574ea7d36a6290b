"""Backends for the tests, the sample of large matrices, and Hypothesis drawing the same examples on each run."""

from __future__ import annotations

import gc
import math
import random
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.homes import home
from harness.memory import DEFAULT, limit_memory
from harness.rig.install import rig, why_no_rig
from hypothesis import HealthCheck, settings

from backends import gen_backend
from backends.cpu import compiler
from backends.cpu.compiler import compile_counts
from optree.errors import BackendError
from optree.run.function import _backends
from optree.settings import override

settings.register_profile(
    "ci",
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=100,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
#: Of a matrix's cases, one of so many is drawn, and of a small matrix at least so many, or those that its marker says.
SHARE, LEAST = 20, 3
#: On simulated devices, where each kernel is compiled by g++ and runs thread by thread.
RIG_SHARE, RIG_LEAST = 16, 8

# Where matrices are sampled, the first of the same examples.
settings.register_profile("sample", parent=settings.get_profile("ci"), max_examples=12)
# Another draw each time, and many more of them: pytest --hypothesis-profile=long.
settings.register_profile("long", parent=settings.get_profile("ci"), derandomize=False, max_examples=3000)
settings.load_profile("ci")


def pytest_addoption(parser: Any) -> None:
    parser.addoption("--update-golden", action="store_true", help="write tests/golden/ anew, to be read in review")
    parser.addoption("--all", action="store_true", help="run every case of the matrices, where a sample is the default")
    parser.addoption("--cases", type=int, help="of each test, run at most so many cases, drawn by --seed")
    parser.addoption("--seed", type=int, help="draw the sample of each matrix that a run with this seed drew")
    parser.addoption("--memory", type=float, default=DEFAULT, help="the limit of each process in GiB; 0 for none")
    parser.addoption("--every-architecture", action="store_true", help="compile each CUDA kernel for all of them")
    parser.addoption(
        "--home",
        action="append",
        help="where tests of every kind of backend run, and those alone: cpu, stand-in or gpu",
    )
    parser.addoption("--rig", action="store_true", help="with --home gpu: on simulated devices, by real CuPy")


def pytest_configure(config: Any) -> None:
    """With --home gpu, name the device; without one, all tests would be skipped, which looks as if all were well."""
    said = (
        "matrix(least): one test of many cases, of which a sample runs, no fewer than least; with --all, every one. "
        "matrix(least=0): a long test, which runs with --all alone, beside a shorter one of the same promise"
    )
    config.addinivalue_line("markers", said)
    config.addinivalue_line("markers", "on_the_rig: a test that runs on simulated devices")
    config.addinivalue_line("markers", "slow: of the longest files: they run first, so that no process waits for one")
    worker = getattr(config, "workerinput", {})  # pytest-xdist's: every process has to collect the same tests
    if config.option.seed is None:
        config.option.seed = worker.get("seed", random.randrange(10**6))
    if not _takes_all(config) and not config.getoption("hypothesis_profile", None):
        settings.load_profile("sample")
    if config.option.memory and (config.option.rig or "gpu" not in (config.getoption("home") or [])):
        limit_memory(config.option.memory)
    if config.option.rig:
        if why_no_rig():
            raise pytest.UsageError(str(why_no_rig()))
        config.add_cleanup(_opened(rig().on(config.option.seed)).close)
    if "gpu" in (config.getoption("home") or []):
        try:
            print(gen_backend("gpu").info())
        except BackendError as error:
            raise pytest.UsageError(str(error)) from error


def _opened(context: Any) -> ExitStack:
    """A context that is entered, to be closed."""
    stack = ExitStack()
    stack.enter_context(context)
    return stack


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Send the seed to a process that pytest-xdist starts."""
    node.workerinput["seed"] = node.config.option.seed


def pytest_report_header(config: Any) -> str:
    """Say which cases of the matrices run."""
    on = f"simulated devices: work in an order drawn by --seed {config.option.seed}; " if config.option.rig else ""
    if config.option.cases:
        return f"{on}of each test at most {config.option.cases}, drawn by --seed {config.option.seed}"
    if _takes_all(config):
        return f"{on}matrices: every case"
    share, _ = _share(config)
    return f"{on}matrices: one case of {share}, drawn by --seed {config.option.seed} (--all runs every case)"


def _share(config: Any) -> tuple[int, int]:
    """Of a matrix's cases, one of how many is drawn, and at least how many."""
    return (RIG_SHARE, RIG_LEAST) if config.option.rig else (SHARE, LEAST)


def _takes_all(config: Any) -> bool:
    """Whether every case is asked for, or golden files, or tests by name: who names a test wants it to run."""
    if config.option.cases:
        return False
    named = any("::" in argument for argument in config.args)
    asked = ("all", "keyword", "lf", "update_golden", *(() if config.option.rig else ("home",)))
    return named or any(config.getoption(option, None) for option in asked)


def pytest_generate_tests(metafunc: Any) -> None:
    if "home_kind" in metafunc.fixturenames:
        homes = metafunc.config.getoption("home") or ["cpu", "stand-in"]
        metafunc.parametrize("home_kind", homes, scope="module")
    if "device_kind" in metafunc.fixturenames:
        homes: list[Any] = metafunc.config.getoption("home") or [
            pytest.param("gpu", id="rig", marks=pytest.mark.on_the_rig)
        ]
        metafunc.parametrize("device_kind", [home for home in homes if home not in ("cpu", "stand-in")], scope="module")


#: The files of tests that say most of a home, which run first there.
FIRST = ("test_on_gpu", "test_epilogues", "test_random_trees", "test_reductions", "test_contractions", "test_registry")

#: What tests ask for that run where --home says.
AT_HOME = ("be", "be64", "home_kind", "device_kind", "real")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Any:
    """Leave out the collector of garbage, which looks again and again at tens of thousands of tests: all live on."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Leave a sample of each matrix, slow tests first; with --home, all that runs there, by what it says of a home."""
    if not _takes_all(config):
        sampled = _sampled(items, config)
        config.hook.pytest_deselected(items=[item for item in items if item not in sampled])
        items[:] = [item for item in items if item in sampled]
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    if not config.getoption("home"):
        return
    here = [item for item in items if _runs_at_home(item)]
    config.hook.pytest_deselected(items=[item for item in items if not _runs_at_home(item)])
    items[:] = sorted(here, key=lambda item: FIRST.index(item.path.stem) if item.path.stem in FIRST else len(FIRST))


def pytest_collection_finish(session: Any) -> None:
    """Make the rig before a test lets CuPy look for its libraries."""
    on_rig = [each for each in session.items if "on" in each.fixturenames or each.get_closest_marker("on_the_rig")]
    if on_rig and why_no_rig() is None:
        rig()


def _sampled(items: list[Any], config: Any) -> set[Any]:
    """The tests that run: all but those of a matrix, and of each matrix what the seed draws."""
    sampled = set()
    tests: dict[str, list[Any]] = {}
    for item in items:
        if item.get_closest_marker("matrix") is None and not config.option.cases:
            sampled.add(item)
        else:
            tests.setdefault(item.nodeid.split("[")[0], []).append(item)
    for name, cases in tests.items():
        marker = cases[0].get_closest_marker("matrix")
        sampled.update(_drawn(cases, config, name, marker.kwargs.get("least") if marker else None))
    return sampled


def _drawn(cases: list[Any], config: Any, name: str, least: int | None = None) -> list[Any]:
    """A sample in the order of the cases, which the matrix's name takes part in: others may come and go."""
    if least == 0 and not config.option.rig:
        return []
    share, default = _share(config)
    count = min(len(cases), config.option.cases or max(least or default, math.ceil(len(cases) / share)))
    numbers = random.Random(f"{config.option.seed} {name}").sample(range(len(cases)), count)
    return [cases[number] for number in sorted(numbers)]


def _runs_at_home(item: Any) -> bool:
    return any(name in item.fixturenames and not hasattr(item.module, name) for name in AT_HOME)


@pytest.fixture(autouse=True)
def no_backend_of_other_tests() -> None:
    """Functions without tensors run on the last backend made: here one that the test itself makes, or none."""
    _backends.clear()


#: Tests that simulated devices have no answer to, by their names or what they fail with.
BEYOND_THE_RIG = {
    "test_new_sizes_and_slices_leave_memory_bounded": "simulated devices remember the sources of their kernels",
    "test_thousands_of_assignments_leave_memory_flat": "what simulated devices have still to do is in Python's memory",
    "CUBLAS_STATUS_NOT_SUPPORTED": "cuBLAS is simulated for float32 and float64, and products of complex numbers",
    "CUSOLVER_STATUS_IRS_PARAMS_INVALID_REFINE": "cuSOLVER is simulated for real numbers, and eigh of complex ones",
    "cusolver.CUSOLVERError'> returned": "cuSOLVER's eigenvalues of general matrices are not simulated",
}


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: Any) -> Any:
    """On simulated devices, skip what is beyond them."""
    if not pyfuncitem.config.option.rig:
        return (yield)
    if pyfuncitem.originalname in BEYOND_THE_RIG:
        pytest.skip(BEYOND_THE_RIG[pyfuncitem.originalname])
    try:
        return (yield)
    except Exception as error:
        said = [str(each) for each in getattr(error, "exceptions", [error])]
        reasons = [[reason for words, reason in BEYOND_THE_RIG.items() if words in text] for text in said]
        if all(reasons):
            pytest.skip(reasons[0][0])
        raise


@pytest.fixture(autouse=True)
def no_faults_of_simulated_devices(request: Any) -> Iterator[None]:
    """On simulated devices, nothing goes wrong unseen, and what one test breaks the next one finds whole."""
    is_here = request.node.get_closest_marker("on_the_rig") is not None
    if is_here and why_no_rig():
        pytest.skip(str(why_no_rig()))
    with rig().on(request.config.option.seed) if is_here else nullcontext():
        yield
        if is_here or request.config.option.rig:
            faults = rig().recovered()
            assert not faults, faults


@pytest.fixture
def sample(request: Any) -> Any:
    """From a list to what the seed draws of it, in order, for a matrix within one test; to all of it with --all."""

    def drawn(cases: list[Any], least: int | None = None) -> list[Any]:
        return cases if _takes_all(request.config) else _drawn(cases, request.config, request.node.nodeid, least)

    return drawn


@pytest.fixture
def be(request: Any) -> Any:
    """A backend of float32: the CPU's, unless --home says another."""
    return home((request.config.getoption("home") or ["cpu"])[0])


@pytest.fixture
def gpu(device_kind: str) -> Any:
    """A GPU backend, by CuPy on simulated devices, unless --home names a real one."""
    return home(device_kind, rng_seed=0)


@pytest.fixture
def simulated(device_kind: str, request: Any) -> Any:
    """The rig that the test runs on, for what only that counts or refuses."""
    if not request.config.option.rig and request.node.get_closest_marker("on_the_rig") is None:
        pytest.skip("simulated devices are asked, not a real one")
    return rig()


@pytest.fixture
def on() -> Iterator[Any]:
    """The rig, with devices; whoever breaks one repairs it."""
    if why_no_rig():
        pytest.skip(str(why_no_rig()))
    with rig().on(seed=1) as found:
        yield found
        found.recovered()


@pytest.fixture
def real() -> Any:
    """A backend on a real GPU."""
    return home("gpu")


@pytest.fixture
def cpu() -> Any:
    """A CPU backend of float32, for what is of NumPy's memory alone."""
    return gen_backend("cpu")


@pytest.fixture
def be64(request: Any) -> Any:
    """A backend of float64."""
    return home((request.config.getoption("home") or ["cpu"])[0], datatype=np.float64)


@pytest.fixture(autouse=True, scope="module")
def _plain_current_backend() -> None:
    """Each module starts with a plain backend as the current one, whatever the module before it made last.

    And the collector of garbage looks no more at what lives on from before, first of all the tests themselves: each of
    the collections that tests of memory ask for took a second.
    """
    gen_backend("cpu")
    gc.collect()
    gc.freeze()


#: Files of tests whose processes share a disk cache with the test's own: its keys have the flags.
AS_SHIPPED = ("test_compiler", "test_kernel_cache", "test_startup")


#: Folders of tests, and files, that look at what runs and when: with --all, too, at -O1, which takes half the time.
LIGHT = (
    *("tests", "autodiff", "compile", "distributed", "neon", "run", "testing", "train", "xp"),
    "test_ahead.py",
)

#: Files of hundreds of kernels of a few elements: at -O0, each compiles in a third of the time.
PLAIN = ("test_empty.py", "test_loops_in_c.py")


@pytest.fixture(autouse=True, scope="module")
def _lightly_optimised(request: Any) -> Iterator[None]:
    """Where matrices are sampled, kernels are compiled at -O1, which vectorises marked loops, too."""
    is_light = not {request.path.name, request.path.parent.name}.isdisjoint(LIGHT)
    optimises = (_takes_all(request.config) and not is_light) or request.module.__name__ in AS_SHIPPED
    level = "-O0" if request.path.name in PLAIN else "-O2" if optimises else "-O1"
    flags = [level if flag == "-O2" else flag for flag in compiler.FLAGS]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "FLAGS", tuple(flags))
        yield


@pytest.fixture
def optimised(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a file of those, a test of what only optimising compilers may break: bits, and arrays that share memory."""
    monkeypatch.setattr(compiler, "FLAGS", tuple("-O1" if flag == "-O0" else flag for flag in compiler.FLAGS))


@pytest.fixture
def folder(tmp_path: Path) -> Any:
    """A cache folder of the test's own."""
    with override(cache_dir=tmp_path / "cache"):
        yield tmp_path / "cache"


@pytest.fixture
def counted() -> Any:
    """A function that returns the counts of `compile_source` since, without the seconds."""
    before = compile_counts()
    return lambda: {name: number - before[name] for name, number in compile_counts().items() if name != "seconds"}
