"""The capture of one training process: what hooks report, and what it means.

Training is never harmed: every method that a hook calls is guarded. A failure ends the capture with one line and never
reaches the script. Nothing here waits for a device.

Methods of every step guard themselves, because a call of another function takes as long as their work.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from perfscope import wire
from perfscope.hooks.facts import launched_rank, model
from perfscope.hooks.facts.device_memory import DevicePeaks
from perfscope.hooks.facts.layout import RankLayout, splits_tensors
from perfscope.hooks.facts.model_search import ModelWatch
from perfscope.hooks.facts.setup import SetupWatch
from perfscope.hooks.guard import abandon, call_safely, captures, hook_entry, value_or_none
from perfscope.hooks.introspection import TRACERS, is_grad_enabled
from perfscope.hooks.memory.history import MemoryRecording
from perfscope.hooks.messages import write_message
from perfscope.hooks.open_window import OPEN_WINDOW, UNTIMED
from perfscope.hooks.places import Places
from perfscope.hooks.profiler.window import reserve_variable
from perfscope.hooks.profiler.window_schedule import WindowSchedule
from perfscope.hooks.rank_files import RankFiles
from perfscope.hooks.step import BatchWork, StepAccumulator, find_tensor
from perfscope.hooks.step_rows import Boundary, count_work, make_line
from perfscope.hooks.step_source import StepSource
from perfscope.hooks.timers.activities import ActivityTimer
from perfscope.hooks.timers.exchanges import ExchangeTimer
from perfscope.hooks.timers.host_counters import HostCounters
from perfscope.hooks.timers.passes import PassTimer, TimedPass
from perfscope.hooks.timers.probes import ONE_IN, PROBES
from perfscope.hooks.timers.saves import SaveTimer
from perfscope.hooks.watch.watch import Watch, last_error
from perfscope.wire.host import DeviceProbe
from perfscope.wire.records import EndRecord, to_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from perfscope.hooks.config import Config
    from perfscope.wire.requests import WindowRequest

_Value = TypeVar("_Value")
_Arguments = ParamSpec("_Arguments")
_clock, _get_ident = time.monotonic_ns, threading.get_ident
_ALONE = (1,)
_NO_SAMPLES = (
    "the samples of a step are unknown: several optimizers take turns, the model ran forward for each of them, and no "
    "data loader of torch was used"
)


class Capture:
    """One process's capture; its methods are safe to call from training."""

    def __init__(self, config: Config) -> None:
        launched_rank.note_moment("hooked_ns")
        self.pid = os.getpid()
        self.step = StepAccumulator()
        self._memory = DevicePeaks()
        self._peaks: Mapping[str, Any] = {}
        self.watch = Watch(config, self)
        self.files = RankFiles(config, self._read_beside, self.watch)
        self._layout: RankLayout | None = None
        self._model = ModelWatch()
        self.setup = SetupWatch()
        self.save_timer = SaveTimer(self)
        self.activities = ActivityTimer(self)
        self._source = StepSource(config.step_optimizer)
        self._counters = HostCounters()
        self._places: Places | None = None
        self._exchanges = ExchangeTimer()
        #: Boundaries of which it is not clear yet which steps they make.
        self._boundaries: list[Boundary] = []
        self._recording = MemoryRecording(config, self.files, self._model.trained)
        self._windows = WindowSchedule(config, self.files, self._recording)
        self.passes = PassTimer()
        self._noted: set[str] = set()
        self._main_thread = threading.main_thread().ident
        #: Reads the optimizer that stepped last, and whether it runs the model forward several times on the same batch.
        self._stepped: Callable[[], object] = lambda: None
        self._reevaluates = False
        self._has_begun = False
        reserve_variable()
        captures.add(self)
        atexit.register(self._finish_at_exit)

    @property
    def dead(self) -> bool:
        """Whether nothing more is recorded."""
        return self.step.dead

    @dead.setter
    def dead(self, dead: bool) -> None:
        self.step.dead = dead

    @property
    def steps(self) -> int:
        """Completed training steps."""
        return self.step.steps

    @property
    def hook_ns(self) -> int:
        """Time that the hooks took since the last step boundary."""
        return self.step.hook_ns

    @hook_ns.setter
    def hook_ns(self, hook_ns: int) -> None:
        self.step.hook_ns = hook_ns

    @hook_entry
    def run_guarded(
        self, action: Callable[_Arguments, _Value], *args: _Arguments.args, **kwargs: _Arguments.kwargs
    ) -> _Value:
        """Run a part of a hook, which reads a framework's own objects and reports them; None where it fails."""
        return action(*args, **kwargs)

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

    # What every step calls.
    def on_batch_loaded(self, batch: object, wait_ns: int, now_ns: int | None = None) -> None:
        """A data loader returned a batch, now or just now."""
        began_ns = _clock() if now_ns is None else now_ns
        step = self.step
        if step.dead:
            return
        try:
            if TRACERS.are_active():
                return
            source = self._source
            if _get_ident() != source.thread and not source.is_training_thread():
                step.add_batch(batch)  # it was loaded ahead: training does not wait for it
            elif step.is_in_call or not step.is_grad_enabled():
                self._on_evaluation(began_ns - wait_ns, wait_ns)
            elif step.started_ns:
                step.add_batch(batch)
                if not step.batch_ns:
                    step.batch_ns = began_ns - wait_ns
                step.batch_wait_ns += wait_ns
                step.data_wait_ns += wait_ns
                step.has_loader = True
            else:
                self.activities.on_first_batch(began_ns - wait_ns, began_ns)
                self._begin_training(began_ns)
                step.has_loader = True
                step.add_batch(batch)
        except BaseException as error:  # noqa: BLE001 - the hooks' outer edge, as in the guard
            abandon(self, error)
        step.hook_ns += _clock() - began_ns

    def on_forward(
        self,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        *,
        in_training_mode: bool = True,
        model: object = None,
    ) -> Callable[[], None] | None:
        """A wrapped model is about to run forward on one micro-batch; returns what to call after it, if anything."""
        began_ns = _clock()
        step, on_end = self.step, None
        if step.dead:
            return None
        try:
            if TRACERS.are_active():
                return None
            if model is not None and not step.steps:
                self.set_model(model)
            if step.is_in_call or not step.is_grad_enabled() or (step.has_training_mode and not in_training_mode):
                on_end = self._on_evaluation(began_ns)
            else:
                if not step.started_ns or self.activities.evaluation is not None:
                    self._begin_training(began_ns)
                elif _get_ident() == self._source.thread:
                    step.sign_ns = step.sign_ns or step.batch_ns or began_ns
                    step.batch_ns = step.batch_wait_ns = 0
                step.has_training_mode |= in_training_mode
                step.add_forward(args, kwargs)
                if PROBES.is_on and step.pipelined is None:
                    on_end = PROBES.on_forward()
        except BaseException as error:  # noqa: BLE001 - the hooks' outer edge, as in the guard
            abandon(self, error)
            return None
        step.hook_ns += _clock() - began_ns
        return on_end

    def on_model_call(
        self, args: tuple[object, ...], kwargs: dict[str, object], *, in_training_mode: bool
    ) -> Callable[[], None] | None:
        """The model that the search after the first step returned is about to run; see ``on_forward``."""
        if in_training_mode and not self._model.precision.has_entered:
            self.run_guarded(self._look_at_precision)
        return self.on_forward(args, kwargs, in_training_mode=in_training_mode)

    def on_gradients_cleared(self, optimizer: object, now_ns: int | None = None) -> None:
        """An optimizer clears its gradients, now: the first step has begun, at an unknown time."""
        began_ns = _clock() if now_ns is None else now_ns
        step, source = self.step, self._source
        if step.dead:
            return
        try:
            if source.alone is None or source.alone() is not optimizer:
                step.has_cleared |= not source.is_last(optimizer)
            if not step.steps:
                self._open_first_window()
            elif self.activities.evaluation is not None and source.is_training_thread():
                self.activities.end_evaluation(began_ns)
        except BaseException as error:  # noqa: BLE001 - the hooks' outer edge, as in the guard
            abandon(self, error)
        step.hook_ns += _clock() - began_ns

    @hook_entry
    def on_step_begin(self) -> None:
        """A framework that runs a whole step in one call is about to."""
        self._begin_training(_clock())

    def on_optimizer_step(self, optimizer: object, _result: object = None, now_ns: int | None = None) -> None:
        """An outermost optimizer step returned, now."""
        began_ns = _clock() if now_ns is None else now_ns
        step, source = self.step, self._source
        if step.dead:
            return
        try:
            if _get_ident() != self._main_thread and launched_rank.is_rpc_worker_thread():
                self._note_once("this process runs optimizer steps for other workers by RPC: the workers count them")
                return
            step.optimizer_steps += 1
            if self._reevaluates or self._stepped() is not optimizer:
                self._on_optimizer(optimizer)
            if source.name == "optimizer":
                self._end_step("optimizer", optimizer, None, began_ns)
            elif (source.alone is None or source.alone() is None) and source.counts("optimizer"):
                self._end_step("optimizer", optimizer, None, began_ns)  # what trained before is gone
        except BaseException as error:  # noqa: BLE001 - the hooks' outer edge, as in the guard
            abandon(self, error)
        step.hook_ns += _clock() - began_ns

    def on_scaler_update(self, scaler: object, *, has_stepped: bool | None) -> None:
        """A GradScaler finished an iteration; ``has_stepped``: it tried an optimizer step, None where unknown."""
        began_ns = _clock()
        if self.step.dead:
            return
        try:
            is_skipped = has_stepped and not self.step.optimizer_steps
            self._end_step("grad_scaler", scaler, {"skipped": True} if is_skipped else None, began_ns)
        except BaseException as error:  # noqa: BLE001 - the hooks' outer edge, as in the guard
            abandon(self, error)
        self.step.hook_ns += _clock() - began_ns

    @hook_entry
    def on_step_end(self, boundary: str, emitter: object, **stated: Any) -> None:
        """An object reached a step boundary; the rest is what its framework states.

        ``skipped`` means that the step did not update the weights. ``global_samples`` are over all ranks;
        ``micro_batches``, ``samples`` and ``tokens`` are of this rank. ``iteration`` is the framework's own number of
        the step, which a resumed run does not begin at 1. ``loss_scale`` may be stated, too.
        """
        self._end_step(boundary, emitter, stated, _clock())

    def _end_step(self, boundary: str, emitter: object, stated: Mapping[str, Any] | None, ended_ns: int) -> None:
        step = self.step
        is_alone, number = self._source.trains_alone(boundary, emitter), step.steps + 1
        if not is_alone or number >= step.next_event:
            if is_alone or self._source.counts(boundary):
                self._end_special_step(boundary, emitter, stated, ended_ns, is_alone=is_alone)
            return
        had_news, spent_ns, peaks, used = step.has_news, 0, None, None
        if had_news:
            step.has_news = False
            spent_ns, peaks = self.files.take_news()
        waits = self._exchanges.take() if self._exchanges.is_in_use else None
        # Where waits are timed on the host, it waits in each step, and what else it did decides who is late.
        if ended_ns - step.started_ns > step.long_ns or waits is not None or not number % ONE_IN:
            used = self._counters.read()
        if had_news or PROBES.is_on:
            self._advance_probe(number, has_news=had_news, is_wanted=not UNTIMED.rest)
        row = Boundary(
            ended_ns, boundary, step.started_ns, step.sign_ns or step.batch_ns, step.hook_ns + spent_ns,
            step.micro_batches, (step.forward_samples, step.forward_tokens),
            (step.loaded_samples, step.loaded_tokens), step.data_wait_ns if step.has_loader else None,
            stated, used, waits,
        )  # fmt: skip
        self._append((self._steps_file, make_line, (number, (row,), peaks, self._counters)))
        step.steps = number
        step.clear()
        step.learn_length(ended_ns - step.started_ns)
        step.started_ns, step.hook_ns = _clock(), 0

    def _advance_probe(self, step: int, *, has_news: bool, is_wanted: bool = True) -> None:
        if not is_wanted:
            PROBES.discard()
        elif PROBES.is_on:
            PROBES.finish(step)
        elif has_news and step >= PROBES.next_step:
            PROBES.start(step)

    # The ends of few steps.
    def _end_special_step(
        self, boundary: str, emitter: object, stated: Mapping[str, Any] | None, now_ns: int, *, is_alone: bool
    ) -> None:
        step = self.step
        is_pipeline = is_alone and step.pipelined is not None
        if not is_pipeline:
            PROBES.discard()
        sizes: Sequence[int] | None = _ALONE
        if not is_alone:
            may_wait = not self._windows.is_recording
            sizes = self._source.on_boundary(boundary, emitter, continues=not step.has_begun, may_wait=may_wait)
        if sizes is None:
            if not (step.steps or self.is_training_thread()):
                text = "optimizers step in another thread than the one that loads data: they count no steps"
                if text not in self._noted:
                    write_message(text)  # nothing may ever claim the files that notes are kept in
                self._note_once(text)
            return
        is_plain = is_alone and not step.reevaluates and not self._recording.watches_for_errors
        self._add_boundary(now_ns, boundary, stated)
        has_news = bool(self._peaks)
        if not is_alone and self._source.waits:
            self.passes.discard_current()
        self._complete_steps(sizes, may_note=not is_alone)
        window_began_ns = _clock()
        if not (is_alone or self._source.is_settled or self._windows.is_recording):
            self._windows.hold()
        elif sizes:
            self._windows.on_step_end(step.steps)
        self._find_next_event(self._windows.quiet_steps if is_plain else 0)
        if self._recording.watches_for_errors:
            self._recording.on_any_step(step.steps + 1)
        if is_pipeline:
            self._advance_probe(step.steps, has_news=has_news, is_wanted=not self._windows.is_recording)
        step.started_ns = now_ns = _clock()
        step.hook_ns = window_began_ns - now_ns  # what is added next, without the window

    def _find_next_event(self, last: int) -> None:
        """A step ended: up to so many completed steps the next ones are like most others, unless something is on."""
        step = self.step
        UNTIMED.rest = False
        is_busy = self.activities.evaluation is not None or step.is_in_call or self.save_timer.is_in_use
        if not last or is_busy or self.passes.is_in_use or not self._memory.is_read_beside:
            step.next_event = 0
            return
        step.next_event = self.passes.rest(step.steps, last) + 1
        if self.activities.has_spans or self.files.claim().late.error is not None:  # also if it came meanwhile
            step.next_event = 0

    def _add_boundary(self, now_ns: int, boundary: str, stated: Mapping[str, Any] | None) -> None:
        step, activities = self.step, self.activities.take_step()
        save_ns, draining = self.save_timer.take_step_times() if self.save_timer.is_in_use else (None, None)
        seen = 0 if step.passes is None else len(step.passes)
        micro_batches = self.passes.take_micro_batches(seen, step.micro_batches) or step.micro_batches
        row = Boundary(
            now_ns, boundary, step.started_ns, step.sign_ns, self._take_hook_ns(), micro_batches,
            (step.forward_samples, step.forward_tokens), (step.loaded_samples, step.loaded_tokens),
            step.data_wait_ns if step.has_loader else None, stated, self._counters.read(), self._exchanges.take(),
            self._windows.label, save_ns, draining, activities, step.pipelined, step.reevaluates,
        )  # fmt: skip
        self._boundaries.append(row)
        step.clear()

    def _take_hook_ns(self) -> int:
        self.step.has_news = False
        written_ns, peaks = self.files.take_news()
        self._peaks = peaks or self._peaks
        hook_ns = self.hook_ns + written_ns
        for timer in (self.save_timer, self.activities):
            if timer.hook_ns:
                hook_ns += timer.take_hook_ns()
        return hook_ns

    def _complete_steps(self, sizes: Sequence[int], *, may_note: bool = True) -> None:
        """Write the training steps that are complete; each is so many of the boundaries that wait."""
        if not sizes:
            return
        is_first = self.steps == 0
        self.step.steps += len(sizes)
        if is_first:
            self._begin_records()
        peaks = self._peaks if self._memory.is_read_beside else self._memory.read_at_step()
        self._peaks = {}
        recorder = self.files.claim()
        for number, size in enumerate(sizes, self.steps - len(sizes) + 1):
            boundaries, self._boundaries = self._boundaries[:size], self._boundaries[size:]
            recorder.late.add(recorder.steps_file, make_line, number, boundaries, peaks, self._counters)
            states = (boundaries[-1].stated or {}).get("samples") or not any(each.micro_batches for each in boundaries)
            if size > 1 and may_note and not (states or count_work(boundaries)[0]):
                self._note_once(_NO_SAMPLES)
        if self.passes.is_in_use:
            self.passes.end_step(self.steps)
            self._write_passes()
        text = self._source.pop_note() if may_note else ""
        if text:
            self._note_once(text)

    def _begin_records(self) -> None:
        self.files.update_rank()
        self._describe_model()
        self._counters.begin()
        PROBES.begin(DeviceProbe)
        self._exchanges.begin(self._source.thread, self._counters.file)
        step, recorder, torch = self.step, self.files.claim(), sys.modules["torch"]
        self._append, self._steps_file = recorder.late.append, recorder.steps_file
        step.is_grad_enabled = getattr(torch, "is_grad_enabled", is_grad_enabled)
        step.tensor_class = getattr(torch, "Tensor", None)

        def on_turn() -> None:
            step.has_news = True
            if recorder.late.error is not None or self._windows.has_requests:  # one may have come as a step ended
                step.next_event = 0

        recorder.late.on_turn = on_turn
        self._places = Places(
            step, self._source.thread or 0, lambda content: recorder.replace(wire.PLACES_FILE, content)
        )
        recorder.late.glance = self._places.look

    def _write_passes(self) -> None:
        for record in self.passes.pop_finished():
            self.files.claim().append_late(wire.MICRO_BATCHES_FILE, record)

    def _read_beside(self) -> dict[str, Any]:
        self._counters.find_launcher()
        return {**self._memory.read_beside(), **PROBES.read()}

    def _on_optimizer(self, optimizer: object) -> None:
        self._reevaluates = "max_eval" in getattr(optimizer, "defaults", ())
        if self._reevaluates:
            self.step.reevaluates, self.step.next_event = True, 0
        self._stepped = weakref.ref(optimizer)
        self._model.on_optimizer_step(optimizer)

    # What few steps call.
    @hook_entry
    def arm(self, boundary: str) -> None:
        """A framework with a step boundary is in use: boundaries of lower priority are ignored from now on."""
        self._source.arm(boundary)

    @hook_entry
    def on_optimizer_built(self, optimizer: object) -> None:
        """An optimizer was built, after training began or shortly before."""
        self.step.has_cleared = True
        self._source.add_optimizer(optimizer)

    @hook_entry
    def on_pipeline_batch(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """The whole batch of a step is about to be cut into micro-batches; middle stages receive none."""
        if TRACERS.are_active():
            return
        self._begin_training(_clock())
        self.step.pipelined = (self.step.pipelined or BatchWork()).with_batch(find_tensor((args, kwargs)))
        self.step.next_event = 0

    @hook_entry
    def on_loader_started(self, wait_ns: int) -> None:
        """The iterator of a data loader was made, and its workers started."""
        began_ns = _clock() - wait_ns
        if not self.is_training_thread():
            return
        if self.step.is_in_call or not is_grad_enabled():
            self._on_evaluation(began_ns, wait_ns)
        elif self.step.started_ns:
            self.activities.on_batch(began_ns, wait_ns)
            self.step.add_wait(wait_ns)
        else:
            self.activities.on_first_batch(began_ns, began_ns + wait_ns)

    @hook_entry
    def on_loader_ended(self, wait_ns: int) -> None:
        """A data loader had no more batches, and its workers ended."""
        if self.is_training_thread() and not self.activities.on_loader_end(_clock(), wait_ns):
            self.step.add_wait(wait_ns if self.step.started_ns else 0)

    @hook_entry
    def arm_recorder(self) -> None:
        """Let torch remember collectives: a process group is about to be built."""
        call_safely(self.watch.arm)

    def is_training_thread(self) -> bool:
        """Whether this is the thread that trains."""
        return self._source.is_training_thread()

    @property
    def last_boundary_ns(self) -> int | None:
        """When the last step ended, on the monotonic clock."""
        return self.step.started_ns or None if self.step.steps else None

    @property
    def training_thread(self) -> int | None:
        """The thread that trains; None before the first step."""
        return self._source.thread

    def request_window(self, name: str, request: WindowRequest) -> None:
        """A window is asked for; called from the thread that writes records, and taken at the end of a step."""
        self._windows.request(name, request)
        self.step.next_event = 0

    def _note_once(self, text: str) -> None:
        if text not in self._noted:
            self._noted.add(text)
            self.note(text)

    def _begin_training(self, now_ns: int) -> None:
        if not self.step.started_ns:
            self.activities.on_first_step()
            self._open_first_window()
            self.step.started_ns = now_ns = _clock()
        if self.is_training_thread():
            self.activities.on_training(now_ns)

    def _on_evaluation(self, began_ns: int, wait_ns: int = 0) -> Callable[[], None] | None:
        if not self.is_training_thread():
            return None
        self.step.data_wait_ns -= self.activities.on_evaluation(began_ns, wait_ns)
        return self.activities.on_evaluation_forward_end

    def _open_first_window(self) -> None:
        if not self._has_begun:
            self._has_begun = True
            self._source.set_training_thread()
            window_began_ns = _clock()
            self._windows.on_step_end(0)
            self._recording.watch_for_errors(1)
            self.step.hook_ns -= _clock() - window_began_ns

    # Micro-batches.
    def on_pass_begin(
        self, kind: str, *, microbatch: int, stage: int, stages: int, device: int, devices: int
    ) -> TimedPass | None:
        """A pass of one micro-batch is about to be launched; called inside of ``run_guarded``.

        The arguments are those of ``PassTimer.begin``. None in a step whose passes are not timed.
        """
        if self.activities.awaits_training:
            self._begin_training(_clock())
        step = self.step
        step.next_event = 0
        if kind == "F":
            if step.passes is None:
                step.passes = set()
            step.passes.add(microbatch)
            UNTIMED.forwards += 1
        in_window = OPEN_WINDOW.records_ranges and not TRACERS.are_active()
        if (step.steps + 1) & self.passes.untimed and not in_window:
            UNTIMED.rest = True
            return None
        return self.passes.begin(kind, microbatch, stage, stages, device, devices, in_window=in_window)

    @hook_entry
    def on_pass_end(self, timed_pass: TimedPass | None) -> None:
        """All of that pass was launched."""
        if timed_pass is not None:
            self.passes.end(timed_pass)

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
        has_failed = last_error() is not None
        if has_failed:  # first of all: a launcher ends this process when it sees that another one failed
            call_safely(self.files.claim)  # it may have failed before its rank was known
            call_safely(self.watch.finish)
        self._complete_steps(self._source.finish())
        unused_choice = self._source.describe_unused_choice()
        if unused_choice:
            write_message(unused_choice)
            self.note(unused_choice)
        self._write_passes()
        self._describe_setup()
        self.save_timer.finish()
        if not has_failed:
            call_safely(self.watch.finish)
        if self._places is not None:
            call_safely(self._places.write)
        self.files.close()
        self._windows.close_at_exit(self.steps, failed=hasattr(sys, "last_exc") or hasattr(sys, "last_type"))
        if self.files.claimed_rank() is not None:
            spans = tuple(self.activities.take_step().spans)
            self.files.claim().append(wire.EVENTS_FILE, EndRecord(time.monotonic_ns(), spans or None))

    def _finish_at_exit(self) -> None:
        with contextlib.suppress(BaseException):  # of a signal: the capture has ended, and so does the process
            self.finish()
        with contextlib.suppress(BaseException):
            if os.getpid() == self.pid:
                self._windows.stop_at_exit()

    # The model.
    @hook_entry
    def set_model(
        self,
        *parts: Any,
        config: dict[str, Any] | None = None,
        zero_stage: int | None = None,
        dtype: str | None = None,
    ) -> None:
        """A module is trained, or the parts of a model that this rank has; only the first call counts.

        ``config`` and ``dtype``, which it computes in, are what the framework was configured with.
        """
        self._model.set_parts(parts, config or {}, zero_stage)
        if dtype is not None:
            self._model.precision.engine = dtype
        if self.steps == 0:
            self._model.precision.on_forward()

    @hook_entry
    def add_model_part(self, part: object) -> None:
        """This rank holds one more part of a model that is cut into stages."""
        if self.steps == 0:
            self._model.add_part(part)

    @property
    def wants_output(self) -> bool:
        """Whether the graph of a model's output is still to be looked at."""
        return not self._model.precision.is_settled

    @hook_entry
    def on_model_output(self, output: object) -> bool:
        """A model that trains returned; whether further outputs are wanted."""
        if TRACERS.are_active():
            return self.wants_output
        if self.wants_output and is_grad_enabled() and self._model.precision.on_output(output) and self.steps:
            self._describe_model()
        return self.wants_output

    @hook_entry
    def on_recompute(self) -> None:
        """A part of the model is about to run so that its activations are recomputed."""
        self._model.on_recompute()

    @hook_entry
    def on_batch(self, batch: object) -> None:
        """A data loader returned one of its first batches."""
        call_safely(lambda: self.setup.add_batch(batch))  # a mapping of the script's own may do anything

    def note(self, text: str) -> None:
        """Keep something that a reader of the report must know."""
        self.files.note(text)

    def _look_at_precision(self) -> None:
        if not TRACERS.are_active() and self._model.precision.on_forward():
            self._describe_model()

    def _describe_model(self) -> None:
        record, error = call_safely(lambda: self._model.record(self.on_model_call, self.on_model_output))
        if error is not None:  # a model that cannot be described must not cost the steps
            self.note(f"the model is not recorded: {error!r}")
        elif record is not None:
            self.files.claim().replace(wire.MODEL_FILE, to_line(record))
        if self._model.uncounted:
            self.note(self._model.uncounted)
        self._describe_setup()

    def _describe_setup(self) -> None:
        if not self.steps:
            return
        record, error = call_safely(lambda: self.setup.take_record(self._model.optimizer))
        if error is not None:
            self.note(f"the set-up of training is not recorded: {error!r}")
        if record is not None:
            self.files.claim().replace(wire.SETUP_FILE, to_line(record))

    # The rank's position.
    @hook_entry
    def on_process_group(self) -> None:
        """torch.distributed knows the rank."""
        if not launched_rank.is_daemon_process():
            self.files.claim()

    @hook_entry
    def set_layout(self, coordinates: dict[str, int], sizes: dict[str, int]) -> None:
        """A framework states this rank's coordinates in all process groups, and their sizes, by axis."""
        self._position().set_framework_layout(coordinates, sizes)
        self._write_layout()

    @hook_entry
    def set_axis(self, axis: str, read: Callable[[], Sequence[int]]) -> None:
        """A wrapper works on one axis of parallelism; ranks that cannot be read cost the layout alone."""
        ranks = value_or_none(read)
        if ranks:
            self._position().set_axis(axis, ranks)
            self._write_layout()

    @hook_entry
    def set_axis_group(self, axis: str, group: object) -> None:
        """A wrapper works on one axis of parallelism, in this process group; None is the one of all ranks.

        Groups that torch does not know, as those of fault-tolerant trainings, have no ranks.
        """
        distributed = sys.modules["torch.distributed"]
        own = distributed.group.WORLD if group is None else group
        self.set_axis(axis, lambda: distributed.get_process_group_ranks(own))

    @hook_entry
    def set_mesh(self, mesh: Any) -> None:
        """A mesh of ranks is used; one whose ranks cannot be read costs the layout alone."""
        value_or_none(lambda: self._position().set_mesh(mesh))
        self._write_layout()

    @hook_entry
    def set_sharding_mesh(self, mesh: Any) -> None:
        """Parameters are sharded over a mesh, or over some dimensions of one: those of experts are parts of it."""
        find_root = getattr(mesh, "_get_root_mesh", None)  # absent in old versions
        root = None if find_root is None else value_or_none(find_root)
        self.set_mesh(mesh if root is None else root)
        self.set_axis("dp", lambda: mesh.mesh.flatten().tolist())

    @hook_entry
    def set_tensor_mesh(self, mesh: Any, plan: Any) -> None:
        """A module is split over a mesh by a plan, which is tensor parallelism if the mesh or the plan says so."""
        if value_or_none(lambda: mesh.ndim == 1 and splits_tensors(mesh, plan)):
            model.add_tensor_mesh(mesh)
            self.set_axis("tp", lambda: mesh.mesh.flatten().tolist())

    def _position(self) -> RankLayout:
        position = launched_rank.rank_and_world_size()
        is_alone = position[1] == 1  # also where its groups were destroyed
        if self._layout is None or not (is_alone or self._layout.position == position):
            self._layout = RankLayout(*position)
        return self._layout

    def _write_layout(self) -> None:
        layout = self._position()
        self.files.write_layout(layout.document(), layout.lines())
