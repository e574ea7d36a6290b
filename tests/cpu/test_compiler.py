"""From C source to a function: finding a compiler, compiling, loading, and what goes wrong with each."""

from __future__ import annotations

import ctypes
import math
import os
import re
import signal
import stat
import subprocess
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from harness.threads import in_threads

from backends import gen_backend, source
from backends.cpu import compiler
from backends.cpu.compiler import compile_counts, compile_source, find_compiler
from backends.execution import compilations
from optree import function, settings
from optree.errors import CompilerError
from optree.op.traits import ElementwiseOperator, NonDifferentiableOperator, UnaryOperator
from optree.settings import override
from tests.harness.compiling import (
    added,
    adder,
    appears,
    compiled,
    done,
    forget,
    needs_compiler,
    private,
    program,
    python,
)

pytestmark = [needs_compiler, pytest.mark.usefixtures("folder")]

# Functions


def test_a_function_computes():
    source = """
    void scale(float *x, long n, double by) { for (long i = 0; i < n; i++) x[i] *= by; }
    void negate(float *x, long n) { for (long i = 0; i < n; i++) x[i] = -x[i]; }
    """
    x = np.arange(5, dtype=np.float32)
    scale = compile_source(source, "scale", (ctypes.c_void_p, ctypes.c_long, ctypes.c_double))
    negate = compile_source(source, "negate", (ctypes.c_void_p, ctypes.c_long))
    assert scale(x.ctypes.data, 5, 2.0) is None
    negate(x.ctypes.data, 5)
    assert np.array_equal(x, [0, -2, -4, -6, -8])


def test_libraries_of_the_same_names_stay_apart():
    functions = [(compile_source(source, "add"), number) for source, number in (adder() for _ in range(4))]
    assert all(added(function) == number for function, number in functions)


def test_flags_cost_no_meaning():
    source = """
    void f(double *x) {
        x[1] = x[0] * x[0] - x[0] * x[0];  /* 0 unless contracted */
        x[3] = x[2] != x[2];               /* of nan */
        x[5] = x[4] * 0;                   /* -0 of -1, nan of inf */
        x[6] = (x[6] + 1e308) + -1e308;
        x[8] = x[7] / 2;                   /* denormal */
    }
    """
    x = np.array([0.1, 9, np.nan, 9, -1, 9, 1e-3, 5e-308, 0])
    compile_source(source, "f")(x.ctypes.data)
    assert x[1] == 0 and x[3] == 1 and x[5] == 0 and np.signbit(x[5]) and x[6] == 0 and x[8] == 2.5e-308
    x[4] = np.inf
    compile_source(source, "f")(x.ctypes.data)
    assert np.isnan(x[5])
    assert np.float64(5e-308) / 2 > 0  # loading changed nothing for the rest of the process


def test_the_gil_is_released():
    source = """
    #include <time.h>
    void wait(volatile double *x) { time_t end = time(0) + 10; while (x[0] == 0 && time(0) < end); x[1] = x[0]; }
    """
    x = np.zeros(2)
    wait = compile_source(source, "wait")
    thread = threading.Timer(0.05, lambda: x.__setitem__(0, 1))
    thread.start()
    wait(x.ctypes.data)
    thread.join()
    assert x[1] == 1


def test_the_source_is_shown_as_it_is_made(capfd):
    source, _ = adder()
    with override(show="source"):
        compile_source(source, "add")
        compile_source(source, "add")
    assert capfd.readouterr() == ("", source + "\n")
    compiled()
    assert capfd.readouterr() == ("", "")


def test_calls_are_counted(counted):
    source = compiled()
    assert counted() == {"hits": 0, "disk_hits": 0, "misses": 1}
    compiled(source)
    assert counted() == {"hits": 1, "disk_hits": 0, "misses": 1}
    forget()
    seconds = compile_counts()["seconds"]
    compiled(source)
    assert counted() == {"hits": 1, "disk_hits": 1, "misses": 1}
    assert compile_counts()["seconds"] == seconds > 0


def test_threads_compile_each_source_once(counted):
    source, number = adder()
    assert in_threads(lambda _: added(compile_source(source, "add")), 8) == [number] * 8
    assert counted() == {"hits": 7, "disk_hits": 0, "misses": 1}


# Compilers


def test_the_first_compiler_is_found(monkeypatch, tmp_path):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_compiler() is None
    with pytest.raises(CompilerError, match="there is no C compiler: install gcc or clang, or name one in CC"):
        compile_source("", "f")
    for name in ("clang", "gcc", "cc"):
        program(tmp_path / name, "")
        assert find_compiler().command == (str(tmp_path / name),)
    program(tmp_path / "mine", "")
    monkeypatch.setenv("CC", "mine -m64 'a b'")
    assert find_compiler().command == (str(tmp_path / "mine"), "-m64", "a b")


def test_a_compiler_of_another_file_or_time_is_another(tmp_path, monkeypatch):
    file = program(tmp_path / "mine", "")
    monkeypatch.setenv("CC", str(file))
    before = find_compiler()
    assert find_compiler() == before
    os.utime(file, (1, 1))
    assert find_compiler() != before
    key = compiler._key("source", before)
    assert key == compiler._key("source", before)
    assert len({key, compiler._key("source", find_compiler()), compiler._key("other", before)}) == 3


@pytest.mark.parametrize("cc", ["no-such-compiler", "/no/such/compiler -O2", "'"])
def test_a_cc_that_is_not_there_is_an_error_that_names_it(monkeypatch, cc):
    monkeypatch.setenv("CC", cc)
    with pytest.raises(CompilerError) as caught:
        find_compiler()
    assert repr(cc) in str(caught.value)


def test_a_cc_that_fails_is_an_error_with_its_output(monkeypatch, tmp_path):
    monkeypatch.setenv("CC", str(program(tmp_path / "broken", "echo licence expired >&2; exit 3")))
    with pytest.raises(CompilerError, match=r"broken does not work: status 3: licence expired"):
        compiled()
    monkeypatch.setenv("CC", str(program(tmp_path / "idle", "echo nothing to do")))
    with pytest.raises(CompilerError, match=r"idle failed with status 0: nothing to do"):
        compiled()
    (tmp_path / "idle").write_text("#!/no/such/shell\n")
    with pytest.raises(CompilerError, match=r"idle cannot be run: .*No such file"):
        compiled()


@pytest.mark.parametrize("jit", ["auto", True])
def test_a_cc_that_does_not_work_is_refused_as_the_backend_is_made(monkeypatch, tmp_path, counted, jit):
    monkeypatch.setenv("CC", str(program(tmp_path / "broken", "echo licence expired >&2; exit 3")))
    with pytest.raises(CompilerError, match=r"broken does not work: status 3: licence expired") as caught:
        gen_backend("cpu", jit=jit)
    assert "jit=False" in caught.value.__notes__[0]
    assert (gen_backend("cpu", jit=False).ones(2) + 1).asnumpyarray().tolist() == [2, 2]


def test_a_compiler_that_nobody_asked_for_is_tried_when_it_is_needed(monkeypatch, tmp_path, counted):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(program(tmp_path / "cc", "exit 3").parent))
    assert (gen_backend("cpu").ones(2) + 1).asnumpyarray().tolist() == [2, 2]
    with pytest.raises(CompilerError, match="cc does not work: status 3"):
        gen_backend("cpu", jit=True)


@pytest.mark.parametrize("jit", ["auto", True])
def test_that_a_compiler_works_is_remembered(monkeypatch, tmp_path, counted, jit):
    real, calls = find_compiler().command[0], tmp_path / "calls"
    monkeypatch.setenv("CC", str(program(tmp_path / "mine", f'echo >> {calls}; exec {real} "$@"')))
    gen_backend("cpu", jit=jit)
    ran = calls.stat().st_size
    assert ran > 0
    gen_backend("cpu", jit=jit)
    forget()  # as a new process, which finds what was made on disk
    gen_backend("cpu", jit=jit)
    assert calls.stat().st_size == ran
    assert counted() == {"hits": 1, "disk_hits": 1, "misses": 1}


def test_without_a_compiler_everything_runs_and_says_so(tmp_path):
    code = f"""
        import os
        os.chdir({str(tmp_path)!r})
        import logging
        logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[logging.FileHandler("log")])
        import numpy as np
        from backends import gen_backend
        be, again = gen_backend("cpu"), gen_backend("cpu")
        x = np.random.RandomState(0).randn(1024, 1024).astype(np.float32)
        y = (be.softmax(be.array(x), axis=1) * 2).asnumpyarray()
        e = np.exp(x - x.max(1, keepdims=True))
        np.testing.assert_allclose(y, 2 * e / e.sum(1, keepdims=True), rtol=1e-5)
        print(be.info(), be.stats()["kernels"]["misses"])
    """
    said = done(python(f"import os; os.chdir({str(tmp_path)!r})\n" + textwrap.dedent(code), PATH="", CC=""))
    assert "there is no C compiler" in said and "gcc or clang" in said and said.split()[-1] == "0"
    assert (tmp_path / "log").read_text().count("NumPy, for there is no C compiler") == 1


def test_what_jit_false_says():
    be = gen_backend("cpu", jit=False)
    assert be.info().startswith("NumPy, for jit=False")


def test_an_expression_that_does_not_compile_is_known_by_its_op_and_its_line():
    class Misspelt(NonDifferentiableOperator, UnaryOperator, ElementwiseOperator):
        numpy = np.tanh
        kernel = "tahn({0}"

    be = gen_backend("cpu", jit=True)
    x, z = be.ones((4, 5)), be.empty((4, 5))
    tree = be.exp(Misspelt()(x * 2)) + 1
    with pytest.raises(CompilerError, match="tahn") as caught:
        z[:] = tree
    notes = "\n".join(caught.value.__notes__)
    assert re.search(r"not op-tree's: .*Misspelt", caught.value.__notes__[0])
    assert "jit=False" in notes
    assert re.search(r"while running .*test_compiler\.py:\d+", notes)


def test_a_wrong_source_is_an_error_with_the_compilers_words(folder):
    with pytest.raises(CompilerError, match=r"failed with status 1: kernel.c:[^^]* error: expected expression"):
        compile_source("void f(double *x) { x[0] = ; }", "f")
    with pytest.raises(CompilerError, match=r"cannot be loaded: .*undefined symbol: nowhere"):
        compile_source("double nowhere(void); void f(double *x) { x[0] = nowhere(); }", "f")
    assert not [file for file in private(folder).iterdir() if file.name.startswith("tmp-")]


def test_a_cc_that_hangs_is_stopped_with_all_it_started(monkeypatch, tmp_path):
    monkeypatch.setenv(
        "CC", str(program(tmp_path / "slow", f"echo thinking; sleep 60 & echo $! > {tmp_path}/pid; wait"))
    )
    start = time.monotonic()
    for seconds in (0.3, 3, 20):  # a busy machine takes longer to begin
        with (
            override(compile_seconds=seconds),
            pytest.raises(CompilerError, match=f"slow took more than {seconds} ") as e,
        ):
            compiled()
        if "thinking" in str(e.value) and (tmp_path / "pid").exists():
            break
    assert ": thinking" in str(e.value)
    assert time.monotonic() - start < 50  # not the minute that it sleeps
    assert ended(int((tmp_path / "pid").read_text()))


def test_an_interrupted_compilation_is_stopped(folder, tmp_path):
    slow = program(tmp_path / "slow", f"echo $$ > {tmp_path}/pid; sleep 60")
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # a shell's "&" has it ignored
    code = f"{heard}; from backends.cpu.compiler import compile_source; compile_source({adder()[0]!r}, 'add')"
    process = python(code, OPTREE_CACHE_DIR=folder, CC=slow)
    assert appears(tmp_path / "pid")
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in process.communicate(timeout=30)[1]
    assert ended(int((tmp_path / "pid").read_text()))
    assert list(private(folder).iterdir()) == []


def ended(pid):
    """Whether a process ends within a few seconds."""
    for _ in range(300):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        state = Path(f"/proc/{pid}/stat")
        if state.exists() and ") Z " in state.read_text():  # ended, and nobody asks how
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize("refused", ["-march=native", "-fopenmp-simd", "-march=*|-mcpu=*|-fopenmp*"])
def test_flags_that_a_compiler_does_not_take_are_left_out(monkeypatch, tmp_path, refused):
    real = find_compiler().command[0]
    text = f"""
    for flag in "$@"; do case "$flag" in {refused}) echo "unknown $flag" >&2; exit 1;; esac; done
    echo run >> {tmp_path}/runs
    exec {real} "$@"
    """
    monkeypatch.setenv("CC", str(program(tmp_path / "choosy", text)))
    compiled()
    before = (tmp_path / "runs").read_text().count("run")
    compile_source("int g(double *x) { return 3; }", "g")  # the flags are not asked again
    assert (tmp_path / "runs").read_text().count("run") == before + 1
    with pytest.raises(CompilerError, match="kernel.c"):
        compile_source("void f(double *x) { x[0] = ; }", "f")


# Threads and forks


def test_the_number_of_threads(monkeypatch):
    try:
        for given, expected in (("3", 3), ("5,2", 5), ("", None), ("many", None), ("0", None)):
            monkeypatch.setenv("OMP_NUM_THREADS", given)
            settings._default_count.cache_clear()
            with override(num_threads=None):  # whatever OPTREE_NUM_THREADS says here
                assert settings.thread_count() == expected or (expected is None and settings.thread_count() >= 1)
        with override(num_threads=7):
            assert settings.thread_count() == 7
    finally:
        settings._default_count.cache_clear()


@pytest.mark.parametrize(
    ("limits", "wanted"),
    [
        ({}, math.inf),
        ({"jobs/one": "max 100000"}, math.inf),
        ({"jobs/one": ""}, math.inf),
        ({"": "250000 100000"}, 2.5),
        ({"jobs/one": "400000 100000", "jobs": "30000 20000"}, 1.5),
        ({"others": "10000 100000"}, math.inf),
    ],
    ids=["no files", "no limit", "an empty file", "a container's", "the least of all groups", "another group's"],
)
def test_the_quota_of_processors(tmp_path, limits, wanted):
    own = tmp_path / "own"
    own.write_text("1:cpu:/old\n0::/jobs/one\n")
    for group, text in limits.items():
        (tmp_path / "root" / group).mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / group / "cpu.max").write_text(f"{text}\n")
    assert settings._quota(own, tmp_path / "root") == wanted
    assert settings._quota(tmp_path / "absent", tmp_path / "root") == math.inf


@pytest.mark.parametrize(
    ("limits", "wanted"),
    [
        ({}, math.inf),
        ({"cpu/jobs/one": (-1, 100000)}, math.inf),
        ({"cpu": (250000, 100000)}, 2.5),
        ({"cpu/jobs/one": (400000, 100000), "cpu/jobs": (30000, 20000)}, 1.5),
        ({"cpuset/jobs/one": (10000, 100000), "cpu/others": (10000, 100000)}, math.inf),
    ],
    ids=["no files", "no limit", "a container's", "the least of all groups", "another group's"],
)
def test_the_quota_of_processors_by_the_first_version_of_control_groups(tmp_path, limits, wanted):
    own = tmp_path / "own"
    own.write_text("5:cpuset:/jobs/one\n4:cpu,cpuacct:/jobs/one\n1:name=systemd:/a:b\n0::/\n")
    for group, numbers in limits.items():
        (tmp_path / "root" / group).mkdir(parents=True, exist_ok=True)
        for name, number in zip(("quota", "period"), numbers, strict=True):
            (tmp_path / "root" / group / f"cpu.cfs_{name}_us").write_text(f"{number}\n")
    assert settings._quota(own, tmp_path / "root") == wanted


@pytest.mark.parametrize(("quota", "wanted"), [(0.5, 1), (1.5, 2), (math.inf, 4)])
def test_threads_are_within_the_quota(monkeypatch, quota, wanted):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(4), raising=False)
    monkeypatch.setattr(settings, "_quota", lambda: quota)
    assert settings._default_count.__wrapped__() == wanted


def test_a_child_forked_during_a_compilation_can_compile(folder, tmp_path):
    real = find_compiler().command[0]
    slow = program(tmp_path / "slow", f'touch {tmp_path}/begun; sleep 0.5; exec {real} "$@"')
    code = f"""
    import os, pathlib, signal, threading
    from backends.cpu.compiler import compile_source
    from tests.harness.compiling import appears
    source = {adder()[0]!r}
    thread = threading.Thread(target=compile_source, args=(source, "add"))
    thread.start()
    assert appears(pathlib.Path({str(tmp_path / "begun")!r}))
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        compile_source(source, "add")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    thread.join()
    """
    done(python(code, OPTREE_CACHE_DIR=folder, CC=slow))
    assert [stat.S_IMODE(file.stat().st_mode) for file in private(folder).iterdir()] == [0o600]


def test_a_killed_process_leaves_nothing_that_is_loaded_and_later_nothing_at_all(folder, tmp_path, counted):
    real = find_compiler().command[0]
    begun = f"echo $$ > {tmp_path}/pid; mv {tmp_path}/pid {tmp_path}/begun"
    slow = program(tmp_path / "slow", f'{begun}; sleep 0.5; exec {real} "$@"')
    source, number = adder()
    code = f"from backends.cpu.compiler import compile_source; compile_source({source!r}, 'add')"
    process = python(code, OPTREE_CACHE_DIR=folder, CC=slow)
    assert appears(tmp_path / "begun")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert ended(int((tmp_path / "begun").read_text()))  # it would write there still
    (left,) = private(folder).iterdir()
    assert left.name.startswith("tmp-") and left.is_dir()
    half = private(folder) / "tmp-12ab_f_9"
    half.write_bytes(b"half")
    compiled((source, number))
    assert counted()["misses"] == 1
    assert left.exists()  # for all that is known, it is still in use
    for old in (left, half):
        os.utime(old, (1, 1))
    compiled()
    assert not [file.name for file in private(folder).iterdir() if file.name.startswith("tmp-")]


def test_a_compiler_that_writes_half_a_library_is_an_error_and_nothing_is_cached(folder, tmp_path):
    """The loader would map pages that are not there: a SIGBUS, in this process and later ones."""
    real = find_compiler().command[0]
    half = 'for last; do :; done; while [ "$1" != -o ]; do shift; done; head -c 4096 "$2" > h; mv h "$2"'
    halving = program(tmp_path / "halving", f'{real} "$@" || exit; {half}')
    source, _ = adder()
    code = f"""
    from backends.cpu.compiler import compile_source
    from optree.errors import CompilerError
    try:
        compile_source({source!r}, "add")
    except CompilerError as error:
        assert "cannot be loaded: it is truncated" in str(error), error
    else:
        raise AssertionError("it has been loaded")
    """
    for _ in range(2):
        done(python(code, OPTREE_CACHE_DIR=folder, CC=halving))
        assert not list(private(folder).iterdir())


def test_a_truncated_library_in_the_disk_cache_is_compiled_again(folder, counted):
    source, number = adder()
    compiled((source, number))
    (file,) = private(folder).iterdir()
    content = file.read_bytes()
    half = content[compilations.sha256().digest_size : len(content) // 2]
    for damaged in (content[: len(content) // 2], b"", compilations._sealed(file.name, half)):
        file.write_bytes(damaged)
        code = f"""
        from backends.cpu.compiler import compile_counts, compile_source
        assert compile_source({source!r}, "add") and compile_counts()["misses"] == 1
        """
        done(python(code, OPTREE_CACHE_DIR=folder))
        assert file.read_bytes()[: len(content)] != damaged


@pytest.mark.parametrize("flags", ["", "-s", "-g"])
def test_every_truncation_of_a_library_is_seen(tmp_path, flags):
    (tmp_path / "a.c").write_text(
        "static double big[999]; double t[300] = {1}; int f(int x) { return big[x] += t[x]; }"
    )
    command = [*find_compiler().command, "-shared", "-fPIC", *flags.split(), "a.c", "-o", "a.so"]
    subprocess.run(command, cwd=tmp_path, check=True)
    binary = (tmp_path / "a.so").read_bytes()
    assert compiler._is_whole(binary)
    if binary.startswith(b"\x7fELF"):
        assert not any(compiler._is_whole(binary[:length]) for length in range(4, len(binary)))


def test_a_cc_that_hides_symbols_works(monkeypatch, counted):
    monkeypatch.setenv("CC", f"{find_compiler().command[0]} -fvisibility=hidden")
    compiled()
    be = gen_backend("cpu", jit=True)
    assert (be.ones(2) + 1).asnumpyarray().tolist() == [2, 2]


def test_a_library_without_the_function_is_an_error(monkeypatch):
    monkeypatch.setenv("CC", f"{find_compiler().command[0]} -Dadd=other")
    with pytest.raises(CompilerError, match="made a shared object without add"):
        compiled()


def test_an_undefined_symbol_is_told_with_the_op_whose_expression_has_it():
    class Misspelt(NonDifferentiableOperator, UnaryOperator, ElementwiseOperator):
        numpy = np.tanh
        kernel = "no_such_function({0})"

    class Sound(NonDifferentiableOperator, UnaryOperator, ElementwiseOperator):
        numpy = np.cosh
        kernel = "cosh({0})"

    be = gen_backend("cpu", jit=True)
    with pytest.raises(CompilerError) as caught:
        be.exp(Misspelt()(Sound()(be.ones((4, 5))))).asnumpyarray()
    assert re.match(r".*Misspelt: .*no_such_function", str(caught.value))
    assert "Sound" not in str(caught.value)


def test_an_expression_may_use_all_of_math_h_and_others_are_compiled_without():
    class Degrees(NonDifferentiableOperator, UnaryOperator, ElementwiseOperator):
        numpy = np.degrees
        kernel = "{0} * (T)(180 / M_PI)"

    class Whole(NonDifferentiableOperator, UnaryOperator, ElementwiseOperator):
        numpy = np.rint
        kernel = "lrint({0})"

    be = gen_backend("cpu", jit=True)
    x = be.array(np.linspace(-3, 3, 7))
    assert np.allclose(Degrees()(Whole()(x * 1.2)).asnumpyarray(), np.degrees(np.rint(x.asnumpyarray() * 1.2)))
    (whole,), (sums,), (sines,) = source(Whole()(x)), source(be.exp(x) * 2), source(be.sin(x))
    assert "#include <tgmath.h>" in whole
    assert "#include <" not in (sums + sines).replace("#include <stdint.h>", "")
    assert "extern" not in sums and sines.count("extern") == 2


# A compiler that breaks, and one that takes its time


def breakable(tmp_path, monkeypatch):
    """A compiler that works until the file that is returned is there; it counts its calls in `calls`."""
    real, broken, calls = find_compiler().command[0], tmp_path / "broken", tmp_path / "calls"
    text = f'echo >> {calls}; if [ -e {broken} ]; then echo licence expired >&2; exit 3; fi; exec {real} "$@"'
    monkeypatch.setenv("CC", str(program(tmp_path / "mine", text)))
    return broken


def backend_that_compiles_at_once():
    be = gen_backend("cpu", rng_seed=0)
    be.when = be.when._replace(work=0)
    return be


TREES = {
    "elementwise": lambda be, x, c: be.tanh(x) * x + c,
    "reduction": lambda be, x, c: be.sum(be.exp(x) * c, axis=1),
    "softmax": lambda be, x, c: be.softmax(x * c, axis=1) - be.mean(x, axis=0),
}


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_auto_goes_on_by_numpy_when_the_compiler_breaks(monkeypatch, tmp_path, caplog, tree):
    broken = breakable(tmp_path, monkeypatch)
    be = backend_that_compiles_at_once()
    x = be.array(np.linspace(-1, 1, 3000).reshape(30, 100), name="x")
    z = be.empty((30, 100))
    number = float(adder()[1])
    z[:] = be.sqrt(x * x + 0.125) / x.shape[0]  # compiled before
    broken.touch()
    wanted = tree(gen_backend("cpu", jit=False), x.get(), number % 7)
    for _ in range(3):
        # The softmax less the means, which are of 0.05, is close to 0 for some numbers.
        np.testing.assert_allclose(tree(be, x, number % 7).asnumpyarray(), wanted.asnumpyarray(), rtol=1e-5, atol=1e-8)
        w = be.zeros((30, 100), name="w")
        step = function([], tree(be, x, 1.0), updates={w: tree(be, x, 2.0) + w})
        step(), step()
        np.testing.assert_allclose(w.get(), np.broadcast_to(2 * tree(be, x, 2.0).asnumpyarray(), w.shape), rtol=1e-4)
    z[:] = be.sqrt(x * x + 0.125) / x.shape[0]
    ran = (tmp_path / "calls").stat().st_size
    be.cosh(x + 3).asnumpyarray()
    assert (tmp_path / "calls").stat().st_size == ran, "a compiler that failed is not tried again"
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "NumPy" in line and "licence expired" in line and "jit=True" in line
    assert "failed" in be.info()


def test_with_jit_a_compiler_that_breaks_is_an_error(monkeypatch, tmp_path):
    broken = breakable(tmp_path, monkeypatch)
    be = gen_backend("cpu", jit=True)
    broken.touch()
    with pytest.raises(CompilerError, match="licence expired"):
        TREES["softmax"](be, be.ones((3, 4)), 3.0).asnumpyarray()


def test_auto_runs_an_op_by_numpy_whose_expression_does_not_compile_and_still_compiles_others(caplog, counted):
    class Misspelt(NonDifferentiableOperator, UnaryOperator, ElementwiseOperator):
        numpy = np.tanh
        kernel = "no_such_function_either({0})"

    be = backend_that_compiles_at_once()
    x = be.array([0.5, 1.0])
    np.testing.assert_allclose((Misspelt()(x) + 1).asnumpyarray(), np.tanh([0.5, 1]) + 1, rtol=1e-6)
    assert any("Misspelt" in record.getMessage() for record in caplog.records)
    before = counted()["misses"]
    (be.cosh(x) * be.cosh(x * 3) + 1).asnumpyarray()
    assert counted()["misses"] > before


def test_a_terminal_is_told_once_that_kernels_are_compiled(monkeypatch, capsys, folder):
    monkeypatch.setattr(compilations, "PATIENCE", 0.0)
    monkeypatch.setattr(compiler._loaded, "announced", False)
    compiled()
    assert capsys.readouterr().err == ""  # no terminal
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    compiled()
    told = capsys.readouterr().err
    assert re.search(r"compiling kernels: \d+ in \d+\.\d s so far", told) and str(folder) in told
    compiled()
    assert capsys.readouterr().err == ""
