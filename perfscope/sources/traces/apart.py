"""Reads one large trace in several processes, each of which scans some shares of its text.

What they give is joined in the order of the file, and is what a reading in one piece gives, to the last bit. Where a
process does not answer, whatever the reason, the trace is read in one piece.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing

from perfscope.forks import forked
from perfscope.sources.traces.collecting import Collector, Request, Stretch
from perfscope.sources.traces.shares import Claims, Text


def collect_apart(
    text: Text,
    begun: Collector,
    blocks: Iterator[bytes],
    request: Request,
    processes: int,
    meanwhile: Callable[[], None],
) -> None:
    """Collect the events of a trace in this process and some that are forked.

    Device events, which take longer than others, stand together: so each process claims one share after the other.

    Args:
        text: The text of the trace.
        begun: What collects the events.
        blocks: The first share of the text, from the first event on.
        request: What to read.
        processes: How many, with this one.
        meanwhile: What this process does before it joins in.

    Raises:
        DoesNotFit: The layout is not kept.
        NoAnswer: A process was killed, or could not read its shares.
        PartsDiffer: The file is damaged, or has changed.
        TimesDoNotFit: A time is too large for a double.
    """

    def collect_forked() -> Mapping[int, Stretch]:
        with closing(text.reopened()) as reopened:
            return _collect_claimed(reopened, request, claims)

    helpers = min(processes, text.most_processes) - 1
    with closing(Claims(range(1, text.count))) as claims, forked(collect_forked, helpers) as forks:
        meanwhile()
        begun.collect(blocks)
        stretches = dict(_collect_claimed(text, request, claims))
        for fork in forks:
            stretches.update(fork.answer())
        for number in range(1, text.count):  # while the processes end
            begun.absorb(stretches.pop(number))


def _collect_claimed(text: Text, request: Request, claims: Claims) -> Mapping[int, Stretch]:
    """Collect the events of shares that no other process has claimed, until there are none."""
    return {number: Collector(request).collect_stretch(text.share(number)) for number in claims}
