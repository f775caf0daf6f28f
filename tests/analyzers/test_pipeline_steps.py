"""Claims about the bubble of every step, from what the hooks timed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from perfscope.analyzers.pipeline_steps import analyze
from perfscope.errors import MissingInput
from perfscope.schedules.catalog import Schedule, make_plan
from perfscope.schedules.operations import PassOrder
from perfscope.schedules.simulator import UniformTiming, simulate
from perfscope.tables.micro_batches import MicroBatches, PassTotal
from perfscope.tables.run import Run
from perfscope.tables.steps import Steps


def _records(work: PassOrder, timing: UniformTiming, steps: range, first_rank: int = 0) -> list[MicroBatches]:
    timeline = simulate(work, timing)
    found = []
    for device, spans in enumerate(timeline.devices):
        counts: Counter[tuple[str, int]] = Counter()
        times: Counter[tuple[str, int]] = Counter()
        for span in spans:
            (op,) = span.block
            counts[op.kind, op.stage] += 1
            times[op.kind, op.stage] += span.end - span.start
        one = MicroBatches(
            rank=first_rank + device,
            attempt=0,
            step=0,
            device=device,
            devices=work.devices,
            stages=work.stages,
            span_ns=spans[-1].end - spans[0].start,
            totals=tuple(PassTotal(kind, stage, counts[kind, stage], times[kind, stage]) for kind, stage in counts),
            order=tuple(f"{op.kind}{op.microbatch}.{op.stage}" for span in spans for op in span.block),
        )
        found += [replace(one, step=step) for step in steps]
    return found


def _run(records: list[MicroBatches], steps: tuple[Steps, ...] = ()) -> Run:
    return Run("RUN", (), None, (), steps, (), (), micro_batches=tuple(records))


def _equal(work: PassOrder) -> UniformTiming:
    return UniformTiming((4000,) * work.stages, (8000,) * work.stages, (4000,) * work.stages, (0,) * work.devices)


@pytest.mark.parametrize(
    ("schedule", "chunks", "share"),
    [
        (Schedule.GPIPE, 1, 3 / 11),
        (Schedule.ONE_F_ONE_B, 1, 3 / 11),
        (Schedule.INTERLEAVED, 2, 3 / 19),
        (Schedule.ZB_H1, 1, 1 / 9),
        (Schedule.ZB_H2, 1, 0),
        (Schedule.ZBV, 1, 0),
    ],
)
def test_equal_stages_give_the_published_share(schedule: Schedule, chunks: int, share: float) -> None:
    work = make_plan(schedule, 4, 8, chunks)
    found = analyze(_run(_records(work, _equal(work), range(1, 6))))
    assert found.fraction_of_total == share
    assert (found.schedule, found.microbatches) == (schedule, 8)
    assert [step.step for step in found.steps] == [2, 3, 4, 5]


def test_unequal_stages_and_waiting_add_up() -> None:
    work = make_plan(Schedule.ONE_F_ONE_B, 4, 8)
    timing = UniformTiming((4000, 4000, 4000, 6000), (8000, 8000, 8000, 12000), (0,) * 4, (500,) * 4)
    found = analyze(_run(_records(work, timing, range(2, 4))))
    for stage in found.stages:
        assert stage.schedule is not None
        assert stage.imbalance is not None
        assert stage.transfer_and_host is not None
        assert stage.useful + stage.schedule + stage.imbalance + stage.transfer_and_host == found.section
        assert stage.transfer_and_host > 0
    assert found.stages[3].imbalance == min(stage.imbalance or 0 for stage in found.stages) < 0


def test_pipelines_side_by_side_are_averaged_stage_by_stage() -> None:
    work = make_plan(Schedule.ONE_F_ONE_B, 2, 4)
    records = _records(work, _equal(work), range(1, 4)) + _records(work, _equal(work), range(1, 4), first_rank=2)
    found = analyze(_run(records))
    assert [stage.ranks for stage in found.stages] == [(0, 2), (1, 3)]
    assert found.fraction_of_total == 1 / 5


def test_profiled_steps_are_told_apart_from_undisturbed_ones() -> None:
    work = make_plan(Schedule.ONE_F_ONE_B, 2, 4)
    slow = UniformTiming((8000,) * 2, (16000,) * 2, (0,) * 2, (0,) * 2)
    records = _records(work, _equal(work), range(1, 4)) + _records(work, slow, range(4, 6))
    nothing = np.ma.MaskedArray(np.zeros(5, np.int64), mask=True)
    windows = np.array(["", "", "", "profiled", "profiled"])
    numbers = np.arange(1, 6)
    steps = Steps(
        0,
        0,
        numbers,
        numbers,
        nothing,
        windows,
        windows,
        windows == "x",
        *(nothing,) * 6,
        *(windows == "x",) * 2,
        *(nothing,) * 8,
    )
    found = analyze(_run(records, (steps,)))
    assert [step.step for step in found.steps] == [2, 3]
    assert found.section == 5 * 12000
    assert found.profiled_section_ns == 5 * 24000


def test_a_run_without_a_pipeline_or_with_a_silent_stage_says_so() -> None:
    with pytest.raises(MissingInput, match="no rank timed micro-batches"):
        analyze(_run([]))
    work = make_plan(Schedule.ONE_F_ONE_B, 4, 8)
    records = [one for one in _records(work, _equal(work), range(1, 4)) if one.device != 2]
    with pytest.raises(MissingInput, match="stages 2 of the pipeline"):
        analyze(_run(records))


def test_an_order_that_misses_passes_gives_the_total_alone() -> None:
    work = make_plan(Schedule.ONE_F_ONE_B, 2, 4)
    records = [replace(one, order=one.order[:-1]) for one in _records(work, _equal(work), range(1, 4))]
    found = analyze(_run(records))
    assert found.schedule is None
    assert found.theory_fraction_of_total is None
    assert found.fraction_of_total == 1 / 5
    assert found.stages[0].schedule is None
