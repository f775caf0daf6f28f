"""The value of a pickle in inert form: no module is imported, no name is looked up and no function is called.

The opcodes for numbers, texts, tuples and the memo are those of the standard library's unpickler in Python. All opcodes
that name, call or fill something are replaced, and others are refused. So a file from an untrusted source can be read,
and the functions that loading it would call can be listed.

The unpickler in C is not used, with ``find_class`` or without. Eight bytes make it fill 64 GB for its memo, it hashes
deep tuples until its stack overflows, and it looks up what ``copyreg`` has registered.
"""

from __future__ import annotations

import gc
import io
import pickle
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, ClassVar, NoReturn

from perfscope.constants import MIB

LARGEST_PICKLE = 256 * MIB
#: Checkpoints nest about ten levels; a pickle of megabytes of brackets nests millions.
DEEPEST_NESTING = 64
#: More would take many seconds; a checkpoint of 100,000 tensors has about six million.
LARGEST_OPCODE_COUNT = 20_000_000
LONGEST_NAME = 1000
_GETATTR = ("builtins.getattr", "__builtin__.getattr")
#: How torch pickles lists of plain values; they return their argument.
_LISTS = ("torch.jit._pickle.build_intlist", "torch.jit._pickle.build_doublelist", "torch.jit._pickle.build_boollist")
#: The limits of torch; beyond them a product of sizes takes minutes.
MOST_DIMENSIONS = 64
LARGEST_SIZE = 2**63 - 1


#: Opcodes of the standard library's own: numbers, texts, bytes, tuples, empty lists, the stack and the memo.
_OWN = b"NIKMJL\x8a\x8bFGSTUVXBC\x8c\x8d\x8e\x88\x89)t\x85\x86\x87]l(012ghjpqr\x94"
_PYTHONS = pickle._Unpickler  # noqa: SLF001 - the one in Python: see above
_ERRORS = (
    pickle.UnpicklingError,
    ValueError,
    LookupError,
    TypeError,
    OverflowError,
    AttributeError,
    EOFError,
    struct.error,
)


class PickleDamage(Exception):
    """The bytes are no complete pickle, or too many; ``names`` are the functions that loading it would look up."""

    def __init__(self, text: str, names: frozenset[str] = frozenset()) -> None:
        super().__init__(text)
        self.names = names


@dataclass(slots=True, eq=False)
class Call:
    """The result that a call of a function would have; the function is empty if the pickle computes it."""

    function: str
    arguments: object
    state: object = None
    items: dict[object, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class PersistentId:
    """An object outside of the pickle, by its id: in torch files the storage of a tensor."""

    id: object


@dataclass(frozen=True, slots=True)
class GlobalName:
    """A function or class by its name, which is not looked up."""

    text: str


@dataclass(frozen=True, slots=True)
class InertPickle:
    """A pickle's value in inert form, the functions that loading it would call or look up, and where it ends.

    Sets are lists, and what is no plain key of a dict is a key without a value.
    """

    value: object
    names: frozenset[str]
    end: int


class _Stop(Exception):
    pass


class InertUnpickler(_PYTHONS):
    """Reads one pickle over inert values; a mark puts the stack aside and begins another one."""

    stack: list[object]
    metastack: list[list[object]]
    memo: dict[int, object]
    append: Callable[[object], None]
    most_opcodes: ClassVar = LARGEST_OPCODE_COUNT

    def __init__(self, content: bytes, start: int = 0) -> None:
        file = io.BytesIO(content)
        file.seek(start)
        super().__init__(file, encoding="latin-1")
        self.file = file
        self.read, self.readline = file.read, file.readline
        self.stack, self.metastack = [], []
        self.append = self.stack.append
        self.names: set[str] = set()

    def read_value(self) -> InertPickle:
        """The value. Raises PickleDamage: it is cut off, is no pickle, or has too many opcodes."""
        try:
            with without_collection():
                self._run()
                return InertPickle(self.stack.pop(), frozenset(self.names), self.file.tell())
        except PickleDamage as damage:
            raise PickleDamage(str(damage), frozenset(self.names)) from None
        except _ERRORS as error:
            text = f"is not a complete pickle ({str(error)[:80]})"
            raise PickleDamage(text, frozenset(self.names)) from None

    def _run(self) -> None:
        read, table = self.read, self.dispatch
        try:
            for _ in repeat(None, self.most_opcodes):
                table[read(1)[0]](self)
        except _Stop:
            return
        raise PickleDamage(f"has more than {self.most_opcodes:,} opcodes")

    def find_class(self, module: str, name: str) -> NoReturn:
        """No opcode asks for it."""
        raise PickleDamage(f"names {module[:LONGEST_NAME]}.{name[:LONGEST_NAME]}")

    # What subclasses decide.
    def push_name(self, text: str) -> None:
        """Push a function or class that the pickle names."""
        if len(text) > LONGEST_NAME:  # names grow quadratically where a pickle joins long ones
            raise PickleDamage(f"names a function in {len(text):,} characters: it is not read")
        self.names.add(text)
        self.append(GlobalName(text))

    def call(self, function: object, arguments: object) -> None:
        """Push what a call would return."""
        name = function.text if isinstance(function, GlobalName) else ""
        if name in _GETATTR:  # how enums are pickled, and how a module's function can be reached
            self.push_name(_attribute(arguments))
            return
        if not name:
            self.names.add("")
        self.append(Call(name, arguments))

    def add_pairs(self, values: list[object]) -> None:
        """Add keys and values to the dict on the stack."""
        if len(values) % 2:
            raise ValueError("a key without a value")
        target = self.stack[-1]
        pairs = zip(map(_key, values[::2]), values[1::2], strict=True)
        if isinstance(target, dict):
            target.update(pairs)
        elif isinstance(target, Call):
            target.items.update(pairs)

    # Opcodes.
    def _pop_mark(self) -> list[object]:
        popped, self.stack = self.stack, self.metastack.pop()
        self.append = self.stack.append
        return popped

    def _add_values(self, values: list[object]) -> None:
        target = self.stack[-1]
        if isinstance(target, list):
            target.extend(values)
        elif isinstance(target, Call):
            target.items.update(enumerate(values, len(target.items)))

    def _global(self) -> None:
        module, name = (self.readline()[:-1].decode("utf-8", "surrogatepass") for _ in range(2))
        self.push_name(f"{module}.{name}")

    def _stack_global(self) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        if not isinstance(name, str) or not isinstance(module, str):
            self.push_name("")
        elif len(name) + len(module) > LONGEST_NAME:
            self.push_name(name if len(name) > len(module) else module)
        else:
            self.push_name(f"{module}.{name}")

    def _inst(self) -> None:
        arguments = tuple(self._pop_mark())
        self._global()
        self.call(self.stack.pop(), arguments)

    def _obj(self) -> None:
        function, *arguments = self._pop_mark()
        self.call(function, tuple(arguments))

    def _reduce(self) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        self.call(function, arguments)

    def _newobj_ex(self) -> None:
        keywords, arguments, function = self.stack.pop(), self.stack.pop(), self.stack.pop()
        self.call(function, (arguments, keywords))

    def _build(self) -> None:
        state = self.stack.pop()
        target = self.stack[-1]
        if isinstance(target, Call):
            target.state = state

    def _frozenset(self) -> None:
        values = self._pop_mark()
        self.append(values)

    def _dict(self) -> None:
        values = self._pop_mark()
        self.append({})
        self.add_pairs(values)

    def _set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.add_pairs([key, value])

    def _bytearray8(self) -> None:
        (size,) = struct.unpack("<Q", self.read(8))
        self.append(self.read(size))

    def _refuse(self) -> None:
        position = self.file.tell() - 1
        self.file.seek(position)
        raise ValueError(f"opcode {self.read(1)!r} at position {position:,}")

    def _stop(self) -> None:
        raise _Stop

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **dict.fromkeys(range(256), _refuse),
        **{code: _PYTHONS.dispatch[code] for code in _OWN},
        ord("."): _stop,
        ord("}"): lambda self: self.append({}),
        0x8F: lambda self: self.append([]),
        0x97: lambda self: self.append(None),
        0x98: lambda _: None,
        0x80: lambda self: self.read(1),
        0x95: lambda self: self.read(8),  # the opcodes in a frame follow
        0x96: _bytearray8,
        ord("P"): lambda self: self.append(PersistentId(self.readline()[:-1].decode("latin-1"))),
        ord("Q"): lambda self: self.append(PersistentId(self.stack.pop())),
        ord("c"): _global,
        0x93: _stack_global,
        ord("i"): _inst,
        ord("o"): _obj,
        ord("R"): _reduce,
        0x81: _reduce,
        0x92: _newobj_ex,
        ord("b"): _build,
        0x91: _frozenset,
        ord("d"): _dict,
        ord("s"): _set_item,
        ord("u"): lambda self: self.add_pairs(self._pop_mark()),
        ord("a"): lambda self: self._add_values([self.stack.pop()]),
        ord("e"): lambda self: self._add_values(self._pop_mark()),
        0x90: lambda self: self._add_values(self._pop_mark()),
    }


class PlainUnpickler(InertUnpickler):
    """Reads a pickle of plain values, and refuses one that names anything."""

    most_opcodes: ClassVar = 100_000_000

    def push_name(self, text: str) -> None:
        """Push a function that makes a list."""
        if text not in _LISTS:
            raise PickleDamage(f"would call {text[:LONGEST_NAME] or 'a function'}")
        self.append(GlobalName(text))

    def call(self, function: object, arguments: object) -> None:
        """Push the list that the function would return."""
        match function, arguments:
            case GlobalName(), (list() | tuple() as values,):
                self.append(list(values))
            case _:
                raise PickleDamage("holds something else than plain values")


def read_pickle(content: bytes, start: int = 0) -> InertPickle:
    """Read the pickle that begins at a position.

    Raises PickleDamage: it is cut off, is no pickle, or has too many opcodes.
    """
    return InertUnpickler(content, start).read_value()


@contextmanager
def without_collection() -> Iterator[None]:
    """Run without the collector: while values only grow, each collection would visit all of them again."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def walk(value: object) -> Iterator[tuple[tuple[str, ...], Call]]:
    """Every call inside a value, each object once, with the keys on the path to it.

    Raises PickleDamage: the value is nested deeper than any checkpoint.
    """
    todo: list[tuple[int, tuple[str, ...], object]] = [(0, (), value)]
    seen: set[int] = set()
    while todo:
        depth, path, current = todo.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        if depth > DEEPEST_NESTING:
            raise PickleDamage(f"is nested deeper than {DEEPEST_NESTING} levels: no checkpoint is")
        inside: Iterable[object] = current if isinstance(current, tuple | list) else ()
        pairs = current if isinstance(current, dict) else {}
        if isinstance(current, Call):
            yield path, current
            inside, pairs = (current.arguments, current.state), current.items
        todo += [(depth + 1, path, child) for child in inside if isinstance(child, _CONTAINERS)]
        todo += [
            (depth + 1, _extend_path(path, key), child)
            for key, child in pairs.items()
            if isinstance(child, _CONTAINERS)
        ]


_CONTAINERS = (dict, Call, list, tuple)


def _extend_path(path: tuple[str, ...], key: object) -> tuple[str, ...]:
    return (*path, key[:LONGEST_NAME]) if isinstance(key, str) else path


def entries(value: object) -> Mapping[object, object]:
    """The keys and values of a dict, or of a mapping that a call would make; none of anything else."""
    return value.items if isinstance(value, Call) else value if isinstance(value, dict) else {}


def parse_shape(value: object) -> tuple[int, ...] | None:
    """The sizes in a tuple or in ``torch.Size((2, 3))``; None for anything else.

    >>> parse_shape(Call("torch.Size", ((2, 3),))), parse_shape([4, 10**30])
    ((2, 3), None)
    """
    if isinstance(value, Call):
        value = value.arguments[0] if isinstance(value.arguments, tuple) and len(value.arguments) == 1 else None
    if not isinstance(value, tuple | list) or len(value) > MOST_DIMENSIONS:
        return None
    for part in value:
        if not isinstance(part, int) or not 0 <= part <= LARGEST_SIZE:
            return None
    return tuple(value)


def _key(key: object) -> object:
    """A key whose hash costs nothing and collides with few, unlike that of numbers: another one equals no other."""
    return key if isinstance(key, str | Call) or key is None else object()


def _attribute(arguments: object) -> str:
    """The name of the result of ``getattr``; empty if it is computed."""
    match arguments:
        case (GlobalName(text=owner), str(attribute)) if owner:
            return f"{owner}.{attribute}"
        case _:
            return ""
