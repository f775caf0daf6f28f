"""What waits for what where several threads share a stream, as those do that answer torch.distributed.rpc."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from perfscope.analyzers.whatif.job_graph import join_ranks
from perfscope.analyzers.whatif.rank_graph import RankGraph, build_rank_graph
from perfscope.analyzers.whatif.replay import JobReplay, measured_ends, measured_times, span_of_steps
from perfscope.sources.traces.reader import read_trace
from tests.sources.traces.making import Event, call, kernel, step, write

US = 1000


def graph_of(folder: Path, events: list[Event]) -> RankGraph:
    graph = build_rank_graph(read_trace(write(folder / "rank0.json", events)), 0)
    assert graph is not None
    return graph


def test_a_copy_that_another_thread_overtook_is_waited_for_by_no_later_call(tmp_path: Path) -> None:
    """Its call begins first and is held up; the kernel of the other thread comes before it on the stream."""
    copy = call("cudaMemcpyAsync", 10 * US, 60 * US, launch=1, tid=1)
    overtakes = call("cudaLaunchKernel", 20 * US, 22 * US, launch=2, tid=2)
    events = [
        step(1, 0, 90 * US),
        *(copy, overtakes, call("cudaLaunchKernel", 70 * US, 72 * US, launch=3, tid=1)),
        *(kernel("first", 25 * US, 30 * US, launch=2), kernel("copied", 35 * US, 55 * US, launch=1)),
        kernel("last", 75 * US, 80 * US, launch=3),
    ]
    graph = graph_of(tmp_path, events)
    assert not len(graph.host_call)
    job = join_ranks([graph])
    replayed = JobReplay(job).run(measured_times(job))
    assert span_of_steps(job, replayed.end_ns).step_ns == span_of_steps(job, measured_ends(job)).step_ns


@pytest.mark.parametrize("seed", range(4))
def test_any_order_of_threads_can_be_replayed(tmp_path: Path, seed: int) -> None:
    source = random.Random(seed)
    events, free_us = [step(1, 0, 10_000 * US)], {7: 30, 8: 30}
    for number in range(1, 60):
        begin, stream = source.randrange(10, 2_000), source.choice((7, 8))
        start = max(free_us[stream], begin + source.randrange(5, 400))
        free_us[stream] = end = start + source.randrange(1, 30)
        name = source.choice(("cudaMemcpyAsync", "cudaLaunchKernel"))
        returns = end + source.randrange(1, 9) if name == "cudaMemcpyAsync" else begin + 2
        events += [
            call(name, begin * US, returns * US, launch=number, tid=number),
            kernel("work", start * US, end * US, launch=number, stream=stream),
        ]
        if source.random() < 0.3:
            events.append(call("cudaStreamSynchronize", begin * US + 1, (end + 3) * US, launch=1000 + number))
    job = join_ranks([graph_of(tmp_path, events)])
    assert JobReplay(job).run(measured_times(job)).end_ns
