"""OneFlow's benchmarks: BERT, image classification, wide and deep.

BERT and CNN lines end in the time since 1970; their own throughput is a mean over an interval that starts at the first
line. Steps are timed by those stamps, as the benchmark's own script does. Wide and deep prints a latency, whose first
value is warm-up.
"""

from __future__ import annotations

import re

from perfscope.constants import NS_PER_MS, NS_PER_S
from perfscope.sources.joblog.draft import (
    Draft,
    Hit,
    Rule,
    label_of,
    number,
)
from perfscope.sources.joblog.series import Record
from perfscope.sources.joblog.stamps import add_stamped
from perfscope.tables.joblog import Disturbance

STAMPS = "time stamps of OneFlow's lines"
LATENCY = "OneFlow's latency"

_SETUP = {b"batch_size_per_device": "mbs", b"gpu_num_per_node": "gpus_per_node", b"num_nodes": "nodes"}


def _stamped(draft: Draft, hit: Hit) -> None:
    draft.evidence["oneflow"] += 1
    stamp = hit["stamp"].split(b".")
    fraction = (stamp[1] if len(stamp) > 1 else b"")[:9].ljust(9, b"0")
    stamp_ns = int(stamp[0]) * NS_PER_S + int(fraction)
    step = int(hit["step"])
    if "epoch" in hit.match.re.groupindex:
        step = draft.through_epochs(STAMPS, int(hit["epoch"]), step)
    record = Record(iteration=step, loss=number(hit["loss"]), samples_per_s=number(hit["speed"]))
    add_stamped(draft, STAMPS, hit, record, stamp_ns)


def _latency(draft: Draft, hit: Hit) -> None:
    draft.evidence["oneflow"] += 1
    latency = number(hit["latency"])
    if latency is None or latency <= 0:
        draft.unreadable += 1
        return
    record = Record(int(hit["step"]), round(latency * NS_PER_MS), loss=number(hit["loss"]))
    draft.of(LATENCY).add(record, label_of(hit.text, hit.line))


def _validation(draft: Draft, _hit: Hit) -> None:
    draft.disturb(Disturbance.EVALUATION)


def _setup(draft: Draft, hit: Hit) -> None:
    draft.note_number(_SETUP[hit[1]], hit[2], "log")


RULES = (
    Rule(
        b"step: ",
        re.compile(
            rb"step: (?P<step>\d+), total_loss: (?P<loss>[^,\s]+),.*? "
            rb"throughput: (?P<speed>\S+) (?P<stamp>\d{9,}(?:\.\d+)?)"
        ),
        _stamped,
    ),
    Rule(
        b"samples/s: ",
        re.compile(
            rb"epoch (?P<epoch>\d+), iter (?P<step>\d+), loss: (?P<loss>[^,\s]+),.*?"
            rb"samples/s: (?P<speed>\S+) (?P<stamp>\d{9,}(?:\.\d+)?)"
        ),
        _stamped,
    ),
    Rule(
        b"latency(ms): ",
        re.compile(rb"iter: (?P<step>\d+)/\d+, loss: (?P<loss>[^,\s]+),.*?latency\(ms\): (?P<latency>[^\s|]+)"),
        _latency,
    ),
    Rule(b"validation: epoch ", re.compile(rb"validation: epoch \d+, iter "), _validation),
    *(Rule(anchor, re.compile(rb"(?:^|:)\s*(" + anchor + rb") = (\d+)", re.MULTILINE), _setup) for anchor in _SETUP),
)
