"""Records the history of torch's allocator: between a window's start and its end, or until memory runs out.

torch keeps the last events in a ring; nothing is written before ``finish``. A script that records the history itself
keeps its own options: nothing is started or stopped then, and what it recorded is written.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from perfscope.constants import MIB
from perfscope.hooks.guard import value_or_none
from perfscope.hooks.memory.module_marks import ModuleMarks
from perfscope.hooks.memory.snapshot_columns import SnapshotColumns
from perfscope.hooks.memory.tensor_roles import Role, find_roles
from perfscope.wire.memory import MEMORY_FOLDER, MEMORY_SUFFIX, WINDOW, MemoryHeader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    #: The model's parts and the optimizers of a process, when they are asked for.
    Trained = Callable[[], tuple[Sequence[object], Sequence[object]]]

#: Events that torch keeps: a step of a large model has some ten thousand, and each takes some hundred bytes.
MOST_EVENTS = 1_000_000
_SMALLEST_FREE_BYTES = 64 * MIB


class NoHistory(Exception):
    """The allocator's history cannot be recorded or written here."""


class AllocatorHistory:
    """One recording of the allocator's history.

    Attributes:
        marks: When modules ran forward and steps began.
    """

    def __init__(self, run_dir: str, trained: Trained, *, most_events: int = MOST_EVENTS) -> None:
        self.marks = ModuleMarks()
        self._run_dir = run_dir
        self._trained = trained
        self._most_events = most_events
        self._first_step = 0
        self._started_ns = 0
        self._starts: list[Role] = []
        self._is_ours = False

    def start(self, step: int) -> None:
        """Begin to record, at the begin of a training step.

        Raises:
            NoHistory: No GPU is in use, or this version of torch does not record.
        """
        torch = sys.modules["torch"]
        if not is_in_use(torch):
            raise NoHistory("no GPU is in use, and only the allocator of CUDA has a history")
        record = getattr(torch.cuda.memory, "_record_memory_history", None)
        if record is None:
            raise NoHistory(f"torch {torch.__version__} does not record it")
        self._starts = self._find_roles()
        self._first_step, self._started_ns = step, time.time_ns()
        if not is_recorded(torch):
            try:
                record("all", context="alloc", stacks="python", max_entries=self._most_events)
            except (TypeError, RuntimeError) as error:
                raise NoHistory(f"torch {torch.__version__} cannot record it: {error}") from None
            self._is_ours = True
        self.marks.start(step, with_modules=not _has_compiled(self._trained()[0]))

    def stop(self) -> None:
        """Record nothing more, and drop what was recorded."""
        self.marks.stop()
        if self._is_ours:
            self._is_ours = False
            sys.modules["torch"].cuda.memory._record_memory_history(None)

    def write(self, rank: int, last_step: int, cause: str = WINDOW, *, request_bytes: int | None = None) -> list[str]:
        """Write what was recorded of each device in use; returns the files' names.

        Raises:
            NoHistory: The disk is full.
            OSError: It cannot be written.
        """
        folder = os.path.join(self._run_dir, MEMORY_FOLDER)
        os.makedirs(folder, exist_ok=True)
        if shutil.disk_usage(folder).free < _SMALLEST_FREE_BYTES:
            raise NoHistory(f"less than {_SMALLEST_FREE_BYTES // MIB} MiB are free in {folder}")
        torch = sys.modules["torch"]
        tensors = {"start": self._starts, "end": self._find_roles()}
        snapshot = torch.cuda.memory._snapshot()
        traces = snapshot["device_traces"]
        names = []
        for device in [device for device, trace in enumerate(traces) if trace] or [torch.cuda.current_device()]:
            header = self._describe(torch, rank, device, (last_step, cause, request_bytes))
            name = f"{header.host}_{header.pid}.{time.time_ns()}{MEMORY_SUFFIX}"
            lines = SnapshotColumns().lines(snapshot, device, tensors, self.marks)
            _write_lines(os.path.join(folder, name), header, lines, len(traces[device]) if traces else 0)
            names.append(name)
        return names

    def _describe(self, torch: Any, rank: int, device: int, ending: tuple[int, str, int | None]) -> MemoryHeader:
        stats = torch.cuda.memory_stats_as_nested_dict(device)
        free_bytes, total_bytes = torch.cuda.mem_get_info(device)
        last_step, cause, request_bytes = ending
        return MemoryHeader(
            rank=rank,
            host=socket.gethostname(),
            pid=os.getpid(),
            device=device,
            cause=cause,
            first_step=self._first_step,
            last_step=last_step,
            started_ns=self._started_ns,
            stopped_ns=time.time_ns(),
            allocated_bytes=int(stats["allocated_bytes"]["all"]["current"]),
            reserved_bytes=int(stats["reserved_bytes"]["all"]["current"]),
            peak_allocated_bytes=int(stats["allocated_bytes"]["all"]["peak"]),
            peak_reserved_bytes=int(stats["reserved_bytes"]["all"]["peak"]),
            device_free_bytes=int(free_bytes),
            device_total_bytes=int(total_bytes),
            limit=self._most_events,
            torch=str(torch.__version__),
            request_bytes=request_bytes,
            bucket_bytes=value_or_none(lambda: _bucket_bytes(self._trained()[0])),
        )

    def _find_roles(self) -> list[Role]:
        parts, optimizers = self._trained()
        return find_roles(parts, optimizers)


def is_in_use(torch: Any) -> bool:
    """Whether the process uses a GPU: asking the allocator earlier would initialise CUDA."""
    return bool(torch.cuda.is_available() and torch.cuda.is_initialized())


def is_recorded(torch: Any) -> bool:
    """Whether the allocator's history is being recorded already."""
    is_enabled = getattr(torch._C, "_cuda_isHistoryEnabled", None)
    return bool(is_enabled()) if is_enabled is not None else False


def _has_compiled(parts: Iterable[Any]) -> bool:
    """Whether a module is compiled: a hook that is new to it would have it compiled again."""
    return any(
        getattr(module, "_compiled_call_impl", None) is not None or type(module).__name__ == "OptimizedModule"
        for part in parts
        for module in part.modules()
    )


def _bucket_bytes(parts: Iterable[Any]) -> tuple[int, ...] | None:
    """The sizes of DDP's buckets, where gradients are copied into them; None elsewhere."""
    for part in parts:
        if not hasattr(part, "reducer") or getattr(part, "gradient_as_bucket_view", True):
            continue
        data = part._get_ddp_logging_data()
        text = data.get("rebuilt_bucket_sizes") or data.get("bucket_sizes") or ""
        return tuple(int(size) for size in str(text).replace(",", " ").split())
    return None


def _write_lines(path: str, header: MemoryHeader, lines: Iterable[bytes], events: int) -> None:
    """Write a file under its final name only when it is complete."""
    folder, name = os.path.split(path)
    unfinished = os.path.join(folder, f".tmp-{name}")
    fields = {name: value for name, value in asdict(header).items() if value is not None}
    try:
        with open(unfinished, "wb") as file:
            file.write(json.dumps(fields).encode() + b"\n")
            for line in lines:
                file.write(line)
            file.write(json.dumps({"kind": "end", "events": events}).encode() + b"\n")
        os.replace(unfinished, path)
    finally:
        if os.path.exists(unfinished):
            os.unlink(unfinished)
