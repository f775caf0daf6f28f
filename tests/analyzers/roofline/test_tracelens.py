"""Operators as TraceLens lists them (171dd747, `ops_summary`), of the same trace: the same calls and times.

It counts copies and fills among an operator's kernels, where perfscope counts them as copies; and it adds up floats.
"""

from __future__ import annotations

import json
from collections import Counter

import numpy as np

from perfscope.sources.traces.reader import read_trace
from perfscope.tables.trace import ABSENT, BASIC_EVENTS, Events, Work, join
from tests.analyzers.roofline.test_roofline import FIXTURES, measured

_ROUNDING_NS = 20


def test_every_operator_has_tracelens_time_when_its_copies_and_fills_are_added() -> None:
    path = FIXTURES / "llama" / "rank0.json.gz"
    times: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for work in measured(path).operators:
        times[work.operator] += work.device_ns
        calls[work.operator] += work.calls
    trace = read_trace(path, BASIC_EVENTS | Events.OPERATORS)
    launched = join(trace.device.external_id, trace.operators.external_id)
    copies: Counter[str] = Counter()
    for row in np.flatnonzero(trace.device.is_work(Work.COPY) & (launched != ABSENT) & (trace.step != ABSENT)):
        name = trace.names[trace.operators.name[launched[row]]].removeprefix("aten::")
        copies[name] += int(trace.device.duration_ns[row])
    listed = json.loads((FIXTURES / "tracelens.json").read_text())
    assert len(listed) > 30
    for entry in listed:
        name = entry["operator"].removeprefix("aten::")
        assert abs(entry["kernel_ns"] - times[name] - copies[name]) <= _ROUNDING_NS
        if not copies[name]:
            assert entry["calls"] == calls[name]
    assert sum(copies.values()) > 0
