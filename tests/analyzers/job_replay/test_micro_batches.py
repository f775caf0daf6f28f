"""Claims about the replay of a job from the passes of micro-batches that the hooks timed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from perfscope.analyzers.job_replay.from_micro_batches import job_from_micro_batches
from perfscope.analyzers.job_replay.slowdown import find_slowdowns
from perfscope.errors import MissingInput
from perfscope.schedules.catalog import Schedule, make_plan
from perfscope.schedules.operations import Op, PassKind
from perfscope.schedules.simulator import Timing, simulate
from perfscope.sources.runs.run import read_run
from perfscope.tables.micro_batches import MicroBatches, PassTotal
from perfscope.tables.run import Run
from tests.conftest import ROOT


class _StageTiming(Timing):
    """Stages whose passes take different times."""

    def __init__(self, factors: tuple[int, ...]) -> None:
        self.factors = factors

    def time_of(self, op: Op) -> int:
        return self.factors[op.stage % len(self.factors)] * {"F": 1000, "B": 2000, "I": 1000, "W": 1000}[op.kind]


def _records(schedule: Schedule, timing: Timing, first_rank: int = 0, chunks: int = 1) -> list[MicroBatches]:
    plan = make_plan(schedule, 4, 8, chunks)
    records = []
    for device, spans in enumerate(simulate(plan, timing).devices):
        counts: Counter[tuple[PassKind, int]] = Counter()
        times: Counter[tuple[PassKind, int]] = Counter()
        for span in spans:
            (op,) = span.block
            counts[op.kind, op.stage] += 1
            times[op.kind, op.stage] += span.end - span.start
        record = MicroBatches(
            rank=first_rank + device,
            attempt=0,
            step=0,
            device=device,
            devices=plan.devices,
            stages=plan.stages,
            span_ns=spans[-1].end - spans[0].start,
            totals=tuple(PassTotal(kind, stage, counts[kind, stage], times[kind, stage]) for kind, stage in counts),
            order=tuple(f"{op.kind}{op.microbatch}.{op.stage}" for span in spans for op in span.block),
        )
        records += [replace(record, step=step) for step in (2, 3)]
    return records


def _run(records: list[MicroBatches]) -> Run:
    return Run("RUN", (), None, (), (), (), (), micro_batches=tuple(records))


@pytest.mark.parametrize(
    ("schedule", "chunks"),
    [(Schedule.GPIPE, 1), (Schedule.ONE_F_ONE_B, 1), (Schedule.INTERLEAVED, 2), (Schedule.ZB_H1, 1), (Schedule.ZBV, 1)],
)
@pytest.mark.parametrize("factors", [(1,), (1, 1, 1, 3)])
def test_a_replay_is_the_simulation_of_the_schedule(schedule: Schedule, chunks: int, factors: tuple[int, ...]) -> None:
    timing = _StageTiming(factors)
    found = find_slowdowns(job_from_micro_batches(_run(_records(schedule, timing, chunks=chunks))))
    assert found.replayed_ns == 2 * simulate(make_plan(schedule, 4, 8, chunks), timing).section
    assert (found.slowdown == 1) == (factors == (1,))


def test_a_slow_stage_and_a_slow_pipeline_stand_out() -> None:
    clean, slow = _StageTiming((10,)), _StageTiming((10, 10, 13, 10))
    records = [*_records(Schedule.ONE_F_ONE_B, clean), *_records(Schedule.ONE_F_ONE_B, slow, first_rank=4)]
    found = find_slowdowns(job_from_micro_batches(_run(records)))
    assert found.job.ranks == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert max(found.by_stage) == found.by_stage[2]
    assert found.repaired == ((1, 2),)
    assert found.slowdown > 1.1


def test_a_run_of_megatron_is_replayed() -> None:
    """The stage with the head is slower: 16 layers over two stages, and a vocabulary of 32,000 on the last."""
    found = find_slowdowns(job_from_micro_batches(read_run(ROOT / "fixtures" / "runs" / "h200_megatron_pp2")))
    assert found.job.ranks == ((0, 1),)
    assert abs(found.error) < 0.05
    assert 1.03 < found.slowdown < 1.1
    assert found.by_stage[1] > 1.03
    assert found.by_stage[0] < 1
    assert set(found.by_cause) == {"forward-compute", "backward-compute"}


def test_passes_take_exactly_their_total() -> None:
    records = [
        replace(record, totals=tuple(replace(t, time_ns=t.time_ns + 5) for t in record.totals))
        for record in _records(Schedule.ONE_F_ONE_B, _StageTiming((1,)))
    ]
    job = job_from_micro_batches(_run(records))
    total = sum(int(part.times_ns.sum()) for part in job.parts)
    assert total == sum(record.busy_ns for record in records)
    assert {int(time) % 1000 for part in job.parts for time in np.unique(part.times_ns)} == {0, 1}


def test_a_step_without_all_of_its_passes_is_left_out() -> None:
    records = _records(Schedule.ONE_F_ONE_B, _StageTiming((1,)))
    records[-1] = replace(records[-1], order=records[-1].order[:-1])
    job = job_from_micro_batches(_run(records))
    assert [part.steps for part in job.parts] == [(2,)]
    assert "step 3: passes are missing" in job.notes[1]


def test_what_cannot_be_replayed_says_why() -> None:
    with pytest.raises(MissingInput, match="no rank timed micro-batches"):
        job_from_micro_batches(_run([]))
    records = _records(Schedule.ONE_F_ONE_B, _StageTiming((1,)))
    with pytest.raises(MissingInput, match="stages 2 of a pipeline timed no micro-batches"):
        job_from_micro_batches(_run([record for record in records if record.device != 2]))
