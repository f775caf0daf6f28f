"""NeMo: a progress bar (1.x) or a line an iteration (2.x), both with ``train_step_timing in s``.

The bar prints four significant digits, so that ``global_step=2e+3`` has lost its last three; there the bar's own
counter is the number of the step. Its TFLOPs count the whole attention matrix or, in newer versions, half of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from math import floor, log10

from perfscope.constants import NS_PER_S
from perfscope.sources.joblog.log_format import FormatState, LineMatch, LineRule, LogFormat, ignore_line
from perfscope.sources.joblog.step_times import EpochCounter
from perfscope.sources.joblog.text import parse_numbers

SOURCE = "train_step_timing"

_CELLS = re.compile(rb"(consumed_samples|global_batch_size|reduced_train_loss|TFLOPS_per_GPU)(?:=|: )([-+\d.eE]+)")


@dataclass(slots=True)
class _State(FormatState):
    """The progress bar's epochs."""

    epochs: EpochCounter = field(default_factory=EpochCounter)


def _on_bar(state: _State, line: LineMatch) -> None:
    """The bar counts anew in every epoch."""
    total = int(line["total"])
    step = state.epochs.add(int(line["epoch"] or 0), int(line["step"]), total)
    _add_step(state, line, step, max(total, step))


def _on_line(state: _State, line: LineMatch) -> None:
    """``global_step`` counts from 0: the first line is the first step."""
    _add_step(state, line, int(line["step"]) + 1, int(line["total"]) + 1)


def _add_step(state: FormatState, line: LineMatch, step: int, total: int) -> None:
    log, cells = state.log, parse_numbers(_CELLS.findall(line.text[line.match.start() : line.end]))
    record = log.timed(line["seconds"], NS_PER_S, step, loss=cells.get(b"reduced_train_loss"), digits=False)
    if record is None:
        return
    record.wall_resolution_ns = max(round(_resolution(record.wall_ns or 1)), 1)
    record.tflops_per_gpu = cells.get(b"TFLOPS_per_GPU")
    if record.tflops_per_gpu:
        record.tflops_resolution, log.tflops_label = _resolution(record.tflops_per_gpu), "TFLOPS_per_GPU"
    batch, consumed = cells.get(b"global_batch_size"), cells.get(b"consumed_samples")
    record.samples = None if batch is None else int(batch)
    log.add(SOURCE, record, line.label)
    log.set_fact("train_iterations", total, "records")
    if batch is None and consumed is not None and step > 0 and consumed % step == 0 and b"e+" not in line[0]:
        log.set_fact("gbs", int(consumed / step), "records")


def _resolution(value: float) -> float:
    """What the last of four significant digits stands for."""
    return float(10.0 ** (floor(log10(abs(value))) - 3))


FORMAT = LogFormat(
    framework="nemo",
    state=_State,
    rules=(
        LineRule(
            b"train_step_timing in s=",
            rb"(?:Epoch (?P<epoch>\d{1,9}):[^\n|]{0,200}+\|[^\n|]{0,400}+)?\| {0,20}(?P<step>\d{1,15})"
            rb"/(?P<total>\d{1,15}) \[[^\n]{0,600}?train_step_timing in s=(?P<seconds>[^,\]\s]+)",
            _on_bar,
            begin=(b"Epoch ", b"| "),
        ),
        LineRule(
            b"train_step_timing in s:",
            rb"iteration \d{1,15}/(?P<total>\d{1,15}) (?>\|[^\n]{0,800}?global_step: )(?P<step>\d{1,15}) [^\n]{0,800}?"
            rb"train_step_timing in s: (?P<seconds>[^\s|]+)",
            _on_line,
            begin=(b"iteration ",),
        ),
        LineRule(b"[NeMo I ", b"", ignore_line),
    ),
    sources=(SOURCE,),
)
