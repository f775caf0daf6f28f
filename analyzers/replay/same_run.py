"""Which graphs are of one window of one run, and what their traces lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from perfscope.analyzers.replay.rank_graph import RankGraph
from perfscope.constants import NS_PER_MS, NS_PER_S
from perfscope.errors import MissingInput
from perfscope.tables.trace import ABSENT

#: Windows of the same steps begin together; clocks of hosts differ by less than this.
_LONGEST_APART_NS = 60 * NS_PER_S
#: Fewer lost events than this share change no figure.
_FEWEST_LOST = 0.001
#: What was launched before the trace began may still run for so long.
_LONGEST_LAUNCHED_BEFORE_NS = 20 * NS_PER_MS


def select_window(ranks: Sequence[RankGraph]) -> tuple[list[RankGraph], list[str]]:
    """The graphs of the window that most ranks recorded, of several the first; and what is left out.

    Raises:
        MissingInput: They are of different runs, or the ranks marked different steps.
    """
    sizes = {graph.world_size for graph in ranks if graph.world_size is not None}
    if len(sizes) > 1:
        raise MissingInput(f"the traces are of jobs of {' and '.join(map(str, sorted(sizes)))} ranks: name one run")
    named = [graph for graph in ranks if graph.rank is not None]
    has_windows = any(count > 1 for count in Counter((graph.rank, graph.marks) for graph in named).values())
    if has_windows and len(named) == len(ranks):
        if len({graph.path for graph in named}) < len(named):
            raise MissingInput("one process drives several devices, which no replay joins")
        repeated = next(key for key, count in Counter((g.rank, g.marks) for g in named).items() if count > 1)
        raise MissingInput(f"two traces are of the same steps of rank {repeated[0]}: name one run")
    windows: dict[tuple[int, ...], list[RankGraph]] = {}
    for graph in ranks:
        windows.setdefault(graph.marks, []).append(graph)
    ranks_seen = {graph.rank for graph in named}
    chosen = max(windows.values(), key=len)
    if len(windows) > 1 and {graph.rank for graph in chosen} < ranks_seen:
        raise MissingInput("the ranks marked different steps, which one replay cannot join")
    _require_same_time(chosen)
    left_out = len(ranks) - len(chosen)
    return chosen, [f"{left_out} traces of other windows are left out."] if left_out else []


def _require_same_time(ranks: Sequence[RankGraph]) -> None:
    """Ranks of one run recorded the same steps at the same time, as far as their clocks tell."""
    starts = [
        graph.base_ns + int(graph.start_ns[graph.step != ABSENT].min())
        for graph in ranks
        if graph.base_ns and (graph.step != ABSENT).any()
    ]
    if starts and max(starts) - min(starts) > _LONGEST_APART_NS:
        seconds = (max(starts) - min(starts)) / NS_PER_S
        raise MissingInput(f"the traces were recorded {seconds:.0f} s apart: they are of different runs")


def describe_losses(graph: RankGraph) -> list[str]:
    """What a trace lost, as sentences."""
    notes = []
    events = int((graph.step != ABSENT).sum())
    if graph.lost_events > _FEWEST_LOST * max(events, 1):
        notes.append(
            f"{graph.path}: {graph.lost_events} launched kernels are missing: the profiler dropped events, and the "
            "replay does without them."
        )
    in_steps = graph.step != ABSENT
    if events:
        is_inside = graph.start_ns > int(graph.start_ns[in_steps].min()) + _LONGEST_LAUNCHED_BEFORE_NS
        unlaunched = int((is_inside & (graph.launch == ABSENT)).sum())
        if unlaunched > _FEWEST_LOST * events:
            notes.append(
                f"{graph.path}: {unlaunched} events name no launch: they begin as measured, whatever is changed."
            )
    return notes
