"""torchtitan's step line.

    [rank0]:[titan] 2025-06-16 22:31:04,970 - root - INFO - step: 210  loss:  6.0388  memory: 49.66GiB(52.28%) ...

``tps`` (``wps`` in 2024) is tokens a second and *device*, ``memory`` the largest reserved. The line holds no time: it
comes from the dates, over the steps between two lines, checkpoints and validation included. A line of validation looks
alike and is none. Some runs print every rank, unlabelled.
"""

from __future__ import annotations

import re
from math import prod

from perfscope.constants import GIB, NS_PER_S
from perfscope.sources.joblog.draft import (
    Draft,
    Hit,
    Rule,
    mention,
    number,
)
from perfscope.sources.joblog.series import Record
from perfscope.sources.joblog.stamps import add_stamped
from perfscope.tables.joblog import Disturbance, Save

SOURCE = "dates of torchtitan's step lines"

_PERCENT = 100
_SETUP = {
    b"local batch size": "mbs",
    b"global batch size": "gbs",
    b"gradient accumulation steps": "gas",
    b"sequence length": "seq_len",
    b"maximum context length": "seq_len",
    b"total steps": "train_iterations",
}
_SETTING = re.compile(rb"(" + b"|".join(_SETUP) + rb"):? (\d+)")
_TOKENS = re.compile(rb"(\d+) tokens per train step")
_SPLITS = {b"tp": "tp", b"pp": "pp", b"cp": "cp", b"ep": "ep"}
#: Expert parallelism lies across the other axes.
_NOT_DEVICES = (b"ep", b"etp")


def _step(draft: Draft, hit: Hit) -> None:
    draft.evidence["torchtitan"] += 1
    if hit["validate"]:
        draft.disturb(Disturbance.EVALUATION)
        return
    record = Record(
        iteration=int(hit["step"]),
        loss=number(hit["loss"]),
        tokens_per_s_per_gpu=number(hit["tps"]),
        tflops_per_gpu=number(hit["tflops"]),
    )
    reserved, percent = number(hit["memory"]), number(hit["percent"])
    if reserved is not None:
        draft.see_memory(reserved=reserved * GIB)
        if percent is not None and percent > 0:
            draft.note("memory_total_gib", round(reserved * _PERCENT / percent, 1), "records")
    add_stamped(draft, SOURCE, hit, record)


def _begin(draft: Draft, hit: Hit) -> None:
    draft.restart()
    _set_up(draft, hit)


def _set_up(draft: Draft, hit: Hit) -> None:
    draft.evidence["torchtitan"] += 1
    for key, value in _SETTING.findall(hit[0]):
        draft.note_number(_SETUP[key], value, "log")
    tokens, length = _TOKENS.search(hit[0]), draft.number("seq_len")
    if tokens and length and int(tokens[1]) % length == 0:
        draft.note("gbs", int(tokens[1]) // length, "log")


def _mesh(draft: Draft, hit: Hit) -> None:
    """``Building 2-D device mesh with ['dp_shard', 'tp'], [4, 2]``: their product is the number of devices."""
    names = re.findall(rb"'(\w+)'", hit["names"])
    _lay_out(draft, dict(zip(names, re.findall(rb"\d+", hit["sizes"]), strict=False)))


def _parallelism(draft: Draft, hit: Hit) -> None:
    """``Building device mesh with parallelism: pp=1, dp_replicate=1, dp_shard=8, cp=1, tp=1, ep=1``."""
    _lay_out(draft, dict(re.findall(rb"(\w+)=(\d+)", hit[0])))


def _lay_out(draft: Draft, sizes: dict[bytes, bytes]) -> None:
    draft.evidence["torchtitan"] += 1
    for name, size in sizes.items():
        if name in _SPLITS:
            draft.note_number(_SPLITS[name], size, "log")
    copies = [int(size) for name, size in sizes.items() if name.startswith(b"dp")]
    if copies:
        draft.note("dp", prod(copies), "log")
    draft.note("gpus", prod(int(size) for name, size in sizes.items() if name not in _NOT_DEVICES), "log")


def _checkpointing(draft: Draft, hit: Hit) -> None:
    draft.note("checkpointing", hit[1].decode(), "log")


def _saved(draft: Draft, hit: Hit) -> None:
    """The time until training goes on: of an asynchronous save it is the copy to the host alone."""
    seconds = number(hit["seconds"])
    if seconds is None or hit["background"]:
        return
    staged = hit["what"] == b"staging" or None
    draft.save(Save(None, round(seconds * NS_PER_S), "timer", None, asynchronous=staged))
    draft.disturb(Disturbance.SAVE)


_STEP = re.compile(
    rb"(?P<validate>validate )?\bstep:\s*(?P<step>\d+)\s+loss:\s*(?P<loss>\S+).*?"
    rb"(?:memory:\s*(?P<memory>[\d.]+)GiB(?:\((?P<percent>[\d.]+)%\))?\s+)?[tw]ps:\s*(?P<tps>[\d,]+)"
    rb"(?:\s+tflops:\s*(?P<tflops>[\d.,]+))?"
)

RULES = (
    Rule(b"  tps:", _STEP, _step),
    Rule(b"  wps:", _STEP, _step),
    Rule(b"Training starts at step", re.compile(rb"Training starts at step.*"), _begin),
    Rule(b"Trainer is initialized with", re.compile(rb"Trainer is initialized with.*"), _set_up),
    Rule(b"device mesh with", re.compile(rb"device mesh with (?P<names>\[[^\]]*\]), (?P<sizes>\[[^\]]*\])"), _mesh),
    Rule(b"device mesh with parallelism", re.compile(rb"device mesh with parallelism: .*"), _parallelism),
    Rule(
        b"activation checkpointing to the model",
        re.compile(rb"Applied (full|selective) activation checkpointing to the model"),
        _checkpointing,
    ),
    Rule(
        b"inish",
        re.compile(
            rb"[Ff]inish(?:ed)? (?P<what>saving|staging) the checkpoint(?P<background> in the background process)?"
            rb"[^\n]*?in (?P<seconds>[\d.]+) seconds"
        ),
        _saved,
    ),
    Rule(
        b"Last step checkpoint completed in",
        re.compile(rb"Last step checkpoint completed in (?P<what>)(?P<background>)(?P<seconds>[\d.]+)s"),
        _saved,
    ),
    Rule(b"[titan]", re.compile(rb"\[titan\]"), mention("torchtitan")),
    Rule(b"torchtitan", re.compile(rb"torchtitan"), mention("torchtitan")),
)
