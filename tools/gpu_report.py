"""A report of op-tree on a GPU: tests, compute-sanitizer, the quick benchmark and both examples, in ten minutes.

Writes gpu-report.txt and gpu-report.json, to be sent in as they are. They name the card, but no user, machine or path.

    make gpu-report
    python tools/gpu_report.py --output folder
"""

from __future__ import annotations

import argparse
import getpass
import importlib.metadata
import json
import os
import platform
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import optree
from backends import gen_backend
from optree.errors import BackendError

ROOT = Path(__file__).resolve().parent.parent

#: The tests that say most about a device.
TESTS = ("tests/gpu/test_on_gpu.py", "tests/gpu/test_graphs.py", "tests/gpu/test_epilogues.py")

#: The number of lines of a step's output in the report.
LINES = 40

#: Paths, which are cut to their last part.
_PATH = re.compile(r"(?<![\w.])(?:~|[A-Za-z]:)?(?:[/\\][^\s/\\:'\"<>|,;()]+){2,}")


@dataclass(frozen=True)
class Step:
    """A part of the report.

    Attributes
    ----------
    name : str
    arguments : tuple of str
        Python's arguments, with ``{folder}`` in place of a folder.
    limit : float
        Seconds after which it is killed.
    found : callable, optional
        From the folder to what the step wrote there, for the JSON.
    """

    name: str
    arguments: tuple[str, ...]
    limit: float
    found: Callable[[Path], Any] | None = None


@dataclass
class Outcome:
    """The outcome of a step: passed, failed or out of time, its seconds, and its output."""

    name: str
    status: str
    seconds: float
    said: list[str]
    found: Any = None


@dataclass
class Report:
    """All that is written."""

    facts: dict[str, Any]
    outcomes: list[Outcome] = field(default_factory=list)


def facts_of(be: Any) -> dict[str, Any]:
    """Facts of the device and the software."""
    cupy, runtime = be.cupy, be.cupy.cuda.runtime
    properties, device = runtime.getDeviceProperties(be.device_id), cupy.cuda.Device(be.device_id)
    return {
        "card": properties["name"].decode(),
        "compute capability": f"{properties['major']}.{properties['minor']}",
        "multiprocessors": device.attributes["MultiProcessorCount"],
        "shared memory of a block": device.attributes["MaxSharedMemoryPerBlockOptin"],
        "bytes of memory": device.mem_info[1],
        "devices": runtime.getDeviceCount(),
        "driver is for CUDA": _version(runtime.driverGetVersion()),
        "NVRTC": ".".join(map(str, cupy.cuda.nvrtc.getVersion())),
        "CuPy": cupy.__version__,
        "NumPy": importlib.metadata.version("numpy"),
        "Python": platform.python_version(),
        "system": platform.system(),
        "op-tree": optree.__version__,
    }


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def tests_of(folder: Path) -> dict[str, Any]:
    """Counts of tests, and the failed and skipped ones with their reasons."""
    cases = ElementTree.parse(folder / "tests.xml").iter("testcase")
    found: dict[str, Any] = {"passed": 0, "failed": {}, "skipped": {}}
    for case in cases:
        result = next((part for part in case if part.tag in ("failure", "error", "skipped")), None)
        if result is None:
            found["passed"] += 1
        else:
            kind = "skipped" if result.tag == "skipped" else "failed"
            found[kind][case.get("name", "")] = result.get("message", "").splitlines()[:8]
    return found


def benchmark_of(folder: Path) -> Any:
    """The benchmark's results."""
    (path,) = folder.glob("gpu-*.json")
    return json.loads(path.read_text())


def _pytest(*arguments: str) -> tuple[str, ...]:
    return ("-m", "pytest", "--home", "gpu", "-q", "-rs", "-p", "no:cacheprovider", "--tb=short", *arguments)


STEPS = (
    Step("tests", _pytest("--junitxml={folder}/tests.xml", "-k", "not sanitizer", *TESTS), 300, tests_of),
    Step("compute-sanitizer", _pytest("--junitxml={folder}/tests.xml", "-k", "sanitizer", TESTS[0]), 240, tests_of),
    Step(
        "benchmark",
        ("benchmarks/gpu.py", "--quick", "--peers", "cupy", "by hand", "--output", "{folder}"),
        300,
        benchmark_of,
    ),
    Step("digits", ("examples/digits.py", "--backend", "gpu", "--epochs", "10", "--output", "{folder}"), 120),
    Step("charlm", ("examples/charlm.py", "--backend", "gpu", "--steps", "1000"), 120),
)


def outcome_of(step: Step, clean: Callable[[str], str]) -> Outcome:
    """Run a step in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = [each.replace("{folder}", folder) for each in step.arguments]
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        begin = time.perf_counter()
        try:
            done = subprocess.run(
                [sys.executable, *arguments],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": path},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=step.limit,
            )
            status, text = "passed" if done.returncode == 0 else f"failed ({done.returncode})", done.stdout
        except subprocess.TimeoutExpired as error:
            status, text = f"out of time ({step.limit:g} s)", error.stdout or b""
        seconds = round(time.perf_counter() - begin, 1)
        found = None
        if step.found is not None:
            with suppress(OSError, ValueError, ElementTree.ParseError):  # it wrote nothing
                found = json.loads(clean(json.dumps(step.found(Path(folder)))))
    said = clean(text.decode(errors="replace")).splitlines()
    return Outcome(step.name, status, seconds, said[-LINES:], found)


def cleaner(names: Sequence[str]) -> Callable[[str], str]:
    """A function that removes names from a text, and all but the last part of paths."""
    known = sorted({name for name in names if len(name) > 1}, key=len, reverse=True)
    pattern = re.compile("|".join(rf"\b{re.escape(name)}\b" for name in known)) if known else None

    def clean(text: str) -> str:
        text = _PATH.sub(lambda path: re.split(r"[/\\]", path[0])[-1], text)
        return pattern.sub("...", text) if pattern else text

    return clean


def own_names() -> list[str]:
    """The names of the user and the machine."""
    names = [socket.gethostname(), socket.gethostname().split(".")[0], platform.node(), Path.home().name]
    with suppress(OSError, KeyError):
        names.append(getpass.getuser())
    return names


def text_of(report: Report) -> str:
    """The report to be read."""
    lines = ["op-tree on a GPU", "", *(f"{name}: {value}" for name, value in report.facts.items()), ""]
    lines += [f"{each.name}: {each.status}, {each.seconds} s" for each in report.outcomes]
    for each in report.outcomes:
        lines += ["", f"== {each.name}", *each.said]
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None, steps: Sequence[Step] = STEPS) -> None:
    """Run all steps, and write the report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path(), help="the folder for both files")
    options = parser.parse_args(arguments)
    try:
        be = gen_backend("gpu")
    except BackendError as error:
        sys.exit(f"there is nothing to report: {error}")
    report, clean = Report(facts_of(be)), cleaner(own_names())
    print(f"{report.facts['card']}; this takes about ten minutes")
    for step in steps:
        print(f"{step.name}: ", end="", flush=True)
        report.outcomes.append(outcome_of(step, clean))
        print(f"{report.outcomes[-1].status}, {report.outcomes[-1].seconds} s")
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "gpu-report.txt").write_text(text_of(report))
    (options.output / "gpu-report.json").write_text(json.dumps(asdict(report), indent=1) + "\n")
    print("Written: gpu-report.txt and gpu-report.json. Please send both in: neither has names or paths of yours.")
    if any(each.status != "passed" for each in report.outcomes):
        sys.exit("something went wrong, as the report says")


if __name__ == "__main__":
    main()
