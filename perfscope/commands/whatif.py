"""``perfscope whatif``: what would make a step faster, by a replay of the profiled steps of all ranks."""

from __future__ import annotations

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
    _, partials, damage = measure_with("whatif", tuple, paths)
    result = answer(partials, scenario or ())
    report = to_report(result, tuple(damage))
    return Outcome(
        report,
        format,
        notes=tuple(f"warning: {line}" for line in damage),
        exit_code=ExitCode.DAMAGED_INPUT if damage else ExitCode.OK,
    )


def to_report(result: WhatIf, damage: tuple[str, ...]) -> Report:
    """Write the answer as the neutral document."""
    data = result.data()
    assert isinstance(data, dict)
    best = result.outlooks[0] if result.outlooks and result.outlooks[0].saved_ns > 0 else None
    title = "Nothing of this makes a step faster"
    if best:
        share = best.saved_ns / result.replayed.step_ns
        title = f"{share:.1%} of a step is what `{best.name}` would save: {best.title}"
    return Report(title, {"schema": SCHEMA, **data}, result.sections(), damage)
