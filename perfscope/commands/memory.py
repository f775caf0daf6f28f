"""``perfscope memory RUN_DIR | SNAPSHOT...``: what filled the memory, and what would lower the peak."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from perfscope.analyzers.memory import MemoryUse, analyze, describe_memory
from perfscope.analyzers.memory.peak import chart_memory
from perfscope.charts.svg import draw_file
from perfscope.commands.options.common import FormatOption, require_svg
from perfscope.constants import GB
from perfscope.engine.places import at_hand
from perfscope.errors import ExitCode, MissingInput, SourceError, UsageError
from perfscope.files import replace_file
from perfscope.outcome import Outcome
from perfscope.renderers import Format
from perfscope.report import Report
from perfscope.sources.memory.recorded import read_histories
from perfscope.sources.runs.folder import is_folder_at, is_run_at
from perfscope.sources.runs.stored import read_run_at

SCHEMA = "perfscope/memory/1"


def memory(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN_DIR | SNAPSHOT...",
            help="A run of `perfscope profile --memory`, or snapshots of torch.cuda.memory._dump_snapshot, one a rank: "
            "paths or URLs.",
        ),
    ],
    svg: Annotated[
        Path | None, typer.Option(metavar="FILE.svg", help="Draw the memory of the fullest device over the window.")
    ] = None,
    format: FormatOption = Format.MARKDOWN,
) -> Outcome:
    """Show what the peak of a GPU's memory consists of, and what would lower it."""
    if svg is not None:
        require_svg(svg)
    runs = [path for path in paths if is_folder_at(path)]
    if runs and len(paths) > 1:
        raise UsageError("several runs are compared by `perfscope compare`", hint="name one run, or snapshots")
    with at_hand([] if runs else paths) as places:
        use = _read(runs, places.paths)
    if svg is not None:
        replace_file(svg, draw_file([chart_memory(use.fullest_device)]).encode())
    damage = tuple(note for peak in use.devices for note in peak.damage)
    data = use.data()
    assert isinstance(data, dict)
    title = f"The fullest device held {use.fullest_device.peak_bytes / GB:.2f} GB"
    report = places.report(Report(title, {"schema": SCHEMA, **data}, use.sections(), damage))
    return Outcome(
        report,
        format,
        notes=tuple(f"warning: {line}" for line in report.warnings),
        exit_code=ExitCode.DAMAGED_INPUT if damage else ExitCode.OK,
    )


def _read(runs: Sequence[str], snapshots: Sequence[Path]) -> MemoryUse:
    if not runs:
        return describe_memory([history for path in snapshots for history in read_histories(path)])
    if not is_run_at(runs[0]):
        raise SourceError(runs[0], "is not a run of `perfscope profile`", hint="name the snapshots themselves")
    try:
        return analyze(read_run_at(runs[0]))
    except MissingInput as missing:
        raise SourceError(runs[0], f"has no memory to show: {missing.problem}") from None
