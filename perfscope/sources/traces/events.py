"""Every event of a trace, as a record of the caller's, in the order of the file."""

from __future__ import annotations

from collections.abc import Iterator

from perfscope.errors import NotATrace
from perfscope.sources.traces.inflate import read_blocks
from perfscope.sources.traces.layout import start_of_events
from perfscope.sources.traces.reader import read_head
from perfscope.sources.traces.stream import Categorized, EventStream


def read_events(path: str, kind: type[Categorized]) -> Iterator[list[Categorized]]:
    """Yield all events of a trace, those of a block together; damaged ones are left out.

    Args:
        path: The file, plain or gzip.
        kind: A msgspec.Struct of the keys that are wanted, with a default for each.

    Raises:
        SourceError: The file cannot be opened, or is not a trace.
    """
    blocks = read_blocks(path, [])
    head = read_head(blocks)
    start = start_of_events(head)
    if start is None:
        raise NotATrace(path, "is not a trace", hint="a trace of torch.profiler is JSON with the key traceEvents")
    for events, _ in EventStream(kind).read(head[start:], blocks):
        yield events
