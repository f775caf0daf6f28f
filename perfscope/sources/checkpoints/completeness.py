"""What is missing from a checkpoint: files of ranks, empty files, and files that an index lists."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path

from perfscope.errors import SourceError
from perfscope.files import read_text
from perfscope.sources.checkpoints.dcp import METADATA_FILE
from perfscope.sources.checkpoints.file_names import holds_state, parse_name
from perfscope.sources.checkpoints.listing import MOST_FILES, MOST_LISTED, FileDamage
from perfscope.sources.checkpoints.safetensors import read_safetensors
from perfscope.sources.checkpoints.torch_files import check_end
from perfscope.tables.checkpoint import Kind

INDEX_ENDINGS = (".safetensors.index.json", ".bin.index.json")
_MOST_OPENED = 200
_RANK = re.compile(r"(?P<before>(?:.*[-_./])?rank[-_]?)(?P<rank>\d{1,7})(?P<after>(?:\.\w+)+)", re.IGNORECASE)
_WORLD_SIZE = re.compile(r"world[-_]?size[-_]?(\d{1,7})", re.IGNORECASE)
_KINDS_OF_SCRIPTS = (Kind.MODEL_AND_OPTIMIZER, Kind.WEIGHTS, Kind.OPTIMIZER)
_TORCH_ENDINGS = (".pt", ".pth", ".bin", ".ckpt")
_KINDS_OF_EVERY_RANK = (
    Kind.OPTIMIZER,
    Kind.MODEL,
    Kind.MODEL_METADATA,
    Kind.MODEL_AND_OPTIMIZER,
    Kind.EXPERT_OPTIMIZER,
)


def find_missing(sizes: Mapping[str, int], world: Mapping[str, int] | None = None) -> list[str]:
    """Files that a complete checkpoint has and this one lacks, in words; ``world`` states the size of axes."""
    missing: list[str] = []
    folders = sorted({name.rpartition("/")[0] for name in sizes if name.endswith(".distcp")})
    missing.extend(
        f"{metadata} is missing: it is written last, so the save did not complete"
        for metadata in (f"{folder}/{METADATA_FILE}" if folder else METADATA_FILE for folder in folders)
        if metadata not in sizes
    )
    ranks_by_kind: dict[Kind, list[Mapping[str, int]]] = {}
    for name in sizes:
        parsed = parse_name(name)
        ranks_by_kind.setdefault(parsed.kind, []).append(parsed.ranks)
    of_every_rank = {kind: ranks for kind, ranks in ranks_by_kind.items() if kind in _KINDS_OF_EVERY_RANK}
    sizes_of_axes = Counter(world or {})
    for ranks in of_every_rank.values():
        for rank in ranks:
            sizes_of_axes |= Counter({axis: number + 1 for axis, number in rank.items()})
    for kind, ranks in of_every_rank.items():
        missing.extend(_find_gaps(kind, ranks, sizes_of_axes))
    is_zero = any("dp" in rank for rank in ranks_by_kind.get(Kind.OPTIMIZER, ()))
    if is_zero and not {Kind.MODEL, Kind.MODEL_METADATA, Kind.LAYER} & set(ranks_by_kind):
        missing.append("the files of model states are missing")
    empty = [name for name, size in sizes.items() if size == 0 and holds_state(name)]
    missing.extend(f"{name} is empty" for name in empty[:MOST_LISTED])
    if len(empty) > MOST_LISTED:
        missing.append(f"{len(empty) - MOST_LISTED:,} more files are empty")
    missing.extend(_find_missing_ranks(sizes))
    return missing


def _find_missing_ranks(sizes: Mapping[str, int]) -> list[str]:
    """Ranks without a file among files that a script wrote, one a rank: ``model_world_size_4_rank_2.pt``."""
    ranks: dict[str, set[int]] = {}
    for name in sizes:
        match = _RANK.fullmatch(name)
        if match and parse_name(name).kind in _KINDS_OF_SCRIPTS:
            ranks.setdefault(f"{match['before']}#{match['after']}", set()).add(int(match["rank"]))
    missing = []
    for series, present in ranks.items():
        stated = _WORLD_SIZE.search(series)
        expected = int(stated[1]) if stated else max(present) + 1
        absent = [rank for rank in range(min(expected, MOST_FILES)) if rank not in present]
        if absent and (stated or len(present) > 1):
            listed = ", ".join(map(str, absent[:MOST_LISTED])) + (" ..." if len(absent) > MOST_LISTED else "")
            missing.append(f"{series} is missing for {len(absent):,} of {expected:,} ranks: {listed}")
    return missing


def find_problems(folder: Path | None, sizes: Mapping[str, int]) -> list[str]:
    """Why a checkpoint is not complete, by its names, its sizes and the ends of its files; empty where it seems to be.

    Without a folder, files are not opened.
    """
    problems = find_missing(sizes)
    if folder is None:
        return problems
    for name, size in itertools.islice(sizes.items(), _MOST_OPENED):
        if not size or not holds_state(name):
            continue
        try:
            if name.endswith(".safetensors"):
                read_safetensors(folder / name)
            elif name.endswith(_TORCH_ENDINGS):
                check_end(folder / name)
        except FileDamage as damage:
            problems.append(f"{name} {damage}")
        except OSError as error:
            problems.append(f"{name} cannot be read: {error.strerror}")
    indexes = [name for name in sizes if name.endswith(INDEX_ENDINGS)]
    return problems + [problem for name in indexes for problem in check_index(folder, name, sizes)]


def _find_gaps(kind: Kind, ranks: Sequence[Mapping[str, int]], world: Mapping[str, int]) -> list[str]:
    """Ranks without a file: the files of one kind cover every rank of each axis that their names have."""
    axes = sorted({axis for rank in ranks for axis in rank} - {"part"})
    if not axes:
        return []
    present = {tuple(rank.get(axis, 0) for axis in axes) for rank in ranks}
    expected = prod(world[axis] for axis in axes)
    if expected == len(present) or expected > MOST_FILES:
        return []
    axis_names = " x ".join(f"{axis} 0-{world[axis] - 1}" for axis in axes)
    return [f"{expected - len(present)} of {expected} files of {kind} are missing ({axis_names})"]


def check_index(folder: Path, name: str, sizes: Mapping[str, int], tensor_bytes: int | None = None) -> list[str]:
    """Problems with a Hugging Face index: missing files, and a total size that the headers do not give."""
    try:
        index = json.loads(read_text(folder / name))
        listed = {str(file) for file in index["weight_map"].values()}
        stated = index.get("metadata", {}).get("total_size")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, SourceError):
        return [f"{name} is not a complete index"]
    parent = name.rpartition("/")[0]
    absent = sorted(file for file in listed if (f"{parent}/{file}" if parent else file) not in sizes)
    if absent:
        return [f"{file} is missing: {name} lists it" for file in absent[:MOST_LISTED]]
    if name.endswith(".safetensors.index.json") and isinstance(stated, int) and tensor_bytes not in (None, stated):
        return [f"{name} states {stated:,} bytes of tensors, the headers {tensor_bytes:,}"]
    return []
