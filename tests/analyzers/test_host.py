"""Where the host's time went in a run on CPUs, and outside of operators in loops with a known fault."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import perfscope
from perfscope.analyzers import host, stacks, timeline
from perfscope.engine.inputs import find_inputs
from perfscope.engine.run import Plan
from perfscope.errors import MissingInput
from perfscope.page import analyze_for_page, build_page
from perfscope.sources.traces.reader import read_trace
from perfscope.tables.trace import ALL_EVENTS, Events
from tests.conftest import ROOT
from tests.sources.traces.making import AUTOGRAD, Event, kernel, span, step, write

EVENTS = ALL_EVENTS | Events.FRAMES
TRACES = ROOT / "fixtures" / "traces"
GLOO = 200


def analyzed(tmp_path: Path, *events: Event) -> dict[str, Any]:
    partial = host.measure(read_trace(write(tmp_path / "rank0.json", list(events)), EVENTS))
    data: Any = host.analyze([] if partial is None else [partial]).data()
    result: dict[str, Any] = data
    return result


def parts(entry: dict[str, Any]) -> dict[str, float]:
    return {key.removesuffix("_us"): round(1000 * value) for key, value in entry.items() if key.endswith("_us")}


def test_the_timeline_of_a_host_has_the_same_parts_and_the_outermost_operators(tmp_path: Path) -> None:
    wrapper = "autograd::engine::evaluate_function: AddmmBackward0"
    events = [
        step(1, 0, 500),
        span("cpu_op", "aten::linear", 0, 100),
        span("cpu_op", "aten::addmm", 10, 70),
        span("cpu_op", wrapper, 150, 300, tid=AUTOGRAD),
        span("cpu_op", "AddmmBackward0", 160, 260, tid=AUTOGRAD),
        span("cpu_op", "gloo:all_reduce", 220, 320, tid=GLOO),
        span("cpu_op", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 400, 450),
    ]
    trace = read_trace(write(tmp_path / "rank0.json", events), EVENTS)
    (of_host,), partial = timeline.measure(trace) or (), host.measure(trace)
    times = dict(zip(timeline.STATES, of_host.time_ns, strict=True))
    (total,) = (rank.total for rank in partial or ())
    assert times.pop("compute") == total.compute
    assert times.pop("exposed communication") == total.exposed_communication
    assert times.pop("data loading") == total.exposed_data_loading
    assert times.pop("outside of operators") == total.other
    assert not any(times.values())
    shown = [of_host.longest.names[name] for name in of_host.longest.name.tolist()]
    assert shown[:3] == ["aten::linear", "AddmmBackward0", "gloo:all_reduce"]
    assert timeline.analyze([(of_host,)]).ranks[0].device is None


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


def test_stacks_have_each_caller_once_and_callees_take_no_longer(tmp_path: Path) -> None:
    events = [
        step(1, 0, 1000),
        span("cpu_op", "aten::mm", 300, 400),
        span("python_function", "train.py(3): loop", 0, 900),
        span("python_function", "train.py(9): load", 100, 200),
        span("python_function", "<built-in method read of _io.FileIO object at 0x7f>", 110, 150),
        span("python_function", "train.py(9): load", 500, 700),
        span("python_function", "<built-in method read of _io.FileIO object at 0x8e>", 510, 560),
        span("python_function", "<built-in function id>", 880, 881),
        span("python_function", "other.py(1): thread", 0, 1000, tid=AUTOGRAD),
    ]
    rank = stacks.measure(read_trace(write(tmp_path / "rank0.json", events), EVENTS))
    assert rank is not None
    assert [(frame.name, frame.depth, frame.duration_ns) for frame in rank.frames] == [
        ("train.py(3): loop", 0, 900),
        ("train.py(9): load", 1, 300),
        ("built-in read", 2, 90),
    ]


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


def test_the_page_of_a_run_on_a_gpu_has_its_flame_graph(tmp_path: Path) -> None:
    """A run of both windows, in whose window with operators the profiler recorded stacks, too."""
    run = tmp_path / "run"
    shutil.copytree(ROOT / "fixtures" / "light" / "gpu_bound", run)
    (path,) = (run / "traces").glob("*.pt.trace.json.gz")
    trace = json.loads(gzip.decompress(path.read_bytes()))
    marks = [event for event in trace["traceEvents"] if event.get("cat") == "user_annotation"]
    first, *_ = steps = [mark for mark in marks if mark["name"].startswith("ProfilerStep")]
    frames = [{**first, "name": "train.py(3): loop", "ts": first["ts"] - 500, "dur": 1e6}]
    frames += [{**each, "name": "train.py(9): forward", "dur": each["dur"] / 2} for each in steps]
    trace["traceEvents"] += [{**frame, "cat": "python_function"} for frame in frames]
    path.write_bytes(gzip.compress(json.dumps(trace).encode()))
    (rank,) = perfscope.open(run).results.stacks
    loop, forward = rank.frames
    assert (loop.name, loop.depth, loop.duration_ns) == ("train.py(3): loop", 0, rank.window_ns)
    assert (forward.name, forward.depth) == ("train.py(9): forward", 1)
    assert 0.3 < forward.duration_ns / rank.window_ns < 0.7
    page = build_page(analyze_for_page(find_inputs([run]), Plan()))
    assert "A flame graph of 2 functions" in page
