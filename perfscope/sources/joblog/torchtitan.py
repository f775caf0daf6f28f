"""torchtitan's step line.

    [rank0]:[titan] 2025-06-16 22:31:04,970 - root - INFO - step: 210  loss:  6.0388  memory: 49.66GiB(52.28%) ...

``tps`` is tokens a second and *device*, ``memory`` the largest reserved. The line holds no time: it comes from the
dates, over the steps between two lines, checkpoints and validation included. Some runs print every rank, unlabelled.
"""

from __future__ import annotations

import re

from perfscope.sources.joblog.draft import GIB, Draft, Hit, Rule, mention, number
from perfscope.sources.joblog.series import Record
from perfscope.sources.joblog.stamps import add_stamped

SOURCE = "dates of torchtitan's step lines"

_PERCENT = 100
_SETUP = {
    b"local batch size": "mbs",
    b"global batch size": "gbs",
    b"sequence length": "seq_len",
    b"total steps": "train_iterations",
}


def _step(draft: Draft, hit: Hit) -> None:
    draft.evidence["torchtitan"] += 1
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
    draft.evidence["torchtitan"] += 1
    draft.restart()
    for key, value in re.findall(rb"(local batch size|global batch size|sequence length|total steps):? (\d+)", hit[0]):
        draft.note_number(_SETUP[key], value, "log")


def _mesh(draft: Draft, hit: Hit) -> None:
    """``Building 2-D device mesh with ['dp_shard', 'tp'], [4, 2]``: their product is the number of devices."""
    draft.evidence["torchtitan"] += 1
    devices = 1
    for name, size in zip(re.findall(rb"'(\w+)'", hit[1]), re.findall(rb"\d+", hit[2]), strict=False):
        devices *= int(size)
        if name in (b"tp", b"pp", b"cp"):
            draft.note_number(name.decode(), size, "log")
    draft.note("gpus", devices, "log")


RULES = (
    Rule(
        b"  tps:",
        re.compile(
            rb"step:\s*(?P<step>\d+)\s+loss:\s*(?P<loss>\S+).*?"
            rb"(?:memory:\s*(?P<memory>[\d.]+)GiB(?:\((?P<percent>[\d.]+)%\))?\s+)?tps:\s*(?P<tps>[\d,]+)"
            rb"(?:\s+tflops:\s*(?P<tflops>[\d.,]+))?"
        ),
        _step,
    ),
    Rule(b"Training starts at step", re.compile(rb"Training starts at step.*"), _begin),
    Rule(b"device mesh with", re.compile(rb"device mesh with (\[[^\]]*\]), (\[[^\]]*\])"), _mesh),
    Rule(b"[titan]", re.compile(rb"\[titan\]"), mention("torchtitan")),
    Rule(b"torchtitan", re.compile(rb"torchtitan"), mention("torchtitan")),
)
