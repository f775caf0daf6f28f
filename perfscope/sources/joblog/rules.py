"""Rules find lines by a literal that they contain, and match only these, because most lines of a log are not needed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from perfscope.sources.joblog.line_fields import parse_label, parse_timestamp_ns

StateT_contra = TypeVar("StateT_contra", contravariant=True)


@dataclass(frozen=True, slots=True)
class LineMatch:
    """A match of a rule, and its position in the text.

    Attributes:
        text: The block of text.
        line: Where the line begins.
        end: Where it ends.
        match: The match.
    """

    text: bytes
    line: int
    end: int
    match: re.Match[bytes]

    def __getitem__(self, group: int | str) -> bytes:
        return self.match[group] or b""

    @property
    def full_line(self) -> bytes:
        """The line from its beginning to its end."""
        return self.text[self.line : self.end]

    @property
    def label(self) -> bytes | None:
        """The label that a launcher wrote in front of the line: ``[default7]:``, ``12: ``, ``[1,3]<stdout>:``."""
        return parse_label(self.text, self.line)

    @property
    def timestamp_ns(self) -> int | None:
        """The line's first date and time, as nanoseconds since 1970 without a time zone."""
        return parse_timestamp_ns(self.text, self.line, self.end)


@dataclass(frozen=True, slots=True)
class Rule(Generic[StateT_contra]):
    """A kind of line to look for, and the function that reads it.

    Attributes:
        anchor: Bytes that such a line has; the pattern is tried only there.
        pattern: What the line must match, from its beginning on or anywhere.
        on_match: Called with the format's state and the match, to read the line.
        reach: Bytes beyond the line that the pattern may match, for what is printed over several lines.
        at_line_start: The pattern is tried at the beginning of the line only, which is faster.
        identifies: Whether such a line proves that the format's framework wrote the log.
    """

    anchor: bytes
    pattern: re.Pattern[bytes]
    on_match: Callable[[StateT_contra, LineMatch], None]
    reach: int = 0
    identifies: bool = True
    at_line_start: bool = False

    def find(self, text: bytes) -> Iterator[LineMatch]:
        """Yield every match in a block of text; two records glued on one line are two matches."""
        match_from = self.pattern.match if self.at_line_start else self.pattern.search
        anchored = text.find(self.anchor)
        searched = 0
        while anchored >= 0:
            line = text.rfind(b"\n", 0, anchored) + 1
            end = text.find(b"\n", anchored)
            end = len(text) if end < 0 else end
            match = match_from(text, max(line, searched), end + self.reach)
            # What does not match from here on does not match at a later anchor of the line either.
            searched = end
            if match is not None:
                yield LineMatch(text, line, end, match)
                searched = max(anchored + len(self.anchor), match.end())
            anchored = text.find(self.anchor, searched)
