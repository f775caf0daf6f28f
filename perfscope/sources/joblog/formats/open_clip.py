"""OpenCLIP: a line every 100 batches.

    2023-06-29,15:45:36 | INFO | Train Epoch: 0 [  6464/109468 (3%)] Loss: 0.97 (1.02) Data (t): 0.158 Batch ...
    36.0876/s LR: 0.000001 Logit Scale: 99.995

``Batch (t)`` is the mean since the line before, loading included; samples/s is that of the last batch alone and is not
used. The brackets count samples of the whole job: an epoch's first line comes after one batch, which is the global
one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from perfscope.constants import NS_PER_S
from perfscope.sources.joblog.log_format import FormatState, LineMatch, LineRule, LogFormat
from perfscope.sources.joblog.step_times import EpochCounter
from perfscope.sources.joblog.text import parse_number

SOURCE = "OpenCLIP's mean time of a batch"

_LOSS = re.compile(rb"(?<![\w_])(?:Loss|loss): ([\d.eE+-]{1,20})")


@dataclass(slots=True)
class _State(FormatState):
    """The global batch, and the batches over all epochs."""

    batch: int | None = None
    epoch: int | None = None
    epochs: EpochCounter = field(default_factory=EpochCounter)


def _on_batch(state: _State, line: LineMatch) -> None:
    loss = _LOSS.search(line["cells"])
    record = state.log.timed(line["seconds"], NS_PER_S, loss=parse_number(loss[1]) if loss else None)
    if record is None:
        return
    epoch, samples, total = int(line["epoch"]), int(line["samples"]), int(line["total"])
    if epoch != state.epoch and samples > 0 and line["percent"] == b"0":
        state.batch = samples
    state.epoch = epoch
    if state.batch and samples % state.batch == 0:
        record.iteration = state.epochs.add(epoch, samples // state.batch, total // state.batch)
        record.samples = state.batch
        state.log.set_fact("gbs", state.batch, "records")
    state.log.add(SOURCE, record, line.label, expects_gaps=True)  # an epoch's first line is that of its first batch


FORMAT = LogFormat(
    framework="open_clip",
    state=_State,
    rules=(
        LineRule(
            b"Batch (t): ",
            rb"Train Epoch: (?P<epoch>\d{1,6}) \[ {0,12}(?P<samples>\d{1,15})/(?P<total>\d{1,15}) "
            rb"\((?P<percent>\d{1,3})%\)\](?P<cells>[^\n]{0,600}?Batch \(t\): (?P<seconds>[\d.]{1,20})[^\n]{0,600})",
            _on_batch,
            begin=(b"Train Epoch: ",),
        ),
    ),
    sources=(SOURCE,),
)
