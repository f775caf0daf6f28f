"""Events of the allocator as columns, and the stacks that they name."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

import numpy as np

from perfscope.tables.columns import Int64
from perfscope.tables.memory import Events, Frame
from perfscope.wire.memory import ACTIONS, OTHER_ACTION

NO_STACK = -1
#: No address, size or time in microseconds is larger.
_LARGEST = 2**63 - 1
_LETTERS = {name: ord(letter) for name, letter in ACTIONS.items()}
_OTHER = ord(OTHER_ACTION)


class EventRows:
    """Columns that grow by one event after the other.

    Attributes:
        actions, addresses, sizes, times_us, stacks: The columns.
        all_stacks: The frames' numbers of each stack, by the stack's number.
        frames: The frames.
    """

    def __init__(self) -> None:
        self.actions = array("B")
        self.addresses, self.sizes, self.times_us, self.stacks = array("q"), array("q"), array("q"), array("q")
        self.all_stacks: list[tuple[int, ...]] = []
        self.frames: list[Frame] = []
        self._numbers: dict[tuple[int, ...], int] = {}
        self._by_list: dict[int, tuple[object, int]] = {}
        self._frame_numbers: dict[Frame, int] = {}
        self._by_dict: dict[int, tuple[object, int]] = {}

    def add(self, event: Mapping[object, object]) -> int:
        """Add an event; returns its row."""
        address = event.get("addr", event.get("device_free", 0))
        self.add_values(event["action"], address, event.get("size", 0), event.get("time_us", 0))
        self.stacks.append(self.find_stack(event.get("frames")))
        return len(self.actions) - 1

    def add_values(self, action: object, address: object, size: object, time_us: object) -> None:
        """Add the values of an event but its stack."""
        self.actions.append(find_letter(action))
        self.addresses.append(_to_int(address))
        self.sizes.append(_to_int(size))
        self.times_us.append(_to_int(time_us))

    def add_numbers(self, numbers: Int64) -> None:
        """Add address, size and time of events whose action and stack were added; one row an event."""
        for column, values in zip((self.addresses, self.sizes, self.times_us), numbers.T, strict=True):
            column.frombytes(np.ascontiguousarray(values).tobytes())

    def find_stack(self, frames: object) -> int:
        """The number of a stack, given as a list of frames."""
        if not isinstance(frames, list) or not frames:
            return NO_STACK
        numbered = self._by_list.get(id(frames))
        if numbered is None:
            number = self.number_stack(tuple([self._find_frame(frame) for frame in frames]))
            numbered = self._by_list[id(frames)] = frames, number  # the list lives, so that no other gets its id
        return numbered[1]

    def number_stack(self, stack: tuple[int, ...]) -> int:
        """The number of a stack, given as numbers of frames."""
        number = self._numbers.setdefault(stack, len(self.all_stacks))
        if number == len(self.all_stacks):
            self.all_stacks.append(stack)
        return number

    def _find_frame(self, frame: object) -> int:
        numbered = self._by_dict.get(id(frame))
        if numbered is None:
            row = _to_frame(frame)
            number = self._frame_numbers.setdefault(row, len(self.frames))
            if number == len(self.frames):
                self.frames.append(row)
            numbered = self._by_dict[id(frame)] = frame, number
        return numbered[1]

    def select(self, rows: Sequence[int]) -> Events:
        """Some of the events, by their rows."""
        index = np.array(rows, np.int64)
        actions = np.frombuffer(self.actions, "S1") if len(self.actions) else np.zeros(0, "S1")
        columns = (self.addresses, self.sizes, self.times_us, self.stacks)
        addresses, sizes, times_us, stacks = (np.frombuffer(column, np.int64)[index] for column in columns)
        return Events(actions[index], addresses, sizes, times_us, stacks)


def find_letter(action: object) -> int:
    """The letter of an action, as a number."""
    if not isinstance(action, str):
        raise TypeError("an action that is no text")
    return _LETTERS.get(action, _OTHER)


def _to_int(value: object) -> int:
    if not isinstance(value, int) or not 0 <= value <= _LARGEST:
        raise ValueError(f"a number that is none: {str(value)[:40]}")
    return value


def _to_frame(frame: object) -> Frame:
    if not isinstance(frame, dict):
        raise TypeError("a frame that is no dict")
    line = frame.get("line", 0)
    return Frame(str(frame.get("filename", "")), line if isinstance(line, int) else 0, str(frame.get("name", "")))
