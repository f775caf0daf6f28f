"""Snapshots of torch's allocator: what ``torch.cuda.memory._dump_snapshot`` pickles; no code of it runs.

memory_viz and Mosaic read the same files. A snapshot has the events of every device and the blocks at its end.
"""

from __future__ import annotations

import gzip
import io
import os
import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from perfscope.errors import SourceError
from perfscope.files import open_regular
from perfscope.sources.pickles import LARGEST_SIZE, PickleDamage, PlainUnpickler
from perfscope.tables.memory import AllocatorEvents, AllocatorHistory, Blocks, Frame, no_marks, no_tensors
from perfscope.wire.memory import ACTIONS, OTHER_ACTION

_HINT = "write it with torch.cuda.memory._dump_snapshot(), or record with `perfscope profile --memory`"
_MOST_DEVICES = 64
_GZIP_MAGIC = b"\x1f\x8b"
_LARGEST_BYTES = 4 << 30
#: gzip makes snapshots up to 40 times smaller.
_MOST_COMPRESSED = 250
_LIVE = ("active_allocated", "active_awaiting_free", "active_pending_free")
_PIECE = 1 << 24
_NO_STACK = -1
_LETTERS = {name: ord(letter) for name, letter in ACTIONS.items()}
_OTHER = ord(OTHER_ACTION)


class _Block(NamedTuple):
    device: int
    address: int
    size: int
    requested: int
    stack: int


class _Stacks:
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

    Raises:
        SourceError: It cannot be read, is damaged, holds more than plain data, or is no snapshot.
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
    content = io.BytesIO()
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            is_compressed = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
            file.seek(0)
            stream = gzip.GzipFile(fileobj=file) if is_compressed else file
            while piece := stream.read(_PIECE):
                content.write(piece)
                if content.tell() > _LARGEST_BYTES:
                    raise SourceError(path, f"is larger than {_LARGEST_BYTES >> 30} GiB")
                if is_compressed and content.tell() > _MOST_COMPRESSED * size:
                    raise SourceError(path, f"is packed more than {_MOST_COMPRESSED} times: no snapshot is")
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise SourceError(path, "is cut off") from None
    except OSError as error:
        raise SourceError(path, f"cannot be read: {error.strerror or error}") from None
    return content.getvalue()


def _to_histories(path: Path, value: Mapping[object, object]) -> tuple[AllocatorHistory, ...]:
    known = _Stacks()
    traces = value.get("device_traces")
    traces = traces if isinstance(traces, list) else []
    if len(traces) > _MOST_DEVICES:
        raise ValueError(f"{len(traces)} devices")
    segments = _dicts(value["segments"])
    blocks = [block for segment in segments for block in _live_blocks(segment, known)]
    devices = sorted({index for index, trace in enumerate(traces) if trace} | {block.device for block in blocks})
    events = {device: _events(traces[device] if device < len(traces) else [], known) for device in devices}
    stacks, frames = tuple(known.all_stacks), tuple(known.frames)
    return tuple(
        AllocatorHistory(
            path=str(path),
            device=device,
            header=None,
            events=events[device],
            blocks=_to_blocks([block for block in blocks if block.device == device]),
            reserved_bytes=sum(_int(segment, "total_size") for segment in segments if _device(segment) == device),
            stacks=stacks,
            frames=frames,
            start=no_tensors(),
            end=no_tensors(),
            marks=no_marks(),
        )
        for device in devices
    )


def _events(trace: object, known: _Stacks) -> AllocatorEvents:
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


def _live_blocks(segment: Mapping[object, object], known: _Stacks) -> Iterator[_Block]:
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
