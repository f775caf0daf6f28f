"""A part of a run in a store, behind a URL: small files are asked for together, large ones block by block.

A store may throttle, list late, or lose a file. Its library asks it again for as long as it does so for anybody; what
the store does not give in spite of that is named, and everything else is copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from perfscope.collect.parts import Unreachable, write_atomically
from perfscope.constants import MIB
from perfscope.errors import SourceError
from perfscope.sources.stores.location import join
from perfscope.sources.stores.reading import find_sizes, kind_of, list_below, open_stored, read_all

#: So many small files are asked for together, and so many bytes: they are in memory until they are written.
_TOGETHER = 64
_TOGETHER_BYTES = 32 * MIB
#: A larger file is read block by block.
_LARGEST_SMALL = 4 * MIB
_AGAIN = "run the same command again"


class _Lost(Exception):
    """The store does not give a file, or not all of it."""


@dataclass(frozen=True)
class StoredPart:
    """A part in a store.

    Attributes:
        name: Its URL.
        sizes: The bytes of the files that it has, by their paths below the part.
    """

    name: str
    sizes: dict[str, int] = field(default_factory=dict)

    def list_files(self) -> dict[str, int]:
        """See ``Part``."""
        try:
            is_there = kind_of(self.name) is not None
            self.sizes.update(list_below(self.name) if is_there else {})
        except SourceError as error:
            raise Unreachable(error.problem, hint=_AGAIN) from None
        if not is_there:
            raise Unreachable(f"{self.name} does not exist")
        return dict(self.sizes)

    def find(self, names: Sequence[str], /) -> dict[str, int]:
        """See ``Part``: what is new may be listed late."""
        sizes = find_sizes(self.name, names)
        self.sizes.update(sizes)
        return sizes

    def copy(self, files: Sequence[str], folder: Path) -> dict[str, str]:
        """See ``Part``."""
        lost: dict[str, str] = {}
        for some in self._group([name for name in files if self.sizes[name] <= _LARGEST_SMALL]):
            for name, content in read_all(self.name, {name: self.sizes[name] for name in some}).items():
                if isinstance(content, str):
                    lost[name] = f"{join(self.name, name)} cannot be read: {content}"
                else:
                    write_atomically([content], folder / name)
        for name in files:
            if self.sizes[name] > _LARGEST_SMALL:
                try:
                    write_atomically(self._blocks_of(name), folder / name)
                except _Lost as loss:
                    lost[name] = str(loss)
        return lost

    def _group(self, names: Sequence[str]) -> Iterator[list[str]]:
        group: list[str] = []
        for name in names:
            if len(group) == _TOGETHER or sum(self.sizes[file] for file in (*group, name)) > _TOGETHER_BYTES:
                yield group
                group = []
            group.append(name)
        if group:
            yield group

    def _blocks_of(self, name: str) -> Iterator[bytes]:
        """A file, block by block.

        Raises:
            _Lost: The store does not give it.
        """
        location = join(self.name, name)
        try:
            with open_stored(location) as source:
                while block := source.read(MIB):
                    yield block
                if source.tell() < self.sizes[name]:
                    raise _Lost(f"{location} cannot be read: the store sent less of it than there is")
        except SourceError as error:
            raise _Lost(error.problem) from None
        except OSError as error:
            raise _Lost(f"{location} cannot be read: {error.strerror or error}") from None
