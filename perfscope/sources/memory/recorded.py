"""The allocator's history as perfscope's hooks write it: lines of columns; see ``perfscope.wire.memory``."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from perfscope.errors import SourceError
from perfscope.files import open_regular
from perfscope.sources.memory.snapshot import read_snapshot
from perfscope.tables.columns import Int64
from perfscope.tables.memory import AllocatorHistory, Blocks, Events, Frame, Marks, Tensors, no_marks, no_tensors
from perfscope.wire.memory import MEMORY_FOLDER, MEMORY_SCHEMA, MEMORY_SUFFIX, MemoryHeader

#: A line has 20,000 events or stacks of some hundred frames; a longer one is no history.
_LONGEST_LINE = 256 * 1024 * 1024
_GZIP_SUFFIX = ".gz"


class _Header(msgspec.Struct, tag_field="kind", tag="memory"):
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
    schema: str = ""


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


_Line = _Header | _Texts | _Frames | _Stacks | _Tensors | _Marks | _Segments | _Blocks | _Events | _End


@dataclass(slots=True)
class _Parts:
    """The lines of a file, by kind."""

    header: _Header | None = None
    texts: list[str] = field(default_factory=list)
    frames: list[_Frames] = field(default_factory=list)
    stacks: list[tuple[int, ...]] = field(default_factory=list)
    tensors: dict[str, _Tensors] = field(default_factory=dict)
    marks: _Marks | None = None
    segments: _Segments | None = None
    blocks: _Blocks | None = None
    events: list[tuple[str, Int64]] = field(default_factory=list)
    is_complete: bool = False

    def add(self, line: _Line) -> None:
        """Take one line."""
        match line:
            case _Header():
                self.header = line
            case _Texts():
                self.texts += line.values
            case _Frames():
                self.frames.append(line)
            case _Stacks():
                self.stacks += line.stacks
            case _Tensors():
                self.tensors[line.at] = line
            case _Marks():
                self.marks = line
            case _Segments():
                self.segments = line
            case _Blocks():
                self.blocks = line
            case _Events():
                rows = np.array([line.addresses, line.sizes, line.times_us, line.stacks], np.int64)
                self.events.append((line.actions, rows))
            case _End():
                self.is_complete = True


def read_recorded(path: Path) -> AllocatorHistory:
    """Read a history; of a file that is cut off its intact lines, with the damage in words.

    Raises:
        SourceError: It cannot be read, is no history, or is one of another version.
    """
    parts, damage = _read_parts(path)
    header = parts.header
    if header is None:
        raise SourceError(path, "has no header of an allocator's history")
    if header.schema != MEMORY_SCHEMA:
        raise SourceError(path, f"is of another version: {header.schema!r} instead of {MEMORY_SCHEMA!r}")
    if not parts.is_complete:
        damage.append("the file is cut off")
    try:
        return _to_history(path, parts, header, damage)
    except (IndexError, ValueError) as error:
        raise SourceError(path, f"contradicts itself: {error}") from None


def _read_parts(path: Path) -> tuple[_Parts, list[str]]:
    parts, damage = _Parts(), list[str]()
    decoder = msgspec.json.Decoder(_Line)
    try:
        for line in _lines(path):
            parts.add(decoder.decode(line))
    except (EOFError, zlib.error, msgspec.MsgspecError, RecursionError) as error:
        if parts.header is None:
            raise SourceError(path, f"is no allocator's history: {error}") from None
        damage.append(f"a line cannot be read: {str(error)[:80]}")
    except OSError as error:
        raise SourceError(path, f"cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # columns of different lengths, or numbers that no address has
        raise SourceError(path, f"contradicts itself: {str(error)[:80]}") from None
    return parts, damage


def _lines(path: Path) -> Iterator[bytes]:
    with open_regular(path) as file:
        stream = gzip.GzipFile(fileobj=file) if path.suffix == _GZIP_SUFFIX else file
        while line := stream.readline(_LONGEST_LINE):
            if len(line) == _LONGEST_LINE:
                raise ValueError("a line has no end")
            yield line


def _to_history(path: Path, parts: _Parts, header: _Header, damage: list[str]) -> AllocatorHistory:
    fields = msgspec.structs.asdict(header)
    frames = tuple(
        Frame(parts.texts[file], number, parts.texts[function])
        for part in (parts.frames if parts.texts else ())
        for file, number, function in zip(part.files, part.line_numbers, part.functions, strict=True)
    )
    segments = parts.segments
    return AllocatorHistory(
        path=str(path),
        device=header.device,
        header=MemoryHeader(**fields),
        events=_join_events(parts, header),
        blocks=_to_blocks(parts.blocks),
        reserved_bytes=sum(segments.sizes) if segments is not None else header.reserved_bytes,
        stacks=tuple(parts.stacks) if frames else (),
        frames=frames,
        start=_to_tensors(parts, "start"),
        end=_to_tensors(parts, "end"),
        marks=_to_marks(parts),
        damage=tuple(damage),
    )


def _join_events(parts: _Parts, header: _Header) -> Events:
    """The events since recording began: a script that records by itself may have begun earlier."""
    actions = np.frombuffer("".join(letters for letters, _ in parts.events).encode("ascii"), "S1")
    rows = np.concatenate([rows for _, rows in parts.events], axis=1) if parts.events else np.zeros((4, 0), np.int64)
    if len(actions) != rows.shape[1]:
        raise ValueError("its events have columns of different lengths")
    events = Events(actions, *rows)
    stacks = np.where(events.stacks < len(parts.stacks), events.stacks, -1)
    events = Events(actions, events.addresses, events.sizes, events.times_us, stacks)
    return events.select((events.times_us == 0) | (events.times_us >= header.started_ns // 1000))


def _to_blocks(blocks: _Blocks | None) -> Blocks:
    if blocks is None:
        return Blocks(*np.zeros((4, 0), np.int64))
    rows = np.array([blocks.addresses, blocks.sizes, blocks.requested, blocks.stacks], np.int64)
    return Blocks(*rows[:, np.array(blocks.live, np.bool_)])


def _to_tensors(parts: _Parts, at: str) -> Tensors:
    tensors = parts.tensors.get(at)
    if tensors is None or not parts.texts:
        return no_tensors()
    return Tensors(
        np.array(tensors.addresses, np.int64),
        np.array(tensors.sizes, np.int64),
        tuple(parts.texts[number] for number in tensors.roles),
        tuple(parts.texts[number] for number in tensors.names),
    )


def _to_marks(parts: _Parts) -> Marks:
    if parts.marks is None or not parts.texts:
        return no_marks()
    names = tuple(parts.texts[number] for number in parts.marks.names)
    return Marks(np.array(parts.marks.times_ns, np.int64), parts.marks.signs, names)


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
