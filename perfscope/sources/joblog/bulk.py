"""The result of a format's fast path for one block of a long log: plain lines as columns, all other lines as text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from perfscope.tables.columns import Bool, Int64

#: Text that is read without a copy.
Text: TypeAlias = bytes | bytearray


@dataclass(frozen=True, slots=True, eq=False)
class PlainLines:
    """Iteration lines of one block that differ from each other in their numbers only.

    Attributes:
        start: Where each begins.
        iteration: Its number.
        wall_ns: Its time.
        consumed: Samples consumed up to its end.
    """

    start: Int64
    iteration: Int64
    wall_ns: Int64
    consumed: Int64


@dataclass(frozen=True, slots=True, eq=False)
class SplitBlock:
    """A block split into plain lines and the rest.

    Attributes:
        plain: Its plain iteration lines.
        rest: All lines that need a closer look.
        origin: For each line of ``rest``, where it began in the block.
        rest_start: For each line of ``rest``, where it begins in ``rest``.
    """

    plain: PlainLines
    rest: bytes
    origin: Int64
    rest_start: Int64


#: Splits the first bytes of a text: the text, the number of bytes, and a buffer of at least as many flags, which is
#: overwritten and spares a large allocation. Returns None for a block that is better read line by line.
Splitter: TypeAlias = Callable[[Text, int, Bool], SplitBlock | None]
