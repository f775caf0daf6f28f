"""ms-swift: the Trainer's dictionaries with a step and a clock, on the console and in ``logging.jsonl``.

    {'loss': 1.47, 'epoch': 0.01, 'global_step/max_steps': '1/94', 'elapsed_time': '2s', 'train_speed(iter/s)': ...

``elapsed_time`` counts whole seconds since the start and runs on through evaluations and saves. ``train_speed`` is a
mean since the start, with its warm-up, and is not used.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from perfscope.constants import NS_PER_S, S_PER_DAY, S_PER_HOUR, S_PER_MINUTE
from perfscope.sources.joblog.log_format import Format, FormatState, StepTimeSource, ignore_line
from perfscope.sources.joblog.records import Record
from perfscope.sources.joblog.rules import LineMatch, Rule
from perfscope.sources.joblog.step_times import ElapsedClock
from perfscope.sources.joblog.text import parse_number
from perfscope.tables.joblog import Disturbance

SOURCE = "ms-swift's elapsed_time"

_ELAPSED = re.compile(rb"(?:(\d{1,4})d ?)?(?:(\d{1,3})h ?)?(?:(\d{1,3})m ?)?(?:(\d{1,3})s)?")
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


def _close(state: _State) -> None:
    state.clock.close(state.log)


_RULE = Rule(
    b"/max_steps",
    re.compile(rb"\{[^\n{}]{0,3000}?['\"]global_step/max_steps['\"]: [^\n{}]{0,3000}\}"),
    _on_dictionary,
    begin=(b"{",),
)


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
)
