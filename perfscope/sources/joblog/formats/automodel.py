"""NeMo Automodel: a line a step, counted from 0.

    2026-08-10 15:55:20 | INFO | root | step 9 | epoch 0 | loss 0.6974 | grad_norm 1.5436 | lr 1.00e-05 | mem ...
    tps 11278.56(1409.82/gpu) | num_label_tokens 21541

The line states no time, and its tokens include padding that it does not count. Step times follow from the dates, whole
seconds, and include evaluations and saves; ``tps`` is tokens a second of the job and of a GPU.
"""

from __future__ import annotations

from copy import copy

from perfscope.constants import GIB, NS_PER_S
from perfscope.sources.joblog.log_format import FormatState, LineMatch, LineRule, LogFormat, aside, disturbs
from perfscope.sources.joblog.records import Record
from perfscope.sources.joblog.text import only_integer, parse_number
from perfscope.tables.joblog import Disturbance

DATES = "dates of Automodel's lines"
SPEED = "Automodel's tps"


def _on_step(state: FormatState, line: LineMatch) -> None:
    log, step, stamp_ns = state.log, int(line["step"]) + 1, line.timestamp_ns
    total, single = parse_number(line["total"]), parse_number(line["single"])
    record = Record(step, tokens_per_s=total, tokens_per_s_per_gpu=single, loss=parse_number(line["loss"]))
    log.add(SPEED, record, line.label, clock_runs_on=True)
    log.add_memory(GIB, allocated=parse_number(line["memory"]))
    if total and single:
        gpus = only_integer(total / single, total / single * (0.005 / total + 0.005 / single))
        if gpus is not None:
            log.set_fact("gpus", gpus, "records")
    if stamp_ns is not None:
        log.clock(DATES).add(copy(record), stamp_ns, NS_PER_S, label=line.label)


FORMAT = LogFormat(
    framework="nemo-automodel",
    state=FormatState,
    rules=(
        LineRule(
            b"/gpu)",
            rb"\bstep (?P<step>\d{1,9}) \| epoch \d{1,6} \| loss (?P<loss>[^\s|]{1,20}) \|[^\n]{0,80}? mem "
            rb"(?P<memory>[\d.]{1,12}) GiB \| tps (?P<total>[\d.]{1,20})\((?P<single>[\d.]{1,20})/gpu\)",
            _on_step,
            begin=(b"step ",),
        ),
        aside(b"[val] ", rb"\[val\] (?:name|step)", disturbs(Disturbance.EVALUATION)),
    ),
    sources=(DATES, SPEED),
)
