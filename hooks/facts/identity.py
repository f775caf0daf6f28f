"""Who this process is among the ranks: read from torch.distributed, else from what launchers put in the environment."""

from __future__ import annotations

import os
import platform
import socket
import sys
import threading
import time
from typing import Any

from perfscope.hooks.facts.secrets import redact_arguments
from perfscope.wire import RankRecord

#: torchrun and DeepSpeed; Open MPI; MVAPICH; MPICH and Intel MPI; PALS; JSM; Slurm. A launcher inside an allocation of
#: another goes before it.
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


def rank_and_world_size() -> tuple[int, int]:
    """The rank and the number of ranks; (0, 1) for a process that nothing launched as a rank."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    agent = _rpc_agent()
    if agent is not None:
        return int(agent.get_worker_info().id), len(agent.get_worker_infos())
    return _from_environment(_RANK_VARIABLES, 0), _from_environment(_WORLD_VARIABLES, 1)


def _rpc_agent() -> Any:
    """Torch's RPC agent, where this process is one of its workers."""
    api = sys.modules.get("torch.distributed.rpc.api")
    return api._get_current_rpc_agent() if api is not None and api._is_current_rpc_agent_set() else None


def is_rpc_worker_thread() -> bool:
    """Whether this thread works for another process, which asked for it by RPC."""
    return threading.current_thread() is not threading.main_thread() and _rpc_agent() is not None


def has_launcher_rank() -> bool:
    """Whether the launcher told this process its rank."""
    return any(name in os.environ for name in _RANK_VARIABLES)


def is_daemon_process() -> bool:
    """Whether another Python process started this one as its daemon, as torch starts the one that writes checkpoints.

    It joins process groups and trains nothing.
    """
    processes = sys.modules.get("multiprocessing.process")
    return processes is not None and bool(processes.current_process().daemon)


def _from_environment(names: tuple[str, ...], otherwise: int) -> int:
    for name in names:
        value = os.environ.get(name, "")
        if value.isdigit():
            return int(value)
    return otherwise


def describe_rank(rank: int, world_size: int, run_id: str | None = None) -> RankRecord:
    """Everything about the process that a report needs; what is not known yet is left out."""
    torch = sys.modules.get("torch")
    deepspeed = sys.modules.get("deepspeed")
    return RankRecord(
        rank=rank,
        world_size=world_size,
        host=socket.gethostname(),
        pid=os.getpid(),
        wall_ns=time.time_ns(),
        monotonic_ns=time.monotonic_ns(),
        python=platform.python_version(),
        torch=getattr(torch, "__version__", None),
        deepspeed=getattr(deepspeed, "__version__", None),
        argv=tuple(redact_arguments(sys.argv)),
        run_id=run_id,
        rendezvous=_rendezvous(),
        **_device(torch),
    )


def _rendezvous() -> str | None:
    """Where the ranks meet, which is the same on every host."""
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    return f"{host}:{port}" if host and port else None


def _device(torch: Any) -> dict[str, Any]:
    if torch is None:
        return {}
    seen = {"visible_devices": "CUDA_VISIBLE_DEVICES", "device_order": "CUDA_DEVICE_ORDER"}
    known: dict[str, Any] = {field: os.environ[name] for field, name in seen.items() if name in os.environ}
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return {**known, "device_type": "cpu"}
    index = torch.cuda.current_device()
    known |= {"device_type": "cuda", "device_name": torch.cuda.get_device_properties(index).name, "device_index": index}
    uuid = _uuid(torch, index)
    if uuid is None:
        return known
    used = [other for other in range(torch.cuda.device_count()) if torch.cuda.memory_allocated(other) > 0]
    several = {"device_uuids": tuple(_uuid(torch, other) for other in used)} if len(used) > 1 else {}
    return {**known, **several, "device_uuid": uuid}


def _uuid(torch: Any, index: int) -> str | None:
    """The device's UUID; None before torch 2.4, which does not tell it."""
    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    return None if uuid is None else f"GPU-{uuid}"
