"""What the host did outside of operators: against a slow oracle, and on traces of loops with a known fault."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers import host
from perfscope.sources.traces.reader import read_trace
from perfscope.tables.trace import ALL_EVENTS, Events
from tests.conftest import ROOT
from tests.sources.traces.making import AUTOGRAD, Event, span, step, write

EVENTS = ALL_EVENTS | Events.FRAMES
TRACES = ROOT / "fixtures" / "traces"
COMMUNICATION = ("gloo:", "c10d::", "rpc_sync#", "rpc_async#", "to_here#", "torch::distributed::autograd::")


def analyzed(tmp_path: Path, *events: Event) -> dict[str, Any]:
    partial = host.measure(read_trace(write(tmp_path / "rank0.json", list(events)), EVENTS))
    assert partial is not None
    result: Any = host.analyze([partial]).data()
    data: dict[str, Any] = result
    return data


def read(name: str) -> tuple[host.HostTime, host.HostRank]:
    partial = host.measure(read_trace(TRACES / name, EVENTS))
    assert partial
    return host.analyze([partial]), partial[0]


def test_the_parts_add_up_to_other_and_operators_have_none(tmp_path: Path) -> None:
    found = analyzed(
        tmp_path,
        step(1, 0, 1000),
        span("cpu_op", "aten::mm", 300, 400),
        span("python_function", "train.py(3): loop", 0, 900),
        span("python_function", "<built-in function sleep>", 350, 500),
        span("python_function", "other.py(1): thread", 0, 1000, tid=AUTOGRAD),
    )
    (rank,) = found["ranks"]
    assert {(part["function"], part["call"]): round(1000 * part["us"]) for part in rank["outside_operators"]} == {
        ("train.py(3): loop", None): 300 + 400,
        ("train.py(3): loop", "sleep"): 100,
        (None, None): 100,
    }
    assert sum(part["us"] for part in rank["outside_operators"]) == pytest.approx(rank["other_us"])


@pytest.mark.parametrize(
    ("loop", "function", "call"),
    [
        ("sleeping", "loops.py(23): sleeping", "sleep"),
        ("computing", "loops.py(28): tokenize", None),
        ("reading", "loops.py(40): load", "read"),
    ],
)
def test_the_function_that_took_the_time_is_named(loop: str, function: str, call: str | None) -> None:
    result, rank = read(f"loops/{loop}.pt.trace.json.gz")
    worst = rank.outside_operators[0]
    assert (worst.function, worst.call) == (function, call)
    assert worst.duration_ns > 0.8 * rank.total.window
    assert sum(part.duration_ns for part in rank.outside_operators) == rank.total.other
    (section,) = [section for section in result.sections() if section.title == "Host time outside of operators"]
    assert section.rows[0][1:3] == (function, call or "its own code")


def test_a_clean_loop_has_no_such_function() -> None:
    _, rank = read("loops/clean.pt.trace.json.gz")
    assert max(part.duration_ns for part in rank.outside_operators) < 0.2 * rank.total.window
    assert sum(part.duration_ns for part in rank.outside_operators) == rank.total.other


def oracle_parts(name: str) -> dict[str, int]:
    """Compute and communication of a trace, event by event over all borders between events."""
    document = json.loads(gzip.decompress((TRACES / name).read_bytes()), parse_float=Decimal)
    events = [
        (event["name"], int(1000 * event["ts"]), int(1000 * (event["ts"] + event["dur"])), event["tid"])
        for event in document["traceEvents"]
        if event.get("cat") in ("cpu_op", "user_annotation")
    ]
    steps = [event for event in events if event[0].startswith("ProfilerStep#")]
    annotations = {event["name"] for event in document["traceEvents"] if event.get("cat") == "user_annotation"}
    borders = sorted({border for event in events for border in event[1:3]})
    parts = dict.fromkeys(("compute", "communication", "exposed_communication", "other"), 0)
    for begin, end in pairwise(borders):
        if not min(event[1] for event in steps) <= begin < max(event[2] for event in steps):
            continue
        now = [event for event in events if event[1] <= begin and end <= event[2]]
        talking = {event[3] for event in now if event[0].startswith(COMMUNICATION)}
        computing = any(
            event[0] not in annotations
            and not event[0].startswith((*COMMUNICATION, "autograd::engine::evaluate_function"))
            and event[3] not in talking
            for event in now
        )
        parts["compute"] += (end - begin) * computing
        parts["communication"] += (end - begin) * bool(talking)
        parts["exposed_communication"] += (end - begin) * (bool(talking) and not computing)
        parts["other"] += (end - begin) * (not computing and not talking)
    return parts


@pytest.mark.parametrize("name", ["rpc2/rank1", "gloo_async2/rank0", "gloo_async2/rank1", "gloo2/rank0"])
def test_waiting_for_other_workers_communication(name: str) -> None:
    _, rank = read(f"{name}.pt.trace.json.gz")
    assert {part: getattr(rank.total, part) for part in oracle_parts(f"{name}.pt.trace.json.gz")} == oracle_parts(
        f"{name}.pt.trace.json.gz"
    )


def test_an_asynchronous_collective_hides_behind_compute_and_its_wait_is_exposed() -> None:
    _, rank = read("gloo_async2/rank1.pt.trace.json.gz")
    assert 0 < rank.total.exposed_communication < rank.total.communication
