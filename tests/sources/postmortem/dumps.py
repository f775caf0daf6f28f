"""Dumps of torch's Flight Recorder as torch writes them, for NCCL and for gloo."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

SCRIPT = "/job/train.py"


def entry(
    sequence: int,
    operation: str = "all_reduce",
    size: int = 4,
    *,
    group: str = "0",
    backend: str = "nccl",
    state: str = "completed",
    line: int = 10,
    dtype: str = "Float",
    created_ns: int | None = None,
    p2p: bool = False,
) -> dict[str, Any]:
    """One entry; ``state`` is NCCL's, of which gloo knows ``retired`` alone."""
    is_over = state == "completed"
    return {
        "frames": [
            {"name": operation, "filename": "/lib/torch/distributed/distributed_c10d.py", "line": 3245},
            {"name": "train", "filename": SCRIPT, "line": line},
        ],
        "record_id": sequence,
        "pg_id": int(group),
        "process_group": (group, "default_pg" if group == "0" else "undefined"),
        "collective_seq_id": 0 if p2p else sequence,
        "p2p_seq_id": sequence if p2p else 0,
        "op_id": sequence,
        "profiling_name": f"{backend}:{operation}",
        "time_created_ns": created_ns if created_ns is not None else 10**18 + sequence * 10**6,
        "input_sizes": [[size]],
        "input_dtypes": [dtype],
        "output_sizes": [[size]],
        "output_dtypes": [dtype],
        "state": state if backend == "nccl" else "scheduled",
        "time_discovered_started_ns": 1 if state == "started" else None,
        "time_discovered_completed_ns": 2 if is_over else None,
        "retired": is_over,
        "timeout_ms": 600000,
        "is_p2p": p2p,
    }


def document(entries: list[dict[str, Any]], ranks: int = 2, groups: tuple[str, ...] = ("0",)) -> dict[str, Any]:
    """A whole dump."""
    members = str(list(range(ranks)))
    return {
        "version": "2.10",
        "pg_config": {name: {"name": name, "desc": "default_pg", "ranks": members} for name in groups},
        "pg_status": {},
        "entries": entries,
    }


def write_dumps(folder: Path, ranks: dict[int, list[dict[str, Any]]], *, as_json: bool = False, **shape: Any) -> Path:
    """A folder of dumps, one a rank, named as NCCL's watchdog names them."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, entries in ranks.items():
        whole = document(entries, **{"ranks": len(ranks), **shape})
        content = json.dumps(whole).encode() if as_json else pickle.dumps(whole, protocol=2)
        (folder / f"nccl_trace_rank_{rank}").write_bytes(content)
    return folder
