"""The capture of one training process: counts steps, opens and closes profiler windows, writes records.

The hooks around frameworks report what happens; this class decides what it means. Training is never harmed: every entry
is guarded, a failure ends the capture with one line and never reaches the script, and nothing here waits for a device.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from perfscope import wire
from perfscope.hooks.config import Config
from perfscope.hooks.facts import identity
from perfscope.hooks.facts.device_memory import DeviceMemory
from perfscope.hooks.facts.layout import Layout
from perfscope.hooks.facts.model_watch import ModelWatch
from perfscope.hooks.facts.secrets import redact_text
from perfscope.hooks.facts.steps import Stated, StepFacts
from perfscope.hooks.guard import hook_entry, value_or_none, write_message
from perfscope.hooks.nvml.start import start_sampler
from perfscope.hooks.profiler.compress import compress_queue
from perfscope.hooks.profiler.window_schedule import WindowSchedule
from perfscope.hooks.recorder import Recorder
from perfscope.hooks.step_source import StepSource
from perfscope.hooks.timers.passes import Pass, PassTimer
from perfscope.hooks.timers.saves import SaveTimer
from perfscope.wire import NoteRecord, StepRecord

if TYPE_CHECKING:
    from collections.abc import Callable

_WATCHDOG_S = 20.0


class Capture:
    """One process's capture.

    Attributes:
        config: What to record.
        dead: True after a failure: nothing more is recorded.
        pid: The process it belongs to; a forked child has none.
        steps: Completed training steps.
        hook_ns: Time that the hooks took since the last step boundary.
        saves: Times checkpoint saves.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.dead = False
        self.pid = os.getpid()
        self.steps = 0
        self._source = StepSource()
        self._facts = StepFacts()
        self._step_started_ns: int | None = None
        self.hook_ns = 0
        self.saves = SaveTimer(self)
        self._windows = WindowSchedule(config, self)
        self._begun = False
        self._serves = False
        self._recorder: Recorder | None = None
        self._passes = PassTimer()
        self._memory = DeviceMemory()
        self._rank: wire.RankRecord | None = None
        self._notes: list[str] = []
        self._model = ModelWatch()
        self._layout = Layout()
        self._written_layout: dict[str, Any] | None = None
        atexit.register(self.finish)

    # What the hooks report.

    @hook_entry
    def tell(self, report: Callable[[Capture], None]) -> None:
        """Read a framework's own objects inside the guard: ``report`` calls the methods below with what it finds."""
        report(self)

    @hook_entry
    def arm(self, source: str) -> None:
        """A framework that will tell steps is being built: simpler sources below it are ignored from now on."""
        self._source.arm(source)

    @hook_entry
    def process_group_ready(self) -> None:
        """torch.distributed knows the rank."""
        if not identity.is_daemon_process():
            self._activate()

    @hook_entry
    def adopt_process_group(self) -> None:
        """Learn the rank of a group that was there before the capture."""
        if _group_exists():
            self._activate()

    @hook_entry
    def forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A wrapped model is about to run forward on one micro-batch."""
        if not sys.modules["torch"].is_grad_enabled():
            return
        self._training_begins()
        self._facts.add_forward(args, kwargs)

    @hook_entry
    def trains(
        self, module: Any, *more: Any, config: dict[str, Any] | None = None, zero_stage: int | None = None
    ) -> None:
        """A module is trained; the first one is the model, with the other parts of it that this rank holds.

        ``config`` is what the framework was told about it, beside what the module says itself.
        """
        self._model.trains((module, *more), config or {}, zero_stage)
        if self.steps == 0:
            self._model.computes()

    @hook_entry
    def called(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The model that was found after the first step is about to run."""
        if self._model.computes():
            self._describe_model()
        self.forward(args, kwargs)

    @hook_entry
    def recomputes(self) -> None:
        """A part of the model is about to run so that its activations are recomputed."""
        self._model.is_recomputed()

    @hook_entry
    def gradients_cleared(self) -> None:
        """An optimizer forgot its gradients: the first step has begun, but nobody knows when."""
        if self.steps == 0:
            self._open_first_window()

    @hook_entry
    def step_begins(self) -> None:
        """A framework that runs a whole step in one call is about to."""
        self._training_begins()

    @hook_entry
    def batch_enters(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The whole batch of a step is about to be cut into micro-batches."""
        self._training_begins()
        self._facts.add_whole_batch(args, kwargs)

    @hook_entry
    def batch_loaded(self, batch: Any, wait_ns: int) -> None:
        """A data loader handed a batch out."""
        if not sys.modules["torch"].is_grad_enabled():
            return
        self._training_begins()
        self._facts.add_batch(batch, wait_ns)

    @hook_entry
    def optimizer_stepped(self, optimizer: object) -> None:
        """An outermost optimizer step returned."""
        if identity.is_rpc_worker_thread():
            self._note_service()
            return
        self._facts.optimizer_steps += 1
        self._model.steps(optimizer)
        if self._source.name in (None, "optimizer"):
            self.boundary("optimizer", optimizer)

    def _note_service(self) -> None:
        if not self._serves:
            self._serves = True
            self.note("this process steps optimizers for others, who ask for it by RPC: those steps are theirs")

    @hook_entry
    def scaler_updated(self, scaler: object, *, stepped: bool | None) -> None:
        """A GradScaler finished an iteration; ``stepped`` is whether it tried an optimizer step, None where unknown."""
        skipped = None if stepped is None else stepped and self._facts.optimizer_steps == 0
        self.boundary("grad_scaler", scaler, skipped=skipped)

    @hook_entry
    def boundary(self, source: str, key: object, **stated: Any) -> None:
        """A source says that one of its objects, the key, completed a training step; the rest are fields of Stated."""
        now_ns = time.monotonic_ns()
        if not self._source.ends_a_step(source, key):
            return
        self._activate()
        self.steps += 1
        if self._source.moved:
            self._source.moved = False
            self.note(f"from step {self.steps} on, another {source} ends a step: several take turns in this training")
        self._write(self._record(now_ns, source, Stated(**stated)))
        self._facts = StepFacts()
        self._passes.step_ends(self.steps)
        self._write_passes()
        moving_ns = time.monotonic_ns()
        self._windows.on_step_end(self.steps)
        self._step_started_ns = time.monotonic_ns()
        self.hook_ns = moving_ns - self._step_started_ns  # what the guard adds next, without the window

    @hook_entry
    def pass_begins(self, which: Pass | Callable[[], Pass | None]) -> Any:
        """A pass of one micro-batch is about to be launched; what is returned is for ``pass_ends``.

        Where it has to be found out which pass it is, ``which`` does so, and answers None for one that is not timed.
        """
        found = which() if callable(which) else which
        if found is None:
            return None
        self._training_begins()
        self._facts.add_pass(found.kind, found.microbatch)
        return self._passes.begins(found, marked=self._windows.is_open)

    @hook_entry
    def pass_ends(self, token: Any) -> None:
        """All of that pass was launched."""
        self._passes.ends(token)

    @hook_entry
    def range_begins(self, name: str) -> object:
        """Something that deserves a name in the timeline begins; None outside windows, else for ``range_ends``."""
        if not self._windows.is_open:
            return None
        span = sys.modules["torch"].profiler.record_function(name)
        span.__enter__()
        return span

    @hook_entry
    def range_ends(self, span: Any) -> None:
        """It ended."""
        span.__exit__(None, None, None)

    @hook_entry
    def coordinates(self, value: dict[str, Any]) -> None:
        """A framework told this rank's place in all process groups."""
        self._layout.whole = True
        self._write_layout(value)

    @hook_entry
    def axis(self, axis: str, index: int, size: int) -> None:
        """A wrapper told this rank's place among the ranks of one axis of parallelism."""
        if not self._layout.whole:
            self._layout.learn_axis(axis, index, size)
            self._write_layout(self._layout.document(identity.rank_and_world_size()[1]))

    @hook_entry
    def mesh(self, mesh: Any) -> None:
        """A mesh of ranks is used."""
        if not self._layout.whole:
            world_size = identity.rank_and_world_size()[1]
            self._layout.learn_mesh(mesh, world_size)
            self._write_layout(self._layout.document(world_size))

    @hook_entry
    def holds(self, part: Any) -> None:
        """This rank holds one more part of a model that is cut into stages."""
        if self.steps == 0:
            self._model.holds(part)

    @hook_entry
    def profiler_starts(self) -> None:
        """Somebody starts a profiler, which may be ours."""
        self._windows.on_profiler_start()

    @hook_entry
    def group_is_destroyed(self) -> None:
        """The default process group is about to go: an open window is written while the device still answers."""
        self._windows.close(self.steps)

    @hook_entry
    def finish(self) -> None:
        """The interpreter ends; an active profiler would crash it, so an open window is closed first."""
        failed = hasattr(sys, "last_exc") or hasattr(sys, "last_type")
        self._write_passes()
        self.saves.finish()
        if not failed:
            self._windows.close(self.steps)
            compress_queue()
            return
        if not self._windows.is_open:
            return
        watchdog = threading.Timer(_WATCHDOG_S, os._exit, (1,))
        watchdog.daemon = True
        watchdog.start()
        self._windows.close(self.steps, after_failure=True)
        watchdog.cancel()

    def note(self, text: str) -> None:
        """Keep something that a reader of the report must know."""
        text = redact_text(text)  # it may quote an error, and that a path or an address
        if self._recorder is None:
            self._notes.append(text)
            return
        try:
            self._recorder.write_event(NoteRecord(text))
        except OSError:
            write_message(text)

    def abandon(self, reason: str) -> None:
        """End the capture after a failure: one line, and training goes on without it."""
        if self.dead:
            return
        self.dead = True
        write_message(f"capture ends in process {self.pid}, training goes on: {reason}")
        try:
            self._windows.discard()
        except Exception as error:  # noqa: BLE001 - the hooks' outer edge, once more
            write_message(f"the profiler could not be stopped: {error!r}")
        value_or_none(lambda: self.note(f"capture ended after step {self.steps}: {reason}"))

    # Steps.

    def _training_begins(self) -> None:
        """The first step begins here, as far as can be seen."""
        if self._step_started_ns is None and self.steps == 0:
            self._open_first_window()
            self._step_started_ns = time.monotonic_ns()

    def _open_first_window(self) -> None:
        if not self._begun:
            self._begun = True
            self._source.bind_thread()
            moving_ns = time.monotonic_ns()
            self._windows.on_step_end(0)
            self.hook_ns -= time.monotonic_ns() - moving_ns

    def _record(self, now_ns: int, source: str, stated: Stated) -> StepRecord:
        facts = self._facts
        save_ns, draining = self.saves.end_of_step()
        return StepRecord(
            step=self.steps,
            end_ns=now_ns,
            source=source,
            wall_ns=None if self._step_started_ns is None else now_ns - self._step_started_ns - (save_ns or 0),
            window=self._windows.label,
            skipped=stated.skipped or None,
            micro_batches=stated.micro_batches or len(facts.passes) or facts.micro_batches or None,
            iteration=stated.iteration,
            samples=stated.samples or facts.work.samples or None,
            tokens=stated.tokens or facts.work.tokens or None,
            global_samples=stated.global_samples,
            data_wait_ns=facts.data_wait_ns if facts.loader_seen else None,
            save_ns=save_ns,
            draining=draining,
            hook_ns=self.hook_ns,
            loss_scale=stated.loss_scale,
            **self._memory.read_peaks(),
        )

    def _write_passes(self) -> None:
        """Write the passes of the steps that the device is done with."""
        for record in self._passes.ready():
            assert self._recorder is not None
            self._recorder.write_micro_batches(record)

    def _write(self, record: StepRecord) -> None:
        assert self._recorder is not None
        if self.steps == 1:
            self._identify()
        self._recorder.write_step(record)

    # Files.

    def claim_files(self) -> tuple[Recorder, wire.RankRecord]:
        """The rank's files, claimed now where they were not."""
        self._activate()
        assert self._recorder is not None
        assert self._rank is not None
        return self._recorder, self._rank

    def claimed_rank(self) -> int | None:
        """The rank, where its files are claimed."""
        return self._rank.rank if self._rank else None

    def is_training_thread(self) -> bool:
        """Whether this is the thread that trains."""
        return self._source.is_training_thread()

    def _activate(self) -> None:
        """Claim this rank's folder; nothing is written before a process has shown that it trains."""
        if self._recorder is not None:
            return
        rank, world_size = identity.rank_and_world_size()
        self._recorder = Recorder(self.config.run_dir, rank)
        self._rank = identity.describe_rank(rank, world_size, self.config.run_id)
        self._recorder.write_rank(self._rank)
        for text in self._notes:
            self._recorder.write_event(NoteRecord(text))
        if self.config.nvml_hz > 0 and self.config.nvml_path is not None:
            start_sampler(self.config)

    def _write_layout(self, document: dict[str, Any] | None) -> None:
        if document is not None and document != self._written_layout:
            self._activate()
            assert self._recorder is not None
            self._recorder.write_layout(document)
            self._written_layout = document

    def _identify(self) -> None:
        """Write the rank's facts again once its device is known."""
        assert self._recorder is not None
        assert self._rank is not None
        self._rank = identity.describe_rank(self._rank.rank, self._rank.world_size, self.config.run_id)
        self._recorder.write_rank(self._rank)
        self._describe_model()

    def _describe_model(self) -> None:
        assert self._recorder is not None
        try:
            record = self._model.record(self.called)
        except Exception as error:  # noqa: BLE001 - a model that cannot be described must not cost the steps
            self.note(f"what is trained is not recorded: {error!r}")
            return
        if record is not None:
            self._recorder.write_model(record)
        if self._model.uncounted:
            self.note(self._model.uncounted)


def _group_exists() -> bool:
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and bool(distributed.is_available() and distributed.is_initialized())
