"""Which files of a folder, or of a list of files, are one checkpoint: the latest, if there are several."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from perfscope.errors import SourceError
from perfscope.files import read_text
from perfscope.sources.checkpoints.file_names import holds_state, is_tracker, tag_order

NO_CHECKPOINT = "no file in it has a name that a checkpoint's files have"
#: More files than any checkpoint has.
MOST_FILES = 1_000_000
_LONGEST_TAG = 200
_TAG = re.compile(r"(global_step|iter_|step|checkpoint|epoch|ckpt)[-_]?\d+(_universal)?")


@dataclass(frozen=True, slots=True)
class Selection:
    """One checkpoint of a folder.

    Attributes:
        tag: Its name in the folder; empty for the folder itself.
        sizes: The size of each of its files in bytes, by path.
        other_tags: The sizes of the other checkpoints in bytes.
        damage: Problems with the choice, in words.
    """

    tag: str
    sizes: Mapping[str, int]
    other_tags: Mapping[str, int]
    damage: tuple[str, ...] = ()


def list_files(folder: Path) -> dict[str, int]:
    """Every file below a folder with its size in bytes, by its path in the folder.

    Raises:
        SourceError: A folder cannot be read, or there are too many files.
    """
    sizes: dict[str, int] = {}
    for parent, _, names in os.walk(folder, onerror=_raise_unreadable):
        for name in names:
            file = Path(parent, name)
            try:
                size = file.stat().st_size
            except OSError:  # a broken link: reading it reports the problem
                size = 0
            sizes[file.relative_to(folder).as_posix()] = size
        if len(sizes) > MOST_FILES:
            raise SourceError(folder, f"holds more than {MOST_FILES:,} files", hint="name one checkpoint in it")
    return dict(sorted(sizes.items()))


def _raise_unreadable(error: OSError) -> None:
    raise SourceError(error.filename or "a folder", f"cannot be read: {error.strerror}")


def select_checkpoint(path: Path, sizes: Mapping[str, int]) -> Selection:
    """Select the checkpoint that the tracker file names, else the one with the highest number.

    Raises:
        SourceError: There is no checkpoint.
    """
    by_tag: dict[str, dict[str, int]] = {}
    for name, size in sizes.items():
        tag, _, rest = name.rpartition("/") if "/" not in name else name.partition("/")
        by_tag.setdefault(tag, {})[rest] = size
    tags = {tag for tag, files in by_tag.items() if tag and any(map(holds_state, files))}
    if any(map(holds_state, by_tag.get("", ()))) or _is_split(sizes):
        siblings = sorted((tag for tag in tags if _TAG.fullmatch(tag)), key=tag_order)
        own = {name: size for name, size in sizes.items() if name.partition("/")[0] not in siblings}
        return Selection("", own, {tag: sum(by_tag[tag].values()) for tag in siblings})
    if not tags:
        raise SourceError(path, "contains no checkpoint", hint=NO_CHECKPOINT)
    tracked = _read_tracker(path, sizes)
    is_lost = tracked is not None and tracked not in tags
    damage = (f"the tracker file names {tracked} as the latest checkpoint, which is missing",) if is_lost else ()
    tag = tracked if tracked in tags and tracked else max(tags, key=tag_order)
    siblings = sorted(tags - {tag}, key=tag_order)
    return Selection(tag, by_tag[tag], {sibling: sum(by_tag[sibling].values()) for sibling in siblings}, damage)


def _is_split(sizes: Mapping[str, int]) -> bool:
    """Whether the folder is one checkpoint with its files in folders: Megatron's ranks, universal parameters."""
    return any(name.startswith(("mp_rank_", "zero/")) and "/" in name for name in sizes)


def _read_tracker(path: Path, sizes: Mapping[str, int]) -> str | None:
    """The tag that the tracker file names; None without a tracker file."""
    for name in sizes:
        if is_tracker(name) and path.is_dir():
            text = read_text(path / name).strip()[:_LONGEST_TAG]
            return f"iter_{int(text):07d}" if text.isdigit() and name.endswith(".txt") else text
    return None
