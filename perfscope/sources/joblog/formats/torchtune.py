"""torchtune: a line a step of its StdoutLogger and DiskLogger.

    Step 1 | loss:1.2345 lr:2e-05 tokens_per_second_per_gpu:1234.5 peak_memory_reserved:12.3

It states no time and no batch, so that its throughput is all there is; memory is in GiB.
"""

from __future__ import annotations

import re

from perfscope.constants import GIB
from perfscope.sources.joblog.line_fields import parse_number
from perfscope.sources.joblog.log_format import Format, FormatState, StepTimeSource
from perfscope.sources.joblog.record import Record
from perfscope.sources.joblog.rules import LineMatch, Rule

SOURCE = "tokens_per_second_per_gpu"

_CELL = re.compile(rb"(\w+):(\S+)")


def _on_step(state: FormatState, line: LineMatch) -> None:
    cells = {name: parse_number(text) for name, text in _CELL.findall(line["cells"])}
    record = Record(
        iteration=int(line["step"]),
        loss=cells.get(b"loss"),
        tokens_per_s_per_gpu=cells.get(b"tokens_per_second_per_gpu"),
    )
    if state.log.series_of(SOURCE).add(record, line.label):
        state.log.add_memory(
            allocated=_bytes(cells.get(b"peak_memory_alloc")), reserved=_bytes(cells.get(b"peak_memory_reserved"))
        )


def _bytes(gib: float | None) -> float | None:
    return None if gib is None else gib * GIB


FORMAT = Format(
    framework="torchtune",
    state=FormatState,
    rules=(
        Rule(
            b"tokens_per_second_per_gpu:",
            re.compile(rb"Step (?P<step>\d+) \| (?P<cells>loss:.*tokens_per_second_per_gpu:.*)"),
            _on_step,
            begin=(b"Step ",),
        ),
    ),
    sources=(StepTimeSource(SOURCE),),
)
