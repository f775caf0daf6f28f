"""``perfscope whatif``: what would make a step faster, by a replay of the profiled steps of all ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from perfscope.analyzers.whatif import WhatIf, answer
from perfscope.commands.options import FormatOption, outcome_of
from perfscope.constants import NS_PER_S
from perfscope.engine.run import measure_with
from perfscope.errors import UsageError
from perfscope.measures.step_selection import find_undisturbed
from perfscope.outcome import Outcome
from perfscope.renderers import Format
from perfscope.report import Report
from perfscope.result import to_object
from perfscope.tables.run import Run

SCHEMA = "perfscope/whatif/1"


def whatif(
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="RUN_DIR | TRACE...", help="A run's folder, or the traces of all ranks."),
    ] = None,
    scenario: Annotated[
        list[str] | None,
        typer.Option(
            help="A change: communication-free, no-stragglers, faster-kernel=gemm:1.5. May be repeated.",
            show_default="the ten that save most",
        ),
    ] = None,
    format: FormatOption = Format.MARKDOWN,
) -> Outcome:
    """Replay the profiled steps of all ranks with a change, and say what it would save."""
    if not paths:
        raise UsageError("nothing to replay", hint="perfscope whatif RUN, or the traces of all ranks")
    measured = measure_with("whatif", tuple, paths)
    windows = (*measured.windows.describe(), *measured.windows.notes)
    result = answer(measured.partials, scenario or (), _undisturbed_step(measured.run))
    report = to_report(result, tuple(measured.damage), windows)
    return outcome_of(report, format)


def _undisturbed_step(run: Run | None) -> float | None:
    """The step time of the run, in nanoseconds; None where no run or no step time is known."""
    step_s = None if run is None else find_undisturbed(run.steps).step_time_s()
    return None if step_s is None else step_s * NS_PER_S


def to_report(result: WhatIf, damage: tuple[str, ...], windows: tuple[str, ...]) -> Report:
    """Write the answer as the neutral document; ``windows`` says which windows its times are of."""
    best = next((outlook for outlook in result.scenarios if outlook.saved_ns > 0), None)
    title = "Nothing of this makes a step faster"
    if best:
        title = f"{-best.change:.1%} of a step is what `{best.name}` would save: {best.title}"
    first, *following = result.sections()
    sections = (replace(first, notes=(*first.notes, *windows)), *following)
    return Report(title, {"schema": SCHEMA, **to_object(result)}, sections, damage)
