"""The capture of one training process: counts steps, opens and closes profiler windows, writes records.

The hooks around frameworks report what happens; this class decides what it means. Training is never harmed: every
method that a hook calls is guarded, a failure ends the capture with one line and never reaches the script, and nothing
here waits for a device.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from perfscope.hooks.config import Config, read_config
from perfscope.hooks.facts import identity, startup
from perfscope.hooks.facts.device_memory import DeviceMemory
from perfscope.hooks.facts.steps import StatedStep, StepFacts
from perfscope.hooks.guard import call_safely, end_in_children, hook_entry
from perfscope.hooks.introspection import is_grad_enabled
from perfscope.hooks.messages import write_message
from perfscope.hooks.profiler.cupti import reserve_variable
from perfscope.hooks.profiler.window_schedule import WindowSchedule
from perfscope.hooks.quick_hooks import QuietSteps, quick_hooks
from perfscope.hooks.rank_files import RankFiles
from perfscope.hooks.step_rows import ReachedBoundary, StepRows
from perfscope.hooks.step_source import StepSource
from perfscope.hooks.timers.activities import ActivityTimer
from perfscope.hooks.timers.passes import Pass, PassTimer, TimedPass
from perfscope.hooks.timers.saves import SaveTimer
from perfscope.hooks.trained_model import TrainedModel
from perfscope.wire import EndRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

_Value = TypeVar("_Value")
_Arguments = ParamSpec("_Arguments")
_NOTHING_STATED = StatedStep()
_ALONE = (1,)


class Capture(TrainedModel):
    """One process's capture.

    Attributes:
        dead: True after a failure, and in a forked child: nothing more is recorded.
        pid: The process it belongs to.
        steps: Completed training steps.
        hook_ns: Time that the hooks took since the last step boundary.
        save_timer: Times checkpoint saves.
        activities: Times validation, generation and compilation.
    """

    def __init__(self, config: Config) -> None:
        startup.note_hooked()
        self.dead = False
        self.pid = os.getpid()
        self.hook_ns = 0
        super().__init__(RankFiles(config))
        self.save_timer = SaveTimer(self)
        self.activities = ActivityTimer(self)
        self._source = StepSource(config.step_optimizer)
        self._rows = StepRows()
        self._facts = StepFacts()
        self._step_started_ns: int | None = None
        self._windows = WindowSchedule(config, self.files)
        self._has_begun = False
        self._is_rpc_server = False
        self._main_thread = threading.main_thread().ident
        self._passes = PassTimer()
        self._memory = DeviceMemory()
        self._quiet = QuietSteps()
        vars(self).update(quick_hooks(self))
        reserve_variable()
        end_in_children(self)
        atexit.register(self.finish)

    @classmethod
    def from_boot_dir(cls, boot_dir: str) -> Capture:
        """The capture that ``perfscope profile`` configured."""
        return cls(read_config(boot_dir))

    @hook_entry
    def run_guarded(
        self, action: Callable[_Arguments, _Value], *args: _Arguments.args, **kwargs: _Arguments.kwargs
    ) -> _Value:
        """Run a part of a hook, which reads a framework's own objects and reports them; None where it fails."""
        return action(*args, **kwargs)

    @hook_entry
    def arm(self, boundary: str) -> None:
        """A framework with a step boundary is in use: boundaries of lower priority are ignored from now on."""
        self._source.arm(boundary)

    @hook_entry
    def on_gradients_cleared(self, optimizer: object) -> None:
        """An optimizer cleared its gradients: the first step has begun, at an unknown time."""
        self._facts.has_cleared |= not self._source.is_last(optimizer)
        if self.steps == 0:
            self._open_first_window()
        elif self.activities.is_evaluating and self.is_training_thread():
            self.activities.end_evaluation(time.monotonic_ns())

    @hook_entry
    def on_optimizer_built(self, optimizer: object) -> None:
        """An optimizer was built, after training began or shortly before."""
        self._facts.has_cleared = True
        self._source.add_optimizer(optimizer)

    @hook_entry
    def on_step_begin(self) -> None:
        """A framework that runs a whole step in one call is about to."""
        self._begin_training()

    @hook_entry
    def on_forward(
        self,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        *,
        in_training_mode: bool = True,
        model: object = None,
    ) -> Callable[[], None] | None:
        """A wrapped model is about to run forward on one micro-batch; returns what to call after it, if anything.

        ``model`` is the module that is trained, where the wrapper knows it; see ``set_model``.
        """
        if model is not None and self.steps == 0:
            self.set_model(model)
        return self._begin_forward(args, kwargs, in_training_mode=in_training_mode)

    def _begin_forward(
        self, args: tuple[object, ...], kwargs: dict[str, object], *, in_training_mode: bool
    ) -> Callable[[], None] | None:
        if self.activities.is_evaluation(has_gradients=is_grad_enabled(), in_training_mode=in_training_mode):
            return self._on_evaluation(time.monotonic_ns())
        self._begin_training()
        self._facts.add_forward(args, kwargs)
        return None

    @hook_entry
    def on_pipeline_batch(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """The whole batch of a step is about to be cut into micro-batches."""
        self._begin_training()
        self._facts.add_pipeline_batch(args, kwargs)

    @hook_entry
    def on_batch_loaded(self, batch: object, wait_ns: int, now_ns: int | None = None) -> None:
        """A data loader returned a batch, now or just now."""
        now_ns = now_ns or time.monotonic_ns()
        if not self.is_training_thread():  # a thread that loads ahead: training does not wait for this
            self._facts.add_work(batch)
        elif not is_grad_enabled() or self.activities.is_in_call:
            self._on_evaluation(now_ns - wait_ns, wait_ns)
        elif self._has_step_begun:
            self.activities.on_batch(now_ns - wait_ns, wait_ns)
            self._facts.add_batch(batch, wait_ns)
        else:
            self.activities.on_first_batch(now_ns - wait_ns, now_ns)
            self._begin_training()
            self._facts.add_batch(batch, 0)

    @hook_entry
    def on_loader_started(self, wait_ns: int) -> None:
        """The iterator of a data loader was made, and its workers started."""
        began_ns = time.monotonic_ns() - wait_ns
        if not self.is_training_thread():
            return
        if not is_grad_enabled() or self.activities.is_in_call:
            self._on_evaluation(began_ns, wait_ns)
        elif self._has_step_begun:
            self.activities.on_batch(began_ns, wait_ns)
            self._facts.add_wait(wait_ns)
        else:
            self.activities.on_first_batch(began_ns, began_ns + wait_ns)

    @hook_entry
    def on_loader_ended(self, wait_ns: int) -> None:
        """A data loader had no more batches, and its workers ended."""
        if self.is_training_thread() and not self.activities.on_loader_end(time.monotonic_ns(), wait_ns):
            self._facts.add_wait(wait_ns if self._has_step_begun else 0)

    @hook_entry
    def on_optimizer_step(self, optimizer: object) -> None:
        """An outermost optimizer step returned."""
        if threading.get_ident() != self._main_thread and identity.is_rpc_worker_thread():
            self._note_rpc_server()
            return
        self._facts.optimizer_steps += 1
        self._facts.reevaluates |= "max_eval" in getattr(optimizer, "defaults", ())
        self._model.on_optimizer_step(optimizer)
        if self._source.name == "optimizer" or self._source.counts("optimizer"):
            self._end_step("optimizer", optimizer, _NOTHING_STATED)

    @hook_entry
    def on_scaler_update(self, scaler: object, *, has_stepped: bool | None) -> None:
        """A GradScaler finished an iteration, in which it tried an optimizer step or not; None where unknown."""
        skipped = None if has_stepped is None else has_stepped and self._facts.optimizer_steps == 0
        self._end_step("grad_scaler", scaler, StatedStep(skipped=skipped))

    @hook_entry
    def on_step_end(
        self, boundary: str, emitter: object, read: Callable[[], dict[str, Any]] | None = None, **stated: Any
    ) -> None:
        """An object reached a step boundary; the rest, or what ``read()`` returns, are fields of StatedStep."""
        self._end_step(boundary, emitter, StatedStep(**(stated if read is None else read())))

    def is_training_thread(self) -> bool:
        """Whether this is the thread that trains."""
        return self._source.is_training_thread()

    # Micro-batches and ranges.

    @hook_entry
    def on_pass_begin(
        self, kind: str, *, microbatch: int, stage: int, stages: int, device: int, devices: int
    ) -> TimedPass:
        """A pass of one micro-batch is about to be launched; the arguments are fields of Pass."""
        self._begin_training()
        self._facts.add_pass(kind, microbatch)
        return self._passes.begin(
            Pass(kind, microbatch, stage, stages, device, devices), in_window=self._windows.records_ranges
        )

    @hook_entry
    def on_pass_end(self, timed_pass: TimedPass | None) -> None:
        """All of that pass was launched."""
        if timed_pass is not None:
            self._passes.end(timed_pass)

    @hook_entry
    def begin_range(self, name: str) -> AbstractContextManager[object] | None:
        """Name a part of the timeline from here on, until ``end_range``; None outside windows with operators."""
        if not self._windows.records_ranges:
            return None
        profiler_range: AbstractContextManager[object] = sys.modules["torch"].profiler.record_function(name)
        profiler_range.__enter__()
        return profiler_range

    @hook_entry
    def end_range(self, profiler_range: AbstractContextManager[object]) -> None:
        """The named part ends."""
        profiler_range.__exit__(None, None, None)

    @hook_entry
    def on_process_group_destroyed(self) -> None:
        """The default process group is about to go: an open window is written while the device still answers."""
        self._windows.close(self.steps)

    @hook_entry
    def on_profiler_start(self) -> None:
        """Somebody starts a profiler, which may be ours."""
        self._windows.on_profiler_start()

    @hook_entry
    def finish(self) -> None:
        """The interpreter ends; an active profiler would crash it, so an open window is closed first."""
        self._complete_steps(self._source.finish())
        unused_choice = self._source.describe_unused_choice()
        if unused_choice:
            write_message(unused_choice)
            self.note(unused_choice)
        self._write_passes()
        self.save_timer.finish()
        self.files.close()
        self._windows.close_at_exit(self.steps, failed=hasattr(sys, "last_exc") or hasattr(sys, "last_type"))
        if self.files.claimed_rank() is not None:
            spans = tuple(self.activities.take_step().spans)
            self.files.claim().write_event(EndRecord(time.monotonic_ns(), spans or None))

    def abandon(self, reason: str) -> None:
        """End the capture after a failure: one line, and training goes on without it."""
        if self.dead:
            return
        self.dead = True
        write_message(f"capture ends in process {self.pid}, training goes on: {reason}")
        _, error = call_safely(self._windows.discard)
        if error is not None:
            write_message(f"the profiler could not be stopped: {error!r}")
        call_safely(self.files.close)
        call_safely(lambda: self.note(f"capture ended after step {self.steps}: {reason}"))

    @property
    def _has_step_begun(self) -> bool:
        """Whether the running step is not the first one, or a hook saw the first one begin."""
        return self._step_started_ns is not None or self.steps > 0

    def _begin_training(self) -> None:
        """The running step shows that it trains; the first step begins here, unless an earlier hook saw it begin."""
        if not self._has_step_begun:
            self.activities.on_first_step()
            self._open_first_window()
            self._step_started_ns = time.monotonic_ns()
        if self.is_training_thread():
            self.activities.on_training()

    def _on_evaluation(self, began_ns: int, wait_ns: int = 0) -> Callable[[], None] | None:
        """The training thread validates; returns what to call at the end of a forward pass."""
        if not self.is_training_thread():
            return None
        self._facts.data_wait_ns -= self.activities.on_evaluation(began_ns, wait_ns)
        return self.activities.on_evaluation_forward_end

    def _open_first_window(self) -> None:
        if not self._has_begun:
            self._has_begun = True
            self._source.set_training_thread()
            window_began_ns = time.monotonic_ns()
            self._windows.on_step_end(0)
            self.hook_ns -= time.monotonic_ns() - window_began_ns

    def _note_rpc_server(self) -> None:
        if not self._is_rpc_server:
            self._is_rpc_server = True
            self.note("this process runs optimizer steps for other workers by RPC: the workers count them")

    def _add_boundary(self, now_ns: int, boundary: str, stated: StatedStep) -> None:
        """Keep what was seen up to a boundary, until it is clear which training step it belongs to."""
        began_ns, activities = self._step_started_ns, self.activities.take_step()
        saves = self.save_timer
        save_ns, draining = saves.take_step_times() if saves.is_in_use else (None, None)
        self._rows.add(
            ReachedBoundary(
                end_ns=now_ns,
                source=boundary,
                wall_ns=None if began_ns is None else now_ns - began_ns - (save_ns or 0) - activities.no_grad_ns,
                window=self._windows.label,
                stated=stated,
                facts=self._facts,
                save_ns=save_ns,
                draining=draining,
                activities=activities,
                gap_ns=activities.gap_ns(began_ns),
                hook_ns=self._take_hook_ns(),
            )
        )
        self._facts = StepFacts()

    def _end_step(self, boundary: str, emitter: object, stated: StatedStep) -> None:
        now_ns = time.monotonic_ns()
        is_alone = self._source.trains_alone(boundary, emitter)
        sizes = _ALONE if is_alone else self._find_steps(boundary, emitter)
        if sizes is None:
            return
        reevaluates = self._facts.reevaluates
        self._add_boundary(now_ns, boundary, stated)
        if not is_alone and self._source.waits:
            self._rows.write_pending(self.files.claim(), self.steps + len(self._rows))
            self._passes.discard_current()
        self._complete_steps(sizes, may_note=not is_alone)
        window_began_ns = time.monotonic_ns()
        if not (is_alone or self._source.is_settled or self._windows.is_recording):
            self._windows.hold()
        elif sizes:
            self._windows.on_step_end(self.steps)
        self._quiet.begin(self._windows.quiet_steps if is_alone and not reevaluates else 0, self.files)
        self._step_started_ns = time.monotonic_ns()
        self.hook_ns = window_began_ns - self._step_started_ns  # what the guard adds next, without the window

    def _find_steps(self, boundary: str, emitter: object) -> Sequence[int] | None:
        """The sizes of the steps that a boundary completes, where several objects train, or as many as are known."""
        return self._source.on_boundary(
            boundary, emitter, continues=not self._facts.has_begun, may_wait=not self._windows.is_recording
        )

    def _take_hook_ns(self) -> int:
        """How long all hooks took since the last boundary, and the thread that writes records."""
        hook_ns = self.hook_ns + self.files.take_writing_ns()
        for timer in (self.save_timer, self.activities):
            if timer.hook_ns:
                hook_ns += timer.take_hook_ns()
        return hook_ns

    def _complete_steps(self, sizes: Sequence[int], *, may_note: bool = True) -> None:
        """Write the training steps that are complete; each is so many of the boundaries that wait."""
        if not sizes:
            return
        is_first = self.steps == 0
        self.steps += len(sizes)
        if is_first:
            self.files.update_rank()
            self._describe_model()
        now_ns = time.monotonic_ns()
        peaks = self._memory.read_peaks(now_ns) if now_ns >= self._memory.due_ns else {}
        self._rows.write(self.files.claim(), sizes, self.steps, **peaks)
        if self._passes.is_in_use:
            self._passes.end_step(self.steps)
            self._write_passes()
        for text in self._rows.pop_notes(self._source.pop_note()) if may_note else ():
            self.note(text)

    def _write_passes(self) -> None:
        """Write the passes of the steps that the device is done with."""
        for record in self._passes.pop_finished():
            self.files.claim().write_micro_batches(record)
