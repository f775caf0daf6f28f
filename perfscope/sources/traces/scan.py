"""Finds the events of some categories in a trace's text without parsing the rest.

Most events of a trace are of no interest to an analysis: operators, Python functions, arrows. In a text of a known
layout an event begins with a brace after the text that separates events. Its category is at a fixed distance from that
brace. One comparison finds the braces of a block. The few bytes around each brace decide whether it begins an event of
a requested category. Only these events are cut out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from perfscope.sources.traces.callers import CallerFilter
from perfscope.sources.traces.layout import DoesNotFit, Layout
from perfscope.sources.traces.operator_times import OperatorTimes
from perfscope.sources.traces.plausibility import PHASES
from perfscope.sources.traces.products import ProductFinder
from perfscope.sources.traces.records import KIND
from perfscope.tables.columns import Bool, Int64
from perfscope.tables.trace import Events

#: Two letters of a category, its closing quote included, which no two categories of different kinds share.
_KEY_LETTERS = 0, 5
_HOST_KINDS = Events.CALLS, Events.ANNOTATIONS, Events.FRAMES, Events.WAITS
_IS_HOST, _IS_DECODED = np.zeros(256, np.bool_), np.zeros(256, np.bool_)
_IS_HOST[[kind.value for kind in _HOST_KINDS]] = True
_IS_DECODED[[kind.value for kind in (Events.DEVICE, *_HOST_KINDS)]] = True
#: Categories that exporters write and that are not read.
_OTHER_CATEGORIES = (
    "gpu_user_annotation", "ac2g", "fwdbwd", "overhead", "cpu_instant_event", "Trace",
)  # fmt: skip
_WORD = 8
_COLON = ord(":")
_IS_PHASE = np.zeros(256, np.bool_)
_IS_PHASE[[ord(phase) for phase in PHASES]] = True
_Words: TypeAlias = npt.NDArray[np.uint64]
#: A text at its place: the words that hold some of it, with a mask of its letters and what they are.
Pattern: TypeAlias = tuple[tuple[int, np.uint64, np.uint64], ...]
_BRACE = ord("{")
_SPACE = ord(" ")
_SLICE_BYTES = 1 << 18  # what is compared at once stays in the processor's cache
_EVENTS_PER_BATCH = 1 << 12
_LONGEST_INDENT = 64
_LARGEST_EVENT_BYTES = 64 << 20


class Heads(Struct, frozen=True):
    """One row an event.

    Attributes:
        words: Its first bytes, eight a word.
        letters: The same bytes.
    """

    words: npt.NDArray[np.uint64]
    letters: npt.NDArray[np.uint8]

    def have(self, pattern: Pattern) -> Bool:
        """Which events have a text at its place."""
        matches = np.ones(len(self.words), np.bool_)
        for column, mask, expected in pattern:
            matches &= (self.words[:, column] & mask) == expected
        return matches

    def take(self, rows: Int64) -> Heads:
        """Some of them."""
        return Heads(self.words[rows], self.letters[rows])


class HeadCutter:
    """Cuts the heads of events of one layout: from the separator before an event to the first letters of its category.

    Attributes:
        between: What stands before the brace, from the closing brace before it.
        opening: The brace and the first quote.
        until_phase: From the brace to the letter of the phase.
        behind_phase: From there to the category, for the phase ``X``.
        phase: The column of the phase.
        category: The column of the category's first letter, which begins a word.
    """

    def __init__(self, layout: Layout) -> None:
        between, opening = layout.separator[: layout.until_brace], layout.separator[layout.until_brace :]
        phase, category = layout.prefix.index(b'"X"') + 1, len(layout.prefix) + len(layout.key)
        self._lead = len(between) + -(len(between) + category) % _WORD
        self._width = self._lead + category + _WORD
        self.phase, self.category = self._lead + phase, self._lead + category
        self.between = _pattern(between, self._lead - len(between))
        self.opening = _pattern(opening, self._lead)
        self.until_phase = _pattern(layout.prefix[:phase], self._lead)
        self.behind_phase = _pattern((layout.prefix + layout.key)[phase:], self.phase)

    def cut(self, text: bytes, braces: Int64) -> Heads:
        """The heads of events whose braces stand at these positions, in order; zeros beyond the text's borders."""
        begins, last = braces - self._lead, len(text) - self._width
        if last < 0:
            rows = np.zeros(len(begins), f"V{self._width}")
        else:
            windows = np.ndarray((last + 1,), f"V{self._width}", text, strides=(1,))
            rows = windows[np.clip(begins, 0, last)]
        if len(begins) and (begins[0] < 0 or begins[-1] > last):
            for row in np.flatnonzero((begins < 0) | (begins > last)).tolist():
                begin = int(begins[row])
                piece = b"\0" * -min(begin, 0) + text[max(begin, 0) : begin + self._width]
                rows[row] = np.void(piece.ljust(self._width, b"\0"))
        return Heads(
            rows.view("<u8").reshape(len(rows), self._width // _WORD),
            rows.view(np.uint8).reshape(len(rows), self._width),
        )


def _pattern(text: bytes, column: int) -> Pattern:
    """A text that begins at a column.

    Its spaces are not compared: between its other letters JSON allows only white space.
    """
    expected = b"\0" * column + text
    expected += b"\0" * (-len(expected) % _WORD)
    begin, end = column, column + len(text)
    words = []
    for start in range(0, len(expected), _WORD):
        part = expected[start : start + _WORD]
        mask = bytes(
            255 if begin <= start + index < end and letter != _SPACE else 0 for index, letter in enumerate(part)
        )
        if any(mask):
            value = int.from_bytes(bytes(letter & kept for letter, kept in zip(part, mask, strict=True)), "little")
            words.append((start // _WORD, np.uint64(int.from_bytes(mask, "little")), np.uint64(value)))
    return tuple(words)


class EventTexts(Struct, frozen=True):
    """The requested events of some blocks, as they are written.

    Attributes:
        device: Texts of events on devices.
        host: Texts of events on the host.
        odd: Texts that are not written as the layout says: other events, damaged ones, several together.
    """

    device: list[bytes]
    host: list[bytes]
    odd: list[bytes]

    def extend(self, following: EventTexts) -> None:
        """Add the events of another block."""
        self.device.extend(following.device)
        self.host.extend(following.host)
        self.odd.extend(following.odd)


class _CategoryWords:
    """The first eight bytes of the categories that exporters write, by the two letters that tell them apart."""

    def __init__(self) -> None:
        self._index = np.zeros(1 << 16, np.uint8)
        by_code: dict[int, list[bytes]] = {}
        for name in (*KIND, *_OTHER_CATEGORIES):
            text = f'{name}"'.encode()
            first, second = (text[letter] if letter < len(text) else 0 for letter in _KEY_LETTERS)
            by_code.setdefault(first << 8 | second, []).append(text[:_WORD])
        words, masks = [0], [0]
        for code, texts in by_code.items():
            length = min(len(text) for text in texts)
            while len({text[:length] for text in texts}) > 1:
                length -= 1
            self._index[code] = len(words)
            words.append(int.from_bytes(texts[0][:length], "little"))
            masks.append((1 << 8 * length) - 1)
        words[0] = 1  # no word is this one where nothing is compared
        self._expected, self._masks = np.array(words, np.uint64), np.array(masks, np.uint64)

    def are_expected(self, words: _Words, codes: npt.NDArray[np.intp]) -> Bool:
        """Which words are those of the categories that have these letters."""
        index = self._index[codes]
        return np.asarray((words & self._masks[index]) == self._expected[index])


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
        """The positions of opening braces."""
        positions = []
        for start in range(self.begin, self.end, _SLICE_BYTES):
            part = self._bytes[start : min(start + _SLICE_BYTES, self.end)]
            positions.append(np.flatnonzero(part == _BRACE) + start)
        return np.concatenate(positions)

    def letters(self, positions: Int64, offset: int) -> npt.NDArray[np.uint8]:
        """The byte at an offset from each position; that at the text's border where the offset leads beyond it."""
        shifted = positions if offset == 0 else positions + offset
        return self._bytes.take(shifted, mode="clip")

    def cut(self, starts: Int64, stops: Int64) -> list[bytes]:
        """The texts between positions."""
        text = self.text
        return [text[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]


@dataclass(slots=True)
class Scanner:
    """Cuts the requested events out of blocks of text that follow each other.

    Attributes:
        layout: How the exporter writes.
        requested: The kinds of events to find.
        products: Finds matrix products among the operators; absent where they are not requested.
        operator_times: Finds when threads were inside operators; absent where the operators themselves are requested,
            or their times are not.
        callers: Finds the operators that may wait, and the script's own functions.
        rest: The text behind the last separator so far; in the end the last event and what follows the list.
        events: How many events were passed.
    """

    layout: Layout
    requested: Events
    products: ProductFinder | None = None
    operator_times: OperatorTimes | None = None
    rest: bytes = b""
    events: int = 0
    callers: CallerFilter = field(default_factory=CallerFilter)
    _kinds: npt.NDArray[np.uint8] = field(init=False)
    _words: _CategoryWords = field(init=False)
    _cutter: HeadCutter = field(init=False)

    def __post_init__(self) -> None:
        self._kinds = np.zeros(1 << 16, np.uint8)
        self._words = _CategoryWords()
        self._cutter = HeadCutter(self.layout)
        for name, kind in KIND.items():
            is_looked_at = kind is Events.OPERATORS and self._looks_at_operators()
            if kind in self.requested or is_looked_at or (kind is Events.FRAMES and Events.CALLERS in self.requested):
                first, second = (ord(f'{name}"'[letter]) for letter in _KEY_LETTERS)
                self._kinds[first << 8 | second] = kind.value

    def _looks_at_operators(self) -> bool:
        """Whether something of the operators is requested besides them."""
        return self.products is not None or bool(self.requested & (Events.OPERATOR_TIMES | Events.CALLERS))

    @property
    def _cuts_operators(self) -> bool:
        """Whether all operators are cut out, and not only looked at."""
        return self.operator_times is None and bool(self.requested & (Events.OPERATORS | Events.OPERATOR_TIMES))

    def scan(self, blocks: Iterable[bytes]) -> Iterator[EventTexts]:
        """Yield the requested events, those of many blocks together.

        Raises:
            DoesNotFit: An event is written otherwise than the layout says, or none ends for 64 MB.
        """
        layout = self.layout
        texts = EventTexts([], [], [])
        for block in blocks:
            if block.find(layout.separator) < 0:
                self.rest += block
                if len(self.rest) > _LARGEST_EVENT_BYTES:
                    raise DoesNotFit
                continue
            # Copied, so that events stand in the order of the file whatever the borders of its blocks.
            text = self.rest + block
            last = text.rfind(layout.separator)
            texts.extend(self._find(_Block(text, 0, last + len(layout.close))))
            self.rest = text[last + layout.until_brace :]
            if len(texts.device) + len(texts.host) + len(texts.odd) > _EVENTS_PER_BATCH:
                yield texts
                texts = EventTexts([], [], [])
        yield texts

    def _find(self, block: _Block) -> EventTexts:
        layout, cutter = self.layout, self._cutter
        rows, heads = self._events(block)
        starts = block.braces[rows]
        self.events += len(starts)
        stops = np.append(starts[1:] - layout.until_brace + len(layout.close), block.end)
        category = len(layout.prefix) + len(layout.key)
        begins_as_expected = heads.have(cutter.until_phase)
        phases = heads.letters[:, cutter.phase]
        fits = begins_as_expected & heads.have(cutter.behind_phase)
        first, second = (heads.letters[:, cutter.category + letter].astype(np.intp) for letter in _KEY_LETTERS)
        codes = first << 8 | second
        kinds = self._kinds[codes]
        is_alone = self._are_alone(block, rows)
        is_category = fits & self._words.are_expected(heads.words[:, cutter.category // _WORD], codes)
        # What is decoded is seen to be one event then.
        is_decoded = is_category & _IS_DECODED[kinds]
        is_as_expected = is_alone & (is_category | (begins_as_expected & _IS_PHASE[phases])) | is_decoded
        kinds[~is_category | ~is_as_expected] = 0
        odd = np.flatnonzero(~is_as_expected)
        device = np.flatnonzero(kinds == Events.DEVICE.value)
        host = np.flatnonzero(_IS_HOST[kinds])
        if Events.CALLERS in self.requested and Events.FRAMES not in self.requested:
            frames = np.flatnonzero(kinds == Events.FRAMES.value)
            callers = frames[self.callers.choose(block.text, starts[frames] + category, Events.FRAMES)]
            host = np.sort(np.concatenate([host[kinds[host] != Events.FRAMES.value], callers]))
        operators = np.flatnonzero(kinds == Events.OPERATORS.value)
        if self.products is not None:
            self.products.scan(block.text, starts[operators], starts[operators] + category, stops[operators])
        host_texts = block.cut(starts[host], stops[host])
        if Events.CALLERS in self.requested and not self._cuts_operators:
            callers = operators[self.callers.choose(block.text, starts[operators] + category, Events.OPERATORS)]
            host_texts += block.cut(starts[callers], stops[callers])
        if self.operator_times is not None:
            inner = block.braces[np.minimum(rows[operators] + 1, len(block.braces) - 1)]
            self.operator_times.scan(block.text, starts[operators], inner, stops[operators])
        elif len(operators) and self._cuts_operators:
            host_texts += block.cut(starts[operators], stops[operators])
        return EventTexts(block.cut(starts[device], stops[device]), host_texts, block.cut(starts[odd], stops[odd]))

    def _are_alone(self, block: _Block, rows: Int64) -> Bool:
        """Which events are sure to be one event each: they have no brace inside but that of their arguments.

        Another event behind one in the same text has a brace that follows no colon, and so has an object in a list.
        """
        braces = block.braces
        count = np.diff(rows, append=len(braces))
        inner = braces[np.minimum(rows + 1, len(braces) - 1)]
        behind_colon = (block.letters(inner, -1) == _COLON) | (block.letters(inner, -2) == _COLON)
        return np.asarray((count == 1) | ((count == 2) & behind_colon))  # noqa: PLR2004

    def _events(self, block: _Block) -> tuple[Int64, Heads]:
        """The braces of the block that begin events, in order, the first at the beginning of the block; their heads."""
        layout, cutter, braces = self.layout, self._cutter, block.braces
        before = layout.until_brace
        is_candidate = block.letters(braces, -before) == layout.separator[0]
        is_candidate &= braces >= block.begin + before
        is_candidate[0] = True
        rows = np.flatnonzero(is_candidate)
        heads = cutter.cut(block.text, braces[rows])
        begins, opens = heads.have(cutter.between), heads.have(cutter.opening)
        begins[0] = opens[0] = True
        for index in np.flatnonzero(begins & ~opens).tolist():
            # A quoted brace is never followed by a bare quote.
            brace = braces[rows[index]]
            opens[index] = block.text[brace + 1 : brace + _LONGEST_INDENT].lstrip().startswith(b'"')
        chosen = begins & opens
        return (rows, heads) if chosen.all() else (rows[chosen], heads.take(np.flatnonzero(chosen)))
