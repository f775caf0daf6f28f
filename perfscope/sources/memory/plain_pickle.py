"""The value of a pickle that holds plain data alone: dicts, lists, tuples, texts and numbers.

No module is imported and no function is called: a pickle that names one is refused. Dicts that say what the allocator
did (they have an ``action``) become rows of columns instead of dicts, of which a snapshot may have millions. Most of
them are alike, byte by byte: the first of each kind is replayed opcode by opcode, and teaches a regular expression that
reads the others.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from perfscope.sources.checkpoints.collection import without_collection
from perfscope.sources.memory.event_patterns import EventPatterns
from perfscope.sources.memory.event_rows import EventRows

#: Opcodes that are replayed one by one; a snapshot's events are not.
_MOST_OPCODES = 60_000_000
_STOP = ord(".")
_EMPTY_DICT = ord("}")
_ACTION = "action"


class NotPlain(Exception):
    """The pickle is damaged, or holds more than plain data."""


def read_plain(content: bytes) -> tuple[object, EventRows]:
    """Read a pickle: its value, in which events are numbers of rows, and the rows.

    Raises:
        NotPlain: It is cut off, is no pickle, or holds more than plain data.
    """
    machine = _Machine(content)
    try:
        with without_collection():
            machine.run()
        return machine.stack.pop(), machine.rows
    except NotPlain:
        raise
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, UnicodeError, struct.error) as error:
        raise NotPlain(f"is not a complete snapshot ({str(error)[:80]})") from None


class _Machine:
    """The stack and the memo of a pickle of plain values."""

    def __init__(self, content: bytes) -> None:
        self.rows = EventRows()
        self.content = content
        self.position = 0
        self.stack: list[object] = []
        self.outer: list[list[object]] = []
        self.memo: list[object] = []
        self.begins: dict[int, int] = {}
        self.patterns = EventPatterns(content, self.memo, self.rows)

    def run(self) -> None:
        content, patterns = self.content, self.patterns
        for _ in range(_MOST_OPCODES):
            code = content[self.position]
            if code == _EMPTY_DICT:
                end = patterns.read_events(self.position, self.stack)
                if end != self.position:
                    self.position = end
                    continue
            self.position += 1
            if code == _STOP:
                return
            handler = _HANDLERS.get(code)
            if handler is None:
                raise NotPlain(f"holds more than plain data (opcode {bytes([code])!r}): no snapshot does")
            handler(self)
        raise NotPlain(f"has more than {_MOST_OPCODES:,} opcodes")

    # Opcodes.
    def take(self, size: int) -> bytes:
        end = self.position + size
        if end > len(self.content):
            raise IndexError("cut off")
        taken = self.content[self.position : end]
        self.position = end
        return taken

    def skip(self, size: int) -> None:
        self.take(size)

    def drop(self) -> None:
        self.stack.pop()

    def push(self, value: object) -> None:
        self.stack.append(value)

    def mark(self) -> None:
        self.outer.append(self.stack)
        self.stack = []

    def pop_to_mark(self) -> list[object]:
        popped, self.stack = self.stack, self.outer.pop()
        return popped

    def push_dict(self) -> None:
        new: dict[object, object] = {}
        self.begins[id(new)] = self.position - 1
        self.stack.append(new)

    def set_items(self, values: list[object]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict):
            raise TypeError("items of no dict")
        for key, value in zip(values[::2], values[1::2], strict=True):
            if not isinstance(key, str):
                raise TypeError("a key that is no text")
            target[key] = value
        begin = self.begins.pop(id(target), None)
        if _ACTION in target:
            self.stack[-1] = self.rows.add(target)
            if begin is not None:
                self.patterns.learn(begin, self.position)

    def set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.set_items([key, value])

    def append(self, values: list[object]) -> None:
        target = self.stack[-1]
        if not isinstance(target, list):
            raise TypeError("elements of no list")
        target.extend(values)

    def pop_tuple(self, size: int) -> None:
        if len(self.stack) < size:
            raise IndexError("short stack")
        self.stack[len(self.stack) - size :] = [tuple(self.stack[len(self.stack) - size :])]

    def memoize(self, key: int) -> None:
        """Remember a value; its keys are counted by every pickler of Python 3."""
        if key == len(self.memo):
            self.memo.append(self.stack[-1])
        else:
            self.memo[key] = self.stack[-1]

    def read_int(self, size: int, *, signed: bool = False) -> int:
        return int.from_bytes(self.take(size), "little", signed=signed)

    def read_text(self, size: int) -> str:
        return self.take(size).decode("utf-8", "surrogatepass")


_HANDLERS: dict[int, Callable[[_Machine], None]] = {
    0x80: lambda machine: machine.skip(1),
    0x95: lambda machine: machine.skip(8),
    ord("N"): lambda machine: machine.push(None),
    0x88: lambda machine: machine.push(bool(1)),
    0x89: lambda machine: machine.push(bool(0)),
    ord("K"): lambda machine: machine.push(machine.read_int(1)),
    ord("M"): lambda machine: machine.push(machine.read_int(2)),
    ord("J"): lambda machine: machine.push(machine.read_int(4, signed=True)),
    0x8A: lambda machine: machine.push(machine.read_int(machine.read_int(1), signed=True)),
    ord("G"): lambda machine: machine.push(struct.unpack(">d", machine.take(8))[0]),
    0x8C: lambda machine: machine.push(machine.read_text(machine.read_int(1))),
    ord("X"): lambda machine: machine.push(machine.read_text(machine.read_int(4))),
    0x8D: lambda machine: machine.push(machine.read_text(machine.read_int(8))),
    ord("}"): _Machine.push_dict,
    ord("]"): lambda machine: machine.push([]),
    ord(")"): lambda machine: machine.push(()),
    ord("("): _Machine.mark,
    ord("0"): lambda machine: machine.drop(),
    ord("s"): _Machine.set_item,
    ord("u"): lambda machine: machine.set_items(machine.pop_to_mark()),
    ord("a"): lambda machine: machine.append([machine.stack.pop()]),
    ord("e"): lambda machine: machine.append(machine.pop_to_mark()),
    ord("t"): lambda machine: machine.push(tuple(machine.pop_to_mark())),
    0x85: lambda machine: machine.pop_tuple(1),
    0x86: lambda machine: machine.pop_tuple(2),
    0x87: lambda machine: machine.pop_tuple(3),
    0x94: lambda machine: machine.memoize(len(machine.memo)),
    ord("q"): lambda machine: machine.memoize(machine.read_int(1)),
    ord("r"): lambda machine: machine.memoize(machine.read_int(4)),
    ord("h"): lambda machine: machine.push(machine.memo[machine.read_int(1)]),
    ord("j"): lambda machine: machine.push(machine.memo[machine.read_int(4)]),
}
