"""Which files of the given paths are logs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from perfscope.errors import UsageError

_ENDINGS = {".out", ".log", ".txt", ".err"}
_DIGITS = re.compile(r"(\d+)")


def find_logs(paths: Iterable[Path]) -> list[Path]:
    """Every file that is named, and every log below every folder that is named, in natural order.

    Raises:
        UsageError: A path does not exist.
    """
    found: dict[Path, None] = {}
    for path in paths:
        if path.is_dir():
            found.update(dict.fromkeys(sorted((file for file in path.rglob("*") if _is_log(file)), key=natural)))
        elif path.exists():
            found[path] = None
        else:
            raise UsageError(f"{path} does not exist")
    return list(found)


def natural(path: Path) -> list[tuple[int, int | str]]:
    """A key that puts run 2 before run 10.

    >>> sorted([Path("b10"), Path("b2")], key=natural)
    [PosixPath('b2'), PosixPath('b10')]
    """
    return [(0, int(part)) if part.isdigit() else (1, part) for part in _DIGITS.split(str(path))]


def _is_log(file: Path) -> bool:
    name = file.with_suffix("") if file.suffix == ".gz" else file
    return name.suffix in _ENDINGS and file.is_file()
