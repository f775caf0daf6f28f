"""``perfscope report mfu``: the MFU of several runs side by side, with what it rests on and what the traces counted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfscope.analyzers.flops.precision import read_signs
from perfscope.analyzers.mfu import HEADLINE, Utilisation
from perfscope.commands.options.common import FormatOption
from perfscope.constants import GIGA
from perfscope.engine.run import Analysis, Plan, analyze
from perfscope.outcome import Outcome
from perfscope.renderers import Format
from perfscope.report import Column, Json, Report, Row, Section, in_unit, percent

_COLUMNS = (
    Column("Run"),
    Column("Parameters in"),
    Column("Recorded"),
    Column("Products in"),
    Column("Peak (TFLOP/s)"),
    Column("TFLOPs per GPU"),
    Column("MFU (%)", 2),
    Column("Formula (GFLOP/token)", 3),
    Column("Counted (GFLOP/token)", 3),
    Column("Counted of peak (%)", 2),
)
_NOTE = (
    f"TFLOPs and MFU are by `{HEADLINE}`, for the median undisturbed step, with half of the attention matrix. Formula "
    "and count have the full matrix, so that the last column is comparable with `torchtitan`. Recorded is what the "
    "hooks saw of the precision, products what the traces show."
)


def mfu(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN_DIR...", help="Runs of `perfscope profile --shapes`.")],
    format: FormatOption = Format.MARKDOWN,
) -> Outcome:
    """Print the MFU of runs side by side: precision, peak, and the formula beside the operations of the traces."""
    analyses = [(path, analyze([path], Plan(only=frozenset({"mfu"})))) for path in runs]
    entries = [_describe(path, analysis) for path, analysis in analyses]
    damage = tuple(line for _, analysis in analyses for line in analysis.damage)
    rows = tuple(_row(path, analysis) for path, analysis in analyses)
    missing = tuple(f"{path.name}: {reason}" for path, analysis in analyses if (reason := _reason(analysis)))
    data: dict[str, Json] = {"schema": "perfscope/mfu/1", "results": {"runs": entries}}
    section = Section("MFU of runs", _COLUMNS, rows, (_NOTE, *missing))
    return Outcome(Report("MFU of runs", data, (section,), damage), format)


def _row(path: Path, analysis: Analysis) -> Row:
    result = analysis.results.get("mfu")
    stored, recorded = _recorded(analysis)
    if not isinstance(result, Utilisation):
        return (path.name, stored, recorded, *[None] * (len(_COLUMNS) - 3))
    counted = result.counted
    return (
        path.name,
        stored,
        recorded,
        ", ".join(result.device.precision.shares) or None,
        result.device.peak_tflops,
        result.headline.tflops_per_gpu,
        percent(result.headline.mfu),
        in_unit(counted.formula_flops_per_token, GIGA) if counted else None,
        in_unit(counted.flops_per_token, GIGA) if counted else None,
        percent(_counted_share(result)),
    )


def _describe(path: Path, analysis: Analysis) -> dict[str, Json]:
    result = analysis.results.get("mfu")
    stored, recorded = _recorded(analysis)
    facts: dict[str, Json] = {"run": str(path), "parameters_dtype": stored, "recorded_dtype": recorded}
    if not isinstance(result, Utilisation):
        return {**facts, "reason": _reason(analysis)}
    return {**facts, "mfu": result.data(), "counted_share_of_peak": _counted_share(result)}


def _recorded(analysis: Analysis) -> tuple[str | None, str | None]:
    """The type of the parameters, and the type of the products by the hooks' record alone."""
    model = next(iter(analysis.run.models), None) if analysis.run else None
    return (None, None) if model is None else (model.weights_dtype, read_signs(model)[0])


def _counted_share(result: Utilisation) -> float | None:
    """The counted operations over the peak; absent without either, and where they would be above it."""
    headline, peak = result.headline, result.device.peak_tflops
    if result.counted is None or not peak or headline.mfu is None or not headline.flops_per_token:
        return None
    return headline.mfu * result.counted.flops_per_token / headline.flops_per_token


def _reason(analysis: Analysis) -> str | None:
    return next((skipped.reason for skipped in analysis.skipped), None)
