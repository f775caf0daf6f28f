"""DeepSpeed's set-up: its configuration, its launcher and its pipeline stages.

The ``world_size`` of the configuration is the size of the data-parallel group.
"""

from __future__ import annotations

import re

from perfscope.sources.joblog.formats.deepspeed.state import DeepSpeedState
from perfscope.sources.joblog.log_format import FormatState
from perfscope.sources.joblog.rules import LineMatch, Rule

_SETTINGS = {
    b"train_batch_size": "gbs",
    b"train_micro_batch_size_per_gpu": "mbs",
    b"gradient_accumulation_steps": "gas",
    b"zero_optimization_stage": "zero_stage",
    b"steps_per_print": "steps_per_print",
    b"world_size": "dp",
}
_PRECISIONS = {b"fp16_enabled": "fp16", b"float16_enabled": "fp16", b"bfloat16_enabled": "bf16"}
_COORDINATE = re.compile(rb"(pipe|data|model)=(\d+)")


def _on_setting(state: FormatState, line: LineMatch) -> None:
    if line[1] in _SETTINGS:
        state.log.set_count(_SETTINGS[line[1]], line[2], "deepspeed config")
    elif line[1] in _PRECISIONS and line[2].strip() == b"True":
        state.log.set_fact("precision", _PRECISIONS[line[1]], "deepspeed config")


def _on_json_setting(state: FormatState, line: LineMatch) -> None:
    state.log.set_count(_SETTINGS[line[1]], line[2], "deepspeed config")


def _on_stage(state: DeepSpeedState, line: LineMatch) -> None:
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


def _on_world_size(state: FormatState, line: LineMatch) -> None:
    state.log.set_count("gpus", line[1], "log")


def _on_nodes(state: FormatState, line: LineMatch) -> None:
    state.log.set_count("nodes", line[1], "log")


RULES: tuple[Rule[DeepSpeedState], ...] = (
    Rule(b"[config.py:", re.compile(rb"\[config\.py:\d+:\w+\]\s+([A-Za-z_]\w*)[ .]+ (.*)"), _on_setting),
    *(
        Rule(
            b'"' + name + b'":',
            re.compile(rb'"(' + name + rb')":\s*([-+\d.eE]+)'),
            _on_json_setting,
            identifies=False,
        )
        for name in (b"train_batch_size", b"train_micro_batch_size_per_gpu", b"gradient_accumulation_steps")
    ),
    Rule(
        b"UNIQUE_PARAMS=",
        re.compile(rb"RANK=(\d{1,9}) STAGE=(\d{1,9}) [^\n]{0,300}?UNIQUE_PARAMS=(\d+)"),
        _on_stage,
        begin=(b"RANK=",),
    ),
    Rule(b"Using topology:", re.compile(rb"Using topology: .*"), _on_topology),
    Rule(
        b"CONFIG: micro_batches=", re.compile(rb"CONFIG: micro_batches=(\d+) micro_batch_size=(\d+)"), _on_micro_batches
    ),
    Rule(b"dist_world_size=", re.compile(rb"dist_world_size=(\d+)"), _on_world_size),
    Rule(b"nnodes=", re.compile(rb"launch\.py.*\bnnodes=(\d+)"), _on_nodes, begin=(b"launch.py",)),
)
