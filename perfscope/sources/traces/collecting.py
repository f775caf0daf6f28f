"""Collects the requested events of a trace's text, of all of it or of a stretch of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from msgspec import Struct

from perfscope.sources.traces.columns import Columns
from perfscope.sources.traces.decoding import EventDecoder, OddEvents, decode_last, has_no_time
from perfscope.sources.traces.layout import Layout
from perfscope.sources.traces.operator_times import OperatorTimes
from perfscope.sources.traces.products import ProductFinder
from perfscope.sources.traces.records import AnyEvent, DeviceEvent, Event, EventInDigits, HostEvent, ShapedEvent
from perfscope.sources.traces.scan import DoesNotFit, EventTexts, Scanner
from perfscope.tables.trace import Events

_LARGEST_EVENT_BYTES = 64 << 20
_Plain = TypeVar("_Plain", Event, HostEvent)


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
        events: How many events there were.
    """

    def __init__(self, request: Request) -> None:
        events, self._layout = request.events, request.layout
        self.columns = Columns(events)
        self.finder = ProductFinder() if Events.PRODUCTS in events else None
        needs_times_alone = Events.OPERATOR_TIMES in events and Events.OPERATORS not in events
        self._times = OperatorTimes() if request.fits and needs_times_alone else None
        self._scanner = Scanner(request.layout, events, self.finder, self._times)
        self._of_device, self._of_host, self._of_any = _decoders(request)
        self._odd = OddEvents(kind_of_event(events, Event) if request.fits else EventInDigits)

    @property
    def events(self) -> int:
        """How many events there were."""
        return self._scanner.events

    @property
    def lost(self) -> int:
        """How many events have lost their phase or their category."""
        return self._odd.lost

    def collect(self, blocks: Iterable[bytes]) -> None:
        """Collect the events of a text that begins with one.

        Raises:
            DoesNotFit: The layout is not kept.
            TimesDoNotFit: A time is too large for a double.
        """
        for texts in self._scanner.scan(blocks):
            self._add(texts)

    def finish(self) -> tuple[bytes, bool]:
        """Collect the last event; returns the text behind it, and whether that closes the list of events.

        Raises:
            DoesNotFit: The layout is not kept.
        """
        rest = self._scanner.rest
        if self.finder:
            self.finder.scan_last(rest)
        last, tail, is_closed = decode_last(rest, self._of_any)
        if tail and not is_closed:
            raise DoesNotFit
        if last is not None and not self._layout.is_unambiguous and has_no_time(last):
            raise DoesNotFit
        if last is not None:
            self.columns.add([last])
            self._scanner.events += 1
        if self._times:
            operators = self._times.collected()
            self.columns.add_operator_times(operators.spans)
            self.columns.add_callers(self._scanner.callers.names, operators.named)
            if operators.lost:
                raise DoesNotFit
        return tail, is_closed

    def _add(self, texts: EventTexts) -> None:
        self.columns.add(self._of_device.decode(texts.device))
        self.columns.add(self._of_host.decode(texts.host))
        self.columns.add(self._odd.decode(texts.odd, self.finder))


def kind_of_event(events: Events, plain: type[_Plain]) -> type[_Plain] | type[ShapedEvent]:
    """The record of an event: with inputs where they are requested."""
    return ShapedEvent if Events.SHAPES in events else plain


def _decoders(request: Request) -> tuple[EventDecoder[AnyEvent], ...]:
    """What decodes events on devices, on the host, and those of either kind."""
    events = request.events
    of_device = Event if Events.GRIDS in events else DeviceEvent
    kinds: tuple[type[AnyEvent], ...] = (of_device, kind_of_event(events, HostEvent), kind_of_event(events, Event))
    if not request.fits:
        kinds = (EventInDigits,) * 3
    return tuple(EventDecoder(kind, is_unambiguous=request.layout.is_unambiguous) for kind in kinds)
