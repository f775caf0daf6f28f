"""Which files of the given paths are logs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from perfscope.errors import SourceError

_ENDINGS = {".out", ".log", ".txt", ".err"}
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
            logs.update(dict.fromkeys(sorted((file for file in path.rglob("*") if _is_log(file)), key=natural_order)))
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


def _is_log(file: Path) -> bool:
    name = file.with_suffix("") if file.suffix == ".gz" else file
    return (name.suffix in _ENDINGS or name.name in _NAMES) and file.is_file()
