"""A host that is blocked a step or more behind another rank's lateness waits for it; what is longer is its own."""

from __future__ import annotations

import random
from statistics import median
from typing import Any

import numpy as np
import pytest

from benchmarks import kept_run
from benchmarks.stragglers import FIXTURES, judge_fixtures
from perfscope.analyzers.stragglers.lateness import Cause, without_peer_waits
from perfscope.analyzers.stragglers.parts import Part
from perfscope.analyzers.stragglers.records import analyze
from perfscope.sources.runs.run import read_run
from tests.analyzers.stragglers.test_lateness import make_run, make_steps

COUNTED = (Part.GARBAGE, Part.DATA, Part.BLOCKED)


def answers(ranks: list[dict[int, dict[str, Any]]]) -> list[tuple[int | None, Cause, tuple[int, ...]]]:
    result = analyze(make_run(make_steps(ranks, waits=False)))
    return [(late.rank, late.cause, late.examples) for late in result.late]


@pytest.mark.parametrize("behind", [0, 1, 2, 3])
def test_a_host_that_waits_for_a_late_rank_is_not_late(behind: int) -> None:
    garbage = {step: {"garbage": 60} for step in (9, 15, 22)}
    waits = {step + behind: {"sleep": 58} for step in garbage}
    assert answers([waits, garbage]) == [(1, Cause.GARBAGE, (9, 15, 22))]


@pytest.mark.parametrize("behind", [1, 2])
def test_of_two_hosts_that_are_blocked_one_after_the_other_the_first_is_late(behind: int) -> None:
    asleep = {step: {"sleep": 60} for step in (9, 14, 15, 22)}
    waits = {step + behind: {"sleep": 58} for step in (9, 15, 22)}
    assert [late[:2] for late in answers([waits, asleep])] == [(1, Cause.BLOCKED)]


def test_a_host_that_is_blocked_longer_or_later_than_it_could_wait_is_late_itself() -> None:
    garbage = {step: {"garbage": 60} for step in (9, 22, 32)}
    late = {step: {"sleep": 60} for step in (13, 18, 27)}
    assert set(answers([late, garbage])) == {(1, Cause.GARBAGE, (9, 22, 32)), (0, Cause.BLOCKED, (13, 18, 27))}
    longer = {step: {"sleep": 160} for step in (10, 23, 33)}
    assert (0, Cause.BLOCKED, (10, 23, 33)) in answers([longer, garbage])


def test_a_host_that_waits_in_each_step_is_not_late() -> None:
    (late,) = answers([{0: {"sleep": 14}}, {0: {"garbage": 15}}])
    assert late[:2] == (1, Cause.GARBAGE)


def by_hand(excess: dict[Part, list[list[float]]], steps: list[int], median_ns: float) -> list[list[float]]:
    ranks = range(len(excess[Part.BLOCKED]))
    blocked = [list(values) for values in excess[Part.BLOCKED]]
    other = [
        [sum(max(excess[part][rank][place], 0) for part in (Part.GARBAGE, Part.DATA)) for place in range(len(steps))]
        for rank in ranks
    ]
    usual, usual_other = [max(median(values), 0) for values in blocked], [median(values) for values in other]
    rest = []
    for rank in ranks:
        wait = min(usual[rank], max(usual_other[peer] for peer in ranks if peer != rank))
        blocked[rank] = [value - wait for value in blocked[rank]]
        rest.append(usual[rank] - wait)
    beyond_other = [[value - usual_other[rank] for value in other[rank]] for rank in ranks]
    for place, step in enumerate(steps):
        beyond = [blocked[rank][place] - rest[rank] for rank in ranks]
        if max(beyond) <= 0.05 * median_ns:
            continue
        late = []
        for rank in ranks:
            most = max(0.0, beyond_other[rank][place])
            for before in range(place):
                if step - steps[before] <= 3:
                    value = max(blocked[rank][before] - rest[rank], 0) + max(beyond_other[rank][before], 0)
                    most = max(most, beyond_other[rank][before], value)
            late.append(most)
        for rank in ranks:
            wait = min(max(beyond[rank], 0), max(late[peer] for peer in ranks if peer != rank))
            blocked[rank][place] -= wait
    return blocked


@pytest.mark.parametrize("seed", range(10))
def test_waits_are_those_of_a_slow_count(seed: int) -> None:
    source = random.Random(seed)
    ranks, count = source.choice([2, 3, 5]), source.randint(1, 40)
    steps = sorted(source.sample(range(1, 2 * count + 1), count))
    excess = {
        part: [[source.choice([0, 0, source.uniform(-20, 60)]) for _ in steps] for _ in range(ranks)]
        for part in COUNTED
    }
    arrays = {part: np.asarray(values) for part, values in excess.items()}
    found = without_peer_waits(arrays, COUNTED, np.asarray(steps), 20.0)
    np.testing.assert_allclose(found, by_hand(excess, steps, 20.0), atol=1e-9)


def test_no_rank_that_waits_is_called_blocked_in_recorded_trainings() -> None:
    for answer in judge_fixtures():
        if answer.name.startswith("nccl/"):
            lateness = analyze(read_run(kept_run(FIXTURES / answer.name))).late
            assert {late.rank for late in lateness if late.cause is Cause.BLOCKED} <= {answer.rank}, answer.name
