"""Which files of a folder belong together, by their names: the step, the epoch or the mark that they share.

``model_epoch1.pt`` and ``optimizer_epoch1.pt`` are one checkpoint, ``model_epoch2.pt`` is the next one of the series,
and ``best.ckpt`` and ``last.ckpt`` are checkpoints of their own. ``resnet50.pth`` and ``bert.pth`` are two models.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_ENDING = re.compile(r"\.(?:pt|pth|bin|ckpt|safetensors|tar|pkl)$")
_SHARD = re.compile(r"world[-_]?size[-_]?\d+|[-_.]\d+[-_]of[-_]\d+|consolidated\.\d+|(?:mp_)?rank[-_]?\d+(?:_\d+)*")
_METRIC = re.compile(r"(?:^|(?<=[-_=]))(?:\w+_)?(?:loss|acc|accuracy|metric|ppl|score|f1)[-_=]?\d+(?:\.\d+)?")
_EPOCH = re.compile(r"(?<![a-z])(?:epoch|ep)[-_=]?(\d+)(?![0-9a-z])")
_STEPS = (
    re.compile(r"(?<![a-z])(?:global[-_]?)?(?:steps?|iter|iters|iteration|update|batch)[-_=]?(\d+)(?![0-9a-z])"),
    re.compile(r"(?<![a-z])(?:checkpoint|ckpt|chkpt)[-_=]?(\d+)(?![0-9a-z])"),
)
_TRAILING = re.compile(r"(?:^|[-_.=])(\d+)$")
_VERSION = re.compile(r"[-_]v\d+$")
_MARKS = frozenset({"best", "last", "latest", "final", "newest", "current", "tmp", "temp"})
_ROLES = frozenset({
    "model", "models", "optimizer", "optim", "opt", "scheduler", "lr", "sched", "ema", "weights", "state", "states",
    "dict", "params", "net", "rng", "scaler", "trainer", "training", "train", "full", "checkpoint", "ckpt", "chkpt",
    "extra", "meta", "universal", "global", "pytorch", "sd", "",
})  # fmt: skip


class Identity(NamedTuple):
    """What tells the checkpoints of a folder apart.

    Attributes:
        series: What is left of the name: the model, where files of several lie in one folder.
        step: The training step in the name; None where there is none.
        epoch: The epoch in the name; None where there is none.
        mark: ``best``, ``last`` and so on; empty where there is none.
    """

    series: str
    step: int | None
    epoch: int | None
    mark: str


def parse_identity(name: str) -> Identity:
    """Parse the name of a file or folder.

    >>> parse_identity("epoch=3-step=120.ckpt"), parse_identity("optimizer_epoch2.pt").epoch
    (Identity(series='', step=120, epoch=3, mark=''), 2)
    >>> parse_identity("resnet50.pth"), parse_identity("best_model.pt").mark
    (Identity(series='resnet50', step=None, epoch=None, mark=''), 'best')
    """
    rest = _METRIC.sub("", _SHARD.sub("", _ENDING.sub("", name.lower())))
    rest = _VERSION.sub("", rest)
    epoch, rest = _take(_EPOCH, rest)
    step = None
    for pattern in (*_STEPS, _TRAILING):
        if step is None and not (pattern is _TRAILING and epoch is not None):
            step, rest = _take(pattern, rest)
    words = re.split(r"[-_.=\s]+", rest)
    marks = [word for word in words if word in _MARKS]
    series = "-".join(word for word in words if word not in _MARKS and word not in _ROLES)
    return Identity(series, step, epoch, "-".join(marks))


def _take(pattern: re.Pattern[str], text: str) -> tuple[int | None, str]:
    match = pattern.search(text)
    if match is None:
        return None, text
    return int(match[1][:18]), f"{text[: match.start()]}_{text[match.end() :]}"
