"""Watches this process's training from the thread that writes records: stalls and requests for windows.

The thread looks every two seconds. A step pays nothing for it: what is asked of training is left where it looks anyway.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Any

from perfscope.constants import NS_PER_S
from perfscope.hooks.guard import call_safely
from perfscope.hooks.messages import write_message
from perfscope.hooks.open_window import OPEN_WINDOW
from perfscope.hooks.side_process import start_once_a_node
from perfscope.hooks.watch.arming import FaultHandler, arm_recorder
from perfscope.hooks.watch.control import ControlFolder, publish
from perfscope.hooks.watch.evidence import MOST_INCIDENTS, IncidentFiles, describe_error, last_error, read_source
from perfscope.hooks.watch.progress import Progress, Stall
from perfscope.wire import RANKS_FOLDER, requests
from perfscope.wire.incidents import (
    CONTROL_FOLDER,
    DEATHS_FOLDER,
    FATAL_FILE,
    RECORDER_FOLDER,
    RESUMED,
    STALL,
    IncidentRecord,
)

if TYPE_CHECKING:
    from perfscope.hooks.config import Config
    from perfscope.wire.records import RankRecord

_POINTER_DIGITS = 16


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
        self._training.wake_for_requests()

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
        """Keep what this rank is doing, and let the others do so, too, where it is the first to notice the stall."""
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
            training_thread=f"0x{thread:0{_POINTER_DIGITS}x}",
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
        """A file has appeared in the folder of requests."""
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
