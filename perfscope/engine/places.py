"""Places of files that are read on this machine: those behind URLs are copied for as long as they are read.

Traces and the records of runs are read from a store as they are (``find_inputs``, ``read_run_at``). Logs, dumps and
snapshots are read by what needs files: it gets copies, and the answer names the URLs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from perfscope.errors import PerfscopeError, SourceError
from perfscope.report import Report
from perfscope.sources.stores.location import is_url, join
from perfscope.sources.stores.reading import FOLDER, copy_stored, kind_of, list_below


@dataclass(slots=True)
class FilePlaces:
    """Where the files of some locations are now.

    Attributes:
        paths: A path for each location, in their order.
        damage: The files that could not be copied, as sentences.
    """

    paths: list[Path] = field(default_factory=list)
    urls: dict[str, str] = field(default_factory=dict)
    damage: list[str] = field(default_factory=list)

    def name(self, text: str) -> str:
        """A text with URLs in place of the copies."""
        for path, url in self.urls.items():
            text = text.replace(path, url)
        return text

    def report(self, report: Report) -> Report:
        """A report that names URLs in place of copies, and what could not be copied."""
        named: Report = self._name_all(replace(report, warnings=(*self.damage, *report.warnings)))
        return named if self.urls else report

    def _name_all(self, value: Any) -> Any:  # noqa: ANN401 - a part of a report, whatever it is
        if isinstance(value, str):
            return self.name(value)
        if isinstance(value, Mapping):
            return {self.name(key): self._name_all(entry) for key, entry in value.items()}
        if isinstance(value, Sequence):
            return tuple(map(self._name_all, value))
        if is_dataclass(value) and not isinstance(value, type):
            return replace(value, **{each.name: self._name_all(getattr(value, each.name)) for each in fields(value)})
        return value


@contextmanager
def at_hand(
    locations: Sequence[str | os.PathLike[str]], is_wanted: Callable[[str], bool] = lambda _: True
) -> Iterator[FilePlaces]:
    """Files of locations on this machine; errors that are raised meanwhile name URLs, too.

    ``is_wanted`` tells which files in a folder behind a URL are read, by their names relative to the folder. Raises
    SourceError: what a URL names does not exist, cannot be listed, or does not fit on the disk.
    """
    places = FilePlaces()
    with ExitStack() as folders:
        for location in (os.fspath(location) for location in locations):
            if is_url(location):
                folder = folders.enter_context(TemporaryDirectory(prefix="perfscope-"))
                places.paths.append(_copy(location, Path(folder), is_wanted, places))
            else:
                places.paths.append(Path(location))
        try:
            yield places
        except PerfscopeError as error:
            error.args, error.problem = (places.name(str(error)),), places.name(error.problem)
            raise


def _copy(location: str, folder: Path, is_wanted: Callable[[str], bool], places: FilePlaces) -> Path:
    """Copy what a URL names into a folder, under its own name, which may say what is in it."""
    kind = kind_of(location)
    if kind is None:
        raise SourceError(location, "does not exist")
    url = location.rstrip("/")
    parent, _, name = url.rpartition("/")
    if kind == FOLDER:
        target = folder / (name or "files")
        target.mkdir()
        files = {join(url, below): target / below for below in sorted(filter(is_wanted, list_below(url)))}
    else:
        target = folder / (parent.rpartition("/")[2] or "files") / name
        files = {url: target}
    places.urls[str(target)] = url
    try:
        lost = copy_stored(files)
    except OSError as error:
        hint = "TMPDIR names a folder on another disk"
        problem = f"cannot be copied to {folder}: {error.strerror or error}"
        raise SourceError(location, problem, hint=hint) from None
    if lost and kind != FOLDER:
        raise SourceError(location, lost[0].removeprefix(f"{location} "))
    places.damage += lost
    return target
