"""The share of a pipeline's time in which its stages were idle, and why.

The bubble is 1 - useful / (p x T), with p stages. T runs from the first forward pass of stage 0 to the end of the last
backward pass on any stage. The bubble is split into the costs of the schedule, unequal stages, transfers, and gaps in
which the host did not keep the device busy. With the useful time they add up to p x T exactly.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from perfscope.errors import MissingInput
from perfscope.tables.trace import Trace
from perfscope.wire.passes import PASS_RANGE

if TYPE_CHECKING:  # importing what measures pipelines takes 40 ms in every worker, and most traces have no pipeline
    from perfscope.analyzers.pipeline_bubble.measurement import PipelineBubble
    from perfscope.analyzers.pipeline_bubble.rank_passes import RankPasses

#: Names that occur in the traces of pipelines only.
PIPELINE_NAMES = re.compile(rf"sendrecv|^{PASS_RANGE}|^PP:|^(?:Forward|Backward) \d", re.IGNORECASE)


def measure(trace: Trace) -> RankPasses | None:
    """The passes of micro-batches in one trace; None for a trace that shows no sign of a pipeline."""
    if not any(map(PIPELINE_NAMES.search, trace.names)):
        return None
    # Takes 40 ms, which only traces of pipelines need.
    from perfscope.analyzers.pipeline_bubble.extraction import extract_passes

    return extract_passes(trace)


def analyze(partials: Sequence[RankPasses]) -> PipelineBubble:
    """Put the traces of a pipeline together; MissingInput where there is none, or its ranks are not known."""
    if not partials:
        raise MissingInput("no pipeline: no marked step has transfers between stages or marked micro-batches")
    # As above: runs without a pipeline end before.
    from perfscope.analyzers.pipeline_bubble.measurement import measure_pipelines

    return measure_pipelines(partials)
