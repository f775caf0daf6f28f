"""torchtitan's step line.

    [rank0]:[titan] 2025-06-16 22:31:04,970 - root - INFO - step: 210  loss:  6.0388  memory: 49.66GiB(52.28%) ...

``tps`` (``wps`` in 2024) is tokens/s per *device*, ``memory`` the largest reserved. The line states no time: the step
time is the time between the dates of two lines, divided by the steps between them, and includes checkpoints and
validation. The line of a validation looks similar, but is not a step line. In some runs every rank prints, unlabelled.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod

from perfscope.constants import GIB, NS_PER_S
from perfscope.sources.joblog.log_format import FormatState, LineMatch, LineRule, LogFormat, aside, counts, ignore_line
from perfscope.sources.joblog.records import Record
from perfscope.sources.joblog.text import parse_number, parse_resolution
from perfscope.tables.joblog import Disturbance, Save

SOURCE = "dates of torchtitan's step lines"

_SETTINGS = {
    b"local batch size": "mbs",
    b"global batch size": "gbs",
    b"gradient accumulation steps": "gas",
    b"sequence length": "seq_len",
    b"maximum context length": "seq_len",
    b"total steps": "train_iterations",
}
_SETTING = re.compile(rb"(" + b"|".join(_SETTINGS) + rb"):? (\d+)")
_TOKENS = re.compile(rb"(\d+) tokens per train step")
_SPLITS = {b"tp": "tp", b"pp": "pp", b"cp": "cp", b"ep": "ep"}
#: Expert parallelism lies across the other axes.
_NOT_DEVICES = (b"ep", b"etp")


@dataclass(slots=True)
class _State(FormatState):
    """The device memory that the last step line implies."""

    total_memory_gib: float | None = None


def _on_step(state: _State, line: LineMatch) -> None:
    log = state.log
    if line.text.endswith(b"validate ", 0, line.match.start()):
        log.on_disturbance(Disturbance.EVALUATION)
        return
    record = Record(
        iteration=int(line["step"]),
        loss=parse_number(line["loss"]),
        tokens_per_s_per_gpu=parse_number(line["tps"]),
        tflops_per_gpu=parse_number(line["tflops"]),
    )
    if record.tflops_per_gpu is not None:
        record.tflops_resolution = parse_resolution(line["tflops"])
        log.tflops_label = "tflops"
    reserved, percent = parse_number(line["memory"]), parse_number(line["percent"])
    if reserved is not None:
        log.add_memory(GIB, reserved=reserved)
        if percent is not None and percent > 0:
            state.total_memory_gib = round(reserved * 100 / percent, 1)
    log.set_mfu(line["mfu"])
    log.add_dated(SOURCE, record, line.label, line.timestamp_ns)


def _on_start(state: FormatState, line: LineMatch) -> None:
    state.log.on_restart()
    _on_settings(state, line)


def _on_settings(state: FormatState, line: LineMatch) -> None:
    log = state.log
    for key, value in _SETTING.findall(line[0]):
        log.set_count(_SETTINGS[key], value, "log")
    tokens, length = _TOKENS.search(line[0]), log.count("seq_len")
    if tokens and length and int(tokens[1]) % length == 0:
        log.set_fact("gbs", int(tokens[1]) // length, "log")


def _on_mesh(state: FormatState, line: LineMatch) -> None:
    """``Building 2-D device mesh with ['dp_shard', 'tp'], [4, 2]``: their product is the number of devices."""
    names = re.findall(rb"'(\w+)'", line["names"])
    _set_mesh(state, dict(zip(names, re.findall(rb"\d+", line["sizes"]), strict=False)))


def _on_parallelism(state: FormatState, line: LineMatch) -> None:
    """``Building device mesh with parallelism: pp=1, dp_replicate=1, dp_shard=8, cp=1, tp=1, ep=1``."""
    _set_mesh(state, dict(re.findall(rb"(\w+)=(\d+)", line[0])))


def _set_mesh(state: FormatState, sizes: dict[bytes, bytes]) -> None:
    log = state.log
    for name, size in sizes.items():
        if name in _SPLITS:
            log.set_count(_SPLITS[name], size, "log")
    copies = [int(size) for name, size in sizes.items() if name.startswith(b"dp")]
    if copies:
        log.set_fact("dp", prod(copies), "log")
    log.set_fact("gpus", prod(int(size) for name, size in sizes.items() if name not in _NOT_DEVICES), "log")


def _on_saved(state: FormatState, line: LineMatch) -> None:
    """The time until training continues, which for an asynchronous save is only that of the copy to the host."""
    seconds = parse_number(line["seconds"])
    if seconds is None or line["background"]:
        return
    is_staged = line["what"] == b"staging" or None
    state.log.saves.add(Save(None, round(seconds * NS_PER_S), "timer", None, asynchronous=is_staged))
    state.log.on_disturbance(Disturbance.SAVE)


def _close(state: _State) -> None:
    state.log.add_memory(GIB, total=state.total_memory_gib)


_STEP = re.compile(
    rb"step:\s{0,20}+(?P<step>\d{1,15}+)\s{1,20}+loss:\s{0,20}+(?P<loss>\S{1,40}+)[^\n]{0,300}?"
    rb"(?:memory:\s{0,20}+(?P<memory>[\d.]{1,20}+)GiB(?:\((?P<percent>[\d.]{1,20}+)%\))?\s{1,20}+)?"
    rb"[tw]ps:\s{0,20}+(?P<tps>[\d,]{1,20}+)(?:\s{1,20}+tflops:\s{0,20}+(?P<tflops>[\d.,]{1,20}+))?"
    rb"(?:\s{1,20}+mfu:\s{0,20}+(?P<mfu>[\d.]{1,10}+)%)?"
)

_RULES: tuple[LineRule[_State], ...] = (
    LineRule(b"  tps:", _STEP, _on_step, begin=(b"step:",)),
    LineRule(b"  wps:", _STEP, _on_step, begin=(b"step:",)),
    LineRule(b"Training starts at step", rb"Training starts at step.{0,600}", _on_start),
    LineRule(b"Trainer is initialized with", rb"Trainer is initialized with.{0,600}", _on_settings),
    LineRule(b"device mesh with", rb"device mesh with (?P<names>\[[^\]]*\]), (?P<sizes>\[[^\]]*\])", _on_mesh),
    LineRule(b"device mesh with parallelism", rb"device mesh with parallelism: .{0,600}", _on_parallelism),
    aside(
        b"activation checkpointing to the model",
        rb"Applied (full|selective) activation checkpointing to the model",
        lambda state, line: state.log.set_fact("checkpointing", line[1].decode(), "log"),
    ),
    aside(
        b"inish",
        rb"inish(?:ed)? (?P<what>saving|staging) the checkpoint(?P<background> in the background process)?"
        rb"[^\n]{0,200}?in (?P<seconds>[\d.]+) seconds",
        _on_saved,
        begin=(b"inish",),
    ),
    aside(
        b"Last step checkpoint completed in",
        rb"Last step checkpoint completed in (?P<what>)(?P<background>)(?P<seconds>[\d.]+)s",
        _on_saved,
    ),
    LineRule(b"[titan]", b"", ignore_line),
    LineRule(b"torchtitan", b"", ignore_line),
    aside(b"total parameters", rb"size: (?:\x1b\[\d+m)?([\d,]+) total parameters", counts("parameters")),
)


FORMAT = LogFormat(framework="torchtitan", state=_State, rules=_RULES, sources=(SOURCE,), close=_close)
