"""Times what a training process does besides training: validation, generation, compilation, collection of garbage.

A script says nowhere that it validates. What shows it is a forward pass of the model, or a wait for a batch, without
gradients or in evaluation mode. A validation lasts from the first such sign to the next sign of training, or, where the
next thing to be seen is the end of a step, to the end of the last forward pass. Where a framework validates in one
call, that call is the validation. All of it is written with the record of the step in which it ended.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from perfscope.hooks.facts.setup import GarbageWatch
from perfscope.hooks.guard import hook_entry
from perfscope.wire import COMPILATION, FIRST_BATCH, GARBAGE, GENERATION, VALIDATION
from perfscope.wire.records import Span

if TYPE_CHECKING:
    from perfscope.hooks.timers.saves import SaveTimer

#: A step that compiles more often is recorded with the first compilations only.
_MOST_SPANS = 200
_SHORTEST_GARBAGE_NS = 200_000


class ActiveProcess(Protocol):
    """What the timer needs of the capture that it belongs to."""

    dead: bool
    pid: int
    save_timer: SaveTimer

    def abandon(self, reason: str) -> None:
        """End the capture after a failure."""

    def is_training_thread(self) -> bool:
        """Whether this is the thread that trains."""

    def take_over(self) -> None:
        """What the running step has shown in quick hooks becomes this timer's, as far as it is about activities."""

    def end_guarded(self) -> None:
        """There is something to say at the end of the running step."""


@dataclass
class _Evaluation:
    """A stretch without gradients that is under way.

    Attributes:
        kind: Of the span that it becomes.
        start_ns: Its first sign.
        last_ns: Its last sign so far.
        stalled_ns, last_stalled_ns: How long saves had stalled the step at these two moments.
        wait_ns: Time spent waiting for data loaders.
    """

    kind: str
    start_ns: int
    last_ns: int
    stalled_ns: int
    last_stalled_ns: int
    wait_ns: int = 0

    def extend(self, now_ns: int, stalled_ns: int) -> None:
        """It lasted at least until now."""
        self.last_ns, self.last_stalled_ns = max(now_ns, self.last_ns), stalled_ns


@dataclass
class StepActivities:
    """What happened since the last step boundary, besides training.

    Attributes:
        spans: What ended.
        no_grad_ns: Time of validation and generation, without saves inside.
        first_sign_ns: When the step first showed that it trains; None before that.
    """

    spans: list[Span] = field(default_factory=list)
    no_grad_ns: int = 0
    first_sign_ns: int | None = None

    def gap_ns(self, began_ns: int | None) -> int | None:
        """How long the step did not show that it trains; None where that, or when it began, is unknown."""
        gap_ns = None if began_ns is None or self.first_sign_ns is None else self.first_sign_ns - began_ns
        return gap_ns if gap_ns is not None and gap_ns > 0 else None


class ActivityTimer:
    """The activities of one process; its methods are safe to call from training.

    Attributes:
        hook_ns: Time that they took.
    """

    def __init__(self, process: ActiveProcess) -> None:
        self.hook_ns = 0
        self._process = process
        self._step = StepActivities()
        self._evaluation: _Evaluation | None = None
        self._depth = 0
        #: When the first batch was asked for that nothing has used yet, and the wait for all such batches.
        self._batch: tuple[int, int] | None = None
        self._compilations = 0
        self._compiling_since_ns = 0
        self._has_training_mode = False
        GarbageWatch(self._on_garbage_collected, time.monotonic_ns)

    @property
    def dead(self) -> bool:
        """Whether the capture has ended."""
        return self._process.dead

    @property
    def pid(self) -> int:
        """The process of the capture."""
        return self._process.pid

    def abandon(self, reason: str) -> None:
        """End the capture after a failure."""
        self._process.abandon(reason)

    @property
    def is_evaluating(self) -> bool:
        """Whether a stretch without gradients is under way."""
        return self._evaluation is not None

    @property
    def is_in_call(self) -> bool:
        """Whether a framework's own call validates or generates."""
        return self._depth > 0

    def is_evaluation(self, *, has_gradients: bool, in_training_mode: bool) -> bool:
        """Whether a forward pass belongs to a validation.

        Evaluation mode alone says so only where the model is in training mode at other times: some train without it.
        """
        self._has_training_mode |= has_gradients and in_training_mode
        return self.is_in_call or not has_gradients or (self._has_training_mode and not in_training_mode)

    @property
    def awaits_training(self) -> bool:
        """Whether a sign of training says anything new: the step showed none, a batch waits, or a validation runs."""
        return self._step.first_sign_ns is None or self._batch is not None or self._evaluation is not None

    def on_training(self) -> None:
        """The training thread runs the model with gradients: a validation ended, and the step has begun."""
        now_ns = time.monotonic_ns()
        if self._step.first_sign_ns is None:
            self._step.first_sign_ns = now_ns if self._batch is None else self._batch[0]
        self.end_evaluation(now_ns)
        self._batch = None

    def on_loader_end(self, now_ns: int, wait_ns: int) -> bool:
        """A data loader had no more batches; whether it was that of a validation."""
        if self._evaluation is None:
            return False
        self._evaluation.extend(now_ns, self._process.save_timer.stalled_ns)
        self._evaluation.wait_ns += wait_ns
        return True

    def on_first_step(self) -> None:
        """The first step begins: none of its time was a validation's so far."""
        self.end_evaluation(time.monotonic_ns())
        self._step.no_grad_ns = 0

    def on_batch(self, began_ns: int, wait_ns: int) -> None:
        """A batch was loaded with gradients on: for training, unless a forward pass without them follows."""
        first_ns, waited_ns = self._batch or (began_ns, 0)
        self._batch = first_ns, waited_ns + wait_ns

    def on_first_batch(self, began_ns: int, now_ns: int) -> None:
        """The first batch of training was loaded, before the first step began."""
        self.end_evaluation(began_ns)
        self._add(Span(FIRST_BATCH, began_ns, now_ns, now_ns - began_ns))

    def end_evaluation(self, now_ns: int) -> None:
        """Training goes on, with the batch that was loaded last; a framework's own call ends by itself.

        Where a checkpoint was saved meanwhile, the validation ended before that.
        """
        evaluation = self._evaluation
        if evaluation is not None and not self._depth:
            if self._process.save_timer.stalled_ns == evaluation.last_stalled_ns:
                evaluation.extend(now_ns if self._batch is None else self._batch[0], evaluation.last_stalled_ns)
            self._close()

    def on_evaluation(self, began_ns: int, wait_ns: int = 0) -> int:
        """A sign of validation in the training thread: a forward pass begins, or a batch was loaded after a wait.

        Returns:
            How long training seemed to wait for batches that turn out to be the validation's.
        """
        first_ns, moved_ns = self._batch or (began_ns, 0)
        self._batch = None
        stalled_ns = self._process.save_timer.stalled_ns
        if self._evaluation is None:
            self._evaluation = _Evaluation(VALIDATION, first_ns, first_ns, stalled_ns, stalled_ns)
        self._evaluation.extend(began_ns + wait_ns, stalled_ns)
        self._evaluation.wait_ns += moved_ns + wait_ns
        return moved_ns

    @hook_entry
    def on_evaluation_forward_end(self) -> None:
        """A forward pass of a validation returned."""
        if self._evaluation is not None:
            self._evaluation.extend(time.monotonic_ns(), self._process.save_timer.stalled_ns)

    @hook_entry
    def begin_call(self, kind: str) -> bool:
        """A framework validates, or a model generates, in one call; whether it is the training thread's."""
        if not self._process.is_training_thread():
            return False
        self._process.take_over()
        if self._evaluation is None:
            self.on_evaluation(time.monotonic_ns())
            if self._evaluation is not None:
                self._evaluation.kind = kind
        self._depth += 1
        return True

    @hook_entry
    def end_call(self) -> None:
        """That call returned: a validation that it was, or was part of, has lasted until now."""
        self._depth = max(self._depth - 1, 0)
        self.on_evaluation_forward_end()
        if self._evaluation is not None and self._evaluation.kind == GENERATION and not self._depth:
            self._close()

    @hook_entry
    def on_compile_begin(self) -> None:
        """torch.compile begins; it may be called again before that ends, also by other threads."""
        self._compilations += 1
        if self._compilations == 1:
            self._compiling_since_ns = time.monotonic_ns()

    @hook_entry
    def on_compile_end(self) -> None:
        """A compilation ended."""
        if not self._compilations:
            return
        self._compilations -= 1
        if not self._compilations:
            self._add(Span(COMPILATION, self._compiling_since_ns, time.monotonic_ns()))

    def _on_garbage_collected(self, began_ns: int, ended_ns: int) -> None:
        """Python looked through all of its objects; shorter collections are left out."""
        if ended_ns - began_ns >= _SHORTEST_GARBAGE_NS and not self._process.dead:
            self._add(Span(GARBAGE, began_ns, ended_ns))

    def take_hook_ns(self) -> int:
        """How long these hooks took since this was last asked."""
        hook_ns, self.hook_ns = self.hook_ns, 0
        return hook_ns

    def take_step(self) -> StepActivities:
        """What happened in the step that ends here; a validation that is still open ended with its last sign."""
        if self._batch is not None:
            self.on_training()
        if not self._depth:
            self._close()
        step, self._step = self._step, StepActivities()
        return step

    def _close(self) -> None:
        evaluation, self._evaluation = self._evaluation, None
        if evaluation is None:
            return
        stalled_ns = evaluation.last_stalled_ns - evaluation.stalled_ns
        self._step.no_grad_ns += max(evaluation.last_ns - evaluation.start_ns - stalled_ns, 0)
        self._add(Span(evaluation.kind, evaluation.start_ns, evaluation.last_ns, evaluation.wait_ns))

    def _add(self, span: Span) -> None:
        if len(self._step.spans) < _MOST_SPANS:
            self._step.spans.append(span)
            self._process.end_guarded()
