"""Scenarios against plain definitions, and against trainings in which the change was really made."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from benchmarks.whatif_pairs import PAIRS, Pair, document
from perfscope.analyzers.whatif.job_graph import match_unnamed_transfers
from perfscope.analyzers.whatif.scenarios import SCENARIOS, find_recomputed, find_repeats
from tests.analyzers.whatif.jobs import real_job
from tests.conftest import ROOT


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 6), max_size=40), st.lists(st.integers(0, 6), max_size=40))
def test_repeated_parts_are_those_that_a_search_finds(forward: list[int], backward: list[int]) -> None:
    expected = [False] * len(backward)
    for start in range(len(backward) - 4):
        part = backward[start : start + 5]
        if len(set(part)) >= 3 and any(forward[at : at + 5] == part for at in range(len(forward) - 4)):
            expected[start : start + 5] = [True] * 5
    assert find_repeats(forward, backward).tolist() == expected


@pytest.mark.parametrize("folder", ["whatif/base", "whatif/no_overlap", "whatif/fsdp2", "whatif/ds_pp4"])
def test_nothing_is_recomputed_where_nothing_was(folder: str) -> None:
    assert not any(find_recomputed(graph).any() for graph in real_job(folder).ranks)


def test_transfers_without_peers_are_matched_as_those_with_them() -> None:
    """DeepSpeed's name their peers: taken away, the pairs that end together are found by that."""
    job = real_job("whatif/ds_pp4")
    named = {
        item.members
        for item in job.operations
        if item.is_point_to_point
        and np.ptp([job.ranks[rank].end_ns[row] + job.offset_ns[rank] for rank, row in item.members]) <= 25_000
    }
    ranks = [replace(graph, groups=(), group_events=()) for graph in job.ranks]
    found = {item.members for item in match_unnamed_transfers(ranks, job.offset_ns)}
    assert len(named) > 70
    assert len(named & found) >= 0.95 * len(named)
    assert len(found - named) <= 0.05 * len(named)
    apart = [replace(graph, host=str(rank)) for rank, graph in enumerate(ranks)]
    assert match_unnamed_transfers(apart, job.offset_ns) == []


LARGEST_ERROR = 0.05


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair.traces}-{pair.scenario}")
def test_a_change_takes_what_it_took_where_it_was_made(pair: Pair) -> None:
    """And a prediction is nearer than no change, which would be right where a change makes no difference alone."""
    assert abs(pair.error) <= LARGEST_ERROR
    unchanged = abs(pair.undisturbed_ms / pair.truth_ms - 1)
    assert unchanged <= LARGEST_ERROR or abs(pair.error) < unchanged


def test_every_scenario_has_a_pair() -> None:
    assert {pair.scenario.partition("=")[0] for pair in PAIRS} == {scenario.name for scenario in SCENARIOS}


def test_the_report_has_every_pair_as_it_is_predicted() -> None:
    assert document() in (ROOT / "reports" / "what-if.md").read_text()
