"""nanotron: a line a logged iteration, every figure with three digits.

    [INFO|DP=0|PP=0|TP=0]: iteration: 991 / 1000 | consumed_tokens: 634K | elapsed_time_per_iteration_ms: 45 | ...

The time is that of the one iteration; ``time_per_iteration_ms`` since 2025, with ``global_batch_size`` in tokens,
which was in sequences before. ``K`` is 1,000, ``G`` and ``B`` are 10**9.
"""

from __future__ import annotations

import re

from perfscope.constants import NS_PER_MS
from perfscope.sources.joblog.log_format import FormatState, LineMatch, LineRule, LogFormat
from perfscope.sources.joblog.records import Record
from perfscope.sources.joblog.text import only_integer, parse_number

SOURCE = "nanotron's time of one iteration"

_UNITS = {b"K": 3, b"M": 6, b"G": 9, b"B": 9, b"T": 12}
_CELL = re.compile(rb"\| (\w{1,40}): ([\d.eE+-]{1,20}[KMGBTPE]?)(?=\s|$)")
_DIGITS = 3


def _on_iteration(state: FormatState, line: LineMatch) -> None:
    cells = dict(_CELL.findall(line["cells"]))
    text = cells.get(b"elapsed_time_per_iteration_ms") or cells.get(b"time_per_iteration_ms") or b""
    time_ms = _parse(text)
    if time_ms is None or time_ms <= 0:
        state.log.unreadable += 1
        return
    record = Record(
        iteration=int(line["step"]),
        wall_ns=round(time_ms * NS_PER_MS),
        tokens_per_s=_parse(cells.get(b"tokens_per_sec", b"")),
        tokens_per_s_per_gpu=_parse(cells.get(b"tokens_per_sec_per_gpu", b"")),
        tflops_per_gpu=_parse(cells.get(b"model_tflops_per_gpu", b"")),
        loss=_parse(cells.get(b"lm_loss", b"")),
        wall_resolution_ns=round(_resolution(time_ms) * NS_PER_MS),
    )
    if record.tflops_per_gpu is not None:
        record.tflops_resolution = _resolution(record.tflops_per_gpu)
        state.log.tflops_label = "model_tflops_per_gpu"
    state.log.add(SOURCE, record, line.label, stated_interval=1)
    state.log.set_count("train_iterations", line["total"], "records")
    batch = cells.get(b"global_batch_size", b"")
    if b"elapsed_time_per_iteration_ms" in cells and batch.isdigit():
        state.log.set_count("gbs", batch, "records")
    _set_gpus(state, record)
    state.log.add_memory(
        allocated=_parse(cells.get(b"cuda_max_memory_allocated", b"")),
        reserved=_parse(cells.get(b"cuda_max_memory_reserved", b"")),
    )


def _set_gpus(state: FormatState, record: Record) -> None:
    """Tokens/s over tokens/s of a GPU, where three digits leave a single integer."""
    total, single = record.tokens_per_s, record.tokens_per_s_per_gpu
    if not total or not single:
        return
    quotient = total / single
    gpus = only_integer(quotient, quotient * (_resolution(total) / total + _resolution(single) / single) / 2)
    if gpus is not None:
        state.log.set_fact("gpus", gpus, "records")


def _parse(text: bytes) -> float | None:
    """A number with a unit of 1,000, as ``85.8G``."""
    unit = _UNITS.get(text[-1:])
    if unit is None:
        return parse_number(text) if text else None
    value = parse_number(text[:-1])
    return None if value is None else value * 10.0**unit


def _resolution(value: float) -> float:
    """What the last of three digits stands for."""
    return float(10.0 ** (len(str(int(abs(value)))) - _DIGITS)) if abs(value) >= 1 else abs(value) * 10.0**-_DIGITS


FORMAT = LogFormat(
    framework="nanotron",
    state=FormatState,
    rules=(
        LineRule(
            b"time_per_iteration_ms: ",
            rb"\]: iteration: (?P<step>\d{1,12}) / (?P<total>\d{1,12}) (?P<cells>\| consumed_[^\n]{0,2000})",
            _on_iteration,
            begin=(b"]: iteration: ",),
        ),
    ),
    sources=(SOURCE,),
)
