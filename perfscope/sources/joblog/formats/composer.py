"""MosaicML Composer: a heading a batch, then one indented line a figure.

    [epoch=1][batch=5/5]:
             Train throughput/samples_per_sec: 2.7330
             Train time/train: 0.5249

Throughput is a mean over the last batches and appears once its window is full; ``time/*`` is in hours. The time of a
step is samples a batch over samples a second, or the inverse of ``batches_per_sec`` where samples are unknown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from perfscope.constants import GB, NS_PER_S
from perfscope.sources.joblog.log_format import Format, FormatState, StepTimeSource
from perfscope.sources.joblog.records import Record
from perfscope.sources.joblog.rules import LineMatch, Rule
from perfscope.sources.joblog.step_times import EpochCounter
from perfscope.sources.joblog.text import parse_number

SOURCE = "batch / samples_per_sec, a moving mean"

_FIGURES = (
    b"throughput/samples_per_sec",
    b"throughput/batches_per_sec",
    b"throughput/tokens_per_sec",
    b"throughput/device/tokens_per_sec",
    b"throughput/device/samples_per_sec",
    b"time/sample",
    b"time/batch",
    b"loss/train/total",
    b"memory/peak_reserved_mem",
    b"memory/peak_allocated_mem",
    b"trainer/device_train_microbatch_size",
)


@dataclass(slots=True)
class _Batch:
    """One batch whose figures are being printed."""

    step: int
    total: int
    label: bytes | None
    figures: dict[bytes, float] = field(default_factory=dict)


@dataclass(slots=True)
class _State(FormatState):
    """The batch that is being printed, its epochs, and the samples per batch as last stated."""

    batch: _Batch | None = None
    samples: int | None = None
    epochs: EpochCounter = field(default_factory=EpochCounter)


def _on_heading(state: _State, line: LineMatch) -> None:
    _close(state)
    total = int(line["length"] or 0)
    step = state.epochs.add(int(line["epoch"] or 1), int(line["step"]), total)
    state.batch = _Batch(step, total, line.label)


def _on_figure(state: _State, line: LineMatch) -> None:
    value = parse_number(line["value"])
    if state.batch is not None and value is not None and line["name"] in _FIGURES:
        state.batch.figures[line["name"]] = value


def _close(state: _State) -> None:
    """Turn the figures of the batch into a record."""
    batch, state.batch = state.batch, None
    if batch is None or not batch.figures:
        return
    figures, log = batch.figures, state.log
    record = Record(
        iteration=batch.step,
        samples=_samples_per_batch(state, figures),
        samples_per_s=figures.get(b"throughput/samples_per_sec"),
        tokens_per_s=figures.get(b"throughput/tokens_per_sec"),
        tokens_per_s_per_gpu=figures.get(b"throughput/device/tokens_per_sec"),
        loss=figures.get(b"loss/train/total"),
    )
    record.wall_ns = _wall_ns(record, figures.get(b"throughput/batches_per_sec"))
    log.add_memory(
        allocated=_bytes(figures.get(b"memory/peak_allocated_mem")),
        reserved=_bytes(figures.get(b"memory/peak_reserved_mem")),
    )
    if record.tokens_per_s and record.tokens_per_s_per_gpu:
        log.set_fact("gpus", round(record.tokens_per_s / record.tokens_per_s_per_gpu), "records")
    log.series_of(SOURCE).add(record, batch.label)
    if batch.total >= batch.step:
        log.set_fact("train_iterations", batch.total, "records")
    if b"trainer/device_train_microbatch_size" in figures:
        log.set_fact("mbs", int(figures[b"trainer/device_train_microbatch_size"]), "records")


def _samples_per_batch(state: _State, figures: dict[bytes, float]) -> int | None:
    """``time/sample`` and ``time/batch`` count what was done before this batch."""
    samples, batches = figures.get(b"time/sample"), figures.get(b"time/batch")
    if samples is not None and batches and samples % batches == 0:
        state.samples = int(samples / batches)
    return state.samples


def _wall_ns(record: Record, batches_per_s: float | None) -> int | None:
    if record.samples and record.samples_per_s:
        return round(record.samples / record.samples_per_s * NS_PER_S)
    return round(NS_PER_S / batches_per_s) if batches_per_s else None


def _bytes(gigabytes: float | None) -> float | None:
    return None if gigabytes is None else gigabytes * GB


_HEADING = Rule(
    b"[batch=",
    re.compile(
        rb"(?:\[epoch=(?P<epoch>\d{1,9})(?:/\d{1,9})?\])?\[batch=(?P<step>\d{1,15})(?:/(?P<length>\d{1,15}))?\]:"
    ),
    _on_heading,
    span=(40, 60),
)


FORMAT = Format(
    framework="composer",
    state=_State,
    rules=(
        _HEADING,
        Rule(b" Train ", re.compile(rb"\s Train (?P<name>[\w/]+): (?P<value>\S+)"), _on_figure, identifies=False),
    ),
    sources=(StepTimeSource(SOURCE),),
    close=_close,
)
