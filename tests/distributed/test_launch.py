"""Which process this is, by the variables of each launcher; and groups of one."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from harness.fake_cupy import fake_cupy
from harness.homes import stand_in

from backends import gen_backend
from optree import distributed
from optree.distributed import DistributedError, Launch, init, launched, nccl

SLURM = {
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "5",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_JOB_ID": "1234567",
    "SLURM_STEP_NODELIST": "gpu[009-010,3],login",
}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, Launch("alone")),
        ({"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0"}, Launch("mpi", 1, 4, 0)),
        ({"PMI_RANK": "1", "PMI_SIZE": "4"}, Launch("mpi", 1, 4, 1)),
        (
            {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "1"},
            Launch("mpi", 2, 3, 1),
        ),
        (
            {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "29500"},
            Launch("torchrun", 3, 8, 1, "a", 29500),
        ),
        (SLURM, Launch("slurm", 5, 8, 1, "gpu009", 24567)),
        ({**SLURM, "MASTER_ADDR": "b", "MASTER_PORT": "7"}, Launch("slurm", 5, 8, 1, "b", 7)),
        ({**SLURM, "PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1"}, Launch("mpi", 1, 2, 1)),
        ({name: SLURM[name] for name in ("SLURM_PROCID", "SLURM_JOB_ID")}, Launch("alone")),  # a batch script
    ],
)
def test_launchers(environment: dict[str, str], expected: Launch) -> None:
    assert launched(environment) == expected


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"RANK": "3", "WORLD_SIZE": "8"}, "not MASTER_ADDR"),
        ({"PMI_RANK": "x", "PMI_SIZE": "4"}, "PMI_RANK is a number, not 'x'"),
        ({**SLURM, "SLURM_STEP_NODELIST": ""}, "not SLURM_STEP_NODELIST"),
    ],
)
def test_what_a_launcher_leaves_out_is_named(environment: dict[str, str], said: str) -> None:
    with pytest.raises(DistributedError, match=said):
        launched(environment)


def test_engines_that_do_not_fit_are_refused(monkeypatch: Any) -> None:
    be = gen_backend("cpu", jit=False)
    with pytest.raises(DistributedError, match="no engine 'gloo'"):
        init(be, "gloo")
    with pytest.raises(DistributedError, match="nccl does not carry"):
        init(be, "nccl")
    monkeypatch.setattr(distributed, "launched", lambda: Launch("torchrun", 0, 2, 0, "a", 1))
    with pytest.raises(DistributedError, match="torchrun starts no MPI"):
        init(be)
    monkeypatch.setattr(distributed, "launched", lambda: Launch("mpi", 0, 2))
    with pytest.raises(DistributedError, match="jit='always' or jit=False"):
        init(gen_backend("cpu"))
    monkeypatch.setitem(distributed.ENGINES, "mpi", ("optree.distributed.absent", "a package"))
    with pytest.raises(DistributedError, match="mpi needs a package"):
        init(be)


class SilentComm:
    """NCCL whose ranks say something else, or nothing."""

    others = 0

    def __init__(self, n_devices: int, rank: int, host: str = "", port: int = 0) -> None:
        assert (host, port) == ("node1", 29500)

    def all_reduce(self, given: Any, made: Any, op: str, stream: Any) -> None:
        made[...] = given if op == "sum" else given + self.others


@pytest.fixture
def device() -> Any:
    """A GPU's backend, and NCCL, as stand-ins."""
    cupy = fake_cupy()
    binding = SimpleNamespace(available=True, groupStart=None, groupEnd=None)
    stand_ins = {
        "cupy": cupy,
        "cupy.cuda": SimpleNamespace(**{**vars(cupy.cuda), "nccl": binding}),
        "cupy.cuda.nccl": binding,
        "cupyx.distributed": SimpleNamespace(NCCLBackend=SilentComm),
    }
    with patch.dict(sys.modules, stand_ins):
        yield stand_in(cupy)


def test_a_missing_nccl_is_named_with_its_extra(device: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(sys.modules["cupy.cuda.nccl"], "available", False)
    monkeypatch.setattr("optree.distributed.launched", lambda: Launch("torchrun", 1, 2, 0, "node1", 29500))
    with pytest.raises(DistributedError, match=r"nccl needs CuPy and NCCL: pip install '\.\[gpu\]' .*libnccl.so.2"):
        init(device)


@pytest.mark.parametrize("others", [0, 1])
def test_ranks_that_disagree_on_the_device_are_found(device: Any, others: int, monkeypatch: Any) -> None:
    said: list[str] = []
    monkeypatch.setattr(nccl, "end_process", said.append)
    monkeypatch.setattr(nccl.Watch, "_look", lambda self: None)
    monkeypatch.setattr(SilentComm, "others", others)
    engine = nccl.started(device, Launch("torchrun", 1, 2, 0, "node1", 29500), 0.5)
    x = device.cupy.array(np.ones(3))
    assert engine.all_reduce(x, "sum").get().tolist() == [1, 1, 1]
    device.cupy.cuda.get_current_stream().synchronize()
    engine._watch._look_once()
    assert said == ["rank 1 of 2 is at all_reduce, sum of float64 (3,) (operation 1), and another rank is not"] * others


def test_what_does_not_end_in_time_is_named(device: Any, monkeypatch: Any) -> None:
    said: list[str] = []
    monkeypatch.setattr(nccl, "end_process", said.append)
    monkeypatch.setattr(nccl.Watch, "_look", lambda self: None)
    engine = nccl.started(device, Launch("slurm", 0, 2, 0, "node1", 29500), 0.0)
    engine.all_reduce(device.cupy.array(np.ones(3)), "sum")
    never = SimpleNamespace(done=False)
    engine._watch._running[0] = engine._watch._running[0]._replace(event=never)
    engine._watch._look_once()
    assert len(said) == 1 and "rank 0 of 2 has waited 0 seconds at all_reduce, sum of float64 (3,)" in said[0]
