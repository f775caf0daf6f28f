"""The operations of one step of one pipeline as a graph, and its replay over all pipelines and steps at once.

All pipelines of a job and all of its steps do the same operations in the same order, so one graph serves them all, and
an operation's times are an array over pipelines and steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from perfscope.errors import PerfscopeError
from perfscope.tables.columns import Int64


class Group(NamedTuple):
    """Operations that run together, each from when all of them can start.

    Attributes:
        nodes: One for computation, both ends of a transfer, all members of a collective.
        is_joined: Whether the same operations of all pipelines belong to it, too.
    """

    nodes: tuple[int, ...]
    is_joined: bool = False


@dataclass(frozen=True, slots=True)
class Graph:
    """What waits for what.

    Attributes:
        waits: For each operation those that must have ended before it starts.
        groups: Every operation once, so that the groups can run in this order.
    """

    waits: tuple[tuple[int, ...], ...]
    groups: tuple[Group, ...]

    def __len__(self) -> int:
        return len(self.waits)


class Spans(NamedTuple):
    """A replay: when each operation began and ended, with shape (operations, pipelines, steps), in nanoseconds."""

    begin_ns: Int64
    end_ns: Int64

    @property
    def step_ns(self) -> Int64:
        """The time of each step: from its begin until its last operation has ended on every pipeline."""
        return np.asarray(self.end_ns.max(axis=(0, 1)), np.int64)


def order_groups(waits: Sequence[Sequence[int]], groups: Sequence[Group]) -> Graph:
    """Put groups in an order in which they can run; an operation of no group becomes a group of its own.

    Raises:
        PerfscopeError: Operations wait for each other.
    """
    grouped = {node for group in groups for node in group.nodes}
    every = [*groups, *(Group((node,)) for node in range(len(waits)) if node not in grouped)]
    group_of = {node: number for number, group in enumerate(every) for node in group.nodes}
    before = [{group_of[wait] for node in group.nodes for wait in waits[node]} for group in every]
    followers: list[list[int]] = [[] for _ in every]
    for number, inputs in enumerate(before):
        for earlier in inputs:
            followers[earlier].append(number)
    open_inputs = [len(inputs) for inputs in before]
    ready = deque(number for number, count in enumerate(open_inputs) if not count)
    ordered: list[Group] = []
    while ready:
        number = ready.popleft()
        ordered.append(every[number])
        for follower in followers[number]:
            open_inputs[follower] -= 1
            if not open_inputs[follower]:
                ready.append(follower)
    if len(ordered) < len(every):
        raise PerfscopeError(
            "the operations wait for each other in a circle", hint="are their start times on one clock in each worker?"
        )
    return Graph(tuple(tuple(dict.fromkeys(inputs)) for inputs in waits), tuple(ordered))


def replay(graph: Graph, times_ns: Int64) -> Spans:
    """Run all operations, each as soon as what it waits for has ended.

    Args:
        graph: What waits for what.
        times_ns: How long each takes from when its group can start; shape (operations, pipelines, steps).
    """
    begin, end = np.zeros_like(times_ns), np.zeros_like(times_ns)
    for group in graph.groups:
        inputs = [wait for node in group.nodes for wait in graph.waits[node]]
        if inputs:
            start = end[inputs[0]] if len(inputs) == 1 else end[inputs].max(axis=0)
            if group.is_joined:
                start = start.max(axis=0)
            for node in group.nodes:
                begin[node] = start
        for node in group.nodes:
            np.add(begin[node], times_ns[node], out=end[node])
    return Spans(begin, end)
