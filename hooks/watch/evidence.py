"""Keeps what a stall or a failure of this process leaves behind, in the files of its rank.

The record is written first and what may take long or fail comes later, so that a process that is killed meanwhile
leaves at least that. Nothing here waits for a device, for another rank or for a collective.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import time
from itertools import islice
from typing import Any

from perfscope.hooks.facts.secrets import redact_text
from perfscope.hooks.guard import call_safely
from perfscope.hooks.recorder import replace_file
from perfscope.hooks.watch.arming import dump_recorder
from perfscope.wire.incidents import (
    FAILURE,
    INCIDENTS_FILE,
    CodeFrame,
    IncidentRecord,
    recorder_file,
    stacks_file,
    to_incident_line,
)

#: So many incidents of a process are kept: a training that stalls every minute must not fill the disk.
MOST_INCIDENTS = 6
#: The largest dump of the recorder that is kept.
_LARGEST_DUMP_BYTES = 16_000_000
_LONGEST_MESSAGE = 2000
_MOST_FRAMES = 60
_LONGEST_LINE = 200


class IncidentFiles:
    """The incidents of one process.

    Attributes:
        count: How many there were.
    """

    def __init__(self, folder: str) -> None:
        self.count = 0
        self._folder = folder

    def keep(self, record: IncidentRecord) -> None:
        """Write an incident with the stacks of all threads and the recorder's dumps.

        Raises OSError: the record itself cannot be written.
        """
        self.count = record.number
        if record.number > MOST_INCIDENTS:
            return
        self.add(record)
        problems = [call_safely(lambda: self._write_stacks(record.number))[1]]
        dumps, problem = call_safely(dump_recorder)
        problems.append(problem)
        for kind, content in (dumps or {}).items():
            name, dump = recorder_file(record.number, kind), content
            problems.append(call_safely(lambda name=name, dump=dump: self._write(name, dump))[1])  # type: ignore[misc]
        missing = "; ".join(redact_text(repr(error)) for error in problems if error is not None)
        if missing:
            self.add(IncidentRecord(**{**vars(record), "missing": missing}))

    def add(self, record: IncidentRecord) -> None:
        """Write a record alone. Raises OSError: the disk is full or gone."""
        with open(os.path.join(self._folder, INCIDENTS_FILE), "ab", buffering=0) as file:
            file.write(to_incident_line(record))

    def _write_stacks(self, number: int) -> None:
        with open(os.path.join(self._folder, stacks_file(number)), "w", encoding="utf-8") as file:
            faulthandler.dump_traceback(file=file, all_threads=True)

    def _write(self, name: str, content: bytes) -> None:
        if len(content) > _LARGEST_DUMP_BYTES:
            raise OSError(f"{name} would have {len(content):,} bytes")
        replace_file(os.path.join(self._folder, name), content)


def read_source(thread: int) -> str | None:
    """The line of code that a thread is in, for what has no frame of its own; None where its file cannot be read."""
    frame = sys._current_frames().get(thread)
    if frame is None:
        return None
    with open(frame.f_code.co_filename, "rb") as file:
        line = next(islice(file, frame.f_lineno - 1, None), b"")
    return redact_text(line.decode(errors="replace").strip()[:_LONGEST_LINE]) or None


def last_error() -> BaseException | None:
    """The exception that ends this process; None where none was raised up to the interpreter."""
    error: Any = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    return error if isinstance(error, BaseException) else None


def describe_error(error: BaseException, number: int, step: int) -> IncidentRecord:
    """The record of a failure."""
    frames, trace = [], error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        frames.append(CodeFrame(code.co_filename, trace.tb_lineno or 0, code.co_name))
        trace = trace.tb_next
    return IncidentRecord(
        kind=FAILURE,
        number=number,
        wall_ns=time.time_ns(),
        monotonic_ns=time.monotonic_ns(),
        step=step,
        error=_class_of(error),
        message=redact_text(str(error)[:_LONGEST_MESSAGE]),
        frames=tuple(frames[-_MOST_FRAMES:]),
    )


def _class_of(error: BaseException) -> str:
    return f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
