"""What a thread did while no operator ran: slept, waited, read files, or ran Python; from the Python frames of a trace.

torch.profiler records frames with ``with_stack=True``. The innermost frame at a moment says what the thread does. A
built-in function, such as ``sleep``, is named together with the Python function that called it. Where no frame was
recorded, the innermost ``nn.Module: PATH`` range names the module.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Annotated

import numpy as np

from perfscope.analyzers.shared.intervals import Intervals, union
from perfscope.constants import NS_PER_MS, NS_PER_US
from perfscope.report import Column, Section, percent_of
from perfscope.result import Doc, Figures, InUnit
from perfscope.tables.columns import Bool, Int64
from perfscope.tables.trace import ABSENT, HostSpans

#: Kinds of time outside of operators.
SLEEP, WAITING, INPUT_OUTPUT, PYTHON, NOT_ATTRIBUTED = "sleep", "waiting", "I/O", "Python", "not attributed"
KINDS = (SLEEP, WAITING, INPUT_OUTPUT, PYTHON, NOT_ATTRIBUTED)
#: How the profiler writes a function that is not written in Python: ``<built-in function sleep>``,
#: ``<built-in method read of _io.FileIO object at 0x7f>``.
_BUILT_IN = re.compile(r"<(?:built-in (?:function|method)|method) '?(?P<call>[^' >]+)'?(?: of (?P<owner>.*))?>")
_ADDRESS = re.compile(r" object at 0x[0-9a-f]+")
_LONGEST_OWNER = 40
_MOST_FUNCTIONS = 12
#: Calls that wait for something, and those that do only as methods of some types: ``dict.get`` and ``str.join`` do not.
_WAITS = {"acquire", "wait", "wait_all", "waitpid", "wait4", "synchronize", "to_here", "select", "poll", "epoll_wait"}
_WAITS_OF_OWNER = {"join", "get", "put", "control", "accept", "connect", "result"}
_WAITED_FOR = re.compile(r"lock|queue|future|thread|process|select|poll|socket|semaphore|event|rpc|rref|store", re.I)
#: Calls that read and write files and connections, and those that do only as methods of some types.
_FILE_CALLS = {
    "open", "stat", "lstat", "fstat", "listdir", "scandir", "unlink", "remove", "rename", "replace", "mkdir", "rmdir",
    "fsync", "fdatasync", "pread", "pwrite", "sendfile", "fromfile", "tofile", "read", "write",
}  # fmt: skip
_FILE_CALLS_OF_OWNER = _FILE_CALLS | {
    "read1", "readall", "readinto", "readline", "readlines", "writelines", "flush", "truncate", "seek", "close",
    "recv", "recv_into", "send", "sendall", "__next__",
}  # fmt: skip
_FILES = re.compile(r"_io\.|socket|mmap|ssl|ScandirIterator|DirEntry")


class OutsideTime(Figures, frozen=True, array_like=True):
    """Time outside of operators of one function."""

    kind: Annotated[str, Doc("``sleep``, ``waiting``, ``I/O``, ``Python`` or ``not attributed``.")]
    function: Annotated[
        str | None,
        Doc("The Python function, ``FILE(LINE): NAME``, or the module; None where nothing was recorded."),
    ]
    call: Annotated[str | None, Doc("The built-in function that it called; None where its own code ran.")]
    duration_ns: int
    us = InUnit("duration_ns", NS_PER_US, "How long.")


class OutsideKinds(Figures, frozen=True):
    """Time outside of operators by kind; the parts add up to ``other_us`` exactly."""

    sleep_us: Annotated[float, Doc("Sleeping.")]
    waiting_us: Annotated[float, Doc("Waiting for a lock, a thread or a process.")]
    io_us: Annotated[float, Doc("Reading and writing.")]
    python_us: Annotated[float, Doc("Running Python.")]
    not_attributed_us: Annotated[float, Doc("No frame was recorded.")]


def attribute_outside(
    gaps: Intervals, frames: HostSpans, modules: HostSpans, names: Sequence[str]
) -> tuple[OutsideTime, ...]:
    """What a thread did in some gaps between operators.

    Args:
        gaps: When no operator ran.
        frames: The thread's Python frames; empty where none were recorded.
        modules: The thread's ranges of modules.
        names: The names of the trace.

    Returns:
        The longest first; their durations add up to the gaps exactly.
    """
    times_ns: dict[tuple[str, str, str], int] = {}
    is_python = np.array([_BUILT_IN.fullmatch(name) is None for name in names], np.bool_)
    for (row, caller), time_ns in _measure(gaps, list(_innermost(frames, is_python))).items():
        key = _describe(names[frames.name[row]], "" if caller == ABSENT else names[frames.name[caller]])
        times_ns[key] = times_ns.get(key, 0) + time_ns
    rest = gaps - union(frames.start_ns, frames.end_ns) if len(frames) else gaps
    for (row, _), time_ns in _measure(rest, list(_innermost(modules, is_python))).items():
        key = (NOT_ATTRIBUTED, names[modules.name[row]], "")
        times_ns[key] = times_ns.get(key, 0) + time_ns
    unknown_ns = gaps.measure - sum(times_ns.values())
    if unknown_ns:
        times_ns[NOT_ATTRIBUTED, "", ""] = unknown_ns
    parts = [
        OutsideTime(kind, function or None, call or None, time_ns)
        for (kind, function, call), time_ns in times_ns.items()
        if time_ns
    ]
    return tuple(sorted(parts, key=lambda part: (-part.duration_ns, part.kind, part.function or "", part.call or "")))


def add_up_kinds(parts: Sequence[OutsideTime]) -> dict[str, int]:
    """The time of each kind, in nanoseconds; 0 for kinds that did not occur."""
    return {kind: sum(part.duration_ns for part in parts if part.kind == kind) for kind in KINDS}


def kinds_in_us(parts: Sequence[OutsideTime]) -> OutsideKinds:
    """The time of each kind in microseconds."""
    return OutsideKinds(*(time_ns / NS_PER_US for time_ns in add_up_kinds(parts).values()))


def outside_section(ranks: Sequence[tuple[str, int, Sequence[OutsideTime]]]) -> Section:
    """A table of what ranks did outside of operators: of each its label, its window in nanoseconds, and its parts."""
    columns = (
        Column("Rank"), Column("Kind"), Column("Function"), Column("Call"), Column("Time (ms)", 2),
        Column("Of the window (%)"),
    )  # fmt: skip
    rows = [
        (
            label,
            part.kind,
            part.function or "no frame recorded",
            part.call or "its own code",
            part.duration_ns / NS_PER_MS,
            percent_of(part.duration_ns, window_ns),
        )
        for label, window_ns, parts in ranks
        for part in parts[:_MOST_FUNCTIONS]
    ]
    notes = [
        "What the thread of the steps did in the part that is other: the innermost Python function, and the built-in "
        f"function that it called; at most {_MOST_FUNCTIONS} rows a rank, the longest first."
    ]
    for label, _, parts in ranks:
        kinds = [f"{kind} {time_ns / NS_PER_MS:.2f} ms" for kind, time_ns in add_up_kinds(parts).items() if time_ns]
        if kinds:
            notes.append(f"Rank {label}: {', '.join(kinds)}.")
    return Section("Host time outside of operators", columns, tuple(rows), tuple(notes))


def _innermost(spans: HostSpans, is_python: Bool) -> Iterator[tuple[int, int, int, int]]:
    """The stretches of a thread's time by innermost span: start, end, the span's row, and that of its Python function.

    That is the span itself, or, of a built-in function, the innermost span of Python around it; ABSENT where none is.
    """
    order = np.lexsort((-spans.duration_ns, spans.start_ns))
    columns = (spans.start_ns[order], spans.end_ns[order], order, is_python[spans.name[order]])
    #: End, row and Python function of the spans that are open.
    stack: list[tuple[int, int, int]] = []
    cursor = 0
    for start, end, row, is_own in zip(*(column.tolist() for column in columns), strict=True):
        while stack and stack[-1][0] <= start:
            until, *inner = stack.pop()
            if until > cursor:
                yield cursor, until, inner[0], inner[1]
                cursor = until
        if stack and start > cursor:
            yield cursor, start, stack[-1][1], stack[-1][2]
        cursor = max(cursor, start)
        around, caller = (stack[-1][0], stack[-1][2]) if stack else (end, ABSENT)
        stack.append((min(end, around), row, row if is_own else caller))
    while stack:
        until, *inner = stack.pop()
        if until > cursor:
            yield cursor, until, inner[0], inner[1]
            cursor = until


def _measure(gaps: Intervals, stretches: Sequence[tuple[int, int, int, int]]) -> dict[tuple[int, int], int]:
    """How much of the gaps lies in the stretches of each span and caller."""
    if not stretches:
        return {}
    columns: list[Int64] = [np.array(column, np.int64) for column in zip(*stretches, strict=True)]
    inside_ns = gaps.measure_before(columns[1]) - gaps.measure_before(columns[0])
    times_ns: dict[tuple[int, int], int] = {}
    for index in np.flatnonzero(inside_ns).tolist():
        key = int(columns[2][index]), int(columns[3][index])
        times_ns[key] = times_ns.get(key, 0) + int(inside_ns[index])
    return times_ns


def _describe(name: str, caller: str) -> tuple[str, str, str]:
    """The kind of a frame's time, the Python function that it belongs to, and the built-in function that ran."""
    match = _BUILT_IN.fullmatch(name)
    if match is None:
        return PYTHON, name, ""
    call, owner = match["call"], _ADDRESS.sub("", match["owner"] or "")
    is_short = owner and len(owner) <= _LONGEST_OWNER and not owner.startswith("type")
    return _kind(call, owner), caller, f"{call} of {owner}" if is_short else call


def _kind(call: str, owner: str) -> str:
    if call == "sleep":
        return SLEEP
    if call in _WAITS or (call in _WAITS_OF_OWNER and _WAITED_FOR.search(owner)):
        return WAITING
    if (call in _FILE_CALLS and not owner) or (call in _FILE_CALLS_OF_OWNER and _FILES.search(owner)):
        return INPUT_OUTPUT
    return PYTHON
