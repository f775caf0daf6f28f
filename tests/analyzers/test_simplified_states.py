"""Claims about pictures of many states: nothing is left out, what is joined takes most of its time."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from perfscope.analyzers.timeline import STATES, StateRuns, simplify


def states_of(durations: list[int], kinds: list[int], start: int = 7) -> StateRuns:
    edges = start + np.concatenate(([0], np.cumsum(durations))).astype(np.int64)
    return StateRuns(edges[:-1], edges[1:], np.array(kinds, np.int64))


lists = st.lists(st.tuples(st.integers(1, 5_000), st.integers(0, len(STATES) - 1)), min_size=1, max_size=120)


@given(lists, st.integers(1, 40))
def test_nothing_is_left_out(pieces: list[tuple[int, int]], most: int) -> None:
    states = states_of([length for length, _ in pieces], [kind for _, kind in pieces])
    joined, _ = simplify(states, most)
    assert len(joined.state) <= most
    assert joined.start_ns[0] == states.start_ns[0]
    assert joined.end_ns[-1] == states.end_ns[-1]
    assert (joined.start_ns[1:] == joined.end_ns[:-1]).all()
