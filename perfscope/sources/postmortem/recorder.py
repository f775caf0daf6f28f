"""Reads dumps of torch's Flight Recorder, pickled or in JSON; nothing is unpickled.

A dump has ``entries``, one for each collective, and ``pg_config`` with the members of the groups. Fields that a version
of torch does not write are absent: versions since 2.3 are read alike, and what is no entry is left out and named.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from perfscope.errors import SourceError
from perfscope.sources.checkpoints.inert_values import Call, InertDict
from perfscope.sources.checkpoints.pickle_damage import PickleDamage
from perfscope.sources.checkpoints.pickles import replay
from perfscope.tables.postmortem import CodeLine, CollectiveCall, RecorderDump

_LARGEST_BYTES = 256 * 10**6
#: How torch pickles lists of plain values; any other call has no place in a dump.
_LISTS = ("torch.jit._pickle.build_intlist", "torch.jit._pickle.build_doublelist", "torch.jit._pickle.build_boollist")
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
    return RecorderDump(tuple(calls), _members(document), _text(document.get("version"))), damage


def _decode(content: bytes) -> object:
    if content.lstrip()[:1] == b"{":
        return json.loads(content)
    return _plain(replay(content).value, 0)


def _plain(value: object, depth: int) -> object:
    """A value of a pickle as dicts, lists and plain values.

    Raises:
        ValueError: It would call a function, or nests deeply.
    """
    if depth > 12:  # noqa: PLR2004 - entries nest five levels
        raise ValueError("it nests too deeply")
    match value:
        case InertDict(items=items):
            return {key: _plain(item, depth + 1) for key, item in items if isinstance(key, str | int)}
        case Call(function=function, arguments=(list() | tuple() as values,)) if function in _LISTS:
            return _plain(list(values), depth + 1)
        case list() | tuple():
            return [_plain(item, depth + 1) for item in value]
        case None | bool() | int() | float() | str():
            return value
        case Call(function=function):
            raise ValueError(f"it would call {function or 'a function'}")
        case _:
            raise ValueError("it holds something else than plain values")


def _to_calls(entries: Sequence[object]) -> tuple[list[CollectiveCall], int]:
    """The calls of a dump, and how many entries cannot be read.

    Behind the sends and receives of a batch NCCL's recorder writes an entry ``coalesced``, which has the number of the
    collective before it and the batch's own number of sends and receives. It is no collective, but alone knows whether
    the batch has begun and is over: its state becomes that of the batch's calls.
    """
    calls: list[CollectiveCall] = []
    unreadable = 0
    for entry in entries:
        call = _to_call(entry)
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


def _to_call(entry: object) -> CollectiveCall | None:
    if not isinstance(entry, Mapping):
        return None
    backend, _, operation = _text(entry.get("profiling_name")).partition(":")
    is_p2p = entry.get("is_p2p") is True
    sequence = entry.get("p2p_seq_id" if is_p2p else "collective_seq_id", entry.get("seq_id"))
    created_ns = entry.get("time_created_ns")
    if not operation or type(sequence) is not int or type(created_ns) is not int:
        return None
    group = entry.get("process_group")
    name, description = (group[0], group[1]) if isinstance(group, Sequence) and len(group) > 1 else ("", "")
    state, is_retired = entry.get("state"), entry.get("retired")
    # gloo does not report states; torch's own entry of a collective that is over is retired, though.
    is_completed = state == _COMPLETED or (backend != _OF_NCCL and is_retired is True)
    return CollectiveCall(
        group=_text(name) or str(entry.get("pg_id", "")),
        description="" if description in ("undefined", "default_pg") else _text(description),
        sequence=sequence,
        is_p2p=is_p2p,
        operation=operation,
        input_sizes=_shapes(entry.get("input_sizes")),
        output_sizes=_shapes(entry.get("output_sizes")),
        dtypes=tuple(_text(name) for name in _list(entry.get("input_dtypes"))),
        created_ns=created_ns,
        is_started=(state in _STARTED or bool(entry.get("time_discovered_started_ns")))
        if backend == _OF_NCCL
        else None,
        is_completed=is_completed,
        frames=tuple(frame for item in _list(entry.get("frames")) if (frame := _to_line(item)) is not None),
    )


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
    return tuple(tuple(size for size in _list(shape) if isinstance(size, int)) for shape in _list(value))


def _list(value: object) -> Sequence[object]:
    return value if isinstance(value, Sequence) and not isinstance(value, str) else ()


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
