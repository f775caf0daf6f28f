"""MLPerf Training: one JSON object an event, in the log of any framework.

    :::MLLOG {"namespace": "", "time_ms": 1759859525333, "event_type": "POINT_IN_TIME", "key": "tracked_stats",
    "value": {"train_step_time": 2.2154, "reduced_train_loss": 7.73}, "metadata": {"step": 1.0, "samples_count": 2560}}

A step time with a loss, or of GPT-3, is of one step. Any other, and a throughput, is a mean over the block
of steps that the next ``block_start`` or ``run_stop`` ends. ``samples_count``, or in older rounds ``step``, counts
samples; those of GPT-3 count tokens. ``submission_platform`` states servers and, by its names, their GPUs. The score is
the time from ``run_start`` to ``run_stop``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from perfscope.constants import MS_PER_S, NS_PER_S
from perfscope.models.hardware import read_platform
from perfscope.models.parameter_counts import total_parameters
from perfscope.sources.joblog.log_format import FormatState, LineMatch, LineRule, LogFormat
from perfscope.sources.joblog.records import LARGEST_INTEGER, Record
from perfscope.sources.joblog.text import LARGEST
from perfscope.sources.models.presets import find_preset

STEP = "MLPerf's time of one step"
BLOCK = "MLPerf's mean step time of a block"
THROUGHPUT = "batch / MLPerf's throughput of a block"

_SETTINGS = {
    "global_batch_size": "gbs",
    "gradient_accumulation_steps": "gas",
    "max_sequence_length": "seq_len",
    "max_steps": "train_iterations",
}
#: The models of benchmarks, as presets name them.
_MODELS = {
    "llama31_405b": "llama3-405b",
    "llama31_8b": "llama3-8b",
    "llama2_70b_lora": "llama2-70b",
    "gpt3": "gpt3-175b",
}


#: The data of the LoRA benchmark is packed into sequences of this length: mlcommons/training_results_v5.0,
#: AMD/benchmarks/llama2_70b_lora/implementations/MI300X_EPYC_9575F_pytorch/README.md.
_PACKED_TOKENS = 8192


class _Event(msgspec.Struct):
    """One event."""

    key: str
    metadata: dict[str, Any]
    value: Any = None
    time_ms: Any = None


@dataclass(slots=True)
class _State(FormatState):
    """By rank, the record of a block that has not ended; when the run began."""

    blocks: dict[bytes | None, tuple[str, Record]] = field(default_factory=dict)
    began_ms: int | None = None


def _on_event(state: _State, line: LineMatch) -> None:
    try:
        event = msgspec.json.decode(line[1], type=_Event)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return
    if event.key in _SETTINGS:
        count = _count(event.value)
        if count is not None:
            state.log.set_fact(_SETTINGS[event.key], count, "log")
    elif event.key in ("block_start", "run_stop"):
        _end_block(state, line.label, event.metadata)
    if event.key == "tracked_stats" and isinstance(event.value, dict):
        _on_stats(state, line.label, event.value, event.metadata)
    elif event.key == "throughput":
        _on_stats(state, line.label, {event.key: event.value}, event.metadata)
    elif event.key in _HANDLERS:
        _HANDLERS[event.key](state, event)


def _on_evaluation(state: _State, event: _Event) -> None:
    if not state.log.has_fact("first_evaluation"):
        _set_number(state, "first_evaluation", event.value)
    _set_number(state, "last_evaluation", event.value)


def _on_platform(state: _State, event: _Event) -> None:
    for name, stated in read_platform(str(event.value))._asdict().items():
        if stated is not None:
            state.log.set_fact(name, stated, "log")


def _on_benchmark(state: _State, event: _Event) -> None:
    name = _MODELS.get(str(event.value), "")
    preset = find_preset(name)
    if preset is not None:
        state.log.set_fact("model", name, "log")
        state.log.set_fact("parameters", total_parameters(preset.transformer), "log")
    if str(event.value).endswith("_lora"):
        state.log.set_fact("trained", "lora", "log")
        state.log.set_fact("seq_len", _PACKED_TOKENS, "log")


def _on_start(state: _State, event: _Event) -> None:
    state.began_ms = _count(event.time_ms)


def _on_stop(state: _State, event: _Event) -> None:
    log, ended = state.log, _count(event.time_ms)
    if event.metadata.get("status") != "success":
        log.add_remark("target-missed", "the run ended without reaching its target quality")
    else:
        log.set_fact("finished_runs", 1, "log")
    trained = _count(event.metadata.get("step")) or _number_of(state, event.metadata)
    if trained is not None:
        log.set_fact("run_iterations", trained, "log")
    if state.began_ms is not None and ended is not None and ended > state.began_ms:
        log.set_fact("run_s", (ended - state.began_ms) / MS_PER_S, "log")


_HANDLERS: dict[str, Callable[[_State, _Event], None]] = {
    "submission_platform": _on_platform,
    "submission_benchmark": _on_benchmark,
    "eval_accuracy": _on_evaluation,
    "target_accuracy": lambda state, event: _set_number(state, "target_evaluation", event.value),
    "run_start": _on_start,
    "run_stop": _on_stop,
}


def _on_stats(state: _State, label: bytes | None, stats: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
    _set_number(state, "warmup_s", stats.get("warmup_time"))
    seconds = _number(stats.get("train_step_time"))
    of_gpt3 = _number(stats.get("train_step_timing", stats.get("train_step_timing in s")))
    loss, speed = _number(stats.get("reduced_train_loss")), _number(stats.get("throughput"))
    if of_gpt3 or (seconds and "reduced_train_loss" in stats):
        record = Record(wall_ns=round((of_gpt3 or seconds or 0) * NS_PER_S), loss=loss)
        record.iteration = _number_of(state, metadata, is_in_tokens=of_gpt3 is not None)
        state.log.add(STEP, record, label, stated_interval=1)
    elif seconds or speed:
        record = Record(wall_ns=round(seconds * NS_PER_S) if seconds else None, samples_per_s=speed)
        block = BLOCK if seconds else THROUGHPUT, record
        if state.blocks.get(label) != block:  # BERT logs it twice
            _end_block(state, label, {})
            state.blocks[label] = block


def _end_block(state: _State, label: bytes | None, metadata: Mapping[str, Any]) -> None:
    """Give the record of a block the number of its last step, which the next event states."""
    source, record = state.blocks.pop(label, ("", None))
    if record is not None:
        record.iteration = _count(metadata.get("step")) or _number_of(state, metadata)
        state.log.add(source, record, label, covers_gaps=record.iteration is not None)


def _number_of(state: _State, metadata: Mapping[str, Any], *, is_in_tokens: bool = False) -> int | None:
    """The number of a step by the samples or tokens that the job has trained on; None where they are no whole steps."""
    trained = _count(metadata.get("samples_count", metadata.get("step")))
    length = state.log.count("seq_len") if is_in_tokens else 1
    size = (state.log.count("gbs") or 0) * (length or 0)
    return trained // size if trained and size and trained % size == 0 else None


def _number(value: object) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < LARGEST
    return float(value) if is_number else None  # type: ignore[arg-type]


def _count(value: object) -> int | None:
    number = _number(value)
    return int(number) if number is not None and number == int(number) and number <= LARGEST_INTEGER else None


def _set_number(state: _State, name: str, value: object) -> None:
    number = _number(value)
    if number is not None:
        state.log.set_fact(name, number, "log")


def _close(state: _State) -> None:
    log = state.log
    for label in tuple(state.blocks):
        _end_block(state, label, {})
    if STEP in log.series:  # blocks contain the slow first step
        log.series = {STEP: log.series[STEP]}
    if THROUGHPUT in log.series:
        log.series[THROUGHPUT].batch = log.count("gbs")
    if any(source in log.series for source in (STEP, BLOCK, THROUGHPUT)):
        log.set_fact("unnumbered_runs", 1, "records")


FORMAT = LogFormat(
    framework="mlperf",
    state=_State,
    rules=(
        LineRule(
            b':::MLLOG {"namespace": ',
            rb':::MLLOG (\{"namespace": "[^"\n]{0,40}", "time_ms": [^\n]{1,4000}?\}\})',
            _on_event,
            begin=(b':::MLLOG {"namespace": ',),
        ),
    ),
    sources=(STEP, BLOCK, THROUGHPUT),
    close=_close,
)
