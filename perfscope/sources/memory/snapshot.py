"""Snapshots of torch's allocator: what ``torch.cuda.memory._dump_snapshot`` pickles, read without unpickling.

memory_viz and Mosaic read the same files. A snapshot has the events of every device and the blocks at its end.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from perfscope.errors import SourceError
from perfscope.sources.memory.event_rows import EventRows
from perfscope.sources.memory.plain_pickle import NotPlain, read_plain
from perfscope.tables.memory import AllocatorHistory, Blocks, Events, no_marks, no_tensors

_HINT = "write it with torch.cuda.memory._dump_snapshot(), or record with `perfscope profile --memory`"
_MOST_DEVICES = 64
_GZIP_MAGIC = b"\x1f\x8b"
#: gzip makes snapshots up to 40 times smaller.
_LARGEST_BYTES = 4 << 30
_LIVE = ("active_allocated", "active_awaiting_free", "active_pending_free")
_LARGEST = 2**63 - 1


class _Block(NamedTuple):
    """A block that a tensor holds."""

    device: int
    address: int
    size: int
    requested: int
    stack: int


def read_snapshot(path: Path) -> tuple[AllocatorHistory, ...]:
    """Read a snapshot: one history for each device that has events or blocks.

    Raises:
        SourceError: It cannot be read, is damaged, holds more than plain data, or is no snapshot.
    """
    try:
        value, rows = read_plain(_read_content(path))
    except NotPlain as problem:
        raise SourceError(path, str(problem), hint=_HINT) from None
    if not isinstance(value, dict) or not isinstance(value.get("segments"), list):
        raise SourceError(path, "is a pickle, but no snapshot of torch's allocator: it has no segments", hint=_HINT)
    try:
        return _to_histories(path, value, rows)
    except (TypeError, ValueError, IndexError, OverflowError) as error:
        raise SourceError(path, f"is of a version that is not known: {str(error)[:80]}", hint=_HINT) from None


def _read_content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            is_compressed = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
        with gzip.open(path) if is_compressed else path.open("rb") as file:
            content = file.read(_LARGEST_BYTES)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise SourceError(path, "is cut off") from None
    except OSError as error:
        raise SourceError(path, f"cannot be read: {error.strerror or error}") from None
    if len(content) == _LARGEST_BYTES:
        raise SourceError(path, f"is larger than {_LARGEST_BYTES >> 30} GiB")
    return content


def _to_histories(path: Path, value: Mapping[object, object], rows: EventRows) -> tuple[AllocatorHistory, ...]:
    traces = value.get("device_traces")
    traces = traces if isinstance(traces, list) else []
    if len(traces) > _MOST_DEVICES:
        raise ValueError(f"{len(traces)} devices")
    segments = _dicts(value["segments"])
    blocks = [block for segment in segments for block in _live_blocks(segment, rows)]
    devices = sorted({index for index, trace in enumerate(traces) if trace} | {block.device for block in blocks})
    events = {device: _events(traces, device, rows) for device in devices}
    stacks, frames = tuple(rows.all_stacks), tuple(rows.frames)
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


def _events(traces: Sequence[object], device: int, rows: EventRows) -> Events:
    trace = traces[device] if device < len(traces) else []
    if not isinstance(trace, list) or set(map(type, trace)) - {int}:
        raise TypeError("events without an action")
    return rows.select(trace)


def _live_blocks(segment: Mapping[object, object], rows: EventRows) -> Iterator[_Block]:
    """The blocks of a segment that tensors hold; older versions of torch do not state where each begins."""
    address = _int(segment, "address")
    end = address + _int(segment, "total_size")
    for block in _dicts(segment.get("blocks", [])):
        address = _int(block, "address", address)
        size = _int(block, "size")
        if size == 0 or address + size > end:  # so a list that names one block a million times ends soon
            raise ValueError("a block outside of its segment")
        if block.get("state") in _LIVE:
            stack = rows.find_stack(_block_frames(block))
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
    if type(value) is not int or not 0 <= value <= _LARGEST:
        raise TypeError(f"{key} is no number")
    return value
