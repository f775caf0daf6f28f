"""ms-swift: the Trainer's dictionaries with a step and a clock, on the console and in ``logging.jsonl``.

    {'loss': 1.47, 'epoch': 0.01, 'global_step/max_steps': '1/94', 'elapsed_time': '2s', 'train_speed(iter/s)': ...

``elapsed_time`` counts whole seconds since the start and runs on through evaluations and saves. ``train_speed`` is a
mean since the start, with its warm-up, and is not used.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from perfscope.constants import NS_PER_S, S_PER_DAY, S_PER_HOUR, S_PER_MINUTE
from perfscope.sources.joblog.bulk.cells import Cells
from perfscope.sources.joblog.bulk.line_forms import INTEGER
from perfscope.sources.joblog.bulk.line_shapes import Column, Measured
from perfscope.sources.joblog.bulk.record_lines import LinesOfRecords, read_lines
from perfscope.sources.joblog.log_format import Format, FormatState, StepTimeSource, ignore_line
from perfscope.sources.joblog.rules import LineMatch, Rule
from perfscope.sources.joblog.series.record import Record
from perfscope.sources.joblog.splitting.split_block import PlainLines
from perfscope.sources.joblog.step_times.elapsed_clock import LOSS, SKEW, ElapsedClock
from perfscope.sources.joblog.text.line_fields import parse_number
from perfscope.tables.columns import Int64
from perfscope.tables.joblog import Disturbance

SOURCE = "ms-swift's elapsed_time"

_ELAPSED = re.compile(rb"(?:(\d{1,4})d ?)?(?:(\d{1,3})h ?)?(?:(\d{1,3})m ?)?(?:(\d{1,3})s)?")
_ELAPSED_LINE = re.compile(rb"^" + _ELAPSED.pattern + rb"$", re.MULTILINE)
_UNITS_S = (S_PER_DAY, S_PER_HOUR, S_PER_MINUTE, 1)
_CELL = re.compile(
    rb"['\"](loss|elapsed_time|eval_runtime|iteration|global_step/max_steps)['\"]: ['\"]?([^,'\"}\n]{1,40})"
)


@dataclass(slots=True)
class _State(FormatState):
    """The clock."""

    clock: ElapsedClock = field(default_factory=lambda: ElapsedClock(SOURCE))


def _on_dictionary(state: _State, line: LineMatch) -> None:
    cells = dict(_CELL.findall(line[0]))
    if b"eval_runtime" in cells:
        state.log.on_disturbance(Disturbance.EVALUATION)
        return
    step, _, total = (cells.get(b"global_step/max_steps") or cells.get(b"iteration") or b"").partition(b"/")
    elapsed_s = _elapsed_s(cells.get(b"elapsed_time", b""))
    if not step.isdigit() or elapsed_s is None:
        return
    state.log.set_count("train_iterations", total, "records")
    record = Record(int(step), loss=parse_number(cells.get(b"loss", b"")))
    state.clock.add(state.log, record, elapsed_s * NS_PER_S, NS_PER_S, label=line.label)


def _elapsed_s(text: bytes) -> int | None:
    elapsed = _ELAPSED.fullmatch(text.strip())
    if elapsed is None or not any(elapsed.groups()):
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in elapsed.groups())
    return days * S_PER_DAY + hours * S_PER_HOUR + minutes * S_PER_MINUTE + seconds


def _many_elapsed_s(texts: Sequence[str]) -> Int64:
    """Many times as ``_elapsed_s`` reads them; 0 where it reads none."""
    parts = _ELAPSED_LINE.findall("\n".join(texts).encode())
    if len(parts) != len(texts):
        return np.asarray([_elapsed_s(text.encode()) or 0 for text in texts], np.int64)
    seconds = np.zeros(len(texts), np.int64)
    for column, unit_s in zip(zip(*parts, strict=True), _UNITS_S, strict=True):
        seconds += unit_s * np.asarray([int(part or 0) for part in column], np.int64)
    return seconds


def _close(state: _State) -> None:
    state.clock.close(state.log)


_RULE = Rule(
    b"/max_steps",
    re.compile(rb"\{[^\n{}]{0,3000}?['\"]global_step/max_steps['\"]: [^\n{}]{0,3000}\}"),
    _on_dictionary,
    begin=(b"{",),
)
_COLUMNS = {
    "step": Column(INTEGER, re.compile(rb"global_step/max_steps['\"]: ['\"](\d{1,12})/")),
    "total": Column(INTEGER, re.compile(rb"global_step/max_steps['\"]: ['\"]\d{1,12}/(\d{1,12})")),
    "elapsed": Column(r"[\d dhms]{2,40}", re.compile(rb"['\"]elapsed_time['\"]: ['\"]([\d dhms]{2,40})['\"]")),
    "loss": Column(cell=re.compile(rb"['\"]loss['\"]: ([\d.eE+-]{1,30})"), is_optional=True),
}
#: Without the bytes between there is nothing to look for.
_GLUE = (b"} {", re.compile(rb"^(\{[^{}\n]*\}) (?=\{[^{}\n]*\}$)", re.MULTILINE))


def _is_training(line: LineMatch) -> bool:
    return b"eval_runtime" not in line[0]


def _measure(cells: Cells) -> Measured:
    """The elapsed times are readings of the clock."""
    elapsed_s = _many_elapsed_s(cells.texts("elapsed"))
    columns = {LOSS: cells.number_bits("loss")} if "loss" in cells else {}
    return Measured(cells.integers("step"), elapsed_s * NS_PER_S, columns)


def _add(state: _State, plain: PlainLines, first: int, last: int) -> None:
    state.clock.add_many(state.log, plain.rows(first, last), NS_PER_S)


FORMAT = Format(
    framework="ms-swift",
    state=_State,
    rules=(
        _RULE,
        Rule(
            b"train_speed(s/it)",
            re.compile(rb"\{[^\n{}]{0,3000}?['\"]iteration['\"]: [^\n{}]{0,3000}\}"),
            _on_dictionary,
            begin=(b"{",),
        ),
        Rule(b"[INFO:swift]", re.compile(rb"\[INFO:swift\]"), ignore_line),
    ),
    sources=(StepTimeSource(SOURCE),),
    close=_close,
    bulk=read_lines(
        SOURCE,
        LinesOfRecords(_RULE, _COLUMNS, _measure, constants=("total",), is_record=_is_training, glue=_GLUE),
        add=_add,
        most_behind=SKEW,
    ),
)
