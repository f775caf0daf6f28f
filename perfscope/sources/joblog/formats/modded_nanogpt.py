"""modded-nanogpt and what was made of it: the training time since the start, in milliseconds.

    step:125/1480 val_loss:4.3719 train_time:29736ms step_avg:258.57ms
    step:2550/20000 train_loss:2.1367 train_time:164917ms step_avg:64.67ms

The clock stands still during validation; many versions set it to 0 once, after the first ten steps, which ``train_time
/ step_avg`` shows. The time of a step is a difference of two clocks, never ``step_avg``, a mean since the start. Only
the lines of validations wait for the GPU. The line of a step states the host's time, and the host can be a dozen steps
ahead. It is used where there are fewer than two validations.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from perfscope.constants import NS_PER_MS
from perfscope.sources.joblog.log_format import FormatState, LineMatch, LineRule, LogFormat
from perfscope.sources.joblog.records import Record
from perfscope.sources.joblog.text import parse_number

VALIDATIONS = "modded-nanogpt's train_time at validations"
STEPS = "modded-nanogpt's train_time"

_LATEST_RESET = 1000  # later the rounded mean does not tell


@dataclass(slots=True)
class _State(FormatState):
    """How many steps the clock of each source leaves out."""

    untimed: dict[str, int] = field(default_factory=lambda: {VALIDATIONS: 0, STEPS: 0})


def _on_step(state: _State, line: LineMatch) -> None:
    log, step, source = state.log, int(line["step"]), VALIDATIONS if b"val_loss:" in line[0] else STEPS
    log.set_count("train_iterations", line["total"], "records")
    clock = log.clock(source, runs_on=False)
    time_ms, mean_ms = float(line["ms"]), parse_number(line["mean"])
    if step <= _LATEST_RESET:
        untimed = step - round(time_ms / mean_ms) if mean_ms else 0
        if abs(untimed - state.untimed[source]) > 1:
            clock.restart()
        state.untimed[source] = untimed
    record = Record(step, loss=parse_number(line["loss"]))
    clock.add(record, round(time_ms * NS_PER_MS), NS_PER_MS, label=line.label)


def _close(state: _State) -> None:
    if STEPS in state.log.series and VALIDATIONS in state.log.median_times():
        state.log.series.pop(STEPS)  # the host's clock contradicts nothing


FORMAT = LogFormat(
    framework="modded-nanogpt",
    state=_State,
    rules=(
        LineRule(
            b" step_avg:",
            rb"step:(?P<step>\d{1,12})/(?P<total>\d{1,12}) (?:train_loss:(?P<loss>[\d.]{1,20}) )?"
            rb"(?:\w{1,40}:[^\s:]{1,20} ){0,4}?train_time:"
            rb"(?P<ms>\d{1,15}(?:\.\d{1,6})?)ms step_avg:(?P<mean>[\d.a-z]{1,20}?)ms",
            _on_step,
            begin=(b"step:",),
        ),
    ),
    sources=(VALIDATIONS, STEPS),
    close=_close,
)
