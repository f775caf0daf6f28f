"""Which files of the given paths are logs, and which of them repeat another one."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from perfscope.errors import SourceError

_ENDINGS = (".out", ".log", ".txt", ".err")
#: Logs that trainers keep under a name of their own.
_STATE = "trainer_state.json"
_NAMES = {_STATE, "trainer_log.jsonl", "logging.jsonl"}
_DIGITS = re.compile(r"(\d+)")
_CHECKPOINT = re.compile(r"checkpoint-(\d{1,12})")


def find_logs(paths: Iterable[Path]) -> list[Path]:
    """Every named file, and every log below every named folder, in natural order; fails where a path does not exist."""
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
    """A key that puts run 2 before run 10."""
    return [(0, int(part)) if part.isdigit() else (1, part) for part in _DIGITS.split(str(path))]


def _logs_below(folder: Path) -> Iterator[Path]:
    superseded: set[Path] = set()
    for parent, folders, names in os.walk(folder):
        superseded.update(_superseded_states(Path(parent), folders, names))
        for name in filter(is_log_name, names):
            path = Path(parent, name)
            if path.is_file() and path not in superseded:
                yield path


def is_log_name(name: str) -> bool:
    """Whether a file in a folder may be a log, by its name, or its path relative to the folder."""
    name = name.removesuffix(".gz")
    return name.endswith(_ENDINGS) or name.rpartition("/")[2] in _NAMES


def is_log(path: Path) -> bool:
    """Whether a file is a log, by its name."""
    return is_log_name(path.name) and path.is_file()


def _superseded_states(folder: Path, folders: Iterable[str], names: Iterable[str]) -> Iterator[Path]:
    """Of the ``trainer_state.json`` in the checkpoints of a run, those that a later one goes on from."""
    numbers = {int(number[1]): name for name in folders if (number := _CHECKPOINT.fullmatch(name))}
    is_last = _STATE not in names
    for _, name in sorted(numbers.items(), reverse=True):
        state = folder / name / _STATE
        if is_last and state.is_file():
            is_last = False
        else:
            yield state
