"""JSON files in which trainers keep their metrics: which of a folder's files are such, and which repeat a text log.

Their names are common, so that their beginnings decide. A run that a text log beside them tells, too, is read from the
text log, which says more: set-up, saves, the window of a mean.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from perfscope.errors import SourceError
from perfscope.sources.joblog.text.blocks import read_blocks

_HEAD = 1 << 16  # a line of set-up may come first
_MOST_BLOCKS = 16
STATE = "trainer_state.json"
_CHECKPOINT = re.compile(r"checkpoint-(\d{1,12})")
_DATED = r"(?:.*/)?\d{8}_\d{6}(?:_\d{1,4})?\.json"


class _Twin(NamedTuple):
    """A file that tells the same run, where it exists and contains a text."""

    path: Path
    mark: bytes


class _Kind(NamedTuple):
    """A kind of file: its names, what its beginning contains, and the files beside it that may tell the same run."""

    name: re.Pattern[str]
    marks: tuple[bytes, ...]
    twins: Callable[[Path], Iterable[_Twin]]


def _twins_of_detectron2(path: Path) -> Iterable[_Twin]:
    return (_Twin(path.with_name("log.txt"), mark) for mark in (b"detectron2", b" d2."))


def _twins_of_mmengine(path: Path) -> Iterable[_Twin]:
    if path.name.endswith(".log.json"):
        yield from _twins_of_mmcv(path)
        return
    run = path.parent.parent
    yield _Twin(run / f"{run.name}.log", b" - INFO - ")
    if path.name != "scalars.json":
        yield _Twin(path.with_name("scalars.json"), b'"step": ')


def _twins_of_mmcv(path: Path) -> Iterable[_Twin]:
    yield _Twin(path.with_suffix(""), b" - INFO - ")


def _twins_of_results(path: Path) -> Iterable[_Twin]:
    for name in ("trainer_state.json", "train_results.json"):
        if name != path.name:
            yield _Twin(path.with_name(name), b'"train_runtime": ')


_KINDS = (
    _Kind(
        re.compile(r"(?:.*/)?metrics\.json"),
        (b'{"', b'"data_time": ', b'"iteration": ', b'"total_loss": '),
        _twins_of_detectron2,
    ),
    _Kind(
        re.compile(rf"(?:.*/)?scalars\.json|.*\.log\.json|{_DATED}"),
        (b'{"', b'lr": ', b'"data_time": ', b'"time": ', b'"step": '),
        _twins_of_mmengine,
    ),
    _Kind(re.compile(r".*\.log\.json"), (b'{"mode": "train", "epoch": ', b'"iter": '), _twins_of_mmcv),
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
    return kind is not None and not any(
        twin.path.is_relative_to(root) and _exists(twin) for twin in kind.twins(_plain(path.absolute()))
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


def _exists(twin: _Twin) -> bool:
    return any(_contains(path, twin.mark) for path in (twin.path, twin.path.with_name(f"{twin.path.name}.gz")))


def _contains(path: Path, text: bytes) -> bool:
    if not path.is_file():
        return False
    try:
        return any(text in block for block, _ in zip(read_blocks(path), range(_MOST_BLOCKS), strict=False))
    except SourceError:
        return False
