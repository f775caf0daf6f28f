"""The capture of one training process: what hooks report of its passes, batches and ranges, and how it ends.

The hooks around frameworks report what happens; this class and those that it extends decide what it means. Training is
never harmed: every method that a hook calls is guarded, a failure ends the capture with one line and never reaches the
script, and nothing here waits for a device.
"""

from __future__ import annotations

import atexit
import sys
import time
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from perfscope.hooks.config import Config, read_config
from perfscope.hooks.facts import startup
from perfscope.hooks.guard import call_safely, end_in_children, hook_entry
from perfscope.hooks.introspection import is_grad_enabled, is_traced_alone
from perfscope.hooks.messages import write_message
from perfscope.hooks.open_window import OPEN_WINDOW
from perfscope.hooks.profiler.cupti import reserve_variable
from perfscope.hooks.quiet_steps import take_over
from perfscope.hooks.timers.passes import TimedPass
from perfscope.hooks.timers.untimed_passes import UNTIMED
from perfscope.hooks.training_steps import TrainingSteps
from perfscope.hooks.watch.evidence import last_error
from perfscope.wire.records import EndRecord

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

_Value = TypeVar("_Value")
_Arguments = ParamSpec("_Arguments")


class Capture(TrainingSteps):
    """One process's capture; its methods are safe to call from training."""

    def __init__(self, config: Config) -> None:
        startup.note_hooked()
        super().__init__(config)
        self._has_begun = False
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
    def on_gradients_cleared(self, optimizer: object, _now_ns: int | None = None) -> None:
        """An optimizer clears its gradients, now: the first step has begun, at an unknown time."""
        take_over(self)
        self._facts.has_cleared |= not self._source.is_last(optimizer)
        if self.steps == 0:
            self._open_first_window()
        elif self.activities.is_evaluating and self.is_training_thread():
            self.activities.end_evaluation(time.monotonic_ns())

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
        if is_traced_alone():
            return None
        take_over(self)
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
        take_over(self)
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
        take_over(self)
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
        take_over(self)
        if self.is_training_thread() and not self.activities.on_loader_end(time.monotonic_ns(), wait_ns):
            self._facts.add_wait(wait_ns if self._has_step_begun else 0)

    # Micro-batches and ranges.
    def on_pass_begin(
        self, kind: str, *, microbatch: int, stage: int, stages: int, device: int, devices: int
    ) -> TimedPass | None:
        """A pass of one micro-batch is about to be launched; the arguments are fields of Pass.

        Returns None in a step whose passes are not timed: the wrappers only count its further passes.

        It is called inside of ``run_guarded``. A step makes many of these calls, and each function in them takes
        microseconds, since a pass leaves none of it in the caches of the processor.
        """
        if self.activities.awaits_training:
            self._begin_training()
        if kind == "F":
            self._facts.passes.add(microbatch)
            UNTIMED.forwards += 1
        in_window = OPEN_WINDOW.records_ranges
        if (self.steps + 1) & self.passes.untimed and not in_window:
            UNTIMED.rest = True
            return None
        return self.passes.begin((kind, microbatch, stage, stages, device, devices), in_window=in_window)

    @hook_entry
    def on_pass_end(self, timed_pass: TimedPass | None) -> None:
        """All of that pass was launched."""
        if timed_pass is not None:
            self.passes.end(timed_pass)

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
    def on_profiler_start(self, profiler: object) -> None:
        """Somebody starts a profiler, which may be ours."""
        self._windows.on_profiler_start(profiler)

    @hook_entry
    def on_profiler_end(self, profiler: object) -> None:
        """Somebody ends a profiler, which may be ours."""
        self._windows.on_profiler_end(profiler)

    @hook_entry
    def finish(self) -> None:
        """The interpreter ends; an active profiler would crash it, so an open window is closed first."""
        if last_error() is not None:  # first of all: a launcher ends this process when it sees that another one failed
            self._keep_failure()
        take_over(self)
        self._complete_steps(self._source.finish())
        unused_choice = self._source.describe_unused_choice()
        if unused_choice:
            write_message(unused_choice)
            self.note(unused_choice)
        self._write_passes()
        self._describe_setup()
        self.save_timer.finish()
        if last_error() is None:
            call_safely(self.watch.finish)
        self.files.close()
        self._windows.close_at_exit(self.steps, failed=hasattr(sys, "last_exc") or hasattr(sys, "last_type"))
        if self.files.claimed_rank() is not None:
            spans = tuple(self.activities.take_step().spans)
            self.files.claim().write_event(EndRecord(time.monotonic_ns(), spans or None))

    def _keep_failure(self) -> None:
        """Keep why the interpreter ends."""
        if self.files.claimed_rank() is None:
            call_safely(self.files.claim)  # it failed before its rank was known, as where others never came
        call_safely(self.watch.finish)

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
        take_over(self)
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
            self._recording.watch_for_errors(1)
            self.hook_ns -= time.monotonic_ns() - window_began_ns
