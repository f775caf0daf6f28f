"""Which device event of a window with operators is which one of a light window: by their order on each stream.

The kernels of a training step come in the same order on each stream, whatever the profiler records. A step of the light
window is matched with one of the other window whose streams ran the same names in the same order. Where none did, as
with experts whose tokens differ, it is matched with one that differs little: what only one of both ran has no twin.

Names are aligned by the algorithm of E. Myers, "An O(ND) difference algorithm and its variations", Algorithmica 1,
1986. The more both differ, the longer it takes: after many differences it goes on from the furthest end alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
from msgspec import Struct

from perfscope.tables.columns import Int64
from perfscope.tables.kernel_classes import short_name
from perfscope.tables.trace import Trace, distinct

#: The rows of a step's device events by GPU and stream, each in the order of their start.
_Streams: TypeAlias = Mapping[tuple[int, int], Int64]

_NO_ROWS = np.zeros(0, np.int64)
#: So much of what two steps ran must have a twin in the other one, or they are no two runs of the same work.
_FEWEST_TWINS = 0.9


#: With this many differences a path is taken as it is, and goes on from its end.
_MOST_DIFFERENCES = 256
#: Stretches of equal names of a path, the last one first: the rows where it begins, its length, and those before it.
_Path: TypeAlias = "tuple[int, int, int, _Path] | None"


class NoMatch(Exception):
    """The two windows of a process cannot be matched, for a reason in words.

    ``damage`` is what is lost of the light window, as sentences; ``rank`` is absent where nothing states it.
    """

    def __init__(self, reason: str, rank: int | None, damage: tuple[str, ...]) -> None:
        super().__init__(reason)
        self.reason = reason
        self.rank = rank
        self.damage = damage


class MatchedStep(Struct, frozen=True, eq=False):
    """A step of the light window and the step with operators that ran the same.

    Attributes:
        light, operators: Rows of ``Trace.steps``.
        light_rows, operator_rows: Rows of the device events of each, pair by pair.
        without_twin: How many device events of the light step are in no pair.
    """

    light: int
    operators: int
    light_rows: Int64
    operator_rows: Int64
    without_twin: int


def match_steps(operators: Trace, light: Trace) -> list[MatchedStep]:
    """Match every step of a light window, in order; NoMatch where a step has none that ran nearly the same."""
    if not len(light.steps) or not len(operators.steps):
        window = "the light window" if not len(light.steps) else "the window with operators"
        raise NoMatch(f"{window} contains no complete step", light.rank, light.damage)
    number: dict[str, int] = {}
    names = [
        np.array([number.setdefault(name, len(number)) for name in trace.names], np.int64)[trace.device.name]
        for trace in (operators, light)
    ]
    candidates = [_streams(operators, step) for step in range(len(operators.steps))]
    matched = []
    for step in range(len(light.steps)):
        streams = _streams(light, step)
        # The step at the same place first: where steps differ, as every tenth does that logs, both windows may show it.
        order = sorted(range(len(candidates)), key=lambda candidate: (candidate != step, candidate))
        match: tuple[int, tuple[Int64, Int64]] | None = None
        for candidate in order:
            pairs = _align_streams(candidates[candidate], streams, *names)
            if pairs is not None and (match is None or len(pairs[0]) > len(match[1][0])):
                match = candidate, pairs
            if pairs is not None and len(pairs[0]) == _events(streams) == _events(candidates[candidate]):
                break
        if match is None:
            nearest = min(step, len(candidates) - 1)
            difference = _describe_difference(operators, light, candidates[nearest], streams)
            reason = f"{_name(light, step)} is not {_name(operators, nearest)} again: {difference}"
            raise NoMatch(reason, light.rank, light.damage)
        candidate, (operator_rows, light_rows) = match
        left = _events(streams) - len(light_rows)
        matched.append(MatchedStep(step, candidate, light_rows, operator_rows, left))
    return matched


def _events(streams: _Streams) -> int:
    return sum(map(len, streams.values()))


def _streams(trace: Trace, step: int) -> dict[tuple[int, int], Int64]:
    rows = np.flatnonzero(trace.step == step)
    device, stream = trace.device.device[rows], trace.device.stream[rows]
    return {
        (gpu, number): rows[(device == gpu) & (stream == number)]
        for gpu in distinct(device)
        for number in distinct(stream[device == gpu])
    }


def _align_streams(
    operators: _Streams, light: _Streams, operator_names: Int64, light_names: Int64
) -> tuple[Int64, Int64] | None:
    """The rows of both that are twins, pair by pair; None where too few are, or the steps ran nothing.

    A stream's counterpart is the one with the most twins; the numbers of a CUDA graph's own streams may change.
    """
    pairs: list[tuple[Int64, Int64]] = []
    unused = dict(operators)
    for key, rows in light.items():
        aligned = {
            stream: align(operator_names[unused[stream]], light_names[rows]) for stream in _similar(key, unused, light)
        }
        if aligned:
            most = max(aligned, key=lambda stream: 2 * len(aligned[stream][0]) - len(unused[stream]))
            known, own = aligned[most]
            pairs.append((unused.pop(most)[known], rows[own]))
    events = max(_events(operators), _events(light))
    twins = sum(len(rows) for _, rows in pairs)
    return _joined(pairs) if twins and twins >= _FEWEST_TWINS * events else None


def _similar(key: tuple[int, int], unused: _Streams, light: _Streams) -> list[tuple[int, int]]:
    """The streams that may be a light window's: its own first, then those of the GPU that the light window lacks."""
    own = [key] if key in unused else []
    return own + [stream for stream in unused if stream[0] == key[0] and stream not in light]


def _joined(pairs: Sequence[tuple[Int64, Int64]]) -> tuple[Int64, Int64]:
    first, second = (np.concatenate(rows) for rows in zip(*pairs, strict=True))
    return first, second


def _describe_difference(operators: Trace, light: Trace, expected: _Streams, streams: _Streams) -> str:
    if not streams or not expected:
        return f"{'it' if not streams else 'that one'} launched nothing on a GPU"
    for gpu, stream in sorted({*expected, *streams}):
        rows, others = streams.get((gpu, stream), _NO_ROWS), expected.get((gpu, stream), _NO_ROWS)
        place = f"on stream {stream} of GPU {gpu}"
        if len(rows) != len(others):
            return f"{len(rows)} instead of {len(others)} device events {place}"
        for index, (row, other) in enumerate(zip(rows.tolist(), others.tolist(), strict=True)):
            name, other_name = light.names[light.device.name[row]], operators.names[operators.device.name[other]]
            if name != other_name:
                return f"device event {index + 1} {place} is {short_name(name)}, not {short_name(other_name)}"
    return "its streams differ"


def _name(trace: Trace, step: int) -> str:
    number = trace.names[trace.steps.name[step]].rpartition("#")[2]
    return f"step {number}"


def align(first: Int64, second: Int64) -> tuple[Int64, Int64]:
    """Rows of equal names in both sequences, pair by pair; both rise. What is in no pair has no twin."""
    if np.array_equal(first, second):
        return np.arange(len(first)), np.arange(len(first))
    names, twins = first.tolist(), second.tolist()
    row, twin = 0, 0
    stretches: list[tuple[int, int, int]] = []
    while row < len(names) and twin < len(twins):
        row, twin, path = _follow(names, twins, row, twin)
        found: list[tuple[int, int, int]] = []
        while path is not None:
            start, twin_start, length, path = path
            found.append((start, twin_start, length))
        stretches += reversed(found)
    none = np.zeros(0, np.int64)
    rows = [none, *(np.arange(start, start + length) for start, _, length in stretches)]
    twin_rows = [none, *(np.arange(start, start + length) for _, start, length in stretches)]
    return np.concatenate(rows), np.concatenate(twin_rows)


def _follow(names: Sequence[int], twins: Sequence[int], row: int, twin: int) -> tuple[int, int, _Path]:
    """The path with the fewest differences from a row of both: to the end of both, or as far as it comes."""
    begin = row - twin
    # By diagonal, which is how much further a path is in the one than in the other: how far it is, and what it is.
    furthest: dict[int, tuple[int, _Path]] = {begin + 1: (row, None)}
    for differences in range(_MOST_DIFFERENCES + 1):
        for diagonal in range(begin - differences, begin + differences + 1, 2):
            above, before = furthest.get(diagonal + 1, (-1, None)), furthest.get(diagonal - 1, (-2, None))
            end, path = above if above[0] > before[0] else (before[0] + 1, before[1])
            start = end
            while end < len(names) and end - diagonal < len(twins) and names[end] == twins[end - diagonal]:
                end += 1
            if end > start:
                path = (start, start - diagonal, end - start, path)
            furthest[diagonal] = end, path
            if end >= len(names) and end - diagonal >= len(twins):
                return end, end - diagonal, path
    ends = [(2 * end - diagonal, end, diagonal) for diagonal, (end, _) in furthest.items() if end <= len(names)]
    _, end, diagonal = max(candidate for candidate in ends if candidate[1] - candidate[2] <= len(twins))
    return end, end - diagonal, furthest[diagonal][1]
