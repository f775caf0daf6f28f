"""Which rank is late and why, against steps whose parts were put together by hand and a slow count of them."""

from __future__ import annotations

import dataclasses
import random
from statistics import median
from typing import Any

import numpy as np
import pytest

from benchmarks import kept_run
from benchmarks.stragglers import FIXTURES, judge_fixtures
from perfscope.analyzers.stragglers.lateness import LateCause, over_others, split_steps
from perfscope.analyzers.stragglers.records import analyze
from perfscope.constants import NS_PER_MS as MS
from perfscope.errors import MissingInput
from perfscope.measures.parts import HostPart
from perfscope.sources.runs.run import read_run
from perfscope.sources.runs.step_columns import to_steps
from perfscope.tables.run import Rank, Run
from perfscope.tables.steps import Steps
from perfscope.wire import GARBAGE
from perfscope.wire.host import HostWaits, HostWork
from perfscope.wire.records import Span, StepRecord

STEPS = 40


def make_steps(ranks: list[dict[int, dict[str, Any]]], *, waits: bool = True, **always: Any) -> list[Steps]:
    """The steps of ranks that compute 20 ms each and wait for the last; each has parts (ms) of its own in some steps.

    A part is ``data``, ``garbage``, ``delay``, ``system``, ``sleep``, ``save``, ``compute``; ``tokens`` and ``faults``
    are counts. For ``queued`` of what it sleeps another thread that launches its backward passes has no processor.
    """
    source = random.Random(5)
    ends = [0] * len(ranks)
    records: list[list[StepRecord]] = [[] for _ in ranks]
    for step in range(1, STEPS + 1):
        own = []
        for parts in ranks:
            ms = {**always, **parts.get(0, {}), **parts.get(step, {})}
            names = ("data", "garbage", "delay", "system", "sleep", "save", "compute")
            own.append((20 + source.random() / 4 + sum(ms.get(name, 0) for name in names), ms))
        longest = max(time for time, _ in own)
        for rank, (time, ms) in enumerate(own):
            total = round(longest * MS) + MS
            wait = round((longest - time) * MS) + MS if waits else None
            ends[rank] += total
            off = round((ms.get("data", 0) + ms.get("sleep", 0) + ms.get("save", 0)) * MS) + (wait or 0)
            delay = round(ms.get("delay", 0) * MS)
            spans = None
            if ms.get("garbage"):
                spans = (Span(GARBAGE, ends[rank] - MS - round(ms["garbage"] * MS), ends[rank] - MS),)
            save = round(ms.get("save", 0) * MS)
            records[rank].append(
                StepRecord(
                    step,
                    ends[rank],
                    "optimizer",
                    wall_ns=total - save,
                    tokens=ms.get("tokens", 1000),
                    data_wait_ns=round(ms.get("data", 0) * MS),
                    save_ns=save or None,
                    spans=spans,
                    host=HostWork(total - off - delay, delay, round(ms.get("system", 0) * MS), ms.get("faults", 0), 0),
                    launcher_delay_ns=round(ms["queued"] * MS) if "queued" in ms else None,
                    waits=None if wait is None else HostWaits(wait, 0),
                )
            )
    return [to_steps(rank, 0, rows) for rank, rows in enumerate(records)]


def make_run(tables: list[Steps], parallel: dict[int, dict[str, int]] | None = None) -> Run:
    ranks = tuple(
        Rank(table.rank, 0, len(tables), "host", None, (), None, "cpu", None, (), (parallel or {}).get(table.rank, {}))
        for table in tables
    )
    return Run("run", (), None, ranks, tuple(tables), (), ())


def answers(ranks: list[dict[int, dict[str, Any]]], **options: Any) -> list[tuple[int | None, LateCause, bool]]:
    result = analyze(make_run(make_steps(ranks, **options)))
    return [(late.rank, late.cause, late.persistent) for late in result.late]


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize(
    ("parts", "cause"),
    [
        ({"data": 10}, LateCause.DATA),
        ({"garbage": 10}, LateCause.GARBAGE),
        ({"delay": 10}, LateCause.CONTENTION),
        ({"sleep": 10}, LateCause.BLOCKED),
        ({"system": 10, "faults": 5000}, LateCause.FAULTS),
        ({"system": 10}, LateCause.KERNEL),
        ({"compute": 10, "tokens": 1500}, LateCause.WORK),
        ({"compute": 10}, LateCause.COMPUTE),
    ],
)
def test_a_rank_that_is_always_late_is_named_with_its_cause(ranks: int, parts: dict[str, Any], cause: str) -> None:
    quiet: list[dict[int, dict[str, Any]]] = [{} for _ in range(ranks - 1)]
    assert answers([*quiet, {0: parts}]) == [(ranks - 1, cause, True)]


@pytest.mark.parametrize("part", ["data", "garbage", "delay", "sleep", "save"])
def test_a_rank_that_is_late_in_a_few_steps_is_named_with_them(part: str) -> None:
    steps = (11, 23, 24)
    result = analyze(make_run(make_steps([{}, {step: {part: 30} for step in steps}, {}])))
    (late,) = result.late
    assert (late.rank, late.persistent, late.steps, late.examples) == (1, False, 3, steps)
    assert late.cost_ns == pytest.approx(90 * MS, rel=0.02)
    assert late.cause_ns <= late.cost_ns


def test_nobody_is_late_where_all_do_the_same() -> None:
    assert answers([{}, {}]) == []
    assert answers([{0: {"data": 8, "delay": 3}}] * 4) == []


def test_two_ranks_that_are_late_by_turns_are_both_named() -> None:
    late = answers([{5: {"data": 40}, 15: {"data": 40}}, {25: {"sleep": 40}, 35: {"sleep": 40}}, {}])
    assert sorted(late, key=str) == [(0, LateCause.DATA, False), (1, LateCause.BLOCKED, False)]


def test_several_causes_of_one_rank_are_told_apart_and_cost_at_most_all() -> None:
    result = analyze(make_run(make_steps([{}, {0: {"data": 12, "sleep": 8}}])))
    assert [(late.rank, late.cause) for late in result.late] == [(1, LateCause.DATA), (1, LateCause.BLOCKED)]
    assert sum(late.cost_ns for late in result.late) <= 21 * STEPS * MS


def test_a_few_long_waits_of_a_rank_that_is_always_late_are_not_in_most_steps() -> None:
    slow = {step: {"data": 60} for step in (9, 14, 22)}
    result = analyze(make_run(make_steps([{}, {0: {"sleep": 5}, **slow}])))
    assert {(late.cause, late.persistent) for late in result.late} == {
        (LateCause.BLOCKED, True),
        (LateCause.DATA, False),
    }
    assert [late.examples for late in result.late if late.cause is LateCause.DATA] == [(9, 14, 22)]


def test_a_slow_exchange_is_the_network_and_no_rank() -> None:
    tables = make_steps([{}, {}])
    slow = [7, 19, 31]
    changed = []
    for table in tables:
        host = table.host
        assert host is not None
        shift = np.cumsum(np.isin(table.step, slow)) * 50 * MS
        waits = np.ma.MaskedArray(host.collectives_ns.data + np.isin(table.step, slow) * 50 * MS)
        wall = np.ma.MaskedArray(table.wall_ns.data + np.isin(table.step, slow) * 50 * MS)
        changed.append(
            dataclasses.replace(
                table, end_ns=table.end_ns + shift, wall_ns=wall, host=dataclasses.replace(host, collectives_ns=waits)
            )
        )
    (late,) = analyze(make_run(changed)).late
    assert (late.rank, late.cause, late.examples) == (None, LateCause.NETWORK, tuple(slow))


def test_without_timed_waits_only_evidence_counts() -> None:
    assert answers([{}, {0: {"compute": 10}}], waits=False) == []
    assert answers([{}, {0: {"data": 10}}], waits=False) == [(1, LateCause.DATA, True)]


def test_a_thread_that_launches_backward_passes_without_a_processor_is_contention_and_no_sleep() -> None:
    steps = (9, 14, 22)
    asleep = {step: {"sleep": 30} for step in steps}
    queued = {step: {"sleep": 30, "queued": 28} for step in steps}
    assert answers([{}, asleep], waits=False) == [(1, LateCause.BLOCKED, False)]
    assert answers([{}, queued], waits=False, queued=0) == [(1, LateCause.CONTENTION, False)]
    assert answers([{}, asleep], waits=False, queued=0) == [(1, LateCause.BLOCKED, False)]


def test_stages_of_a_pipeline_are_not_blamed_for_their_work() -> None:
    tables = make_steps([{}, {0: {"compute": 15}}])
    parallel = {0: {"pp": 0}, 1: {"pp": 1}}
    assert analyze(make_run(tables, parallel)).late == ()
    (late,) = analyze(make_run(make_steps([{}, {0: {"sleep": 15}}]), parallel)).late
    assert (late.rank, late.cause) == (1, LateCause.BLOCKED)


def test_the_parts_of_each_step_add_up_to_it() -> None:
    source = random.Random(2)
    names = ("data", "garbage", "delay", "system", "sleep", "save", "compute")
    ranks = [
        {step: {name: source.choice([0, 0, source.random() * 30]) for name in names} for step in range(1, STEPS + 1)}
        for _ in range(4)
    ]
    parts = split_steps(make_steps(ranks))
    assert parts is not None
    assert np.array_equal(sum(parts.parts_ns.values()), parts.total_ns)
    assert min(values.min() for values in parts.parts_ns.values()) >= 0
    for row, rank in enumerate(ranks):
        for column, step in enumerate(parts.step.tolist()):
            assert parts.parts_ns[HostPart.DATA][row, column] == round(rank[step]["data"] * MS)


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 9])
def test_the_excess_over_the_other_ranks_is_that_of_their_median(ranks: int) -> None:
    values = np.asarray(
        [[random.Random(rank * 100 + step).randint(0, 9) for step in range(50)] for rank in range(ranks)]
    )
    ours = over_others(values)
    for rank in range(ranks):
        for step in range(50):
            assert ours[rank, step] == values[rank, step] - median(np.delete(values[:, step], rank).tolist())


def test_only_steps_that_all_ranks_have_are_compared() -> None:
    first, second = make_steps([{}, {0: {"data": 10}}])
    window = second.window.astype("<U8")
    window[9:12] = "profiled"
    parts = split_steps([first, dataclasses.replace(second, window=window)])
    assert parts is not None
    assert not {10, 11, 12} & set(parts.step.tolist())
    assert 1 not in parts.step


def test_a_clock_that_jumps_back_is_left_out() -> None:
    tables = make_steps([{}, {0: {"data": 10}}])
    for table in tables:
        table.end_ns[20:] -= 10**12
    result = analyze(make_run(tables))
    assert [(late.rank, late.cause) for late in result.late] == [(1, LateCause.DATA)]
    assert result.parts is not None
    assert 21 not in result.parts.step
    assert result.parts.total_ns.min() > 0


def test_one_rank_and_old_records_say_why_they_are_not_compared() -> None:
    with pytest.raises(MissingInput, match="two ranks"):
        analyze(make_run(make_steps([{}])))
    old = [to_steps(rank, 0, [StepRecord(1, 5, "optimizer", 5)]) for rank in (0, 1)]
    with pytest.raises(MissingInput, match="did not record"):
        analyze(make_run(old))


def examples(ranks: list[dict[int, dict[str, Any]]]) -> list[tuple[int | None, LateCause, tuple[int, ...]]]:
    result = analyze(make_run(make_steps(ranks, waits=False)))
    return [(late.rank, late.cause, late.examples) for late in result.late]


@pytest.mark.parametrize("behind", [0, 1, 2, 3])
def test_a_host_that_waits_for_a_late_rank_is_not_late(behind: int) -> None:
    garbage = {step: {"garbage": 60} for step in (9, 15, 22)}
    waits = {step + behind: {"sleep": 58} for step in garbage}
    assert examples([waits, garbage]) == [(1, LateCause.GARBAGE, (9, 15, 22))]


@pytest.mark.parametrize("behind", [1, 2])
def test_of_two_hosts_that_are_blocked_one_after_the_other_the_first_is_late(behind: int) -> None:
    asleep = {step: {"sleep": 60} for step in (9, 14, 15, 22)}
    waits = {step + behind: {"sleep": 58} for step in (9, 15, 22)}
    assert [late[:2] for late in examples([waits, asleep])] == [(1, LateCause.BLOCKED)]


def test_a_host_that_is_blocked_longer_or_later_than_it_could_wait_is_late_itself() -> None:
    garbage = {step: {"garbage": 60} for step in (9, 22, 32)}
    late = {step: {"sleep": 60} for step in (13, 18, 27)}
    assert set(examples([late, garbage])) == {(1, LateCause.GARBAGE, (9, 22, 32)), (0, LateCause.BLOCKED, (13, 18, 27))}
    longer = {step: {"sleep": 160} for step in (10, 23, 33)}
    assert (0, LateCause.BLOCKED, (10, 23, 33)) in examples([longer, garbage])


def test_a_host_that_waits_in_each_step_is_not_late() -> None:
    (late,) = examples([{0: {"sleep": 14}}, {0: {"garbage": 15}}])
    assert late[:2] == (1, LateCause.GARBAGE)


def test_no_rank_that_waits_is_called_blocked_in_recorded_trainings() -> None:
    for answer in judge_fixtures():
        if answer.name.startswith("nccl/"):
            lateness = analyze(read_run(kept_run(FIXTURES / answer.name))).late
            assert {late.rank for late in lateness if late.cause is LateCause.BLOCKED} <= {answer.rank}, answer.name
