"""The value of a pickle in inert form: no module is imported and no function is called.

The opcodes are replayed on inert values: the call of a function becomes a Call, the storage of a tensor a PersistentId.
So a checkpoint from an untrusted source can be read, and the functions that loading it would call can be listed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat

from perfscope.sources.checkpoints.collection import without_collection
from perfscope.sources.checkpoints.inert_values import Call, GlobalName, InertDict, PersistentId
from perfscope.sources.checkpoints.pickle_arguments import ARGUMENTS
from perfscope.sources.checkpoints.pickle_damage import PickleDamage

#: More would take many seconds; a checkpoint of 100,000 tensors has about six million.
LARGEST_OPCODE_COUNT = 20_000_000
#: Opcodes of a checkpoint take four bytes each, those of a list of small numbers two, those of DCP's metadata of small
#: tensors 1.47; a crafted pickle repeats shorter ones, which nest or repeat values, and takes long.
_BATCH = 500_000
_FEWEST_BYTES_OF_BATCH = 650_000
_LONGEST_NAME = 1000
_GETATTR = ("builtins.getattr", "__builtin__.getattr")
_STOP, _MEMOIZE, _BINGET, _LONG_BINPUT = b".\x94hr"
_LONG = 4


@dataclass(frozen=True, slots=True)
class ReplayedPickle:
    """A pickle's value in inert form, and the functions that loading it would call or look up.

    Attributes:
        value: The value.
        names: The functions and classes.
        end: The position behind the pickle.
    """

    value: object
    names: frozenset[str]
    end: int


def replay(content: bytes, start: int = 0) -> ReplayedPickle:
    """Read the pickle that begins at a position.

    Raises:
        PickleDamage: It is cut off, is no pickle, or has too many opcodes.
    """
    machine = _Machine(content, start)
    try:
        with without_collection():
            machine.run()
            return ReplayedPickle(machine.pop(), frozenset(machine.names), machine.position)
    except PickleDamage as damage:
        raise PickleDamage(str(damage), frozenset(machine.names)) from None
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, UnicodeError) as error:
        text = f"is not a complete pickle ({str(error)[:80]})"
        raise PickleDamage(text, frozenset(machine.names)) from None


class _Machine:
    """The stack and memo of a pickle, over inert values; a mark puts the stack aside and begins another one."""

    __slots__ = ("content", "memo", "names", "outer", "position", "stack")

    def __init__(self, content: bytes, position: int) -> None:
        self.content = content
        self.position = position
        self.stack: list[object] = []
        self.outer: list[list[object]] = []
        self.memo: dict[object, object] = {}
        self.names: set[str] = set()

    def run(self) -> None:
        content, table, memo = self.content, _TABLE, self.memo
        for _ in range(LARGEST_OPCODE_COUNT // _BATCH):
            begin = self.position
            for _ in repeat(None, _BATCH):
                if self.position >= len(content):
                    raise IndexError("cut off")
                code = content[self.position]
                self.position += 1
                if code == _MEMOIZE:  # these three are half of a pickle
                    memo[len(memo)] = self.stack[-1]
                elif code == _LONG_BINPUT and self.position + _LONG <= len(content):
                    self.position += _LONG
                    memo[int.from_bytes(content[self.position - _LONG : self.position], "little")] = self.stack[-1]
                elif code == _BINGET and self.position < len(content):
                    self.stack.append(memo[content[self.position]])
                    self.position += 1
                elif code == _STOP:
                    return
                else:
                    table[code](self)
            if self.position - begin < _FEWEST_BYTES_OF_BATCH:
                raise PickleDamage(f"repeats opcodes of few bytes {_BATCH:,} times: no checkpoint does, it is not read")
        raise PickleDamage(f"has more than {LARGEST_OPCODE_COUNT:,} opcodes")

    def pop(self) -> object:
        if not self.stack:
            raise IndexError("nothing on the stack")
        return self.stack.pop()

    def pop_to_mark(self) -> list[object]:
        if not self.outer:
            raise IndexError("no mark")
        popped = self.stack
        self.stack = self.outer.pop()
        return popped

    def push_name(self, text: str) -> None:
        if len(text) > _LONGEST_NAME:  # names grow quadratically where a pickle joins long ones
            raise PickleDamage(f"names a function in {len(text):,} characters: no checkpoint does, it is not read")
        self.names.add(text)
        self.stack.append(GlobalName(text))

    def call(self, function: object, arguments: object) -> None:
        name = function.text if isinstance(function, GlobalName) else ""
        if name in _GETATTR:  # how enums are pickled, and how a module's function can be reached
            self.push_name(_attribute(arguments))
            return
        if not name:
            self.names.add("")
        self.stack.append(Call(name, arguments))

    def add_pairs(self, values: list[object]) -> None:
        pairs = list(zip(values[::2], values[1::2], strict=True))
        target = self.stack[-1]
        if isinstance(target, InertDict | Call):
            target.items.extend(pairs)

    def add_values(self, values: list[object]) -> None:
        target = self.stack[-1]
        if isinstance(target, list):
            target.extend(values)
        elif isinstance(target, Call):
            target.items.extend((index, value) for index, value in enumerate(values))


def _attribute(arguments: object) -> str:
    """The name of the result of ``getattr``; empty if it is computed."""
    match arguments:
        case (GlobalName(text=owner), str(attribute)) if owner:
            return f"{owner}.{attribute}"
        case _:
            return ""


def _mark(machine: _Machine) -> None:
    machine.outer.append(machine.stack)
    machine.stack = []


def _stack_global(machine: _Machine) -> None:
    name, module = machine.pop(), machine.pop()
    if not isinstance(name, str) or not isinstance(module, str):
        machine.push_name("")
    elif len(name) + len(module) > _LONGEST_NAME:
        machine.push_name(name if len(name) > len(module) else module)
    else:
        machine.push_name(f"{module}.{name}")


def _global(machine: _Machine, text: object) -> None:
    machine.push_name(str(text))


def _inst(machine: _Machine, text: object) -> None:
    arguments = tuple(machine.pop_to_mark())
    machine.push_name(str(text))
    machine.call(machine.pop(), arguments)


def _obj(machine: _Machine) -> None:
    function, *arguments = machine.pop_to_mark()
    machine.call(function, tuple(arguments))


def _reduce(machine: _Machine) -> None:
    arguments, function = machine.pop(), machine.pop()
    machine.call(function, arguments)


def _newobj_ex(machine: _Machine) -> None:
    keywords, arguments, function = machine.pop(), machine.pop(), machine.pop()
    machine.call(function, (arguments, keywords))


def _build(machine: _Machine) -> None:
    state = machine.pop()
    target = machine.stack[-1]
    if isinstance(target, Call):
        target.state = state


def _tuple(count: int) -> Callable[[_Machine], None]:
    def handler(machine: _Machine) -> None:
        stack = machine.stack
        if len(stack) < count:
            raise IndexError("short stack")
        stack[-count:] = [tuple(stack[-count:])]

    return handler


def _pop(machine: _Machine) -> None:
    if machine.stack:
        machine.stack.pop()
    else:
        machine.pop_to_mark()


def _setitem(machine: _Machine) -> None:
    value, key = machine.pop(), machine.pop()
    machine.add_pairs([key, value])


def _put(machine: _Machine, key: object) -> None:
    machine.memo[key] = machine.stack[-1]


def _memoize(machine: _Machine) -> None:
    machine.memo[len(machine.memo)] = machine.stack[-1]


def _pairs(values: list[object]) -> InertDict:
    return InertDict(list(zip(values[::2], values[1::2], strict=True)))


def _ignore(machine: _Machine, argument: object = None) -> None:
    """PROTO, FRAME, READONLY_BUFFER: they change no value."""


def _push(make: Callable[[], object]) -> Callable[[_Machine], None]:
    return lambda machine: machine.stack.append(make())


def _gather(make: Callable[[list[object]], object]) -> Callable[[_Machine], None]:
    def handler(machine: _Machine) -> None:
        values = machine.pop_to_mark()
        machine.stack.append(make(values))

    return handler


#: By opcode; the second kind gets the argument that follows the opcode.
_WITHOUT_ARGUMENT: dict[bytes, Callable[[_Machine], None]] = {
    b"N": _push(lambda: None),
    b"\x88": _push(lambda: True),
    b"\x89": _push(lambda: False),
    b"]": _push(list),
    b")": _push(tuple),
    b"}": _push(lambda: InertDict([])),
    b"\x8f": _push(list),
    b"\x97": _push(lambda: None),
    b"\x98": _ignore,
    b"(": _mark,
    b"0": _pop,
    b"1": lambda machine: machine.pop_to_mark().clear(),
    b"2": lambda machine: machine.stack.append(machine.stack[-1]),
    b"\x93": _stack_global,
    b"o": _obj,
    b"R": _reduce,
    b"\x81": _reduce,
    b"\x92": _newobj_ex,
    b"b": _build,
    b"t": _gather(tuple),
    b"\x85": _tuple(1),
    b"\x86": _tuple(2),
    b"\x87": _tuple(3),
    b"l": _gather(list),
    b"\x91": _gather(list),
    b"d": _gather(_pairs),
    b"a": lambda machine: machine.add_values([machine.pop()]),
    b"e": lambda machine: machine.add_values(machine.pop_to_mark()),
    b"\x90": lambda machine: machine.add_values(machine.pop_to_mark()),
    b"s": _setitem,
    b"u": lambda machine: machine.add_pairs(machine.pop_to_mark()),
    b"\x94": _memoize,
    b"Q": lambda machine: machine.stack.append(PersistentId(machine.pop())),
}
_WITH_ARGUMENT: dict[bytes, Callable[[_Machine, object], None]] = {
    **dict.fromkeys((b"\x80", b"\x95"), _ignore),
    **dict.fromkeys((b"p", b"q", b"r"), _put),
    **dict.fromkeys((b"g", b"h", b"j"), lambda machine, key: machine.stack.append(machine.memo[key])),
    b"c": _global,
    b"i": _inst,
    b"P": lambda machine, text: machine.stack.append(PersistentId(text)),
}


def _with_argument(code: bytes) -> Callable[[_Machine], None]:
    read, handle = ARGUMENTS[code], _WITH_ARGUMENT.get(code)

    def push_literal(machine: _Machine) -> None:
        argument, machine.position = read(machine.content, machine.position)
        machine.stack.append(argument)

    def handler(machine: _Machine) -> None:
        argument, machine.position = read(machine.content, machine.position)
        assert handle is not None
        handle(machine, argument)

    return handler if handle else push_literal


def _refuse(code: int) -> Callable[[_Machine], None]:
    def handler(machine: _Machine) -> None:
        raise ValueError(f"opcode {bytes([code])!r} at position {machine.position - 1:,}")

    return handler


def _build_table() -> list[Callable[[_Machine], None]]:
    table = [_refuse(code) for code in range(256)]
    for code, handler in _WITHOUT_ARGUMENT.items():
        table[code[0]] = handler
    for code in ARGUMENTS:
        table[code[0]] = _with_argument(code)
    return table


_TABLE = _build_table()
