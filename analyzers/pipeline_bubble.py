"""How much of a pipeline's time no stage was working, and why.

The bubble is 1 - useful / (p x T): p stages, T from the first forward pass of stage 0 to the end of the last backward
pass on any stage. It is split into what the schedule costs, what unequal stages cost, transfers, and gaps in which the
host did not keep the device fed; with the useful time they add up to p x T exactly.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from perfscope.errors import MissingInput
from perfscope.tables.trace import Trace
from perfscope.wire import PASS_RANGE

if TYPE_CHECKING:
    from perfscope.analyzers.pipelines.pieces import RankPieces
    from perfscope.analyzers.pipelines.result import MeasuredBubble

# Most traces know of no pipeline: what measures one is not even imported for them.
_SPEAKS_OF_A_PIPELINE = re.compile(rf"sendrecv|^{PASS_RANGE}|^PP:|^(?:Forward|Backward) \d", re.IGNORECASE)


def measure(trace: Trace) -> RankPieces | None:
    """The passes of micro-batches in one trace; None where nothing in it speaks of a pipeline."""
    if not any(map(_SPEAKS_OF_A_PIPELINE.search, trace.names)):
        return None
    from perfscope.analyzers.pipelines.pieces import pieces_of

    return pieces_of(trace)


def analyze(partials: Sequence[RankPieces]) -> MeasuredBubble:
    """Put the traces of a pipeline together.

    Raises:
        MissingInput: There is no pipeline in the traces, or they do not tell which ranks make one.
    """
    return analyze_pipelines(partials, ())


def analyze_pipelines(partials: Sequence[RankPieces], given: Sequence[Sequence[int]]) -> MeasuredBubble:
    """As ``analyze``, with the ranks of each pipeline in the order of stages, where they are known.

    Raises:
        MissingInput: There is no pipeline in the traces, or they do not tell which ranks make one.
    """
    if not partials:
        raise MissingInput("no pipeline: no trace holds transfers between stages or marked micro-batches")
    from perfscope.analyzers.pipelines.layout import find_pipelines
    from perfscope.analyzers.pipelines.measurement import measure_pipelines

    return measure_pipelines(find_pipelines(_joined(partials), given))


def _joined(partials: Sequence[RankPieces]) -> list[RankPieces]:
    """The traces of each rank as one, in the order of time: a run has a trace for every window."""
    by_rank: dict[object, RankPieces] = {}
    for one in sorted(partials, key=_began_ns):
        key = one.rank if one.rank is not None else object()
        before = by_rank.get(key)
        by_rank[key] = one if before is None else before.followed_by(one)
    return list(by_rank.values())


def _began_ns(one: RankPieces) -> int:
    return min(piece.start_ns for step in one.steps for piece in step.pieces)
