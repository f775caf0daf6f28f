"""The allocator's history of one device: ``RUN/memory/HOST_PID.NS.memory.jsonl[.gz]``, columns in lines of JSON.

The first line is the header, the last one the end; a file without an end is cut off. Between them::

    {"kind": "texts", "values": [...]}               texts; frames, tensors and marks name them by number, from 0.
    {"kind": "frames", "files": [...], "functions": [...], "line_numbers": [...]}
    {"kind": "stacks", "stacks": [[...], ...]}       numbers of frames, innermost first; several lines, counted on.
    {"kind": "tensors", "at": "start", "addresses": [...], "sizes": [...], "roles": [...], "names": [...]}
    {"kind": "marks", "times_ns": [...], "signs": ">><...", "names": [...]}

    {"kind": "segments", "addresses": [...], "sizes": [...], "streams": [...]}

    {"kind": "blocks", "addresses": [...], "sizes": [...], "requested": [...], "live": [...], "stacks": [...]}

    {"kind": "events", "actions": "afcSU...", "addresses": [...], "sizes": [...], "streams": [...], "times_us": [...],
     "stacks": [...]}                                 in the order of time; several lines.
    {"kind": "end", "events": 1234}

A stack is -1 where none was recorded. Tensors are those whose purpose the process knows (``at`` the start or the end of
the window). Marks are a module's forward pass (``>`` begin, ``<`` end) and the beginnings of training steps (``|``).
Standard library only: this module is imported inside training jobs.
"""

from __future__ import annotations

from dataclasses import dataclass

MEMORY_FOLDER = "memory"
MEMORY_SUFFIX = ".memory.jsonl"
MEMORY_SCHEMA = "perfscope/memory/1"

#: The actions of torch's allocator and their letters.
ACTIONS = {
    "alloc": "a",
    "free_requested": "f",
    "free_completed": "c",
    "segment_alloc": "S",
    "segment_free": "F",
    "segment_map": "M",
    "segment_unmap": "U",
    "oom": "o",
    "snapshot": "s",
}
OTHER_ACTION = "?"

#: What a tensor is for.
WEIGHTS = "weights"
GRADIENTS = "gradients"
OPTIMIZER = "optimizer"
COMMUNICATION = "communication"

#: Signs of marks.
BEGIN, END, STEP = ">", "<", "|"

#: Why a history was written.
WINDOW = "window"
OUT_OF_MEMORY = "out of memory"


@dataclass(frozen=True)
class MemoryHeader:
    """The first line of a history; times are of the wall clock.

    Attributes:
        cause: ``window`` or ``out of memory``.
        last_step: The last step that the history covers; the running one at an out-of-memory error.
        allocated_bytes: What tensors held at the end; the peaks are the most since the process started.
        reserved_bytes: What the allocator held at the end.
        limit: How many events the allocator keeps; the history is cut at its begin where it has as many.
        request_bytes: What could not be allocated, at an out-of-memory error.
        bucket_bytes: Sizes of the buckets of DistributedDataParallel, where they are copies of the gradients.
    """

    rank: int
    host: str
    pid: int
    device: int
    cause: str
    first_step: int
    last_step: int
    started_ns: int
    stopped_ns: int
    allocated_bytes: int
    reserved_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    device_free_bytes: int
    device_total_bytes: int
    limit: int
    torch: str
    request_bytes: int | None = None
    bucket_bytes: tuple[int, ...] | None = None
    schema: str = MEMORY_SCHEMA
    kind: str = "memory"
