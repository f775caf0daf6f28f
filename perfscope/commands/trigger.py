"""``perfscope trigger``: a profiler window in a running job, at the same step on every rank."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from perfscope.commands.options import FormatOption, parse_option
from perfscope.constants import NS_PER_S
from perfscope.errors import ExitCode, PerfscopeError, UsageError
from perfscope.hooks.selection import parse_ranks
from perfscope.outcome import Outcome
from perfscope.renderers import Format
from perfscope.report import Column, Json, Report, Section
from perfscope.units import format_ranges
from perfscope.watching.job import WatchedJob
from perfscope.wire import requests

_SCHEMA = "perfscope/trigger/1"
_RECORDED = ("light", "shapes", "stack", "memory")


def trigger(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run, while it runs.")],
    ranks: Annotated[str | None, typer.Option(help="Ranks to profile, such as 0,3-5.", show_default="all")] = None,
    steps: Annotated[int, typer.Option(min=1, max=100, help="Number of training steps to profile.")] = 3,
    record: Annotated[
        str | None,
        typer.Option(
            help="What the window records next to operators and kernels: shapes,stack,memory. With light, kernels and "
            "their launches alone.",
            show_default="nothing else",
        ),
    ] = None,
    format: FormatOption = Format.MARKDOWN,
) -> Outcome:
    """Open a profiler window in a running job, at the same step on every rank.

    The job needs no port and no restart: a file in its folder names a step some seconds ahead, and every rank sees it
    in time. It must run below `perfscope profile`, or call `perfscope.hooks.attach`.
    """
    job = WatchedJob(run)
    job.look()
    chosen = parse_option("--ranks", parse_ranks, ranks)
    recorded = [] if record is None else record.split(",")
    unknown = [word for word in recorded if word not in _RECORDED]
    if unknown:
        raise UsageError(f"--record: there is no {unknown[0]!r}", hint=f"{', '.join(_RECORDED)}")
    _require_running(job, chosen)
    alive = [rank for rank in job.ranks.values() if not rank.has_ended]
    ahead = max(rank.steps_by_now(job.wall_ns) for rank in alive)
    paces_ns = [rank.pace_ns for rank in alive if rank.pace_ns]
    first = requests.first_step(ahead, min(paces_ns, default=None))
    asked = job.read_requests()
    _require_no_other(job, asked, ahead)
    request = requests.WindowRequest(
        first,
        first + steps - 1,
        time.time_ns(),
        ranks=None if chosen is None else tuple(sorted(chosen)),
        **{word: word in recorded for word in _RECORDED},
    )
    name = f"{requests.WINDOW_PREFIX}{1 + len(asked):04d}.json"
    if not job.publish(name, request):
        raise PerfscopeError("another window was asked for at the same time", hint="run the same command after it")
    begins_s = (first - ahead) * max(paces_ns, default=0.0) / NS_PER_S
    _await_answers(job, name, max(requests.MARGIN_S, begins_s))
    return _answer(request, job, name, format)


def _require_running(job: WatchedJob, chosen: frozenset[int] | None) -> None:
    """Raise PerfscopeError where the job has ended, has not begun, or stands still; UsageError for unknown ranks."""
    name, ranks = job.path, list(job.ranks.values())
    if job.exit_status is not None:
        raise PerfscopeError(f"{name} has ended: the command {job.exit_status}", hint=f"perfscope analyze {name}")
    if ranks and all(rank.has_ended for rank in ranks):
        raise PerfscopeError(f"{name} has ended: no rank runs any more", hint=f"perfscope postmortem {name}")
    if not any(rank.step for rank in ranks):
        raise PerfscopeError(f"{name} has not finished a step yet", hint="run the same command a little later")
    world_size = max(rank.record.world_size for rank in ranks)
    missing = sorted((chosen or frozenset()) - set(range(world_size)))
    if missing:
        raise UsageError(f"--ranks: there is no rank {format_ranges(missing)} among {world_size}")
    alive = [rank for rank in ranks if not rank.has_ended]
    if all(job.is_stalled(rank) for rank in alive):
        idle_s = min(rank.age_ns(job.wall_ns) or 0 for rank in alive) / NS_PER_S
        raise PerfscopeError(
            f"{name}: no rank has finished a step for {idle_s:,.0f} s", hint=f"perfscope postmortem {name}"
        )


def _require_no_other(job: WatchedJob, asked: Mapping[str, requests.WindowRequest], steps: int) -> None:
    """Raise PerfscopeError where a window is to come."""
    for name, request in asked.items():
        answers = [rank.answers.get(name) for rank in job.ranks.values()]
        is_refused = any(answer is not None and answer.status != requests.PLANNED for answer in answers)
        if request.last >= steps and not is_refused:
            raise PerfscopeError(
                f"a window on steps {request.first}-{request.last} is asked for already",
                hint=f"run the same command after step {request.last}",
            )


def _await_answers(job: WatchedJob, name: str, patience_s: float) -> None:
    due_s = time.monotonic() + patience_s
    while time.monotonic() < due_s and not all(name in one.answers or one.has_ended for one in job.ranks.values()):
        time.sleep(0.3)
        job.look()


def _answer(request: requests.WindowRequest, job: WatchedJob, name: str, format: Format) -> Outcome:
    rows = []
    for _, rank in sorted(job.ranks.items()):
        silence = "its process has ended" if rank.has_ended else "no answer in time"
        answer = rank.answers.get(name)
        answered = (None, None, silence) if answer is None else (answer.status, answer.step, answer.reason)
        rows.append((rank.rank, rank.record.host, *answered))
    planned = sum(row[2] == requests.PLANNED for row in rows)
    data: list[Json] = [
        {"rank": rank, "status": status, "step": step, "reason": reason} for rank, _, status, step, reason in rows
    ]
    columns = tuple(map(Column, ("Rank", "Host", "Answer", "At step", "Reason")))
    window = str(request.first) if request.first == request.last else f"{request.first}-{request.last}"
    notes = (
        f"{planned} of {len(rows)} ranks open a window on steps {window}; a training that ends before opens none.",
    )
    report = Report(
        f"Window on steps {window}",
        {"schema": _SCHEMA, "request": name, "first": request.first, "last": request.last, "ranks": data},
        (Section("Answers", columns, tuple(rows), notes),),
    )
    return Outcome(report, format, exit_code=ExitCode.OK if planned == len(rows) else ExitCode.FAILED)
