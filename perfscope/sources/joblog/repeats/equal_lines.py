"""Lines that several ranks print one behind the other, equal but for their labels: found as bytes, before any rule.

A line that comes for the third time in a row does what it did the second time: it is a copy of a record, or says what
is known. So rules read two of them, and what the second one adds to the series of records is added for the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from operator import eq
from typing import TypeAlias

import numpy as np

from perfscope.sources.joblog.text.line_fields import parse_label, split_at_labels
from perfscope.tables.columns import Int64

#: The labels of lines that equal the one before; None where it is the same one.
Labels: TypeAlias = Sequence[bytes | None]

_LOOK = 1 << 13
_LOOKS = 4
_FEWEST_RUNS = 16


@dataclass(frozen=True, slots=True)
class EqualLines:
    """A text without most of the lines that equal the one before.

    Attributes:
        text: The lines that are left.
        original: All lines.
        starts: Where each line that is left begins in ``text``, and the end of that.
        origins: Where these places are in ``original``.
        further: The labels of the lines that were left out behind one, by where that begins in ``text``.
    """

    text: bytes
    original: bytes
    starts: Int64
    origins: Int64
    further: Mapping[int, Labels]

    def text_from(self, first: int) -> bytes:
        """All lines of those from a place in ``text`` on, at which a line begins."""
        return self.original[int(self.origins[np.searchsorted(self.starts, first)]) :]


def join_equal_lines(text: bytes, longest: int) -> EqualLines | None:
    """Leave at most ``longest`` lines of each run of equal ones.

    Returns None where that would not leave out half of the lines, or where the runs are few or not equally long, which
    they are where all ranks print, or where some lines of a run have the same label and others not.
    """
    if not text.endswith(b"\n") or not _repeats(text):
        return None
    bare, labels = split_at_labels(text)
    is_first = _begin_runs(bare)
    firsts = np.flatnonzero(is_first)
    lengths = np.diff(firsts, append=len(bare))
    length = int(lengths.max())
    if len(firsts) < _FEWEST_RUNS or 2 * longest > length or (lengths[1:-1] != length).any():
        return None
    if labels[0] is not None and any(parse_label(bare[first], 0) for first in firsts.tolist()):
        return None  # there are more labels behind the first ones
    stops = [*firsts[1:].tolist(), len(bare)]
    runs = [labels[first:stop] for first, stop in zip(firsts.tolist(), stops, strict=True)]
    if any(len(set(run)) not in (1, len(run)) for run in runs):
        return None
    is_left = np.arange(len(bare)) - firsts[np.cumsum(is_first) - 1] < longest
    origins = np.append(0, np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n")) + 1)
    numbers = np.append(np.flatnonzero(is_left), len(bare))
    starts = np.append(0, np.cumsum(np.diff(origins)[is_left]))
    remaining = b"\n".join((*compress(text.split(b"\n"), is_left.tolist()), b""))
    last_left = starts[np.searchsorted(numbers, np.minimum(firsts + longest, np.append(firsts[1:], len(bare)))) - 1]
    further = {start: run[longest:] for start, run in zip(last_left.tolist(), runs, strict=True) if longest < len(run)}
    return EqualLines(remaining, text, starts, origins[numbers], further)


def _begin_runs(lines: Sequence[bytes]) -> np.ndarray:
    """Which lines do not equal the one before."""
    return ~np.fromiter((False, *map(eq, lines[1:], lines)), np.bool_, len(lines))


def _repeats(text: bytes) -> bool:
    """Whether at some places of a text half of the lines equal the one before."""
    begins = lines = 0
    for offset in range(0, len(text), max(len(text) // _LOOKS, 1)):
        begin, end = text.find(b"\n", offset, offset + _LOOK) + 1, text.rfind(b"\n", offset, offset + _LOOK) + 1
        if begin < end:
            bare, _ = split_at_labels(text[begin:end])
            begins += int(_begin_runs(bare).sum())
            lines += len(bare)
    return 2 * begins <= lines
