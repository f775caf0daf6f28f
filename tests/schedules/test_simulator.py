"""Claims about schedules, their closed forms and the event simulation."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from torch.distributed.pipelining import schedules

from perfscope.analyzers.pipeline_bubble.rank_passes import MeasuredPass
from perfscope.analyzers.pipeline_bubble.recognition import recognise_passes
from perfscope.errors import UsageError
from perfscope.schedules.catalog import Schedule, StageTimes, closed_form, make_plan
from perfscope.schedules.drawing import GanttChart, draw_timeline, to_text
from perfscope.schedules.operations import Op, PassKind, PassOrder, single_block
from perfscope.schedules.prediction import PassTimes, PipelineSetup, simulate_setup
from perfscope.schedules.simulator import Deadlock, UniformTiming, peak_in_flight, simulate

_SPLIT_BACKWARD = frozenset({Schedule.ZB_H1, Schedule.ZB_H2, Schedule.ZBV, Schedule.DUALPIPE})


def _equal(stages: int, devices: int, fbw: tuple[int, int, int], transfer: int = 0) -> UniformTiming:
    forward, inputs, weights = fbw
    return UniformTiming((forward,) * stages, (inputs + weights,) * stages, (weights,) * stages, (transfer,) * devices)


def _setup(
    schedule: Schedule, devices: int, microbatches: int, fbw: tuple[int, int, int], chunks: int = 1
) -> PipelineSetup:
    forward, inputs, weights = fbw
    times = PassTimes((forward,) * devices, (inputs + weights,) * devices, (weights,) * devices, (0,) * devices)
    return PipelineSetup(schedule, devices, microbatches, chunks, times)


def _slowly(work: PassOrder, timing: UniformTiming) -> dict[Op, int]:
    """End of every operation, by relaxing every constraint until nothing moves: another algorithm than the simulator's.

    Only for blocks of one operation.
    """
    device_of = {block[0]: device for device, order in enumerate(work.orders) for block in order}
    ends = dict.fromkeys(device_of, 0)
    moved = True
    while moved:
        moved = False
        for device, order in enumerate(work.orders):
            free = 0
            for (op,) in order:
                start = free
                for need in _inputs(op, work.stages, device_of):
                    crosses = device_of[need] != device
                    start = max(start, ends[need] + (timing.transfer[device_of[need]] if crosses else 0))
                free = start + timing.time_of(op)
                moved = moved or ends[op] != free
                ends[op] = free
    return ends


def _inputs(op: Op, stages: int, known: dict[Op, int]) -> list[Op]:
    def gradient(stage: int) -> Op:
        whole = Op(PassKind.BACKWARD, op.microbatch, stage)
        return whole if whole in known else Op(PassKind.INPUT_GRADIENT, op.microbatch, stage)

    if op.kind is PassKind.FORWARD:
        return [Op(PassKind.FORWARD, op.microbatch, op.stage - 1)] if op.stage else []
    if op.kind is PassKind.WEIGHT_GRADIENT:
        return [gradient(op.stage)]
    after = [] if op.stage == stages - 1 else [gradient(op.stage + 1)]
    return [Op(PassKind.FORWARD, op.microbatch, op.stage), *after]


def test_one_f_one_b_of_two_stages_by_hand() -> None:
    timeline = simulate(make_plan(Schedule.ONE_F_ONE_B, 2, 2), _equal(2, 2, (1, 1, 1)))
    starts = [[(f"{span.block[0].kind}{span.block[0].microbatch}", span.start) for span in d] for d in timeline.devices]
    assert starts == [[("F0", 0), ("F1", 1), ("B0", 4), ("B1", 7)], [("F0", 1), ("B0", 2), ("F1", 4), ("B1", 5)]]


@pytest.mark.parametrize("schedule", [Schedule.GPIPE, Schedule.ONE_F_ONE_B])
@pytest.mark.parametrize("devices", [1, 2, 3, 4, 7, 16])
def test_the_simulator_gives_the_closed_form_exactly_for_any_number_of_micro_batches(
    schedule: Schedule, devices: int
) -> None:
    for microbatches, fbw in product((1, 2, 3, 8, 17, 64), ((1, 1, 1), (7, 5, 3), (3, 11, 0))):
        timeline = simulate(make_plan(schedule, devices, microbatches), _equal(devices, devices, fbw))
        assert timeline.fraction_of_total == Fraction(devices - 1, microbatches + devices - 1)


@pytest.mark.parametrize("chunks", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("devices", [1, 2, 3, 4, 8])
def test_interleaving_divides_the_bubble_by_the_chunks_where_m_is_a_multiple_of_p(devices: int, chunks: int) -> None:
    for factor in (1, 2, 5):
        setup = _setup(Schedule.INTERLEAVED, devices, factor * devices, (7, 5, 3), chunks)
        expected = Fraction(devices - 1, chunks * factor * devices + devices - 1)
        assert simulate_setup(setup).timeline.fraction_of_total == expected
        form = closed_form(Schedule.INTERLEAVED, devices, factor * devices, setup.times.mean, chunks)
        assert form.fraction_of_total == expected


@pytest.mark.parametrize(
    ("schedule", "fbw"),
    [
        (Schedule.ZB_H1, (1, 1, 1)),
        (Schedule.ZB_H1, (10, 10, 8)),
        (Schedule.ZB_H2, (1, 1, 1)),
        (Schedule.ZBV, (1, 1, 1)),
        (Schedule.DUALPIPE, (1, 1, 1)),
        (Schedule.DUALPIPE, (10, 10, 8)),
    ],
)
def test_zero_bubble_schedules_reach_the_bubble_that_is_published_for_them(
    schedule: Schedule, fbw: tuple[int, int, int]
) -> None:
    for devices in (2, 4, 6, 8):
        for microbatches in (2 * devices, 3 * devices, 6 * devices + 2):
            setup = _setup(schedule, devices, microbatches, fbw)
            form = closed_form(schedule, devices, microbatches, setup.times.mean)
            assert form.fraction_of_total == simulate_setup(setup).timeline.fraction_of_period


def test_published_forms_by_hand() -> None:
    times = StageTimes(Fraction(10), Fraction(9), Fraction(8))
    bubbles = {schedule: closed_form(schedule, 4, 8, times).bubble for schedule in Schedule}
    assert bubbles == {
        Schedule.GPIPE: 3 * 27,
        Schedule.ONE_F_ONE_B: 3 * 27,
        Schedule.INTERLEAVED: 3 * 27,
        Schedule.ZB_H1: 3 * (10 + 9 - 8),
        Schedule.ZB_H2: 3 * (10 + 9 - 16),
        Schedule.ZBV: None,
        Schedule.DUALPIPE: (2 - 1) * (27 + 17 - 24),
    }


def test_a_form_that_does_not_hold_gives_its_reason_and_no_number() -> None:
    unequal = StageTimes(Fraction(1), Fraction(1), Fraction(3))
    for form in (
        closed_form(Schedule.ZB_H2, 4, 8, unequal),
        closed_form(Schedule.ZBV, 4, 8, unequal),
        closed_form(Schedule.ZB_H1, 4, 2, StageTimes(Fraction(1), Fraction(1), Fraction(1))),
        closed_form(Schedule.INTERLEAVED, 4, 6, StageTimes(Fraction(1), Fraction(1), Fraction(1)), 2),
    ):
        assert form.bubble is None
        assert form.fraction_of_total is None
        assert form.fraction_of_ideal is None
        assert form.reason


_TIMES = st.integers(min_value=0, max_value=20)


@settings(max_examples=60, deadline=None)
@given(
    schedule=st.sampled_from([one for one in Schedule if one is not Schedule.DUALPIPE]),
    devices=st.integers(1, 4),
    extra=st.integers(0, 5),
    times=st.lists(_TIMES, min_size=4 * 8, max_size=4 * 8),
)
def test_another_algorithm_finds_the_same_times(schedule: Schedule, devices: int, extra: int, times: list[int]) -> None:
    chunks = 2 if schedule is Schedule.INTERLEAVED else 1
    work = make_plan(schedule, devices, devices + extra, chunks)
    forward, inputs, weights = (tuple(times[8 * part : 8 * part + work.stages]) for part in range(3))
    backward = tuple(one + other for one, other in zip(inputs, weights, strict=True))
    timing = UniformTiming(forward, backward, weights, tuple(times[24 : 24 + devices]))
    timeline = simulate(work, timing)
    found = {span.block[0]: span.end for spans in timeline.devices for span in spans}
    assert found == _slowly(work, timing)


@pytest.mark.parametrize("schedule", list(Schedule))
def test_every_micro_batch_passes_every_stage_forward_and_back_once(schedule: Schedule) -> None:
    chunks = 2 if schedule is Schedule.INTERLEAVED else 1
    work = make_plan(schedule, 4, 8, chunks)
    found = [op for order in work.orders for block in order for op in block]
    assert len(found) == len(set(found))
    whole = {(op.microbatch, op.stage) for op in found if op.kind is PassKind.BACKWARD}
    inputs = {(op.microbatch, op.stage) for op in found if op.kind is PassKind.INPUT_GRADIENT}
    weights = {(op.microbatch, op.stage) for op in found if op.kind is PassKind.WEIGHT_GRADIENT}
    every = set(product(range(8), range(work.stages)))
    assert {(op.microbatch, op.stage) for op in found if op.kind is PassKind.FORWARD} == every
    assert whole | inputs == every
    assert not whole & inputs
    assert inputs == weights
    assert bool(inputs) == (schedule in _SPLIT_BACKWARD)


def test_memory_one_f_one_b_holds_p_micro_batches_and_gpipe_all_of_them() -> None:
    assert [peak_in_flight(order) for order in make_plan(Schedule.ONE_F_ONE_B, 4, 8).orders] == [4, 3, 2, 1]
    assert [peak_in_flight(order) for order in make_plan(Schedule.GPIPE, 4, 8).orders] == [8, 8, 8, 8]
    assert max(peak_in_flight(order) for order in make_plan(Schedule.ZB_H1, 4, 8).orders) == 4
    assert max(peak_in_flight(order) for order in make_plan(Schedule.ZB_H2, 4, 8).orders) == 7


def test_an_order_that_can_never_run_is_named() -> None:
    backwards_first = PassOrder(1, 1, ((single_block(PassKind.BACKWARD, 0, 0), single_block(PassKind.FORWARD, 0, 0)),))
    with pytest.raises(Deadlock, match="device 0 waits forever before B0 of stage 0"):
        simulate(backwards_first, _equal(1, 1, (1, 1, 0)))


@pytest.mark.parametrize(
    ("schedule", "devices", "microbatches", "chunks"),
    [
        (Schedule.DUALPIPE, 3, 12, 1),
        (Schedule.DUALPIPE, 4, 9, 1),
        (Schedule.DUALPIPE, 4, 6, 1),
        (Schedule.INTERLEAVED, 4, 3, 2),
        (Schedule.GPIPE, 4, 8, 2),
    ],
)
def test_a_schedule_that_does_not_exist_for_the_numbers_says_so(
    schedule: Schedule, devices: int, microbatches: int, chunks: int
) -> None:
    with pytest.raises(UsageError):
        make_plan(schedule, devices, microbatches, chunks)


def _chart(devices: int, microbatches: int) -> GanttChart:
    stages = (1,) * devices
    timing = UniformTiming(stages, (2,) * devices, (0,) * devices, (0,) * devices)
    return draw_timeline("a pipeline", simulate(make_plan(Schedule.ONE_F_ONE_B, devices, microbatches), timing))


def test_a_small_schedule_is_drawn_exactly() -> None:
    assert to_text(_chart(2, 3), 40).splitlines() == [
        "stage 0 |01..aa2bb.cc|",
        "stage 1 |.0aa1bb2cc..|",
        "0-9 forward of that micro-batch (last digit), a-j its backward, . idle",
    ]


def test_a_schedule_that_is_too_large_shows_what_most_of_each_column_went_to() -> None:
    drawn = to_text(_chart(4, 100), 40).splitlines()
    assert all(len(line) == len("stage 0 |") + 40 + 1 for line in drawn[:4])
    assert set(drawn[0][9:-1]) <= set("FB.")


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
