"""DeepSpeed since 0.3: the lines that its engine prints under any framework.

``SamplesPerSec`` of 0.3, and ``RunningAvgSamplesPerSec`` today, is the mean since the third step, not the current
speed; the speed since the previous line is computed from two such means. It counts samples of the whole job. With
gradient accumulation some versions count micro-steps, so the figure is compared with every other source in the log.

The ``world_size`` of its configuration is the size of the data-parallel group.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from perfscope.constants import GIB, NS_PER_S
from perfscope.sources.joblog import timer_lines
from perfscope.sources.joblog.builder import JobLogBuilder
from perfscope.sources.joblog.log_format import (
    FormatState,
    LineMatch,
    LineRule,
    LogFormat,
    WriterRole,
    aside,
    counts,
    ignore_line,
    on_restart,
    uses_memory,
)
from perfscope.sources.joblog.records import Record
from perfscope.sources.joblog.step_times import are_alike
from perfscope.sources.joblog.text import only_integer, parse_number, parse_resolution
from perfscope.tables.joblog import Disturbance

#: The source of step times that come from the dates of the step lines.
STEPS = "dates of DeepSpeed's step lines"


@dataclass(slots=True)
class _State(FormatState):
    """The step and the running mean of the last line that prints one, and the largest rank and pipeline stage."""

    last_mean: tuple[int, float] | None = None
    largest_rank: int = 0
    largest_stage: int = 0


_SETTINGS = {
    b"train_batch_size": "gbs",
    b"train_micro_batch_size_per_gpu": "mbs",
    b"gradient_accumulation_steps": "gas",
    b"zero_optimization_stage": "zero_stage",
    b"world_size": "dp",
}
_PRECISIONS = {b"fp16_enabled": "fp16", b"float16_enabled": "fp16", b"bfloat16_enabled": "bf16"}
_COORDINATE = re.compile(rb"(pipe|data|model)=(\d+)")


def _on_setting(state: FormatState, line: LineMatch) -> None:
    if line[1] in _SETTINGS:
        state.log.set_count(_SETTINGS[line[1]], line[2], "deepspeed config")
    elif line[1] in _PRECISIONS and line[2].strip() == b"True":
        state.log.set_fact("precision", _PRECISIONS[line[1]], "deepspeed config")


def _on_stage(state: _State, line: LineMatch) -> None:
    state.log.set_count("parameters", line[3], "log")
    state.largest_rank = max(state.largest_rank, int(line[1]))
    state.largest_stage = max(state.largest_stage, int(line[2]))
    state.log.set_fact("gpus", state.largest_rank + 1, "deepspeed config")
    state.log.set_fact("pp", state.largest_stage + 1, "deepspeed config")


def _on_topology(state: FormatState, line: LineMatch) -> None:
    """``Using topology: {ProcessCoord(pipe=0, data=0): 0, ...}``: every rank's coordinates."""
    largest = {b"pipe": 0, b"data": 0, b"model": 0}
    for axis, index in _COORDINATE.findall(line[0]):
        largest[axis] = max(largest[axis], int(index))
    state.log.set_fact("gpus", line[0].count(b"ProcessCoord("), "log")
    for axis, name in ((b"pipe", "pp"), (b"data", "dp"), (b"model", "tp")):
        if axis != b"model" or b"model=" in line[0]:
            state.log.set_fact(name, largest[axis] + 1, "log")


def _on_micro_batches(state: FormatState, line: LineMatch) -> None:
    state.log.set_count("gas", line[1], "deepspeed config")
    state.log.set_count("mbs", line[2], "deepspeed config")


_SETUP_RULES: tuple[LineRule[_State], ...] = (
    LineRule(b"[config.py:", rb"\[config\.py:\d+:\w+\]\s+([A-Za-z_]\w*)[ .]+ (.*)", _on_setting),
    *(
        aside(b'"' + name + b'":', rb'"' + name + rb'":\s*([-+\d.eE]+)', counts(_SETTINGS[name], "deepspeed config"))
        for name in (b"train_batch_size", b"train_micro_batch_size_per_gpu", b"gradient_accumulation_steps")
    ),
    LineRule(
        b"UNIQUE_PARAMS=",
        rb"RANK=(\d{1,9}) STAGE=(\d{1,9}) [^\n]{0,300}?UNIQUE_PARAMS=(\d+)",
        _on_stage,
        begin=(b"RANK=",),
    ),
    LineRule(b"Using topology:", rb"Using topology: .*", _on_topology),
    LineRule(b"CONFIG: micro_batches=", rb"CONFIG: micro_batches=(\d+) micro_batch_size=(\d+)", _on_micro_batches),
    LineRule(b"dist_world_size=", rb"dist_world_size=(\d+)", counts("gpus")),
    LineRule(b"nnodes=", rb"launch\.py.*\bnnodes=(\d+)", counts("nodes"), begin=(b"launch.py",)),
)


_SAVED_STEP = re.compile(rb"global_step(\d+)")


def _on_save_begin(state: FormatState, line: LineMatch) -> None:
    """DeepSpeed prints no duration: it is from the first file's beginning to the last file's end."""
    path = line[1]
    step = _SAVED_STEP.search(path)
    iteration = int(step[1]) if step else None
    if not state.log.saves.is_last(iteration):
        state.log.saves.on_begin(iteration, path.decode("utf-8", "replace").strip() or None, line.timestamp_ns)
        state.log.on_disturbance(Disturbance.SAVE)


#: DeepSpeed divides by 2**30 and writes GB.
_ALLOCATED = uses_memory(GIB, "allocated")

_SAVES_RULES: tuple[LineRule[_State], ...] = (
    LineRule(b"Saving model checkpoint:", rb"Saving model checkpoint: (\S+)", _on_save_begin),
    aside(
        b"[Torch] Saved ",
        rb"\[Torch\] Saved (\S+)",
        lambda state, line: state.log.saves.on_file_written(line.timestamp_ns),
    ),
    aside(b"Max_MA ", rb"Max_MA ([\d.]+) GB", _ALLOCATED),
    aside(b"MaxMemAllocated=", rb"MaxMemAllocated=([\d.]+)\s*GB", _ALLOCATED),
)


THROUGHPUT = "batch / SamplesPerSec"
PIPELINE = "DeepSpeed's pipeline: iter time"

_UNTIMED_STEPS = 2


def _on_throughput(state: _State, line: LineMatch) -> None:
    step, mean = int(line["new"] or line["old"]), parse_number(line["mean"])
    current = parse_number(line["now"])
    if mean is None or mean <= 0:
        state.log.unreadable += 1
        return
    if current is None:
        current = _since_last(state, step, mean) if line["epoch"] in (b"", b"0") else mean
    state.log.series_of(THROUGHPUT).add(Record(iteration=step, samples_per_s=current), line.label)


def _since_last(state: _State, step: int, mean: float) -> float:
    """Samples a second since the line before: means m1 at step n1 and m2 at n2 count the steps n - 2."""
    last, state.last_mean = state.last_mean, (step, mean)
    if last is None or last[0] >= step or step <= _UNTIMED_STEPS:
        return mean
    before, mean_before = last
    spent = (step - _UNTIMED_STEPS) / mean - max(before - _UNTIMED_STEPS, 0) / mean_before
    return (step - before) / spent if spent > 0 else mean


def _on_pipeline_step(state: FormatState, line: LineMatch) -> None:
    seconds, speed = parse_number(line["seconds"]), parse_number(line["speed"])
    if seconds is None or seconds <= 0:
        state.log.unreadable += 1
        return
    record = Record(int(line["step"]), round(seconds * NS_PER_S), samples_per_s=speed, loss=parse_number(line["loss"]))
    if speed is not None and speed > 0:
        # Batch = time x speed, where the time's digits leave a single integer; the speed has more digits.
        batch = only_integer(seconds * speed, parse_resolution(line["seconds"]) / 2 * speed)
        if batch is not None:
            record.samples, record.wall_ns = batch, round(batch / speed * NS_PER_S)
            state.log.set_fact("gbs", batch, "records")
    state.log.series_of(PIPELINE).add(record, line.label)


def _on_step(state: _State, line: LineMatch) -> None:
    state.log.add_dated(STEPS, Record(iteration=int(line[1])), line.label, line.timestamp_ns)
    state.log.set_fact("skipped_total", int(line[2]), "log")


def _conclude(state: _State) -> None:
    """Make times of the throughput, and do not trust them where micro-steps may have been counted."""
    log = state.log
    if THROUGHPUT not in log.series:
        return
    batch = _find_global_batch(log)
    if batch is not None:
        log.series[THROUGHPUT].batch = batch
    if log.count("gas") != 1 and not _is_confirmed(log.median_times()):
        log.distrust(THROUGHPUT)


def _find_global_batch(log: JobLogBuilder) -> int | None:
    """Samples of a step: as stated, else from micro-batches; accumulation counts as 1 where it is not stated."""
    stated, micro = log.count("gbs"), log.count("mbs")
    if stated is not None or micro is None:
        return stated
    gpus, tensor, pipeline = log.count("gpus"), log.count("tp") or 1, log.count("pp") or 1
    replicas = log.count("dp") or (gpus // (tensor * pipeline) if gpus else None)
    return micro * replicas * (log.count("gas") or 1) if replicas else None


def _is_confirmed(median_times: dict[str, int]) -> bool:
    """Whether nothing else is timed, or something gives about the same time: the error would be the accumulation."""
    doubtful = median_times.pop(THROUGHPUT, 0)
    trusted = median_times.values()
    return not trusted or any(are_alike(time, doubtful) for time in trusted)


_STEP_RULES: tuple[LineRule[_State], ...] = (
    LineRule(
        b"SamplesPerSec=",
        rb"(?:global_step=(?P<new>\d{1,15})|\b(?P<epoch>\d{1,9})/(?P<old>\d{1,15})), "
        rb"(?:RunningAvg)?SamplesPerSec=(?P<mean>[^,\s]{1,60}+)"
        rb"(?:, {0,9}CurrSamplesPerSec=(?P<now>[^,\s]{1,60}+))?",
        _on_throughput,
        span=(50, 160),
    ),
    LineRule(
        b"iter time (s):",
        rb"steps: (?P<step>\d{1,15}) loss: (?P<loss>\S{1,40}+)[^\n]{0,300}? iter time \(s\): (?P<seconds>[^,\s]+)"
        rb"(?:,? samples/sec: (?P<speed>[^,\s]+))?",
        _on_pipeline_step,
        begin=(b"steps: ",),
    ),
    LineRule(b", skipped=", rb"\bstep=(\d{1,15}), skipped=(\d{1,15}), ", _on_step),
    LineRule(b"DeepSpeed info: version=", b"", on_restart),
    LineRule(b"[launch.py:", b"", ignore_line),
    LineRule(b"DeepSpeedEngine", b"", ignore_line),
    LineRule(b"Initializing torch distributed with backend", rb"init_distributed\]", ignore_line),
)

FORMAT = LogFormat(
    framework="deepspeed",
    state=_State,
    rules=(*_SETUP_RULES, *_SAVES_RULES, *timer_lines.DEEPSPEED_RULES, *_STEP_RULES),
    sources=(PIPELINE,),
    fallbacks=(THROUGHPUT, timer_lines.SOURCE, STEPS),
    close=_conclude,
    role=WriterRole.ENGINE,
)
