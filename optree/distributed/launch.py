"""The rank of this process and the number of processes, from the environment that a launcher sets."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from optree.distributed.errors import DistributedError
from optree.records import NamedTuple

#: The first port and the number of ports for Slurm jobs, which are chosen by the job's number: Slurm sets no port.
PORTS = 20000, 10000

#: The variables of MPI's launchers: the rank, the number of ranks, and the rank on its machine.
OF_MPI = (
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
)


class Launch(NamedTuple):
    """The rank of a process and the environment of its launch."""

    #: The launcher.
    by: str
    rank: int = 0
    size: int = 1
    #: The rank among the processes of this machine, used as the number of its GPU.
    local_rank: int = 0
    #: The address of rank 0's machine; empty if MPI finds it.
    host: str = ""
    port: int = 0


def launched(environment: Mapping[str, str] | None = None) -> Launch:
    """The rank of this process, from the variables of MPI's launchers, torchrun or srun; alone without any.

    Parameters
    ----------
    environment : dict, optional
        By default the environment of the process.

    Raises
    ------
    DistributedError
        If a variable is missing or no number.

    Examples
    --------
    >>> launched({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"})
    Launch(by='torchrun', rank=3, size=8, local_rank=1, host='node1', port=29500)
    """
    env = os.environ if environment is None else environment
    for rank, size, local in OF_MPI:
        if rank in env and size in env:
            return Launch("mpi", _whole(env, rank), _whole(env, size), _whole(env, local, _whole(env, rank)))
    if "RANK" in env and "WORLD_SIZE" in env:
        host, port = _text(env, "MASTER_ADDR"), _whole(env, "MASTER_PORT")
        rank_ = _whole(env, "RANK")
        return Launch("torchrun", rank_, _whole(env, "WORLD_SIZE"), _whole(env, "LOCAL_RANK", rank_), host, port)
    if "SLURM_STEP_ID" in env and "SLURM_PROCID" in env:  # the batch script itself is in no step
        first, count = PORTS
        host = env.get("MASTER_ADDR") or first_host(_text(env, "SLURM_STEP_NODELIST"))
        port = _whole(env, "MASTER_PORT", first + _whole(env, "SLURM_JOB_ID") % count)
        rank_, size_ = _whole(env, "SLURM_PROCID"), _whole(env, "SLURM_STEP_NUM_TASKS")
        return Launch("slurm", rank_, size_, _whole(env, "SLURM_LOCALID"), host, port)
    return Launch("alone")


def first_host(nodes: str) -> str:
    """The first host of a Slurm node list: ``gpu007`` of ``gpu[007-010,012],login1``.

    Examples
    --------
    >>> first_host("gpu[007-010,012],login1"), first_host("login1,login2"), first_host("a[1,3]b")
    ('gpu007', 'login1', 'a1b')
    """
    match = re.match(r"([^,\[]*)(?:\[(\w+)[^\]]*\])?([^,\[]*)", nodes.strip())
    return "".join(part or "" for part in match.groups()) if match else nodes


def _text(env: Mapping[str, str], name: str) -> str:
    if not env.get(name):
        raise DistributedError(f"the launcher has set other variables, and not {name}")
    return env[name]


def _whole(env: Mapping[str, str], name: str, default: int | None = None) -> int:
    if default is not None and not env.get(name):
        return default
    text = _text(env, name)
    try:
        return int(text)
    except ValueError:
        raise DistributedError(f"{name} is a number, not {text!r}") from None
