"""The parts of scenarios against plain definitions: recomputation, transfers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from perfscope.analyzers.whatif.job_graph import match_unnamed_transfers
from perfscope.analyzers.whatif.scenarios import find_recomputed, find_repeats
from tests.analyzers.whatif.jobs import real_job


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


def event(
    category: str, name: str, start: float, duration: float, thread: int = 1, **args: object
) -> dict[str, object]:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 1,
        "tid": thread,
        "ts": start,
        "dur": duration,
        "args": args,
    }


def write(path: Path, events: list[dict[str, object]]) -> Path:
    path.write_text(json.dumps({"traceEvents": events}))
    return path
