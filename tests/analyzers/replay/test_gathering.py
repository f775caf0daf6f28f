"""When a backward pass gathers sharded parameters, by the ranges of FSDP2 and by the nodes of DeepSpeed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from perfscope.analyzers.replay.gathering import find_gathering
from perfscope.sources.traces.reader import read_trace
from perfscope.tables.trace import BASIC_EVENTS, Events, Trace
from tests.analyzers.replay.test_changes import event, write

NS_PER_US = 1000
_NODE = "PreBackwardFunctionForModuleBackward"


def launch(start: float, thread: int = 2) -> dict[str, object]:
    return event("cuda_runtime", "cudaLaunchKernel", start, 2, thread, correlation=int(start))


def read(tmp_path: Path, events: list[dict[str, object]]) -> Trace:
    marked = [event("user_annotation", "ProfilerStep#1", 0, 1000), *events]
    return read_trace(write(tmp_path / "rank0.json", marked), BASIC_EVENTS | Events.OPERATORS | Events.SEQUENCES)


def gathering(trace: Trace) -> tuple[list[int], list[bool]]:
    times_ns, is_gathering = find_gathering(trace, np.arange(len(trace.calls)))
    return times_ns.tolist(), is_gathering.tolist()


def deepspeed(*, gathers: bool, backend: str = "nccl") -> list[dict[str, object]]:
    """Two nodes of 20 us without a gather, and one of 100 us with it; what made them in the forward pass is shorter."""
    transfer = [event("user_annotation", f"{backend}:_all_gather_base", 150, 20, 2)] if gathers else []
    return [
        *(event("cpu_op", _NODE.removesuffix("Backward"), start, 2) for start in (2, 8, 14, 20)),
        event("cpu_op", _NODE, 40, 20, 2),
        launch(70),
        event("cpu_op", _NODE, 80, 20, 2),
        launch(110),
        event("cpu_op", _NODE, 120, 100, 2),
        *transfer,
        launch(160),
        launch(230),
    ]


@pytest.mark.parametrize("backend", ["nccl", "nccl2"])
def test_a_node_of_deepspeed_gathers_for_what_it_takes_longer_than_those_that_do_not(
    backend: str, tmp_path: Path
) -> None:
    times_ns, is_gathering = gathering(read(tmp_path, deepspeed(gathers=True, backend=backend)))
    # It begins at 120 and would have taken 20 without the gather: 40 ahead of the launch in it, 38 behind that.
    assert times_ns == [0, 0, 40 * NS_PER_US, 38 * NS_PER_US]
    assert is_gathering == [False, False, True, False]


def test_a_long_node_without_a_gather_gathers_nothing(tmp_path: Path) -> None:
    times_ns, is_gathering = gathering(read(tmp_path, deepspeed(gathers=False)))
    assert (sum(times_ns), any(is_gathering)) == (0, False)


def test_ranges_of_fsdp_count_in_the_backward_pass_alone(tmp_path: Path) -> None:
    ranges = [
        event("user_annotation", "FSDP::all_gather_copy_out", start, 30, thread) for start, thread in ((5, 1), (55, 2))
    ]
    trace = read(tmp_path, [*ranges, launch(10, 1), launch(60), launch(100)])
    times_ns, is_gathering = gathering(trace)
    assert times_ns == [0, 5 * NS_PER_US, 23 * NS_PER_US]
    assert is_gathering == [False, True, False]
