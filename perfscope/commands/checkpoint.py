"""``perfscope checkpoint``: what a checkpoint's files hold, and whether they are as large as they should be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from perfscope.analyzers.checkpoint import (
    ZERO_STAGES,
    BytesPerParameter,
    CheckpointPlan,
    CheckpointSizes,
    SavedOptimizer,
    SavedPrecision,
    bytes_per_parameter,
    check_checkpoint,
    newest_complete,
    plan_checkpoint,
)
from perfscope.analyzers.saves import summarize_saves
from perfscope.commands.options import FormatOption, expand_groups, require_positive
from perfscope.errors import ExitCode, UsageError
from perfscope.outcome import Outcome
from perfscope.renderers import Format
from perfscope.report import Json, Report, Section, shorten_warnings
from perfscope.sources.checkpoints.checkpoint import read_checkpoint
from perfscope.sources.joblog import read_log_saves
from perfscope.tables.saves import Saves, SaveTiming
from perfscope.units import format_bytes, format_count, format_parameters, parse_duration_ns, parse_parameters

_SCHEMA = "perfscope/checkpoint/1"
_FACTS = ("weights_only", "ema_copy")  # findings that are no problems


def _option(text: str, default: str, panel: str = "Model and training") -> object:
    return typer.Option(help=text, rich_help_panel=panel, show_default=default)


@dataclass(frozen=True, slots=True)
class CheckpointOptions:
    """The model, and how it is trained."""

    size: Annotated[
        str | None, _option("Number of parameters: 181B. Without DIR, plans a checkpoint.", "from the checkpoint")
    ] = None
    optimizer: Annotated[SavedOptimizer | None, _option("Optimizer.", "adam")] = None
    precision: Annotated[SavedPrecision | None, _option("Training precision.", "mixed")] = None
    zero: Annotated[int | None, _option("ZeRO stage, 0 to 3; stage 3 saves no 2-byte weights.", "1")] = None

    def per_parameter(self) -> BytesPerParameter | None:
        """The bytes per parameter that the options imply; None if none of them is set."""
        if self.zero is not None and self.zero not in ZERO_STAGES:
            raise UsageError(f"--zero is 0, 1, 2 or 3, not {self.zero}")
        if self.optimizer is None and self.precision is None and self.zero is None:
            return None
        stage = 1 if self.zero is None else self.zero
        return bytes_per_parameter(self.optimizer or SavedOptimizer.ADAM, self.precision or SavedPrecision.MIXED, stage)


def _read_saves(source: str | None) -> Saves | None:
    if source is None:
        return None
    if Path(source).exists():
        return read_log_saves(Path(source))
    saved_ns = parse_duration_ns(source)
    return Saves((SaveTiming(0, None, None, saved_ns, None, None, asynchronous=None, source="--save-time"),), None)


@expand_groups
def checkpoint(
    model: CheckpointOptions,
    directory: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="A checkpoint, or a folder of several.")
    ] = None,
    gpus: Annotated[
        int | None, _option("Number of GPUs; each writes one file per part.", "1", "Planned size (without DIR)")
    ] = None,
    save_time: Annotated[
        str | None,
        typer.Option(
            metavar="TIME|LOG",
            help="Where the save speed comes from: a time such as 19.5s, or a log.",
            show_default="none",
        ),
    ] = None,
    format: FormatOption = Format.MARKDOWN,
) -> Outcome:
    """Show the contents of a checkpoint's files and check their sizes; no code of a file runs."""
    parameters = parse_parameters(model.size) if model.size is not None else None
    per_parameter = model.per_parameter()
    saves = _read_saves(save_time)
    if directory is None:
        if parameters is None:
            raise UsageError(
                "no checkpoint and no size", hint="perfscope checkpoint DIR, or --size 13B --gpus 64 to plan one"
            )
        files = require_positive("--gpus", 1 if gpus is None else gpus)
        plan = plan_checkpoint(parameters, files, per_parameter or bytes_per_parameter())
        title = f"A checkpoint of {format_parameters(parameters)} parameters: {format_bytes(plan.total.bytes)}"
        return Outcome(_report(title, plan, plan.total.bytes, saves), format)
    if gpus is not None:
        raise UsageError("--gpus plans a checkpoint", hint="leave it out, or leave out the folder")
    return _check(directory, parameters, per_parameter, saves, format)


def _check(
    directory: Path,
    parameters: int | None,
    per_parameter: BytesPerParameter | None,
    saves: Saves | None,
    output_format: Format,
) -> Outcome:
    stored = read_checkpoint(directory)
    sizes = check_checkpoint(stored, parameters, per_parameter)
    name = f"{stored.path} ({stored.tag})" if stored.tag else stored.path
    title = f"{name}: {stored.layout}, {format_count(len(stored.files), 'file')}, {format_bytes(stored.bytes)}"
    complete, beside = newest_complete(stored.checkpoints), list[Section]()
    if complete is not None and not complete.shown:
        shown = check_checkpoint(read_checkpoint(directory, complete.name), parameters, per_parameter)
        beside.append(shown.parts_section(f"Parts of {complete.name or 'the folder itself'}"))
    warnings = shorten_warnings([finding.text for finding in sizes.findings if finding.kind not in _FACTS])
    has_broken_newest = any(each.newest and each.problems for each in stored.checkpoints)
    return Outcome(
        _report(title, sizes, stored.bytes, saves, beside),
        output_format,
        notes=tuple(f"warning: {warning}" for warning in warnings),
        exit_code=ExitCode.DAMAGED_INPUT if stored.damage or has_broken_newest else ExitCode.OK,
    )


def _report(
    title: str, found: CheckpointPlan | CheckpointSizes, size: int, saves: Saves | None, more: Sequence[Section] = ()
) -> Report:
    results: dict[str, Json] = {"plan" if isinstance(found, CheckpointPlan) else "checkpoint": found.data()}
    first, *others = found.sections()
    timed = None if saves is None else summarize_saves(saves, size)
    if timed is not None:
        results["saves"] = timed.data()
    sections = (first, *(timed.sections() if timed else ()), *others, *more)
    return Report(title, {"schema": _SCHEMA, "results": results}, sections)
