"""The states of a device in fewer pieces, for a picture: short ones become a part of what takes most of their time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfscope.analyzers.tracks.rank_tracks import STATES, States
from perfscope.tables.columns import Int64


@dataclass(frozen=True, slots=True, eq=False)
class Simplified:
    """States in fewer pieces.

    Attributes:
        states: The pieces, without gaps, from the first state's beginning to the last one's end.
        shortest_ns: Pieces that were shorter than this are joined; 0 where none was.
    """

    states: States
    shortest_ns: int


def simplify(states: States, most: int) -> Simplified:
    """Join neighbours that are shorter than ever longer times, until no more than ``most`` pieces are left."""
    if len(states.state) <= most:
        return Simplified(states, 0)
    span_ns = int(states.end_ns[-1] - states.start_ns[0])
    shortest_ns = max(1, span_ns // (4 * most))
    while True:
        joined = _join(states, shortest_ns)
        if len(joined.state) <= max(most, 1):
            return Simplified(joined, shortest_ns)
        shortest_ns *= 2


def _join(states: States, shortest_ns: int) -> States:
    """Each run of short states within one stretch of ``shortest_ns`` is one piece."""
    is_short = states.end_ns - states.start_ns < shortest_ns
    stretch = (states.start_ns - states.start_ns[0]) // shortest_ns
    begins = np.ones(len(is_short), np.bool_)
    begins[1:] = ~is_short[1:] | ~is_short[:-1] | (stretch[1:] != stretch[:-1])
    piece = np.cumsum(begins) - 1
    first = np.flatnonzero(begins)
    time_ns = sum_states(states, piece, len(first))
    ends = np.append(states.start_ns[first[1:]], states.end_ns[-1])
    return _merge_equal(States(states.start_ns[first], ends, np.asarray(time_ns.argmax(axis=1), np.int64)))


def _merge_equal(states: States) -> States:
    """Neighbours of the same state as one."""
    begins = np.ones(len(states.state), np.bool_)
    begins[1:] = states.state[1:] != states.state[:-1]
    first = np.flatnonzero(begins)
    ends = np.append(states.start_ns[first[1:]], states.end_ns[-1])
    return States(states.start_ns[first], ends, states.state[first])


def sum_states(states: States, piece: Int64, pieces: int) -> Int64:
    """The time in each state: one row a piece, one column a state, in nanoseconds."""
    time_ns = np.zeros((pieces, len(STATES)), np.int64)
    np.add.at(time_ns, (piece, states.state), states.end_ns - states.start_ns)
    return time_ns
