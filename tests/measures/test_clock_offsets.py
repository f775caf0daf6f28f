"""Claims about who aligns clocks: the pipeline's and the replay's clocks are no later for the rank that comes last."""

from __future__ import annotations

import pytest

from perfscope.analyzers.pipeline_bubble.measurement import align_clocks
from perfscope.analyzers.pipeline_bubble.rank_passes import CollectiveRun, PassesOfStep, RankPasses

OFFSET_NS = 5_000_000
SKEW_NS = 40_000
TRANSFER_NS = 500_000


def stage(host: str, runs: list[CollectiveRun]) -> RankPasses:
    collectives = {("all_reduce", number): run for number, run in enumerate(runs)}
    step = PassesOfStep("ProfilerStep#1", (), (), collectives)
    return RankPasses(0, 2, host, (), None, None, is_marked=False, steps=(step,))


def collectives(leads_ns: list[int]) -> tuple[list[CollectiveRun], list[CollectiveRun]]:
    """Runs of two ranks; the second one begins so much later, and whoever comes last leaves ``SKEW_NS`` later."""
    first, second = [], []
    for number, lead_ns in enumerate(leads_ns):
        begins = 10_000_000 * number, 10_000_000 * number + lead_ns
        end_ns = max(begins) + TRANSFER_NS
        ends = end_ns + SKEW_NS * (lead_ns < 0), end_ns + SKEW_NS * (lead_ns > 0) + OFFSET_NS
        first.append(CollectiveRun(ends[0], ends[0] - begins[0]))
        second.append(CollectiveRun(ends[1], ends[1] - OFFSET_NS - begins[1]))
    return first, second


@pytest.mark.parametrize("early", [3, 4, 12])
def test_a_stage_that_mostly_comes_last_is_not_taken_for_a_later_clock(early: int) -> None:
    """The median of all differences would be off by the skew of the many."""
    first, second = collectives([900_000] * (2 * early + 1) + [-900_000] * early)
    clocks = align_clocks([stage("a", first), stage("b", second)])
    assert clocks.offset_ns == (0, -OFFSET_NS)
    assert clocks.error_ns == 0


def test_a_stage_that_always_comes_last_has_an_error_that_covers_the_truth() -> None:
    first, second = collectives([900_000] * 9)
    clocks = align_clocks([stage("a", first), stage("b", second)])
    assert clocks.error_ns is not None
    assert abs(clocks.offset_ns[1] + OFFSET_NS) <= clocks.error_ns
