"""MosaicML Composer: a heading a batch, then one indented line a figure.

    [epoch=1][batch=5/5]:
             Train throughput/samples_per_sec: 2.7330
             Train time/train: 0.5249

Throughput is a mean over the last batches and appears once its window is full; ``time/*`` is in hours. The time of a
step is samples a batch over samples a second, or the inverse of ``batches_per_sec`` where samples are unknown.
"""

from __future__ import annotations

import re

from perfscope.constants import GB, NS_PER_S
from perfscope.sources.joblog.draft import (
    Draft,
    Hit,
    Rule,
    number,
)
from perfscope.sources.joblog.series import Record

SOURCE = "batch / samples_per_sec, a moving mean"

_OPEN = "composer batch"
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


def _heading(draft: Draft, hit: Hit) -> None:
    draft.evidence["composer"] += 1
    close(draft)
    total = int(hit["total"] or 0)
    step = draft.through_epochs(SOURCE, int(hit["epoch"] or 1), int(hit["step"]), total)
    draft.scratch[_OPEN] = {b"step": float(step), b"total": float(total)}


def _figure(draft: Draft, hit: Hit) -> None:
    batch = draft.scratch.get(_OPEN)
    value = number(hit["value"])
    if isinstance(batch, dict) and value is not None and hit["name"] in _FIGURES:
        batch[hit["name"]] = value


def close(draft: Draft) -> None:
    """Turn the figures of one batch into a record."""
    batch = draft.scratch.pop(_OPEN, None)
    if not isinstance(batch, dict) or len(batch) <= len((b"step", b"total")):
        return
    step = int(batch[b"step"])
    record = Record(
        iteration=step,
        samples=_samples_a_batch(draft, batch),
        samples_per_s=batch.get(b"throughput/samples_per_sec"),
        tokens_per_s=batch.get(b"throughput/tokens_per_sec"),
        tokens_per_s_per_gpu=batch.get(b"throughput/device/tokens_per_sec"),
        loss=batch.get(b"loss/train/total"),
    )
    record.wall_ns = _wall_ns(record, batch.get(b"throughput/batches_per_sec"))
    draft.see_memory(
        allocated=_bytes(batch.get(b"memory/peak_allocated_mem")),
        reserved=_bytes(batch.get(b"memory/peak_reserved_mem")),
    )
    _note_devices(draft, record)
    if draft.of(SOURCE).add(record) and batch[b"total"] >= step:
        draft.note("train_iterations", int(batch[b"total"]), "records")
    if b"trainer/device_train_microbatch_size" in batch:
        draft.note("mbs", int(batch[b"trainer/device_train_microbatch_size"]), "records")


def _samples_a_batch(draft: Draft, batch: dict[bytes, float]) -> int | None:
    """``time/sample`` and ``time/batch`` count what was done before this batch."""
    samples, batches = batch.get(b"time/sample"), batch.get(b"time/batch")
    if samples is None or not batches or samples % batches:
        known = draft.scratch.get("composer samples")
        return known if isinstance(known, int) else None
    draft.scratch["composer samples"] = int(samples / batches)
    return int(samples / batches)


def _wall_ns(record: Record, batches_per_s: float | None) -> int | None:
    if record.samples and record.samples_per_s:
        return round(record.samples / record.samples_per_s * NS_PER_S)
    return round(NS_PER_S / batches_per_s) if batches_per_s else None


def _note_devices(draft: Draft, record: Record) -> None:
    if record.tokens_per_s and record.tokens_per_s_per_gpu:
        draft.note("gpus", round(record.tokens_per_s / record.tokens_per_s_per_gpu), "records")


def _bytes(gigabytes: float | None) -> float | None:
    return None if gigabytes is None else gigabytes * GB


RULES = (
    Rule(
        b"[batch=",
        re.compile(rb"(?:\[epoch=(?P<epoch>\d+)(?:/\d+)?\])?\[batch=(?P<step>\d+)(?:/(?P<total>\d+))?\]:"),
        _heading,
    ),
    Rule(b" Train ", re.compile(rb"\s Train (?P<name>[\w/]+): (?P<value>\S+)"), _figure),
)
