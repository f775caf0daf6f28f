"""``perfscope logs``: step time, throughput and set-up of training runs, from their logs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from perfscope.analyzers.logs.setup import Overrides
from perfscope.analyzers.logs.summary import LogSummary, TrainingLogs, summarize_log
from perfscope.commands.options import FormatOption, outcome_of, require_positive
from perfscope.engine.execution import with_progress
from perfscope.engine.places import at_hand
from perfscope.errors import ExitCode, PerfscopeError, SourceError, UsageError
from perfscope.models.conventions import Checkpointing
from perfscope.models.hardware import describe_above_peak, lookup_gpu
from perfscope.outcome import Outcome
from perfscope.renderers import Format
from perfscope.report import Report
from perfscope.result import to_object
from perfscope.sources.joblog import find_logs, read_log
from perfscope.sources.joblog.files import is_log_name
from perfscope.units import parse_parameters

_override = partial(
    typer.Option,
    rich_help_panel="Set-up, where the log does not state it or is wrong",
    show_default="from the log",
)


def logs(
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="Logs, or folders of logs: paths or URLs.")],
    size: Annotated[str | None, _override(help="Parameters of the model: 52B.")] = None,
    gpus: Annotated[int | None, _override(help="Number of GPUs.")] = None,
    seq_len: Annotated[int | None, _override(help="Tokens in a sequence.")] = None,
    gbs: Annotated[int | None, _override(help="Global batch size, in sequences.")] = None,
    checkpointing: Annotated[
        Checkpointing | None, _override(help="Activation checkpointing: what is recomputed.")
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
        gpus=require_positive("--gpus", gpus),
        seq_len=require_positive("--seq-len", seq_len),
        samples=require_positive("--gbs", gbs),
        checkpointing=checkpointing,
        warmup=warmup,
    )
    with at_hand(paths, is_log_name) as places:
        summaries, unread = _summarize_logs(places.paths, overrides)
        report = places.report(to_report(summaries, unread))
    code = ExitCode.DAMAGED_INPUT if unread or places.damage else ExitCode.OK
    return outcome_of(report, format, exit_code=code)


def _summarize_logs(paths: list[Path], overrides: Overrides) -> tuple[list[LogSummary], list[str]]:
    summaries: list[LogSummary] = []
    unread: list[str] = []
    logs = find_logs(paths)
    for path in with_progress(logs, len(logs)):
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
    above_peak = []
    for summary in summaries:
        stated = summary.log.fact("gpu")
        gpu = lookup_gpu(str(stated.value)) if stated else None
        doubt = None if summary.tflops_per_gpu is None else describe_above_peak(summary.tflops_per_gpu, gpu)
        above_peak += [f"{summary.path}: {doubt}"] if doubt else []
    logs = TrainingLogs(tuple(summaries), tuple(unread))
    data = {"schema": "perfscope/logs/1", **to_object(logs)}
    return Report("Training logs", data, logs.sections(), (*unread, *above_peak))
