"""Of stages whose times cannot be compared nothing is said: each healthy rank here looks slow by its time alone."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from perfscope.analyzers.late_ranks.lateness import Cause
from perfscope.analyzers.late_ranks.stage_pace import compare_stages
from perfscope.constants import NS_PER_MS as MS
from perfscope.sources.runs.run import read_run
from perfscope.tables.micro_batches import MicroBatches, PassTotal
from perfscope.tables.model import Weight
from perfscope.tables.run import Run
from perfscope.wire.setup import DdpRecord, SetupRecord
from tests.analyzers.late_ranks.test_device_pace import answers
from tests.analyzers.late_ranks.test_stage_pace import stages_of

DEEPSPEED = SetupRecord(frameworks=("deepspeed",), engine={"zero_optimization.stage": 1})
DDP = SetupRecord(ddp=DdpRecord(False, False, None, 10**9, 10))
#: Layers of 60 in two shapes.
LAYERS = (Weight("layers.*.up", False, (4, 5), 2), Weight("layers.*.down", False, (10, 2), 1))
SLOW = [(1, Cause.DEVICE)]


def pipeline(
    times: list[tuple[float, float]],
    weights: list[tuple[Weight, ...]] | None = None,
    places: list[int] | None = None,
    setup: SetupRecord | None = None,
    **totals: Any,
) -> Run:
    """A pipeline: of each rank the times (ms) of its forward and its backward passes in all steps, and what it has.

    Ranks of the same place are replicas of a stage.
    """
    places = places or list(range(len(times)))
    weights = weights or [LAYERS for _ in times]
    sizes = [(sum(weight.elements for weight in own), 0) for own in weights]
    run = stages_of([[1] * 7 for _ in times], sizes, launches=tuple(0 for _ in times))
    records = tuple(passes(rank, step, own, places, **totals) for rank, own in enumerate(times) for step in range(7))
    models = tuple(dataclasses.replace(model, weights=weights[model.rank]) for model in run.models)
    ranks = tuple(
        replace(rank, parallel={"pp": place, "dp": places[: rank.rank].count(place)})
        for rank, place in zip(run.ranks, places, strict=True)
    )
    setups = {} if setup is None else {rank.rank: setup for rank in ranks}
    return replace(run, micro_batches=records, models=models, ranks=ranks, setups=setups)


def passes(
    rank: int, step: int, times: tuple[float, float], places: list[int], count: int = 4, **totals: Any
) -> MicroBatches:
    place, devices = places[rank], max(places) + 1
    both = tuple(PassTotal(kind, place, count, round(ms * MS), **totals) for kind, ms in zip("FB", times, strict=True))
    return MicroBatches(rank, 0, step, place, devices, devices, 90 * MS, both, ())


def table(*shape: int) -> Weight:
    return Weight("tokens", True, shape, 1)


def head(*shape: int) -> Weight:
    return Weight("head", False, shape, 1)


@pytest.mark.parametrize(
    ("own", "expected"),
    [((30, 60), SLOW), ((40, 40), []), ((20, 80), []), ((25, 60), SLOW), ((24, 60), [])],
    ids=["both", "an all-reduce of the loss", "recomputed activations", "a quarter", "less"],
)
def test_a_slow_device_is_slow_forward_and_backward(
    own: tuple[float, float], expected: list[tuple[int, Cause]]
) -> None:
    assert answers(pipeline([(20, 40), own])) == expected


def test_backward_passes_may_be_split_and_passes_of_one_kind_say_nothing() -> None:
    run = pipeline([(20, 40), (30, 60)])
    split = tuple(
        dataclasses.replace(
            record,
            totals=(
                record.totals[0],
                *(dataclasses.replace(record.totals[1], kind=kind, time_ns=30 * MS) for kind in "IW"),
            ),
        )
        if record.rank
        else record
        for record in run.micro_batches
    )
    assert answers(replace(run, micro_batches=split)) == SLOW
    for kind in "FB":
        alone = tuple(record.of_kinds(kind) for record in run.micro_batches)
        assert compare_stages(replace(run, micro_batches=alone)) == {}


def test_another_process_in_backward_passes_alone_is_told_from_activations_that_are_recomputed() -> None:
    """It was not there in the first steps."""
    run = pipeline([(20, 40), (20, 70)])
    assert answers(run) == []
    earlier = tuple(
        passes(1, record.step, (20, 40), [0, 1]) if record.rank and record.step < 2 else record
        for record in run.micro_batches
    )
    assert answers(replace(run, micro_batches=earlier)) == SLOW


def test_a_batch_that_grows_is_compared_in_steps_that_all_ranks_timed() -> None:
    """The first rank was timed in each step, the second one in few of those with the larger batch."""
    places = [0, 1]
    records = [
        passes(rank, step, (5 * count, 10 * count), places, count)
        for step in range(1, 91)
        for count in (4 if step <= 32 else 8,)
        for rank in ((0, 1) if step <= 32 or step % 4 == 0 else (0,))
    ]
    run = pipeline([(20, 40), (20, 40)])
    paces = compare_stages(replace(run, micro_batches=tuple(records)))
    assert [pace.relative for pace in paces.values()] == [1, 1]
    assert [pace.steps for pace in paces.values()] == [32 + 14] * 2


def test_steps_with_other_micro_batches_or_of_an_earlier_attempt_are_not_compared() -> None:
    run = pipeline([(20, 40), (30, 60)])
    assert answers(run) == SLOW
    more = [
        passes(1, record.step, (30, 60), [0, 1], count=6) if record.rank and record.step < 3 else record
        for record in run.micro_batches
    ]
    assert compare_stages(replace(run, micro_batches=tuple(more))) == {}, "four steps are too few"
    again = [dataclasses.replace(record, attempt=int(record.step > 2)) for record in run.micro_batches]
    assert compare_stages(replace(run, micro_batches=tuple(again))) == {}
    apart = [dataclasses.replace(record, step=record.step + 3 * record.rank) for record in run.micro_batches]
    assert compare_stages(replace(run, micro_batches=tuple(apart))) == {}


def test_steps_of_which_waits_are_known_are_compared_alone() -> None:
    """In the others, before that, the second host was late."""
    run = pipeline([(20, 40)] * 2, launch_ns=MS, wait_ns=0)
    before = [
        passes(rank, step, (20 + 20 * rank, 40 + 40 * rank), [0, 1]) for rank in range(2) for step in range(7, 20)
    ]
    mixed = replace(run, micro_batches=(*run.micro_batches, *before))
    assert answers(mixed) == []
    pace = compare_stages(mixed)[1]
    assert (pace.relative, pace.least, pace.steps) == (1, 1, 7)
    few = [record for record in run.micro_batches if record.step < 4]
    assert compare_stages(replace(run, micro_batches=(*few, *before)))[1].least is None


TWO_PIPELINES = [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([(20, 40), (20, 40), (30, 60), (30, 60)], []),  # the stage has more to do
        ([(20, 40), (20, 40), (20, 40), (30, 60)], [(3, Cause.DEVICE)]),
        ([(20, 40), (20, 40), (38, 40), (20, 40)], []),  # waits for the other pipeline to exchange the loss
    ],
)
def test_replicas_of_a_stage_do_the_same_work(
    times: list[tuple[float, float]], expected: list[tuple[int, Cause]]
) -> None:
    assert answers(pipeline(times, places=TWO_PIPELINES)) == expected


def test_replicas_are_compared_where_stages_cannot_be() -> None:
    """Two stages of other shapes: of each, one replica is compared with the other."""
    convolutions = (Weight("convolution", False, (4, 3, 3), 1),)
    weights = [convolutions, convolutions, LAYERS, LAYERS]
    alike = pipeline([(60, 120), (60, 120), (20, 40), (20, 40)], weights, TWO_PIPELINES)
    assert answers(alike) == []
    slow = pipeline([(60, 120), (60, 120), (20, 40), (30, 60)], weights, TWO_PIPELINES)
    assert answers(slow) == [(3, Cause.DEVICE)]
    assert compare_stages(slow)[3].relative == 1.5


def test_gradients_that_ddp_reduces_are_exchanged_inside_of_passes() -> None:
    times: list[tuple[float, float]] = [(20, 40), (20, 40), (20, 40), (30, 60)]
    assert compare_stages(pipeline(times, places=TWO_PIPELINES, setup=DDP)) == {}
    assert answers(pipeline(times[2:], setup=DDP)) == SLOW, "it has nobody to reduce with"


@pytest.mark.parametrize(("setup", "expected"), [(None, []), (DEEPSPEED, [(3, Cause.DEVICE)])])
def test_beside_replicas_only_passes_of_deepspeed_hold_nothing_that_is_longer_at_times(
    setup: SetupRecord | None, expected: list[tuple[int, Cause]]
) -> None:
    run = pipeline([(20, 40)] * 4, places=TWO_PIPELINES, setup=setup)
    records = tuple(
        dataclasses.replace(
            record,
            totals=tuple(
                dataclasses.replace(total, fastest_ns=round(total.time_ns / (4.6 if record.rank == 3 else 4)))
                for total in record.totals
            ),
        )
        for record in run.micro_batches
    )
    assert answers(replace(run, micro_batches=records)) == expected


MANY = tuple(dataclasses.replace(weight, count=3 * weight.count) for weight in LAYERS)
EXPERTS = Weight("experts.*.up", False, (4, 5), 8)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (LAYERS, LAYERS, SLOW),
        (LAYERS, MANY, SLOW),
        ((*LAYERS, table(60, 2)), LAYERS, SLOW),
        ((Weight("norm", False, (6,), 1),), LAYERS, []),  # less than a quarter of the median
        (LAYERS, (*LAYERS, table(61, 2)), SLOW),  # of the last stage it is the head
        ((*LAYERS, table(61, 2)), (*LAYERS, head(61, 2)), []),  # it looks up more than twice what it multiplies with
        ((*LAYERS, table(50, 2)), (*LAYERS, head(50, 2)), SLOW),
        ((*LAYERS, table(50, 2)), (*LAYERS, head(2, 50)), SLOW),
        ((*LAYERS, table(50, 2)), (*LAYERS, head(50, 3)), []),
        (LAYERS, (*LAYERS, Weight("scale", False, (200,), 1)), SLOW),  # no matrix
        (LAYERS, (*LAYERS, head(6, 1)), SLOW),
        (LAYERS, (*LAYERS, head(7, 1)), []),
        ((Weight("convolution", False, (4, 5, 3), 1),), LAYERS, []),
        ((*LAYERS, EXPERTS), (*LAYERS, EXPERTS), SLOW),
        ((*LAYERS, EXPERTS), (*MANY, dataclasses.replace(EXPERTS, count=24)), SLOW),
        ((*LAYERS, EXPERTS), (*MANY, EXPERTS), []),
        ((*LAYERS, EXPERTS, table(50, 2)), (*LAYERS, EXPERTS, head(50, 2)), []),  # a head is used by each token
    ],
)
def test_stages_are_compared_by_parameter_where_they_are_of_the_same_kind(
    first: tuple[Weight, ...], second: tuple[Weight, ...], expected: list[tuple[int, Cause]]
) -> None:
    """The second stage takes three times as long, by what it multiplies with."""
    unit = sum(weight.elements for weight in first if not weight.is_embedding)
    own = 3 * sum(weight.elements for weight in second)
    run = pipeline([(unit, 2 * unit), (own, 2 * own)], [first, second])
    assert answers(run) == expected
    assert bool(compare_stages(run)) == bool(expected)


def test_of_many_stages_one_that_is_like_no_other_is_left_out() -> None:
    convolutions = (Weight("convolution", False, (4, 5, 3), 1),)
    run = pipeline([(90, 180), (20, 40), (20, 40), (30, 60)], [convolutions, LAYERS, LAYERS, LAYERS])
    assert answers(run) == [(3, Cause.DEVICE)]
    assert set(compare_stages(run)) == {1, 2, 3}


@pytest.mark.parametrize(
    ("weights", "multiplied"),
    [((*LAYERS, table(12, 2)), 60 + 24), ((*LAYERS, table(12, 2), head(12, 2)), 60 + 24)],
    ids=["its embedding is its head", "it has a head of its own"],
)
def test_the_last_stage_of_a_v_schedule_is_on_the_first_device(weights: tuple[Weight, ...], multiplied: int) -> None:
    run = pipeline([(multiplied, 2 * multiplied), (60, 120)], [weights, LAYERS])
    records = []
    for record in run.micro_batches:
        totals = tuple(
            dataclasses.replace(total, stage=stage, time_ns=total.time_ns // 2)
            for total in record.totals
            for stage in ((0, 3) if record.rank == 0 else (1, 2))
        )
        records.append(dataclasses.replace(record, stages=4, totals=totals))
    run = replace(run, micro_batches=tuple(records))
    assert [pace.relative for pace in compare_stages(run).values()] == pytest.approx([1, 1])


def test_launches_are_compared_with_the_shortest_of_others() -> None:
    """Two ranks read their losses, and wait for their devices meanwhile: the host of the last one is slow."""
    launches = [(4, 8), (14, 28), (14, 28), (14, 28)]
    run = pipeline([(20, 40), (20, 40), (20, 40), (30, 60)])
    records = tuple(
        dataclasses.replace(
            record,
            totals=tuple(
                dataclasses.replace(total, launch_ns=ms * MS, wait_ns=ms * MS if record.rank == 3 else 0)
                for total, ms in zip(record.totals, launches[record.rank], strict=True)
            ),
        )
        for record in run.micro_batches
    )
    assert answers(replace(run, micro_batches=records)) == []
    honest = tuple(record for record in records if record.rank)
    assert answers(replace(run, micro_batches=honest)) == [(3, Cause.DEVICE)]


def test_a_healthy_last_stage_of_megatron_is_not_slow() -> None:
    """Recorded on two H200 when its embedding of words was taken for a product."""
    paces = compare_stages(read_run(Path("fixtures/runs/h200_megatron_pp2")))
    assert all(pace.relative < 1.1 for pace in paces.values())
    assert len(paces) == 2
