"""The result of a format's fast path for one block of a long log: plain lines as columns, all other lines as text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from perfscope.sources.joblog.splitting.rank_lines import RankLines
from perfscope.tables.columns import Bool, Int64

#: Text that is read without a copy.
Text: TypeAlias = bytes | bytearray

#: Numbers of many lines; those that ascend in equal steps are a range, which takes no memory on its way to a process.
Numbers: TypeAlias = range | Int64


@dataclass(frozen=True, slots=True, eq=False)
class PlainLines:
    """Iteration lines of one block that differ from each other in their numbers only.

    Attributes:
        iteration: Their numbers.
        wall_ns: Their times.
        consumed: Samples consumed up to the end of each; empty where the log does not say.
        label: What a launcher wrote in front of them.
        columns: What else a format needs of them; ``copies`` are lines that repeat them and were dropped.
    """

    iteration: Numbers
    wall_ns: Int64
    consumed: Numbers = range(0)
    label: bytes | None = None
    columns: Mapping[str, Int64] = field(default_factory=dict)

    @property
    def copies(self) -> int:
        """How many lines that repeat one of these were dropped."""
        return int(self.columns["copies"].sum()) if "copies" in self.columns else 0

    def rows(self, first: int, last: int) -> PlainLines:
        """Some of the lines."""
        columns = {name: column[first:last] for name, column in self.columns.items()}
        return PlainLines(
            self.iteration[first:last], self.wall_ns[first:last], self.consumed[first:last], self.label, columns
        )


@dataclass(frozen=True, slots=True, eq=False)
class SplitBlock:
    """A block split into plain lines and the rest.

    Attributes:
        plain: Its plain iteration lines.
        rest: All lines that need a closer look.
        plain_before: For some lines of ``rest``, how many plain lines stand before each and all up to the next of them.
        rest_start: Where these lines begin in ``rest``.
        source: The block, where it is kept.
        places: Where each plain line begins and ends in it; (2, lines).
        first_of_labels: The first number of each label, where lines that repeat those of another label were dropped.
        original: The whole block, where it may have to be read without being split.
        has_record_lines: Each record is a line.
        ranks: What all ranks printed, where the plain lines are those of the first one; ``rest`` has what
            all of them print.
    """

    plain: PlainLines
    rest: bytes
    plain_before: Int64
    rest_start: Int64
    source: bytes = b""
    places: Int64 = field(default_factory=lambda: np.empty((2, 0), np.int64))
    first_of_labels: Mapping[bytes, int] = field(default_factory=dict)
    original: bytes = b""
    has_record_lines: bool = True
    ranks: RankLines | None = None

    def text(self) -> bytes:
        """All lines in their order, without the copies that were dropped."""
        parts: list[bytes] = []
        done, ends = 0, [*self.rest_start[1:].tolist(), len(self.rest)]
        for start, end, before in zip(self.rest_start.tolist(), ends, self.plain_before.tolist(), strict=True):
            parts += (self.plain_text(done, before), self.rest[start:end])
            done = before
        return b"".join((*parts, self.plain_text(done, len(self.plain.wall_ns))))

    def plain_text(self, first: int, last: int) -> bytes:
        """Some of the plain lines."""
        return b"".join([self.source[start:end] for start, end in self.places[:, first:last].T.tolist()])

    def plain_before_each(self, starts: Sequence[int]) -> list[int]:
        """How many plain lines stand before each of some places in ``rest``."""
        rows = np.searchsorted(self.rest_start, starts, "right") - 1
        before: list[int] = self.plain_before[rows].tolist()
        return before


#: Splits the first bytes of a text: the text, the number of bytes, and a buffer of at least as many flags, which is
#: overwritten and spares a large allocation. Returns None for a block that is better read line by line.
Splitter: TypeAlias = Callable[[Text, int, Bool], SplitBlock | None]
