"""What is kept of a training that stalls or fails.

The layout::

    RUN/ranks/00000/incidents.jsonl         one IncidentRecord per stall and failure.
    RUN/ranks/00000/stacks.N.txt            stacks of all threads at incident N, as faulthandler writes them.
    RUN/ranks/00000/recorder.N.KIND.pickle  torch's Flight Recorder at incident N: KIND is nccl or generic.
    RUN/ranks/00000/fatal.txt               stacks at a fatal signal.
    RUN/recorder/nccl_RANK                  what NCCL's watchdog wrote at a timeout.
    RUN/deaths/HOST.jsonl                   a line per process of a rank that ended, and per Xid of a driver.
    RUN/control/                            requests to the ranks of a running job, see perfscope.wire.requests.

A line of a death has ``kind`` "death", ``rank``, ``attempt``, ``pid`` and both clocks, as another process of the host
saw it. It has ``signal`` or ``exit_code`` where that was seen in time. ``memory_kills`` is how often the kernel killed
a process of this group for want of memory since the start. A line of an error has ``kind`` "xid", ``uuid``, ``xid`` and
``wall_ns``.

This module is imported inside training jobs: standard library only.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

INCIDENTS_FILE = "incidents.jsonl"
FATAL_FILE = "fatal.txt"
RECORDER_FOLDER = "recorder"
DEATHS_FOLDER = "deaths"
CONTROL_FOLDER = "control"

#: Records are written two seconds after a step, and in a profiler window some later, but no later than this.
LATEST_WRITE_NS = 10_000_000_000

#: Kinds of incidents.
STALL = "stall"
FAILURE = "failure"
RESUMED = "resumed"


def stacks_file(number: int) -> str:
    """Name the file of the stacks at an incident."""
    return f"stacks.{number}.txt"


#: The kinds of backends whose recorders are dumped.
RECORDER_KINDS = ("nccl", "generic", "nccl2")


def recorder_file(number: int, kind: str) -> str:
    """Name the file of the recorder's dump at an incident.

    >>> recorder_file(1, "nccl")
    'recorder.1.nccl.pickle'
    """
    return f"recorder.{number}.{kind}.pickle"


@dataclass(frozen=True)
class CodeFrame:
    """A place in the code: a line of a function."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} ({self.function})"


@dataclass(frozen=True)
class IncidentRecord:
    """A stall or the failure of one rank, or that training resumed; when it was noticed, on both clocks.

    Attributes:
        number: The number of the incident in this process, from 1; a ``resumed`` has that of its stall.
        step: Completed training steps.
        idle_ns: Since when no step was completed; absent for a failure.
        training_thread: The thread that trains, as faulthandler writes it.
        source: The innermost line of code of that thread.
        error: Class of the exception that ended the process; ``message`` is its text, without secrets.
        frames: Its traceback, the innermost call last.
        missing: Why a part of the evidence could not be kept.
    """

    kind: str
    number: int
    wall_ns: int
    monotonic_ns: int
    step: int
    idle_ns: int | None = None
    training_thread: str | None = None
    source: str | None = None
    error: str | None = None
    message: str | None = None
    frames: tuple[CodeFrame, ...] | None = None
    missing: str | None = None


def to_incident_line(record: IncidentRecord) -> bytes:
    """Encode a record as one line, without the fields that are unknown."""
    fields = {name: value for name, value in asdict(record).items() if value is not None}
    return json.dumps(fields, separators=(",", ":"), allow_nan=False).encode() + b"\n"
