"""``perfscope logs``: step time, throughput and set-up of training runs, from their logs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfscope.analyzers.logs.setup import Overrides
from perfscope.analyzers.logs.summary import LogSummary, summarize_log
from perfscope.commands.options import FormatOption, require_positive
from perfscope.constants import GB, NS_PER_S
from perfscope.engine.places import at_hand
from perfscope.engine.progress import with_lines
from perfscope.errors import ExitCode, PerfscopeError, SourceError, UsageError
from perfscope.models.conventions import Checkpointing
from perfscope.models.hardware import fastest_gpu
from perfscope.outcome import Outcome
from perfscope.renderers import Format
from perfscope.report import Cell, Column, Report, Section, in_unit
from perfscope.sources.joblog import find_logs, read_log
from perfscope.sources.joblog.files import is_log_name
from perfscope.units import format_parameters, format_seconds, parse_parameters

_OVERRIDES = "Set-up, where the log does not state it or is wrong"
_FROM_LOG = "from the log"
#: A table of more rows says nothing to anybody, and its logs need gigabytes.
_MOST_LOGS = 100_000


def logs(
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="Logs, or folders of logs: paths or URLs.")],
    size: Annotated[
        str | None,
        typer.Option(help="Parameters of the model: 52B.", rich_help_panel=_OVERRIDES, show_default=_FROM_LOG),
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(help="Number of GPUs.", rich_help_panel=_OVERRIDES, show_default=_FROM_LOG)
    ] = None,
    seq_len: Annotated[
        int | None, typer.Option(help="Tokens in a sequence.", rich_help_panel=_OVERRIDES, show_default=_FROM_LOG)
    ] = None,
    gbs: Annotated[
        int | None,
        typer.Option(help="Global batch size, in sequences.", rich_help_panel=_OVERRIDES, show_default=_FROM_LOG),
    ] = None,
    checkpointing: Annotated[
        Checkpointing | None,
        typer.Option(
            help="Activation checkpointing: what is recomputed.", rich_help_panel=_OVERRIDES, show_default=_FROM_LOG
        ),
    ] = None,
    warmup: Annotated[
        int | None,
        typer.Option(
            help="Iterations to exclude after each start of the job.", show_default="those of the first record"
        ),
    ] = None,
    format: FormatOption = Format.MARKDOWN,
) -> Outcome:
    """Report step time, throughput and set-up of training runs from their logs."""
    if warmup is not None and warmup < 0:
        raise UsageError(f"--warmup must be at least 0, not {warmup}")
    overrides = Overrides(
        parameters=None if size is None else parse_parameters(size),
        gpus=None if gpus is None else require_positive("--gpus", gpus),
        seq_len=None if seq_len is None else require_positive("--seq-len", seq_len),
        samples=None if gbs is None else require_positive("--gbs", gbs),
        checkpointing=checkpointing,
        warmup=warmup,
    )
    with at_hand(paths, is_log_name) as places:
        summaries, unread = _summarize_logs(places.paths, overrides)
        report = places.report(to_report(summaries, unread))
    return Outcome(
        report,
        format,
        notes=tuple(f"warning: {line}" for line in report.warnings),
        exit_code=ExitCode.DAMAGED_INPUT if unread or places.damage else ExitCode.OK,
    )


def _summarize_logs(paths: list[Path], overrides: Overrides) -> tuple[list[LogSummary], list[str]]:
    summaries: list[LogSummary] = []
    unread: list[str] = []
    logs = find_logs(paths)
    if len(logs) > _MOST_LOGS:
        raise UsageError(f"there are {len(logs):,} logs; at most {_MOST_LOGS:,} are read at once", hint="name folders")
    for path in with_lines(logs, len(logs)):
        try:
            summary = summarize_log(read_log(path), overrides)
        except SourceError as error:
            unread.append(str(error))
            continue
        if summary.status == "unrecognised":
            unread.append(f"{path} {'is empty' if path.stat().st_size == 0 else 'is not a log of a known framework'}")
        else:
            summaries.append(summary)
    if not summaries:
        raise PerfscopeError(
            "; ".join(unread[:3]) or "there is no log in " + ", ".join(map(str, paths)),
            hint="logs end in .out, .log, .txt or .err, or hold a trainer's metrics; a log may also be named by itself",
        )
    return summaries, unread


def to_report(summaries: list[LogSummary], unread: list[str]) -> Report:
    """Write summaries as the neutral document."""
    fastest = fastest_gpu()
    above_peak = [
        f"{summary.path}: {summary.tflops_per_gpu:.1f} TFLOPs per GPU is above the dense 16-bit peak of {fastest.name} "
        f"({fastest.dense_16bit_tflops:g}): there is a bug in the calculation, or an input is wrong"
        for summary in summaries
        if summary.tflops_per_gpu is not None and summary.tflops_per_gpu > fastest.dense_16bit_tflops
    ]
    sections = (_speed(summaries), _setup(summaries), *_memory(summaries), *_saves(summaries), *_flags(summaries))
    return Report(
        "Training logs",
        {"schema": "perfscope/logs/1", "logs": [summary.data() for summary in summaries], "unread": unread},
        sections,
        (*unread, *above_peak),
    )


def _speed(summaries: list[LogSummary]) -> Section:
    columns = (
        Column("Log"),
        Column("Framework"),
        Column("Status"),
        Column("Iterations"),
        Column("Median (s)", 3),
        Column("95 % interval (s)"),
        Column("Mean (s)", 3),
        Column("p95 (s)", 3),
        Column("Samples/s", 2),
        Column("TFLOPs per GPU"),
        Column("Logged TFLOPs"),
    )
    notes = [_describe_left_out(summaries)]
    assumptions = sorted({assumption for summary in summaries for assumption in summary.setup.assumed})
    if assumptions:
        notes.append("Assumptions, where neither the log nor its name states a value: " + ", ".join(assumptions) + ".")
    notes.append("TFLOPs by convention `bigscience`, from the median; samples/s is batch over median.")
    notes.extend(f"{summary.path}: {summary.status}, {summary.reason}." for summary in summaries if summary.reason)
    rows = tuple((summary.path, summary.framework, summary.status, *_figures(summary)) for summary in summaries)
    return Section("Speed", columns, rows, tuple(notes))


def _figures(summary: LogSummary) -> tuple[Cell, ...]:
    times = summary.times
    interval = times.median_interval_s
    return (
        summary.iterations,
        times.median_s,
        None if interval is None else f"{interval[0]:.4g} to {interval[1]:.4g}",
        times.mean_s,
        times.p95_s,
        summary.samples_per_s,
        summary.tflops_per_gpu,
        summary.logged_tflops_per_gpu,
    )


def _describe_left_out(summaries: list[LogSummary]) -> str:
    warmups = sum(summary.times.warmup for summary in summaries)
    evaluations = sum(summary.times.evaluation for summary in summaries)
    saves = sum(summary.times.save for summary in summaries)
    text = f"Steady state: {warmups} warm-up records at the starts of runs are excluded"
    if evaluations or saves:
        text += f", and {evaluations} whose time contains an evaluation, {saves} a checkpoint save"
    return text + "; `mean_all_s` in JSON is over all records."


def _setup(summaries: list[LogSummary]) -> Section:
    names = ("tp", "pp", "dp", "gas", "mbs")
    columns = (
        Column("Log"),
        Column("Size"),
        Column("GPUs"),
        *(Column(name.upper()) for name in names),
        Column("GBS"),
        Column("ZeRO"),
        Column("Seq length"),
        Column("Loss"),
        Column("Loss scale", 0),
        Column("Skipped"),
    )
    rows = tuple(
        (
            summary.path,
            None if summary.setup.parameters is None else format_parameters(summary.setup.parameters),
            summary.setup.gpus,
            *(summary.setup.layout.get(name) for name in names),
            summary.setup.samples,
            summary.setup.layout.get("zero_stage"),
            summary.setup.seq_len,
            f"{summary.loss.first:.4g} to {summary.loss.last:.4g}" if summary.loss else None,
            summary.loss_scale.last if summary.loss_scale else None,
            summary.skipped_iterations,
        )
        for summary in summaries
    )
    return Section("Set-up", columns, rows)


def _memory(summaries: list[LogSummary]) -> tuple[Section, ...]:
    columns = (
        Column("Log"),
        Column("Peak allocated (GB)", 2),
        Column("Peak reserved (GB)", 2),
        Column("Used (GB)", 2),
        Column("Device (GB)", 2),
        Column("Out of memory"),
    )
    rows = []
    for summary in summaries:
        memory = summary.log.memory
        sizes = (memory.allocated_bytes, memory.reserved_bytes, memory.used_bytes, memory.total_bytes)
        if any(size is not None for size in sizes) or summary.log.out_of_memory:
            cells = (in_unit(size, GB) for size in sizes)
            rows.append((summary.path, *cells, summary.log.out_of_memory or "no"))
    return (Section("Memory", columns, tuple(rows)),) if rows else ()


def _saves(summaries: list[LogSummary]) -> tuple[Section, ...]:
    columns = (Column("Log"), Column("Iteration"), Column("Time"), Column("Source"), Column("Path"))
    rows = tuple(
        (
            summary.path,
            save.iteration,
            None if save.wall_ns is None else format_seconds(save.wall_ns / NS_PER_S),
            save.source,
            save.path,
        )
        for summary in summaries
        for save in summary.log.saves
    )
    return (Section("Checkpoint saves", columns, rows),) if rows else ()


def _flags(summaries: list[LogSummary]) -> tuple[Section, ...]:
    lines = tuple(f"{summary.path}: {flag}" for summary in summaries for flag in summary.flags)
    return (Section("Flags", notes=lines),) if lines else ()
