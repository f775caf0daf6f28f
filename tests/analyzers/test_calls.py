"""Calls that hold the host up: against a slow count on real traces, and in hand-made gaps."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import kept_run
from perfscope.analyzers import calls, optimizer
from perfscope.sources.traces.reader import read_trace
from perfscope.tables.trace import BASIC_EVENTS, Events
from tests.conftest import ROOT

RUNS = ROOT / "fixtures" / "findings" / "h200"
NEEDS = BASIC_EVENTS | Events.CALLERS
MICROSECOND = 1000


def trace_path(run: str) -> Path:
    (path,) = (kept_run(RUNS / run) / "traces").glob("*.gz")
    return path


def events_of(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path) as file:
        document = json.load(file)
    return [event for event in document["traceEvents"] if event.get("ph") == "X"]


def count_slowly(path: Path) -> dict[str, tuple[int, float]]:
    """Calls and microseconds of each kind in the marked steps, event by event."""
    events = events_of(path)
    steps = [
        (event["ts"], event["ts"] + event["dur"])
        for event in events
        if event["name"].startswith("ProfilerStep#") and event["cat"] == "user_annotation"
    ]
    copies = {event["args"]["correlation"]: event["name"] for event in events if event["cat"] == "gpu_memcpy"}
    sums: dict[str, tuple[int, float]] = {}
    for event in events:
        if event["cat"] not in {"cuda_runtime", "cuda_driver"}:
            continue
        if not any(start <= event["ts"] < end for start, end in steps):
            continue
        name, copied = event["name"], copies.get(event["args"].get("correlation"), "")
        if "Pageable -> Device" in copied:
            kind = "pageable"
        elif name in {"cudaMalloc", "cudaFree", "cudaHostAlloc", "cudaFreeHost"}:
            kind = "allocation"
        elif "Device -> Pageable" in copied or name in {"cudaStreamSynchronize", "cudaDeviceSynchronize"}:
            kind = "synchronisation"
        else:
            continue
        number, time_us = sums.get(kind, (0, 0.0))
        sums[kind] = number + 1, time_us + event["dur"]
    return sums


@pytest.mark.parametrize("run", ["item", "unpinned", "allocator_retries"])
def test_calls_are_those_of_a_slow_count(run: str) -> None:
    path = trace_path(run)
    measured = calls.measure(read_trace(path, NEEDS))
    assert measured is not None
    (rank,) = measured
    expected = count_slowly(path)
    assert expected
    for kind in calls.KINDS:
        members = [caller for caller in rank.callers if caller.kind == kind]
        number, time_us = expected.get(kind, (0, 0.0))
        assert sum(caller.count for caller in members) == number
        assert sum(caller.blocked for caller in members) == pytest.approx(time_us * MICROSECOND, abs=number)


@pytest.mark.parametrize(("run", "operator"), [("item", "aten::item"), ("unpinned", "aten::_to_copy")])
def test_the_outermost_operator_that_may_wait_is_named(run: str, operator: str) -> None:
    measured = calls.measure(read_trace(trace_path(run), NEEDS))
    assert measured is not None
    assert {caller.operator for caller in measured[0].callers if caller.regained} == {operator}


def test_stacks_name_the_function_of_the_script() -> None:
    measured = calls.measure(read_trace(trace_path("item"), NEEDS))
    assert measured is not None
    assert measured[0].callers[0].function == "faults.py(75): log_norm"


def test_a_clean_run_has_no_such_calls() -> None:
    measured = calls.measure(read_trace(trace_path("clean"), NEEDS))
    assert measured is not None
    assert measured[0].callers == ()


@pytest.mark.parametrize(
    ("run", "way", "kernels"),
    [("optimizer_loop", "loop", 320), ("../../modules/llama_norm", "foreach", 160), ("clean", "fused", 10)],
)
def test_the_optimizer_is_what_was_launched_inside_its_mark(run: str, way: str, kernels: int) -> None:
    path = next((RUNS / run).glob("rank0.json.gz"), None) or trace_path(run)
    measured = optimizer.measure(read_trace(path, BASIC_EVENTS))
    assert measured is not None
    (rank,) = measured
    assert (rank.name, rank.way, rank.kernels) == ("AdamW", way, kernels)
