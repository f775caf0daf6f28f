"""Which files of the given paths are logs, and which of them repeat another one.

The name of Detectron2's ``metrics.json`` is common, so that its beginning decides. Where ``log.txt`` of the same folder
is the log of the run, that is read: it says more.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from perfscope.errors import SourceError
from perfscope.sources.joblog.text import read_blocks

_ENDINGS = (".out", ".log", ".txt", ".err")
#: Logs that trainers keep under a name of their own.
_METRICS = "metrics.json"
_NAMES = {"trainer_state.json", "trainer_log.jsonl", "logging.jsonl", _METRICS}
#: What Detectron2's ``metrics.json`` has, and how the lines of its ``log.txt`` begin.
_MARKS = (b'{"', b'"data_time": ', b'"iteration": ', b'"total_loss": ')
_LOGGED = re.compile(rb"^\[\d\d/\d\d \d\d:\d\d:\d\d", re.MULTILINE)
_DIGITS = re.compile(r"(\d+)")
_HEAD = 1 << 16  # a line of set-up may come first
_STATE = "trainer_state.json"
_CHECKPOINT = re.compile(r"checkpoint-(\d{1,12})")


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
        superseded.update(_superseded_states(Path(parent), folders, names))
        for name in filter(is_log_name, names):
            path = Path(parent, name)
            if not path.is_file() or path in superseded:
                continue
            if not _may_be_metrics(name) or (_is_metrics_file(path) and not _is_told_by_a_log(path)):
                yield path


def is_log_name(name: str) -> bool:
    """Whether a file in a folder may be a log, by its name, or its path relative to the folder."""
    name = name.removesuffix(".gz")
    return name.endswith(_ENDINGS) or name.rpartition("/")[2] in _NAMES


def is_log(path: Path) -> bool:
    """Whether a file is a log, by its name and, where that says too little, by its beginning."""
    return is_log_name(path.name) and path.is_file() and (not _may_be_metrics(path.name) or _is_metrics_file(path))


def _may_be_metrics(name: str) -> bool:
    return name.removesuffix(".gz") == _METRICS


def _is_metrics_file(path: Path) -> bool:
    """Whether a file that is named so is Detectron2's, by its beginning."""
    head = _head(path)
    return all(mark in head for mark in _MARKS)


def _is_told_by_a_log(metrics: Path) -> bool:
    """Whether ``log.txt`` in the folder of a ``metrics.json`` is the log of the same run."""
    return _LOGGED.search(_head(metrics.with_name("log.txt"))) is not None


def _head(path: Path) -> bytes:
    """The beginning of a file; empty where it cannot be read."""
    try:
        return next(read_blocks(path, _HEAD), b"")
    except SourceError:
        return b""


def _superseded_states(folder: Path, folders: Iterable[str], names: Iterable[str]) -> Iterator[Path]:
    """Of the ``trainer_state.json`` in the checkpoints of a run, those that a later one goes on from.

    Args:
        folder: The run.
        folders: The names of all folders in it.
        names: The names of all files in it.
    """
    numbers = {int(number[1]): name for name in folders if (number := _CHECKPOINT.fullmatch(name))}
    is_last = _STATE not in names
    for _, name in sorted(numbers.items(), reverse=True):
        state = folder / name / _STATE
        if is_last and state.is_file():
            is_last = False
        else:
            yield state
