"""Histories of torch's allocator, by device: those that the hooks write, and snapshots of torch.

``perfscope.wire.memory`` describes the lines of the hooks. A snapshot is what ``torch.cuda.memory._dump_snapshot``
pickles, with the events of every device and the blocks at its end; no code of it runs. memory_viz and Mosaic read the
same files.
"""

from __future__ import annotations

import gzip
import os
import zlib
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, Union, get_type_hints

import msgspec
import numpy as np

from perfscope.constants import GIB, MIB
from perfscope.errors import SourceError
from perfscope.files import GZIP_MAGIC, LARGEST_RATIO, open_regular
from perfscope.sources.pickles import LARGEST_SIZE, PickleDamage, PlainUnpickler
from perfscope.tables.columns import Int64
from perfscope.tables.memory import (
    AllocatorEvents,
    AllocatorHistory,
    Blocks,
    Frame,
    Marks,
    Tensors,
)
from perfscope.wire.memory import (
    ACTIONS,
    MEMORY_FOLDER,
    MEMORY_SCHEMA,
    MEMORY_SUFFIX,
    OTHER_ACTION,
    MemoryHeader,
)

_HINT = "write it with torch.cuda.memory._dump_snapshot(), or record with `perfscope profile --memory`"
_LARGEST_BYTES = 4 * GIB
_LIVE = ("active_allocated", "active_awaiting_free", "active_pending_free")
_NO_STACK = -1
_LETTERS = {name: ord(letter) for name, letter in ACTIONS.items()}
_OTHER = ord(OTHER_ACTION)


class _Block(NamedTuple):
    device: int
    address: int
    size: int
    requested: int
    stack: int


class _KnownStacks:
    """The stacks of a snapshot, each once, as numbers of its frames."""

    def __init__(self) -> None:
        self.all_stacks: list[tuple[int, ...]] = []
        self.frames: list[Frame] = []
        self._numbers: dict[tuple[int, ...], int] = {}
        self._frame_numbers: dict[Frame, int] = {}
        self._by_id: dict[int, tuple[object, int]] = {}

    def find_stack(self, frames: object) -> int:
        """The number of a stack, given as a list of frames."""
        if not isinstance(frames, list) or not frames:
            return _NO_STACK
        stack = tuple([self._find_frame(frame) for frame in frames])
        number = self._numbers.setdefault(stack, len(self.all_stacks))
        if number == len(self.all_stacks):
            self.all_stacks.append(stack)
        return number

    def _find_frame(self, frame: object) -> int:
        numbered = self._by_id.get(id(frame))
        if numbered is None:
            if not isinstance(frame, dict):
                raise TypeError("a frame that is no dict")
            line = frame.get("line", 0)
            name, function = str(frame.get("filename", "")), str(frame.get("name", ""))
            row = Frame(name, line if isinstance(line, int) else 0, function)
            number = self._frame_numbers.setdefault(row, len(self.frames))
            if number == len(self.frames):
                self.frames.append(row)
            numbered = self._by_id[id(frame)] = frame, number  # the frame lives, so that no other gets its id
        return numbered[1]


def read_snapshot(path: Path) -> tuple[AllocatorHistory, ...]:
    """Read a snapshot: one history for each device that has events or blocks.

    Raises SourceError: it cannot be read, is damaged, holds more than plain data, or is no snapshot.
    """
    try:
        value = PlainUnpickler(_read_content(path)).read_value().value
    except PickleDamage as damage:
        problem = str(damage).replace("complete pickle", "complete snapshot")
        problem = f"holds more than plain data: it {problem}" if problem.startswith("would call") else problem
        raise SourceError(path, problem, hint=_HINT) from None
    if not isinstance(value, dict) or not isinstance(value.get("segments"), list):
        raise SourceError(path, "is a pickle, but no snapshot of torch's allocator: it has no segments", hint=_HINT)
    try:
        return _to_histories(path, value)
    except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
        raise SourceError(path, f"is of a version that is not known: {str(error)[:80]}", hint=_HINT) from None


def _read_content(path: Path) -> bytes:
    try:
        with open_regular(path) as file:
            is_compressed = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
            file.seek(0)
            stream = gzip.GzipFile(fileobj=file) if is_compressed else file
            most = min(_LARGEST_BYTES, LARGEST_RATIO * os.fstat(file.fileno()).st_size)
            content = stream.read(most + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise SourceError(path, "is cut off") from None
    except OSError as error:
        raise SourceError(path, f"cannot be read: {error.strerror or error}") from None
    if len(content) > most:
        raise SourceError(path, f"holds more than {most:,} bytes: no snapshot does")
    return content


def _to_histories(path: Path, value: Mapping[object, object]) -> tuple[AllocatorHistory, ...]:
    known = _KnownStacks()
    traces = value.get("device_traces")
    traces = traces if isinstance(traces, list) else []
    segments = _dicts(value["segments"])
    blocks: dict[int, list[_Block]] = {}
    reserved_bytes: Counter[int] = Counter()
    for segment in segments:
        reserved_bytes[_device(segment)] += _int(segment, "total_size")
        for block in _live_blocks(segment, known):
            blocks.setdefault(block.device, []).append(block)
    devices = sorted({index for index, trace in enumerate(traces) if trace} | blocks.keys())
    if len(devices) > 64:  # noqa: PLR2004 - no machine has as many
        raise ValueError(f"{len(devices)} devices")
    events = {device: _events(traces[device] if device < len(traces) else [], known) for device in devices}
    stacks, frames = tuple(known.all_stacks), tuple(known.frames)
    return tuple(
        AllocatorHistory(
            path=str(path),
            device=device,
            header=None,
            events=events[device],
            blocks=_to_blocks(blocks.get(device, [])),
            reserved_bytes=reserved_bytes[device],
            stacks=stacks,
            frames=frames,
        )
        for device in devices
    )


def _events(trace: object, known: _KnownStacks) -> AllocatorEvents:
    actions, columns = bytearray(), tuple(array("q") for _ in range(4))
    for event in _dicts(trace):
        action, address = event["action"], event.get("addr", event.get("device_free", 0))
        if not isinstance(action, str):
            raise TypeError("an action that is no text")
        actions.append(_LETTERS.get(action, _OTHER))
        numbers = (address, event.get("size", 0), event.get("time_us", 0), known.find_stack(event.get("frames")))
        for column, number in zip(columns, numbers, strict=True):
            if not isinstance(number, int) or not _NO_STACK <= number <= LARGEST_SIZE:
                raise ValueError(f"a number that is none: {str(number)[:40]}")
            column.append(number)
    return AllocatorEvents(np.frombuffer(bytes(actions), "S1"), *(np.array(column, np.int64) for column in columns))


def _live_blocks(segment: Mapping[object, object], known: _KnownStacks) -> Iterator[_Block]:
    """The blocks of a segment that tensors hold; older versions of torch do not state where each begins."""
    address = _int(segment, "address")
    end = address + _int(segment, "total_size")
    for block in _dicts(segment.get("blocks", [])):
        address = _int(block, "address", address)
        size = _int(block, "size")
        if size == 0 or address + size > end:  # so a list that names one block a million times ends soon
            raise ValueError("a block outside of its segment")
        if block.get("state") in _LIVE:
            stack = known.find_stack(_block_frames(block))
            yield _Block(_device(segment), address, size, _int(block, "requested_size", size), stack)
        address += size


def _block_frames(block: Mapping[object, object]) -> object:
    """The stack that allocated a block; torch 2.0 has a history in its place."""
    history = block.get("history")
    if isinstance(history, list) and history and isinstance(history[0], dict):
        return history[0].get("frames")
    return block.get("frames")


def _to_blocks(blocks: Sequence[_Block]) -> Blocks:
    rows = np.array([block[1:] for block in blocks], np.int64).reshape(-1, 4)
    return Blocks(*(np.ascontiguousarray(column) for column in rows.T))


def _dicts(values: object) -> list[dict[object, object]]:
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise TypeError("a list of dicts is something else")
    return values


def _device(segment: Mapping[object, object]) -> int:
    return _int(segment, "device", 0)


def _int(values: Mapping[object, object], key: str, default: int | None = None) -> int:
    value = values.get(key, default)
    if type(value) is not int or not 0 <= value <= LARGEST_SIZE:
        raise TypeError(f"{key} is no number")
    return value


#: A line has 20,000 events or stacks of some hundred frames; a longer one is no history.
_LONGEST_LINE = 256 * MIB
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

    Raises SourceError: it cannot be read, is no history, or is one of another version.
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
        blocks=_blocks_of(lines.of(_Blocks)),
        reserved_bytes=next((sum(line.sizes) for line in lines.of(_Segments)), header.reserved_bytes),
        stacks=tuple(stacks) if frames else (),
        frames=frames,
        start=tensors.get("start", Tensors()),
        end=tensors.get("end", Tensors()),
        marks=marks[0] if marks else Marks(),
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


def _blocks_of(lines: list[_Blocks]) -> Blocks:
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
    """Read a file, one history a device. Raises SourceError: it cannot be read, or is no history of an allocator."""
    if path.name.endswith((MEMORY_SUFFIX, f"{MEMORY_SUFFIX}.gz")):
        return (read_recorded(path),)
    histories = read_snapshot(path)
    if not histories:
        raise SourceError(path, "has neither events nor blocks", hint="was the GPU in use when it was written?")
    return histories
