"""``perfscope merge``: one trace of all ranks on one clock, for Perfetto."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfscope.commands.options.common import FormatOption, require_positive
from perfscope.constants import MB, NS_PER_US
from perfscope.engine.execution import available_processors
from perfscope.engine.inputs import find_inputs
from perfscope.errors import ExitCode, UsageError
from perfscope.merging.merge import Choice, Merged
from perfscope.merging.merge import merge as write_merged
from perfscope.outcome import Outcome
from perfscope.renderers import Format
from perfscope.report import Cell, Column, Json, Report, Section, first_rows
from perfscope.sources.traces.files import TRACE_ENDINGS
from perfscope.sources.traces.reading_choices import RANK_IN_FILE_NAME
from perfscope.units import parse_ranges

SCHEMA = "perfscope/merged/1"
_MOST_ROWS = 40


def merge(
    paths: Annotated[
        list[str], typer.Argument(metavar="RUN_DIR | TRACE...", help="A run's folder, or the traces of all ranks.")
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE.json.gz", help="The file to write: .json.gz or .json.")
    ] = Path("merged.json.gz"),
    ranks: Annotated[
        str | None, typer.Option(help="Only these ranks: 0,3-5. All ranks align the clocks.", show_default="all")
    ] = None,
    steps: Annotated[
        str | None, typer.Option(help="Only the time of these profiled steps: 5-6.", show_default="all")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Number of parallel workers.", show_default="number of processors")
    ] = None,
    format: FormatOption = Format.MARKDOWN,
) -> Outcome:
    """Write one trace of all ranks on one clock, for Perfetto.

    Each rank keeps all of its events. Tracks above them cover all ranks: steps, each device's work and waits,
    collectives, passes and bubbles of a pipeline. An arrow leads from the first rank of a collective to the last one.
    NVML's samples are counters.
    """
    if not output.name.endswith(TRACE_ENDINGS):
        raise UsageError(f"{output} does not end in {' or '.join(TRACE_ENDINGS)}", hint="-o merged.json.gz")
    inputs = find_inputs(paths)
    if output.resolve() in {Path(trace).resolve() for trace in inputs.traces}:
        raise UsageError(f"{output} is one of the traces", hint="name another file with -o")
    choice = Choice(
        ranks=frozenset(parse_ranges(ranks)) if ranks else frozenset(),
        steps=parse_ranges(steps) if steps else (),
        rank_rule=RANK_IN_FILE_NAME,
        workers=require_positive("--workers", workers) if workers is not None else available_processors(),
    )
    report = to_report(write_merged(inputs, output, choice))
    return Outcome(
        report,
        format,
        notes=tuple(f"warning: {line}" for line in report.warnings),
        exit_code=ExitCode.DAMAGED_INPUT if report.warnings else ExitCode.OK,
    )


def to_report(merged: Merged) -> Report:
    """What was written."""
    data: dict[str, Json] = {
        "schema": SCHEMA,
        "path": str(merged.path),
        "bytes": merged.bytes,
        "reference_rank": merged.reference,
        "operations": merged.operations,
        "traces": [
            {
                "path": trace.path,
                "rank": trace.rank,
                "events": trace.events,
                "offset_us": trace.offset_ns / NS_PER_US,
                "residual_us": None if trace.residual_ns is None else trace.residual_ns / NS_PER_US,
            }
            for trace in merged.traces
        ],
        "notes": list(merged.notes),
    }
    rows: list[tuple[Cell, ...]] = [
        (
            trace.rank,
            trace.events,
            trace.offset_ns / NS_PER_US,
            None if trace.residual_ns is None else trace.residual_ns / NS_PER_US,
            Path(trace.path).name,
        )
        for trace in merged.traces
    ]
    shown, left_out = first_rows(rows, _MOST_ROWS)
    columns = (
        Column("Rank"),
        Column("Events"),
        Column("Clock ahead (us)", 3),
        Column("Residual (us)", 3),
        Column("Trace"),
    )
    notes = [
        f"{merged.path}: {merged.bytes / MB:.1f} MB, {merged.operations} operations of several ranks. "
        "Open it at https://ui.perfetto.dev."
    ]
    if merged.reference is not None:
        notes.append(
            f"Each clock was moved to that of rank {merged.reference}, by the ends of common collectives; times of two "
            "ranks can be compared as finely as their residuals."
        )
    section = Section("Merged traces", columns, shown, (*notes, *merged.notes, *left_out))
    return Report(f"{len(merged.traces)} traces on one clock", data, (section,), merged.damage)
