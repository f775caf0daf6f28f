"""MLPerf Training: one JSON object an event, in the log of any framework.

    :::MLLOG {"namespace": "", "time_ms": 1695795023840, "event_type": "POINT_IN_TIME", "key": "tracked_stats",
    "value": {"throughput": 7936.63}, "metadata": {"file": "run_pretraining.py", "lineno": 1, "epoch_num": 150635}}

The benchmarks define what they track. A step time (``train_step_timing``, ``train_step_time``, Mask R-CNN's ``time``)
is used as it is. Otherwise it is the global batch over ``throughput``: the job's samples a second, over an interval
that the benchmark chooses. Their ``step`` counts epochs, samples or tokens, so iterations have no number. The time of
the run is ``run_stop`` less ``run_start``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from perfscope.constants import NS_PER_S
from perfscope.sources.joblog.log_format import Format, FormatState, LineMatch, Rule, counts, ignore_line
from perfscope.sources.joblog.records import Record
from perfscope.sources.joblog.text import parse_number, parse_numbers

STEP = "MLPerf's tracked step time"
THROUGHPUT = "batch / MLPerf's throughput"

_SETTINGS = {
    b"global_batch_size": "gbs",
    b"gradient_accumulation_steps": "gas",
    b"max_sequence_length": "seq_len",
    b"d_batch_size": "mbs",
}
_STAT = re.compile(rb'"(\w{1,40})": ([\d.eE+-]{1,40})(?=[,}])')


@dataclass(slots=True)
class _State(FormatState):
    """The last throughput of each rank, which some benchmarks log twice."""

    last: dict[bytes | None, float | None] = field(default_factory=dict)


def _on_stats(state: _State, line: LineMatch) -> None:
    stats = parse_numbers(_STAT.findall(line[1]))
    seconds = stats.get(b"train_step_timing") or stats.get(b"train_step_time")
    if seconds is None and b"data" in stats:
        seconds = stats.get(b"time")
    loss = stats.get(b"reduced_train_loss", stats.get(b"loss"))
    if seconds is not None and seconds > 0:
        state.log.add(STEP, Record(wall_ns=round(seconds * NS_PER_S), loss=loss), line)
    speed = stats.get(b"throughput") or stats.get(b"imgs_sec")
    if speed:
        state.last[line.label] = speed
        state.log.add(THROUGHPUT, Record(samples_per_s=speed, loss=loss), line)


def _on_throughput(state: _State, line: LineMatch) -> None:
    """The same figure once more where it follows the tracked statistics."""
    speed = parse_number(line[1])
    if speed is None or speed != state.last.pop(line.label, None):
        state.log.add(THROUGHPUT, Record(samples_per_s=speed), line)


def _on_stop(state: FormatState, line: LineMatch) -> None:
    if line[1] != b"success":
        state.log.add_remark("target-missed", "the run ended without reaching its target quality")


def _close(state: _State) -> None:
    log = state.log
    if THROUGHPUT in log.series:
        log.series[THROUGHPUT].batch = log.count("gbs")
    if STEP in log.series or THROUGHPUT in log.series:
        log.set_fact("unnumbered_runs", 1, "records")


_EVENT = (b":::MLLOG {",)
_HEAD = rb':::MLLOG \{[^\n]{0,120}?"key": '

FORMAT = Format(
    framework="mlperf",
    state=_State,
    rules=(
        *(
            Rule(
                b'"' + name + b'", "value": ',
                _HEAD + rb'"' + name + rb'", "value": (\d[\d.]{0,15})',
                counts(fact),
                begin=_EVENT,
            )
            for name, fact in _SETTINGS.items()
        ),
        Rule(
            b'"tracked_stats", "value": {',
            _HEAD + rb'"tracked_stats", "value": (\{[^\n{}]{0,2000}\})',
            _on_stats,
            begin=_EVENT,
        ),
        Rule(
            b'"throughput", "value": ',
            _HEAD + rb'"throughput", "value": ([\d.eE+]{1,40})',
            _on_throughput,
            begin=_EVENT,
        ),
        Rule(
            b'"run_stop", "value": ',
            _HEAD + rb'"run_stop", "value": [^\n]{0,300}?"status": "(\w{1,20})"',
            _on_stop,
            begin=_EVENT,
        ),
        Rule(b'"run_start", "value": ', _HEAD + rb'"run_start"', ignore_line, begin=_EVENT),
    ),
    sources=(STEP, THROUGHPUT),
    close=_close,
)
