"""What the hooks wrote into a trace, read from the beginning of its file alone."""

from __future__ import annotations

import re

import msgspec

from perfscope.constants import KIB, MIB
from perfscope.errors import SourceError
from perfscope.sources.traces.inflate import read_blocks
from perfscope.wire import TRACE_METADATA
from perfscope.wire.traces import TraceMetadata

#: Nothing before the events is larger, nor after them, and no event.
LARGEST_PART_BYTES = 16 * MIB
_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')


class _Head(msgspec.Struct, rename={"hooks": TRACE_METADATA}):
    hooks: TraceMetadata | None = None


#: Made before there are threads: msgspec resolves a type's fields once, and another thread must not meet half of them.
_decode_head = msgspec.json.Decoder(_Head).decode


def start_of_events(text: bytes) -> int | None:
    """Where the events begin: behind the bracket of ``traceEvents``, or of a bare list; None where there is neither."""
    match = _EVENTS_KEY.search(text)
    if match:
        return match.end()
    stripped = text.lstrip()
    return len(text) - len(stripped) + 1 if stripped.startswith(b"[") else None


def read_metadata(location: str) -> TraceMetadata | None:
    """Read the metadata of a trace; None where it has none, or where its beginning cannot be read.

    The exporter writes metadata before the events.
    """
    head = b""
    try:
        for block in read_blocks(location, [], ahead_bytes=64 * KIB):
            head += block
            start = start_of_events(head)
            if start is not None:
                return _decode_head(head[:start] + b"]}").hooks
            if len(head) > LARGEST_PART_BYTES:
                break
    except (SourceError, msgspec.MsgspecError, UnicodeDecodeError):
        pass
    return None
