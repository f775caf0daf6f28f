"""Recognises the folder of a run, on disk or in a store, without what reads it."""

from __future__ import annotations

import os
from pathlib import Path

from perfscope import wire
from perfscope.sources.stores.location import is_url, join
from perfscope.sources.stores.reading import FILE, FOLDER, kind_of, list_folders


def is_run(path: Path) -> bool:
    """Whether a folder is a run of ``perfscope profile``."""
    return (path / wire.RUN_FILE).is_file() or (path / wire.RANKS_FOLDER).is_dir()


def is_run_at(location: str) -> bool:
    """Whether a path or a URL is a run of ``perfscope profile``. Raises SourceError: the store does not say."""
    if not is_url(location):
        return is_run(Path(location))
    if kind_of(location) != FOLDER:  # asked for first, so that an error names what was typed
        return False
    return kind_of(join(location, wire.RUN_FILE)) == FILE or kind_of(join(location, wire.RANKS_FOLDER)) == FOLDER


def find_runs(location: str) -> list[str]:
    """The run at a path or a URL, or the runs in that folder by name. Raises SourceError: the store does not say."""
    if not is_folder_at(location):
        return []
    if is_run_at(location):
        return [location]
    if is_url(location):
        return sorted(folder for folder in list_folders(location) if is_run_at(folder))
    with os.scandir(location) as entries:  # which tells folders without a look at each of very many files
        folders = [Path(location) / entry.name for entry in entries if entry.is_symlink() or entry.is_dir()]
    return [str(folder) for folder in sorted(folders) if is_run(folder)]


def find_newest(count: int) -> list[str]:
    """The runs of the folder ``runs`` that began or ended last, the older ones first; fewer where there are fewer."""

    def changed(run: str) -> float:
        description = Path(run) / wire.RUN_FILE
        return (description if description.is_file() else Path(run)).stat().st_mtime

    return sorted(find_runs(wire.RUNS_FOLDER), key=changed)[-count:]


def is_folder_at(location: str) -> bool:
    """Whether a path or a URL is a folder. Raises SourceError: the store does not say."""
    return kind_of(location) == FOLDER if is_url(location) else Path(location).is_dir()
