"""``perfscope export``: a page with charts, one trace of all ranks, or metrics for Prometheus."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from perfscope.commands.options import FormatOption, or_newest, outcome_of
from perfscope.constants import MB, NS_PER_US
from perfscope.engine.analysis_report import to_report as describe_analyzed
from perfscope.engine.execution import Execution, available_processors
from perfscope.engine.inputs import find_inputs, split_into_runs
from perfscope.engine.run import Plan
from perfscope.errors import SourceError, UsageError
from perfscope.files import replace_file
from perfscope.merging.merge import Choice, Merged, merge
from perfscope.outcome import Outcome
from perfscope.page import analyze_for_page, describe_analysis, render
from perfscope.renderers import Format
from perfscope.report import MOST_ROWS, Column, Json, Report, Section, in_unit, long_table
from perfscope.sources.traces.files import RANK_IN_FILE_NAME, TRACE_ENDINGS
from perfscope.units import format_count, parse_ranges
from perfscope.watching.job import WatchedJob
from perfscope.watching.openmetrics import to_openmetrics


class ExportKind(StrEnum):
    """What ``--as`` takes."""

    PAGE = "page"
    TRACE = "trace"
    OPENMETRICS = "openmetrics"


#: How the file of each kind may end; the first is the usual one.
_ENDINGS = {
    ExportKind.PAGE: (".html", ".htm"),
    ExportKind.TRACE: (".json.gz", *TRACE_ENDINGS),
    ExportKind.OPENMETRICS: (".prom", ".txt"),
}


def export(
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN_DIR | TRACE...",
            help="A run, or the traces of a job.",
            show_default="the newest run of runs/",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="The file to write.",
            show_default="page.html or trace.json.gz",
        ),
    ] = None,
    kind: Annotated[
        ExportKind | None,
        typer.Option("--as", help="What to write.", show_default="by the end of the file's name, else page"),
    ] = None,
    ranks: Annotated[
        str | None, typer.Option(help="Only these ranks of a trace: 0,3-5. All align the clocks.", show_default="all")
    ] = None,
    steps: Annotated[
        str | None, typer.Option(help="Only the time of these profiled steps of a trace: 5-6.", show_default="all")
    ] = None,
    format: FormatOption = Format.MARKDOWN,
) -> Outcome:
    """Write one page with charts, one trace of all ranks, or metrics for Prometheus.

    The page is one HTML file that needs no network. The trace has all ranks on one clock, for Perfetto, with tracks of
    steps, collectives and bubbles above them.
    """
    chosen, path = _choose(kind, output)
    if chosen is not ExportKind.TRACE and (ranks or steps):
        raise UsageError("--ranks and --steps are of a trace", hint="--as trace")
    paths, notes = or_newest(paths)
    if chosen is ExportKind.PAGE:
        return outcome_of(_write_page(paths, path), format, notes=notes)
    if chosen is ExportKind.TRACE:
        choice = Choice(
            ranks=frozenset(parse_ranges(ranks)) if ranks else frozenset(),
            steps=parse_ranges(steps) if steps else (),
            rank_rule=RANK_IN_FILE_NAME,
            workers=available_processors(),
        )
        return outcome_of(_write_trace(paths, path, choice), format, notes=notes)
    if len(paths) != 1:
        raise UsageError("metrics are of one run", hint="perfscope export RUN_DIR --as openmetrics")
    job = WatchedJob(Path(paths[0]))
    job.look()
    replace_file(path, to_openmetrics(job).encode())
    return Outcome(text=f"wrote {path}\n", notes=notes)


def _choose(kind: ExportKind | None, output: Path | None) -> tuple[ExportKind, Path]:
    """What to write, and where; ``UsageError`` where the name of the file does not fit."""
    if output is None:
        chosen = kind or ExportKind.PAGE
        return chosen, Path(f"{chosen}{_ENDINGS[chosen][0]}")
    fitting = [each for each, endings in _ENDINGS.items() if output.name.lower().endswith(endings)]
    if not fitting or kind not in (None, *fitting):
        endings = _ENDINGS[kind] if kind else tuple(endings[0] for endings in _ENDINGS.values())
        raise UsageError(f"{output} does not end in {' or '.join(dict.fromkeys(endings))}")
    if not output.resolve().parent.is_dir():
        raise SourceError(output.parent, "is no folder", hint="create it, or name another file with -o")
    return fitting[0], output


def _write_page(paths: Sequence[str], path: Path) -> Report:
    groups = split_into_runs(paths)
    if len(groups) != 1:
        raise UsageError(f"a page shows one run; these are {len(groups)}", hint="perfscope compare A B")
    analysis = analyze_for_page(find_inputs(groups[0]), Plan(execution=Execution(available_processors())))
    document = describe_analysis(analysis)
    content = render(document).encode()
    replace_file(path, content)
    analyzed = describe_analyzed(analysis)
    data: dict[str, Json] = {
        "schema": "perfscope/page/1",
        "path": str(path),
        "bytes": len(content),
        "parts": [{"part": part.identity, "absent": part.drawn.absent or None} for part in document.parts],
        "analysis": {**analyzed.data, "warnings": list(analyzed.warnings)},
    }
    rows = tuple((part.title, f"no: {part.drawn.absent}" if part.drawn.absent else "yes") for part in document.parts)
    note = f"{path}: {len(content) / MB:.2f} MB, one file, no network. Open it in a browser."
    section = Section("Parts of the page", (Column("Part"), Column("Shown")), rows, (note,))
    return Report(f"A page of {document.title}", data, (section,), document.damage)


def _write_trace(paths: Sequence[str], path: Path, choice: Choice) -> Report:
    inputs = find_inputs(paths)
    if path.resolve() in {Path(trace).resolve() for trace in inputs.traces}:
        raise UsageError(f"{path} is one of the traces", hint="name another file with -o")
    return _describe_merged(merge(inputs, path, choice))


def _describe_merged(merged: Merged) -> Report:
    """What was written, and how far the clock of each rank was moved."""
    rows = [
        (one.rank, one.events, in_unit(one.offset_ns, NS_PER_US), in_unit(one.residual_ns, NS_PER_US), one.path)
        for one in merged.traces
    ]
    data: dict[str, Json] = {
        "schema": "perfscope/merged/1",
        "path": str(merged.path),
        "bytes": merged.bytes,
        "reference_rank": merged.reference,
        "operations": merged.operations,
        "traces": [
            {"path": path, "rank": rank, "events": events, "offset_us": offset_us, "residual_us": residual_us}
            for rank, events, offset_us, residual_us, path in rows
        ],
        "notes": list(merged.notes),
    }
    clocks = (Column("Clock ahead (us)", 3), Column("Residual (us)", 3))
    columns = (Column("Rank"), Column("Events"), *clocks, Column("Trace"))
    notes = [
        f"{merged.path}: {merged.bytes / MB:.1f} MB, {merged.operations} operations of several ranks. "
        "Open it at https://ui.perfetto.dev."
    ]
    if merged.reference is not None:
        notes.append(
            f"Each clock was moved to that of rank {merged.reference}, by the ends of common collectives; times of two "
            "ranks can be compared as finely as their residuals."
        )
    shown = [(*row[:-1], Path(row[-1]).name) for row in rows]
    section = long_table("Merged traces", columns, shown, (*notes, *merged.notes), most=MOST_ROWS)
    return Report(f"{format_count(len(merged.traces), 'trace')} on one clock", data, (section,), merged.damage)
