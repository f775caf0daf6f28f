"""What the hooks wrote into a trace, read from the beginning of its file alone."""

from __future__ import annotations

import zlib

import msgspec

from perfscope.constants import KIB
from perfscope.errors import SourceError
from perfscope.sources.traces.files import open_trace
from perfscope.sources.traces.layout import start_of_events
from perfscope.wire import TRACE_METADATA
from perfscope.wire.traces import TraceMetadata

_HEAD_BYTES = 64 * KIB
_GZIP_WINDOW = 31  # zlib's code for a gzip stream with the largest window


class _Head(msgspec.Struct, rename={"hooks": TRACE_METADATA}):
    hooks: TraceMetadata | None = None


def read_metadata(location: str) -> TraceMetadata | None:
    """Read the metadata of a trace; None where it has none, or where its beginning cannot be read.

    The exporter writes metadata before the events.
    """
    try:
        with open_trace(location) as file:
            content = file.read(_HEAD_BYTES)
    except (OSError, SourceError):
        return None
    try:
        head = zlib.decompressobj(_GZIP_WINDOW).decompress(content) if content.startswith(b"\x1f\x8b") else content
        start = start_of_events(head)
        return None if start is None else msgspec.json.decode(head[:start] + b"]}", type=_Head).hooks
    except (zlib.error, msgspec.MsgspecError, UnicodeDecodeError):
        return None
