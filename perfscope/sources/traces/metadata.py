"""What the hooks wrote into a trace, read from the beginning of its file alone."""

from __future__ import annotations

import zlib

import msgspec

from perfscope.constants import KIB, MIB
from perfscope.errors import SourceError
from perfscope.sources.stores.location import failures
from perfscope.sources.traces.files import open_trace
from perfscope.sources.traces.layout import start_of_events
from perfscope.wire import TRACE_METADATA
from perfscope.wire.traces import TraceMetadata

_READ_BYTES = 4 * KIB
#: Of a URL: the head of a trace is short.
_AHEAD_BYTES = 64 * KIB
_LARGEST_HEAD_BYTES = 16 * MIB
_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_WINDOW = 31  # zlib's code for a gzip stream with the largest window


class _Head(msgspec.Struct, rename={"hooks": TRACE_METADATA}):
    hooks: TraceMetadata | None = None


def read_metadata(location: str) -> TraceMetadata | None:
    """Read the metadata of a trace; None where it has none, or where its beginning cannot be read.

    The exporter writes metadata before the events.
    """
    try:
        head = _read_head(location)
        return None if head is None else msgspec.json.decode(head + b"]}", type=_Head).hooks
    except (SourceError, zlib.error, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    except failures():
        return None


def _read_head(location: str) -> bytes | None:
    """What a trace contains before its events; None where there are none in the first megabytes.

    Raises:
        OSError: The file cannot be read.
        SourceError: The file cannot be opened.
        zlib.error: It is damaged.
    """
    head, stream = b"", None
    with open_trace(location, _AHEAD_BYTES) as file:
        while len(head) < _LARGEST_HEAD_BYTES and (content := file.read(_READ_BYTES)):
            if not head and content.startswith(_GZIP_MAGIC):
                stream = zlib.decompressobj(_GZIP_WINDOW)
            head += content if stream is None else stream.decompress(content)
            start = start_of_events(head)
            if start is not None:
                return head[:start]
    return None
