"""Quiet steps: which steps quick hooks may count and end by themselves, and what happens where a step is not quiet.

The end of a step that the guarded methods wrote decides whether the next ones can be quiet, and copies what has to hold
meanwhile (``begin``). Whatever else wants to know or change what the running step has shown takes it over first: counts
move to where the guarded methods keep them, and the rest of the step is theirs (``take_over``). What happens beside a
step, as a collection of garbage or a save, only lets its end be theirs (``end_guarded``).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from perfscope.hooks.facts.steps import find_input, find_loaded
from perfscope.hooks.guard import describe_failure
from perfscope.hooks.introspection import is_grad_enabled, is_traced_alone
from perfscope.hooks.timers.probes import PROBES
from perfscope.hooks.timers.untimed_passes import UNTIMED

if TYPE_CHECKING:
    from collections.abc import Callable

    from perfscope.hooks.quick_hooks import QuietSteps

#: The methods of a capture that quick hooks take the place of.
HOOKS = (
    "on_batch_loaded", "on_forward", "on_gradients_cleared", "on_model_call", "on_optimizer_step", "on_scaler_update",
    "on_step_begin", "on_step_end",
)  # fmt: skip


def connect(quiet: QuietSteps, capture: Any) -> dict[str, Callable[..., Any]]:
    """Give the quick hooks what they call; returns them by the names of the methods whose place they take."""
    quiet.guarded = {name: getattr(capture, name) for name in HOOKS}
    quiet.counters = capture._counters
    quiet.find_input, quiet.find_loaded, quiet.is_traced_alone = find_input, find_loaded, is_traced_alone
    quiet.read_counters, quiet.take_waits = capture._counters.read, capture._exchanges.take
    quiet.take_news, quiet.begin_forward = capture.files.take_news, PROBES.on_forward
    quiet.advance_probes, quiet.reevaluates = _advance_probes, reevaluates
    quiet.fail = lambda error: capture.abandon(describe_failure(error))
    return {name: getattr(quiet, name) for name in HOOKS}


def reevaluates(optimizer: object) -> bool:
    """Whether an optimizer runs the model forward several times on the same batch, as L-BFGS does."""
    return "max_eval" in getattr(optimizer, "defaults", ())


def _advance_probes(step: int, has_news: bool) -> bool:  # noqa: FBT001 - quicker without names
    """A step ended: end its probe, or begin one; whether the next step is probed."""
    if UNTIMED.rest:  # a stage of a pipeline, whose passes are timed in other steps
        PROBES.discard()
    elif PROBES.is_on:
        PROBES.finish(step)
    elif has_news and step >= PROBES.next_step:
        PROBES.start(step)
    return PROBES.is_on


def begin(capture: Any, last: int) -> None:
    """A step ended: the next ones are quiet, up to so many completed steps, if nothing speaks against it."""
    quiet, source, activities = capture._quiet, capture._source, capture.activities
    UNTIMED.rest = False
    quiet.is_probing = PROBES.is_on
    writer = _find_writer(capture) if last and source._alone is not None else None
    if writer is None or writer.error is not None or not capture._memory.is_read_beside or _is_busy(capture):
        quiet.last, quiet.is_on = 0, False
        return
    quiet.clear()
    quiet.alone, quiet.name, quiet.thread = source._alone, source.name, source._thread
    quiet.knows_precision, quiet.has_waits = capture._model.precision.has_entered, capture._exchanges.is_in_use
    quiet.last, quiet.is_on = capture.passes.rest(capture.steps, last), True
    if activities._step.spans or writer.error is not None:  # meanwhile
        quiet.last = 0


def _is_busy(capture: Any) -> bool:
    activities = capture.activities
    is_evaluating = activities.is_evaluating or activities.is_in_call
    return bool(is_evaluating or capture.save_timer.is_in_use or capture.passes.is_in_use)


def _find_writer(capture: Any) -> Any:
    """What writes the rows; it tells the quick hooks of its turns from now on."""
    quiet, recorder = capture._quiet, capture.files.claim()
    writer = recorder.late
    if writer.on_turn is None:
        torch = sys.modules["torch"]
        quiet.append, quiet.file = writer.append, recorder.steps_file
        quiet.is_grad_enabled = getattr(torch, "is_grad_enabled", is_grad_enabled)
        quiet.tensor_class = getattr(torch, "Tensor", None)

        def on_turn() -> None:
            quiet.has_news = True
            if writer.error is not None:
                quiet.last = 0

        writer.on_turn = on_turn
    return writer


def take_over(capture: Any) -> None:
    """The running step is not quiet any more: what it has shown is the guarded methods' from here on."""
    quiet = capture._quiet
    if quiet.has_forward:
        quiet.has_forward, capture.activities._has_training_mode = False, True
    if not quiet.is_on:
        return
    quiet.is_on = False
    facts, activities = capture._facts, capture.activities
    facts.micro_batches += quiet.micro_batches
    facts.forward_samples += quiet.forward_samples
    facts.forward_tokens += quiet.forward_tokens
    facts.loaded_samples += quiet.loaded_samples
    facts.loaded_tokens += quiet.loaded_tokens
    facts.data_wait_ns += quiet.data_wait_ns
    facts.optimizer_steps += quiet.optimizer_steps
    facts.has_loader |= quiet.has_loader
    facts.has_cleared |= quiet.has_cleared
    if quiet.sign_ns:
        activities._step.first_sign_ns = quiet.sign_ns
    if quiet.batch_ns:
        activities._batch = quiet.batch_ns, quiet.batch_wait_ns
    quiet.clear()
