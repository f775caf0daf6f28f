"""One torch.profiler window: started for the warm-up step, stopped after the last step, written as one trace.

A fresh profiler for each window keeps the steps between windows free of any cost. Its step number is set so that
``ProfilerStep#N`` in the trace is training step N.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
from collections.abc import Callable
from typing import Any

from perfscope import wire
from perfscope.hooks.config import Config
from perfscope.hooks.profiler.compress import start_compressing
from perfscope.hooks.selection import StepWindow
from perfscope.wire import WindowRecord

_SMALLEST_FREE_BYTES = 256 * 2**20
_NOT_EMPTY_BYTES = 64


class ExportError(Exception):
    """The trace of a window did not reach the disk."""


class ProfilerWindow:
    """A window that is open.

    Attributes:
        steps: The training steps it is to hold.
        start_ns: How long starting it held the training process.
    """

    def __init__(self, steps: StepWindow, config: Config, next_step: int) -> None:
        import torch

        began_ns = time.monotonic_ns()
        self.steps = steps
        self._rss_before_bytes = resident_bytes()
        self._folder = os.path.join(config.run_dir, wire.TRACES)
        actions = torch.profiler.ProfilerAction

        def schedule(step: int) -> Any:
            return actions.WARMUP if step < steps.first else actions.RECORD

        self.profiler = torch.profiler.profile(
            schedule=schedule,
            record_shapes=config.shapes or config.flops,
            profile_memory=config.memory,
            with_stack=config.stack,
            with_flops=config.flops,
            with_modules=config.modules,
            experimental_config=_trace_only(torch),
        )
        self.profiler.step_num = next_step
        self.profiler.current_action = schedule(next_step)
        if hasattr(self.profiler, "_prev_schedule_action"):
            self.profiler._prev_schedule_action = self.profiler.current_action
        self._reached = next_step
        self._is_running = False
        self.start_ns = began_ns  # the profiler is not running yet, see start()

    def start(self) -> None:
        """Begin the warm-up step."""
        self._is_running = True
        self.profiler.start()
        self.start_ns = time.monotonic_ns() - self.start_ns

    def step(self) -> None:
        """Go from one training step to the next."""
        self.profiler.step()
        self._reached += 1

    @property
    def recorded(self) -> bool:
        """Whether the warm-up is over, so that there is something to write."""
        return self._reached >= self.steps.first

    def finish(self, metadata: dict[str, Any], completed_step: int) -> WindowRecord:
        """Stop, write the trace, give the memory back and say what that cost.

        Raises:
            ExportError: No whole trace reached the disk.
        """
        self.profiler.add_metadata_json(wire.TRACE_METADATA, json.dumps(metadata))
        began_ns = time.monotonic_ns()
        inner = self.profiler.profiler
        if not hasattr(inner, "_ensure_function_events"):
            # Older versions of torch turn every event into a Python object as they stop; a trace needs none of them.
            inner._parse_kineto_results = lambda *_args, **_kwargs: []
        self._is_running = False
        self.profiler.stop()
        return self._finish(self.profiler.export_chrome_trace, began_ns, completed_step)

    def finish_after_failure(self, metadata: dict[str, Any], completed_step: int) -> WindowRecord:
        """Write what there is without waiting for the device, which a failed collective can hold for ever.

        Raises:
            ExportError: No whole trace reached the disk.
        """
        import torch

        self.profiler.add_metadata_json(wire.TRACE_METADATA, json.dumps(metadata))
        began_ns = time.monotonic_ns()
        self._is_running = False
        return self._finish(torch.autograd._disable_profiler().save, began_ns, completed_step)

    def _finish(self, export: Callable[[str], None], began_ns: int, completed_step: int) -> WindowRecord:
        """Write the trace of a profiler that was stopped."""
        stopped_ns = time.monotonic_ns()
        try:
            trace, size = self._write(export)
            exported_ns = time.monotonic_ns()
            start_compressing(os.path.join(self._folder, trace))
        finally:
            self._release()
        return WindowRecord(
            first_step=self.steps.first,
            last_step=min(self.steps.last, completed_step),
            trace=trace,
            start_ns=self.start_ns,
            stop_ns=stopped_ns - began_ns,
            export_ns=exported_ns - stopped_ns,
            release_ns=time.monotonic_ns() - exported_ns,
            trace_bytes=size,
            partial=completed_step < self.steps.last,
            rss_before_bytes=self._rss_before_bytes,
            rss_after_bytes=resident_bytes(),
        )

    def discard(self) -> None:
        """Stop what still runs, and write nothing: an active profiler would crash the interpreter's end."""
        if self._is_running:
            self._is_running = False
            self.profiler.stop()
        self._release()

    def _release(self) -> None:
        """Give the events' memory back now: the profiler is in reference cycles, and looking for those takes longer."""
        if self.profiler.profiler is not None:
            self.profiler.profiler.kineto_results = None
        self.profiler.profiler = None
        self.profiler.action_map = {}

    def _write(self, export: Callable[[str], None]) -> tuple[str, int]:
        os.makedirs(self._folder, exist_ok=True)
        free_bytes = shutil.disk_usage(self._folder).free
        if free_bytes < _SMALLEST_FREE_BYTES:
            raise ExportError(f"only {free_bytes // 2**20} MiB are free in {self._folder}: no trace is written")
        name = f"{socket.gethostname()}_{os.getpid()}.{time.time_ns()}{wire.TRACE_SUFFIX}"
        unfinished = os.path.join(self._folder, f".tmp-{name}")
        try:
            export(unfinished)
            size = _whole_size(unfinished)
            os.replace(unfinished, os.path.join(self._folder, name))
        finally:
            for leftover in (unfinished, f"{unfinished}.tmp"):
                if os.path.exists(leftover):
                    os.unlink(leftover)
        return name, size


def resident_bytes() -> int | None:
    """Memory of this process that is in use now; None where the system does not tell it."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


def _trace_only(torch: Any) -> Any:
    """Tell versions of torch that can do so to keep nothing but what a trace needs: stopping is then shorter."""
    try:
        return torch._C._profiler._ExperimentalConfig(trace_only=True)
    except (AttributeError, TypeError):
        return None


def _whole_size(path: str) -> int:
    """Check what torch does not: it reports no error where the trace could not be written.

    Raises:
        ExportError: The file is missing or cut.
    """
    size = os.path.getsize(path) if os.path.exists(path) else 0
    if size < _NOT_EMPTY_BYTES:
        raise ExportError("torch.profiler wrote no trace: is the disk full?")
    with open(path, "rb") as file:
        file.seek(-_NOT_EMPTY_BYTES, os.SEEK_END)
        if not file.read().rstrip().endswith(b"}"):
            raise ExportError("torch.profiler wrote only part of a trace: is the disk full?")
    return size
