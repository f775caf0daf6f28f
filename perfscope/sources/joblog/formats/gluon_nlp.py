"""gluon-nlp's BERT pre-training: one line a step *and rank*, which a job of 32 GPUs prints 32 times.

    INFO:root:03:21:22 [step 100]  mlm_loss=7.4  throughput=19.3K tks/s  lr=0.0000500 time=0.21, latency=212.6 ms/batch

The time of a step is the median of its ranks' latencies, a mean over the log interval; the number of ranks is counted.
In 2019 one process drove all GPUs of a host, and its lines state the seconds of the whole interval alone::

    INFO:root:[step 249]  mlm_loss=9.24962  ...  throughput=122.0K tks/s  lr=0.0000025 time=163.24

Steps count from 0, and its throughput is that of the job. The interval is stated by the script's arguments.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from perfscope.constants import KILO, NS_PER_MS, NS_PER_S
from perfscope.sources.joblog.log_format import Format, FormatState, LineMatch, Rule, disturbs
from perfscope.sources.joblog.records import Record
from perfscope.sources.joblog.text import parse_number, parse_resolution
from perfscope.tables.joblog import Disturbance

SOURCE = "latency, the median of the ranks"
INTERVAL = "gluon-nlp's time / log_interval"

_MOST_OPEN_STEPS = 8
_THROUGHPUT = re.compile(rb"throughput=([\d.]+)K tks/s")
_LOSS = re.compile(rb"mlm_loss=(\S+)")


class _RankStep(NamedTuple):
    latency_ms: float
    kilotokens_per_s: float | None
    loss: float | None


@dataclass(slots=True)
class _State(FormatState):
    """The log interval, steps that not all ranks have printed yet, and the largest number of ranks of a step."""

    interval: int | None = None
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


def _on_arguments(state: _State, line: LineMatch) -> None:
    state.interval = int(line["interval"])
    state.log.set_count("train_iterations", line["steps"], "arguments")


def _on_interval(state: _State, line: LineMatch) -> None:
    seconds, speed = parse_number(line["seconds"]), parse_number(line["speed"])
    if seconds is None or seconds <= 0:
        state.log.unreadable += 1
        return
    record = Record(int(line["step"]) + 1, loss=parse_number(line["loss"]))
    record.tokens_per_s = None if speed is None else speed * KILO
    if state.interval:
        record.wall_ns = round(seconds / state.interval * NS_PER_S)
        record.wall_resolution_ns = max(round(parse_resolution(line["seconds"]) / state.interval * NS_PER_S), 1)
    state.log.add(INTERVAL, record, line, clock_runs_on=True, stated_interval=state.interval)


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
    state.log.series_of(SOURCE).add(record)
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
            rb"\[step (?P<step>\d{1,15})\][^\n]{0,400}?latency=(?P<latency>[^\s,]+) ms/batch",
            _on_step,
            begin=(b"[step ",),
        ),
        Rule(
            b"K tks/s",
            rb"\[step (?P<step>\d{1,12})\]\s+mlm_loss=(?P<loss>[^\s,]{1,20})[^\n]{0,300}?\s"
            rb"throughput=(?P<speed>[\d.]{1,20})K tks/s\s+lr=\S{1,20} time=(?P<seconds>[\d.]{1,20})(?=\s*$)",
            _on_interval,
            begin=(b"[step ",),
        ),
        Rule(
            b", log_interval=",
            rb"(?>Namespace\(accumulate=[^\n]{0,900}?, log_interval=)(?P<interval>[1-9]\d{0,8}), [^\n]{0,300}?"
            rb"num_steps=(?P<steps>\d{1,12})",
            _on_arguments,
            begin=(b"Namespace(accumulate=",),
            identifies=False,
        ),
        Rule(
            b"] Saving checkpoints to",
            rb"\[step \d+\] Saving checkpoints",
            disturbs(Disturbance.SAVE),
            identifies=False,
        ),
    ),
    sources=(SOURCE, INTERVAL),
    close=_close,
)
