"""The allocator's history as perfscope's hooks write it: lines of columns; see ``perfscope.wire.memory``."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, TypeVar, Union, get_type_hints

import msgspec
import numpy as np

from perfscope.errors import SourceError
from perfscope.files import open_regular
from perfscope.sources.memory.snapshot import read_snapshot
from perfscope.tables.columns import Int64
from perfscope.tables.memory import (
    AllocatorEvents,
    AllocatorHistory,
    Blocks,
    Frame,
    Marks,
    Tensors,
    no_marks,
    no_tensors,
)
from perfscope.wire.memory import MEMORY_FOLDER, MEMORY_SCHEMA, MEMORY_SUFFIX, MemoryHeader

#: A line has 20,000 events or stacks of some hundred frames; a longer one is no history.
_LONGEST_LINE = 256 * 1024 * 1024
_GZIP_SUFFIX = ".gz"


_TYPES = get_type_hints(MemoryHeader)
_Header: Any = msgspec.defstruct(
    "_Header",
    [
        (each.name, _TYPES[each.name]) if each.default is MISSING else (each.name, _TYPES[each.name], each.default)
        for each in fields(MemoryHeader)
        if each.name != "kind"
    ],
    tag_field="kind",
    tag="memory",
)


class _Texts(msgspec.Struct, tag_field="kind", tag="texts"):
    values: list[str]


class _Frames(msgspec.Struct, tag_field="kind", tag="frames"):
    files: list[int]
    functions: list[int]
    line_numbers: list[int]


class _Stacks(msgspec.Struct, tag_field="kind", tag="stacks"):
    stacks: list[tuple[int, ...]]


class _Tensors(msgspec.Struct, tag_field="kind", tag="tensors"):
    at: str
    addresses: list[int]
    sizes: list[int]
    roles: list[int]
    names: list[int]


class _Marks(msgspec.Struct, tag_field="kind", tag="marks"):
    times_ns: list[int]
    signs: str
    names: list[int]


class _Segments(msgspec.Struct, tag_field="kind", tag="segments"):
    addresses: list[int]
    sizes: list[int]


class _Blocks(msgspec.Struct, tag_field="kind", tag="blocks"):
    addresses: list[int]
    sizes: list[int]
    requested: list[int]
    live: list[int]
    stacks: list[int]


class _Events(msgspec.Struct, tag_field="kind", tag="events"):
    actions: str
    addresses: list[int]
    sizes: list[int]
    times_us: list[int]
    stacks: list[int]


class _End(msgspec.Struct, tag_field="kind", tag="end"):
    events: int


_Line: Any = Union[_Header, _Texts, _Frames, _Stacks, _Tensors, _Marks, _Segments, _Blocks, _Events, _End]  # noqa: UP007
_Kind = TypeVar("_Kind", bound=msgspec.Struct)


class _Lines:
    """The lines of a file, and its events as arrays; ``damage`` has in words what of it cannot be read."""

    def __init__(self, path: Path) -> None:
        self.lines: list[msgspec.Struct] = []
        self.events: list[tuple[str, Int64]] = []
        self.damage: list[str] = []
        decoder = msgspec.json.Decoder(_Line)
        try:
            for text in _read_lines(path):
                line = decoder.decode(text)
                if isinstance(line, _Events):
                    rows = np.array([line.addresses, line.sizes, line.times_us, line.stacks], np.int64)
                    self.events.append((line.actions, rows))
                else:
                    self.lines.append(line)
        except (EOFError, zlib.error, msgspec.MsgspecError, RecursionError) as error:
            if not any(isinstance(line, _Header) for line in self.lines):
                raise SourceError(path, f"is no allocator's history: {error}") from None
            self.damage.append(f"a line cannot be read: {str(error)[:80]}")
        except OSError as error:
            raise SourceError(path, f"cannot be read: {error.strerror or error}") from None
        except ValueError as error:  # columns of different lengths, or numbers that no address has
            raise SourceError(path, f"contradicts itself: {str(error)[:80]}") from None

    def of(self, kind: type[_Kind]) -> list[_Kind]:
        """The lines of one kind."""
        return [line for line in self.lines if isinstance(line, kind)]


def _read_lines(path: Path) -> Iterator[bytes]:
    with open_regular(path) as file:
        stream = gzip.GzipFile(fileobj=file) if path.suffix == _GZIP_SUFFIX else file
        while line := stream.readline(_LONGEST_LINE):
            if len(line) == _LONGEST_LINE:
                raise ValueError("a line has no end")
            yield line


def read_recorded(path: Path) -> AllocatorHistory:
    """Read a history; of a file that is cut off its intact lines, with the damage in words.

    Raises:
        SourceError: It cannot be read, is no history, or is one of another version.
    """
    lines = _Lines(path)
    headers = [MemoryHeader(**msgspec.structs.asdict(line)) for line in lines.of(_Header)]
    if not headers:
        raise SourceError(path, "has no header of an allocator's history")
    if headers[0].schema != MEMORY_SCHEMA:
        raise SourceError(path, f"is of another version: {headers[0].schema!r} instead of {MEMORY_SCHEMA!r}")
    if not lines.of(_End):
        lines.damage.append("the file is cut off")
    try:
        return _to_history(path, lines, headers[0])
    except (IndexError, ValueError) as error:
        raise SourceError(path, f"contradicts itself: {error}") from None


def _to_history(path: Path, lines: _Lines, header: MemoryHeader) -> AllocatorHistory:
    texts = [text for line in lines.of(_Texts) for text in line.values]
    frames = tuple(
        Frame(texts[file], number, texts[function])
        for line in (lines.of(_Frames) if texts else ())
        for file, number, function in zip(line.files, line.line_numbers, line.functions, strict=True)
    )
    stacks = [stack for line in lines.of(_Stacks) for stack in line.stacks]
    tensors = {line.at: _to_tensors(line, texts) for line in (lines.of(_Tensors) if texts else ())}
    marks = [
        Marks(np.array(line.times_ns, np.int64), line.signs, tuple(texts[number] for number in line.names))
        for line in (lines.of(_Marks) if texts else ())
    ]
    return AllocatorHistory(
        path=str(path),
        device=header.device,
        header=header,
        events=_join_events(lines.events, len(stacks), header.started_ns),
        blocks=_to_blocks(lines.of(_Blocks)),
        reserved_bytes=next((sum(line.sizes) for line in lines.of(_Segments)), header.reserved_bytes),
        stacks=tuple(stacks) if frames else (),
        frames=frames,
        start=tensors.get("start", no_tensors()),
        end=tensors.get("end", no_tensors()),
        marks=marks[0] if marks else no_marks(),
        damage=tuple(lines.damage),
    )


def _join_events(parts: list[tuple[str, Int64]], stack_count: int, started_ns: int) -> AllocatorEvents:
    """The events since recording began: a script that records by itself may have begun earlier."""
    actions = np.frombuffer("".join(letters for letters, _ in parts).encode("ascii"), "S1")
    rows = np.concatenate([np.zeros((4, 0), np.int64), *(rows for _, rows in parts)], axis=1)
    if len(actions) != rows.shape[1]:
        raise ValueError("its events have columns of different lengths")
    addresses, sizes, times_us, stacks = rows
    events = AllocatorEvents(actions, addresses, sizes, times_us, np.where(stacks < stack_count, stacks, -1))
    return events.select((times_us == 0) | (times_us >= started_ns // 1000))


def _to_blocks(lines: list[_Blocks]) -> Blocks:
    rows = [np.array([line.addresses, line.sizes, line.requested, line.stacks], np.int64) for line in lines]
    live = [np.array(line.live, np.bool_) for line in lines]
    return Blocks(*(rows[0][:, live[0]] if rows else np.zeros((4, 0), np.int64)))


def _to_tensors(line: _Tensors, texts: list[str]) -> Tensors:
    return Tensors(
        np.array(line.addresses, np.int64),
        np.array(line.sizes, np.int64),
        tuple(texts[number] for number in line.roles),
        tuple(texts[number] for number in line.names),
    )


def find_histories(run: Path) -> list[Path]:
    """The histories of a run."""
    files = (path for path in (run / MEMORY_FOLDER).glob(f"*{MEMORY_SUFFIX}*") if not path.name.startswith("."))
    return sorted(path for path in files if path.name.endswith((MEMORY_SUFFIX, f"{MEMORY_SUFFIX}.gz")))


def read_histories(path: Path) -> tuple[AllocatorHistory, ...]:
    """Read a file, one history a device.

    Raises:
        SourceError: It cannot be read, or is no history of an allocator.
    """
    if path.name.endswith((MEMORY_SUFFIX, f"{MEMORY_SUFFIX}.gz")):
        return (read_recorded(path),)
    histories = read_snapshot(path)
    if not histories:
        raise SourceError(path, "has neither events nor blocks", hint="was the GPU in use when it was written?")
    return histories
