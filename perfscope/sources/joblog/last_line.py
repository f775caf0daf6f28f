"""Rules for what a file states once, or of which the last statement counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from perfscope.sources.joblog.rules import LineMatch, Rule, StateT_contra

_MOST_TRIES = 4


@dataclass(frozen=True, slots=True)
class LastRule(Rule[StateT_contra]):
    """Finds the last line of a block that has the anchor, and matches from its beginning on.

    Attributes:
        with_first: The first one of the block is found, too.
    """

    with_first: bool = False

    def find(self, text: bytes) -> Iterator[LineMatch]:
        """Yield the match of the last line; where it is none, of the one before, a few times."""
        first = next(Rule.find(self, text[: _of_first(text, self.anchor)]), None) if self.with_first else None
        if first is not None:
            yield first
        end = len(text)
        for _ in range(_MOST_TRIES):
            anchored = text.rfind(self.anchor, 0, end)
            if anchored < 0:
                return
            begin = text.rfind(b"\n", 0, anchored) + 1
            stop = text.find(b"\n", anchored)
            match = self.pattern.match(text, begin, len(text) if stop < 0 else stop)
            if match is not None and first is not None and match.start() == first.match.start():
                return
            if match is not None:
                yield LineMatch(text, begin, len(text) if stop < 0 else stop, match)
                return
            end = begin


def _of_first(text: bytes, anchor: bytes) -> int:
    """Where the line of the first anchor ends."""
    return text.find(b"\n", max(text.find(anchor), 0)) % (len(text) + 1)
