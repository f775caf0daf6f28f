"""Watches this process's training from the thread that writes records: stalls, failures and requests for windows.

The thread looks every two seconds: a step pays nothing for it. Nothing here waits for a device, for another rank or for
a collective.

What torch and Python keep for a post-mortem is armed where the user has not. torch's Flight Recorder is a ring of the
last collectives of a process. It reads its environment variables when the first process group is built, so they are set
right before. Python's faulthandler writes the stacks of a process that dies of a fatal signal.
"""

from __future__ import annotations

import faulthandler
import functools
import os
import re
import resource
import sys
import threading
import time
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from perfscope.constants import NS_PER_S
from perfscope.hooks.facts.secrets import redact_text
from perfscope.hooks.guard import call_safely
from perfscope.hooks.messages import write_message
from perfscope.hooks.open_window import OPEN_WINDOW
from perfscope.hooks.places import read_stack
from perfscope.hooks.record_files import identify, is_same_file, open_to_append, replace_file
from perfscope.hooks.side_process import start_once_a_node
from perfscope.wire import RANKS_FOLDER, requests
from perfscope.wire.incidents import (
    CONTROL_FOLDER,
    DEATHS_FOLDER,
    FAILURE,
    FATAL_FILE,
    INCIDENTS_FILE,
    RECORDER_FOLDER,
    RECORDER_KINDS,
    RESUMED,
    STALL,
    CodeFrame,
    IncidentRecord,
    recorder_file,
    stacks_file,
    to_incident_line,
)

if TYPE_CHECKING:
    from perfscope.hooks.config import Config
    from perfscope.wire.records import RankRecord


class Watch:
    """The watch over one process, whose ``Capture`` is the training; ``begin`` when its rank is known."""

    def __init__(self, config: Config, training: Any) -> None:
        self._config = config
        self._training = training
        self._control = ControlFolder(os.path.join(config.run_dir, CONTROL_FOLDER))
        self._rank: RankRecord | None = None
        self._evidence: IncidentFiles | None = None
        self._faults: FaultHandler | None = None
        self._stall_number = 0
        self._progress = Progress(config.stall_factor, int(config.stall_s * NS_PER_S), time.monotonic_ns())

    def arm(self) -> None:
        """The first process group is about to be built: its recorder reads its variables now."""
        if self._config.watchdog:
            folder = os.path.join(self._config.run_dir, RECORDER_FOLDER)
            os.makedirs(folder, exist_ok=True)
            arm_recorder(os.path.join(folder, "nccl_"))

    def begin(self, folder: str, rank: RankRecord) -> None:
        """The rank is known, and the folder of its files is there. Raises OSError: the folder cannot be written to."""
        self._rank = rank
        os.makedirs(self._control.path, exist_ok=True)
        self._control.find_new()  # what is there was meant for processes before this one
        if not self._config.watchdog:
            return
        self._evidence = IncidentFiles(folder)
        self._faults = FaultHandler(os.path.join(folder, FATAL_FILE))
        self._faults.enable()
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "coroner.py")
        run_dir = self._config.run_dir
        arguments = (os.path.join(run_dir, RANKS_FOLDER), self._config.nvml_path or "-", str(os.getpid()))
        start_once_a_node("coroner", run_dir, os.path.join(run_dir, DEATHS_FOLDER), script, arguments)

    def look(self) -> None:
        """Look at training and at requests; called every two seconds, in the thread that writes records."""
        if self._rank is None or self._training.dead:
            return
        now_ns, steps = time.monotonic_ns(), self._training.steps
        ended_ns = self._training.last_boundary_ns
        if self._progress.advance(steps, ended_ns, now_ns, is_disturbed=OPEN_WINDOW.is_open):
            self._on_resumed()
        if self._evidence is not None:
            stall = self._progress.find_stall(steps, now_ns)
            if stall is not None:
                self._on_stall(stall)
            if self._faults is not None:
                call_safely(self._faults.check_file)
        for name in self._control.find_new():
            self._on_request(name)

    def finish(self) -> None:
        """The interpreter ends: keep why, where it is a failure."""
        if self._evidence is None:
            return
        if self._progress.advance(self._training.steps, self._training.last_boundary_ns, time.monotonic_ns()):
            self._on_resumed()
        error = last_error()
        if error is not None and not self._training.dead:
            self._evidence.keep(describe_error(error, self._evidence.count + 1, self._training.steps))

    def _on_stall(self, stall: Stall, *, is_first: bool = True) -> None:
        """Keep what this rank is doing, first the record, and let the others do so, too, where it is the first."""
        assert self._evidence is not None
        assert self._rank is not None
        thread = self._training.training_thread or threading.main_thread().ident or 0
        record = IncidentRecord(
            kind=STALL,
            number=self._evidence.count + 1,
            wall_ns=time.time_ns(),
            monotonic_ns=time.monotonic_ns(),
            step=self._training.steps,
            idle_ns=stall.idle_ns,
            training_thread=f"{thread:#018x}",
            source=call_safely(lambda: read_source(thread))[0],
        )
        self._stall_number = record.number
        if is_first and record.number <= MOST_INCIDENTS:
            name = f"{requests.STALL_PREFIX}{record.step:08d}.json"
            content = b'{"rank": %d}\n' % self._rank.rank
            is_new, _ = call_safely(lambda: publish(self._control.path, name, content))
            if is_new:
                idle_s, limit_s = stall.idle_ns / NS_PER_S, stall.limit_ns / NS_PER_S
                write_message(
                    f"rank {self._rank.rank} has finished no step for {idle_s:.0f} s (limit {limit_s:.0f} s): stacks "
                    f"are in the run, see `perfscope postmortem {self._config.run_dir}`"
                )
        self._evidence.keep(record)

    def _on_resumed(self) -> None:
        if self._evidence is not None and self._stall_number:
            number, self._stall_number = self._stall_number, 0
            self._evidence.add(
                IncidentRecord(RESUMED, number, time.time_ns(), time.monotonic_ns(), step=self._training.steps)
            )

    def _on_request(self, name: str) -> None:
        if name.startswith(requests.STALL_PREFIX):
            step = name.removeprefix(requests.STALL_PREFIX).partition(".")[0]
            is_current = step.isdigit() and abs(int(step) - self._training.steps) <= 1
            if self._evidence is not None and is_current and not self._progress.is_stalled:
                self._progress.is_stalled = True
                idle_ns = self._progress.idle_ns(time.monotonic_ns())
                self._on_stall(Stall(idle_ns, self._progress.limit_ns), is_first=False)
            return
        if name.startswith(requests.WINDOW_PREFIX):
            try:
                request = requests.WindowRequest.from_json(self._control.read(name))
            except (OSError, ValueError) as error:
                write_message(f"the request {name} is ignored: {error}")
                self._training.note(f"the request {name} was ignored: {error}")
                return
            self._training.request_window(name, request)


#: Measurements that the median is of: two minutes of short steps.
_MOST_MEASUREMENTS = 60
#: Before the second step, compilation and the first batches may take so many times the shortest stall.
_START_FACTOR = 10


class Stall(NamedTuple):
    """No step was completed for longer than a limit."""

    idle_ns: int
    limit_ns: int


class Progress:
    """The steps of one process, which is stalled where it completes none for longer than ``limit_ns``."""

    def __init__(self, factor: float, shortest_ns: int, now_ns: int) -> None:
        self.is_stalled = False
        self.limit_ns = _START_FACTOR * shortest_ns
        self._factor = factor
        self._shortest_ns = shortest_ns
        self._steps = 0
        self._moved_ns = now_ns
        self._measured_ns: deque[float] = deque(maxlen=_MOST_MEASUREMENTS)

    def idle_ns(self, now_ns: int) -> int:
        """Since when no step was completed."""
        return now_ns - self._moved_ns

    def find_stall(self, steps: int, now_ns: int) -> Stall | None:
        """A stall, once, when it is noticed."""
        idle_ns = self.idle_ns(now_ns)
        if self.is_stalled or idle_ns < self.limit_ns or steps != self._steps:
            return None
        self.is_stalled = True
        return Stall(idle_ns, self.limit_ns)

    def advance(self, steps: int, ended_ns: int | None, now_ns: int, *, is_disturbed: bool = False) -> bool:
        """Steps may have been completed since the last look; says whether that ends a stall.

        The mean time of the steps between two looks is one measurement, unless a profiler window disturbs them.
        """
        new = steps - self._steps
        if new <= 0:
            return False
        was_stalled, self.is_stalled = self.is_stalled, False
        ended_ns = now_ns if ended_ns is None else min(ended_ns, now_ns)
        if self._steps and not (is_disturbed or was_stalled):
            self._measured_ns.append((ended_ns - self._moved_ns) / new)
            median_ns = sorted(self._measured_ns)[len(self._measured_ns) // 2]
            self.limit_ns = max(self._shortest_ns, int(self._factor * median_ns))
        self._steps, self._moved_ns = steps, ended_ns
        return was_stalled


_LARGEST_REQUEST_BYTES = 65536


class ControlFolder:
    """The files that have appeared in a folder since the last look; where there is no folder, there are none."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._names: set[str] = set()

    def find_new(self) -> list[str]:
        """Names of the files that are new, in their order; hidden ones are still being written."""
        try:
            names = {name for name in os.listdir(self.path) if not name.startswith(".")}
        except OSError:
            return []
        new, self._names = names - self._names, names
        return sorted(new)

    def read(self, name: str) -> bytes:
        """The content of a file. Raises OSError: it cannot be read."""
        with open(os.path.join(self.path, name), "rb") as file:
            return file.read(_LARGEST_REQUEST_BYTES)


def publish(folder: str, name: str, content: bytes) -> bool:
    """Write a file that appears at once with its whole content; False where there is one of that name.

    Raises OSError: the folder cannot be written to.
    """
    path = os.path.join(folder, name)
    unfinished = os.path.join(folder, f".{name}.{os.urandom(8).hex()}.tmp")  # ranks of several hosts may write
    try:
        with open(unfinished, "wb") as file:
            file.write(content)
        os.link(unfinished, path)
    except FileExistsError:
        return False
    finally:
        if os.path.exists(unfinished):
            os.unlink(unfinished)
    return True


#: So many incidents of a process are kept: a training that stalls every minute must not fill the disk.
MOST_INCIDENTS = 6
#: Messages of exceptions may hold a whole batch, and a line of code may be generated.
_LONGEST_TEXT = 2000
_MOST_FRAMES = 60
#: A dump of the recorder that would be larger is not kept: users may let torch remember any number of collectives.
_LARGEST_DUMP_BYTES = 16_000_000


class IncidentFiles:
    """The incidents of one process, of which there were ``count``."""

    def __init__(self, folder: str) -> None:
        self.count = 0
        self._folder = folder

    def keep(self, record: IncidentRecord) -> None:
        """Write an incident with the stacks of all threads and the recorder's dumps.

        Raises OSError: the record itself cannot be written.
        """
        self.count = record.number
        if record.number > MOST_INCIDENTS:
            return
        self.add(record)
        problems = [call_safely(lambda: self._write_stacks(record.number))[1]]
        dumps, problem = call_safely(dump_recorder)
        problems.append(problem)
        for kind, content in (dumps or {}).items():
            name = recorder_file(record.number, kind)
            if len(content) > _LARGEST_DUMP_BYTES:
                problems.append(OSError(f"{name} would have {len(content):,} bytes"))
                continue
            path = os.path.join(self._folder, name)
            problems.append(call_safely(functools.partial(replace_file, path, content))[1])
        missing = "; ".join(redact_text(repr(error)) for error in problems if error is not None)
        if missing:
            self.add(IncidentRecord(**{**vars(record), "missing": missing}))

    def add(self, record: IncidentRecord) -> None:
        """Write a record alone. Raises OSError."""
        with open(os.path.join(self._folder, INCIDENTS_FILE), "ab", buffering=0) as file:
            file.write(to_incident_line(record))

    def _write_stacks(self, number: int) -> None:
        with open(os.path.join(self._folder, stacks_file(number)), "w", encoding="utf-8") as file:
            faulthandler.dump_traceback(file=file, all_threads=True)


def read_source(thread: int) -> str | None:
    """The line of code that a thread is in, for what has no frame of its own; None where its file cannot be read."""
    innermost = read_stack(thread, 0)
    if not innermost:
        return None
    path, _, number = innermost[0]
    with open(path, "rb") as file:
        line = next(islice(file, number - 1, None), b"")
    return redact_text(line.decode(errors="replace").strip()[:_LONGEST_TEXT]) or None


def last_error() -> BaseException | None:
    """The exception that ends this process; None where none was raised up to the interpreter."""
    error: Any = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    return error if isinstance(error, BaseException) else None


def describe_error(error: BaseException, number: int, step: int) -> IncidentRecord:
    """The record of a failure."""
    frames, trace = [], error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        frames.append(CodeFrame(code.co_filename, trace.tb_lineno or 0, code.co_name))
        trace = trace.tb_next
    kind = type(error)
    return IncidentRecord(
        kind=FAILURE,
        number=number,
        wall_ns=time.time_ns(),
        monotonic_ns=time.monotonic_ns(),
        step=step,
        error=f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins."),
        message=redact_text(str(error)[:_LONGEST_TEXT]),
        frames=tuple(frames[-_MOST_FRAMES:]),
    )


#: Collectives that are remembered; an entry takes about 1 kB of memory.
_ENTRIES = "2000"
#: torch 2.9 gave two of the variables new names, and warns of the old ones.
_RENAMED_IN = (2, 9)
_SIZE = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_DUMP_FILE = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
#: NCCL's watchdog writes the recorder's dump before it ends the process. TORCH_NCCL_ENABLE_TIMING, which tells a
#: collective that a device has begun from one that waits, is left to the user: it costs an event a collective, and
#: torch warns that its watchdog may hang on it.
_DUMP_ON_TIMEOUT = "TORCH_NCCL_DUMP_ON_TIMEOUT"
#: One more open file is a small share of so many.
_FEWEST_FILES = 64
_VERSION = re.compile(r"(\d+)\.(\d+)")
#: What dumps the recorder of each kind of backend.
_DUMPS: tuple[tuple[str, dict[str, str]], ...] = (
    ("_dump_nccl_trace", {}),
    ("_dump_fr_trace", {}),
    ("_dump_fr_trace", {"backend": "nccl2"}),
)


def arm_recorder(dump_prefix: str, environment: Any = os.environ) -> None:
    """Set the recorder's variables where none of their names is set; torch appends the rank to ``dump_prefix``."""
    version = _VERSION.match(str(getattr(sys.modules.get("torch"), "__version__", "")))
    is_new = version is None or (int(version[1]), int(version[2])) >= _RENAMED_IN
    for names, value in ((_SIZE, _ENTRIES), (_DUMP_FILE, dump_prefix)):
        if not any(name in environment for name in names):
            environment[names[0 if is_new else 1]] = value
    if _DUMP_ON_TIMEOUT not in environment:
        environment[_DUMP_ON_TIMEOUT] = "1"


def dump_recorder() -> dict[str, bytes]:
    """The recorder's dumps as torch pickles them, by the kind of backend: ``generic`` is of gloo and others.

    Older versions of torch have the first alone, or no recorder of nccl2; one without entries is left out.
    """
    library = getattr(getattr(sys.modules.get("torch"), "_C", None), "_distributed_c10d", None)
    dumps: dict[str, bytes] = {}
    for kind, (name, options) in zip(RECORDER_KINDS, _DUMPS, strict=True):
        dump = getattr(library, name, None)
        try:
            content = bytes(dump(**options)) if dump is not None else b""
        except TypeError:  # it knows no backends
            continue
        if b"entries" in content and content not in dumps.values():
            dumps[kind] = content
    return dumps


class FaultHandler:
    """Python's faulthandler, where the script does not use it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: int | None = None
        self._identity = (0, 0)
        self._enable = faulthandler.enable

    def enable(self) -> None:
        """Write stacks into a file at a fatal signal. Raises OSError: the file cannot be created."""
        if faulthandler.is_enabled() or resource.getrlimit(resource.RLIMIT_NOFILE)[0] < _FEWEST_FILES:
            return  # it is the script's own, or the script may need every open file
        self._open()

        def enable_for_script(*args: Any, **kwargs: Any) -> None:
            self._file = None
            self._enable(*args, **kwargs)

        faulthandler.enable = enable_for_script

    def _open(self) -> None:
        self._file = open_to_append(self._path)  # a number, which nothing closes at the end of the process
        self._identity = identify(self._file)
        self._enable(file=self._file, all_threads=True)

    def check_file(self) -> None:
        """Open the file again where the script closed the descriptor, which may be the script's own file now."""
        if self._file is not None and not is_same_file(self._file, self._identity):
            faulthandler.disable()
            self._open()
