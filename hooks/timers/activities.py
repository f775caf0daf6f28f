"""Times what a training process does besides training: validation, generation, compilation, collection of garbage.

A script says nowhere that it validates. What shows it is a forward pass of the model, or a wait for a batch, without
gradients or in evaluation mode. A validation lasts from the first of these signs to the next sign of training. Where
the end of a step comes first, it lasts to the end of the last forward pass. Where a framework validates in one call,
that call is the validation. All of it is written with the record of the step in which it ended.
"""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from perfscope.constants import NS_PER_MS
from perfscope.hooks.guard import call_safely, hook_entry
from perfscope.hooks.timers.saves import CaptureTimer
from perfscope.wire import COMPILATION, FIRST_BATCH, GARBAGE, GENERATION, VALIDATION
from perfscope.wire.records import Span

if TYPE_CHECKING:
    from collections.abc import Mapping


#: A step that compiles more often is recorded with the first compilations only.
_MOST_SPANS = 200


@dataclass
class _Evaluation:
    """A stretch without gradients that is under way, from its first sign to its last one so far.

    Saves had stalled the step for ``stalled_ns`` and ``last_stalled_ns`` at these two moments.
    """

    kind: str
    start_ns: int
    last_ns: int
    stalled_ns: int
    last_stalled_ns: int
    wait_ns: int = 0

    def extend(self, now_ns: int, stalled_ns: int) -> None:
        self.last_ns, self.last_stalled_ns = max(now_ns, self.last_ns), stalled_ns


@dataclass
class StepActivities:
    """What ended since the last step boundary, and the time of validation and generation without saves inside."""

    spans: list[Span] = field(default_factory=list)
    no_grad_ns: int = 0


#: Those of most steps.
NO_ACTIVITIES = StepActivities()


class ActivityTimer(CaptureTimer):
    """The activities of one process."""

    def __init__(self, process: Any) -> None:
        super().__init__(process)
        self.evaluation: _Evaluation | None = None
        self._step = StepActivities()
        self._depth = 0
        self._compilations = 0
        self._compiling_since_ns = 0
        self._collecting_since_ns = 0
        oldest = len(gc.get_threshold()) - 1

        def on_collection(phase: str, info: Mapping[str, int]) -> None:
            if info["generation"] == oldest:  # an error in a callback would be printed at each collection
                call_safely(lambda: self._on_full_collection(phase))

        gc.callbacks.append(on_collection)

    @property
    def has_spans(self) -> bool:
        """Whether anything ended since the last step boundary."""
        return bool(self._step.spans)

    @property
    def awaits_training(self) -> bool:
        """Whether a sign of training says anything new: the step showed none, a batch waits, or a validation runs."""
        step = self._process.step
        return not step.sign_ns or bool(step.batch_ns) or self.evaluation is not None

    def on_training(self, now_ns: int) -> None:
        """The training thread runs the model with gradients: a validation ended, and the step has begun."""
        step = self._process.step
        if not step.sign_ns:
            step.sign_ns = step.batch_ns or now_ns
        self.end_evaluation(now_ns)
        step.batch_ns = step.batch_wait_ns = 0

    def on_loader_end(self, now_ns: int, wait_ns: int) -> bool:
        """A data loader had no more batches; whether it was that of a validation."""
        if self.evaluation is None:
            return False
        self.evaluation.extend(now_ns, self._process.save_timer.stalled_ns)
        self.evaluation.wait_ns += wait_ns
        return True

    def on_first_step(self) -> None:
        """The first step begins: none of its time was a validation's so far."""
        self.end_evaluation(time.monotonic_ns())
        self._step.no_grad_ns = 0

    def on_batch(self, began_ns: int, wait_ns: int) -> None:
        """A batch was loaded with gradients on: for training, unless a forward pass without them follows."""
        step = self._process.step
        step.batch_ns = step.batch_ns or began_ns
        step.batch_wait_ns += wait_ns

    def on_first_batch(self, began_ns: int, now_ns: int) -> None:
        """The first batch of training was loaded, before the first step began."""
        self.end_evaluation(began_ns)
        self._add(Span(FIRST_BATCH, began_ns, now_ns, now_ns - began_ns))

    def end_evaluation(self, now_ns: int) -> None:
        """Training goes on, with the batch that was loaded last; a framework's own call ends by itself.

        Where a checkpoint was saved meanwhile, the validation ended before that.
        """
        evaluation = self.evaluation
        if evaluation is not None and not self._depth:
            if self._process.save_timer.stalled_ns == evaluation.last_stalled_ns:
                evaluation.extend(self._process.step.batch_ns or now_ns, evaluation.last_stalled_ns)
            self._close()

    def on_evaluation(self, began_ns: int, wait_ns: int = 0) -> int:
        """A sign of validation in the training thread: a forward pass begins, or a batch was loaded after a wait.

        Returns:
            How long training seemed to wait for batches that turn out to be the validation's.
        """
        step = self._process.step
        first_ns: int = step.batch_ns or began_ns
        moved_ns: int = step.batch_wait_ns
        step.batch_ns = step.batch_wait_ns = step.next_event = 0
        stalled_ns = self._process.save_timer.stalled_ns
        if self.evaluation is None:
            self.evaluation = _Evaluation(VALIDATION, first_ns, first_ns, stalled_ns, stalled_ns)
        self.evaluation.extend(began_ns + wait_ns, stalled_ns)
        self.evaluation.wait_ns += moved_ns + wait_ns
        return moved_ns

    @hook_entry
    def on_evaluation_forward_end(self) -> None:
        """A forward pass of a validation returned."""
        if self.evaluation is not None:
            self.evaluation.extend(time.monotonic_ns(), self._process.save_timer.stalled_ns)

    @hook_entry
    def begin_call(self, kind: str) -> bool:
        """A framework validates, or a model generates, in one call; whether it is the training thread's."""
        if not self._process.is_training_thread():
            return False
        if self.evaluation is None:
            self.on_evaluation(time.monotonic_ns())
            if self.evaluation is not None:
                self.evaluation.kind = kind
        self._depth += 1
        self._process.step.is_in_call = True
        return True

    @hook_entry
    def end_call(self) -> None:
        """That call returned: a validation that it was, or was part of, has lasted until now."""
        self._depth = max(self._depth - 1, 0)
        self._process.step.is_in_call = self._depth > 0
        self.on_evaluation_forward_end()
        if self.evaluation is not None and self.evaluation.kind == GENERATION and not self._depth:
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

    def _on_full_collection(self, phase: str) -> None:
        """Python looks through all of its objects, which stops every thread."""
        now_ns = time.monotonic_ns()
        began_ns, self._collecting_since_ns = self._collecting_since_ns, now_ns if phase == "start" else 0
        is_long = began_ns and now_ns - began_ns >= NS_PER_MS
        if phase != "start" and is_long and not self._process.dead:
            self._add(Span(GARBAGE, began_ns, now_ns))

    def take_step(self) -> StepActivities:
        """What happened in the step that ends here; a validation that is still open ended with its last sign."""
        if self._process.step.batch_ns:
            self.on_training(time.monotonic_ns())
        if not self._depth:
            self._close()
        step, self._step = self._step, StepActivities()
        return step

    def _close(self) -> None:
        evaluation, self.evaluation = self.evaluation, None
        if evaluation is None:
            return
        stalled_ns = evaluation.last_stalled_ns - evaluation.stalled_ns
        self._step.no_grad_ns += max(evaluation.last_ns - evaluation.start_ns - stalled_ns, 0)
        self._add(Span(evaluation.kind, evaluation.start_ns, evaluation.last_ns, evaluation.wait_ns))

    def _add(self, span: Span) -> None:
        if len(self._step.spans) < _MOST_SPANS:
            self._step.spans.append(span)
            self._process.step.next_event = 0
