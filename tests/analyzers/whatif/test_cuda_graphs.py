"""Steps that the host launches as one CUDA graph: one call, many events."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.analyzers.whatif import WhatIf, answer, measure
from perfscope.sources.traces.reader import read_trace
from perfscope.tables.trace import BASIC_EVENTS
from tests.analyzers.whatif.test_changes import event, write

_STEPS, _STEP_US = (1, 2, 3), 1000
_NS_PER_US = 1000


def graphed(tmp_path: Path) -> Path:
    """Steps of one graph each: two kernels on a stream, one beside them, and a last one that waits for both streams."""
    events = []
    for step in (0, *_STEPS):
        start = step * _STEP_US
        if step:
            events.append(event("user_annotation", f"ProfilerStep#{step}", start, _STEP_US))
        events.append(event("cuda_runtime", "cudaGraphLaunch", start + 10, 35, correlation=step + 1))
        events.append(event("cuda_runtime", "cudaDeviceSynchronize", start + 40, 680, correlation=100 + step))
        kernels = (("first", 50, 300, 7), ("second", 351, 200, 7), ("beside", 50, 400, 9), ("last", 552, 150, 7))
        for name, at, lasting, stream in kernels:
            arguments = {"correlation": step + 1, "device": 0, "stream": stream, "graph node id": at}
            events.append(event("kernel", name, start + at, lasting, 0, **arguments))
    return write(tmp_path / "rank0.json", events)


def ask(tmp_path: Path, scenario: str) -> WhatIf:
    partial = measure(read_trace(graphed(tmp_path), BASIC_EVENTS))
    assert partial is not None
    (graph,) = partial
    assert len(set(graph.launch.tolist())) == 1 + len(_STEPS)
    return answer([partial], (scenario,))


def test_the_events_of_a_graph_are_replayed_from_its_one_launch(tmp_path: Path) -> None:
    result = ask(tmp_path, "launch-free")
    assert result.measured.step_ns == _STEP_US * _NS_PER_US
    assert result.replay_error == pytest.approx(0, abs=1e-3)
    assert {part.name for part in result.critical_path} >= {"first", "second", "last"}


@pytest.mark.parametrize(("kernel", "saved_us"), [("first", 150), ("last", 75), ("beside", 0)])
def test_a_faster_kernel_of_a_graph_saves_what_the_step_waits_for(tmp_path: Path, kernel: str, saved_us: int) -> None:
    (outlook,) = ask(tmp_path, f"faster-kernel={kernel}:2").scenarios
    assert outlook.saved_ns == pytest.approx(saved_us * _NS_PER_US, abs=2 * _NS_PER_US)
