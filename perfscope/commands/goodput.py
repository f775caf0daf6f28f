"""``perfscope goodput``: what the time of a job went to, over all of its restarts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import typer

from perfscope.analyzers.goodput import account
from perfscope.analyzers.goodput.from_log import find_logged_lives
from perfscope.analyzers.goodput.from_run import find_lives
from perfscope.analyzers.goodput.lives import Life
from perfscope.commands.options.common import FormatOption, require_positive
from perfscope.engine.places import at_hand
from perfscope.errors import ExitCode, MissingInput, SourceError, UsageError
from perfscope.outcome import Outcome
from perfscope.renderers import Format
from perfscope.report import Report
from perfscope.sources.joblog import find_logs, read_moments
from perfscope.sources.joblog.files import is_log_name
from perfscope.sources.runs.folder import find_runs
from perfscope.sources.runs.run import read_run_without_samples
from perfscope.sources.runs.stored import read_run_at

SCHEMA = "perfscope/goodput/1"


def goodput(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN_DIR | LOG...", help="All runs of one job, a folder of them, or its logs: paths or URLs."
        ),
    ],
    gpus: Annotated[int | None, typer.Option(help="Number of GPUs.", show_default="one for each rank")] = None,
    price: Annotated[
        float | None, typer.Option(min=0.0, help="Price of a GPU for an hour.", show_default="no money")
    ] = None,
    resumed_at: Annotated[
        str | None,
        typer.Option(
            help="The last step before the second start, the third one and so on: 40,90.",
            show_default="the framework's number, or the last checkpoint",
        ),
    ] = None,
    format: FormatOption = Format.MARKDOWN,
) -> Outcome:
    """Say what the time of a whole job went to, over all of its restarts.

    Useful steps, redone steps, start-up, compilation, saves, validation, stalls, restarts and down time add up to the
    wall time exactly.
    """
    lives, damage = _read_lives(paths)
    steps = _parse_steps(resumed_at) if resumed_at is not None else ()
    try:
        answer = account(
            lives, resumed_at=steps, gpus=None if gpus is None else require_positive("--gpus", gpus), price=price
        )
    except MissingInput as error:
        raise SourceError(paths[0], f"says nothing of goodput: {error}") from None
    data = answer.data()
    assert isinstance(data, dict)
    report = Report(answer.headline(), {"schema": SCHEMA, **data}, answer.sections(), tuple(damage))
    return Outcome(
        report,
        format,
        notes=tuple(f"warning: {line}" for line in report.warnings),
        exit_code=ExitCode.DAMAGED_INPUT if report.warnings else ExitCode.OK,
    )


def _parse_steps(text: str) -> tuple[int, ...]:
    if not all(word.strip().isdigit() for word in text.split(",")):
        raise UsageError(f"--resumed-at {text}: not numbers of steps", hint="--resumed-at 40,90")
    return tuple(int(word) for word in text.split(","))


def _read_lives(paths: Sequence[str]) -> tuple[list[Life], list[str]]:
    """Every start of the job, and what could not be read."""
    lives: list[Life] = []
    damage: list[str] = []
    for path in paths:
        folders = find_runs(path)
        for folder in folders:
            run = read_run_at(folder, read_run_without_samples)
            damage += run.damage
            lives += find_lives(run)
        if not folders:
            with at_hand([path], is_log_name) as places:
                for log in find_logs(places.paths):
                    moments = read_moments(log)
                    damage += map(places.name, moments.damage)
                    lives += [replace(life, name=places.name(life.name)) for life in find_logged_lives(moments)]
            damage += places.damage
    return lives, damage
