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
    """The first line of a history.

    Attributes:
        rank: The rank.
        host: Its machine.
        pid: Its process.
        device: The device's number in the process.
        cause: ``window`` or ``out of memory``.
        first_step: The first training step that the history covers.
        last_step: The last one; the running one at an out-of-memory error.
        started_ns: When recording began, on the wall clock.
        stopped_ns: When it ended.
        allocated_bytes: What tensors held at the end.
        reserved_bytes: What the allocator held at the end.
        peak_allocated_bytes: The most that tensors held since the process started.
        peak_reserved_bytes: The most that the allocator held since then.
        device_free_bytes: Free memory of the device at the end.
        device_total_bytes: Its memory.
        limit: How many events the allocator keeps; the history is cut at its begin where it has as many.
        torch: Version of torch.
        request_bytes: What could not be allocated, at an out-of-memory error.
        bucket_bytes: Sizes of the buckets of DistributedDataParallel, where they are copies of the gradients.
        schema: ``perfscope/memory/1``.
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
