"""``perfscope whatif``: what would make a step faster, by a replay of the profiled steps of all ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from perfscope.analyzers.shared.step_selection import find_undisturbed
from perfscope.analyzers.whatif import WhatIf, answer
from perfscope.commands.options.common import FormatOption
from perfscope.commands.options.kernels import Kernels, read_kernels
from perfscope.constants import NS_PER_MS, NS_PER_S
from perfscope.engine.run import Plan, measure_with
from perfscope.errors import ExitCode, UsageError
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
    undisturbed: Annotated[
        float | None,
        typer.Option(
            metavar="MS",
            min=0.001,
            help="Time of a step that nobody profiled (ms): the host is taken as fast as there.",
            show_default="what the run says",
        ),
    ] = None,
    kernels: Kernels = None,
    format: FormatOption = Format.MARKDOWN,
) -> Outcome:
    """Replay the profiled steps of all ranks with a change, and say what it would save."""
    if not paths:
        raise UsageError("nothing to replay", hint="name a run or the traces of all ranks")
    plan = Plan(kernels=read_kernels(kernels))
    measured = measure_with("whatif", tuple, paths, plan)
    windows = (*measured.windows.describe(), *measured.windows.notes)
    undisturbed_ns = undisturbed * NS_PER_MS if undisturbed is not None else _undisturbed_step(measured.run)
    result = answer(measured.partials, scenario or (), undisturbed_ns)
    report = to_report(result, tuple(measured.damage), windows)
    return Outcome(
        report,
        format,
        notes=tuple(f"warning: {line}" for line in report.warnings),
        exit_code=ExitCode.DAMAGED_INPUT if report.warnings else ExitCode.OK,
    )


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
