"""Claims about the orders of torch.distributed.pipelining: they are the schedules of the same names here."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from torch.distributed.pipelining import schedules

from perfscope.analyzers.pipeline_bubble.rank_passes import MeasuredPass
from perfscope.analyzers.pipeline_bubble.recognition import recognise_passes
from perfscope.schedules.operations import PassKind


class _Stage:
    def __init__(self, index: int) -> None:
        self.stage_index = index


def _order(name: str, rank: int, devices: int, microbatches: int, chunks: int) -> list[MeasuredPass]:
    """What torch would run on a rank, without a process group: only the order's own inputs are filled in."""
    schedule: Any = object.__new__(getattr(schedules, name))
    rounds = max(1, microbatches // devices)
    facts = {
        "_stages": [_Stage(rank + devices * chunk) for chunk in range(chunks)],
        "n_local_stages": chunks,
        "pp_group_size": devices,
        "_n_microbatches": microbatches,
        "_num_stages": devices * chunks,
        "num_stages": devices * chunks,
        "rank": rank,
        "number_of_rounds": rounds,
        "microbatches_per_round": microbatches // rounds,
    }
    for key, value in facts.items():
        setattr(schedule, key, value)
    actions = [
        action
        for whole in schedule._calculate_single_rank_operations(rank)
        if whole is not None
        for action in whole.sub_actions or (whole,)
    ]
    return [
        MeasuredPass(
            PassKind(action.computation_type.value), action.microbatch_index, action.stage_index, 0, 0, 0, 0, 0
        )
        for action in actions
    ]


@pytest.mark.parametrize(
    ("name", "chunks", "expected"),
    [
        ("ScheduleInterleaved1F1B", 2, "interleaved"),
        ("ScheduleInterleaved1F1B", 3, "interleaved"),
        ("ScheduleZBVZeroBubble", 2, "zbv"),
        ("ScheduleInterleavedZeroBubble", 1, "zb-h1"),
        ("ScheduleInterleavedZeroBubble", 2, None),
        ("ScheduleLoopedBFS", 2, None),
    ],
)
@pytest.mark.parametrize(("devices", "microbatches"), [(2, 4), (4, 8), (4, 12)])
def test_torch_orders_are_recognised(
    name: str, chunks: int, expected: str | None, devices: int, microbatches: int
) -> None:
    found = recognise_passes([_order(name, rank, devices, microbatches, chunks) for rank in range(devices)])
    assert found is not None
    assert found.name == expected or (expected is None and found.name in ("custom", "zero-bubble"))
    assert found.chunks == chunks
    assert found.plan.microbatches == microbatches


@pytest.mark.parametrize(("devices", "microbatches"), [(2, 4), (2, 7), (3, 6), (4, 8), (4, 12)])
def test_dualpipev_is_named_as_torch_and_as_deepspeed_run_it(devices: int, microbatches: int) -> None:
    """torch splits some backward passes, DeepSpeed none."""
    orders = [_order("ScheduleDualPipeV", rank, devices, microbatches, 2) for rank in range(devices)]
    found = recognise_passes(orders)
    assert found is not None
    assert (found.name, found.chunks) == ("dualpipev", 2)
    whole = [
        [
            replace(each, kind=PassKind.BACKWARD) if each.kind is PassKind.INPUT_GRADIENT else each
            for each in order
            if each.kind is not PassKind.WEIGHT_GRADIENT
        ]
        for order in orders
    ]
    found = recognise_passes(whole)
    assert found is not None
    assert found.name == "dualpipev"
    order = whole[0]
    order[0], order[1] = order[1], order[0]
    other = recognise_passes(whole)
    assert other is not None
    assert other.name == "custom"
