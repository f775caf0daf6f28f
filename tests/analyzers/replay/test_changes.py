"""The parts of scenarios against plain definitions: grids, buckets, recomputation, transfers, stacks, accumulation."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from perfscope.analyzers.communication.calls import GroupKey, Kind
from perfscope.analyzers.replay.accumulation import find_micro_batches
from perfscope.analyzers.replay.buckets import TransferTimes, _cost, _fill, _Step, fit_transfer_times
from perfscope.analyzers.replay.contention import measure_contention
from perfscope.analyzers.replay.job_graph import Operation, match_unnamed_transfers
from perfscope.analyzers.replay.kernel_changes import _repeats, find_recomputed
from perfscope.analyzers.replay.rank_graph import (
    MANY_BLOCKS,
    CallKind,
    build_rank_graph,
    count_blocks,
    find_stacks,
    slowdown_beside,
)
from perfscope.sources.traces.reader import read_trace
from perfscope.tables.trace import ABSENT, BASIC_EVENTS, Events
from tests.analyzers.replay.jobs import FIXTURES, column, first_device, real_job

MIB = 1 << 20


def test_blocks_of_small_grids_are_counted_and_others_are_many() -> None:
    trace = read_trace(FIXTURES / "whatif" / "base" / "rank0.json.gz", BASIC_EVENTS | Events.GRIDS)
    blocks = count_blocks(trace.device.grid)
    names = np.array(trace.names)[trace.device.name]
    nccl = {int(count) for name, count in zip(names, blocks, strict=True) if name.startswith("ncclDevKernel")}
    products = {int(count) for name, count in zip(names, blocks, strict=True) if name.startswith("nvjet")}
    assert (nccl, products) == ({24}, {128, 132})
    assert MANY_BLOCKS in blocks
    assert trace.processors == 132
    assert count_blocks(column([ABSENT])).tolist() == [ABSENT]


@pytest.mark.parametrize(
    ("blocks", "is_product", "slowdown"),
    [
        (132, True, 1.0),  # one round becomes two
        (108, True, 0.0),  # fits beside
        (264, True, 0.5),  # two rounds become three
        (MANY_BLOCKS, True, 132 / 108 - 1),
        (MANY_BLOCKS, False, 132 / 108 - 1),
        (100, False, 0.0),
        (ABSENT, False, 132 / 108 - 1),
    ],
)
def test_a_kernel_that_shares_the_device_needs_more_rounds(blocks: int, is_product: bool, slowdown: float) -> None:
    assert slowdown_beside(column([blocks]), np.array([is_product]), 24, 132)[0] == pytest.approx(slowdown)


def test_grids_let_expect_the_slowdown_that_is_measured_where_both_are_known() -> None:
    products, others = measure_contention(real_job("whatif/base").ranks)
    assert products.slowdown == pytest.approx(0.82, abs=0.02)
    assert products.estimate == pytest.approx(1.0, abs=0.01)
    assert others.slowdown == pytest.approx(others.estimate, abs=0.03)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**9))
def test_filled_buckets_are_those_that_bytes_one_by_one_would_fill(seed: int) -> None:
    source = random.Random(seed)
    sizes = [source.randrange(10, 20) for _ in range(source.randrange(2, 8))]
    ready = sorted(source.sample(range(100, 2000), len(sizes)))
    step = _Step(column(ready), column(sizes), 50, ready[-1] + source.randrange(0, 50))
    wanted = source.randrange(3, 60)
    expected, filled, total = [], 0, sum(sizes)
    moments = [50, *ready]
    edges = [0, *itertools.accumulate(sizes)]
    for position in range(1, total + 1):
        if position - filled == wanted or position == total:
            index = next(i for i in range(len(sizes)) if edges[i] < position <= edges[i + 1])
            share = (position - edges[index]) / sizes[index]
            expected.append((moments[index] + share * (moments[index + 1] - moments[index]), position - filled))
            filled = position
    assert [size for _, size in _fill(step, wanted)] == [size for _, size in expected]
    for (got, _), (want, _) in zip(_fill(step, wanted), expected, strict=True):
        assert got == pytest.approx(want, abs=0.51)


def test_a_parameter_that_is_larger_than_a_bucket_is_not_divided() -> None:
    step = _Step(column([10, 20, 30, 40]), column([25, 25, 131, 25]), 0, 40)
    assert [size for _, size in _fill(step, 5)][10:12] == [131, 5]
    assert sum(size for _, size in _fill(step, 5)) == 206


def test_what_buckets_cost_is_what_a_queue_of_them_takes() -> None:
    step = _Step(column([100, 200]), column([10, 10]), 0, 200)
    times = TransferTimes(latency_ns=5, bytes_per_ns=0.5, is_fitted=True)  # 25 ns each
    assert _cost(step, step.measured, times, lost=0.0) == 25  # the second begins when it is ready and ends behind
    assert _cost(step, step.measured, times, lost=0.4) == 25 + 0.4 * 25
    assert _cost(step, [(200, 20)], times, lost=0.4) == 45
    assert _cost(step, [(0, 1000)], times, lost=0.0) == 2005 - 200


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 6), max_size=40), st.lists(st.integers(0, 6), max_size=40))
def test_repeated_parts_are_those_that_a_search_finds(forward: list[int], backward: list[int]) -> None:
    expected = [False] * len(backward)
    for start in range(len(backward) - 4):
        part = backward[start : start + 5]
        if len(set(part)) >= 3 and any(forward[at : at + 5] == part for at in range(len(forward) - 4)):
            expected[start : start + 5] = [True] * 5
    assert _repeats(column(forward), column(backward)).tolist() == expected


@pytest.mark.parametrize("folder", ["whatif/base", "whatif/no_overlap", "whatif/fsdp2", "whatif/ds_pp4"])
def test_nothing_is_recomputed_where_nothing_was(folder: str) -> None:
    assert not any(find_recomputed(graph).any() for graph in real_job(folder).ranks)


@pytest.mark.parametrize(("folder", "count"), [("whatif/base", 1), ("whatif/fsdp2", 1), ("traces/ddp4", 1)])
def test_micro_batches_are_counted_by_their_backward_passes(folder: str, count: int) -> None:
    for graph in real_job(folder).ranks:
        assert {len(step.backward) for step in find_micro_batches(graph)} == {count}


def test_transfers_without_peers_are_matched_as_those_with_them() -> None:
    """DeepSpeed's name their peers: taken away, the pairs that end together are found by that."""
    job = real_job("whatif/ds_pp4")
    named = {
        item.members
        for item in job.operations
        if item.is_point_to_point
        and np.ptp([job.ranks[rank].end_ns[row] + job.offset_ns[rank] for rank, row in item.members]) <= 25_000
    }
    ranks = [replace(graph, groups=(), group_events=()) for graph in job.ranks]
    found = {item.members for item in match_unnamed_transfers(ranks, job.offset_ns)}
    assert len(named) > 70
    assert len(named & found) >= 0.95 * len(named)
    assert len(found - named) <= 0.05 * len(named)
    apart = [replace(graph, host=str(rank)) for rank, graph in enumerate(ranks)]
    assert match_unnamed_transfers(apart, job.offset_ns) == []


def operation(size: int) -> Operation:
    return Operation(GroupKey("0", "0,1"), "DP", Kind("all_reduce", "float", size), ((0, 0), (1, 0)), 0)


def test_latency_and_bandwidth_are_those_of_the_line_through_measured_transfers() -> None:
    sizes = [MIB, 4 * MIB, 16 * MIB]
    times = fit_transfer_times(
        [operation(size) for size in sizes], column(round(30_000 + size / 200) for size in sizes)
    )
    assert times.is_fitted
    assert times.latency_ns == pytest.approx(30_000, rel=1e-3)
    assert times.bytes_per_ns == pytest.approx(200, rel=1e-3)
    assert not fit_transfer_times([operation(MIB)] * 2, column([90_000, 90_000])).is_fitted


def event(
    category: str, name: str, start: float, duration: float, thread: int = 1, **args: object
) -> dict[str, object]:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 1,
        "tid": thread,
        "ts": start,
        "dur": duration,
        "args": args,
    }


def write(path: Path, events: list[dict[str, object]]) -> Path:
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def test_a_backward_launch_belongs_to_the_module_of_its_forward_operator(tmp_path: Path) -> None:
    numbers = {"Sequence number": 7}
    events = [
        event("user_annotation", "ProfilerStep#1", 0, 100),
        event("user_annotation", "nn.Module: net.mlp", 1, 20),
        event("cpu_op", "aten::linear", 2, 10) | {"args": {"External id": 1, **numbers}},
        event("cpu_op", "aten::mm", 3, 5) | {"args": {"External id": 2}},
        event("cuda_runtime", "cudaLaunchKernel", 4, 1, correlation=1),
        event("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 50, 20, 2)
        | {"args": {"External id": 3, **numbers}},
        event("cuda_runtime", "cudaLaunchKernel", 55, 1, 2, correlation=2),
        event("cuda_runtime", "cudaLaunchKernel", 90, 1, correlation=3),
    ]
    trace = read_trace(
        write(tmp_path / "rank0.json", events), BASIC_EVENTS | Events.OPERATORS | Events.SEQUENCES | Events.GRIDS
    )
    stacks, stack = find_stacks(trace, np.arange(3))
    forward, backward = stacks[stack[0]], stacks[stack[1]]
    assert forward == ("nn.Module: net.mlp", "aten::linear", "aten::mm")
    assert backward[:2] == ("nn.Module: net.mlp", "aten::linear")
    assert backward[-1].endswith("MmBackward0")
    assert stack[2] == ABSENT


def recorded_waits(tmp_path: Path, *, states_waits: bool) -> Path:
    """Two kernels on stream 7, an event recorded between them, and one on stream 9 that waits for the event."""
    events = [
        event("user_annotation", "ProfilerStep#1", 0, 900),
        event("cuda_runtime", "cudaLaunchKernel", 10, 2, correlation=1),
        event("cuda_runtime", "cudaEventRecord", 13, 1, correlation=2),
        event("cuda_runtime", "cudaLaunchKernel", 15, 2, correlation=3),
        event("cuda_runtime", "cudaStreamWaitEvent", 18, 1, correlation=4),
        event("cuda_runtime", "cudaLaunchKernel", 20, 2, correlation=5),
        event("cuda_runtime", "cudaEventSynchronize", 24, 100, correlation=6),
        event("kernel", "first", 30, 50, correlation=1, device=0, stream=7),
        event("kernel", "second", 80, 20, correlation=3, device=0, stream=7),
        event("kernel", "third", 105, 10, correlation=5, device=0, stream=9),
    ]
    if states_waits:
        recorded = {"wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": 2}
        events += [
            event("cuda_sync", "Stream Wait Event", 18, 1, 9, correlation=4, **recorded),
            event("cuda_sync", "Event Sync", 24, 100, 0, correlation=6, **recorded),
        ]
    return write(tmp_path / "rank0.json", events)


def test_a_recorded_wait_is_for_what_was_launched_before_its_event(tmp_path: Path) -> None:
    for states_waits, source in ((True, "first"), (False, "second")):
        trace = read_trace(
            recorded_waits(tmp_path, states_waits=states_waits), BASIC_EVENTS | Events.WAITS | Events.GRIDS
        )
        graph = build_rank_graph(trace, first_device(trace))
        assert graph is not None
        names = [graph.names[name] for name in graph.name]
        assert [
            (names[left], names[right]) for left, right in zip(graph.wait_source, graph.wait_target, strict=True)
        ] == [(source, "third")]
        waited = {names[row] for row in graph.host_event[graph.call_kind[graph.host_call] == CallKind.SYNCHRONIZE]}
        assert ("first" in waited) == states_waits
