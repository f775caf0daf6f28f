"""MosaicML Composer: a heading a batch, then one indented line a figure.

    [epoch=1][batch=5/5]:
             Train throughput/samples_per_sec: 2.7330
             Train time/train: 0.5249

Throughput is a mean over the last batches and appears once its window is full; ``time/*`` is in hours. The time of a
step is samples a batch over samples a second, or the inverse of ``batches_per_sec`` where samples are unknown.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from perfscope.constants import GB, NS_PER_S
from perfscope.sources.joblog.log_format import Format, FormatState, LineMatch, Rule
from perfscope.sources.joblog.records import Record
from perfscope.sources.joblog.step_times import EpochCounter
from perfscope.sources.joblog.text import parse_number

SOURCE = "batch / samples_per_sec, a moving mean"

_FIGURES = {
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
}


@dataclass(slots=True)
class _State(FormatState):
    """The heading that was printed last, its figures, the epochs, and the samples per batch as last stated."""

    heading: LineMatch | None = None
    figures: dict[bytes, float] = field(default_factory=dict)
    samples: int | None = None
    epochs: EpochCounter = field(default_factory=EpochCounter)


def _on_heading(state: _State, line: LineMatch) -> None:
    _close(state)
    state.heading = line


def _on_figure(state: _State, line: LineMatch) -> None:
    value = parse_number(line["value"])
    if value is not None and line["name"] in _FIGURES:
        state.figures[line["name"]] = value


def _close(state: _State) -> None:
    """Turn the figures of the batch into a record."""
    line, figures, log = state.heading, state.figures, state.log
    state.heading, state.figures = None, {}
    if line is None:
        return
    total = int(line["length"] or 0)
    step = state.epochs.add(int(line["epoch"] or 1), int(line["step"]), total)
    if not figures:
        return
    samples, batches = figures.get(b"time/sample"), figures.get(b"time/batch")  # before this batch
    if samples is not None and batches and samples % batches == 0:
        state.samples = int(samples / batches)
    record = Record(
        iteration=step,
        samples=state.samples,
        samples_per_s=figures.get(b"throughput/samples_per_sec"),
        tokens_per_s=figures.get(b"throughput/tokens_per_sec"),
        tokens_per_s_per_gpu=figures.get(b"throughput/device/tokens_per_sec"),
        loss=figures.get(b"loss/train/total"),
    )
    batches_per_s = figures.get(b"throughput/batches_per_sec")
    if record.samples and record.samples_per_s:
        record.wall_ns = round(record.samples / record.samples_per_s * NS_PER_S)
    elif batches_per_s:
        record.wall_ns = round(NS_PER_S / batches_per_s)
    allocated, reserved = figures.get(b"memory/peak_allocated_mem"), figures.get(b"memory/peak_reserved_mem")
    log.add_memory(GB, allocated=allocated, reserved=reserved)
    if record.tokens_per_s and record.tokens_per_s_per_gpu:
        log.set_fact("gpus", round(record.tokens_per_s / record.tokens_per_s_per_gpu), "records")
    log.add(SOURCE, record, line)
    if total >= step:
        log.set_fact("train_iterations", total, "records")
    if b"trainer/device_train_microbatch_size" in figures:
        log.set_fact("mbs", int(figures[b"trainer/device_train_microbatch_size"]), "records")


FORMAT = Format(
    framework="composer",
    state=_State,
    rules=(
        Rule(
            b"[batch=",
            rb"(?:\[epoch=(?P<epoch>\d{1,9})(?:/\d{1,9})?\])?\[batch=(?P<step>\d{1,15})(?:/(?P<length>\d{1,15}))?\]:",
            _on_heading,
            span=(40, 60),
        ),
        Rule(b" Train ", rb"\s Train (?P<name>[\w/]+): (?P<value>\S+)", _on_figure, identifies=False),
    ),
    sources=(SOURCE,),
    close=_close,
)
