"""``perfscope trigger``: a profiler window in a running job, at the same step on every rank."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from typing import Annotated

import typer

from perfscope.collect.parts import parse_folder
from perfscope.collect.running import RunningPart, RunningRank, is_stalled, look_at, publish
from perfscope.commands.options import FormatOption
from perfscope.constants import NS_PER_S
from perfscope.errors import ExitCode, PerfscopeError, UsageError
from perfscope.hooks.selection import parse_ranks
from perfscope.outcome import Outcome
from perfscope.renderers import Format
from perfscope.report import Column, Json, Report, Section
from perfscope.units import format_ranges
from perfscope.wire import requests

_SCHEMA = "perfscope/trigger/1"
_PERIOD_S = 0.3
_PATIENCE_S = 10.0
_PATIENCE_STEPS = 3
_RECORDED = ("light", "shapes", "stack", "memory")


def trigger(
    run: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="The run's folder; of hosts that share none, each one's: HOST:PATH."),
    ],
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
    ssh: Annotated[
        str | None,
        typer.Option(help='Command that reaches other hosts, such as "ssh -p 2222".', show_default="ssh"),
    ] = None,
    format: FormatOption = Format.MARKDOWN,
) -> Outcome:
    """Open a profiler window in a running job, at the same step on every rank.

    The job needs no port and no restart: a file in its folder names a step some seconds ahead, and every rank sees it
    in time. It must run below `perfscope profile`, or call `perfscope.hooks.attach`.
    """
    folders = [parse_folder(name, shlex.split(ssh) if ssh else ()) for name in dict.fromkeys(run)]
    parts = [look_at(folder) for folder in folders]
    chosen = None if ranks is None else _parse_ranks(ranks)
    recorded = [] if record is None else record.split(",")
    unknown = [word for word in recorded if word not in _RECORDED]
    if unknown:
        raise UsageError(f"--record: there is no {unknown[0]!r}", hint=f"{', '.join(_RECORDED)}")
    _require_running(parts, chosen)
    alive = [rank for part in parts for rank in part.ranks if not rank.has_ended]
    ahead = max(rank.steps_by_now for rank in alive)
    fastest_ns = min((rank.step_ns for rank in alive if rank.step_ns), default=None)
    first = requests.first_step(ahead, fastest_ns)
    _require_no_other(parts, ahead)
    request = requests.WindowRequest(
        first,
        first + steps - 1,
        time.time_ns(),
        ranks=None if chosen is None else tuple(sorted(chosen)),
        light="light" in recorded,
        shapes="shapes" in recorded,
        stack="stack" in recorded,
        memory="memory" in recorded,
    )
    name = f"{requests.WINDOW_PREFIX}{1 + max((len(part.requests) for part in parts), default=0):04d}.json"
    for part in parts:
        if not publish(part.part, name, request):
            raise PerfscopeError("another window was asked for at the same time", hint="run the same command after it")
    slowest_ns = max((rank.step_ns for rank in alive if rank.step_ns), default=0.0)
    answered = _await_answers(parts, name, _PATIENCE_S + _PATIENCE_STEPS * slowest_ns / NS_PER_S)
    return _answer(request, answered, name, format)


def _parse_ranks(text: str) -> frozenset[int]:
    try:
        return parse_ranks(text)
    except ValueError as error:
        raise UsageError(f"--ranks: {error}") from None


def _require_running(parts: Sequence[RunningPart], chosen: frozenset[int] | None) -> None:
    """Ask nothing of a job that cannot answer.

    Raises:
        PerfscopeError: It has ended, has not begun, or stands still.
        UsageError: It has no such rank.
    """
    name = parts[0].part.name
    ranks = [rank for part in parts for rank in part.ranks]
    status = next((part.exit_status for part in parts if part.exit_status), None)
    if status is not None:
        raise PerfscopeError(f"{name} has ended: the command {status}", hint=f"perfscope analyze {name}")
    if ranks and all(rank.has_ended for rank in ranks):
        raise PerfscopeError(f"{name} has ended: no rank runs any more", hint=f"perfscope postmortem {name}")
    if not any(rank.steps for rank in ranks):
        raise PerfscopeError(f"{name} has not finished a step yet", hint="run the same command a little later")
    missing = sorted((chosen or frozenset()) - set(range(max(rank.world_size for rank in ranks))))
    if missing:
        raise UsageError(f"--ranks: there is no rank {format_ranges(missing)} among {ranks[0].world_size}")
    alive = [rank for rank in ranks if not rank.has_ended]
    if all(is_stalled(rank) for rank in alive):
        idle_s = min(rank.age_ns for rank in alive) / NS_PER_S
        raise PerfscopeError(
            f"{name}: no rank has finished a step for {idle_s:,.0f} s", hint=f"perfscope postmortem {name}"
        )


def _require_no_other(parts: Sequence[RunningPart], steps: int) -> None:
    """Ask for one window at a time.

    Raises:
        PerfscopeError: One is to come.
    """
    for part in parts:
        for name, request in part.requests.items():
            answers = [rank.answers.get(name) for rank in part.ranks]
            is_refused = any(answer is not None and answer.status != requests.PLANNED for answer in answers)
            if request.last >= steps and not is_refused:
                raise PerfscopeError(
                    f"a window on steps {request.first}-{request.last} is asked for already",
                    hint=f"run the same command after step {request.last}",
                )


def _await_answers(parts: Sequence[RunningPart], name: str, patience_s: float) -> list[RunningRank]:
    """The ranks with their answers, or as many as have answered in time."""
    due_s = time.monotonic() + patience_s
    while True:
        ranks = [rank for part in parts for rank in look_at(part.part).ranks]
        if time.monotonic() > due_s or all(name in rank.answers or rank.has_ended for rank in ranks):
            return ranks
        time.sleep(_PERIOD_S)


def _answer(request: requests.WindowRequest, ranks: Sequence[RunningRank], name: str, format: Format) -> Outcome:
    rows, data = [], list[Json]()
    for rank in sorted(ranks, key=lambda rank: rank.rank):
        answer = rank.answers.get(name)
        reason = (
            answer.reason if answer is not None else "its process has ended" if rank.has_ended else "no answer in time"
        )
        status = None if answer is None else answer.status
        rows.append((rank.rank, rank.host, status, None if answer is None else answer.step, reason))
        data.append(
            {"rank": rank.rank, "status": status, "step": None if answer is None else answer.step, "reason": reason}
        )
    planned = sum(row[2] == requests.PLANNED for row in rows)
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
