"""The benchmark on GPUs, on simulated devices: what it measures there means nothing, but its code runs."""

from __future__ import annotations

import importlib
import io
import json
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from harness.rig.install import Rig

from optree.errors import BackendError
from optree.settings import override

pytestmark = pytest.mark.slow

BENCHMARKS = Path(__file__).resolve().parent.parent.parent / "benchmarks"


@pytest.fixture
def modules(gpu: Any, simulated: Rig, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Imports the benchmark's modules by their names."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


@pytest.mark.matrix(least=0)
def test_workloads_are_right_and_what_was_found_is_written(
    modules: Any, simulated: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, sample: Any
) -> None:
    gpu, comparison = map(modules, ("gpu", "comparison"))
    for name, number in (("LARGE", 1024), ("LEAST_CALLS", 2), ("CALLS", 2)):
        monkeypatch.setattr(gpu, name, number)
    monkeypatch.setattr(comparison, "ONCE", 1024)
    options = [*"--quick --rounds 1 --sizes 1024 --dtypes float32 --peers cupy cupy.fuse".split(), "by hand"]
    chosen = comparison.chosen(gpu.WORKLOADS, gpu.QUICK, gpu.options_of(options))
    every = list(dict.fromkeys(workload.title for workload in chosen))
    drawn = list(dict.fromkeys(["copy", *sample(every, least=3)]))
    options += ["--only", *drawn]
    monkeypatch.setattr(modules("startup"), "_process", in_this_process)
    draw = gpu.draw  # of few rows: that takes long
    monkeypatch.setattr(gpu, "draw", lambda rows, *given: draw(rows[:2], *given))
    before = simulated.driver.calls["cudaGraphLaunch"]
    gpu.main([*options, "--output", str(tmp_path)])
    assert simulated.driver.calls["cudaGraphLaunch"] > before, "graphs are what is measured"
    (written,) = tmp_path.glob("gpu-*.json")
    result = json.loads(written.read_text())
    rows = {row["workload"]: row["seconds"] for row in result["rows"]}
    assert set(drawn) <= set(rows) and all({"optree", "cupy"} <= set(seconds) for seconds in rows.values())
    assert len(result["on the host"]) == 5 and min(result["on the host"].values()) > 0
    assert set(result["first kernels"]) == {"compiled by NVRTC", "kept on disk"}
    assert written.with_suffix(".png").stat().st_size > 1000
    assert "GB/s" in capsys.readouterr().out
    if len(drawn) == len(every):
        by_hand = {name for name, seconds in rows.items() if "by hand" in seconds}
        assert {"copy", "Adam, three results", "x.T + y", "sum", "mean((x - y)**2)", "softmax of rows"} <= by_hand
        assert "cupy.fuse" in rows["Black-Scholes"] and "cupy.fuse" not in rows["copy"]
        predicted = {row["workload"]: row["predicted"] for row in result["bandwidths"]}
        assert "training step" not in predicted and predicted["copy"] == 1
        for name in ("layer norm, 32 long", "softmax of rows, 32 long", "sum"):
            assert 0.5 < predicted[name] <= 1


def in_this_process(program: str, modules: str, kernels: str) -> list[float]:
    """The numbers that a program prints, with a folder for kernels."""
    with override(cache_dir=Path(kernels)), redirect_stdout(io.StringIO()) as said:
        exec(program, {})
    return [float(word) for word in said.getvalue().split()]


@pytest.mark.matrix(least=0)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_are_measured_where_they_are_enough(modules: Any, dtype: str) -> None:
    gpu, peers, comparison = map(modules, ("gpu", "device_peers", "comparison"))
    options = gpu.options_of(["--dtypes", dtype, "--sizes", "1024", "--only", "copy", "32 long", "Black"])
    workloads = list(comparison.chosen(gpu.WORKLOADS, gpu.SIZES, options))
    assert [w.title for w in workloads] == ["copy", "softmax of rows, 32 long", "layer norm, 32 long"]
    faults = comparison.Faults()
    rows = comparison.rows_of(
        workloads, [peers.DeviceOptree(), peers.CuPy()], lambda calls, _: [[1.0]] * len(calls), faults
    )
    assert not faults
    assert [row["dtype"] for row in rows] == [dtype] * 3


def test_a_wrong_result_is_not_measured(modules: Any) -> None:
    gpu, peers, comparison = map(modules, ("gpu", "device_peers", "comparison"))
    wrong = type("Wrong", (peers.CuPy,), {"way": lambda *_: (lambda: None, lambda: [np.zeros(1024)])})
    broken = type("Broken", (peers.CuPy,), {"way": lambda *_: ([], [])})
    faults = comparison.Faults()
    rows = comparison.rows_of(
        [gpu.WORKLOADS[1](1024, "float32")], [peers.DeviceOptree(), wrong(), broken()], lambda calls, _: [[1.0]], faults
    )
    assert [list(row["seconds"]) for row in rows] == [["optree"]], "the others are measured all the same"
    assert "a*b + c*sin(d), 1024 float32: cupy is wrong" in faults[0] and "cupy fails: TypeError" in faults[1]


def test_a_run_in_parts_is_put_together(modules: Any, tmp_path: Path) -> None:
    comparison = modules("comparison")

    def row(workload: str, second: float) -> dict[str, Any]:
        return {"workload": workload, "elements": 8, "dtype": "float32", "seconds": {"optree": second}}

    path = tmp_path / "found.json"
    assert comparison.together(path, [row("copy", 1.0)]) == [row("copy", 1.0)]
    path.write_text(json.dumps({"rows": [row("copy", 1.0), row("sum", 2.0)]}))
    assert comparison.together(path, [row("copy", 3.0)]) == [row("sum", 2.0), row("copy", 3.0)]


def test_the_table_by_counts_predicts_what_it_names(modules: Any) -> None:
    gpu = modules("gpu")
    known = gpu.predictions((BENCHMARKS / "gpu.md").read_text())
    assert {name for name, _ in known} >= {*gpu.COUNTED.values(), *(f"{each}-1024" for each in gpu.OF_LENGTH.values())}
    titles = {workload.title for workload in gpu.WORKLOADS}
    assert titles >= gpu.COUNTED.keys()
    assert all(any(title.startswith(f"{each}, ") for title in titles) for each in gpu.OF_LENGTH)


def test_times_are_those_between_events(modules: Any, simulated: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = modules("gpu")
    done: list[str] = []

    class Call:
        def __call__(self) -> None:
            done.append("call")

        def wait(self) -> None:
            done.append("wait")

    events: list[Any] = []
    cuda = simulated.cupy.cuda
    monkeypatch.setattr(cuda, "get_elapsed_time", lambda start, end: events.extend((start, end)) or 6.0)
    assert gpu.DeviceClock(simulated.cupy)(Call(), 3) == pytest.approx(0.002)
    assert done == ["call", "call", "call", "wait"] and all(event.done for event in events)


def test_without_a_device_it_says_so(modules: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = modules("gpu")

    def missing(kind: str) -> None:
        raise BackendError("there is none")

    monkeypatch.setattr(gpu, "gen_backend", missing)
    with pytest.raises(SystemExit, match="nothing is measured without a GPU: there is none"):
        gpu.main([])


def test_libraries_without_a_gpu_are_left_out(modules: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    gpu, peers, comparison = map(modules, ("gpu", "device_peers", "comparison"))
    torch = SimpleNamespace(
        __version__="2", set_grad_enabled=lambda on: None, cuda=SimpleNamespace(is_available=lambda: False)
    )
    names = ("exp", "log", "log1p", "sin", "sqrt", "tanh", "sum", "mean", "erf", "relu", "softmax", "log_softmax")
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(**vars(torch), **dict.fromkeys(names)))
    assert comparison.available([peers.DeviceTorch], gpu.options_of([])) == []
    assert "torch finds no GPU" in capsys.readouterr().out
