"""The value of a pickle in inert form: no module is imported and no function is called.

The opcodes are read with ``pickletools`` and replayed on inert values: the call of a function becomes a Call, the
storage of a tensor a PersistentId. So a checkpoint from an untrusted source can be read, and the functions that loading
it would call can be listed.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO

#: More would take minutes; a checkpoint of 100,000 tensors has about six million.
LARGEST_OPCODE_COUNT = 20_000_000


class PickleDamage(Exception):
    """The bytes are no complete pickle, or more than should be read; the text is the problem."""


@dataclass(slots=True, eq=False)
class Call:
    """The result that a call of a function would have.

    Attributes:
        function: The function's name with its module; empty if the pickle computes it.
        arguments: The arguments of the call.
        state: The state that would be set on the result; None without one.
        items: Keys and values that would be added to the result, as to a dict.
    """

    function: str
    arguments: object
    state: object = None
    items: list[tuple[object, object]] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class InertDict:
    """A dict, as pairs of keys and values: the keys need not be hashable here."""

    items: list[tuple[object, object]]

    def get(self, key: str) -> object:
        """The value of a string key; None without the key."""
        return next((value for name, value in reversed(self.items) if isinstance(name, str) and name == key), None)


@dataclass(frozen=True, slots=True, eq=False)
class PersistentId:
    """An object outside of the pickle, by its id: in torch files the storage of a tensor."""

    id: object


@dataclass(frozen=True, slots=True)
class GlobalName:
    """A function or class by its name, which is not looked up."""

    text: str


_MARK = object()
_GETATTR = ("builtins.getattr", "__builtin__.getattr")


@dataclass(frozen=True, slots=True)
class ReplayedPickle:
    """A pickle's value in inert form, and the functions that loading it would call or look up."""

    value: object
    names: frozenset[str]


def replay(file: IO[bytes]) -> ReplayedPickle:
    """Read one pickle from a file's position.

    Raises:
        PickleDamage: It is cut off, is no pickle, or has too many opcodes.
    """
    machine = _Machine()
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(file)):
            if count > LARGEST_OPCODE_COUNT:
                raise PickleDamage(f"has more than {LARGEST_OPCODE_COUNT:,} opcodes")
            machine.step(opcode.name, argument)
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, UnicodeError) as error:
        raise PickleDamage(f"is not a complete pickle ({str(error)[:80]})") from None
    return ReplayedPickle(machine.result(), frozenset(machine.names))


class _Machine:
    """The stack and memo of a pickle, over inert values."""

    def __init__(self) -> None:
        self.stack: list[object] = []
        self.memo: dict[object, object] = {}
        self.names: set[str] = set()

    def result(self) -> object:
        if not self.stack:
            raise PickleDamage("is empty")
        return self.stack[-1]

    def step(self, name: str, argument: object) -> None:
        if name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name])
        elif name in _LITERALS:
            self.stack.append(argument)
        elif name in _EMPTY:
            self.stack.append(_EMPTY[name]())
        elif name not in _IGNORED:
            handler = _HANDLERS.get(name)
            if handler is None:
                raise ValueError(f"opcode {name}")
            handler(self, argument)

    def pop_to_mark(self) -> list[object]:
        position = len(self.stack) - 1
        while self.stack[position] is not _MARK:
            position -= 1
            if position < 0:
                raise IndexError("no mark")
        popped = self.stack[position + 1 :]
        del self.stack[position:]
        return popped

    def push_name(self, text: str) -> None:
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


def _global(machine: _Machine, argument: object) -> None:
    machine.push_name(_dotted_name(argument))


def _dotted_name(argument: object) -> str:
    """The name in an argument that pickletools gives as ``module name``."""
    return str(argument).replace(" ", ".", 1)


def _stack_global(machine: _Machine, _: object) -> None:
    name, module = machine.stack.pop(), machine.stack.pop()
    is_text = isinstance(name, str) and isinstance(module, str)
    machine.push_name(f"{module}.{name}" if is_text else "")


def _inst(machine: _Machine, argument: object) -> None:
    arguments = tuple(machine.pop_to_mark())
    name = _dotted_name(argument)
    machine.names.add(name)
    machine.call(GlobalName(name), arguments)


def _obj(machine: _Machine, _: object) -> None:
    function, *arguments = machine.pop_to_mark()
    machine.call(function, tuple(arguments))


def _reduce(machine: _Machine, _: object) -> None:
    arguments, function = machine.stack.pop(), machine.stack.pop()
    machine.call(function, arguments)


def _newobj_ex(machine: _Machine, _: object) -> None:
    keywords, arguments, function = machine.stack.pop(), machine.stack.pop(), machine.stack.pop()
    machine.call(function, (arguments, keywords))


def _build(machine: _Machine, _: object) -> None:
    state = machine.stack.pop()
    target = machine.stack[-1]
    if isinstance(target, Call):
        target.state = state


def _tuple(count: int) -> Callable[[_Machine, object], None]:
    def handler(machine: _Machine, _: object) -> None:
        values = tuple(machine.stack[-count:])
        if len(values) < count:
            raise IndexError("short stack")
        machine.stack[-count:] = [values]

    return handler


def _pop(machine: _Machine, _: object) -> None:
    machine.stack.pop()


def _pop_mark(machine: _Machine, _: object) -> None:
    machine.pop_to_mark()


def _setitem(machine: _Machine, _: object) -> None:
    value, key = machine.stack.pop(), machine.stack.pop()
    machine.add_pairs([key, value])


def _put(machine: _Machine, argument: object) -> None:
    machine.memo[argument] = machine.stack[-1]


def _get(machine: _Machine, argument: object) -> None:
    machine.stack.append(machine.memo[argument])


def _pairs(values: list[object]) -> InertDict:
    return InertDict(list(zip(values[::2], values[1::2], strict=True)))


_CONSTANTS: Mapping[str, object] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "MARK": _MARK}
_LITERALS = frozenset(
    {
        *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
        *("STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
        *("UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
    }
)
_EMPTY: Mapping[str, Callable[[], object]] = {
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_DICT": lambda: InertDict([]),
    "EMPTY_SET": list,
    "NEXT_BUFFER": lambda: None,
}
_IGNORED = frozenset({"PROTO", "FRAME", "STOP", "READONLY_BUFFER"})
_HANDLERS: Mapping[str, Callable[[_Machine, object], None]] = {
    "POP": _pop,
    "POP_MARK": _pop_mark,
    "DUP": lambda machine, _: machine.stack.append(machine.stack[-1]),
    "GLOBAL": _global,
    "STACK_GLOBAL": _stack_global,
    "INST": _inst,
    "OBJ": _obj,
    "REDUCE": _reduce,
    "NEWOBJ": _reduce,
    "NEWOBJ_EX": _newobj_ex,
    "BUILD": _build,
    "TUPLE": lambda machine, _: machine.stack.append(tuple(machine.pop_to_mark())),
    "TUPLE1": _tuple(1),
    "TUPLE2": _tuple(2),
    "TUPLE3": _tuple(3),
    "LIST": lambda machine, _: machine.stack.append(machine.pop_to_mark()),
    "FROZENSET": lambda machine, _: machine.stack.append(machine.pop_to_mark()),
    "DICT": lambda machine, _: machine.stack.append(_pairs(machine.pop_to_mark())),
    "APPEND": lambda machine, _: machine.add_values([machine.stack.pop()]),
    "APPENDS": lambda machine, _: machine.add_values(machine.pop_to_mark()),
    "ADDITEMS": lambda machine, _: machine.add_values(machine.pop_to_mark()),
    "SETITEM": _setitem,
    "SETITEMS": lambda machine, _: machine.add_pairs(machine.pop_to_mark()),
    "PUT": _put,
    "BINPUT": _put,
    "LONG_BINPUT": _put,
    "MEMOIZE": lambda machine, _: _put(machine, len(machine.memo)),
    "GET": _get,
    "BINGET": _get,
    "LONG_BINGET": _get,
    "PERSID": lambda machine, argument: machine.stack.append(PersistentId(argument)),
    "BINPERSID": lambda machine, _: machine.stack.append(PersistentId(machine.stack.pop())),
}


def walk(value: object) -> Iterator[tuple[tuple[str, ...], object]]:
    """Every value inside a value, each object once, with the keys on the path to it."""
    todo: list[tuple[tuple[str, ...], object]] = [((), value)]
    seen: set[int] = set()
    while todo:
        path, current = todo.pop()
        if isinstance(current, InertDict | Call | list | tuple):
            if id(current) in seen:
                continue
            seen.add(id(current))
        yield path, current
        todo.extend((_extend_path(path, key), child) for key, child in _children(current))


def _children(value: object) -> list[tuple[object, object]]:
    if isinstance(value, InertDict):
        return value.items
    if isinstance(value, list | tuple):
        return [(None, child) for child in value]
    if isinstance(value, Call):
        inside: list[tuple[object, object]] = [(None, value.arguments), (None, value.state)]
        return inside + value.items
    return []


_LONGEST_PATH = 12


def _extend_path(path: tuple[str, ...], key: object) -> tuple[str, ...]:
    return (*path, key) if isinstance(key, str) and len(path) < _LONGEST_PATH else path
