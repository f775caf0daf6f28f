"""Collects the requested events of a trace's text, of all of it or of a stretch of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct

from perfscope.sources.traces.columns import Columns
from perfscope.sources.traces.layout import DoesNotFit, Layout
from perfscope.sources.traces.operator_times import OperatorTimes
from perfscope.sources.traces.plausibility import is_damaged
from perfscope.sources.traces.products import ProductFinder
from perfscope.sources.traces.records import KIND, AnyEvent, DeviceEvent, Event, EventInDigits, HostEvent, ShapedEvent
from perfscope.sources.traces.salvage import FAILURES, Salvager, end_of_event, list_decoder
from perfscope.sources.traces.scan import Scanner
from perfscope.tables.trace import Events

_Plain = TypeVar("_Plain", Event, HostEvent)
_E = TypeVar("_E", bound=AnyEvent)


class Request(Struct, frozen=True):
    """What to read of a trace, and how it is written.

    Attributes:
        events: The requested kinds of events.
        layout: Its layout.
        fits: Whether doubles hold its times.
    """

    events: Events
    layout: Layout
    fits: bool


class Collector:
    """Collects events from texts that follow each other.

    Attributes:
        columns: The events.
        finder: The products among them; absent where they are not requested.
        lost: How many events have lost their phase or their category.
    """

    def __init__(self, request: Request) -> None:
        events, self._layout = request.events, request.layout
        self.columns = Columns(events)
        self.finder = ProductFinder() if Events.PRODUCTS in events else None
        needs_times_alone = Events.OPERATOR_TIMES in events and Events.OPERATORS not in events
        self._times = OperatorTimes() if request.fits and needs_times_alone else None
        self._scanner = Scanner(request.layout, events, self.finder, self._times)
        of_device: type[AnyEvent] = Event if Events.GRIDS in events else DeviceEvent
        kinds: tuple[type[AnyEvent], ...] = (of_device, kind_of_event(events, HostEvent), kind_of_event(events, Event))
        self._of_device, self._of_host, self._of_any = (
            _Decoder(kind if request.fits else EventInDigits, is_unambiguous=request.layout.is_unambiguous)
            for kind in kinds
        )
        self.lost = 0

    @property
    def events(self) -> int:
        """How many events there were."""
        return self._scanner.events

    def collect(self, blocks: Iterable[bytes]) -> None:
        """Collect the events of a text that begins with one.

        Raises:
            DoesNotFit: The layout is not kept.
            TimesDoNotFit: A time is too large for a double.
        """
        for texts in self._scanner.scan(blocks):
            self.columns.add(self._of_device.decode(texts.device))
            self.columns.add(self._of_host.decode(texts.host))
            for text in texts.odd:
                self._add_odd(text)

    def finish(self) -> tuple[bytes, bool]:
        """Collect the last event; returns the text behind it, and whether that closes the list of events.

        Raises:
            DoesNotFit: The layout is not kept.
        """
        if self._times:
            self.columns.add_operator_times(self._times.collected())
            if self._times.lost:
                raise DoesNotFit
        rest = self._scanner.rest
        begin = rest.find(b"{")
        end = end_of_event(rest, begin, len(rest)) if begin >= 0 else None
        last = None if end is None else self._of_any.decode_event(rest[begin:end])
        if end is None or last is None:
            return b"", False
        tail = rest[end:].lstrip()
        is_closed = tail.startswith(b"]")
        if (tail and not is_closed) or (not self._layout.is_unambiguous and _has_no_time(last)):
            raise DoesNotFit
        self.columns.add([last])
        if self.finder:
            self.finder.decode_event(rest[begin:end])
        self._scanner.events += 1
        return tail, is_closed

    def _add_odd(self, text: bytes) -> None:
        """Add an event that is not written as the layout says.

        Raises:
            DoesNotFit: The text is not one event.
        """
        try:
            event = self._of_any.decode_strictly(text)
            is_complete = event.ph == "X" and event.cat in KIND
            if not is_complete:
                self.lost += is_damaged(msgspec.json.decode(text.decode("utf-8", "replace")))
                return
            if self.finder:
                self.finder.decode(b"[%b]" % text)
        except FAILURES:
            raise DoesNotFit from None
        self.columns.add([event])


class _Decoder(Generic[_E]):
    """Decodes the events of one trace as records of one type.

    In an ambiguous layout an event that cannot be read, or that has no time, may have been cut where it does not end.
    """

    def __init__(self, kind: type[_E], *, is_unambiguous: bool) -> None:
        self._is_unambiguous = is_unambiguous
        self._decode_list = list_decoder(kind)
        self.decode_strictly: Callable[[bytes], _E] = msgspec.json.Decoder(kind, strict=False).decode
        self._salvager = Salvager(self.decode_strictly)

    def decode(self, texts: Sequence[bytes]) -> list[_E]:
        """The events of some texts.

        Raises:
            DoesNotFit: An event cannot be read, or may have been cut where it does not end.
        """
        if not texts:
            return []
        try:
            events = self._decode_list(b"[%b]" % b",".join(texts))
        except FAILURES:
            mended = [self.decode_event(text) for text in texts]
            events = [event for event in mended if event is not None]
            if len(events) < len(mended):
                raise DoesNotFit from None
        if not self._is_unambiguous and any(map(_has_no_time, events)):
            raise DoesNotFit
        return events

    def decode_event(self, text: bytes) -> _E | None:
        """One event, mended where it must be; None where that does not help."""
        return self._salvager.read(text)[0]


def kind_of_event(events: Events, plain: type[_Plain]) -> type[_Plain] | type[ShapedEvent]:
    """The record of an event: with inputs where they are requested."""
    return ShapedEvent if Events.SHAPES in events else plain


def _has_no_time(event: AnyEvent) -> bool:
    return event.ts is None or (isinstance(event.ts, msgspec.Raw) and bytes(event.ts) == b"null")
