"""``perfscope whatif``: what would make a step faster, by a replay of the profiled steps of all ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from perfscope.analyzers.whatif import WhatIf, answer
from perfscope.commands.options.common import FormatOption
from perfscope.engine.run import measure_with
from perfscope.errors import ExitCode
from perfscope.outcome import Outcome
from perfscope.renderers import Format
from perfscope.report import Report

SCHEMA = "perfscope/whatif/1"


def whatif(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="RUN_DIR | TRACE...", help="A run's folder, or the traces of all ranks."),
    ],
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
    measured = measure_with("whatif", tuple, paths)
    windows = (*measured.windows.describe(), *measured.windows.notes)
    report = to_report(answer(measured.partials, scenario or ()), tuple(measured.damage), windows)
    return Outcome(
        report,
        format,
        notes=tuple(f"warning: {line}" for line in report.warnings),
        exit_code=ExitCode.DAMAGED_INPUT if report.warnings else ExitCode.OK,
    )


def to_report(result: WhatIf, damage: tuple[str, ...], windows: tuple[str, ...]) -> Report:
    """Write the answer as the neutral document; ``windows`` says which windows its times are of."""
    data = result.data()
    assert isinstance(data, dict)
    best = result.outlooks[0] if result.outlooks and result.outlooks[0].saved_ns > 0 else None
    title = "Nothing of this makes a step faster"
    if best:
        share = best.saved_ns / result.replayed.step_ns
        title = f"{share:.1%} of a step is what `{best.name}` would save: {best.title}"
    first, *following = result.sections()
    sections = (replace(first, notes=(*first.notes, *windows)), *following)
    return Report(title, {"schema": SCHEMA, **data}, sections, damage)
