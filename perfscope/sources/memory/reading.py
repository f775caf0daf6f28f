"""Files of allocator histories by what they are: of perfscope's hooks, or of torch."""

from __future__ import annotations

from pathlib import Path

from perfscope.errors import SourceError
from perfscope.sources.memory.recorded import read_recorded
from perfscope.sources.memory.snapshot import read_snapshot
from perfscope.tables.memory import AllocatorHistory
from perfscope.wire.memory import MEMORY_FOLDER, MEMORY_SUFFIX

_PICKLES = (".pickle", ".pkl", ".pickle.gz", ".pkl.gz")


def find_histories(run: Path) -> list[Path]:
    """The histories of a run."""
    files = (path for path in (run / MEMORY_FOLDER).glob(f"*{MEMORY_SUFFIX}*") if not path.name.startswith("."))
    return sorted(path for path in files if path.name.endswith((MEMORY_SUFFIX, f"{MEMORY_SUFFIX}.gz")))


def read_histories(path: Path) -> tuple[AllocatorHistory, ...]:
    """Read a file, one history a device.

    Raises:
        SourceError: It cannot be read, or is no history of an allocator.
    """
    if path.name.endswith((MEMORY_SUFFIX, f"{MEMORY_SUFFIX}.gz")):
        return (read_recorded(path),)
    histories = read_snapshot(path)
    if not histories:
        raise SourceError(path, "has neither events nor blocks", hint="was the GPU in use when it was written?")
    return histories


def is_snapshot(path: Path) -> bool:
    """Whether a file's name is one of a history or of a snapshot."""
    return path.name.endswith((MEMORY_SUFFIX, f"{MEMORY_SUFFIX}.gz", *_PICKLES))
