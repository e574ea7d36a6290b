"""The benchmark on GPUs, on the stand-in for CuPy: what it measures there means nothing, but its code runs."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from harness.cuda import needs_gxx
from harness.emulated import emulated_cupy
from harness.fake_cublaslt import FakeCuBLASLt
from harness.fake_kernels import add_kernels
from scipy import special

from backends import gen_backend
from backends.gpu import matmul as products
from optree.errors import BackendError

pytestmark = pytest.mark.slow

BENCHMARKS = Path(__file__).resolve().parent.parent.parent / "benchmarks"

#: Runs for all who import CuPy in a process of its own: the stand-in for it, whose kernels do nothing.
CUPY = """
import sys
from harness.fake_cupy import fake_cupy
sys.modules[__name__] = fake_cupy()
"""


def _cupyx(cupy: Any) -> Any:
    def erf(x: Any, out: Any = None) -> Any:
        out = cupy.empty_like(x) if out is None else out
        out.host[...] = special.erf(x.host)
        return out

    module = ModuleType("cupyx.scipy.special")
    module.erf = erf  # type: ignore[attr-defined]
    return module


@pytest.fixture
def cupy(tmp_path: Path) -> Iterator[Any]:
    """The stand-in, for this process and for those that it starts, with the benchmark's modules found by name."""
    (tmp_path / "cupy.py").write_text(CUPY)
    (tmp_path / "cupyx.py").write_text("import sys, cupy\nsys.modules[__name__] = cupy.linalg.cupyx\n")
    paths = [str(tmp_path), str(Path(__file__).parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    cupy = emulated_cupy()
    add_kernels(cupy)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        patch.setitem(sys.modules, "cupy", cupy)
        patch.setitem(sys.modules, "cupyx", cupy.linalg.cupyx)
        patch.setattr(products, "installed", lambda: FakeCuBLASLt(cupy.machine))
        patch.setitem(sys.modules, "cupyx.scipy.special", _cupyx(cupy))
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))
        yield cupy


@needs_gxx
def test_every_workload_is_right_and_what_was_found_is_written(
    cupy: Any, folder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    gpu = importlib.import_module("gpu")
    peers = ["cupy", "cupy.fuse", "by hand"]
    options = ["--quick", "--rounds", "1", "--sizes", "1024", "--dtypes", "float32", "--peers", *peers]
    for name, number in (("LARGE", 1024), ("LEAST_CALLS", 2), ("CALLS", 2)):
        monkeypatch.setattr(gpu, name, number)
    monkeypatch.setattr(importlib.import_module("comparison"), "ONCE", 1024)
    draw = gpu.draw  # of few rows: that takes long
    monkeypatch.setattr(gpu, "draw", lambda rows, *given: draw(rows[:2], *given))
    gpu.main([*options, "--output", str(tmp_path)])
    assert cupy.machine.launches and cupy.machine.graphs, "kernels and graphs are what is measured"
    (written,) = tmp_path.glob("gpu-*-stand-in.json")
    result = json.loads(written.read_text())
    rows = {row["workload"]: row["seconds"] for row in result["rows"]}
    assert {"copy", "training step", "sum of columns", "softmax of rows, 32 long", "layer norm, 1,024 long"} <= set(
        rows
    )
    assert all({"optree", "cupy"} <= set(seconds) for seconds in rows.values())
    by_hand = {name for name, seconds in rows.items() if "by hand" in seconds}
    assert {"copy", "Adam, three results", "x.T + y", "sum", "mean((x - y)**2)", "softmax of rows"} <= by_hand
    assert "cupy.fuse" in rows["Black-Scholes"] and "cupy.fuse" not in rows["copy"]
    assert len(result["on the host"]) == 5 and min(result["on the host"].values()) > 0
    assert set(result["first kernels"]) == {"compiled by NVRTC", "kept on disk"}
    shares = {row["workload"] for row in result["bandwidths"]}
    assert "layer norm, 32 long" in shares and "training step" not in shares
    predicted = {row["workload"]: row["predicted"] for row in result["bandwidths"]}
    assert predicted["copy"] == 1 and 0.5 < predicted["layer norm, 32 long"] <= 1
    assert 0.5 < predicted["softmax of rows, 32 long"] <= 1 and 0.5 < predicted["sum"] <= 1
    assert written.with_suffix(".png").stat().st_size > 1000
    assert "GB/s" in capsys.readouterr().out


@needs_gxx
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_are_measured_where_they_are_enough(cupy: Any, dtype: str) -> None:
    gpu, peers, comparison = map(importlib.import_module, ("gpu", "device_peers", "comparison"))
    options = gpu.options_of(["--dtypes", dtype, "--sizes", "1024", "--only", "copy", "32 long", "Black"])
    workloads = list(comparison.chosen(gpu.WORKLOADS, gpu.SIZES, options))
    assert [w.title for w in workloads] == ["copy", "softmax of rows, 32 long", "layer norm, 32 long"]
    faults = comparison.Faults()
    rows = comparison.rows_of(
        workloads, [peers.DeviceOptree(), peers.CuPy()], lambda calls, _: [[1.0]] * len(calls), faults
    )
    assert not faults
    assert [row["dtype"] for row in rows] == [dtype] * 3


def test_a_wrong_result_is_not_measured(cupy: Any) -> None:
    gpu, peers, comparison = map(importlib.import_module, ("gpu", "device_peers", "comparison"))
    wrong = type("Wrong", (peers.CuPy,), {"way": lambda *_: (lambda: None, lambda: [np.zeros(1024)])})
    broken = type("Broken", (peers.CuPy,), {"way": lambda *_: ([], [])})
    faults = comparison.Faults()
    rows = comparison.rows_of(
        [gpu.WORKLOADS[1](1024, "float32")], [peers.DeviceOptree(), wrong(), broken()], lambda calls, _: [[1.0]], faults
    )
    assert [list(row["seconds"]) for row in rows] == [["optree"]], "the others are measured all the same"
    assert "a*b + c*sin(d), 1024 float32: cupy is wrong" in faults[0] and "cupy fails: TypeError" in faults[1]


def test_a_run_in_parts_is_put_together(cupy: Any, tmp_path: Path) -> None:
    comparison = importlib.import_module("comparison")

    def row(workload: str, second: float) -> dict[str, Any]:
        return {"workload": workload, "elements": 8, "dtype": "float32", "seconds": {"optree": second}}

    path = tmp_path / "found.json"
    assert comparison.together(path, [row("copy", 1.0)]) == [row("copy", 1.0)]
    path.write_text(json.dumps({"rows": [row("copy", 1.0), row("sum", 2.0)]}))
    assert comparison.together(path, [row("copy", 3.0)]) == [row("sum", 2.0), row("copy", 3.0)]


def test_the_table_by_counts_predicts_what_it_names(cupy: Any) -> None:
    gpu = importlib.import_module("gpu")
    known = gpu.predictions((BENCHMARKS / "gpu.md").read_text())
    assert {name for name, _ in known} >= {*gpu.COUNTED.values(), *(f"{each}-1024" for each in gpu.OF_LENGTH.values())}
    titles = {workload.title for workload in gpu.WORKLOADS}
    assert titles >= gpu.COUNTED.keys()
    assert all(any(title.startswith(f"{each}, ") for title in titles) for each in gpu.OF_LENGTH)


def test_times_are_those_between_events(cupy: Any) -> None:
    gpu = importlib.import_module("gpu")
    done: list[str] = []

    class Call:
        def __call__(self) -> None:
            done.append("call")

        def wait(self) -> None:
            done.append("wait")

    cupy.cuda.get_elapsed_time = lambda start, end: 6.0 if start.time < end.time else None
    assert gpu.DeviceClock(cupy)(Call(), 3) == pytest.approx(0.002)
    assert done == ["call", "call", "call", "wait"]


def test_without_a_device_it_says_so() -> None:
    try:
        gen_backend("gpu")
    except BackendError as error:
        missing = str(error)
    else:
        pytest.skip("there is a GPU")
    run = subprocess.run([sys.executable, BENCHMARKS / "gpu.py"], capture_output=True, text=True)
    assert run.returncode == 1
    assert run.stderr == f"nothing is measured without a GPU: {missing}\n"


def test_libraries_without_a_gpu_are_left_out(cupy: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    gpu, peers, comparison = map(importlib.import_module, ("gpu", "device_peers", "comparison"))
    torch = SimpleNamespace(
        __version__="2", set_grad_enabled=lambda on: None, cuda=SimpleNamespace(is_available=lambda: False)
    )
    names = ("exp", "log", "log1p", "sin", "sqrt", "tanh", "sum", "mean", "erf", "relu", "softmax", "log_softmax")
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(**vars(torch), **dict.fromkeys(names)))
    assert comparison.available([peers.DeviceTorch], gpu.options_of([])) == []
    assert "torch finds no GPU" in capsys.readouterr().out
