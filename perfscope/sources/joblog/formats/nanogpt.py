"""nanoGPT and llama2.c: a line every few iterations, with the time of that one iteration.

    iter 100: loss 3.2101, time 250.31ms, mfu 30.12%
    100 | loss 5.1234 | lr 1.000000e-04 | 150.23ms | mfu 20.10%

The MFU came in February 2023. Iterations count from 0. The clock runs on through an evaluation, whose line comes
before that of the iteration: ``step 250: train loss 2.0012, val loss 2.1203``.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfscope.constants import NS_PER_MS, NS_PER_S
from perfscope.sources.joblog.log_format import FormatState, LineMatch, LineRule, LogFormat, aside
from perfscope.sources.joblog.text import parse_number
from perfscope.tables.joblog import Disturbance

SOURCE = "nanoGPT's time of one iteration"


@dataclass(slots=True)
class _State(FormatState):
    """Tokens of an iteration."""

    tokens: float | None = None


def _on_iteration(state: _State, line: LineMatch) -> None:
    record = state.log.timed(line["ms"], NS_PER_MS, int(line["step"]) + 1, loss=parse_number(line["loss"]))
    if record is None:
        return
    if state.tokens is not None and record.wall_ns:
        record.tokens_per_s = state.tokens * NS_PER_S / record.wall_ns
    state.log.add(SOURCE, record, line.label, clock_runs_on=True, stated_interval=1)
    state.log.set_mfu(line["mfu"])


def _on_iteration_of_llama2_c(state: _State, line: LineMatch) -> None:
    state.name = "llama2.c"
    _on_iteration(state, line)


def _on_evaluation(state: _State, _line: LineMatch) -> None:
    state.log.series_of(SOURCE).clock_runs_on = True
    state.log.on_disturbance(Disturbance.EVALUATION)


def _on_batch(state: _State, line: LineMatch) -> None:
    """``4 grad accum steps * 1 processes * 128 batch size * 256 max seq len``."""
    accumulated, processes, micro, length = (int(line[group]) for group in range(1, 5))
    facts = {"gas": accumulated, "gpus": processes, "dp": processes, "mbs": micro, "seq_len": length}
    for name, value in (facts | {"gbs": accumulated * processes * micro}).items():
        state.log.set_fact(name, value, "log")


FORMAT = LogFormat(
    framework="nanogpt",
    state=_State,
    rules=(
        LineRule(
            b", time ",
            rb"iter (?P<step>\d{1,15}): loss (?P<loss>\S{1,30}), time (?P<ms>[\d.]{1,30})ms"
            rb"(?:, mfu (?P<mfu>-?[\d.]{0,10})|\s*$)",
            _on_iteration,
            begin=(b"iter ",),
        ),
        LineRule(
            b" | lr ",
            rb"(?<![^\s:])(?P<step>\d{1,15}) \| loss (?P<loss>\S{1,30}) \| lr \S{1,30} \| (?P<ms>[\d.]{1,30})ms"
            rb"(?: \| mfu (?P<mfu>-?[\d.]{0,10})|\s{0,99}$)",
            _on_iteration_of_llama2_c,
            span=(60, 200),
        ),
        aside(b": train loss ", rb"\bstep \d{1,15}: train loss \S{1,30}, val loss ", _on_evaluation),
        aside(
            b"tokens per iteration will be: ",
            rb"tokens per iteration will be: ([\d,]{1,20})",
            lambda state, line: setattr(state, "tokens", parse_number(line[1])),
        ),
        aside(
            b" grad accum steps * ",
            rb"(\d{1,9}) grad accum steps \* (\d{1,9}) processes \* (\d{1,9}) batch size \* (\d{1,9}) max seq len",
            _on_batch,
            span=(9, 120),
        ),
    ),
    sources=(SOURCE,),
)
