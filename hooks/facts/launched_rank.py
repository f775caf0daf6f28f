"""The rank of this process, from torch.distributed or the variables of launchers, and when it was started.

Every process that imports torch imports this, and most of them never train: it rests on the standard library alone.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any

from perfscope.constants import NS_PER_S
from perfscope.hooks.guard import value_or_none

#: torchrun and DeepSpeed; Open MPI; MVAPICH; MPICH and Intel MPI; PALS; JSM; Slurm. A launcher that runs inside an
#: allocation of another one comes first.
_RANK_VARIABLES = (
    "RANK",
    "OMPI_COMM_WORLD_RANK",
    "MV2_COMM_WORLD_RANK",
    "PMI_RANK",
    "PALS_RANKID",
    "JSM_NAMESPACE_RANK",
    "SLURM_PROCID",
    "PMIX_RANK",
)
_WORLD_VARIABLES = (
    "WORLD_SIZE",
    "OMPI_COMM_WORLD_SIZE",
    "MV2_COMM_WORLD_SIZE",
    "PMI_SIZE",
    "JSM_NAMESPACE_SIZE",
    "SLURM_NTASKS",
)
#: The field of /proc/self/stat that says when the process was started, counted behind the name in parentheses.
_START_FIELD = 19
_moments: dict[str, int] = {}


def rank_and_world_size() -> tuple[int, int]:
    """Read the rank and the number of ranks; (0, 1) for a process that was not launched as a rank."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    agent = _rpc_agent()
    if agent is not None:
        return int(agent.get_worker_info().id), len(agent.get_worker_infos())
    return _read_variable(_RANK_VARIABLES, 0), _read_variable(_WORLD_VARIABLES, 1)


def _rpc_agent() -> Any:
    api = sys.modules.get("torch.distributed.rpc.api")
    return api._get_current_rpc_agent() if api is not None and api._is_current_rpc_agent_set() else None


def is_rpc_worker_thread() -> bool:
    """Whether this thread executes a remote call (RPC) of another process."""
    return threading.current_thread() is not threading.main_thread() and _rpc_agent() is not None


def is_daemon_process() -> bool:
    """Whether this is a daemon, as torch's process that writes checkpoints: it joins groups and trains nothing."""
    processes = sys.modules.get("multiprocessing.process")
    return processes is not None and bool(processes.current_process().daemon)


def _read_variable(names: tuple[str, ...], default: int) -> int:
    for name in names:
        value = os.environ.get(name, "")
        if value.isdigit():
            return int(value)
    return default


def note_moment(field: str) -> None:
    """Something of RankRecord happened for the first time: torch was executed, or training called a hook."""
    _moments.setdefault(field, time.monotonic_ns())


def describe_startup() -> dict[str, Any]:
    """The moments that are known, as fields of RankRecord; a forked child knows those of its parent, too."""
    started_ns = value_or_none(read_start_ns)
    return {**_moments} if started_ns is None else {"started_ns": started_ns, **_moments}


def read_start_ns() -> int | None:
    """When this process was started, on the monotonic clock; None where the system does not say.

    Raises OSError or ValueError: there is no /proc, or it is written in another way.
    """
    with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
        ticks = int(file.read().rpartition(")")[2].split()[_START_FIELD])
    now_ns = time.monotonic_ns()
    suspended_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - now_ns
    started_ns = ticks * NS_PER_S // os.sysconf("SC_CLK_TCK") - suspended_ns
    return started_ns if ticks > 0 and 0 < started_ns <= now_ns else None
