"""Reads dumps of torch's Flight Recorder, pickled or in JSON; no code of a dump runs.

A dump has ``entries``, one for each collective, and ``pg_config`` with the members of the groups. Fields that a version
of torch does not write are absent: versions since 2.3 are read alike, and what is no entry is left out and named.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from perfscope.errors import SourceError
from perfscope.sources.pickles import MOST_DIMENSIONS, PickleDamage, PlainUnpickler
from perfscope.tables.postmortem import CodeLine, CollectiveCall, RecorderDump

_LARGEST_BYTES = 256 * 10**6
_COMPLETED = "completed"
_STARTED = ("started", _COMPLETED)
_OF_NCCL = "nccl"
_BATCH = "coalesced"


def read_dump(path: Path) -> tuple[RecorderDump, list[str]]:
    """Read one rank's dump; the texts say what of it cannot be read.

    Raises:
        SourceError: The file is no dump, or is cut off.
    """
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise SourceError(path, f"has more than {_LARGEST_BYTES:,} bytes: it is no dump of the Flight Recorder")
        content = path.read_bytes()
    except OSError as error:
        raise SourceError(path, f"cannot be read: {error.strerror}") from None
    try:
        document = _decode(content)
    except (PickleDamage, ValueError, RecursionError) as error:
        problem = f"is not a complete dump of the Flight Recorder: {str(error)[:120]}"
        raise SourceError(path, problem) from None
    entries = document.get("entries") if isinstance(document, Mapping) else None
    if not isinstance(document, Mapping) or not isinstance(entries, Sequence):
        raise SourceError(path, "is no dump of the Flight Recorder: it has no entries")
    calls, unreadable = _to_calls(entries)
    damage = [f"{path.name}: {unreadable} of {len(entries)} entries cannot be read"] if unreadable else []
    calls.sort(key=lambda call: call.created_ns)
    return RecorderDump(tuple(calls), _members(document)), damage


def _decode(content: bytes) -> object:
    if content.lstrip()[:1] == b"{":
        return json.loads(content)
    return PlainUnpickler(content).read_value().value


def _to_calls(entries: Sequence[object]) -> tuple[list[CollectiveCall], int]:
    """The calls of a dump, and how many entries cannot be read.

    After the sends and receives of a batch NCCL's recorder writes an entry ``coalesced``. It has the number of the
    collective before it, and the batch's own number of sends and receives. It is no collective, but it alone knows
    whether the batch has begun and is over: its state becomes the state of the batch's calls.
    """
    calls: list[CollectiveCall] = []
    lists: dict[int, tuple[Any, ...]] = {}
    unreadable = 0
    for entry in entries:
        call = _to_call(entry, lists)
        if call is None or not isinstance(entry, Mapping):
            unreadable += 1
        elif call.operation != _BATCH:
            calls.append(call)
        else:
            number = entry.get("p2p_seq_id")
            before = next((earlier for earlier in reversed(calls) if earlier.group == call.group), None)
            if before is not None and before.is_p2p and before.sequence == number:
                _set_state(calls, before, call)
            elif before is not None or not number:  # else what the batch sent is forgotten already
                calls.append(call)
    return calls, unreadable


def _set_state(calls: list[CollectiveCall], last: CollectiveCall, batch: CollectiveCall) -> None:
    """Give the calls of a batch, which end with ``last``, the batch's state."""
    for index in range(len(calls) - 1, -1, -1):
        call = calls[index]
        if call.group != last.group:
            continue
        if not call.is_p2p or call.sequence != last.sequence:
            break
        calls[index] = replace(call, is_started=batch.is_started, is_completed=batch.is_completed)


def _to_call(entry: object, lists: dict[int, tuple[Any, ...]]) -> CollectiveCall | None:
    """A call; ``lists`` has each list of shapes or frames, so that one that many entries share is read once."""
    if not isinstance(entry, Mapping):
        return None
    backend, _, operation = _text(entry.get("profiling_name")).partition(":")
    is_p2p = entry.get("is_p2p") is True
    sequence = entry.get("p2p_seq_id" if is_p2p else "collective_seq_id", entry.get("seq_id"))
    created_ns = entry.get("time_created_ns")
    if not operation or type(sequence) is not int or type(created_ns) is not int:
        return None
    group = entry.get("process_group")
    name = group[0] if isinstance(group, Sequence) and len(group) > 1 else ""
    state, is_retired = entry.get("state"), entry.get("retired")
    # gloo does not report states; torch's own entry of a collective that is over is retired, though.
    is_completed = state == _COMPLETED or (backend != _OF_NCCL and is_retired is True)
    return CollectiveCall(
        group=_text(name) or str(entry.get("pg_id", "")),
        sequence=sequence,
        is_p2p=is_p2p,
        operation=operation,
        input_sizes=_read_once(lists, entry.get("input_sizes"), _shapes),
        dtypes=_read_once(lists, entry.get("input_dtypes"), _texts),
        created_ns=created_ns,
        is_started=(state in _STARTED or bool(entry.get("time_discovered_started_ns")))
        if backend == _OF_NCCL
        else None,
        is_completed=is_completed,
        frames=_read_once(lists, entry.get("frames"), _lines),
    )


def _read_once(
    lists: dict[int, tuple[Any, ...]], value: object, read: Callable[[object], tuple[Any, ...]]
) -> tuple[Any, ...]:
    if id(value) not in lists:
        lists[id(value)] = read(value)
    return lists[id(value)]


def _lines(value: object) -> tuple[CodeLine, ...]:
    return tuple(frame for item in _list(value) if (frame := _to_line(item)) is not None)


def _texts(value: object) -> tuple[str, ...]:
    return tuple(_text(name) for name in _list(value))


def _to_line(frame: object) -> CodeLine | None:
    if not isinstance(frame, Mapping) or type(frame.get("line")) is not int:
        return None
    return CodeLine(_text(frame.get("filename")), frame["line"], _text(frame.get("name")))


def _members(document: Mapping[object, object]) -> dict[str, tuple[int, ...]]:
    """The ranks of each group; torch writes them as text, such as ``[0, 1]``."""
    members: dict[str, tuple[int, ...]] = {}
    config = document.get("pg_config")
    for key, group in config.items() if isinstance(config, Mapping) else ():
        text = group.get("ranks") if isinstance(group, Mapping) else None
        words = text.strip("[]").replace(",", " ").split() if isinstance(text, str) else []
        if words and all(word.isdecimal() for word in words):
            members[str(key)] = tuple(sorted(int(word) for word in words))
    return members


def _shapes(value: object) -> tuple[tuple[int, ...], ...]:
    shapes = [_list(shape) for shape in _list(value)]
    return tuple(
        tuple(size for size in shape if isinstance(size, int)) if len(shape) <= MOST_DIMENSIONS else ()
        for shape in shapes
    )


def _list(value: object) -> Sequence[object]:
    return value if isinstance(value, Sequence) and not isinstance(value, str) else ()


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
