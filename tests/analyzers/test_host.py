"""Where the host's time went in a run on CPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers import host
from perfscope.errors import MissingInput
from perfscope.sources.traces.reader import read_trace
from tests.sources.traces.making import AUTOGRAD, Event, kernel, span, step, write

GLOO = 200


def analyzed(tmp_path: Path, *events: Event) -> dict[str, Any]:
    partial = host.measure(read_trace(write(tmp_path / "rank0.json", list(events))))
    data: Any = host.analyze([] if partial is None else [partial]).data()
    result: dict[str, Any] = data
    return result


def parts(entry: dict[str, Any]) -> dict[str, float]:
    return {key.removesuffix("_us"): round(1000 * value) for key, value in entry.items() if key.endswith("_us")}


def test_compute_communication_loading_and_other_add_up_to_the_step(tmp_path: Path) -> None:
    found = analyzed(
        tmp_path,
        step(1, 0, 1000),
        span("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 100),
        span("cpu_op", "aten::stack", 50, 80),
        span("cpu_op", "aten::mm", 200, 400),
        span("user_annotation", "gloo:all_reduce", 300, 600, tid=GLOO),
        span("cpu_op", "aten::mm", 500, 550, tid=AUTOGRAD),
    )
    (rank,) = found["ranks"]
    expected = {
        "window": 1000,
        "compute": 30 + 200 + 50,
        "communication": 300,
        "exposed_communication": 300 - 100 - 50,
        "exposed_data_loading": 100 - 30,
        "other": 1000 - 280 - 150 - 70,
    }
    assert parts(rank) == expected
    assert [(each["name"], parts(each)) for each in rank["steps"]] == [("ProfilerStep#1", expected)]


def test_a_thread_that_waits_inside_an_operator_for_a_collective_does_not_compute(tmp_path: Path) -> None:
    found = analyzed(
        tmp_path,
        step(1, 0, 100),
        span("cpu_op", "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 10, 90),
        span("cpu_op", "aten::add_", 10, 20),
        span("user_annotation", "gloo:all_reduce", 30, 80, tid=GLOO),
        span("cpu_op", "Custom::forward", 90, 100),
        span("cpu_op", "c10d::barrier", 92, 98),
    )
    (rank,) = found["ranks"]
    assert parts(rank)["compute"] == 10 + 4
    assert parts(rank)["exposed_communication"] == 50 + 6
    assert parts(rank)["other"] == 100 - 14 - 56


def test_self_time_leaves_out_what_runs_inside_on_the_same_thread(tmp_path: Path) -> None:
    found = analyzed(
        tmp_path,
        span("cpu_op", "aten::linear", 0, 100),
        span("cpu_op", "aten::addmm", 10, 70),
        span("cpu_op", "aten::copy_", 20, 30),
        span("cpu_op", "aten::copy_", 80, 90),
        span("cpu_op", "aten::linear", 0, 50, tid=AUTOGRAD),
    )
    own = {each["name"]: (each["calls"], each["self_us"], each["total_us"]) for each in found["operators"]}
    assert own == {"aten::linear": (2, 0.08, 0.15), "aten::addmm": (1, 0.05, 0.06), "aten::copy_": (2, 0.02, 0.02)}
    assert found["operators"][0]["name"] == "aten::linear"


def test_with_device_events_the_host_is_not_the_answer(tmp_path: Path) -> None:
    with pytest.raises(MissingInput, match="contain GPU events"):
        analyzed(tmp_path, kernel("gemm", 0, 10), span("cpu_op", "aten::mm", 0, 5))


def test_without_operators_there_is_nothing_to_say(tmp_path: Path) -> None:
    with pytest.raises(MissingInput, match="no operators"):
        analyzed(tmp_path, step(1, 0, 10))
