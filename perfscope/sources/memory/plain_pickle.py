"""The value of a pickle that holds plain data alone: dicts, lists, tuples, texts and numbers.

No module is imported and no function is called: a pickle that names one is refused. Dicts that say what the allocator
did (they have an ``action``) become rows of columns instead of dicts, of which a snapshot may have millions. Most of
them are alike, byte by byte: the first of each kind is replayed opcode by opcode, and teaches a regular expression that
reads the others.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TypeAlias

from perfscope.sources.checkpoints.collection import without_collection
from perfscope.sources.memory.event_patterns import EventPatterns
from perfscope.sources.memory.event_rows import EventRows

#: A value without objects: a row of an event is an integer.
Plain: TypeAlias = "dict[object, object] | list[object] | tuple[object, ...] | str | int | float | bool | None"

#: Opcodes that are replayed one by one; a snapshot's events are not.
_MOST_OPCODES = 60_000_000
_STOP = ord(".")
_EMPTY_DICT = ord("}")
_ACTION = "action"


class NotPlain(Exception):
    """The pickle is damaged, or holds more than plain data."""


class PlainPickle:
    """A pickle that is replayed on plain values.

    Attributes:
        rows: The events, in the order in which they stand in the pickle.
    """

    def __init__(self, content: bytes) -> None:
        self.rows = EventRows()
        self._content = content
        self._position = 0
        self._stack: list[object] = []
        self._outer: list[list[object]] = []
        self._memo: list[object] = []
        self._begins: dict[int, int] = {}
        self._patterns = EventPatterns(content, self._memo, self.rows)

    def read(self) -> object:
        """Replay it.

        Raises:
            NotPlain: It is cut off, is no pickle, or holds more than plain data.
        """
        try:
            with without_collection():
                self._run()
            return self._stack.pop()
        except NotPlain:
            raise
        except (ValueError, IndexError, KeyError, TypeError, OverflowError, UnicodeError, struct.error) as error:
            raise NotPlain(f"is not a complete snapshot ({str(error)[:80]})") from None

    def _run(self) -> None:
        content, patterns = self._content, self._patterns
        for _ in range(_MOST_OPCODES):
            code = content[self._position]
            if code == _EMPTY_DICT:
                end = patterns.read_events(self._position, self._stack)
                if end != self._position:
                    self._position = end
                    continue
            self._position += 1
            if code == _STOP:
                return
            handler = _HANDLERS.get(code)
            if handler is None:
                raise NotPlain(f"holds more than plain data (opcode {bytes([code])!r}): no snapshot does")
            handler(self)
        raise NotPlain(f"has more than {_MOST_OPCODES:,} opcodes")

    # Opcodes.
    def _take(self, size: int) -> bytes:
        end = self._position + size
        if end > len(self._content):
            raise IndexError("cut off")
        taken = self._content[self._position : end]
        self._position = end
        return taken

    def _push(self, value: object) -> None:
        self._stack.append(value)

    def _mark(self) -> None:
        self._outer.append(self._stack)
        self._stack = []

    def _pop_to_mark(self) -> list[object]:
        popped, self._stack = self._stack, self._outer.pop()
        return popped

    def _push_dict(self) -> None:
        new: dict[object, object] = {}
        self._begins[id(new)] = self._position - 1
        self._stack.append(new)

    def _set_items(self, values: list[object]) -> None:
        target = self._stack[-1]
        if not isinstance(target, dict):
            raise TypeError("items of no dict")
        for key, value in zip(values[::2], values[1::2], strict=True):
            if not isinstance(key, str):
                raise TypeError("a key that is no text")
            target[key] = value
        begin = self._begins.pop(id(target), None)
        if _ACTION in target:
            self._stack[-1] = self.rows.add(target)
            if begin is not None:
                self._patterns.learn(begin, self._position)

    def _set_item(self) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._set_items([key, value])

    def _append(self, values: list[object]) -> None:
        target = self._stack[-1]
        if not isinstance(target, list):
            raise TypeError("elements of no list")
        target.extend(values)

    def _pop_tuple(self, size: int) -> None:
        if len(self._stack) < size:
            raise IndexError("short stack")
        self._stack[len(self._stack) - size :] = [tuple(self._stack[len(self._stack) - size :])]

    def _memoize(self, key: int) -> None:
        """Remember a value; its keys are counted by every pickler of Python 3."""
        if key == len(self._memo):
            self._memo.append(self._stack[-1])
        else:
            self._memo[key] = self._stack[-1]

    def _read_int(self, size: int, *, signed: bool = False) -> int:
        return int.from_bytes(self._take(size), "little", signed=signed)

    def _read_text(self, size: int) -> str:
        return self._take(size).decode("utf-8", "surrogatepass")


_HANDLERS: dict[int, Callable[[PlainPickle], None]] = {
    0x80: lambda machine: machine._take(1) and None,
    0x95: lambda machine: machine._take(8) and None,
    ord("N"): lambda machine: machine._push(None),
    0x88: lambda machine: machine._push(True),
    0x89: lambda machine: machine._push(False),
    ord("K"): lambda machine: machine._push(machine._read_int(1)),
    ord("M"): lambda machine: machine._push(machine._read_int(2)),
    ord("J"): lambda machine: machine._push(machine._read_int(4, signed=True)),
    0x8A: lambda machine: machine._push(machine._read_int(machine._read_int(1), signed=True)),
    ord("G"): lambda machine: machine._push(struct.unpack(">d", machine._take(8))[0]),
    0x8C: lambda machine: machine._push(machine._read_text(machine._read_int(1))),
    ord("X"): lambda machine: machine._push(machine._read_text(machine._read_int(4))),
    0x8D: lambda machine: machine._push(machine._read_text(machine._read_int(8))),
    ord("}"): PlainPickle._push_dict,
    ord("]"): lambda machine: machine._push([]),
    ord(")"): lambda machine: machine._push(()),
    ord("("): PlainPickle._mark,
    ord("0"): lambda machine: machine._stack.pop() and None,
    ord("s"): PlainPickle._set_item,
    ord("u"): lambda machine: machine._set_items(machine._pop_to_mark()),
    ord("a"): lambda machine: machine._append([machine._stack.pop()]),
    ord("e"): lambda machine: machine._append(machine._pop_to_mark()),
    ord("t"): lambda machine: machine._push(tuple(machine._pop_to_mark())),
    0x85: lambda machine: machine._pop_tuple(1),
    0x86: lambda machine: machine._pop_tuple(2),
    0x87: lambda machine: machine._pop_tuple(3),
    0x94: lambda machine: machine._memoize(len(machine._memo)),
    ord("q"): lambda machine: machine._memoize(machine._read_int(1)),
    ord("r"): lambda machine: machine._memoize(machine._read_int(4)),
    ord("h"): lambda machine: machine._push(machine._memo[machine._read_int(1)]),
    ord("j"): lambda machine: machine._push(machine._memo[machine._read_int(4)]),
}
