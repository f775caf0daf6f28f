"""Damages of traces, and what is read of them."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path

from perfscope.errors import SourceError
from perfscope.sources.traces.reader import read_trace
from perfscope.tables.trace import Trace
from tests.conftest import ROOT

FIXTURES = ROOT / "fixtures" / "traces"
KINDS = ("flip", "cut", "splice")
#: What the reader goes by: each bit of these words is flipped once.
_WORDS = (b'"ph"', b'"cat"', b'"X"', b'"kernel"')


def damage(content: bytes, kind: str, order: random.Random) -> bytes:
    """A file's content with one damage."""
    begin, end = sorted(order.randrange(len(content)) for _ in range(2))
    if kind == "flip":
        return _flipped(content, begin, order.randrange(8))
    if kind == "cut":
        return content[:begin]
    return content[:begin] + content[end:] if order.random() < 0.5 else content[:end] + content[begin:]


def figures(trace: Trace) -> tuple[object, ...]:
    """What every figure is computed from."""
    tables = trace.device, trace.calls, trace.annotations
    return tuple(
        sorted(
            zip(
                (trace.names[name] for name in table.name),
                table.start_ns.tolist(),
                table.duration_ns.tolist(),
                strict=True,
            )
        )
        for table in tables
    )


def read_damaged(path: Path, whole: tuple[object, ...]) -> str:
    """What comes of reading a file."""
    try:
        trace = read_trace(path)
    except SourceError:
        return "refused"
    except Exception:  # noqa: BLE001 - that there is none is what is measured
        return "traceback"
    is_same = figures(trace) == whole
    if trace.damage:
        return "said, nothing lost" if is_same else "said"
    return "nothing lost" if is_same else "silent"


def flips_of_words(content: bytes) -> Iterator[bytes]:
    """Trace texts, in each of which one bit of a word is flipped that decides what an event is."""
    kernel = re.search(rb'\{[^{}]*"kernel"', content)
    if kernel is None:
        return
    for word in _WORDS:
        place = content.index(word, kernel.start()) + 1
        for letter in range(len(word) - 2):
            for bit in range(8):
                yield _flipped(content, place + letter, bit)


def _flipped(content: bytes, place: int, bit: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :]
