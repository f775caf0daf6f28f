"""Finds the events of the wanted categories in a trace's text without parsing the others.

Most events of a trace are of no interest to an analysis: operators, Python functions, arrows. In a text of a known
layout an event begins with a brace behind the text that separates events, and has its category at a fixed distance from
that brace. One comparison finds the braces of a block; the few bytes around each tell which of them begin wanted
events, and only these are cut out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from perfscope.sources.traces.layout import Layout
from perfscope.sources.traces.products import ProductFinder
from perfscope.sources.traces.records import KIND
from perfscope.tables.columns import Bool, Int64
from perfscope.tables.trace import Events

_TELLING_LETTERS = 0, 5  # of a category, its closing quote included: these two tell those that are wanted from others
_BRACE = ord("{")
_SPACE = ord(" ")
_COMMA = ord(",")
_SLICE_BYTES = 1 << 18  # what is compared at once stays in the processor's cache
_LONGEST_IDENTITY = 20
_GIVEN_TOGETHER = 1 << 13
_LONGEST_INDENT = 64
_LARGEST_EVENT_BYTES = 64 << 20


class DoesNotFit(Exception):
    """The text departs from its layout."""


@dataclass(frozen=True, slots=True)
class Found:
    """The wanted events of some blocks.

    Attributes:
        device: Texts of events on devices.
        host: Texts of events on the host; those of operators end with their external id.
    """

    device: list[bytes]
    host: list[bytes]

    def extend(self, other: Found) -> None:
        """Add the events of another block."""
        self.device.extend(other.device)
        self.host.extend(other.host)


class _Block:
    """Some whole events in a text.

    Attributes:
        text: What holds them.
        begin, end: Where the first one begins and the last one ends.
    """

    def __init__(self, text: bytes, begin: int, end: int) -> None:
        self.text = text
        self.begin = begin
        self.end = end
        self._bytes = np.frombuffer(text, np.uint8)

    @cached_property
    def braces(self) -> Int64:
        """Where opening braces stand."""
        found = []
        for start in range(self.begin, self.end, _SLICE_BYTES):
            part = self._bytes[start : min(start + _SLICE_BYTES, self.end)]
            found.append(np.flatnonzero(part == _BRACE) + start)
        return np.concatenate(found)

    def letters(self, places: Int64, offset: int) -> npt.NDArray[np.uint8]:
        """The byte so far behind (or before) each place; that at the text's border where there is none."""
        shifted = places if offset == 0 else places + offset
        return self._bytes.take(shifted, mode="clip")

    def holds(self, text: bytes, places: Int64, offset: int = 0) -> Bool:
        """Whether a text stands so far behind (or before) each place.

        Spaces in it are taken for granted: between its other letters nothing but white space can stand in JSON.
        """
        found = np.ones(len(places), np.bool_)
        for index, letter in enumerate(text, offset):
            if letter != _SPACE:
                found &= self.letters(places, index) == letter
        return found

    def commas(self, places: Int64) -> Int64:
        """Where the first comma after each place stands, or the place itself where none is near."""
        near = self._bytes.take(places[:, None] + np.arange(_LONGEST_IDENTITY), mode="clip") == _COMMA
        return np.asarray(places + near.argmax(axis=1))

    def cut(self, starts: Int64, stops: Int64) -> list[bytes]:
        """The texts between places."""
        text = self.text
        return [text[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]


@dataclass(slots=True)
class Scanner:
    """Cuts the wanted events out of blocks of text that follow each other.

    Attributes:
        layout: How the exporter writes.
        wanted: The kinds of events to find.
        products: Looks for matrix products among the operators; absent where they are not wanted.
        rest: What follows the last separator so far; in the end the last event and what comes after the list.
        events: How many events were passed.
    """

    layout: Layout
    wanted: Events
    products: ProductFinder | None = None
    rest: bytes = b""
    events: int = 0
    _kinds: npt.NDArray[np.uint8] = field(init=False)

    def __post_init__(self) -> None:
        self._kinds = np.zeros(1 << 16, np.uint8)
        for name, kind in KIND.items():
            if kind in self.wanted:
                self._kinds[_code(*(ord(f'{name}"'[place]) for place in _TELLING_LETTERS))] = kind.value

    def scan(self, blocks: Iterable[bytes]) -> Iterator[Found]:
        """Yield the wanted events, those of many blocks together.

        Raises:
            DoesNotFit: An event is written otherwise than the layout says, or none ends for 64 MB.
        """
        layout = self.layout
        found = Found([], [])
        across: list[bytes] = []
        for block in blocks:
            first = block.find(layout.separator)
            if first < 0:
                self.rest += block
                if len(self.rest) > _LARGEST_EVENT_BYTES:
                    raise DoesNotFit
                continue
            # Events across a border are looked at together, so that no block is copied.
            across.append(self.rest + block[: first + len(layout.close)])
            last = block.rfind(layout.separator)
            if last > first:
                found.extend(self._find(_Block(block, first + layout.until_brace, last + len(layout.close))))
            self.rest = block[last + layout.until_brace :]
            if len(found.device) + len(found.host) > _GIVEN_TOGETHER:
                found.extend(self._find_across(across))
                yield found
                found, across = Found([], []), []
        if across:
            found.extend(self._find_across(across))
        yield found

    def _find_across(self, events: Sequence[bytes]) -> Found:
        layout = self.layout
        text = layout.separator[len(layout.close) : layout.until_brace].join(events)
        return self._find(_Block(text, 0, len(text)))

    def _find(self, block: _Block) -> Found:
        layout = self.layout
        rows = self._events(block)
        starts = block.braces[rows]
        self.events += len(starts)
        stops = np.append(starts[1:] - layout.until_brace + len(layout.close), block.end)
        phase, category = layout.prefix.index(b'"X"') + 1, len(layout.prefix) + len(layout.key)
        known = block.holds(layout.prefix[:phase], starts)
        spans = known & (block.letters(starts, phase) == ord("X"))
        fits = spans & block.holds((layout.prefix + layout.key)[phase:], starts, phase)
        for index in np.flatnonzero(~known | (spans & ~fits)):
            if b'"X"' in block.text[starts[index] : stops[index]]:
                raise DoesNotFit
        if self.products is not None:
            self.products.look(block.text, starts[fits] + category, stops[fits])
        letters = (block.letters(starts, category + place).astype(np.intp) for place in _TELLING_LETTERS)
        kinds = self._kinds[_code(*letters)]
        kinds[~fits] = 0
        device = np.flatnonzero(kinds == Events.DEVICE.value)
        host = np.flatnonzero((kinds == Events.CALLS.value) | (kinds == Events.ANNOTATIONS.value))
        operators = np.flatnonzero(kinds == Events.OPERATORS.value)
        host_texts = block.cut(starts[host], stops[host])
        if len(operators):
            host_texts += self._shortened(block, rows[operators], stops[operators])
        return Found(block.cut(starts[device], stops[device]), host_texts)

    def _events(self, block: _Block) -> Int64:
        """Which of the block's braces begin events, the one that it begins with first."""
        layout, braces = self.layout, block.braces
        between, opening = layout.separator[: layout.until_brace], layout.separator[layout.until_brace :]
        rows = np.flatnonzero(block.letters(braces, -len(between)) == between[0])
        rows = rows[block.holds(between, braces[rows], -len(between)) & (braces[rows] >= block.begin + len(between))]
        opens = block.holds(opening, braces[rows])
        for index in np.flatnonzero(~opens):
            # A quoted brace is never followed by a bare quote.
            brace = braces[rows[index]]
            opens[index] = block.text[brace + 1 : brace + _LONGEST_INDENT].lstrip().startswith(b'"')
        return np.concatenate([[0], rows[opens]])

    def _shortened(self, block: _Block, rows: Int64, stops: Int64) -> list[bytes]:
        """Operators without the shapes and types that follow their external ids."""
        before, braces = self.layout.before_identity, block.braces
        starts = braces[rows]
        if not before:
            return block.cut(starts, stops)
        # The next brace opens the arguments, unless a name holds one.
        inner = braces[np.minimum(rows + 1, len(braces) - 1)] - before.index(b"{")
        identities = inner + len(before)
        commas = block.commas(identities)
        known = (inner > starts) & (commas > identities) & (commas < stops) & block.holds(before, inner)
        pieces = block.cut(starts, np.where(known, commas, stops))
        return [piece + b"}}" if is_cut else piece for piece, is_cut in zip(pieces, known.tolist(), strict=True)]


def _code(first: Any, second: Any) -> Any:  # noqa: ANN401 - numbers or arrays of them
    return first << 8 | second
