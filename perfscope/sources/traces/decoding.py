"""Decodes the texts of events block by block; the events of a block that fails are decoded one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import GenericAlias
from typing import Generic, TypeVar

import msgspec

from perfscope.sources.traces.records import AnyEvent
from perfscope.sources.traces.salvage import FAILURES, decode_event
from perfscope.sources.traces.scan import DoesNotFit

_E = TypeVar("_E", bound=AnyEvent)


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
        self.decode_event: Callable[[bytes], _E] = msgspec.json.Decoder(kind, strict=False).decode
        self.lost = 0

    def decode(self, texts: Sequence[bytes]) -> list[_E]:
        """The events of a block.

        Raises:
            DoesNotFit: An event cannot be read, and may have been cut where it does not end.
        """
        if not texts:
            return []
        try:
            events = self._decode_list(b"[%b]" % b",".join(texts))
        except FAILURES:
            return [event for text in texts if (event := self._decode_or_count(text)) is not None]
        if not self._is_unambiguous and any(has_no_time(event) for event in events):
            raise DoesNotFit
        return events

    def _decode_or_count(self, text: bytes) -> _E | None:
        """One event, repaired where it must be; None, and counted, where that does not help."""
        event, _ = decode_event(text, self.decode_event)
        if event is None and not self._is_unambiguous:
            raise DoesNotFit
        self.lost += event is None
        return event


def list_decoder(kind: type[_E]) -> Callable[[bytes], list[_E]]:
    """A decoder of lists of events."""
    decode: Callable[[bytes], list[_E]] = msgspec.json.Decoder(GenericAlias(list, (kind,)), strict=False).decode
    return decode


def has_no_time(event: AnyEvent) -> bool:
    """Whether an event states no time."""
    return event.ts is None or (isinstance(event.ts, msgspec.Raw) and bytes(event.ts) == b"null")
