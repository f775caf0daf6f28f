"""What the hooks do in a step like nearly all others: they count, and put one row of numbers into a queue.

Such a step is one of an object that trains alone, far from windows, saves and validations, and no peaks of memory are
due. In it the processor's caches are full of the training's code, so that each function, object and lock that a hook
touches costs up to a microsecond. Each hook here is therefore one function that finds its objects in local variables,
asks whether the moment is such a one, and leaves everything else to the guarded method whose place it takes. Both
change the same state, so that either may follow the other.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING, Any, TypeAlias

from perfscope.hooks.facts.steps import find_input, find_loaded
from perfscope.hooks.guard import describe_failure
from perfscope.hooks.introspection import is_grad_enabled, is_traced_alone
from perfscope.hooks.quiet_rows import make_line
from perfscope.hooks.timers.host_counters import EACH_READ_MASK
from perfscope.hooks.timers.probes import PROBES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from perfscope.hooks.late_writer import LateWriter, QueuedRow
    from perfscope.hooks.rank_files import RankFiles

    Quick: TypeAlias = Callable[..., Any]

_SEQUENCES = list, tuple
_NO_NEWS: tuple[int, Mapping[str, Any] | None] = 0, None
_IDS = 2  # token ids have a dimension of samples and one of positions
_clock, _get_ident = time.monotonic_ns, threading.get_ident


class QuietSteps:
    """The steps that the quick hooks may end, and what they need for it.

    Attributes:
        steps: Up to so many completed ones.
        append: Puts a row into the queue of the writer; None before the first such step.
        file: What to name with a row, so that it is written there.
        writer: Writes the rows, in a thread of its own.
        is_grad_enabled: Whether torch records gradients.
        tensor_class: ``torch.Tensor``; None before the first such step.
        dtype: Of what was counted last, and ``are_ids`` whether that can be token ids.
    """

    __slots__ = (
        "append", "are_ids", "dtype", "file", "is_grad_enabled", "steps", "tensor_class", "writer"
    )  # fmt: skip

    def __init__(self) -> None:
        self.steps = 0
        self.append: Callable[[QueuedRow], None] | None = None
        self.file = -1
        self.writer: LateWriter | None = None
        self.is_grad_enabled: Callable[[], bool] = is_grad_enabled
        self.tensor_class: type | None = None
        self.dtype: object = None
        self.are_ids = False

    def begin(self, steps: int, files: RankFiles) -> None:
        """The next ones will be like most others, up to so many completed steps."""
        self.steps = steps
        if steps and self.writer is None:
            torch = sys.modules["torch"]
            recorder = files.claim()
            self.append, self.file, self.writer = recorder.late.append, recorder.steps_file, recorder.late
            self.is_grad_enabled = getattr(torch, "is_grad_enabled", is_grad_enabled)
            self.tensor_class = getattr(torch, "Tensor", None)


def quick_hooks(capture: Any) -> dict[str, Quick]:
    """The quick hooks of a capture, by the names of its methods, which each of them calls at any other moment."""
    end_step = _make_step_end(capture)
    return {
        "on_batch_loaded": _make_batch_loaded(capture, capture.on_batch_loaded),
        "on_forward": _make_forward(capture, capture.on_forward, watches_precision=False),
        "on_gradients_cleared": _make_gradients_cleared(capture, capture.on_gradients_cleared),
        "on_model_call": _make_forward(capture, capture.on_model_call, watches_precision=True),
        "on_optimizer_step": _make_optimizer_step(capture, capture.on_optimizer_step, end_step),
        "on_scaler_update": _make_scaler_update(capture, capture.on_scaler_update, end_step),
        "on_step_begin": _make_step_begin(capture, capture.on_step_begin),
        "on_step_end": _make_boundary(capture, capture.on_step_end, end_step),
    }


def _make_batch_loaded(capture: Any, slow: Quick) -> Quick:
    source, activities, quiet = capture._source, capture.activities, capture._quiet

    def on_batch_loaded(batch: Any, wait_ns: int, now_ns: int | None = None) -> None:
        began_ns = _clock() if now_ns is None else now_ns
        if (
            capture.dead
            or not capture.steps
            or activities._depth
            or _get_ident() != source._thread
            or not quiet.is_grad_enabled()
        ):
            slow(batch, wait_ns, now_ns)
            return
        try:
            pending = activities._batch
            activities._batch = (began_ns - wait_ns, wait_ns) if pending is None else (pending[0], pending[1] + wait_ns)
            facts = capture._facts
            facts.has_loader = True
            facts.data_wait_ns += wait_ns
            # Also where what enters the model is counted: where several optimizers take turns, the batches decide.
            first = batch[0] if type(batch) in _SEQUENCES and batch else batch
            if type(first) is not quiet.tensor_class:
                first = find_loaded(batch)
            shape = None if first is None else first.shape
            if shape:
                facts.loaded_samples += shape[0]
                if len(shape) == _IDS and not first.is_floating_point():
                    facts.loaded_tokens += shape[0] * shape[1]
        except Exception as error:  # noqa: BLE001 - the hooks' outer edge, as in the guard
            capture.abandon(describe_failure(error))
        capture.hook_ns += _clock() - began_ns

    return on_batch_loaded


def _make_forward(capture: Any, slow: Quick, *, watches_precision: bool) -> Quick:
    source, activities, quiet = capture._source, capture.activities, capture._quiet
    precision = capture._model.precision

    def on_forward(args: Any, kwargs: Any, *, in_training_mode: bool = True, **model: Any) -> Any:
        began_ns = _clock()
        if (
            capture.dead
            or not (in_training_mode and capture.steps)
            or (watches_precision and not precision.has_entered)
            or activities._depth
            or activities._evaluation is not None
            or _get_ident() != source._thread
            or not quiet.is_grad_enabled()
        ):
            return slow(args, kwargs, in_training_mode=in_training_mode, **model)
        try:
            first: Any = args[0] if args and not kwargs else None
            if type(first) is not quiet.tensor_class:
                first = find_input(args, kwargs)
                if type(first) is not quiet.tensor_class and is_traced_alone():
                    return None
            activities._has_training_mode = True
            pending, step = activities._batch, activities._step
            if step.first_sign_ns is None:
                step.first_sign_ns = began_ns if pending is None else pending[0]
            activities._batch = None
            facts = capture._facts
            facts.micro_batches += 1
            shape = None if first is None else first.shape
            if shape:
                facts.forward_samples += shape[0]
                if len(shape) == _IDS:
                    dtype = first.dtype
                    if dtype is not quiet.dtype:
                        quiet.dtype, quiet.are_ids = dtype, not first.is_floating_point()
                    if quiet.are_ids:
                        facts.forward_tokens += shape[0] * shape[1]
        except Exception as error:  # noqa: BLE001 - the hooks' outer edge, as in the guard
            capture.abandon(describe_failure(error))
        on_end = PROBES.on_forward() if PROBES.is_on else None
        capture.hook_ns += _clock() - began_ns
        return on_end

    return on_forward


def _make_gradients_cleared(capture: Any, slow: Quick) -> Quick:
    source, activities = capture._source, capture.activities

    def on_gradients_cleared(optimizer: object, now_ns: int | None = None) -> None:
        began_ns = _clock() if now_ns is None else now_ns
        alone = source._alone
        if capture.dead or not capture.steps or alone is None or activities._evaluation is not None:
            slow(optimizer)
            return
        if alone() is not optimizer:
            capture._facts.has_cleared = True
        capture.hook_ns += _clock() - began_ns

    return on_gradients_cleared


def _make_step_begin(capture: Any, slow: Quick) -> Quick:
    source, activities = capture._source, capture.activities

    def on_step_begin() -> None:
        began_ns = _clock()
        if capture.dead or not capture.steps or activities._evaluation is not None or _get_ident() != source._thread:
            slow()
            return
        pending, step = activities._batch, activities._step
        if step.first_sign_ns is None:
            step.first_sign_ns = began_ns if pending is None else pending[0]
        activities._batch = None
        capture.hook_ns += _clock() - began_ns

    return on_step_begin


def _make_optimizer_step(capture: Any, slow: Quick, end_step: Quick) -> Quick:
    source, quiet = capture._source, capture._quiet

    def on_optimizer_step(optimizer: Any, _result: object = None, now_ns: int | None = None) -> None:
        began_ns = _clock() if now_ns is None else now_ns
        if source.name == "optimizer":
            if not end_step("optimizer", optimizer, None, began_ns):
                slow(optimizer)
            return
        alone = source._alone
        if capture.dead or not quiet.steps or alone is None or alone() is None or _get_ident() != source._thread:
            slow(optimizer)
            return
        facts = capture._facts
        facts.optimizer_steps += 1
        facts.reevaluates |= "max_eval" in getattr(optimizer, "defaults", ())
        capture.hook_ns += _clock() - began_ns

    return on_optimizer_step


def _make_scaler_update(capture: Any, slow: Quick, end_step: Quick) -> Quick:
    def on_scaler_update(scaler: Any, *, has_stepped: bool | None) -> None:
        is_skipped = has_stepped and not capture._facts.optimizer_steps
        if is_skipped or not end_step("grad_scaler", scaler, None, _clock()):
            slow(scaler, has_stepped=has_stepped)

    return on_scaler_update


def _make_boundary(capture: Any, slow: Quick, end_step: Quick) -> Quick:
    def on_step_end(
        boundary: str, emitter: object, read: Callable[[], dict[str, Any]] | None = None, **stated: Any
    ) -> None:
        began_ns = now_ns = _clock()
        if read is not None:
            try:
                stated = read()
            except Exception as error:  # noqa: BLE001 - the hooks' outer edge, as in the guard
                capture.abandon(describe_failure(error))
                return
            now_ns = _clock()
        if not end_step(boundary, emitter, stated, now_ns):
            slow(boundary, emitter, **stated)
        capture.hook_ns += now_ns - began_ns

    return on_step_end


def _make_step_end(capture: Any) -> Quick:
    """A function that ends a step, and says whether it did: at any other moment it does nothing."""
    source, activities, saves = capture._source, capture.activities, capture.save_timer
    passes, memory, quiet = capture._passes, capture._memory, capture._quiet
    counters, exchanges = capture._counters, capture._exchanges

    def end_step(boundary: str, emitter: object, stated: Mapping[str, Any] | None, now_ns: int) -> bool:
        alone, running, facts, writer = source._alone, activities._step, capture._facts, quiet.writer
        if capture.dead or capture.steps >= quiet.steps or not memory.is_read_beside or writer.error is not None:
            return False
        if alone is None or alone() is not emitter or source.name != boundary or _get_ident() != source._thread:
            return False
        if saves.is_in_use or passes.is_in_use or activities._evaluation is not None or activities._depth:
            return False
        if running.spans or running.no_grad_ns or facts.reevaluates or facts.passes or facts.pipelined:
            return False
        pending, sign_ns = activities._batch, running.first_sign_ns
        if pending is not None:
            sign_ns = pending[0] if sign_ns is None else sign_ns
            activities._batch = None
        running.first_sign_ns = None
        counts = facts.micro_batches, facts.forward_samples, facts.forward_tokens
        loaded = facts.loaded_samples, facts.loaded_tokens, facts.data_wait_ns if facts.has_loader else None
        facts.micro_batches = facts.forward_samples = facts.forward_tokens = facts.optimizer_steps = 0
        facts.loaded_samples = facts.loaded_tokens = facts.data_wait_ns = 0
        facts.has_loader = facts.has_cleared = False
        capture.steps = step = capture.steps + 1
        news = writer.take_news() if writer.has_news else _NO_NEWS
        times = capture._step_started_ns, sign_ns, capture.hook_ns + news[0]
        try:
            waits = exchanges.take() if exchanges.is_in_use else None
            used, is_long = None, now_ns - times[0] > counters.long_ns
            # Where waits are timed on the host, it waits in each step, and what else it did decides who is late.
            if is_long or waits is not None or not step & EACH_READ_MASK:
                used = counters.read()
            if PROBES.is_on:
                PROBES.finish(step)
            elif news is not _NO_NEWS and step >= PROBES.next_step:
                PROBES.start(step)
        except Exception as error:  # noqa: BLE001 - the hooks' outer edge, as in the guard
            capture.abandon(describe_failure(error))
            return True
        row = (step, now_ns, boundary, times, counts, loaded, stated, news[1], (counters, used, waits))
        quiet.append((quiet.file, make_line, row))
        capture._step_started_ns = ended_ns = _clock()
        capture.hook_ns = ended_ns - now_ns
        return True

    return end_step
