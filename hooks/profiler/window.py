"""One torch.profiler window: started for the warm-up step, stopped after the last step, written as one trace.

A fresh profiler for each window keeps the steps between windows free of any cost. Its step number is set so that
``ProfilerStep#N`` in the trace is training step N.

A light window records no activity of the host but calls into the device's runtime, so that its trace has no marks of
steps. Their edges go into the trace's metadata instead.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from perfscope import wire
from perfscope.constants import MIB
from perfscope.hooks.config import Config
from perfscope.hooks.introspection import THREAD
from perfscope.hooks.selection import StepWindow
from perfscope.wire.records import RankRecord, WindowRecord
from perfscope.wire.traces import TraceMetadata

#: A trace is not written where less is free.
SMALLEST_FREE_BYTES = 256 * MIB
#: A complete trace is never shorter than this.
_SHORTEST_TRACE_BYTES = 64

VARIABLE = "TEARDOWN_CUPTI"
_DETACH = "1"
#: Between windows: every value but 1 means no to kineto, and torch itself writes 0, which stays as it is.
_BETWEEN_WINDOWS = "off"
#: Before this version, CUPTI crashes when it attaches again to a process that has CUDA graphs.
_FIRST_SAFE_CUDA = (12, 6)
_LONGEST_WAIT_S = 0.5
_PAUSE_S = 0.0002
_THREADS = "/proc/self/task"
#: kineto's own variable: it prints what is at least as severe. Its environment variable would silence the script's
#: own profilers as well.
_LOG_LEVEL = "_ZN9libkineto6Logger14severityLevel_E"
_SILENT = 99


class ExportError(Exception):
    """The trace of a window did not reach the disk."""


class ProfilerWindow:
    """A window that is open; ``start_ns`` is how long starting it stalled the training process.

    It must end in the ``thread`` that made it.
    """

    def __init__(self, steps: StepWindow, config: Config, next_step: int) -> None:
        self._began_ns = time.monotonic_ns()
        torch = sys.modules["torch"]
        self.steps = steps
        self.thread = THREAD.token
        self.records_stack = config.stack and not steps.is_light
        self.start_ns = 0
        self._rss_before_bytes = read_resident_bytes()
        self._traces = os.path.join(config.run_dir, wire.TRACES_FOLDER)
        self._edges_ns: list[int] = []
        actions = torch.profiler.ProfilerAction

        def schedule(step: int) -> object:
            return actions.WARMUP if step < self.steps.first else actions.RECORD

        options: dict[str, Any] = {"activities": find_light_activities(torch)}
        if not steps.is_light:
            options = {
                "record_shapes": config.shapes,
                "profile_memory": config.memory,
                "with_stack": config.stack,
                "with_modules": config.modules,
            }
        self.profiler = torch.profiler.profile(
            schedule=schedule, experimental_config=_make_config(torch, config), **options
        )
        self.profiler.step_num = next_step
        self.profiler.current_action = schedule(next_step)
        if hasattr(self.profiler, "_prev_schedule_action"):
            self.profiler._prev_schedule_action = self.profiler.current_action
        self._current_step = next_step
        self._is_running = False
        self._cupti = CuptiDetachment(torch)

    def start(self) -> None:
        """Begin the warm-up step."""
        self._is_running = True
        self._cupti.prepare()
        with _unseen(), _unwarned(sys.modules["torch"]):
            self.profiler.start()
        self._mark_edge()
        self.start_ns = time.monotonic_ns() - self._began_ns

    def move(self, steps: StepWindow, next_step: int) -> None:
        """Record other steps, before the warm-up ends; ``next_step`` is the one that ``step()`` is about to begin."""
        self.steps = steps
        self._current_step = self.profiler.step_num = next_step - 1

    def step(self) -> None:
        """Go from one training step to the next."""
        with _unseen():
            self.profiler.step()
        self._current_step += 1
        self._mark_edge()

    @property
    def has_recorded(self) -> bool:
        """Whether the warm-up is over, so that there is something to write."""
        return self._current_step >= self.steps.first

    def finish(self, rank: RankRecord, completed_steps: int, axes: Mapping[str, tuple[int, ...]]) -> WindowRecord:
        """Stop, write the trace and release its memory; ``axes`` are the ranks of each axis of parallelism.

        Raises ExportError: no complete trace reached the disk.
        """
        if completed_steps == self._current_step:
            self._mark_edge()
        self._add_metadata(rank, axes)
        began_ns = time.monotonic_ns()
        inner = self.profiler.profiler
        if not hasattr(inner, "_ensure_function_events"):
            # Older versions of torch turn every event into a Python object as they stop; a trace needs none of them.
            inner._parse_kineto_results = lambda *_args, **_kwargs: []
        self._cupti.stop(self._stop_profiler)
        return self._export(self.profiler.export_chrome_trace, began_ns, completed_steps)

    def finish_after_failure(
        self, rank: RankRecord, completed_steps: int, axes: Mapping[str, tuple[int, ...]]
    ) -> WindowRecord:
        """Write the recorded events without waiting for the device, which a failed collective can block for ever.

        Raises ExportError: no complete trace reached the disk.
        """
        self._add_metadata(rank, axes)
        began_ns = time.monotonic_ns()
        self._is_running = False
        self._cupti.cancel()
        with _unseen():
            events = sys.modules["torch"].autograd._disable_profiler()
        return self._export(events.save, began_ns, completed_steps)

    def discard(self) -> None:
        """Stop a running profiler and write nothing: an active profiler would crash the interpreter's end."""
        try:
            if self._is_running:
                self._cupti.stop(self._stop_profiler)
        finally:
            if self._is_running:
                with _unseen():
                    sys.modules["torch"].autograd._disable_profiler()
                self._is_running = False
            self._release_memory()

    def _stop_profiler(self) -> None:
        if self.thread is THREAD.token:
            with _unseen():
                self.profiler.stop()
            self._is_running = False

    def _export(self, export: Callable[[str], None], began_ns: int, completed_steps: int) -> WindowRecord:
        stopped_ns = time.monotonic_ns()
        try:
            trace, size_bytes = self._write_trace(export)
            exported_ns = time.monotonic_ns()
        finally:
            self._release_memory()
        return WindowRecord(
            first_step=self.steps.first,
            last_step=min(self.steps.last, completed_steps),
            trace=trace,
            start_ns=self.start_ns,
            stop_ns=stopped_ns - began_ns,
            export_ns=exported_ns - stopped_ns,
            release_ns=time.monotonic_ns() - exported_ns,
            trace_bytes=size_bytes,
            partial=completed_steps < self.steps.last,
            rss_before_bytes=self._rss_before_bytes,
            rss_after_bytes=read_resident_bytes(),
            activities=self.steps.activities,
            detached=self._cupti.is_detached,
            attached_because=None if self._cupti.is_detached is None else self._cupti.attached_because,
        )

    def _release_memory(self) -> None:
        """Drop the events now: the profiler is in reference cycles, and a search for those takes longer."""
        if self.profiler.profiler is not None:
            self.profiler.profiler.kineto_results = None
        self.profiler.profiler = None
        self.profiler.action_map = {}

    def _write_trace(self, export: Callable[[str], None]) -> tuple[str, int]:
        folder = os.path.join(self._traces, wire.LIGHT_FOLDER) if self.steps.is_light else self._traces
        try:
            for each in dict.fromkeys((self._traces, folder)):
                with contextlib.suppress(FileExistsError):
                    os.mkdir(each)  # and no folder around them: after chroot that would be another one
            with open(os.path.join(folder, f".tmp-{os.getpid()}"), "wb") as probe:  # kineto would print why it fails
                os.unlink(probe.name)
        except OSError as error:
            raise ExportError(f"no trace can be written: {error.strerror}") from None
        free_bytes = shutil.disk_usage(folder).free
        if free_bytes < SMALLEST_FREE_BYTES:
            raise ExportError(f"only {free_bytes // MIB} MiB are free in {folder}: no trace is written")
        name = f"{socket.gethostname()}_{os.getpid()}.{time.time_ns()}{wire.TRACE_SUFFIX}"
        unfinished = os.path.join(folder, f".tmp-{name}")
        try:
            with _unseen():
                export(unfinished)
            size_bytes = _check_complete(unfinished)
            os.replace(unfinished, os.path.join(folder, name))
        finally:
            for leftover in (unfinished, f"{unfinished}.tmp"):
                if os.path.exists(leftover):
                    os.unlink(leftover)
        return os.path.relpath(os.path.join(folder, name), self._traces), size_bytes

    def _mark_edge(self) -> None:
        if self.steps.is_light and self.has_recorded:
            _call_runtime()
            self._edges_ns.append(time.time_ns())

    def _add_metadata(self, rank: RankRecord, axes: Mapping[str, tuple[int, ...]]) -> None:
        metadata = TraceMetadata(
            schema=wire.SCHEMA,
            rank=rank.rank,
            world_size=rank.world_size,
            first_step=self.steps.first,
            wall_ns=time.time_ns(),
            monotonic_ns=time.monotonic_ns(),
            host=rank.host,
            pid=rank.pid,
            activities=self.steps.activities,
            edges_ns=tuple(self._edges_ns),
            axes=dict(axes),
        )
        self.profiler.add_metadata_json(wire.TRACE_METADATA, json.dumps(asdict(metadata)))


def _call_runtime() -> None:
    """Make the call ``EDGE_CALL``, which returns a constant and takes 0.3 us; without it the wall clock has to do."""
    with contextlib.suppress(AttributeError, RuntimeError):
        sys.modules["torch"].cuda.Stream.priority_range()


@contextlib.contextmanager
def _unseen() -> Iterator[None]:
    """Hide the profiler from modes of the script, and let kineto print nothing, where torch shows its level."""
    torch: Any = sys.modules["torch"]
    try:
        library = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so"))
        level = ctypes.c_int.in_dll(library, _LOG_LEVEL)
    except (OSError, ValueError):
        level = ctypes.c_int()
    before, level.value = level.value, _SILENT
    try:
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            yield
    finally:
        if level.value == _SILENT:  # else kineto has begun in here, and set it
            level.value = before


@contextlib.contextmanager
def _unwarned(torch: Any) -> Iterator[None]:
    """Leave out a warning that torch 2.10 to 2.12 give at the start of every profiler with a schedule.

    It tells a script that its profiler has several cycles, which none of ours has (pytorch/pytorch#180387).
    """
    module = torch.profiler.profiler
    warn = getattr(module, "_warn_once", None)
    if warn is not None:
        module._warn_once = lambda *_args, **_kwargs: None
    try:
        yield
    finally:
        if warn is not None:
            module._warn_once = warn


def find_light_activities(torch: Any) -> list[object]:
    """The activities of a light window; empty where no GPU is in use, so that there is nothing to record."""
    in_use = torch.cuda.is_available() and torch.cuda.is_initialized()
    return [torch.profiler.ProfilerActivity.CUDA] if in_use else []


def read_resident_bytes() -> int | None:
    """Read the resident memory (RSS) of this process; None where the system does not report it."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


def _make_config(torch: Any, config: Config) -> object:
    """Let newer versions of torch keep nothing but what a trace needs, which makes stopping shorter.

    The events that streams and the host wait for (``enable_cuda_sync_events``) are not recorded. Steps of FSDP2 took
    158 ms with them and 142 ms without, and a replay infers the same (reports/what-if.md).
    """
    if config.stack:
        return None  # torch would print a warning that it does not do both
    try:
        return torch._C._profiler._ExperimentalConfig(trace_only=True)
    except (AttributeError, TypeError):
        return None


def _check_complete(path: str) -> int:
    """The size of a trace in bytes; torch itself reports no error where the trace could not be written."""
    size_bytes = os.path.getsize(path) if os.path.exists(path) else 0
    if size_bytes < _SHORTEST_TRACE_BYTES:
        raise ExportError("torch.profiler wrote no trace: is the disk full?")
    with open(path, "rb") as file:
        file.seek(-_SHORTEST_TRACE_BYTES, os.SEEK_END)
        if not file.read().rstrip().endswith(b"}"):
            raise ExportError("torch.profiler wrote only part of a trace: is the disk full?")
    return size_bytes


def reserve_variable() -> None:
    """Put the variable into the environment while few threads could read it: windows only change its value."""
    os.environ.setdefault(VARIABLE, _BETWEEN_WINDOWS)


class CuptiDetachment:
    """Detaches CUPTI, by which torch.profiler records the device's work, at the end of a window.

    CUPTI stays attached after a profiler has stopped, and every later launch of a kernel passes through it. This made
    host-bound steps 25 to 50 % slower for the rest of the process. kineto detaches it where ``TEARDOWN_CUPTI`` is 1
    when the profiler stops, in a thread of its own that ends with the next call of the CUDA runtime in any thread. A
    process cannot end while that thread waits, so such calls are made here until it is gone.

    kineto reads the variable each time. It is 1 from the start of a window to its end only, so that profilers of the
    script find what they would find without perfscope. ``attached_because`` says why CUPTI stays attached.
    """

    def __init__(self, torch: Any) -> None:
        cuda_version = read_cuda_version(torch)
        self.attached_because = find_obstacle(cuda_version, os.environ)
        self._cuda = None if cuda_version is None else torch.cuda
        self._is_requested = False

    @property
    def is_detached(self) -> bool | None:
        """Whether CUPTI is gone after the window; None where the process uses no CUDA device."""
        if self._cuda is None or not self._cuda.is_initialized():
            return None
        return self.attached_because is None

    def prepare(self) -> None:
        """Let kineto detach CUPTI when the profiler that is about to start stops."""
        if self._cuda is not None and self.attached_because is None and os.environ.get(VARIABLE) != _DETACH:
            os.environ[VARIABLE] = _DETACH
            self._is_requested = True

    def cancel(self) -> None:
        """Let CUPTI stay: its thread may not hold up the end of a process whose device does not answer."""
        self.attached_because = self.attached_because or "training failed in the window"
        self._reset()

    def stop(self, stop_profiler: Callable[[], object]) -> None:
        """Stop the profiler; CUPTI is detached when this returns."""
        if self.is_detached and os.environ.get(VARIABLE) != _DETACH:  # torch decides so where it knows of CUDA graphs
            self.attached_because = f"the environment has {VARIABLE}={os.environ.get(VARIABLE)}"
        earlier = _threads()
        try:
            stop_profiler()
            if self.is_detached:
                self._wait_for(_threads() - earlier)
        finally:
            self._reset()

    def _wait_for(self, threads: set[str]) -> None:
        """Call the CUDA runtime until the thread is gone; nothing waits for the device."""
        until_s = time.monotonic() + _LONGEST_WAIT_S
        while self._cuda is not None and threads & _threads() and time.monotonic() < until_s:
            if not self._cuda.is_current_stream_capturing():
                self._cuda.current_stream().query()
            time.sleep(_PAUSE_S)
        if threads & _threads():
            self.attached_because = "kineto had not detached it half a second after the window"

    def _reset(self) -> None:
        if self._is_requested and os.environ.get(VARIABLE) == _DETACH:
            os.environ[VARIABLE] = _BETWEEN_WINDOWS
        self._is_requested = False


def find_obstacle(cuda_version: tuple[int, ...] | None, environment: Mapping[str, str]) -> str | None:
    """Find why CUPTI stays attached after a window; None where it is detached, or where there is no CUDA."""
    if cuda_version is None or environment.get(VARIABLE) == _DETACH:
        return None
    if environment.get(VARIABLE, _BETWEEN_WINDOWS) != _BETWEEN_WINDOWS:
        return f"the environment has {VARIABLE}={environment[VARIABLE]}"
    if cuda_version < _FIRST_SAFE_CUDA:
        return f"CUDA {'.'.join(map(str, cuda_version))} crashes where CUPTI is attached again beside CUDA graphs"
    return None


def read_cuda_version(torch: Any) -> tuple[int, ...] | None:
    """Read the version of CUDA that torch was built for; None for a torch without CUDA."""
    version = getattr(getattr(torch, "version", None), "cuda", None)
    return None if version is None else tuple(int(part) for part in str(version).split(".")[:2])


def _threads() -> set[str]:
    try:
        return set(os.listdir(_THREADS))
    except OSError:
        return set()
