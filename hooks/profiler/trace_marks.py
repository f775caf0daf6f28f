"""Writes marks into a trace that torch has written: ranges with names, as if they had been open in the profiler.

A range that is opened in the profiler costs the step that it marks; one that is written afterwards costs it two looks
at a clock. torch's times are those of the same clock, ``CLOCK_REALTIME``, to less than a microsecond.

The marks stand behind all other events. Each is laid out as torch lays out the marks of steps, because readers of large
traces rely on all events being written alike.
"""

from __future__ import annotations

import json
import mmap
import os
import re
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from perfscope.constants import NS_PER_US

#: A range: its name, its start and end on the clock of ``time.time_ns``, and the system's number of its thread. A plain
#: tuple takes half the time of one with names.
Mark: TypeAlias = "tuple[str, int, int, int]"

_STEP = b'"ProfilerStep#'
_SAMPLE = re.compile(
    rb'(?P<name>\{\s*"ph"\s*:\s*"X"\s*,\s*"cat"\s*:\s*"user_annotation"\s*,\s*"name"\s*:\s*)"[^"]*"'
    rb'(?P<thread>\s*,\s*"pid"\s*:\s*\d+\s*,\s*"tid"\s*:\s*)\d+'
    rb'(?P<began>\s*,\s*"ts"\s*:\s*)[\d.]+'
    rb'(?P<lasted>\s*,\s*"dur"\s*:\s*)[\d.]+'
    rb'(?P<content>\s*,\s*"args"\s*:\s*\{)[^{}]*(?P<end>\}\s*\})'
)
_BEFORE = re.compile(rb",\s*$")
_BASE_KEY = b'"baseTimeNanoseconds"'
_BASE = re.compile(_BASE_KEY + rb"\s*:\s*(\d+)")
_END_OF_EVENTS = re.compile(rb'\s*\]\s*,\s*"(?:traceName|displayTimeUnit|baseTimeNanoseconds|distributedInfo)"')
_LONGEST_EVENT, _LONGEST_END = 4096, 1 << 16


def add_marks(path: str, marks: Sequence[Mark]) -> bool:
    """Write marks into a trace; False, and the file as it was, where it is not laid out as torch lays it out.

    Args:
        path: A whole trace, not compressed.
        marks: In any order.

    Raises:
        OSError: The disk is full or gone; the file may be cut.
    """
    if not marks:
        return True
    with open(path, "r+b") as file:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            size = len(content)
            start = max(0, size - _LONGEST_END)
            ends = list(_END_OF_EVENTS.finditer(content[start:]))
            form = _find_form(content)
            if not ends or form is None:
                return False
            end = start + ends[-1].start()
            tail = content[end:]
            key = content.find(_BASE_KEY)
            base = _BASE.match(content[key : key + _LONGEST_EVENT]) if key >= 0 else None
        base_ns = 0 if base is None else int(base[1])
        file.seek(end)
        file.write(b"".join(form.write(mark, base_ns) for mark in sorted(marks, key=_start)) + tail)
    return os.path.getsize(path) > size


class _Form(NamedTuple):
    """The fixed texts of a mark of a step: from the event before it on, and behind each of its values."""

    before: bytes
    thread: bytes
    began: bytes
    lasted: bytes
    end: bytes

    def write(self, mark: Mark, base_ns: int) -> bytes:
        name, began_ns, ended_ns, thread = mark
        return b"%b%b%b%d%b%b%b%b%b" % (
            self.before,
            json.dumps(name).encode(),
            self.thread,
            thread,
            self.began,
            _microseconds(began_ns - base_ns),
            self.lasted,
            _microseconds(ended_ns - began_ns),
            self.end,
        )


def _find_form(content: mmap.mmap) -> _Form | None:
    """The form of the first mark of a step on the host."""
    step = content.find(_STEP)
    while step >= 0:
        opening = content.rfind(b"{", max(0, step - _LONGEST_EVENT), step)
        sample = _SAMPLE.match(content[opening : opening + _LONGEST_EVENT]) if opening >= 0 else None
        before = _BEFORE.search(content[max(0, opening - 64) : opening]) if sample else None
        if sample and before:
            end = sample["content"] + sample["end"]
            return _Form(before[0] + sample["name"], sample["thread"], sample["began"], sample["lasted"], end)
        step = content.find(_STEP, step + 1)
    return None


def _start(mark: Mark) -> tuple[int, int]:
    """For an order in which what is around stands ahead of what is inside."""
    return mark[1], -mark[2]


def _microseconds(time_ns: int) -> bytes:
    return b"%d.%03d" % divmod(time_ns, NS_PER_US)
