"""What stragglers cost a job, as data for JSON and as tables for people."""

from __future__ import annotations

from perfscope.analyzers.job_replay.slowdown import REPAIRED_PERCENT, Repair, Slowdowns
from perfscope.constants import NS_PER_MS, NS_PER_US
from perfscope.report import Cell, Column, Json, Section, first_rows, percent

_MOST_WORKERS = 8
_LARGEST_ERROR = 0.05


def describe(slowdowns: Slowdowns) -> str:
    """The answer in one line."""
    if slowdowns.m_s.reason and slowdowns.m_w.reason and slowdowns.slowdown < 1 + 1 / 200:
        return f"Stragglers cost this job nothing: S = {slowdowns.slowdown:.3f}"
    saved = 1 - slowdowns.ideal_ns / slowdowns.replayed_ns
    parts = [
        f"repairing {text} regains {repair.share:.0%} of it"
        for text, repair in (
            ("the last stage", slowdowns.m_s),
            (f"the slowest {REPAIRED_PERCENT} % of the workers", slowdowns.m_w),
        )
        if repair.share is not None
    ]
    explained = "".join(f"; {part}" for part in parts)
    return f"Stragglers cost {saved:.1%} of a step: S = {slowdowns.slowdown:.3f}{explained}"


def to_data(slowdowns: Slowdowns) -> dict[str, Json]:
    """The answer in JSON, without its schema."""
    job = slowdowns.job
    places = [(pipeline, stage) for pipeline in range(job.pipelines) for stage in range(job.stages)]
    rank_of = {place: job.ranks[place[0]][place[1]] for place in places}
    return {
        "slowdown": slowdowns.slowdown,
        "measured_step_us": slowdowns.measured_ns / job.step_count / NS_PER_US,
        "replayed_step_us": slowdowns.replayed_ns / job.step_count / NS_PER_US,
        "ideal_step_us": slowdowns.ideal_ns / job.step_count / NS_PER_US,
        "replay_error": slowdowns.error,
        "m_w": slowdowns.m_w.share,
        "m_w_reason": slowdowns.m_w.reason or None,
        "m_w_ranks": [rank_of[place] for place in slowdowns.repaired],
        "m_s": slowdowns.m_s.share,
        "m_s_reason": slowdowns.m_s.reason or None,
        "by_worker": {str(rank_of[place]): slowdowns.by_worker[place[0]][place[1]] for place in places},
        "by_worker_is_exact": slowdowns.is_worker_exact,
        "by_stage": {str(stage): value for stage, value in enumerate(slowdowns.by_stage)},
        "by_data_rank": {str(pipeline): value for pipeline, value in enumerate(slowdowns.by_pipeline)},
        "by_operation": dict(slowdowns.by_cause),
        "by_step": {str(step): value for step, value in slowdowns.by_step.items()},
        "workers": [{"rank": rank_of[place], "data_rank": place[0], "stage": place[1]} for place in places],
        "steps": job.step_count,
        "notes": list(slowdowns.notes),
    }


def to_sections(slowdowns: Slowdowns) -> tuple[Section, ...]:
    """The tables for people."""
    return (_total(slowdowns), _workers(slowdowns), _stages(slowdowns), _operations(slowdowns))


def _total(slowdowns: Slowdowns) -> Section:
    steps = slowdowns.job.step_count
    columns = (Column("Figure"), Column("Value", 4), Column("Meaning"))
    rows: tuple[tuple[Cell, ...], ...] = (
        ("S", slowdowns.slowdown, "the replay as measured over the replay without stragglers"),
        (
            "M_W",
            slowdowns.m_w.share,
            f"share of that cost that repairing the slowest {REPAIRED_PERCENT} % of workers regains",
        ),
        ("M_S", slowdowns.m_s.share, "share of it that repairing the last stage regains"),
        ("measured step (ms)", slowdowns.measured_ns / steps / NS_PER_MS, f"mean of {steps} steps"),
        ("replayed step (ms)", slowdowns.replayed_ns / steps / NS_PER_MS, "with measured durations"),
        (
            "ideal step (ms)",
            slowdowns.ideal_ns / steps / NS_PER_MS,
            "every operation takes the mean or median of its type",
        ),
    )
    notes = [f"The replay with measured durations is {slowdowns.error:+.2%} from the measured steps."]
    if abs(slowdowns.error) > _LARGEST_ERROR:
        notes.append("That is far: the job waited for something that its operations do not show.")
    notes += _absences(slowdowns.m_w, "M_W") + _absences(slowdowns.m_s, "M_S")
    return Section("What stragglers cost the job", columns, rows, (*notes, *slowdowns.notes))


def _absences(repair: Repair, name: str) -> list[str]:
    return [f"{name} is absent: {repair.reason}."] if repair.share is None else []


def _workers(slowdowns: Slowdowns) -> Section:
    job = slowdowns.job
    columns = (
        Column("Rank"),
        Column("DP rank"),
        Column("Stage"),
        Column("S of the worker", 4),
        Column("Repaired in M_W"),
    )
    places = [(pipeline, stage) for pipeline in range(job.pipelines) for stage in range(job.stages)]
    places.sort(key=lambda place: -slowdowns.by_worker[place[0]][place[1]])
    every = tuple(
        (
            str(job.ranks[pipeline][stage]),
            str(pipeline),
            str(stage),
            slowdowns.by_worker[pipeline][stage],
            "yes" if (pipeline, stage) in slowdowns.repaired else "no",
        )
        for pipeline, stage in places
    )
    rows, more = first_rows(every, _MOST_WORKERS)
    how = "With only this worker as measured, slowest first."
    if not slowdowns.is_worker_exact:
        how = "The smaller one of the S of its pipeline and of its stage, slowest first: the job has too many workers."
    return Section("Slowdown by worker", columns, rows, (how, *more))


def _stages(slowdowns: Slowdowns) -> Section:
    columns = (Column("Stage"), Column("S of the stage", 4), Column("Change of a step (%)", 2))
    rows = tuple((str(stage), value, percent(value - 1)) for stage, value in enumerate(slowdowns.by_stage))
    return Section("Slowdown by stage", columns, rows, ("With only this stage as measured.",))


def _operations(slowdowns: Slowdowns) -> Section:
    columns = (Column("Operation"), Column("S of the type", 4), Column("Change of a step (%)", 2))
    ordered = sorted(slowdowns.by_cause.items(), key=lambda item: -item[1])
    rows = tuple((name, value, percent(value - 1)) for name, value in ordered)
    return Section("Slowdown by operation", columns, rows, ("With only operations of this type as measured.",))
