"""torchtune: a line a step of its StdoutLogger and DiskLogger.

    Step 1 | loss:1.2345 lr:2e-05 tokens_per_second_per_gpu:1234.5 peak_memory_reserved:12.3

It states no time and no batch, so that its throughput is all there is; memory is in GiB.
"""

from __future__ import annotations

import re

from perfscope.constants import GIB
from perfscope.sources.joblog.draft import (
    Draft,
    Hit,
    Rule,
    label_of,
    number,
)
from perfscope.sources.joblog.series import Record

SOURCE = "tokens_per_second_per_gpu"

_CELL = re.compile(rb"(\w+):(\S+)")


def _step(draft: Draft, hit: Hit) -> None:
    draft.evidence["torchtune"] += 1
    cells = {name: number(text) for name, text in _CELL.findall(hit["cells"])}
    record = Record(
        iteration=int(hit["step"]),
        loss=cells.get(b"loss"),
        tokens_per_s_per_gpu=cells.get(b"tokens_per_second_per_gpu"),
    )
    if draft.of(SOURCE).add(record, label_of(hit.text, hit.line)):
        draft.see_memory(
            allocated=_bytes(cells.get(b"peak_memory_alloc")), reserved=_bytes(cells.get(b"peak_memory_reserved"))
        )


def _bytes(gib: float | None) -> float | None:
    return None if gib is None else gib * GIB


RULES = (
    Rule(
        b"tokens_per_second_per_gpu:",
        re.compile(rb"Step (?P<step>\d+) \| (?P<cells>loss:.*tokens_per_second_per_gpu:.*)"),
        _step,
    ),
)
