"""The end of training steps: which boundary ends one, what was seen in it, and the profiler windows around it."""

from __future__ import annotations

import os
import threading
import time
from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from perfscope.hooks.facts import launched_rank
from perfscope.hooks.facts.device_memory import DeviceMemory
from perfscope.hooks.facts.steps import StatedStep, StepFacts
from perfscope.hooks.guard import call_safely, hook_entry
from perfscope.hooks.memory.recording import MemoryRecording
from perfscope.hooks.profiler.window_schedule import WindowSchedule
from perfscope.hooks.quick_hooks import QuietSteps
from perfscope.hooks.quiet_steps import begin, connect, reevaluates, take_over
from perfscope.hooks.rank_files import RankFiles
from perfscope.hooks.step_rows import ReachedBoundary, StepRows
from perfscope.hooks.step_source import StepSource
from perfscope.hooks.timers.activities import ActivityTimer
from perfscope.hooks.timers.exchanges import ExchangeTimer
from perfscope.hooks.timers.host_counters import HostCounters
from perfscope.hooks.timers.passes import PassTimer
from perfscope.hooks.timers.probes import PROBES
from perfscope.hooks.timers.saves import SaveTimer
from perfscope.hooks.trained_model import TrainedModel
from perfscope.hooks.watch.watch import Watch
from perfscope.wire.host import DeviceProbe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from perfscope.hooks.config import Config
    from perfscope.wire.requests import WindowRequest

_NOTHING_STATED = StatedStep()
_ALONE = (1,)


class TrainingSteps(TrainedModel):
    """The steps of one process; its methods are safe to call from training.

    Attributes:
        pid: The process it belongs to.
        save_timer: Times checkpoint saves.
        activities: Times validation, generation and compilation.
        passes: Times the passes of micro-batches through a pipeline.
        watch: Notices that training stalls or fails, and requests to this process.
    """

    def __init__(self, config: Config) -> None:
        self._quiet = QuietSteps()
        self.pid = os.getpid()
        self._memory = DeviceMemory()
        self._peaks: Mapping[str, Any] = {}
        self.watch = Watch(config, self)
        super().__init__(RankFiles(config, self._read_beside, self.watch))
        self.save_timer = SaveTimer(self)
        self.activities = ActivityTimer(self)
        self._source = StepSource(config.step_optimizer)
        self._counters = HostCounters()
        self._exchanges = ExchangeTimer()
        self._rows = StepRows(self._counters)
        self._facts = StepFacts()
        self._recording = MemoryRecording(config, self.files, self._model.trained)
        self._windows = WindowSchedule(config, self.files, self._recording)
        self._is_rpc_server = False
        self._main_thread = threading.main_thread().ident
        self.passes = PassTimer()
        vars(self).update(connect(self._quiet, self))

    @property
    def dead(self) -> bool:
        """Whether nothing more is recorded."""
        return self._quiet.dead

    @dead.setter
    def dead(self, dead: bool) -> None:
        self._quiet.dead = dead

    @property
    def steps(self) -> int:
        """Completed training steps."""
        return self._quiet.steps

    @steps.setter
    def steps(self, steps: int) -> None:
        self._quiet.steps = steps

    @property
    def hook_ns(self) -> int:
        """Time that the hooks took since the last step boundary."""
        return self._quiet.hook_ns

    @hook_ns.setter
    def hook_ns(self, hook_ns: int) -> None:
        self._quiet.hook_ns = hook_ns

    @property
    def _step_started_ns(self) -> int | None:
        return self._quiet.started_ns or None

    @_step_started_ns.setter
    def _step_started_ns(self, started_ns: int) -> None:
        self._quiet.started_ns = started_ns

    def take_over(self) -> None:
        """What the running step has shown in quick hooks is the guarded methods' from here on."""
        take_over(self)

    def end_guarded(self) -> None:
        """The running step is not quite like most others: the guarded methods end it."""
        self._quiet.last = 0

    @abstractmethod
    def abandon(self, reason: str) -> None:
        """End the capture after a failure: one line, and training goes on without it."""

    @hook_entry
    def arm(self, boundary: str) -> None:
        """A framework with a step boundary is in use: boundaries of lower priority are ignored from now on."""
        self._source.arm(boundary)
        if self._quiet.is_on and self._source._alone is None:
            take_over(self)

    @hook_entry
    def on_optimizer_built(self, optimizer: object) -> None:
        """An optimizer was built, after training began or shortly before."""
        take_over(self)
        self._facts.has_cleared = True
        self._source.add_optimizer(optimizer)

    @hook_entry
    def on_optimizer_step(self, optimizer: object, _result: object = None, _now_ns: int | None = None) -> None:
        """An outermost optimizer step returned, now."""
        if threading.get_ident() != self._main_thread and launched_rank.is_rpc_worker_thread():
            self._note_rpc_server()
            return
        take_over(self)
        self._facts.optimizer_steps += 1
        self._facts.reevaluates |= reevaluates(optimizer)
        self._model.on_optimizer_step(optimizer)
        if self._source.name == "optimizer" or self._source.counts("optimizer"):
            self._end_step("optimizer", optimizer, _NOTHING_STATED)

    @hook_entry
    def set_reducer(self, group: object) -> None:
        """DistributedDataParallel reduces gradients in a process group."""
        self._exchanges.groups.add_reducer(group)

    @hook_entry
    def on_scaler_update(self, scaler: object, *, has_stepped: bool | None) -> None:
        """A GradScaler finished an iteration, in which it tried an optimizer step or not; None where unknown."""
        optimizer_steps = self._facts.optimizer_steps + self._quiet.optimizer_steps
        skipped = None if has_stepped is None else has_stepped and optimizer_steps == 0
        self._end_step("grad_scaler", scaler, StatedStep(skipped=skipped))

    @hook_entry
    def on_step_end(
        self, boundary: str, emitter: object, read: Callable[[], dict[str, Any]] | None = None, **stated: Any
    ) -> None:
        """An object reached a step boundary; the rest, or what ``read()`` returns, are fields of StatedStep."""
        self._end_step(boundary, emitter, StatedStep(**(stated if read is None else read())))

    def _read_beside(self) -> dict[str, Any]:
        """What the thread that writes records reads: fields of StepRecord."""
        self._counters.find_launcher()
        return {**self._memory.read_beside(), **PROBES.read()}

    @hook_entry
    def arm_recorder(self) -> None:
        """Let torch remember collectives: a process group is about to be built."""
        call_safely(self.watch.arm)

    def is_training_thread(self) -> bool:
        """Whether this is the thread that trains."""
        return self._source.is_training_thread()

    def last_boundary_ns(self) -> int | None:
        """When the last step ended, on the monotonic clock."""
        return self._quiet.started_ns or None if self._quiet.steps else None

    def training_thread(self) -> int | None:
        """The thread that trains; None before the first step."""
        return self._source.thread

    def request_window(self, name: str, request: WindowRequest) -> None:
        """A window is asked for; called from the thread that writes records, and taken at the end of a step."""
        self._windows.request(name, request)
        self.end_guarded()

    def wake_for_requests(self) -> None:
        """Let the next step look at requests that wait, where it set out not to just as one came."""
        if self._windows.has_requests:
            self.end_guarded()

    def _note_rpc_server(self) -> None:
        if not self._is_rpc_server:
            self._is_rpc_server = True
            self.note("this process runs optimizer steps for other workers by RPC: the workers count them")

    def _end_step(self, boundary: str, emitter: object, stated: StatedStep) -> None:
        now_ns = time.monotonic_ns()
        is_alone = self._source.trains_alone(boundary, emitter)
        if self._quiet.is_on and not (is_alone or self._source.counts(boundary)):
            return  # it is a part of the step, which stays quiet
        take_over(self)
        is_pipeline = is_alone and self._facts.pipelined is not None
        if not is_pipeline:
            PROBES.discard()
        sizes = _ALONE if is_alone else self._find_steps(boundary, emitter)
        if sizes is None:
            return
        reevaluates = self._facts.reevaluates
        self._add_boundary(now_ns, boundary, stated)
        has_news = bool(self._peaks)
        if not is_alone and self._source.waits:
            self._rows.write_pending(self.files.claim(), self.steps + len(self._rows))
            self.passes.discard_current()
        self._complete_steps(sizes, may_note=not is_alone)
        window_began_ns = time.monotonic_ns()
        if not (is_alone or self._source.is_settled or self._windows.is_recording):
            self._windows.hold()
        elif sizes:
            self._windows.on_step_end(self.steps)
        is_quiet = is_alone and not reevaluates and not self._recording.watches_for_errors
        begin(self, self._windows.quiet_steps if is_quiet else 0)
        if self._recording.watches_for_errors:
            self._recording.on_any_step(self.steps + 1)
        if is_pipeline:
            self._probe_pipeline(has_news=has_news)
        self._step_started_ns = now_ns = time.monotonic_ns()
        self.hook_ns = window_began_ns - now_ns  # what the guard adds next, without the window

    def _probe_pipeline(self, *, has_news: bool) -> None:
        """Begin or end the probe of a pipeline's step, whose passes keep it from the quick hooks."""
        if self._windows.is_recording:
            PROBES.discard()
        elif PROBES.is_on:
            PROBES.finish(self.steps)
        elif has_news and self.steps >= PROBES.next_step:
            PROBES.start(self.steps)

    def _add_boundary(self, now_ns: int, boundary: str, stated: StatedStep) -> None:
        """Keep what was seen up to a boundary, until it is clear which training step it belongs to."""
        began_ns, activities = self._step_started_ns, self.activities.take_step()
        saves = self.save_timer
        save_ns, draining = saves.take_step_times() if saves.is_in_use else (None, None)
        wall_ns = None if began_ns is None else now_ns - began_ns - (save_ns or 0) - activities.no_grad_ns
        hook_ns = self._take_hook_ns()
        facts = self._facts
        facts.pipeline_micro_batches = self.passes.take_micro_batches(len(facts.passes), facts.micro_batches)
        if self.passes.is_in_use and wall_ns is not None and self._windows.label is None:
            self.passes.learn_cost(hook_ns, wall_ns)
        self._rows.add(
            ReachedBoundary(
                end_ns=now_ns,
                source=boundary,
                wall_ns=wall_ns,
                window=self._windows.label,
                stated=stated,
                facts=facts,
                save_ns=save_ns,
                draining=draining,
                activities=activities,
                gap_ns=activities.gap_ns(began_ns),
                hook_ns=hook_ns,
                counters=self._counters.read(),
                waits=self._exchanges.take(),
            )
        )
        self._facts = StepFacts()

    def _find_steps(self, boundary: str, emitter: object) -> Sequence[int] | None:
        """The sizes of the steps that a boundary completes, where several objects train, or as many as are known."""
        return self._source.on_boundary(
            boundary, emitter, continues=not self._facts.has_begun, may_wait=not self._windows.is_recording
        )

    def _take_hook_ns(self) -> int:
        """How long all hooks took since the last boundary, and the thread that writes records."""
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
        self.steps += len(sizes)
        if is_first:
            self.files.update_rank()
            self._describe_model()
            self._counters.begin()
            PROBES.begin(DeviceProbe)
            self._exchanges.begin(self._source.thread, self._counters.file, self.set_groups)
        peaks = self._peaks if self._memory.is_read_beside else self._memory.read_at_step()
        self._peaks = {}
        self._rows.write(self.files.claim(), sizes, self.steps, **peaks)
        if self.passes.is_in_use:
            self.passes.end_step(self.steps)
            self._write_passes()
        for text in self._rows.pop_notes(self._source.pop_note()) if may_note else ():
            self.note(text)

    def _write_passes(self) -> None:
        """Write the passes of the steps that the device is done with."""
        for record in self.passes.pop_finished():
            self.files.claim().write_micro_batches(record)
