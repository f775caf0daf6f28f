"""Which files of the given paths are logs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from perfscope.errors import SourceError

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
    for parent, _, names in os.walk(folder):
        files = (Path(parent, name) for name in names if is_log_name(name))
        yield from (file for file in files if file.is_file())


def is_log_name(name: str) -> bool:
    """Whether a file in a folder is a log, by its name."""
    name = name.removesuffix(".gz")
    return name in _NAMES or name.endswith(_ENDINGS)
