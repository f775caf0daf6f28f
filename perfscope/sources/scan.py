"""Finds the events of the wanted categories in a trace's text without parsing the others.

Most events of a trace are of no interest to an analysis: operators, Python functions, arrows. In a text of a known
layout every event has the key ``"cat"`` at the same distance from its brace, so that it is enough to look at what
follows that key. All of a block's keys are found at once by comparing bytes; only wanted events are cut out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from perfscope.sources.layout import Layout
from perfscope.sources.products import ProductFinder
from perfscope.sources.records import KIND
from perfscope.tables import Int64
from perfscope.tables.trace import Events

_KEY = b'"cat"'
_SLICE_BYTES = 1 << 18  # what is compared at once stays in the processor's cache
_CODE_BYTES = 4
_LARGEST_EVENT_BYTES = 64 << 20


class DoesNotFit(Exception):
    """The text departs from its layout."""


@dataclass(frozen=True, slots=True)
class Found:
    """The wanted events of one block.

    Attributes:
        device: Texts of events on devices.
        host: Texts of events on the host; those of operators end with their external id.
        at: Where the block begins in the file.
    """

    device: list[bytes]
    host: list[bytes]
    at: int


@dataclass(slots=True)
class Scanner:
    """Cuts the wanted events out of blocks of text that follow each other.

    Attributes:
        layout: How the exporter writes.
        wanted: The kinds of events to find.
        products: Looks for matrix products among the operators; absent where they are not wanted.
        rest: What follows the last separator so far; in the end the last event and what comes after the list.
        events: How many events with a category were passed.
        at: Where ``rest`` begins in the file.
    """

    layout: Layout
    wanted: Events
    products: ProductFinder | None = None
    rest: bytes = b""
    events: int = 0
    at: int = 0
    _wanted: tuple[bytes, ...] = field(init=False)
    _device: tuple[bytes, ...] = field(init=False)
    _operators: tuple[bytes, ...] = field(init=False)
    _codes: npt.NDArray[np.uint32] = field(init=False)

    def __post_init__(self) -> None:
        wanted = {name: kind for name, kind in KIND.items() if kind in self.wanted}
        of = {kind: tuple(f'{name}"'.encode() for name in wanted if wanted[name] is kind) for kind in Events}
        self._wanted = tuple(name for names in of.values() for name in names)
        self._device, self._operators = of[Events.DEVICE], of[Events.OPERATORS]
        codes = {int.from_bytes(name.encode()[:_CODE_BYTES], "little") for name in wanted}
        self._codes = np.array(sorted(codes), np.uint32)

    def scan(self, blocks: Iterable[bytes]) -> Iterator[Found]:
        """Yield the wanted events of each block.

        Raises:
            DoesNotFit: An event is written otherwise than the layout says, or none ends for 64 MB.
        """
        layout = self.layout
        for block in blocks:
            first = block.find(layout.separator)
            if first < 0:
                self.rest += block
                if len(self.rest) > _LARGEST_EVENT_BYTES:
                    raise DoesNotFit
                continue
            # The event across the border is looked at by itself, so that no block is copied.
            yield self._find(self.rest + block[: first + len(layout.close)], self.at)
            last = block.rfind(layout.separator)
            begin, end = first + layout.until_brace, last + len(layout.close)
            if last > first:
                yield self._find(block, self.at + len(self.rest), begin, end)
            self.at += len(self.rest) + last + layout.until_brace
            self.rest = block[last + layout.until_brace :]

    def _find(self, text: bytes, at: int, begin: int = 0, end: int | None = None) -> Found:
        end = len(text) if end is None else end
        layout, find = self.layout, text.find
        between = layout.separator[: layout.until_brace]
        device: list[bytes] = []
        host: list[bytes] = []
        stop = begin
        for key in self._places(text, begin, end):
            category = key + len(layout.key)
            if not text.startswith(self._wanted, category):
                continue
            start = key - len(layout.prefix)
            if start < stop or not text.startswith(layout.prefix, start):
                raise DoesNotFit
            if start > begin and not text.endswith(between, begin, start):
                raise DoesNotFit
            place = find(layout.separator, key, end)
            stop = end if place < 0 else place + len(layout.close)
            if text.startswith(self._device, category):
                device.append(text[start:stop])
            elif text.startswith(self._operators, category):
                host.append(self._shortened(text[start:stop]))
            else:
                host.append(text[start:stop])
        return Found(device, host, at)

    def _shortened(self, piece: bytes) -> bytes:
        """An operator without the shapes and types that follow its external id."""
        before = self.layout.before_identity
        place = piece.find(before) if before else -1
        comma = piece.find(b",", place + len(before)) if place >= 0 else -1
        return piece[:comma] + b"}}" if comma >= 0 else piece

    def _places(self, text: bytes, begin: int, end: int) -> list[int]:
        """Where the key ``"cat"`` stands before a category whose first letters are those of a wanted one."""
        data = np.frombuffer(text, np.uint8, end - begin, begin)
        keys = _find_keys(data)
        letters = keys + len(self.layout.key)
        keys = keys[: np.searchsorted(letters, len(data) - _CODE_BYTES)]
        letters = letters[: len(keys)]
        if not len(keys):
            return []
        if (data[letters - 1] != ord('"')).any():
            raise DoesNotFit
        self.events += len(keys)
        # Four letters at any byte, seen as one number.
        codes = np.ndarray((len(data) - _CODE_BYTES + 1,), "<u4", text, begin, (1,))[letters]
        if self.products is not None:
            self.products.look(text, begin, letters, codes)
        is_wanted = codes == self._codes[0]
        for code in self._codes[1:]:
            is_wanted |= codes == code
        places: list[int] = (keys[is_wanted] + begin).tolist()
        return places


def _find_keys(data: np.ndarray) -> Int64:
    """Where ``"cat"`` stands, unless it is quoted inside a name."""
    found = []
    for start in range(0, max(0, len(data) - len(_KEY)), _SLICE_BYTES):
        part = data[start : start + _SLICE_BYTES + 1]
        is_place = part[:-1] == _KEY[0]
        is_place &= part[1:] == _KEY[1]
        found.append(np.flatnonzero(is_place) + start)
    places = np.concatenate(found) if found else np.zeros(0, np.int64)
    places = places[: np.searchsorted(places, len(data) - len(_KEY))]
    for index in range(2, len(_KEY)):
        places = places[data[places + index] == _KEY[index]]
    is_quoted = (places > 0) & (data[places - 1] == ord("\\"))
    return places[~is_quoted] if is_quoted.any() else places
