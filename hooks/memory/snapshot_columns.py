"""A snapshot of torch's allocator as lines of columns: plain numbers, each text and each stack once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from perfscope.hooks.memory.module_marks import ModuleMarks
from perfscope.hooks.memory.tensor_roles import Role
from perfscope.wire.memory import ACTIONS, OTHER_ACTION

#: Events and stacks of one line: lines of about a megabyte.
_CHUNK = 20_000
_LIVE = "active_allocated", "active_awaiting_free", "active_pending_free"


class SnapshotColumns:
    """Makes lines of one device's history, a chunk at a time; ``frames`` of a snapshot are lists of dicts."""

    def __init__(self) -> None:
        self._texts: dict[str, int] = {}
        self._frames: dict[int, int] = {}
        self._frame_rows: list[tuple[int, int, int]] = []
        self._stacks: dict[tuple[int, ...], int] = {}
        self._stacks_of_lists: dict[int, int] = {}

    def lines(
        self,
        snapshot: Mapping[str, Any],
        device: int,
        tensors: Mapping[str, Sequence[Role]],
        marks: ModuleMarks,
    ) -> Iterator[bytes]:
        """The lines between header and end; texts, frames and stacks stand last, when all of them are known."""
        trace = snapshot["device_traces"][device] if device < len(snapshot["device_traces"]) else []
        yield from self._event_lines(trace)
        yield from self._state_lines([s for s in snapshot["segments"] if s.get("device", device) == device])
        for at, roles in tensors.items():
            yield _line("tensors", at=at, **self._tensor_columns(roles))
        names = [self._text(name) for name in marks.names]
        yield _line("marks", times_ns=marks.times_ns, signs="".join(marks.signs), names=names)
        yield from self._stack_lines()

    def _event_lines(self, trace: Sequence[Mapping[str, Any]]) -> Iterator[bytes]:
        for begin in range(0, len(trace), _CHUNK):
            events = trace[begin : begin + _CHUNK]
            yield _line(
                "events",
                actions="".join([ACTIONS.get(event["action"], OTHER_ACTION) for event in events]),
                addresses=[event.get("addr", event.get("device_free", 0)) for event in events],
                sizes=[event.get("size", 0) for event in events],
                streams=[event.get("stream", 0) for event in events],
                times_us=[event.get("time_us", 0) for event in events],
                stacks=[self._stack(event.get("frames")) for event in events],
            )

    def _state_lines(self, segments: Sequence[Mapping[str, Any]]) -> Iterator[bytes]:
        yield _line(
            "segments",
            addresses=[segment["address"] for segment in segments],
            sizes=[segment["total_size"] for segment in segments],
            streams=[segment.get("stream", 0) for segment in segments],
        )
        blocks = [(segment["address"], segment["blocks"]) for segment in segments]
        rows = [row for begin, inside in blocks for row in _place(begin, inside)]
        yield _line(
            "blocks",
            addresses=[address for address, _ in rows],
            sizes=[block["size"] for _, block in rows],
            requested=[block.get("requested_size", block["size"]) for _, block in rows],
            live=[int(block["state"] in _LIVE) for _, block in rows],
            stacks=[self._stack(block.get("frames")) for _, block in rows],
        )

    def _tensor_columns(self, roles: Sequence[Role]) -> dict[str, list[int]]:
        return {
            "addresses": [role.address for role in roles],
            "sizes": [role.size for role in roles],
            "roles": [self._text(role.role) for role in roles],
            "names": [self._text(role.name) for role in roles],
        }

    def _stack_lines(self) -> Iterator[bytes]:
        stacks = list(self._stacks)
        for begin in range(0, len(stacks), _CHUNK):
            yield _line("stacks", stacks=stacks[begin : begin + _CHUNK])
        yield _line(
            "frames",
            files=[row[0] for row in self._frame_rows],
            functions=[row[1] for row in self._frame_rows],
            line_numbers=[row[2] for row in self._frame_rows],
        )
        yield _line("texts", values=list(self._texts))

    def _stack(self, frames: Sequence[Mapping[str, Any]] | None) -> int:
        """The number of a stack; torch repeats the same list for each event with the same stack."""
        if not frames:
            return -1
        number = self._stacks_of_lists.get(id(frames))
        if number is None:
            stack = tuple([self._frame(frame) for frame in frames])
            number = self._stacks.setdefault(stack, len(self._stacks))
            self._stacks_of_lists[id(frames)] = number
        return number

    def _frame(self, frame: Mapping[str, Any]) -> int:
        number = self._frames.get(id(frame))
        if number is None:
            number = self._frames[id(frame)] = len(self._frame_rows)
            row = self._text(str(frame["filename"])), self._text(str(frame["name"])), int(frame["line"])
            self._frame_rows.append(row)
        return number

    def _text(self, text: str) -> int:
        return self._texts.setdefault(text, len(self._texts))


def _place(begin: int, blocks: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Each block of a segment with its address, which older versions of torch do not state."""
    for block in blocks:
        begin = int(block.get("address", begin))
        yield begin, block
        begin += int(block["size"])


def _line(kind: str, **columns: object) -> bytes:
    return json.dumps({"kind": kind, **columns}, separators=(",", ":")).encode() + b"\n"
