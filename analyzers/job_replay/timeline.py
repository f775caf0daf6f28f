"""The step without stragglers beside a measured one, as events for Perfetto and chrome://tracing."""

from __future__ import annotations

from perfscope.analyzers.job_replay.graph import replay
from perfscope.analyzers.job_replay.job import JobSteps
from perfscope.analyzers.job_replay.slowdown import Slowdowns
from perfscope.constants import NS_PER_US
from perfscope.report import Json
from perfscope.tables.columns import Int64


def ideal_timeline(slowdowns: Slowdowns) -> dict[str, Json]:
    """A document of trace events: a process for the ideal step, one for each pipeline of the step of median time.

    The ideal step is the same on every pipeline. A transfer is drawn from when both ends had started.
    """
    part, ideal = max(zip(slowdowns.job.parts, slowdowns.ideal, strict=True), key=lambda item: len(item[0].steps))
    order = part.measured_ns.argsort(kind="stable")
    column = int(order[len(order) // 2])
    measured = replay(part.graph, part.times_ns[:, :, column : column + 1])
    events: list[Json] = [_name("process_name", 0, 0, "ideal: without stragglers")]
    events += _events(slowdowns, part, 0, ideal.begin_ns[:, 0, 0], ideal.end_ns[:, 0, 0])
    for pipeline in range(slowdowns.job.pipelines):
        events.append(_name("process_name", pipeline + 1, 0, f"step {part.steps[column]}, DP {pipeline}: replayed"))
        spans = measured.begin_ns[:, pipeline, 0], measured.end_ns[:, pipeline, 0]
        events += _events(slowdowns, part, pipeline + 1, *spans)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _events(slowdowns: Slowdowns, part: JobSteps, process: int, begin: Int64, end: Int64) -> list[Json]:
    kinds = slowdowns.job.kinds
    events: list[Json] = []
    for stage in range(slowdowns.job.stages):
        events.append(_name("thread_name", process, 2 * stage, f"stage {stage} computation"))
        events.append(_name("thread_name", process, 2 * stage + 1, f"stage {stage} transfers"))
    for node, label in enumerate(part.labels):
        kind = kinds[part.kinds[node]]
        events.append(
            {
                "ph": "X",
                "name": kind.name,
                "cat": kind.cause,
                "pid": process,
                "tid": 2 * int(part.stages[node]) + kind.is_transfer,
                "ts": int(begin[node]) / NS_PER_US,
                "dur": int(end[node] - begin[node]) / NS_PER_US,
                "args": {"operation": label},
            }
        )
    return events


def _name(event: str, process: int, thread: int, text: str) -> Json:
    return {"ph": "M", "name": event, "pid": process, "tid": thread, "args": {"name": text}}
