"""gluon-nlp's BERT pre-training: one line a step *and rank*, which a job of 32 GPUs prints 32 times.

    INFO:root:03:21:22 [step 100]  mlm_loss=7.4  throughput=19.3K tks/s  lr=0.0000500 time=0.21, latency=212.6 ms/batch

The time of a step is the median of its ranks' latencies, a mean over the log interval; the number of ranks is counted.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from perfscope.constants import KILO, NS_PER_MS
from perfscope.sources.joblog.line_fields import parse_number
from perfscope.sources.joblog.log_format import Format, FormatState, StepTimeSource
from perfscope.sources.joblog.record import Record
from perfscope.sources.joblog.rules import LineMatch, Rule

SOURCE = "latency, the median of the ranks"

_MOST_OPEN_STEPS = 8
_THROUGHPUT = re.compile(rb"throughput=([\d.]+)K tks/s")
_LOSS = re.compile(rb"mlm_loss=(\S+)")


class _RankStep(NamedTuple):
    latency_ms: float
    kilotokens_per_s: float | None
    loss: float | None


@dataclass(slots=True)
class _State(FormatState):
    """Steps that not all ranks have printed yet, and the largest number of ranks of a step."""

    open_steps: OrderedDict[int, list[_RankStep]] = field(default_factory=OrderedDict)
    ranks: int = 0


def _on_step(state: _State, line: LineMatch) -> None:
    latency = parse_number(line["latency"])
    throughput, loss = _THROUGHPUT.search(line.full_line), _LOSS.search(line.full_line)
    if latency is None or latency <= 0:
        state.log.unreadable += 1
        return
    state.open_steps.setdefault(int(line["step"]), []).append(
        _RankStep(latency, parse_number(throughput[1]) if throughput else None, parse_number(loss[1]) if loss else None)
    )
    if len(state.open_steps) > _MOST_OPEN_STEPS:
        _add_oldest_step(state)


def _add_oldest_step(state: _State) -> None:
    """Turn a step that all ranks have printed into a record."""
    step, ranks = state.open_steps.popitem(last=False)
    throughputs = [rank.kilotokens_per_s for rank in ranks if rank.kilotokens_per_s is not None]
    record = Record(
        iteration=step,
        wall_ns=round(median(rank.latency_ms for rank in ranks) * NS_PER_MS),
        tokens_per_s_per_gpu=median(throughputs) * KILO if throughputs else None,
        loss=ranks[0].loss,
    )
    if state.log.series_of(SOURCE).add(record):
        state.ranks = max(state.ranks, len(ranks))
        state.log.set_fact("gpus", state.ranks, "records")


def _close(state: _State) -> None:
    while state.open_steps:
        _add_oldest_step(state)


FORMAT = Format(
    framework="gluon-nlp",
    state=_State,
    rules=(
        Rule(
            b"ms/batch",
            re.compile(rb"\[step (?P<step>\d+)\][^\n]{0,400}?latency=(?P<latency>[^\s,]+) ms/batch"),
            _on_step,
            begin=(b"[step ",),
        ),
    ),
    sources=(StepTimeSource(SOURCE),),
    close=_close,
)
