"""The records of a rank's files: one JSON object a line, written at once.

Hooks write full lines, but a killed process or a full disk can leave half a line at the end: it is dropped and named.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from perfscope import wire
from perfscope.constants import MOST_RANKS
from perfscope.files import read_compressed, read_regular
from perfscope.wire.passes import MicroBatchRecord
from perfscope.wire.records import CheckpointRecord, EndRecord, NoteRecord, RankRecord, StepRecord, WindowRecord

#: What decoding damaged JSON raises: a string may be no UTF-8, and values may be nested too deeply.
DAMAGE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_COMPRESSED = ".gz"
#: What columns of nanoseconds and bytes have no room for; no clock and no file is near it.
_IMPOSSIBLE = 5 * 10**18
_LONG_NUMBER = re.compile(rb"[5-9]\d{18}|\d{20}")
#: Fields with what a script configured, where any number may be.
_FREE = ("config", "engine")
_Record = TypeVar("_Record")
_EVENTS: dict[str, type[WindowRecord | NoteRecord | EndRecord]] = {
    "window": WindowRecord,
    "note": NoteRecord,
    "end": EndRecord,
}

decode_step = msgspec.json.Decoder(StepRecord).decode
decode_checkpoint = msgspec.json.Decoder(CheckpointRecord).decode
decode_micro_batch = msgspec.json.Decoder(MicroBatchRecord).decode


def decode_event(line: bytes) -> WindowRecord | NoteRecord | EndRecord:
    """A line of ``events.jsonl``. Raises an error of ``DAMAGE``: it is no event of a kind that is known."""
    fields = msgspec.json.decode(line, type=dict[str, object])
    kind = fields.get("kind")
    if not isinstance(kind, str) or kind not in _EVENTS:
        raise msgspec.ValidationError("unknown kind of event")
    return msgspec.convert(fields, _EVENTS[kind])


def read_record(path: Path, kind: type[_Record]) -> _Record:
    """The record that a file of JSON holds. Raises OSError, or an error of ``DAMAGE``."""
    content = read_regular(path)
    require_possible(content)
    return msgspec.json.decode(content, type=kind)


def read_optional(path: Path, kind: type[_Record], damage: list[str]) -> _Record | None:
    """The record in a file of a process; None where it wrote none, or where it is damaged, which is said."""
    try:
        return read_record(path, kind)
    except FileNotFoundError:
        return None
    except (OSError, *DAMAGE):
        damage.append(f"{wire.RANKS_FOLDER}/{path.parent.name}/{path.name} cannot be read")
        return None


def read_object(path: Path) -> dict[str, object] | None:
    """The JSON object in a file, empty where it holds something else; None where it is missing or damaged."""
    try:
        value = json.loads(read_regular(path))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else {}


def require_possible(content: bytes) -> None:
    """Raise an error of ``DAMAGE`` for an integer beyond what any clock or file has, other than in a configuration."""
    if _LONG_NUMBER.search(content) and _is_impossible(msgspec.json.decode(content)):
        raise msgspec.ValidationError("an impossible number")


def _is_impossible(value: object) -> bool:
    if isinstance(value, dict):
        return any(_is_impossible(inner) for name, inner in value.items() if name not in _FREE)
    if isinstance(value, list):
        return any(map(_is_impossible, value))
    return isinstance(value, int) and abs(value) >= _IMPOSSIBLE


def read_records(path: Path, decode: Callable[[bytes], _Record], damage: list[str]) -> list[_Record]:
    """The records of a file; none where it does not exist. ``damage`` gets a text for each line that cannot be read."""
    if not path.exists() and path.suffix != _COMPRESSED:
        path = path.with_name(path.name + _COMPRESSED)  # it was compressed after it was listed
    if not path.is_file():
        if path.exists():
            damage.append(f"{path.parent.name}/{path.name}: is no file")
        return []
    records = []
    try:
        content = read_compressed(path) if path.suffix == _COMPRESSED else read_regular(path)
    except OSError:
        damage.append(f"{path.parent.name}/{path.name}: cannot be read")
        return []
    lines, is_suspect = content.split(b"\n"), _LONG_NUMBER.search(content)
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            if is_suspect:
                require_possible(line)
            records.append(decode(line))
        except DAMAGE:
            problem = "ends in half a line" if number == len(lines) else f"line {number} cannot be read"
            damage.append(f"{path.parent.name}/{path.name}: {problem}")
    return records


def list_segments(folder: Path, name: str) -> list[Path]:
    """The files of a rank that were put aside because they were full, the oldest first, and the one in use.

    A file that is compressed already counts in place of the plain one.
    """
    stem, suffix = name.split(".")
    segments = {path.name: path for path in folder.glob(f"{stem}.*.{suffix}")}
    segments |= {path.stem: path for path in folder.glob(f"{stem}.*.{suffix}{_COMPRESSED}")}
    return [*(segments[key] for key in sorted(segments)), folder / name]


def read_segments(
    folder: Path, name: str, decode: Callable[[bytes], _Record], damage: list[str]
) -> list[list[_Record]]:
    """The records of each file of ``list_segments``; where one was put aside meanwhile, all are read again."""
    listed = list_segments(folder, name)
    while True:
        problems: list[str] = []
        records = [read_records(path, decode, problems) for path in listed]
        again = list_segments(folder, name)
        if len(again) == len(listed):
            damage += problems
            return records
        listed = again


def read_rank_record(folder: Path) -> RankRecord | None:
    """The ``rank.json`` of a rank's folder; None where it is missing or damaged, or states what no job has."""
    try:
        record = read_record(folder / wire.RANK_FILE, RankRecord)
    except (OSError, *DAMAGE):
        return None
    return record if record.world_size <= MOST_RANKS else None
