"""A run whose folder lies in a store: small files are copied for as long as they are read, traces stay there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec.structs import replace

from perfscope import wire
from perfscope.errors import SourceError
from perfscope.sources.memory import find_histories, read_histories
from perfscope.sources.runs.environment import Environment, read_environment
from perfscope.sources.runs.run import read_run
from perfscope.sources.stores.location import is_url, join
from perfscope.sources.stores.reading import copy_stored, list_below
from perfscope.tables.memory import AllocatorHistory
from perfscope.tables.run import Run
from perfscope.wire.memory import MEMORY_FOLDER

#: A file of a rank lies directly in its folder; what lies deeper was left behind by a failure, and is large.
_DEEPEST = 2


def read_run_at(location: str, read: Callable[[Path], Run] = read_run) -> Run:
    """Read the run's folder at a path or a URL, traces excepted.

    Args:
        location: The path or the URL.
        read: What reads a folder on this machine.

    Raises:
        SourceError: It is no run, the store does not list its files, or they do not fit on the disk of temporary files.
    """
    if not is_url(location):
        return read(Path(location))
    with _copied(location, _is_read) as (folder, lost):
        run = read(folder)
        damage = tuple(line.replace(str(folder), location) for line in run.damage)
    return replace(run, path=location, damage=(*lost, *damage), read_memory=partial(_read_memory, location))


def read_environment_at(location: str) -> Environment:
    """Read the environment of the run at a path or a URL.

    Raises:
        SourceError: It has none, or cannot be read.
    """
    if not is_url(location):
        return read_environment(Path(location))
    with _copied(location, _is_read) as (folder, _):
        return read_environment(folder)


def _read_memory(location: str) -> tuple[AllocatorHistory, ...]:
    with _copied(location, lambda name: name.startswith(f"{MEMORY_FOLDER}/")) as (folder, lost):
        if lost:
            raise SourceError(location, f"cannot be read in full: {lost[0]}")
        return tuple(
            replace(history, path=history.path.replace(str(folder), location.rstrip("/")))
            for path in find_histories(folder)
            for history in read_histories(path)
        )


def _is_read(name: str) -> bool:
    """Whether ``read_run`` reads a file of that name in the run's folder."""
    folder, _, rest = name.partition("/")
    if not rest:
        return name != wire.PAGE_FILE
    return folder in (wire.RANKS_FOLDER, wire.NVML_FOLDER, wire.HOSTS_FOLDER) and name.count("/") <= _DEEPEST


@contextmanager
def _copied(location: str, is_wanted: Callable[[str], bool]) -> Iterator[tuple[Path, list[str]]]:
    """A folder with copies of the wanted files, and what of them is lost, as sentences.

    Raises:
        SourceError: The store does not list its files, or they do not fit on the disk of temporary files.
    """
    names = sorted(filter(is_wanted, list_below(location)))
    with TemporaryDirectory(prefix="perfscope-") as folder:
        try:
            lost = copy_stored({join(location, name): Path(folder) / name for name in names})
        except OSError as error:
            hint = "TMPDIR names a folder on another disk"
            problem = f"cannot be copied to {folder}: {error.strerror or error}"
            raise SourceError(location, problem, hint=hint) from None
        yield Path(folder), lost
