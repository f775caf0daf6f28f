"""A slow device is told from one that waits for its host, from other tensors, and from exchanges inside a pass."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from msgspec.structs import replace

from perfscope.analyzers.stragglers.lateness import LateCause
from perfscope.analyzers.stragglers.records import analyze
from perfscope.constants import NS_PER_MS as MS
from perfscope.tables.run import Run
from perfscope.wire.host import DeviceProbe
from perfscope.wire.setup import SetupRecord
from tests.analyzers.stragglers.test_lateness import make_run, make_steps

ZERO_1 = SetupRecord(engine={"zero_optimization.stage": 1})
ZERO_3 = SetupRecord(engine={"zero_optimization.stage": 3})


def probe(
    step: int, forward: float | None = 3, update: float = 1, launch: float | None = 0, before: int = 0
) -> DeviceProbe:
    """Times in milliseconds; ``launch`` is how long the device may have waited for the host."""
    forward_ns = None if forward is None else round(forward * MS)
    launch_ns = None if launch is None else round(launch * MS)
    return DeviceProbe(step, before, forward_ns, 10 * MS, round(update * MS), launch_ns, launch_ns)


def probed(ranks: list[dict[str, Any]], setup: SetupRecord | None = None, **steps: Any) -> Run:
    """A run on GPUs whose ranks have ten probes each; ``host`` is what a rank's host does, ``slow`` changes a probe."""
    tables = make_steps([{0: rank.pop("host", {})} for rank in ranks], waits=False, **steps)
    with_probes = [
        dataclasses.replace(table, probes=tuple(probe(step, **rank) for step in range(3, 33, 3)))
        for table, rank in zip(tables, ranks, strict=True)
    ]
    run = make_run(with_probes)
    return replace(run, setups={} if setup is None else {table.rank: setup for table in tables})


def answers(run: Run) -> list[tuple[int | None, LateCause]]:
    return [(late.rank, late.cause) for late in analyze(run).late]


def test_forward_passes_up_to_zero_2_hold_no_exchange() -> None:
    """The one whose device is not slow has a longer optimizer by chance."""
    ranks = [{"forward": 2.8, "update": 1.08}, {"forward": 7.1, "update": 1.0}]
    assert answers(probed([*map(dict, ranks)], ZERO_1)) == [(1, LateCause.DEVICE)]
    assert answers(probed([*map(dict, ranks)], ZERO_3)) == [(0, LateCause.DEVICE)], "only the optimizer is compared"


@pytest.mark.parametrize(
    ("launch", "expected"), [(0, [(1, LateCause.DEVICE)]), (2.9, [(1, LateCause.DEVICE)]), (3, []), (4, [])]
)
def test_a_device_that_may_have_waited_for_the_host_is_not_slow(
    launch: float, expected: list[tuple[int, LateCause]]
) -> None:
    assert answers(probed([{"forward": None}, {"forward": None, "update": 4, "launch": launch}])) == expected


@pytest.mark.parametrize(("stages", "expected"), [((0, 0), [(1, LateCause.DEVICE)]), ((0, 1), [])])
def test_a_stage_is_compared_with_its_replicas_alone(
    stages: tuple[int, int], expected: list[tuple[int, LateCause]]
) -> None:
    """Other stages have other work; a run of which another rank is a stage has three."""
    run = probed([{"forward": None}, {"forward": None, "update": 4}, {"forward": None, "update": 9}])
    places = dict(enumerate((*stages, 7)))
    run = replace(run, ranks=tuple(replace(rank, parallel={"pp": places[rank.rank]}) for rank in run.ranks))
    assert answers(run) == expected


def test_a_slow_device_of_a_late_host_is_named_where_it_did_not_wait_for_it() -> None:
    run = probed([{"forward": None}, {"forward": None, "update": 4, "host": {"sleep": 15}}])
    assert set(answers(run)) == {(1, LateCause.DEVICE), (1, LateCause.BLOCKED)}


def test_the_cost_is_that_of_what_was_compared() -> None:
    """An optimizer that takes 3 ms longer says nothing of passes that were not compared."""
    run = probed([{"forward": None}, {"forward": None, "update": 4}])
    (late,) = analyze(run).late
    assert late.cost_ns == 3 * MS * len(run.steps[1])


def test_backward_passes_in_another_thread_are_no_sleep() -> None:
    """The thread that trains is blocked for 10 ms in every step while another launches the backward pass."""
    some = {step: {"sleep": 17} for step in range(10, 20)}
    assert not answers_of([{}, some], sleep=10)
    assert not answers_of([{}, {0: {"sleep": 15}}], sleep=10)
    assert answers_of([{}, {0: {"sleep": 25}}], sleep=10) == [(1, LateCause.BLOCKED)]
    assert answers_of([{}, {step: {"sleep": 40} for step in range(10, 15)}], sleep=10) == [(1, LateCause.BLOCKED)]


@pytest.mark.parametrize(
    ("idle", "expected"), [((0, 30), [(1, LateCause.BLOCKED)]), ((9, 9), []), ((0, 0), []), ((None, 30), [])]
)
def test_a_thread_that_waits_for_one_that_launches_is_no_sleep_and_a_process_that_is_idle_is(
    idle: tuple[float | None, float], expected: list[tuple[int, LateCause]]
) -> None:
    """The second rank's thread is blocked for 10 ms longer: the one in its backward pass, or its device lags."""
    run = probed([{"forward": None, "host": {"sleep": sleep}} for sleep in (27, 37)])
    steps = []
    for table, idle_ms in zip(run.steps, idle, strict=True):
        idle_ns = None if idle_ms is None else round(idle_ms * MS)
        probes = tuple(each._replace(idle_ns=idle_ns) for each in table.probes)
        steps.append(dataclasses.replace(table, probes=probes))
    assert answers(replace(run, steps=tuple(steps))) == expected


@pytest.mark.parametrize(
    ("units", "launch", "expected"),
    [((9, 14), 0, [(1, "device")]), ((9, 14), 10, []), ((100, 116), 0, []), ((100, 126), 0, [(1, "device")])],
)
def test_sharded_modules_are_compared_from_when_their_weights_are_there(
    units: tuple[int, int], launch: float, expected: list[tuple[int, str]]
) -> None:
    """Beside a collective that waits for the other rank they take a little longer."""
    run = probed([{"forward": None}, {"forward": None}])
    steps = []
    for table, units_ms in zip(run.steps, units, strict=True):
        probes = tuple(
            each._replace(units_ns=units_ms * MS, units_launch_ns=round(launch * MS)) for each in table.probes
        )
        steps.append(dataclasses.replace(table, probes=probes))
    assert answers(replace(run, steps=tuple(steps))) == expected


def answers_of(ranks: list[dict[int, dict[str, Any]]], **always: Any) -> list[tuple[int | None, LateCause]]:
    return answers(make_run(make_steps(ranks, waits=False, **always)))
