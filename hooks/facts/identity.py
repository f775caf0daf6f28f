"""The rank of this process: read from torch.distributed, else from the environment variables of launchers."""

from __future__ import annotations

import os
import platform
import socket
import sys
import threading
import time
from typing import Any

from perfscope.hooks.facts.secrets import redact_arguments
from perfscope.hooks.facts.startup import describe_startup
from perfscope.wire import RankRecord

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
    """Torch's RPC agent, where this process is an RPC worker."""
    api = sys.modules.get("torch.distributed.rpc.api")
    return api._get_current_rpc_agent() if api is not None and api._is_current_rpc_agent_set() else None


def is_rpc_worker_thread() -> bool:
    """Whether this thread executes a remote call (RPC) of another process."""
    return threading.current_thread() is not threading.main_thread() and _rpc_agent() is not None


def is_daemon_process() -> bool:
    """Whether a Python process started this one as its daemon, as torch does for the process that writes checkpoints.

    Such a process joins process groups and trains nothing.
    """
    processes = sys.modules.get("multiprocessing.process")
    return processes is not None and bool(processes.current_process().daemon)


def _read_variable(names: tuple[str, ...], default: int) -> int:
    for name in names:
        value = os.environ.get(name, "")
        if value.isdigit():
            return int(value)
    return default


def describe_rank(rank: int, world_size: int, run_id: str | None = None) -> RankRecord:
    """Describe the process for a report; facts that are not known yet are left out."""
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
        **describe_startup(),
        **_describe_device(torch),
    )


def _rendezvous() -> str | None:
    """The address at which the ranks meet, which is the same on every host."""
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    return f"{host}:{port}" if host and port else None


def _describe_device(torch: Any) -> dict[str, Any]:
    if torch is None:
        return {}
    variables = {"visible_devices": "CUDA_VISIBLE_DEVICES", "device_order": "CUDA_DEVICE_ORDER"}
    device: dict[str, Any] = {field: os.environ[name] for field, name in variables.items() if name in os.environ}
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return {**device, "device_type": "cpu"}
    index = torch.cuda.current_device()
    device |= {
        "device_type": "cuda",
        "device_name": torch.cuda.get_device_properties(index).name,
        "device_index": index,
    }
    uuid = _uuid(torch, index)
    if uuid is not None:
        device["device_uuid"] = uuid
        used = [index for index in range(torch.cuda.device_count()) if torch.cuda.memory_allocated(index) > 0]
        if len(used) > 1:
            device["device_uuids"] = tuple(_uuid(torch, index) for index in used)
    return device


def _uuid(torch: Any, index: int) -> str | None:
    """The device's UUID; None before torch 2.4, which does not report it."""
    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    return None if uuid is None else f"GPU-{uuid}"
