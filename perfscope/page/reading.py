"""The analysis that a page shows: every default analyzer, the timeline, and the replay of jobs of few ranks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from perfscope.constants import MIB
from perfscope.engine.inputs import Inputs, find_inputs
from perfscope.engine.run import Analysis, Plan, Skipped, analyze_inputs
from perfscope.units import format_bytes

#: What a page shows besides what every analysis has.
PAGE_ANALYZERS = frozenset(("timeline", "whatif"))
#: The replay of more traces takes longer than all else together.
_MOST_REPLAYED, _MOST_REPLAYED_BYTES = 16, 48 * MIB
_PLAN = Plan()


def read_for_page(paths: Sequence[str | os.PathLike[str]], plan: Plan = _PLAN) -> Analysis:
    """Analyze one run's folder, or traces, for a page.

    Raises:
        SourceError: A path does not exist, or no input can be read.
    """
    return analyze_for_page(find_inputs(paths), plan)


def analyze_for_page(inputs: Inputs, plan: Plan = _PLAN) -> Analysis:
    """Analyze what ``find_inputs`` read for a page.

    Raises:
        SourceError: No input can be read.
    """
    traces, size = len(inputs.traces), sum(map(_size_of, inputs.traces))
    if traces <= _MOST_REPLAYED and size <= _MOST_REPLAYED_BYTES:
        return analyze_inputs(inputs, replace(plan, besides=PAGE_ANALYZERS))
    analysis = analyze_inputs(inputs, replace(plan, besides=PAGE_ANALYZERS - {"whatif"}))
    large = f"{traces:,} traces {'that stayed on the hosts' if inputs.absent else f'of {format_bytes(size)}'}"
    reason = f"the critical path of {large} is left to `perfscope whatif`, because it takes long"
    return replace(analysis, skipped=(*analysis.skipped, Skipped("whatif", reason)))


def _size_of(trace: str) -> int:
    """The bytes of a trace on a disk; 0 for another one."""
    path = Path(trace)
    return path.stat().st_size if path.is_file() else 0
