"""What stragglers cost a job: replays in which operations take the time of their peers.

Definitions of Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis", OSDI 2025: T is
the time of the replay with measured durations, and T_ideal that of the replay in which every computation takes the mean
of all operations of its type and every transfer their median. S = T / T_ideal (equation 1). S of a worker, stage or
type is the time with only its operations as measured, over T_ideal (equations 2 and 4). M_W is the share of T - T_ideal
that repairing the slowest 3 % of the workers regains (equation 5), and M_S what repairing the last stage regains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from perfscope.analyzers.job_replay.graph import Spans, replay
from perfscope.analyzers.job_replay.job import Job, JobSteps
from perfscope.tables.columns import Bool, Int64

#: Selects operations of a part, as a mask that broadcasts to (operations, pipelines, steps).
Selection = Callable[[JobSteps], Bool]

#: The share of workers that M_W repairs, in percent.
REPAIRED_PERCENT = 3
#: Below this slowdown there is nothing to explain: shares of it would be shares of the replay's own error.
LEAST_SLOWDOWN = 1.005
#: Up to as many workers each is replayed on its own; above, S of a worker is the smaller one of its pipeline and stage.
MOST_REPLAYED_WORKERS = 512


@dataclass(frozen=True, slots=True)
class Repair:
    """What repairing some operations regains, as a share of what stragglers cost; absent with a reason."""

    share: float | None
    reason: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Slowdowns:
    """The answers for one job; times are sums over its steps, in nanoseconds.

    Attributes:
        job: The job.
        measured_ns: The steps as they were.
        replayed_ns: The replay with measured durations.
        ideal_ns: The replay without stragglers.
        by_worker: S of each pipeline and stage.
        by_stage, by_pipeline, by_cause, by_step: S of each of them.
        is_worker_exact: Whether each worker was replayed on its own.
        repaired: Pipeline and stage of the workers that M_W repairs.
        m_w, m_s: What repairing them, and what repairing the last stage regains.
        ideal: The replay without stragglers, of each part.
        notes: What the answers rest on.
    """

    job: Job
    measured_ns: int
    replayed_ns: int
    ideal_ns: int
    by_worker: tuple[tuple[float, ...], ...]
    by_stage: tuple[float, ...]
    by_pipeline: tuple[float, ...]
    by_cause: Mapping[str, float]
    by_step: Mapping[int, float]
    is_worker_exact: bool
    repaired: tuple[tuple[int, int], ...]
    m_w: Repair
    m_s: Repair
    ideal: tuple[Spans, ...]
    notes: tuple[str, ...]

    @property
    def slowdown(self) -> float:
        """S."""
        return self.replayed_ns / self.ideal_ns

    @property
    def error(self) -> float:
        """How far the replay with measured durations is from the measured steps, as a share of them."""
        return self.replayed_ns / self.measured_ns - 1


def ideal_times(job: Job) -> tuple[Int64, ...]:
    """The time of each operation without stragglers, by part: mean or median of its type over the whole job."""
    of_kind = []
    for number, kind in enumerate(job.kinds):
        peers = np.concatenate([part.times_ns[part.kinds == number].ravel() for part in job.parts])
        centre = np.median if kind.is_transfer else np.mean
        of_kind.append(round(float(centre(peers))) if len(peers) else 0)
    ideal = np.asarray(of_kind, np.int64)
    return tuple(
        np.ascontiguousarray(np.broadcast_to(ideal[part.kinds][:, None, None], part.times_ns.shape))
        for part in job.parts
    )


def find_slowdowns(job: Job) -> Slowdowns:
    """Replay a job as measured, without stragglers, and with those of each worker, stage and type alone."""
    replays = _Replays(job, ideal_times(job))
    measured_ns = sum(int(part.measured_ns.sum()) for part in job.parts)
    replayed = [replay(part.graph, part.times_ns).step_ns for part in job.parts]
    ideal = tuple(replay(part.graph, times) for part, times in zip(job.parts, replays.ideal, strict=True))
    replayed_ns, ideal_ns = sum(int(steps.sum()) for steps in replayed), sum(int(s.step_ns.sum()) for s in ideal)
    by_stage = tuple(replays.only(_of_stage(stage)) / ideal_ns for stage in range(job.stages))
    by_pipeline = tuple(replays.only(_of_pipeline(pipeline)) / ideal_ns for pipeline in range(job.pipelines))
    is_exact = job.pipelines * job.stages <= MOST_REPLAYED_WORKERS
    by_worker = tuple(
        tuple(
            replays.only(_of_worker([(pipeline, stage)])) / ideal_ns if is_exact else min(of_pipeline, of_stage)
            for stage, of_stage in enumerate(by_stage)
        )
        for pipeline, of_pipeline in enumerate(by_pipeline)
    )
    repaired = _slowest_workers(by_worker)
    cost_ns = replayed_ns - ideal_ns
    has_cost = replayed_ns >= LEAST_SLOWDOWN * ideal_ns
    nothing = "" if has_cost else f"stragglers cost less than {LEAST_SLOWDOWN - 1:.1%} of a step: nothing to explain"
    causes = sorted({job.kinds[number].cause for part in job.parts for number in np.unique(part.kinds).tolist()})
    return Slowdowns(
        job=job,
        measured_ns=measured_ns,
        replayed_ns=replayed_ns,
        ideal_ns=ideal_ns,
        by_worker=by_worker,
        by_stage=by_stage,
        by_pipeline=by_pipeline,
        by_cause={cause: replays.only(_of_cause(job, cause)) / ideal_ns for cause in causes},
        by_step=_by_step(job, replayed, ideal),
        is_worker_exact=is_exact,
        repaired=repaired,
        m_w=_repair(
            replays, _of_worker(repaired), replayed_ns, cost_ns, nothing or _too_few(job.pipelines * job.stages)
        ),
        m_s=_repair(replays, _of_stage(job.stages - 1), replayed_ns, cost_ns, nothing or _too_few_stages(job.stages)),
        ideal=ideal,
        notes=job.notes,
    )


class _Replays:
    """Replays of a job with a selection of its operations changed; each gives the sum of all steps."""

    def __init__(self, job: Job, ideal: tuple[Int64, ...]) -> None:
        self.job = job
        self.ideal = ideal

    def only(self, selection: Selection) -> int:
        """Selected operations as measured, all others ideal."""
        return sum(
            int(replay(part.graph, np.where(selection(part), part.times_ns, ideal)).step_ns.sum())
            for part, ideal in zip(self.job.parts, self.ideal, strict=True)
        )

    def without(self, selection: Selection) -> int:
        """Selected operations ideal, all others as measured."""
        return self.only(lambda part: ~selection(part))


def _of_stage(stage: int) -> Selection:
    return lambda part: (part.stages == stage)[:, None, None]


def _of_pipeline(pipeline: int) -> Selection:
    return lambda part: (np.arange(part.times_ns.shape[1]) == pipeline)[None, :, None]


def _of_worker(workers: Sequence[tuple[int, int]]) -> Selection:
    def select(part: JobSteps) -> Bool:
        selected = np.zeros((*part.times_ns.shape[:2], 1), np.bool_)
        for pipeline, stage in workers:
            selected[part.stages == stage, pipeline] = True
        return selected

    return select


def _of_cause(job: Job, cause: str) -> Selection:
    numbers = [number for number, kind in enumerate(job.kinds) if kind.cause == cause]
    return lambda part: np.asarray(np.isin(part.kinds, numbers))[:, None, None]


def _by_step(job: Job, replayed: Sequence[Int64], ideal: Sequence[Spans]) -> dict[int, float]:
    slowdowns: dict[int, float] = {}
    for part, steps, spans in zip(job.parts, replayed, ideal, strict=True):
        slowdowns.update(zip(part.steps, (steps / spans.step_ns).tolist(), strict=True))
    return dict(sorted(slowdowns.items()))


def _slowest_workers(by_worker: Sequence[Sequence[float]]) -> tuple[tuple[int, int], ...]:
    """The slowest 3 % of the workers, at least one; of equal ones the first."""
    places = [(pipeline, stage) for pipeline, row in enumerate(by_worker) for stage in range(len(row))]
    places.sort(key=lambda place: -by_worker[place[0]][place[1]])
    return tuple(places[: -(-len(places) * REPAIRED_PERCENT // 100)])


def _repair(replays: _Replays, selection: Selection, replayed_ns: int, cost_ns: int, reason: str) -> Repair:
    if reason:
        return Repair(None, reason)
    return Repair((replayed_ns - replays.without(selection)) / cost_ns)


def _too_few(workers: int) -> str:
    return "" if workers > 1 else "the job has one worker"


def _too_few_stages(stages: int) -> str:
    return "" if stages > 1 else "the pipeline has one stage"
