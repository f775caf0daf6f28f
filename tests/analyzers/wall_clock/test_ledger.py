"""The ledger of a process against an oracle that asks for the owner of every single nanosecond."""

from __future__ import annotations

from collections import Counter
from statistics import median
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from perfscope.analyzers.wall_clock.ledger import Ledger, Part, keep_ledger
from perfscope.tables.run import Window
from perfscope.wire import COMPILATION, FIRST_BATCH, GENERATION, VALIDATION
from tests.analyzers.wall_clock.making import is_whole, life, step_record

#: The kinds of spans in the order in which they claim a moment.
CLAIMS = (
    ("save", Part.SAVES),
    (COMPILATION, Part.COMPILATION),
    (FIRST_BATCH, Part.DATA_WAIT),
    (GENERATION, Part.GENERATION),
    (VALIDATION, Part.VALIDATION),
)


def parts_of(ledger: Ledger) -> dict[str, int]:
    """The parts that took time."""
    return {str(part): int(wall_ns) for part, wall_ns in ledger.parts.items() if wall_ns}


@st.composite
def lives(draw: st.DrawFn) -> dict[str, Any]:
    """A start, steps with boundaries between them, spans anywhere, and sums for every step."""
    short = st.integers(0, 12)
    torch_loaded = draw(short)
    hooked = torch_loaded + draw(short)
    moment = hooked + draw(short)
    steps = []
    for number in range(1, draw(st.integers(1, 8)) + 1):
        begin = moment + (draw(st.integers(0, 6)) if number > 1 else 0)
        moment = begin + draw(st.integers(1, 40))
        steps.append(
            {
                "begin": begin,
                "end": moment,
                "data_wait_ns": draw(st.none() | st.integers(0, 50)),
                "hook_ns": draw(st.none() | st.integers(0, 20)),
                "gap_ns": draw(st.none() | st.integers(1, 50)),
                "window": draw(st.sampled_from([None, None, None, "warmup", "profiled"])),
            }
        )
    end = moment + draw(short)
    kinds = st.sampled_from([VALIDATION, VALIDATION, GENERATION, COMPILATION, FIRST_BATCH])
    spans = []
    for kind in draw(st.lists(kinds, max_size=6)):
        start = draw(st.integers(0, end))
        stop = draw(st.integers(start, end))
        spans.append((kind, start, stop, draw(st.integers(0, stop - start)) if kind == VALIDATION else 0))
    saves = draw(st.lists(st.tuples(st.integers(0, end), st.integers(0, 30)), max_size=3))
    return {
        "steps": steps,
        "torch_loaded": torch_loaded,
        "hooked": hooked,
        "end": end,
        "spans": spans,
        "saves": [(start, min(start + length, end)) for start, length in saves],
    }


def slow_parts(case: dict[str, Any], steady: list[bool]) -> Counter[str]:
    """The parts, one nanosecond after the other."""
    steps, parts = case["steps"], Counter[str]()
    intervals = [*case["spans"], *(("save", start, stop, 0) for start, stop in case["saves"])]
    owners: list[tuple[str, int | None]] = []
    for moment in range(case["end"]):
        inside = next((row for row, step in enumerate(steps) if step["begin"] <= moment < step["end"]), None)
        is_boundary = inside is None and steps[0]["end"] <= moment < steps[-1]["end"]
        kinds = {kind for kind, start, stop, _ in intervals if start <= moment < stop}
        owner = "boundary" if is_boundary else next((str(part) for kind, part in CLAIMS if kind in kinds), "free")
        owners.append((owner, inside))
    validated = Counter[int | None]()
    for moment, (owner, inside) in enumerate(owners):
        after = next((row for row, step in enumerate(steps) if moment < step["end"]), None)
        if owner == "validation":
            validated[inside] += 1
        elif owner == "boundary":
            parts["hooks"] += 1
        elif owner != "free":
            parts[owner] += 1
        elif inside is None and after is None:
            parts["end"] += 1
        elif inside is None:
            is_import, is_set_up = moment < case["torch_loaded"], moment < case["hooked"]
            parts["imports" if is_import else "set_up" if is_set_up else "before_first_step"] += 1
    waits = Counter[int | None]()
    for kind, _, stop, wait in case["spans"]:
        if kind == VALIDATION:
            row = next((row for row, step in enumerate(steps) if stop <= step["end"]), None)
            waits[row] += wait
    for row in {*validated, *waits} - {None}:
        waited = min(waits[row], validated[row])
        parts["validation_data_wait"] += waited
        parts["validation"] += validated[row] - waited
    outside = sum(owner == "validation" and inside is None for owner, inside in owners)
    waited = min(waits[None], outside)
    parts["validation_data_wait"] += waited
    parts["validation"] += outside - waited
    return parts + slow_steps(steps, owners, steady)


def slow_steps(steps: list[dict[str, Any]], owners: list[tuple[str, int | None]], steady: list[bool]) -> Counter[str]:
    """The parts of what no span claims in the steps."""
    parts = Counter[str]()
    free = [sum(owner == "free" and inside == row for owner, inside in owners) for row in range(len(steps))]
    gaps = [
        sum(
            owners[moment][0] == "free"
            for moment in range(step["begin"], min(step["begin"] + (step["gap_ns"] or 0), step["end"]))
        )
        for step in steps
    ]
    left = []
    for row, step in enumerate(steps):
        waited = min(step["data_wait_ns"] or 0, free[row])
        parts["data_wait"] += waited
        left.append(free[row] - waited)
    usual_gap = int(median([gap for gap, is_usual in zip(gaps, steady, strict=True) if is_usual])) if any(steady) else 0
    usual_step = (
        int(median([own for own, is_usual in zip(left, steady, strict=True) if is_usual])) if any(steady) else 0
    )
    for row, step in enumerate(steps):
        rest, excess = left[row], gaps[row] - usual_gap
        between = min(excess, rest) if any(steady) and excess > 0 and 2 * excess > usual_step else 0
        boundary = step["begin"] - steps[row - 1]["end"] if row else 0
        hooks = min(max((step["hook_ns"] or 0) - boundary, 0), rest - between)
        own = "window_steps" if step["window"] else "first_step" if row == 0 else "steps"
        parts["between_steps"] += between
        parts["hooks"] += hooks
        parts[own] += rest - between - hooks
    return parts


@settings(max_examples=400, deadline=None)
@given(lives())
def test_every_nanosecond_is_in_the_part_that_owns_it(case: dict[str, Any]) -> None:
    records = [
        step_record(
            number,
            step["begin"],
            step["end"],
            **{name: step[name] for name in ("data_wait_ns", "hook_ns", "gap_ns", "window")},
        )
        for number, step in enumerate(case["steps"], 1)
    ]
    timeline, steps = life(
        records,
        torch_loaded=case["torch_loaded"],
        hooked=case["hooked"],
        ended=case["end"],
        spans=case["spans"],
        saves=case["saves"],
    )
    ledger = keep_ledger(timeline, steps, [])
    assert ledger.wall_ns == case["end"]
    assert parts_of(ledger) == dict(+slow_parts(case, steps.steady.tolist()))
    assert is_whole(parts_of(ledger), ledger.wall_ns)


def window(first_step: int, last_step: int, **fields: int) -> Window:
    stalls = {"start_ns": 0, "stop_ns": 0, "export_ns": 0, **fields}
    return Window(0, first_step, last_step, "t", trace_bytes=1, partial=False, **stalls)  # type: ignore[arg-type]


def test_a_window_has_a_start_a_stop_and_an_export() -> None:
    labels = [None, "warmup", "profiled", "export", None]
    begins, ends = (0, 130, 240, 660, 770), (100, 230, 340, 760, 870)
    records = [
        step_record(number, begin, end, window=label)
        for number, begin, end, label in zip(range(1, 6), begins, ends, labels, strict=True)
    ]
    timeline, steps = life(records, hooked=0)
    ledger = keep_ledger(timeline, steps, [window(3, 3, start_ns=25, stop_ns=200, export_ns=90, release_ns=10)])
    assert parts_of(ledger) == {
        "first_step": 100,
        "window_start": 25,
        "window_steps": 200,
        "window_stop": 200,
        "window_export": 100,
        "steps": 200,
        "hooks": 5 + 10 + 20 + 10,
    }


def test_a_window_that_opens_the_first_step_and_one_that_the_end_closes_are_told_apart() -> None:
    records = [step_record(1, 50, 150, window="warmup"), step_record(2, 160, 260, window="profiled")]
    timeline, steps = life(records, hooked=10, ended=500)
    ledger = keep_ledger(timeline, steps, [window(2, 9, start_ns=30, stop_ns=100, export_ns=60)])
    assert parts_of(ledger) == {
        "set_up": 10,
        "before_first_step": 10,
        "window_start": 30,
        "window_steps": 200,
        "hooks": 10,
        "window_stop": 100,
        "window_export": 60,
        "end": 80,
    }


def test_a_window_that_was_lost_is_no_hook() -> None:
    records = [
        step_record(1, 0, 10),
        step_record(2, 11, 20, window="profiled"),
        step_record(3, 90, 99, window="export"),
    ]
    timeline, steps = life(records, hooked=0)
    assert keep_ledger(timeline, steps, []).parts[Part.WINDOW_STOP] == 70


def test_of_an_old_run_the_rest_is_absent_and_not_zero() -> None:
    records = [step_record(1, 5, 10, hook_ns=None), step_record(2, 12, 20)]
    timeline, steps = life(records, started=None, ended=20)
    ledger = keep_ledger(timeline, steps, [])
    assert parts_of(ledger) == {"first_step": 5, "hooks": 2, "steps": 8}
    assert not ledger.is_start_known
    assert Part.VALIDATION not in ledger.parts
    assert Part.IMPORTS not in ledger.parts
    assert Part.DATA_WAIT not in ledger.parts


def test_where_the_first_step_was_not_seen_to_begin_it_cannot_be_told_from_start_up() -> None:
    timeline, steps = life([step_record(1, 0, 90, wall_ns=None), step_record(2, 95, 100)], torch_loaded=20, hooked=40)
    ledger = keep_ledger(timeline, steps, [])
    assert parts_of(ledger) == {"imports": 20, "set_up": 20, "before_first_step": 50, "hooks": 5, "steps": 5}
    assert not ledger.is_first_step_known
    assert Part.FIRST_STEP not in ledger.parts


def test_a_forked_process_begins_when_it_was_forked() -> None:
    """What its parent did before, such as loading torch, is no part of its life."""
    timeline, steps = life([step_record(1, 150, 200)], started=100, torch_loaded=30, hooked=50)
    ledger = keep_ledger(timeline, steps, [])
    assert ledger.wall_ns == 100
    assert parts_of(ledger) == {"before_first_step": 50, "first_step": 50}
