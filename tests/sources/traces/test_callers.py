"""Operators that may wait are the same whether each is decoded or only the times of all are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfscope.sources.traces.reader import read_trace
from perfscope.tables.trace import BASIC_EVENTS, Events, Trace
from tests.conftest import ROOT

RUNS = sorted((ROOT / "fixtures" / "light").glob("*/traces/*.gz"))


def callers(trace: Trace) -> list[tuple[str, int, int, int]]:
    spans = trace.callers
    columns = spans.start_ns.tolist(), spans.duration_ns.tolist(), spans.thread.tolist()
    return sorted(zip((trace.names[name] for name in spans.name), *columns, strict=True))


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.parent.parent.name)
def test_callers_of_real_traces_are_those_that_a_full_parse_finds(path: Path, tmp_path: Path) -> None:
    quick = read_trace(path, BASIC_EVENTS | Events.CALLERS | Events.OPERATOR_TIMES)
    assert len(quick.callers)
    assert callers(quick) == callers(read_trace(path, BASIC_EVENTS | Events.CALLERS))
    assert callers(quick) == callers(read_trace(path, BASIC_EVENTS | Events.CALLERS | Events.OPERATORS))


def test_operators_at_the_zero_of_a_trace_and_with_other_keys_are_callers_too(tmp_path: Path) -> None:
    def event(name: str, start: float, **further: Any) -> dict[str, Any]:
        times = {"pid": 1, "tid": 7, "ts": start, "dur": 1.5}
        return {"ph": "X", "cat": "cpu_op", "name": name, **times, **further, "args": {"External id": 3}}

    events = [event("aten::item", 1000000.25 + 10 * number) for number in range(40)]
    events += [event("aten::copy_", 1.5), event("aten::nonzero", 1000900.125, id=5), event("aten::itemize", 3.0)]
    path = tmp_path / "rank0.pt.trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    traces = [read_trace(path, BASIC_EVENTS | Events.CALLERS | more) for more in (Events.OPERATOR_TIMES, Events(0))]
    names = {name for name, *_ in callers(traces[0])}
    assert callers(traces[0]) == callers(traces[1])
    assert names == {"aten::item", "aten::copy_", "aten::nonzero"}
