"""Of many ranks the straggler is named with its reason, and clocks are aligned."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.synthetic_ranks import ON_A_HOST, Job, Made, make_job
from perfscope.analyzers import clock
from perfscope.analyzers.collectives.rank_calls import RankCalls
from perfscope.analyzers.stragglers import traces as stragglers

RANKS = 1024
#: What a cause is called in the reason.
REASONS = {"compute": "computed longer: slower", "not_shown": "does not show", "data_loading": "loaded data"}


def calls_of(job: Job) -> list[tuple[RankCalls, ...]]:
    partials = []
    for measured in Made(job):
        calls = measured.partials["collectives"]
        assert isinstance(calls, tuple)
        partials.append(calls)
    return partials


@pytest.mark.parametrize("is_flat", [False, True])
def test_the_straggler_of_many_ranks_is_named_with_its_reason(is_flat: bool) -> None:
    """The one of several that the others wait for most."""
    job = replace(make_job(RANKS, stragglers=12), is_flat=is_flat)
    result = stragglers.analyze(calls_of(job))
    named = next(straggler for straggler in job.stragglers if straggler.rank == result.straggler)
    reasons = [
        rank.reason for group in result.groups for rank in group.ranks if rank.rank == named.rank and rank.excess
    ]
    assert reasons
    assert all(REASONS[named.cause] in (reason or "") for reason in reasons)


def test_no_rank_is_late_in_a_clean_job() -> None:
    assert stragglers.analyze(calls_of(make_job(RANKS, stragglers=0))).straggler is None


def test_clocks_are_found_as_they_were_set() -> None:
    job = make_job(RANKS, stragglers=0)
    for rank in clock.analyze(calls_of(job)).ranks:
        assert rank.offset_ns is not None
        assert rank.residual_ns is not None
        assert abs(rank.offset_ns - job.skew_ns[rank.rank // ON_A_HOST]) <= rank.residual_ns + 1
