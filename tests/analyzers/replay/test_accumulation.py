"""What one more micro-batch takes: with or without the reduction of gradients, and what adding them up costs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from msgspec.structs import replace

from perfscope.analyzers.replay.accumulation import shards_parameters, time_of_adding
from perfscope.analyzers.replay.rank_graph import RankGraph
from perfscope.analyzers.whatif import answer
from perfscope.tables.columns import Bool
from tests.analyzers.replay.jobs import real_job

_NS_PER_MS = 1e6
_WIDTH = 2048


def test_gradients_are_read_twice_and_written_once() -> None:
    """Those of a GPT in two bytes each on an H200, whose memory moves 4.8 TB/s; of FSDP each rank adds its half."""
    whole, sharded = real_job("whatif/base").ranks[0], real_job("whatif/fsdp2").ranks[0]
    layer = 12 * _WIDTH**2 + 13 * _WIDTH
    parameters = 8 * layer + 2 * 32_000 * _WIDTH + 1024 * _WIDTH + 2 * _WIDTH
    expected_ns = 3 * 2 * parameters / 4.8e12 * 1e9
    assert time_of_adding(whole, is_sharded=False) == pytest.approx(expected_ns)
    assert time_of_adding(sharded, is_sharded=True) == pytest.approx(expected_ns / 2, rel=1e-3)
    assert time_of_adding(replace(whole, device_name="a GPU without a datasheet"), is_sharded=False) == 0.0


def test_a_micro_batch_of_zero_3_ends_with_the_reduction_of_its_gradients() -> None:
    """Not with the sum of a norm behind it, which would bring a part of the optimizer into each micro-batch."""
    job = real_job("whatif/pairs/deepspeed/zero3")
    (outlook,) = answer([job.ranks], ("accumulation=2",)).outlooks
    lasting_ns = []
    for before, step in itertools.pairwise(job.ranks[0].marks):
        begins = [graph.end_ns[graph.step == before].max() for graph in job.ranks]
        ends = [graph.end_ns[_scatters(graph, step)].max() for graph in job.ranks]
        lasting_ns.append(max(ends + job.offset_ns) - max(begins + job.offset_ns))
    adding_ns = max(time_of_adding(graph, is_sharded=True) for graph in job.ranks)
    assert -outlook.saved_ns == pytest.approx(np.median(lasting_ns) + adding_ns, rel=0.01)


def _scatters(graph: RankGraph, step: int) -> Bool:
    names = np.array([name.startswith("ncclDevKernel_ReduceScatter") for name in graph.names], np.bool_)
    chosen: Bool = names[graph.name] & (graph.step == step)
    return chosen


@pytest.mark.parametrize(
    ("folder", "is_sharded"), [("whatif/base", False), ("whatif/no_overlap", False), ("whatif/fsdp2", True)]
)
def test_parameters_are_sharded_where_they_are_gathered_piece_by_piece(folder: str, *, is_sharded: bool) -> None:
    assert {shards_parameters(graph) for graph in real_job(folder).ranks} == {is_sharded}


def test_the_distributed_optimizer_of_megatron_is_not_taken_for_sharded_parameters() -> None:
    (graph, _) = real_job("whatif/fsdp2").ranks
    groups = tuple(replace(group, description="DATA_PARALLEL_GROUP_WITH_CP") for group in graph.groups)
    assert not shards_parameters(replace(graph, groups=groups))


@pytest.mark.parametrize(
    ("folder", "sentence"),
    [("whatif/base", "gradients are reduced with the last one"), ("whatif/fsdp2", "which are sharded")],
)
def test_the_answer_says_when_gradients_are_reduced(folder: str, sentence: str) -> None:
    (outlook,) = answer([real_job(folder).ranks], ("accumulation=2",)).outlooks
    assert sentence in outlook.assumptions[0]
    assert "twice" in outlook.assumptions[1]


def test_a_third_micro_batch_takes_what_a_second_does() -> None:
    base_ns = answer([real_job("whatif/base").ranks], ("launch-free",)).replayed.step_ns
    twice, thrice = (
        answer([real_job("whatif/base").ranks], (f"accumulation={count}",)).outlooks[0].step_ns for count in (2, 3)
    )
    assert thrice - twice == pytest.approx(twice - base_ns)
    assert 0.8 * base_ns < twice - base_ns < base_ns + _NS_PER_MS
