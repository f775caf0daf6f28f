"""Decodes the texts of events block by block; the events of a block that fails are decoded one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import GenericAlias
from typing import Generic, TypeVar

import msgspec

from perfscope.sources.traces.plausibility import is_damaged
from perfscope.sources.traces.products import ProductFinder
from perfscope.sources.traces.records import KIND, AnyEvent
from perfscope.sources.traces.salvage import FAILURES, Salvager, end_of_event
from perfscope.sources.traces.scan import DoesNotFit

_E = TypeVar("_E", bound=AnyEvent)
_R = TypeVar("_R")  # the type of a record


class EventDecoder(Generic[_E]):
    """Decodes the events of one trace as records of one type.

    Args:
        kind: The type.
        is_unambiguous: Whether the layout of the trace is; else an event that cannot be read, or that has no time, may
            have been cut where it does not end.
    """

    def __init__(self, kind: type[_E], *, is_unambiguous: bool) -> None:
        self._is_unambiguous = is_unambiguous
        self._decode_list = list_decoder(kind)
        self._salvager = Salvager(msgspec.json.Decoder(kind, strict=False).decode)

    def decode(self, texts: Sequence[bytes]) -> list[_E]:
        """The events of a block.

        Raises:
            DoesNotFit: An event cannot be read, or may have been cut where it does not end.
        """
        if not texts:
            return []
        try:
            events = self._decode_list(b"[%b]" % b",".join(texts))
        except FAILURES:
            events = [self._decode_or_mend(text) for text in texts]
        if not self._is_unambiguous and any(has_no_time(event) for event in events):
            raise DoesNotFit
        return events

    def decode_event(self, text: bytes) -> _E | None:
        """One event, mended where it must be; None where that does not help."""
        return self._salvager.read(text)[0]

    def _decode_or_mend(self, text: bytes) -> _E:
        event = self.decode_event(text)
        if event is None:
            raise DoesNotFit
        return event


class OddEvents:
    """Decodes the texts that are not written as a trace's layout says.

    Attributes:
        lost: How many have lost their phase or their category.
    """

    def __init__(self, kind: type[AnyEvent]) -> None:
        self._decode: Callable[[bytes], AnyEvent] = msgspec.json.Decoder(kind, strict=False).decode
        self.lost = 0

    def decode(self, texts: Sequence[bytes], finder: ProductFinder | None) -> list[AnyEvent]:
        """The events that are complete; the products among them are added to a finder.

        Raises:
            DoesNotFit: A text is not one event.
        """
        events = []
        for text in texts:
            try:
                event = self._decode(text)
                is_complete = event.ph == "X" and event.cat in KIND
                if not is_complete:
                    self.lost += is_damaged(msgspec.json.decode(text.decode("utf-8", "replace")))
                    continue
                if finder is not None:
                    finder.decode(b"[%b]" % text)
            except FAILURES:
                raise DoesNotFit from None
            events.append(event)
        return events


def list_decoder(kind: type[_R]) -> Callable[[bytes], list[_R]]:
    """A decoder of lists of events."""
    decode: Callable[[bytes], list[_R]] = msgspec.json.Decoder(GenericAlias(list, (kind,)), strict=False).decode
    return decode


def has_no_time(event: AnyEvent) -> bool:
    """Whether an event states no time."""
    return event.ts is None or (isinstance(event.ts, msgspec.Raw) and bytes(event.ts) == b"null")


def decode_last(piece: bytes, decoder: EventDecoder[_E]) -> tuple[_E | None, bytes, bool]:
    """The last event of a list, the text behind it, and whether that text closes the list."""
    begin = piece.find(b"{")
    end = end_of_event(piece, begin, len(piece)) if begin >= 0 else None
    event = None if end is None else decoder.decode_event(piece[begin:end])
    if end is None or event is None:
        return None, b"", False
    tail = piece[end:].lstrip()
    return event, tail, tail.startswith(b"]")
