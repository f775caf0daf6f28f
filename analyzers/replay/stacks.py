"""The operators and modules around each launch, those of a backward pass as well.

A launch of the backward pass stands inside a node of autograd, which has the sequence number of the operator that made
it in the forward pass: it belongs to the modules and operators around that one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct, field

from perfscope.tables.columns import Int64
from perfscope.tables.trace import ABSENT, Trace

MODULE = "nn.Module: "
_NODE = "autograd::engine::evaluate_function: "


class _Paths(Struct):
    """Paths of names from the outermost range inwards, each once: a tree of names with numbers.

    Attributes:
        parents: For each path that of the range around it, or ABSENT.
        names: For each path the name of its innermost range.
    """

    parents: list[int] = field(default_factory=list)
    names: list[int] = field(default_factory=list)
    _numbers: dict[tuple[int, int], int] = field(default_factory=dict)

    def number(self, parent: int, name: int) -> int:
        """The path of a range of that name inside another path."""
        number = self._numbers.setdefault((parent, name), len(self.names))
        if number == len(self.names):
            self.parents.append(parent)
            self.names.append(name)
        return number

    def write(self, names: Sequence[str]) -> tuple[tuple[str, ...], ...]:
        """The names of each path."""
        written: list[tuple[str, ...]] = []
        for parent, name in zip(self.parents, self.names, strict=True):
            written.append((*(written[parent] if parent != ABSENT else ()), names[name]))
        return tuple(written)


def find_stacks(trace: Trace, calls: Int64) -> tuple[tuple[tuple[str, ...], ...], Int64]:
    """The names around some calls.

    Args:
        trace: With its operators and their sequence numbers.
        calls: Rows of ``trace.calls``.

    Returns:
        Paths of names, and for each call the number of its path, or ABSENT.
    """
    is_module = np.array([name.startswith(MODULE) for name in trace.names], np.bool_)
    modules = trace.annotations.take(is_module[trace.annotations.name])
    sequence = np.full(len(trace.operators), ABSENT, np.int64) if trace.details is None else trace.details.sequence
    name = np.concatenate([trace.operators.name, modules.name])
    start_ns = np.concatenate([trace.operators.start_ns, modules.start_ns])
    end_ns = np.concatenate([trace.operators.end_ns, modules.end_ns])
    thread = np.concatenate([trace.operators.thread, modules.thread])
    sequence = np.concatenate([sequence, np.full(len(modules), ABSENT, np.int64)])
    is_node = np.array([text.startswith(_NODE) for text in trace.names], np.bool_)
    paths, forward, result = _Paths(), dict[int, int](), np.full(len(calls), ABSENT, np.int64)
    main = int(trace.steps.thread[0]) if len(trace.steps) else ABSENT
    threads = sorted(set(thread.tolist()), key=lambda number: (number != main, number))
    for number in threads:
        own = np.flatnonzero(thread == number)
        own = own[np.lexsort((-end_ns[own], start_ns[own]))]
        asked = np.flatnonzero(trace.calls.thread[calls] == number)
        asked = asked[np.argsort(trace.calls.start_ns[calls[asked]], kind="stable")]
        moments = trace.calls.start_ns[calls[asked]]
        columns = (start_ns[own], end_ns[own], name[own], sequence[own], is_node[name[own]])
        result[asked] = _walk(columns, moments, paths, forward)
    return paths.write(trace.names), result


def _walk(columns: Sequence[Int64], moments: Int64, paths: _Paths, forward: dict[int, int]) -> Int64:
    """The path around each moment of a thread; ``forward`` collects the last path of each sequence number."""
    result = np.full(len(moments), ABSENT, np.int64)
    open_ranges: list[tuple[int, int]] = []
    position = 0
    times = moments.tolist()
    for start, end, name, sequence, is_node in zip(*(column.tolist() for column in columns), strict=True):
        while position < len(times) and times[position] < start:
            result[position] = _innermost(open_ranges, times[position])
            position += 1
        around = _innermost(open_ranges, start)
        if is_node:
            around = forward.get(sequence, around)
        path = paths.number(around, name)
        if sequence != ABSENT and not is_node:
            forward[sequence] = path
        open_ranges.append((end, path))
    for index in range(position, len(times)):
        result[index] = _innermost(open_ranges, times[index])
    return result


def _innermost(open_ranges: list[tuple[int, int]], moment: int) -> int:
    """The path of the last range that is still open, after those that ended are forgotten."""
    while open_ranges and open_ranges[-1][0] <= moment:
        open_ranges.pop()
    return open_ranges[-1][1] if open_ranges else ABSENT
