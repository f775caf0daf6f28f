"""What counts as a validation, on a clock that the test sets."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import pytest

from perfscope.hooks.step import StepAccumulator
from perfscope.hooks.timers import activities
from perfscope.hooks.timers.activities import ActivityTimer, StepActivities
from perfscope.wire import COMPILATION, GARBAGE, VALIDATION


class Clock:
    """Nanoseconds that a test sets."""

    def __init__(self) -> None:
        self.now = 0

    def monotonic_ns(self) -> int:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    ticking = Clock()
    monkeypatch.setattr(activities, "time", ticking)
    return ticking


@pytest.fixture
def process() -> Any:
    return SimpleNamespace(
        dead=False,
        save_timer=SimpleNamespace(stalled_ns=0),
        is_training_thread=lambda: True,
        abandon=print,
        step=StepAccumulator(),
    )


@pytest.fixture
def timer(process: Any, monkeypatch: pytest.MonkeyPatch) -> ActivityTimer:
    monkeypatch.setattr("os.getpid", lambda: 0)
    return ActivityTimer(process)


def validations(step: StepActivities) -> list[tuple[int, int, int]]:
    """Start, end and wait of the validations of a step."""
    return [(span.start_ns, span.end_ns, span.wait_ns) for span in step.spans if span.kind == VALIDATION]


def test_the_batches_of_a_loader_outside_no_grad_are_the_validations(timer: ActivityTimer, clock: Clock) -> None:
    """Only the forward pass is without gradients, as in transformers' Trainer: the wait was not training's."""
    timer.on_batch(100, 10)
    assert timer.on_evaluation(110) == 10
    clock.now = 130
    timer.on_evaluation_forward_end()
    timer.on_batch(130, 5)
    assert timer.on_evaluation(135) == 5
    clock.now = 160
    timer.on_training(clock.now)
    assert validations(timer.take_step()) == [(100, 160, 15)]


def test_a_save_behind_a_validation_ends_it(timer: ActivityTimer, clock: Clock, process: Any) -> None:
    timer.on_evaluation(100)
    clock.now = 140
    timer.on_evaluation_forward_end()
    process.save_timer.stalled_ns = 500
    clock.now = 800
    timer.on_training(clock.now)
    step = timer.take_step()
    assert validations(step) == [(100, 140, 0)]
    assert step.no_grad_ns == 40


def test_a_save_inside_a_validation_is_taken_off_its_time(timer: ActivityTimer, clock: Clock, process: Any) -> None:
    timer.on_evaluation(100)
    process.save_timer.stalled_ns = 30
    timer.on_evaluation(160)
    clock.now = 200
    timer.on_evaluation_forward_end()
    timer.on_training(clock.now)
    assert timer.take_step().no_grad_ns == 70


def test_a_call_that_validates_is_the_validation_whatever_happens_in_it(timer: ActivityTimer, clock: Clock) -> None:
    clock.now = 100
    assert timer.begin_call(VALIDATION)
    assert timer.begin_call(VALIDATION)  # one calls the other
    clock.now = 150
    timer.on_training(clock.now)
    timer.end_call()
    clock.now = 190
    timer.end_call()
    clock.now = 300
    assert validations(timer.take_step()) == [(100, 190, 0)]


def test_compilations_inside_each_other_are_one(timer: ActivityTimer, clock: Clock) -> None:
    timer.on_compile_end()  # its beginning was before the capture
    for now, event in ((10, timer.on_compile_begin), (20, timer.on_compile_begin), (30, timer.on_compile_end)):
        clock.now = now
        event()
    clock.now = 50
    timer.on_compile_end()
    assert [tuple(span) for span in timer.take_step().spans] == [(COMPILATION, 10, 50, 0)]


def test_what_came_before_the_first_step_is_not_taken_off_it(timer: ActivityTimer, clock: Clock) -> None:
    timer.on_evaluation(100)
    clock.now = 200
    timer.on_evaluation_forward_end()
    clock.now = 250
    timer.on_first_step()
    step = timer.take_step()
    assert validations(step) == [(100, 250, 0)]
    assert step.no_grad_ns == 0


def test_a_thousand_compilations_in_a_step_do_not_fill_its_record(timer: ActivityTimer, clock: Clock) -> None:
    for number in range(1000):
        clock.now = number
        timer.on_compile_begin()
        timer.on_compile_end()
    assert len(timer.take_step().spans) == 200


def test_long_full_collections_of_garbage_alone_are_recorded(timer: ActivityTimer, clock: Clock) -> None:
    callback = gc.callbacks.pop()
    for generation, length_ns in ((0, 10**6), (2, 10**5), (2, 10**6)):
        callback("start", {"generation": generation})
        clock.now += length_ns
        callback("stop", {"generation": generation})
    assert [tuple(span)[:3] for span in timer.take_step().spans] == [(GARBAGE, 1_100_000, 2_100_000)]
