"""What a thread is doing, read from its Python stack."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from perfscope.tables.postmortem import CodeLine

#: Our own hooks stand between a script and the functions that they wrap.
_HOOKS = (
    "/perfscope/hooks/",
    "/hooks/frameworks/",
    "/hooks/timers/",
    "/hooks/facts/",
    "/hooks/guard.py",
    "/hooks/quick_hooks.py",
)
_LIBRARIES = ("/torch/", "/deepspeed/", "<frozen", "<string>", *_HOOKS)
_STANDARD_LIBRARY = "/lib/python3"
_INSTALLED = ("/site-packages/", "/dist-packages/")
_COMMUNICATION = ("/torch/distributed/", "/deepspeed/comm/", "/hooks/timers/exchanges.py")
_LOADING = ("/torch/utils/data/", "/deepspeed/runtime/dataloader.py")
_SAVING = ("/torch/serialization.py", "/torch/distributed/checkpoint/", "/safetensors/")


_COLLECTIVE = re.compile(
    r"_?(all_reduce|all_gather|all_to_all|reduce_scatter|broadcast|barrier|monitored_barrier|reduce|gather|scatter)"
)


class Activity(StrEnum):
    """What a thread is in."""

    COMMUNICATION = "communication"
    LOADING = "data loading"
    SAVING = "a checkpoint save"
    BACKWARD = "the backward pass"
    DEVICE = "a wait for the device"
    HOST = "its own code"


_OF_LIBRARIES = {
    Activity.SAVING: _SAVING,
    Activity.COMMUNICATION: _COMMUNICATION,
    Activity.BACKWARD: ("/torch/autograd/",),
    Activity.DEVICE: ("/torch/cuda/",),
}
_OF_TEXTS = {
    Activity.COMMUNICATION: re.compile(r"\.wait\("),
    Activity.DEVICE: re.compile(r"\.(item|tolist|cpu|numpy|synchronize)\("),
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a thread is.

    Attributes:
        activity: What it is in.
        line: The innermost line of the user's own code; None where there is none on the stack.
        call: The function that this line called, if it is one of a library's.
    """

    activity: Activity
    line: CodeLine | None
    call: str = ""

    @property
    def waits(self) -> bool:
        """Whether other ranks may keep it there."""
        return self.activity in (Activity.COMMUNICATION, Activity.BACKWARD, Activity.DEVICE)

    @property
    def collective(self) -> str:
        """The collective that it waits in, without its variant; empty outside of one."""
        match = _COLLECTIVE.match(self.call) if self.activity is Activity.COMMUNICATION else None
        return match[1] if match else ""

    def __str__(self) -> str:
        return f"{self.activity} at {self.line}" if self.line is not None else str(self.activity)


def locate(frames: Sequence[CodeLine], text: str = "") -> Place | None:
    """Where a thread is, by its frames, the innermost first; None where there are none.

    ``text`` is the code of the innermost frame: what C does for a line of the user's own has no frame.
    """
    if not frames:
        return None
    index = next((index for index, frame in enumerate(frames) if _is_own(frame.file)), None)
    inner = frames[:index] if index is not None else frames
    line = None if index is None else frames[index]
    names = [frame.function for frame in inner if _matches(frame.file, _COMMUNICATION) and frame.function != "wrapper"]
    call = names[0] if names else inner[-1].function if inner else ""
    activity = Activity.LOADING if _passes(frames, _LOADING) else _classify(inner, text)
    return Place(activity, line, call)


def _classify(inner: Sequence[CodeLine], text: str) -> Activity:
    """What the frames of libraries above the user's own line are in; without any, what the line says."""
    for activity, parts in _OF_LIBRARIES.items():
        if _passes(inner, parts):
            return activity
    if inner:
        return Activity.HOST
    return next((activity for activity, pattern in _OF_TEXTS.items() if pattern.search(text)), Activity.HOST)


def own_line(frames: Sequence[CodeLine]) -> CodeLine | None:
    """The innermost line of the user's own code."""
    return next((frame for frame in frames if _is_own(frame.file)), None)


def is_same_place(frames: Sequence[CodeLine], call: Sequence[CodeLine]) -> bool:
    """Whether two stacks are the same call, line by line; our own hooks do not count."""
    first, second = ([frame for frame in side if not _matches(frame.file, _HOOKS)] for side in (frames, call))
    return bool(first) and first == second


def _is_own(file: str) -> bool:
    if any(part in file for part in _LIBRARIES):
        return False
    return _STANDARD_LIBRARY not in file or any(part in file for part in _INSTALLED)


def _passes(frames: Sequence[CodeLine], parts: Sequence[str]) -> bool:
    return any(_matches(frame.file, parts) for frame in frames)


def _matches(file: str, parts: Sequence[str]) -> bool:
    return any(part in file for part in parts)
