"""Opens, advances and closes the profiler windows of a process, and labels the steps around them."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from perfscope import wire
from perfscope.hooks.facts import launched_rank
from perfscope.hooks.guard import call_safely
from perfscope.hooks.introspection import THREAD, is_in_backward
from perfscope.hooks.messages import write_message
from perfscope.hooks.module_calls import ModuleCalls
from perfscope.hooks.open_window import OPEN_WINDOW
from perfscope.hooks.profiler.window import ExportError, ProfilerWindow, find_light_activities
from perfscope.hooks.selection import StepWindow, WindowChoice
from perfscope.wire.requests import ANSWERS_FILE, LATE, PLANNED, REFUSED, WindowAnswer, WindowRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from perfscope.hooks.config import Config
    from perfscope.hooks.memory.history import MemoryRecording
    from perfscope.hooks.rank_files import RankFiles

_WATCHDOG_S = 20.0
#: There is one profiler a process at a time.
_IN_BACKWARD = "the optimizer steps inside the backward pass"
_OF_SCRIPT = "the script runs a profiler of its own"
#: torch stops a profiler in the thread that started it.
_IN_THREADS = "steps end in more than one thread"
#: Only then is it known whether a thread that is not the main one ends more than one step.
_TWO_STEPS = 2
#: Set where a profiler outside the process, such as Nsight Systems, holds CUPTI.
_EXTERNAL_PROFILER_VARIABLES = ("CUDA_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID")


class WindowSchedule:
    """The profiler windows of one process.

    Attributes:
        label: How the running step relates to a window.
        blocked_by: Why no window of this process is profiled.
    """

    def __init__(self, config: Config, files: RankFiles, memory: MemoryRecording) -> None:
        self.label: str | None = None
        variable = find_profiler_variable(os.environ)
        self.blocked_by = None if variable is None else f"another profiler is attached ({variable} is set)"
        self._config = config
        self._files = files
        self._memory = memory
        self._pending = [replace(window, activities=_first_activities(config)) for window in config.windows]
        self._window: ProfilerWindow | None = None
        self._last: ProfilerWindow | None = None
        self._is_changing = False
        self._discard_after_change = False
        self._was_held = False
        #: The profilers of the script that run, by their ids.
        self._others: set[int] = set()
        #: The thread in which the last step ended, and whether that is another one than before.
        self._thread: object = None
        self._has_moved = False
        self._ranges = ModuleCalls("nn.Module: ")
        #: Windows that were asked for while training runs, and are looked at when a step ends.
        self._requests: deque[tuple[str, WindowRequest]] = deque()
        self._configs: dict[StepWindow, Config] = {}

    @property
    def is_recording(self) -> bool:
        """Whether a window is open and past its warm-up."""
        return self._window is not None and self._window.has_recorded

    @property
    def quiet_steps(self) -> int:
        """Up to so many completed steps nothing happens at the end of a step; 0 around a window."""
        if self._window is not None or self.label is not None or self._was_held or self._requests:
            return 0
        # the window opens one step ahead of its first, at the end of the step before that
        return self._pending[0].first - 3 if self._pending else sys.maxsize

    @property
    def has_requests(self) -> bool:
        """Whether windows were asked for that no step's end has looked at yet."""
        return bool(self._requests)

    def request(self, name: str, request: WindowRequest) -> None:
        """A window is asked for, from another thread; the next end of a step that looks plans or refuses it."""
        self._requests.append((name, request))

    def hold(self) -> None:
        """Begin no window at the next steps: nobody can tell yet how many there were."""
        self._was_held = True

    def on_step_end(self, completed_steps: int) -> None:
        """Go from the step that just ended to the next: open, advance or close a window, and label the next step."""
        if is_in_backward():  # a profiler that starts or stops in there crashes torch
            if self.blocked_by != _IN_BACKWARD and (self._pending or self._window is not None):
                self._say(f"no window is profiled: {_IN_BACKWARD}")
            self.blocked_by = _IN_BACKWARD
            return
        last, self._thread = self._thread, THREAD.token
        self._has_moved = last is not None and last is not self._thread
        self._lose_moved_window()
        self._is_changing = True
        try:
            self._advance(completed_steps)
        finally:
            self._is_changing = False
            if self._discard_after_change:
                self.discard()

    def on_profiler_start(self, profiler: object) -> None:
        """Stand down if the profiler that starts is not ours: ours would take its events away."""
        if self._is_changing:
            return
        self._others.add(id(profiler))
        if self._window is not None:
            steps = self._window.steps
            self.discard()
            self._say(f"the window {steps} is lost: {_OF_SCRIPT}")

    def on_profiler_end(self, profiler: object) -> None:
        """A profiler ends, which may be one of the script."""
        self._others.discard(id(profiler))

    def _lose_moved_window(self) -> None:
        window = self._window
        if window is not None and window.thread is not THREAD.token:
            self.discard()
            self._say(f"the window {window.steps} is lost: {_IN_THREADS}")

    def close(self, completed_steps: int, *, after_failure: bool = False) -> None:
        """Stop an open window and write its trace."""
        self._lose_moved_window()
        window = self._window
        self._set_window(None)
        if window is None:
            return
        OPEN_WINDOW.is_open = True  # until the trace is written
        try:
            # Of a step that failed, what was recorded may tell why.
            is_empty = not window.has_recorded or (completed_steps < window.steps.first and not after_failure)
            if not (after_failure or is_empty):
                self._memory.finish_window(completed_steps)
            self._memory.discard_window()
            self._ranges.stop()
            if is_empty:
                self._files.note(f"the window {window.steps} is empty: training ended before its first step did")
                return
            recorder = self._files.claim()
            finish = window.finish_after_failure if after_failure else window.finish
            recorder.append(wire.EVENTS_FILE, finish(recorder.who, completed_steps, self._files.lines))
        except ExportError as error:
            self._say(f"the window {window.steps} is lost: {error}")
        finally:
            OPEN_WINDOW.is_open = False
            window.discard()

    def close_at_exit(self, completed_steps: int, *, failed: bool) -> None:
        """Close an open window as the interpreter ends, within some seconds where the training failed."""
        if not failed:
            self.close(completed_steps)
        elif self._window is not None:
            watchdog = threading.Timer(_WATCHDOG_S, os._exit, (1,))
            watchdog.daemon = True
            watchdog.start()
            self.close(completed_steps, after_failure=True)
            watchdog.cancel()

    def stop_at_exit(self) -> None:
        """Stop a profiler that could not be stopped before, as in a recursion that was too deep."""
        if self._last is not None:
            self._last.discard()

    def discard(self) -> None:
        """Leave nothing running and write nothing."""
        if self._is_changing:  # a hook failed inside the profiler's own start, which stopping it now would break
            self._discard_after_change = True
            return
        window = self._window
        self._set_window(None)
        try:
            self._memory.discard_window()
            self._ranges.stop()
        finally:
            if window is not None:
                window.discard()

    def _say(self, text: str) -> None:
        self._files.note(text)
        write_message(text)

    def _set_window(self, window: ProfilerWindow | None) -> None:
        self._window = window
        OPEN_WINDOW.is_open = window is not None
        OPEN_WINDOW.records_ranges = window is not None and not window.steps.is_light

    def _advance(self, completed_steps: int) -> None:
        self.label = None
        next_step = completed_steps + 1
        if self._was_held:
            self._was_held = False
            self._catch_up(next_step)
        while self._requests:
            self._answer(*self._requests.popleft(), completed_steps)
        if self._window is not None:
            steps = self._window.steps
            if completed_steps >= steps.last:
                self._add_light_window(steps)
                self.close(completed_steps)
                self.label = wire.EXPORT
            else:
                self._window.step()
                self.label = wire.PROFILED
                self._memory.on_step(next_step)
        while self._pending and self._pending[0].first < next_step:
            window = self._pending.pop(0)
            self._files.note(f"the window {window} is not profiled: training was past its warm-up step")
        if self._pending and self._pending[0].first <= next_step + 1 and self._window is None:
            self._open(self._pending.pop(0), next_step)

    def _answer(self, name: str, request: WindowRequest, completed_steps: int) -> None:
        status, reason = PLANNED, None
        activities = wire.LIGHT if request.light else _first_activities(self._config)
        window = StepWindow(request.first, request.last, activities)
        others = [*self._pending, *([] if self._window is None else [self._window.steps])]
        if self.blocked_by is not None:
            status, reason = REFUSED, self.blocked_by
        elif window.first <= completed_steps + 1:
            status, reason = LATE, f"step {completed_steps} was completed when the request was seen"
        elif any(not (window.leaves_room_for(other) or other.leaves_room_for(window)) for other in others):
            status, reason = REFUSED, "another window is planned for these steps"
        else:
            self._pending = sorted([*self._pending, window], key=lambda planned: planned.first)
            ranks = self._config.ranks if request.ranks is None else frozenset(request.ranks)
            self._configs[window] = replace(
                self._config, ranks=ranks, shapes=request.shapes, stack=request.stack, memory=request.memory
            )
        self._files.claim().append_late(ANSWERS_FILE, WindowAnswer(name, status, completed_steps, reason))
        self._files.note(f"the window {window} was asked for: {status}{f', {reason}' if reason else ''}")

    def _catch_up(self, next_step: int) -> None:
        """Move the windows that could not begin in time, because nothing told what a training step was."""
        warming_up = self._window
        planned = warming_up.steps if warming_up is not None else self._pending[0] if self._pending else None
        delay = 0 if planned is None else next_step + (warming_up is None) - planned.first
        if planned is None or (warming_up is None and delay <= 0):
            return
        delay = max(0, delay)
        if warming_up is not None:
            warming_up.move(planned.delayed(delay), next_step)
        if not delay:
            return
        self._configs = {window.delayed(delay): config for window, config in self._configs.items()}
        self._pending = [window.delayed(delay) for window in self._pending]
        self._files.note(
            f"the window {planned} was moved to {planned.delayed(delay)}: until then it was not clear which of "
            "several optimizers ends a step; `--step-optimizer` chooses one"
        )

    def _open(self, steps: StepWindow, next_step: int) -> None:
        reason = self.blocked_by or (_OF_SCRIPT if self._others else _IN_THREADS if self._has_moved else None)
        if reason is not None:
            self._say(f"the window {steps} is not profiled: {reason}")
            return
        if next_step <= _TWO_STEPS and threading.get_ident() != threading.main_thread().ident:
            self._files.note(f"the window {steps} begins a step later: the first steps ended in a thread of the script")
            self._pending.insert(0, steps.delayed(1))
            return
        config = self._configs.get(steps, self._config)
        if not self._profiles_this_rank(config):
            return
        if steps.is_light and not find_light_activities(sys.modules["torch"]):
            self._files.note(f"the window {steps} records operators: no GPU is in use, so there is no light window")
            steps = replace(steps, activities=wire.OPERATORS)
        if config.stack and sys.getprofile() is not None:  # torch would remove it
            self._files.note("Python stacks are not recorded: the script has a profile function of its own")
            config = replace(config, stack=False)
        window = self._last = ProfilerWindow(steps, config, next_step)
        self._set_window(window)  # before it starts, so that a failure in there discards it
        protect_children(self._on_fork)
        window.start()
        if next_step == steps.first:
            self._files.note(f"the window {steps} began without a warm-up step: its first step is slower")
        self.label = wire.PROFILED if next_step == steps.first else wire.WARMUP
        if config.modules and not steps.is_light:
            autograd = sys.modules["torch"].autograd
            self._ranges.start(autograd.profiler.record_function, autograd._profiler_enabled)
        if steps.activities == _first_activities(self._config):
            self._memory.start_window(next_step)

    def _add_light_window(self, steps: StepWindow) -> None:
        if self._config.window is not WindowChoice.BOTH or steps.is_light:
            return
        config = self._configs.get(steps, self._config)
        if not self._profiles_this_rank(config) or not find_light_activities(sys.modules["torch"]):
            return
        light = steps.light_after()
        if self._pending and not light.leaves_room_for(self._pending[0]):
            self._files.note(f"no light window follows the window {steps}: the next one begins too early for it")
            return
        self._pending.insert(0, light)
        self._configs[light] = config

    def _on_fork(self) -> None:
        self._ranges.stop()
        self._memory.forget()
        if self._window is not None:
            sys.modules["torch"]._C._autograd._clear_callbacks()  # the device's part of the profiler is not touched
            if self._window.records_stack:
                sys.setprofile(None)

    def _profiles_this_rank(self, config: Config) -> bool:
        if config.ranks is None:
            return True
        rank = self._files.claimed_rank()
        return (launched_rank.rank_and_world_size()[0] if rank is None else rank) in config.ranks


def _first_activities(config: Config) -> str:
    return wire.LIGHT if config.window is WindowChoice.LIGHT else wire.OPERATORS


def find_profiler_variable(environment: Mapping[str, str]) -> str | None:
    """Find the environment variable by which another profiler is attached; None where none is."""
    return next((name for name in _EXTERNAL_PROFILER_VARIABLES if environment.get(name)), None)


_registered_for: list[int] = []


def protect_children(on_fork: Callable[[], None]) -> None:
    """Call something in every process that this one forks, and let them end; where it was called before, do nothing.

    It is called before torch's profiler starts for the first time. From then on the profiler has a thread that waits on
    a condition variable until the process ends. A forked child inherits the waiting but not the thread, so the
    destructor that C's ``exit`` runs would wait for ever. A profiler that was active at the fork would crash the child.
    So a child leaves out what its parent registered for C's ``exit``: after Python's own end, with all that a script
    registers in ``atexit``, it flushes C's streams and ends.
    """
    if os.getpid() in _registered_for:
        return
    _registered_for[:] = [os.getpid()]
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "on_exit") or not hasattr(libc, "fcloseall"):
        return  # not the GNU library, for which torch is not built
    libc.on_exit.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    # Each is called with the exit status as its first argument, the last one registered first.
    functions = [ctypes.cast(function, ctypes.c_void_p) for function in (libc._exit, libc.fcloseall)]

    def in_child() -> None:
        for function in functions:
            libc.on_exit(function, None)
        call_safely(on_fork)

    os.register_at_fork(after_in_child=in_child)
