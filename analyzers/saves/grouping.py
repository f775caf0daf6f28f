"""Which timed calls belong to one checkpoint, over all ranks.

Frameworks save a checkpoint in one call, in which everything is nested. Scripts save its files one after the other. The
files of one folder that are saved after the same step belong together. So do the folders of its parts and ranks.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Sequence

from perfscope.tables.saves import SaveTiming

#: Folders inside a checkpoint, one for each part or rank.
_PART_FOLDER = re.compile(
    r"(?:model|optim|optimizer|lr_scheduler|scheduler|states?|weights|ema|tokenizer|dataloader|trainer|rng"
    r"|pytorch_model_fsdp|(?:mp_|tp_|pp_|dp_|ep_)?rank|worker|shard)(?:[-_]?\d+)*",
    re.IGNORECASE,
)
_FILE_ENDINGS = (".pt", ".pth", ".bin", ".ckpt", ".safetensors", ".tar", ".pkl")
_TEXT_ENDINGS = (".json", ".jsonl", ".txt", ".model", ".jinja", ".md", ".yaml", ".yml")
_FILE_SOURCES = ("torch.save", "safetensors")


def is_text(name: str) -> bool:
    """Whether a file holds a configuration or a tokenizer, and no state of training."""
    return name.endswith(_TEXT_ENDINGS)


def is_file(timing: SaveTiming) -> bool:
    """Whether the destination of a save is a file, and not a folder."""
    path = timing.path or ""
    names = [name for name, _ in timing.files or ()]
    return path in names or timing.source in _FILE_SOURCES or path.endswith(_FILE_ENDINGS)


def find_folder(timing: SaveTiming) -> str | None:
    """The folder of the checkpoint that a save belongs to; None where the destination is unknown.

    >>> find_folder(SaveTiming(0, 0, 5, 1, None, None, False, "dcp", "runs/step-5/optimizer"))
    'runs/step-5'
    """
    if timing.path is None:
        return None
    folder = posixpath.dirname(timing.path) if is_file(timing) else timing.path.rstrip("/")
    while posixpath.dirname(folder) and _PART_FOLDER.fullmatch(posixpath.basename(folder)):
        folder = posixpath.dirname(folder)
    return folder


def group_by_checkpoint(timings: Iterable[SaveTiming]) -> list[list[SaveTiming]]:
    """The timings of each checkpoint, in order.

    A rank that saves to the same file or folder once more has begun another checkpoint.
    """
    groups: dict[tuple[object, ...], list[SaveTiming]] = {}
    repetitions: dict[tuple[object, ...], tuple[int, set[str]]] = {}
    for timing in timings:
        checkpoint = (timing.attempt, timing.step, find_folder(timing))
        targets = _find_targets(timing)
        number, before = repetitions.get((timing.rank, *checkpoint), (0, set()))
        if targets & before:
            number, before = number + 1, set()
        repetitions[timing.rank, *checkpoint] = number, before | targets
        groups.setdefault((*checkpoint, number), []).append(timing)
    return sorted(groups.values(), key=_begin)


def _find_targets(timing: SaveTiming) -> set[str]:
    """What a save writes to; where its files are not known, its destination."""
    states = {name for name, _ in timing.files or () if not is_text(name)}
    if states or (timing.files and timing.path is not None):
        return states
    return {f"{timing.source} {timing.path}"}


def _begin(timings: Sequence[SaveTiming]) -> tuple[int, int]:
    starts_ns = [start_ns for timing in timings for start_ns, _ in timing.stalls_ns]
    return min(starts_ns, default=0), min(timing.number for timing in timings)
