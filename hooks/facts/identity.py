"""Who a rank is: its process, host and device."""

from __future__ import annotations

import os
import platform
import socket
import sys
import time
from typing import Any

from perfscope.hooks.facts.launched_rank import describe_startup
from perfscope.hooks.facts.secrets import redact_arguments
from perfscope.wire.records import RankRecord


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
