"""Claims about the replay of a whole job from its operations."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfscope.analyzers.job_replay import slowdown as slowdown_module
from perfscope.analyzers.job_replay.from_operations import job_from_operations
from perfscope.analyzers.job_replay.heat_map import chart_heat_map
from perfscope.analyzers.job_replay.slowdown import Slowdowns, find_slowdowns
from perfscope.analyzers.job_replay.timeline import ideal_timeline
from perfscope.charts.svg import draw_file
from perfscope.errors import PerfscopeError
from perfscope.sources.operations.reading import read_operations
from perfscope.tables.operations import Operations
from tests.analyzers.job_replay.oracle import Key, Times, ToyJob
from tests.conftest import ROOT

JOBS = ROOT / "fixtures" / "jobs"


def _answer(job: ToyJob) -> Slowdowns:
    return find_slowdowns(job_from_operations(job.operations()))


def _published(folder: str, name: str, trial: str) -> dict[str, Any]:
    found = json.loads((JOBS / folder / f"{name}-{trial}.json").read_text())
    assert isinstance(found, dict)
    return found


def _rows(operations: Operations, chosen: np.ndarray[Any, Any]) -> Operations:
    columns = [name for name in Operations.__dataclass_fields__ if name != "kinds"]
    return replace(operations, **{name: getattr(operations, name)[chosen] for name in columns})


@pytest.mark.parametrize(("folder", "trial"), [("stage_imbalance", "ST"), ("slow_worker", "AR")])
def test_the_answers_are_those_of_the_authors(folder: str, trial: str) -> None:
    pytest.importorskip("pyarrow")
    result = _published(folder, "result", trial)
    found = find_slowdowns(job_from_operations(read_operations(JOBS / folder / f"trace-{trial}.parquet")))
    assert found.slowdown == pytest.approx(result["blocking_slowdown"], rel=1e-6)
    assert found.m_w.share == pytest.approx(_published(folder, "mw", trial)["Mw"], abs=1e-5)
    assert found.m_s.share == pytest.approx(_published(folder, "ms", trial)["Ms"], abs=1e-5)
    assert found.measured_ns / found.replayed_ns == pytest.approx(result["launch_slowdown"], rel=1e-6)
    for mine, theirs in (
        (dict(enumerate(found.by_stage)), result["blocking_decompose_by_stage"]),
        (dict(enumerate(found.by_pipeline)), result["blocking_decompose_by_dp_rank"]),
        (found.by_cause, result["blocking_decompose_by_optype"]),
        (found.by_step, result["blocking_step_slowdown"]),
    ):
        assert {str(key): value for key, value in mine.items()} == pytest.approx(theirs, rel=1e-5)


@settings(max_examples=30, deadline=None)
@given(
    st.builds(
        ToyJob,
        pipelines=st.integers(1, 3),
        stages=st.integers(1, 4),
        microbatches=st.integers(1, 5),
        steps=st.integers(1, 3),
        jitter=st.integers(0, 9_000_000),
        seed=st.integers(0, 1000),
    )
)
def test_a_replay_is_the_simulation_of_every_operation(job: ToyJob) -> None:
    found = _answer(job)
    assert found.measured_ns == found.replayed_ns == sum(job.step_times())
    ideal = job.ideal()
    assert found.ideal_ns == sum(job.step_times(ideal))
    for stage, value in enumerate(found.by_stage):
        mixed = job.step_times(_only({(pipeline, stage) for pipeline in range(job.pipelines)}, job.time, ideal))
        assert value == sum(mixed) / found.ideal_ns
    for pipeline, row in enumerate(found.by_worker):
        assert row[0] == sum(job.step_times(_only({(pipeline, 0)}, job.time, ideal))) / found.ideal_ns


def _only(workers: set[tuple[int, int]], measured: Times, ideal: Times) -> Times:
    """The operations of some workers as measured, all others ideal."""
    return lambda key: (measured if (key.pipeline, key.stage) in workers else ideal)(key)


def test_a_job_without_stragglers_has_a_slowdown_of_one() -> None:
    found = _answer(ToyJob())
    assert found.slowdown == 1
    assert {value for row in found.by_worker for value in row} == {1}
    assert (found.m_w.share, found.m_s.share) == (None, None)
    assert "nothing to explain" in found.m_w.reason


def _slower(matches: Callable[[Key], bool], factor: int) -> Callable[[Key, int], int]:
    return lambda key, time: factor * time if matches(key) else time


def test_a_slow_worker_stands_out() -> None:
    is_slow = _slower(lambda key: key.kind.endswith("compute") and (key.pipeline, key.stage) == (1, 0), 2)
    found = _answer(ToyJob(pipelines=4, jitter=100_000, change=is_slow))
    slowest = max(((value, (p, s)) for p, row in enumerate(found.by_worker) for s, value in enumerate(row)))
    assert slowest[1] == (1, 0)
    assert found.repaired == ((1, 0),)
    assert found.slowdown > 1.3
    assert found.m_w.share is not None
    assert found.m_w.share > 0.9
    assert found.m_s.share == pytest.approx(0, abs=0.1)


def test_a_slow_last_stage_stands_out() -> None:
    found = _answer(ToyJob(change=_slower(lambda key: key.kind.endswith("compute") and key.stage == 2, 2)))
    assert max(found.by_stage) == found.by_stage[2] > 1.2
    assert found.m_s.share is not None
    assert found.m_s.share > 1


def test_a_slow_link_stands_out() -> None:
    is_slow = _slower(lambda key: key[:1] == ("forward-send",) and (key.pipeline, key.stage) == (0, 1), 30)
    found = _answer(ToyJob(change=is_slow))
    assert max(found.by_cause, key=lambda cause: found.by_cause[cause]) == "forward-pp-comm"
    assert found.by_cause["forward-pp-comm"] == found.slowdown > 1.2
    assert found.by_cause["forward-compute"] == 1


def test_many_workers_have_the_smaller_slowdown_of_their_pipeline_and_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    job = ToyJob(change=_slower(lambda key: (key.pipeline, key.stage) == (1, 0), 2))
    exact = _answer(job)
    monkeypatch.setattr(slowdown_module, "MOST_REPLAYED_WORKERS", 5)
    found = _answer(job)
    assert (exact.is_worker_exact, found.is_worker_exact) == (True, False)
    assert found.by_worker[1][0] == min(found.by_pipeline[1], found.by_stage[0])
    assert found.repaired == exact.repaired


def test_one_worker_and_one_step_are_answered() -> None:
    found = _answer(ToyJob(pipelines=1, stages=1, steps=1, jitter=9_000_000))
    assert found.slowdown == pytest.approx(1, abs=1e-6)
    assert found.m_w.share is None
    found = _answer(ToyJob(pipelines=1, stages=2, steps=1, change=_slower(lambda key: key.stage == 1, 2)))
    assert found.m_s.share is not None


def test_steps_with_different_numbers_of_micro_batches_are_replayed_together() -> None:
    short, long = ToyJob(microbatches=3, steps=1).operations(), ToyJob(microbatches=5, steps=1).operations()
    assert short.kinds == long.kinds
    columns = [name for name in Operations.__dataclass_fields__ if name != "kinds"]
    both = {name: np.concatenate([getattr(short, name), getattr(long, name)]) for name in columns}
    both["step"] = np.repeat([7, 9], [len(short), len(long)])
    job = job_from_operations(Operations(kinds=short.kinds, **both))
    assert [part.steps for part in job.parts] == [(7,), (9,)]
    expected = ToyJob(microbatches=3, steps=1).step_times() + ToyJob(microbatches=5, steps=1).step_times()
    assert find_slowdowns(job).replayed_ns == sum(expected)


def _without(operations: Operations, kind: str, step: int, pipeline: int, stage: int, number: int) -> Operations:
    gone = (
        (operations.kind == operations.kinds.index(kind))
        & (operations.step == step)
        & (operations.pipeline == pipeline)
        & (operations.stage == stage)
        & (operations.sequence == number)
    )
    assert gone.sum() == 1
    return _rows(operations, ~gone)


@pytest.mark.parametrize(
    ("kind", "number", "reason"),
    [("forward-compute", 1, "do not count from 0"), ("forward-compute", 3, "other operations than dp_rank 0")],
)
def test_a_step_with_a_gap_is_left_out(kind: str, number: int, reason: str) -> None:
    job = job_from_operations(_without(ToyJob().operations(), kind, 1, 1, 1, number))
    assert [part.steps for part in job.parts] == [(0,)]
    assert len(job.notes) == 1
    assert "step 1:" in job.notes[0]
    assert reason in job.notes[0]


def test_a_send_without_its_receive_is_left_out() -> None:
    toy = ToyJob(pipelines=1)
    job = job_from_operations(_without(toy.operations(), "forward-recv", 0, 0, 1, 3))
    assert [part.steps for part in job.parts] == [(1,)]
    assert "stage 0 has 4 forward-send, and stage 1 3 forward-recv" in job.notes[0]
    with pytest.raises(PerfscopeError, match="no step can be replayed"):
        job_from_operations(_without(replace(toy, steps=1).operations(), "forward-recv", 0, 0, 1, 3))


def test_two_ranks_of_one_place_are_refused() -> None:
    operations = ToyJob().operations()
    rank = operations.rank.copy()
    rank[0] = 77
    with pytest.raises(PerfscopeError, match="several ranks"):
        job_from_operations(replace(operations, rank=rank))


def test_operations_of_an_unknown_type_are_named() -> None:
    operations = ToyJob().operations()
    kinds = tuple(name.replace("grads-reduce-scatter", "data-load") for name in operations.kinds)
    job = job_from_operations(replace(operations, kinds=kinds))
    assert job.notes == ("Operations of unknown types are left out: data-load.",)


def test_the_heat_map_has_a_cell_for_each_worker() -> None:
    found = _answer(ToyJob(change=_slower(lambda key: (key.pipeline, key.stage) == (1, 0), 3)))
    svg = draw_file([chart_heat_map(found)])
    assert svg.count("<title>rank ") == 6
    assert f"<title>rank 1: {found.by_worker[1][0]:.4f}</title>" in svg


def test_the_ideal_timeline_ends_with_the_ideal_step() -> None:
    found = _answer(ToyJob(jitter=5_000_000))
    document = json.loads(json.dumps(ideal_timeline(found)))
    spans = [event for event in document["traceEvents"] if event["ph"] == "X"]
    ends = {pid: max(e["ts"] + e["dur"] for e in spans if e["pid"] == pid) for pid in {e["pid"] for e in spans}}
    assert sorted(ends) == [0, 1, 2]
    assert ends[0] * 1000 == pytest.approx(found.ideal_ns / 2)
    assert max(ends[1], ends[2]) * 1000 == pytest.approx(sorted(ToyJob(jitter=5_000_000).step_times())[1])
