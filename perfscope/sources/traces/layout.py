"""How an exporter lays out its events, so that the few that are needed can be found without parsing all of them.

An exporter writes every event alike: the same spaces, the same keys first. One sample gives the text between two events
and the text from an event's brace to its category. A departure from the layout is noticed, and the file is then parsed
as a whole.
"""

from __future__ import annotations

import re

from msgspec import Struct

_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_FIRST_BRACE = re.compile(rb"\s*(?=\{)")
_SPAN = re.compile(rb'(?P<prefix>\{\s*"ph"\s*:\s*"X"\s*,\s*(?="cat"))(?P<key>"cat"\s*:\s*")')
_OPENING = re.compile(rb'\{\s*"')


class DoesNotFit(Exception):
    """The text departs from its layout."""


class TextLayout(Struct, frozen=True):
    """The fixed texts of one exporter.

    Attributes:
        close: From the last byte of an event's content to its closing brace.
        separator: From there to the first quote of the next event, ``close`` included.
        prefix: From an event's opening brace to the key ``"cat"``.
        key: From that key to the first letter of the category.
        is_unambiguous: The separator has line breaks, so it cannot occur inside an event.
    """

    close: bytes
    separator: bytes
    prefix: bytes
    key: bytes
    is_unambiguous: bool

    @property
    def until_brace(self) -> int:
        """Length of the separator up to the next event's brace."""
        return self.separator.rindex(b"{")


def start_of_events(text: bytes) -> int | None:
    """Where the events begin: behind the bracket of ``traceEvents``, or of a bare list; None where there is neither."""
    match = _EVENTS_KEY.search(text)
    if match:
        return match.end()
    stripped = text.lstrip()
    return len(text) - len(stripped) + 1 if stripped.startswith(b"[") else None


def find_layout(text: bytes, start: int) -> TextLayout | None:
    """The layout of the events from ``start`` on, or None where it is not one of those that can be scanned."""
    first = _FIRST_BRACE.match(text, start)
    span = _SPAN.search(text, start)
    if first is None or span is None:
        return None
    fixed = span["prefix"], span["key"]
    opening = _OPENING.match(text, first.end())
    if opening is None or not span["prefix"].startswith(opening[0]):
        return None
    before = first[0]
    if b"\n" in before:
        newline = before.rindex(b"\n")
        indent = before[newline - 1 if before[newline - 1 : newline] == b"\r" else newline :]
        return TextLayout(indent + b"}", indent + b"}," + indent + opening[0], *fixed, is_unambiguous=True)
    separators = [b"}," + space + opening[0] for space in (b"", b" ", b"\n")]
    offsets = [(offset, separator) for separator in separators if (offset := text.find(separator, first.end())) >= 0]
    return TextLayout(b"}", min(offsets)[1], *fixed, is_unambiguous=False) if offsets else None
