"""The training loop: its parts, and pauses of some steps, planted with every rhythm and size."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import kept_run
from perfscope.analyzers.loop import Loop, analyze
from perfscope.measures.parts import LifePart
from perfscope.sources.runs.run import read_run
from perfscope.tables.columns import Int64
from perfscope.tables.run import Run
from perfscope.wire.host import HostWork
from perfscope.wire.records import Span
from tests.analyzers.test_steps import MS
from tests.analyzers.test_wall_clock import life, step_record
from tests.conftest import ROOT

STEP_MS = 40
TURNS = 6


def loop_of(pauses_ms: Int64, *, noise: float = 0.0, inside: bool = False, **fields: object) -> Loop:
    """A loop of steps of 40 ms, each with its pause before the forward pass or inside of the step."""
    generator = np.random.default_rng(0)
    steps_ms = STEP_MS * (1 + noise * np.abs(generator.standard_normal(len(pauses_ms))))
    records, end = [], 0
    for number, (step_ms, pause_ms) in enumerate(zip(steps_ms, pauses_ms, strict=True), 1):
        begin, end = end, end + int((step_ms + pause_ms) * MS)
        gap = 0 if inside else int(pause_ms * MS)
        records.append(step_record(number, begin, end, gap_ns=gap, hook_ns=0, **(fields if number == 10 else {})))
    timeline, steps = life(records, hooked=0)
    return analyze(Run("", (), None, (), (steps,), (), (), timelines=(timeline,)))


def every(period: int, pause_ms: float, steps: int, first: int = 1) -> Int64:
    """A pause in each so many steps, from one on."""
    numbers = np.arange(1, steps + 1)
    return np.where((numbers % period == 0) & (numbers >= first), pause_ms, 0)


@pytest.mark.parametrize("inside", [False, True], ids=["between", "inside"])
@pytest.mark.parametrize("share", [0.02, 0.05, 0.2, 0.5, 0.8])
@pytest.mark.parametrize("period", [2, 3, 5, 10, 25, 50])
def test_a_pause_in_each_so_many_steps_is_found_with_its_price(period: int, share: float, inside: bool) -> None:
    pause_ms = share / (1 - share) * STEP_MS * period
    planted = every(period, pause_ms, TURNS * period + 12)
    loop = loop_of(planted, noise=0.01, inside=inside)
    assert loop.pauses is not None
    assert loop.pauses.period == period
    assert loop.pauses.s == pytest.approx(planted.sum() / 1000, rel=0.15)
    assert loop.pauses.each_s == pytest.approx(pause_ms / 1000, rel=0.15)
    assert sum(part.ns for part in loop.parts) == loop.loop_ns


def test_the_sentence_says_where_when_and_how_much() -> None:
    loop = loop_of(every(5, 200, 60))
    assert loop.pauses is not None
    assert loop.pauses.in_words == "Pauses between steps of 200 ms in every 5th step (12 steps)"
    assert "2.40 s of the loop" in loop.sections()[0].notes[1]


def test_a_pause_that_begins_late_and_one_that_comes_once_are_found() -> None:
    late = loop_of(every(5, 100, 100, first=60))
    once = loop_of(np.where(np.arange(60) == 40, 3000, 0))
    assert late.pauses is not None
    assert once.pauses is not None
    assert late.pauses.period == 5
    assert late.pauses.s == pytest.approx(0.9)
    assert (once.pauses.period, once.pauses.steps) == (None, (41,))
    assert once.pauses.s == pytest.approx(3.0)


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.1])
def test_a_clean_loop_of_noisy_steps_has_no_pauses_that_matter(noise: float) -> None:
    loop = loop_of(np.zeros(200, np.int64), noise=noise)
    assert loop.pauses is None or loop.pauses.s < 0.02 * loop.s


def test_a_host_that_waits_for_its_device_in_every_tenth_step_does_not_pause() -> None:
    """nanoGPT reads its loss in every tenth step; three later steps only fill the queue of launches."""
    times = np.tile([114, -38, -38, -38, 0, 0, 0, 0, 0, 0], 12)
    loop = loop_of(times, inside=True)
    assert loop.pauses is None


def test_steps_that_are_a_little_shorter_do_not_make_up_for_pauses() -> None:
    """Another program ends: from step 40 on a step takes a tenth less."""
    faster = np.where(np.arange(60) < 39, 0, -4)
    loop = loop_of(every(5, 100, 60) + faster)
    assert loop.pauses is not None
    assert loop.pauses.s == pytest.approx(1.2, rel=0.02)


def test_a_pause_of_the_rhythm_beside_a_save_or_after_a_window_is_counted() -> None:
    for beside in ({"save_ns": 0}, {"window": "export"}):
        loop = loop_of(every(5, 100, 60), **beside)
        assert loop.pauses is not None
        assert loop.pauses.s == pytest.approx(1.2, rel=0.02), beside


def test_steps_that_other_processes_delay_are_none_of_the_pauses() -> None:
    """Steps 55 to 59 had no processor for 80 ms each; every tenth step pauses by itself."""
    delays = np.where((np.arange(60) >= 54) & (np.arange(60) < 59), 80, 0)
    records, end = [], 0
    for number, (pause_ms, delay_ms) in enumerate(zip(every(10, 100, 60).tolist(), delays.tolist(), strict=True), 1):
        begin, end = end, end + (STEP_MS + pause_ms + delay_ms) * MS
        host = HostWork(STEP_MS * MS, delay_ms * MS, 0, 0, 0)
        records.append(step_record(number, begin, end, hook_ns=0, host=host))
    timeline, steps = life(records, hooked=0)
    loop = analyze(Run("", (), None, (), (steps,), (), (), timelines=(timeline,)))
    assert loop.pauses is not None
    assert (loop.pauses.period, loop.pauses.steps) == (10, (10, 20, 30, 40, 50, 60))
    assert loop.pauses.s == pytest.approx(0.6)


@pytest.mark.parametrize("kind", ["validation", "save"])
def test_a_validation_and_a_save_after_the_last_step_are_of_the_loop(kind: str) -> None:
    records = [step_record(number, 40 * MS * (number - 1), 40 * MS * number, hook_ns=0) for number in range(1, 21)]
    lasted = 800 * MS, 1000 * MS
    spans = [("validation", *lasted, 0)] if kind == "validation" else []
    timeline, steps = life(records, hooked=0, spans=spans, saves=[lasted] if kind == "save" else [])
    loop = analyze(Run("", (), None, (), (steps,), (), (), timelines=(timeline,)))
    part = LifePart.VALIDATION if kind == "validation" else LifePart.SAVES
    assert loop.time_ns(part) == 200 * MS
    assert loop.loop_ns == 960 * MS


def test_garbage_between_steps_is_no_time_without_a_cause() -> None:
    pauses = np.where(np.arange(60) == 9, 2000, 0)
    collection = Span("garbage", 360 * MS, 2360 * MS, 0)
    with_garbage = loop_of(pauses, spans=(collection,))
    assert (with_garbage.unknown_ns, with_garbage.garbage_ns) == (0, 2000 * MS)
    assert loop_of(pauses).unknown_ns == pytest.approx(2000 * MS, rel=0.01)


def test_what_a_save_and_a_validation_take_is_no_pause() -> None:
    for name in ("save_ns", "no_grad_ns"):
        taken = np.where(np.arange(60) == 9, 2000, 0)
        loop = loop_of(taken, inside=True, **{name: 2000 * MS})
        assert loop.pauses is None, name


def test_the_first_steps_and_the_start_are_not_of_the_loop() -> None:
    slow_start = np.where(np.arange(60) < 3, 5000, 0)
    loop = loop_of(slow_start, inside=True)
    assert loop.pauses is None
    assert loop.steps == 59
    assert LifePart.FIRST_STEP not in {part.part for part in loop.parts}


@pytest.mark.parametrize(("run", "rhythm"), [("plain", (None, 4)), ("plain_pause_late", (5, 7))])
def test_steps_that_others_delay_hide_no_rhythm_and_make_none(run: str, rhythm: tuple[int | None, int]) -> None:
    """Steps that compute beside other programs, which have the processor for up to three quarters of the time."""
    loop = analyze(read_run(kept_run(ROOT / "fixtures" / "findings" / "busy" / run)))
    assert loop.pauses is not None
    assert (loop.pauses.period, len(loop.pauses.steps)) == rhythm
