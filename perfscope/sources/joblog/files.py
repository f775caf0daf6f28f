"""Which files of the given paths are logs, and which of them repeat another one.

The names of JSON files in which trainers keep their metrics are common, so that their beginnings decide. A run that a
text log beside them tells, too, is read from the text log, which says more: set-up, saves, the window of a mean.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from perfscope.errors import SourceError
from perfscope.sources.joblog.text import read_blocks

_ENDINGS = (".out", ".log", ".txt", ".err")
#: Logs that trainers keep under a name of their own.
_NAMES = {"trainer_state.json", "trainer_log.jsonl", "logging.jsonl"}
_DIGITS = re.compile(r"(\d+)")
_HEAD = 1 << 16  # a line of set-up may come first
STATE = "trainer_state.json"
_CHECKPOINT = re.compile(r"checkpoint-(\d{1,12})")
_DATED = r"(?:.*/)?\d{8}_\d{6}(?:_\d{1,4})?\.json"


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


class _Kind(NamedTuple):
    """A kind of file: its names, what its beginning contains, and the files beside it that tell the same run."""

    name: re.Pattern[str]
    marks: tuple[bytes, ...]
    twins: Callable[[Path], Iterable[Path]]


def _twins_of_mmengine(path: Path) -> Iterable[Path]:
    if path.name.endswith(".log.json"):
        return (path.with_suffix(""),)
    run = path.parent.parent
    return (run / f"{run.name}.log", *((path.with_name("scalars.json"),) if path.name != "scalars.json" else ()))


def _twins_of_results(path: Path) -> Iterable[Path]:
    return (path.with_name(name) for name in (STATE, "train_results.json") if name != path.name)


_KINDS = (
    _Kind(
        re.compile(r"(?:.*/)?metrics\.json"),
        (b'{"', b'"data_time": ', b'"iteration": ', b'"total_loss": '),
        lambda path: (path.with_name("log.txt"),),
    ),
    _Kind(
        re.compile(rf"(?:.*/)?scalars\.json|.*\.log\.json|{_DATED}"),
        (b'{"', b'lr": ', b'"data_time": ', b'"time": ', b'"step": '),
        _twins_of_mmengine,
    ),
    _Kind(re.compile(r".*\.log\.json"), (b'{"mode": "train", "epoch": ', b'"iter": '), _twins_of_mmengine),
    _Kind(re.compile(r"(?:.*/)?(?:train|all)_results\.json"), (b'    "train_runtime": ',), _twins_of_results),
)


def may_be_metrics(name: str) -> bool:
    """Whether a file may hold a trainer's metrics, by its name without ``.gz``."""
    return name.endswith(".json") and any(kind.name.fullmatch(name) for kind in _KINDS)


def is_metrics_file(path: Path) -> bool:
    """Whether a file holds a trainer's metrics, by its name and its beginning."""
    return _kind_of(path) is not None


def is_new_run(path: Path, folder: Path) -> bool:
    """Whether a file holds a trainer's metrics, and no other file below a folder tells the same run."""
    kind, root = _kind_of(path), folder.absolute()
    twins = () if kind is None else kind.twins(_plain(path.absolute()))
    return kind is not None and not any(
        twin.is_relative_to(root) and (twin.is_file() or twin.with_name(f"{twin.name}.gz").is_file()) for twin in twins
    )


def superseded_states(folder: Path, folders: Iterable[str], names: Iterable[str]) -> Iterator[Path]:
    """Of the ``trainer_state.json`` in the checkpoints of a run, those that a later one goes on from.

    Args:
        folder: The run.
        folders: The names of all folders in it.
        names: The names of all files in it.
    """
    numbers = {int(number[1]): name for name in folders if (number := _CHECKPOINT.fullmatch(name))}
    is_last = STATE not in names
    for _, name in sorted(numbers.items(), reverse=True):
        state = folder / name / STATE
        if is_last and state.is_file():
            is_last = False
        else:
            yield state


def _kind_of(path: Path) -> _Kind | None:
    name = _plain(path).name
    kinds = [kind for kind in _KINDS if kind.name.fullmatch(name)]
    if not kinds or not path.is_file():
        return None
    try:
        head = next(read_blocks(path, _HEAD), b"")
    except SourceError:
        return None
    return next((kind for kind in kinds if all(mark in head for mark in kind.marks)), None)


def _plain(path: Path) -> Path:
    return path.with_suffix("") if path.suffix == ".gz" else path
