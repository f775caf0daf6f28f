"""Finds the requested events in the text of a trace whose layout is known, without parsing the rest.

The text that separates events cuts a block into them. The first letters of each, up to the eighth of its category, tell
what it is. Only the requested ones are decoded. A departure from the layout raises DoesNotFit: the file is then parsed
as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct

from perfscope.sources.traces.columns import Columns
from perfscope.sources.traces.metadata import LARGEST_PART_BYTES
from perfscope.sources.traces.products import ProductFinder, find_meaning
from perfscope.sources.traces.records import (
    KIND,
    Event,
    ShapedEvent,
    TimedEvent,
)
from perfscope.sources.traces.stream import (
    FAILURES,
    DoesNotFit,
    Salvager,
    end_of_event,
    list_decoder,
)
from perfscope.tables.trace import Events

_FIRST_BRACE = re.compile(rb"\s*(?=\{)")
_SPAN = re.compile(rb'(?P<prefix>\{\s*"ph"\s*:\s*"X"\s*,\s*(?="cat"))(?P<key>"cat"\s*:\s*")')
_OPENING = re.compile(rb'\{\s*"')
#: Categories that exporters write and that are not read.
_OTHER_CATEGORIES = "gpu_user_annotation", "ac2g", "fwdbwd", "overhead", "cpu_instant_event", "cuda_sync", "Trace"
#: Letters of a category, with its closing quote, by which it is told: those that share them are of one kind.
_LETTERS = 8
_STARTS = {name: f'{name}"'.encode()[:_LETTERS] for name in (*KIND, *_OTHER_CATEGORIES)}
_PHASE_KEY = b'"ph"'
#: What is told of operators besides the operators themselves.
_OF_OPERATORS = Events.PRODUCTS | Events.OPERATOR_TIMES | Events.CALLERS
#: The phases of events that are not read (Chrome's trace event format).
_OTHER_PHASES = frozenset("sftiIMCBEbenNDOSTFpRcavV()")
_E = TypeVar("_E", bound=Event | TimedEvent)


class TextLayout(Struct, frozen=True):
    """The fixed texts of one exporter, which writes every event alike: the same spaces, the same keys first.

    Each event has lines of its own: a text with the separator's line breaks cannot occur inside an event.

    Attributes:
        close: From the last byte of an event's content to its closing brace.
        separator: From there to the first quote of the next event, ``close`` included.
        prefix: From an event's opening brace to the key ``"cat"``.
        key: From that key to the first letter of the category.
    """

    close: bytes
    separator: bytes
    prefix: bytes
    key: bytes

    @property
    def opening(self) -> bytes:
        """The end of the separator: from the next event's brace on."""
        return self.separator[self.separator.rindex(b"{") :]


def find_layout(text: bytes, start: int) -> TextLayout | None:
    """The layout of the events from ``start`` on, or None where it is not one of those that can be scanned."""
    first = _FIRST_BRACE.match(text, start)
    span = _SPAN.search(text, start)
    if first is None or span is None:
        return None
    opening = _OPENING.match(text, first.end())
    if opening is None or not span["prefix"].startswith(opening[0]):
        return None
    before = first[0]
    newline = before.rfind(b"\n")
    if newline < 0:
        return None
    indent = before[newline - 1 if before[newline - 1 : newline] == b"\r" else newline :]
    return TextLayout(indent + b"}", indent + b"}," + indent + opening[0], span["prefix"], span["key"])


class Scanner:
    """Collects the requested events of blocks of text that follow each other.

    ``finder`` has the products, None where they are not requested; ``events`` is how many were passed.
    """

    def __init__(self, requested: Events, layout: TextLayout) -> None:
        self.columns = Columns(requested)
        self.finder = ProductFinder() if Events.PRODUCTS in requested else None
        self.events = 0
        self._layout = layout
        self._opening = layout.opening
        self._until_category = (layout.prefix + layout.key)[len(self._opening) :]
        self._until_phase = layout.prefix[len(self._opening) : layout.prefix.index(b'"X"') + 1]
        #: The texts of a block that are skipped, and those that are not written as the layout says.
        self._skipped: list[bytes] = []
        self._odd: list[bytes] = []
        #: By first letters, what adds the text of a complete event, and of another one.
        self._add_span: dict[bytes, Callable[[bytes], None]] = {}
        phases = (self._until_phase + f'{phase}"'.encode() for phase in _OTHER_PHASES)
        self._add_other = dict.fromkeys(phases, self._skipped.append)
        self._rest = b""

        self._of_any: _Decoder[Event] = _Decoder(kind_of_event(requested), layout)
        of_device: _Decoder[Event] = _Decoder(Event, layout)
        self._timed = _Decoder(TimedEvent, layout)
        #: By kind, its texts in a block and what decodes them whole; None where times and names suffice.
        self._groups: dict[Events, tuple[list[bytes], _Decoder[Event] | None]] = {}
        needed_as = {Events.OPERATORS: _OF_OPERATORS, Events.FRAMES: Events.CALLERS}
        for kind in dict.fromkeys(KIND.values()):
            if requested & (kind | needed_as.get(kind, kind)):
                is_timed = not requested & (kind | Events.SEQUENCES | Events.SHAPES)
                of_kind = of_device if kind is Events.DEVICE else self._of_any
                self._groups[kind] = [], None if is_timed else of_kind

    def collect(self, blocks: Iterable[bytes]) -> None:
        """Collect the events of a text that begins with one; DoesNotFit where the layout is not kept."""
        opening, separator = self._opening, self._layout.separator
        is_first = True
        for block in blocks:
            text = self._rest + block
            if is_first:
                if not text.startswith(opening):
                    raise DoesNotFit
                text, is_first = text[len(opening) :], False
            *texts, self._rest = text.split(separator)
            if texts:
                self.events += len(texts)
                self._sort(texts)
                self._add()
            elif len(text) > LARGEST_PART_BYTES:
                raise DoesNotFit

    def _sort(self, texts: Sequence[bytes]) -> None:
        until_phase, length = len(self._until_phase) + 2, len(self._until_category) + _LETTERS
        of_span, of_other = self._add_span.get, self._add_other.get
        for text in texts:
            add = of_span(text[:length]) or of_other(text[:until_phase])
            (self._find(text[:length]) if add is None else add)(text)

    def _find(self, head: bytes) -> Callable[[bytes], None]:
        """What adds a text that begins like this one, whose beginning is new."""
        if not head.startswith(self._until_category):
            return self._odd.append
        letters = head[len(self._until_category) :]
        name = next((name for name, start in _STARTS.items() if letters.startswith(start)), None)
        kind = None if name is None else KIND.get(name)
        group = self._odd if name is None else self._groups[kind][0] if kind in self._groups else self._skipped
        return self._add_span.setdefault(head, group.append)

    def _add(self) -> None:
        if _PHASE_KEY in b" ".join(self._skipped):  # another event, whose beginning is damaged
            self._odd += [text for text in self._skipped if _PHASE_KEY in text]
        self._skipped.clear()
        for kind, (texts, decoder) in self._groups.items():
            if not texts:
                continue
            events: Sequence[Event] | Sequence[TimedEvent]
            if decoder is None:
                events = timed = self._timed.decode(texts)
                self.columns.add_timed(timed, kind)
            else:
                events = whole = decoder.decode(texts)
                self.columns.add(whole)
            if kind is Events.OPERATORS and self.finder:
                self._add_products(texts, [event.name for event in events])
            texts.clear()
        for text in self._odd:
            self._add_odd(self._opening + text + self._layout.close)
        self._odd.clear()

    def _add_products(self, texts: Sequence[bytes], names: Sequence[str]) -> None:
        assert self.finder is not None
        if len(names) != len(texts):
            raise DoesNotFit
        needed = set(filter(find_meaning, set(names)))
        chosen = [text for text, name in zip(texts, names, strict=True) if name in needed]
        self.finder.add([self._opening + text + self._layout.close for text in chosen])

    def finish(self) -> tuple[bytes, bool]:
        """Collect the last event; returns the text after it, and whether that closes the list of events."""
        rest = self._opening + self._rest
        end = end_of_event(rest, 0, len(rest))
        last = None if end is None else self._of_any.decode_event(rest[:end])
        if end is None or last is None:
            return b"", False
        tail = rest[end:].lstrip()
        is_closed = tail.startswith(b"]")
        if tail and not is_closed:
            raise DoesNotFit
        self.columns.add([last])
        if self.finder:
            self.finder.add([rest[:end]])
        self.events += 1
        return tail, is_closed

    def _add_odd(self, text: bytes) -> None:
        """Add an event that is not written as the layout says; DoesNotFit where it is not one event."""
        try:
            event = self._of_any.decode_strictly(text)
            if self.finder:
                self.finder.decode(b"[%b]" % text)
        except FAILURES:
            raise DoesNotFit from None
        self.columns.add([event])


class _Decoder(Generic[_E]):
    """Decodes the events of one trace as records of one type."""

    def __init__(self, kind: type[_E], layout: TextLayout) -> None:
        self._opening, self._close = layout.opening, layout.close
        self._decode_list = list_decoder(kind)
        self.decode_strictly: Callable[[bytes], _E] = msgspec.json.Decoder(kind, strict=False).decode
        self._salvager = Salvager(self.decode_strictly)

    def decode(self, texts: Sequence[bytes]) -> list[_E]:
        """The events of some texts, which lack their first and last letters; DoesNotFit where one cannot be read."""
        try:
            joined = (self._close + b"," + self._opening).join(texts)
            events = self._decode_list(b"[%b%b%b]" % (self._opening, joined, self._close))
        except FAILURES:
            mended = [self.decode_event(self._opening + text + self._close) for text in texts]
            events = [event for event in mended if event is not None]
            if len(events) < len(mended):
                raise DoesNotFit from None
        return events

    def decode_event(self, text: bytes) -> _E | None:
        """One event, mended where it must be; None where that does not help."""
        return self._salvager.read(text)


def kind_of_event(events: Events) -> type[Event]:
    """The record of an event: with inputs where they are requested."""
    return ShapedEvent if Events.SHAPES in events else Event
