"""A library gave up, and nobody dumped its collectives: what the ranks launched from Python tells which one differs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfscope.analyzers.postmortem.diagnosis import Diagnosis, Reason, diagnose
from perfscope.tables.postmortem import CodeLine, Death, PostMortem, RankState, ThreadStack
from perfscope.wire.launched_calls import LaunchedCall

STEPS = 6
WAIT = CodeLine("/torch/distributed/distributed_c10d.py", 3, "all_reduce")
LINE = CodeLine("/home/user/train.py", 148, "count")


def step(number: int, *elements: int) -> list[LaunchedCall]:
    """A backward pass, and then collectives of the script."""
    return [LaunchedCall(number, "backward", None, 0)] + [LaunchedCall(number, "all_reduce", 0, n) for n in elements]


def regular(last: int = STEPS) -> list[LaunchedCall]:
    return [call for number in range(1, last + 1) for call in step(number, 1, 4)]


def ended(launched: list[list[LaunchedCall]], signals: tuple[int | None, ...]) -> Diagnosis:
    """Rank 0 was ended first, by a signal of its own or of the launcher, and the others after it."""
    ranks = {
        rank: RankState(
            rank,
            "host",
            STEPS,
            stack=ThreadStack("", (WAIT, LINE)) if rank == 0 else None,
            is_library_abort=signal == 6,
            death=Death(10**18 + rank, signal=signal, launched=tuple(calls)),
        )
        for rank, (calls, signal) in enumerate(zip(launched, signals, strict=True))
    }
    return diagnose(PostMortem("run", ranks, len(ranks)))


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize(
    ("faulty", "reason"),
    [
        ([*step(STEPS + 1, 1), *step(STEPS + 2)], Reason.SKIPPED),
        (step(STEPS + 1, 1, 5), Reason.SIZE),
        (step(STEPS + 1, 4, 1), Reason.ORDER),
    ],
)
def test_the_rank_that_launched_something_else_is_named(ranks: int, faulty: list[LaunchedCall], reason: Reason) -> None:
    right = [*regular(), *step(STEPS + 1, 1, 4)]
    answer = ended([right] * (ranks - 1) + [[*regular(), *faulty]], (6, *[15] * (ranks - 1)))
    assert (answer.reason, answer.ranks, answer.line) == (reason, (ranks - 1,), LINE)
    assert answer.group is None


def test_the_rank_whose_library_gave_up_may_be_the_one_that_differs() -> None:
    faulty = [*regular(), *step(STEPS + 1, 1), *step(STEPS + 2)]
    answer = ended([faulty, [*regular(), *step(STEPS + 1, 1, 4)]], (6, 15))
    assert (answer.reason, answer.ranks) == (Reason.SKIPPED, (0,))
    assert (
        answer.text == "rank 0 called backward in group 0, where the others called all_reduce of 4 elements in group 0"
    )


def test_memories_that_begin_at_other_steps_are_compared_from_where_both_do() -> None:
    faulty = [*regular(), *step(STEPS + 1, 1), *step(STEPS + 2)]
    for first in (1, 3):
        right = [call for call in [*regular(), *step(STEPS + 1, 1, 4)] if call.step >= first]
        assert ended([right, [call for call in faulty if call.step >= 4 - first]], (6, 15)).ranks == (1,)


def test_ranks_that_launched_the_same_or_are_not_all_known_are_not_blamed() -> None:
    right = [*regular(), *step(STEPS + 1, 1, 4)]
    faulty = [*regular(), *step(STEPS + 1, 1), *step(STEPS + 2)]
    assert ended([right, right], (6, 15)).reason is Reason.UNKNOWN
    assert ended([right, right[:-1]], (6, 15)).reason is Reason.UNKNOWN
    assert ended([right, []], (6, 15)).reason is Reason.UNKNOWN
    answer = ended([right, faulty], (15, 15))
    assert answer.reason is Reason.UNKNOWN, "somebody ended the job"
    assert answer.text.endswith("; the process of rank 0 ended first, by SIGTERM, as launchers and people send it")


def test_a_crash_that_is_no_librarys_stays_one() -> None:
    faulty = [*regular(), *step(STEPS + 1, 1), *step(STEPS + 2)]
    ranks = {
        rank: RankState(rank, "host", death=Death(10**18 + rank, signal=signal, launched=tuple(calls)))
        for rank, (calls, signal) in enumerate([(regular(), 11), (faulty, 15)])
    }
    assert diagnose(PostMortem("run", ranks, 2)).reason is Reason.CRASH
    known = {0: replace(ranks[0], death=None), 1: ranks[1]}
    assert diagnose(PostMortem("run", known, 2)).reason is Reason.UNKNOWN
    unseen = {0: replace(ranks[0], death=Death(10**18))}
    assert diagnose(PostMortem("run", unseen, 1)).text.endswith("the process of rank 0 ended first, how was not seen")
