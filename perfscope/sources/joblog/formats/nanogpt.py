"""nanoGPT and llama2.c: a line every few iterations, with the time of that one iteration.

    iter 100: loss 3.2101, time 250.31ms, mfu 30.12%
    100 | loss 5.1234 | lr 1.000000e-04 | 150.23ms | mfu 20.10%

The MFU came in February 2023. Iterations count from 0. The clock runs on through an evaluation, whose line comes
before that of the iteration: ``step 250: train loss 2.0012, val loss 2.1203``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from perfscope.constants import NS_PER_MS, NS_PER_S
from perfscope.sources.joblog.log_format import Format, FormatState, StepTimeSource
from perfscope.sources.joblog.records import Record
from perfscope.sources.joblog.rules import LineMatch, Rule
from perfscope.sources.joblog.text import parse_number, parse_resolution
from perfscope.tables.joblog import Disturbance

SOURCE = "nanoGPT's time of one iteration"


@dataclass(slots=True)
class _State(FormatState):
    """Tokens of an iteration, and which of the two programs wrote the log."""

    tokens: int | None = None
    framework: str = "nanogpt"


def _on_iteration(state: _State, line: LineMatch) -> None:
    time_ms = parse_number(line["ms"])
    if time_ms is None or time_ms <= 0:
        state.log.unreadable += 1
        return
    if line.match.re is _LLAMA2_C:
        state.framework = "llama2.c"
    record = Record(
        iteration=int(line["step"]) + 1,
        wall_ns=round(time_ms * NS_PER_MS),
        loss=parse_number(line["loss"]),
        wall_resolution_ns=round(parse_resolution(line["ms"]) * NS_PER_MS),
    )
    if state.tokens is not None and record.wall_ns:
        record.tokens_per_s = state.tokens * NS_PER_S / record.wall_ns
    series = state.log.series_of(SOURCE)
    series.clock_runs_on, series.stated_interval = True, 1
    series.add(record, line.label)


def _on_evaluation(state: _State, _line: LineMatch) -> None:
    state.log.series_of(SOURCE).clock_runs_on = True
    state.log.on_disturbance(Disturbance.EVALUATION)


def _on_tokens(state: _State, line: LineMatch) -> None:
    tokens = parse_number(line[1])
    state.tokens = None if tokens is None else int(tokens)


def _on_batch(state: _State, line: LineMatch) -> None:
    """``4 grad accum steps * 1 processes * 128 batch size * 256 max seq len``."""
    for name, value in zip(("gas", "gpus", "mbs", "seq_len"), line.match.groups(), strict=True):
        state.log.set_count(name, value, "log")
    accumulated, processes, micro = (int(line[group]) for group in (1, 2, 3))
    state.log.set_fact("dp", processes, "log")
    state.log.set_fact("gbs", accumulated * processes * micro, "log")


def _framework_of(state: _State) -> str:
    return state.framework


_NANOGPT = re.compile(
    rb"iter (?P<step>\d{1,15}): loss (?P<loss>\S{1,30}), time (?P<ms>[\d.]{1,30})ms(?:, mfu |\s*$)", re.M
)
_LLAMA2_C = re.compile(
    rb"(?<![^\s:])(?P<step>\d{1,15}) \| loss (?P<loss>\S{1,30}) \| lr \S{1,30} \| "
    rb"(?P<ms>[\d.]{1,30})ms(?: \| mfu |\s{0,99}$)",
    re.M,
)

_RULE = Rule(b", time ", _NANOGPT, _on_iteration, begin=(b"iter ",))
_RULE_OF_LLAMA2_C = Rule(b" | lr ", _LLAMA2_C, _on_iteration, span=(60, 200))

FORMAT = Format(
    framework="nanogpt",
    state=_State,
    rules=(
        _RULE,
        _RULE_OF_LLAMA2_C,
        Rule(
            b": train loss ",
            re.compile(rb"\bstep \d{1,15}: train loss \S{1,30}, val loss "),
            _on_evaluation,
            identifies=False,
        ),
        Rule(
            b"tokens per iteration will be: ",
            re.compile(rb"tokens per iteration will be: ([\d,]{1,20})"),
            _on_tokens,
            identifies=False,
        ),
        Rule(
            b" grad accum steps * ",
            re.compile(
                rb"(\d{1,9}) grad accum steps \* (\d{1,9}) processes \* (\d{1,9}) batch size \* (\d{1,9}) max seq len"
            ),
            _on_batch,
            identifies=False,
            span=(9, 120),
        ),
    ),
    sources=(StepTimeSource(SOURCE),),
    framework_of=_framework_of,
)
