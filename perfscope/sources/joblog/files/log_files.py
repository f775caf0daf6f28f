"""Which files of the given paths are logs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from perfscope.errors import SourceError
from perfscope.sources.joblog.files.metrics_files import is_metrics_file, is_new_run, may_be_metrics, superseded_states

_ENDINGS = (".out", ".log", ".txt", ".err")
#: Logs that trainers keep under a name of their own.
_NAMES = {"trainer_state.json", "trainer_log.jsonl", "logging.jsonl"}
_DIGITS = re.compile(r"(\d+)")


def find_logs(paths: Iterable[Path]) -> list[Path]:
    """Every named file, and every log below every named folder, in natural order.

    Raises:
        SourceError: A path does not exist.
    """
    logs: dict[Path, None] = {}
    for path in paths:
        if path.is_dir():
            logs.update(dict.fromkeys(sorted(_logs_below(path), key=natural_order)))
        elif path.exists():
            logs[path] = None
        else:
            raise SourceError(path, "does not exist")
    return list(logs)


def natural_order(path: Path) -> list[tuple[int, int | str]]:
    """A key that puts run 2 before run 10.

    >>> sorted([Path("b10"), Path("b2")], key=natural_order)
    [PosixPath('b2'), PosixPath('b10')]
    """
    return [(0, int(part)) if part.isdigit() else (1, part) for part in _DIGITS.split(str(path))]


def _logs_below(folder: Path) -> Iterator[Path]:
    """The logs in a folder and its folders; of the other files, which may be very many, only the names are seen."""
    superseded: set[Path] = set()
    for parent, folders, names in os.walk(folder):
        superseded.update(superseded_states(Path(parent), folders, names))
        for name in filter(is_log_name, names):
            path = Path(parent, name)
            if is_new_run(path, folder) if _is_uncertain(name) else path.is_file() and path not in superseded:
                yield path


def is_log_name(name: str) -> bool:
    """Whether a file in a folder may be a log, by its name, or its path relative to the folder."""
    name = name.removesuffix(".gz")
    return name.endswith(_ENDINGS) or name.rpartition("/")[2] in _NAMES or may_be_metrics(name)


def is_log(path: Path) -> bool:
    """Whether a file is a log, by its name and, where that says too little, by its beginning."""
    return is_log_name(path.name) and path.is_file() and (not _is_uncertain(path.name) or is_metrics_file(path))


def _is_uncertain(name: str) -> bool:
    """Whether other programs keep files of this name, too."""
    return may_be_metrics(name.removesuffix(".gz"))
