"""What is missing from a checkpoint: files of ranks, empty files, and files that an index lists."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path

from perfscope.files import read_text
from perfscope.sources.checkpoints.dcp import METADATA_FILE
from perfscope.sources.checkpoints.file_names import holds_state, parse_name
from perfscope.sources.checkpoints.selection import MOST_FILES
from perfscope.tables.checkpoint import CheckpointFile, Kind, Layout

_INDEX_ENDINGS = (".safetensors.index.json", ".bin.index.json")
_LISTED_MISSING = 10
_KINDS_OF_EVERY_RANK = (
    Kind.OPTIMIZER,
    Kind.MODEL,
    Kind.MODEL_METADATA,
    Kind.MODEL_AND_OPTIMIZER,
    Kind.EXPERT_OPTIMIZER,
)


def find_missing(layout: Layout, sizes: Mapping[str, int]) -> list[str]:
    """Files that a complete checkpoint of this layout has and this one lacks, in words."""
    missing: list[str] = []
    if layout in (Layout.TORCH_DCP, Layout.MEGATRON_DIST) and METADATA_FILE not in sizes:
        missing.append(f"{METADATA_FILE} is missing: it is written last, so the save did not complete")
    ranks_by_kind: dict[Kind, list[Mapping[str, int]]] = {}
    for name in sizes:
        parsed = parse_name(name)
        ranks_by_kind.setdefault(parsed.kind, []).append(parsed.ranks)
    for kind, ranks in ranks_by_kind.items():
        if kind in _KINDS_OF_EVERY_RANK:
            missing.extend(_find_gaps(kind, ranks))
    missing.extend(f"{name} is empty" for name, size in sizes.items() if size == 0 and holds_state(name))
    return missing


def _find_gaps(kind: Kind, ranks: Sequence[Mapping[str, int]]) -> list[str]:
    """Ranks without a file: the files of one kind cover every rank up to the highest of each axis."""
    axes = sorted({axis for rank in ranks for axis in rank} - {"part"})
    if not axes:
        return []
    present = {tuple(rank.get(axis, 0) for axis in axes) for rank in ranks}
    highest = [max(rank[index] for rank in present) for index in range(len(axes))]
    expected = prod(rank + 1 for rank in highest)
    if expected == len(present) or expected > MOST_FILES:
        return []
    absent = expected - len(present)
    axis_names = " x ".join(f"{axis} 0-{rank}" for axis, rank in zip(axes, highest, strict=True))
    return [f"{absent} of {expected} files of {kind} are missing ({axis_names})"]


def check_indexes(folder: Path, files: Sequence[CheckpointFile]) -> list[str]:
    """Problems with Hugging Face indexes: missing files, and a total size that the headers do not give."""
    problems: list[str] = []
    for name in sorted(file.path for file in files):
        if name.endswith(_INDEX_ENDINGS):
            problems.extend(_check_index(folder, name, files))
    return problems


def _check_index(folder: Path, name: str, files: Sequence[CheckpointFile]) -> list[str]:
    try:
        index = json.loads(read_text(folder / name))
        listed = {str(file) for file in index["weight_map"].values()}
        stated = index.get("metadata", {}).get("total_size")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return [f"{name} is not a complete index"]
    absent = sorted(listed - {file.path for file in files})
    if absent:
        return [f"{file} is missing: {name} lists it" for file in absent[:_LISTED_MISSING]]
    size = sum(group.size_bytes for file in files if file.path in listed for group in file.contents or ())
    if name.endswith(".safetensors.index.json") and isinstance(stated, int) and stated != size:
        return [f"{name} states {stated:,} bytes of tensors, the headers {size:,}"]
    return []
