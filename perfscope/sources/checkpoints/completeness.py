"""What is missing from a checkpoint: files of ranks, empty files, and files that an index lists."""

from __future__ import annotations

import itertools
import json
import os
import re
import zlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from math import prod
from pathlib import Path
from typing import IO

from perfscope.errors import SourceError
from perfscope.files import open_regular, read_text
from perfscope.sources.checkpoints.dcp import METADATA_FILE
from perfscope.sources.checkpoints.file_names import holds_state, parse_name
from perfscope.sources.checkpoints.listing import MOST_FILES
from perfscope.sources.checkpoints.safetensors import SafetensorsDamage, ShardExtents, read_safetensors
from perfscope.sources.checkpoints.torch_files import TorchDamage, check_end
from perfscope.tables.checkpoint import CheckpointFile, Kind

_INDEX_ENDINGS = (".safetensors.index.json", ".bin.index.json")
_LISTED_MISSING = 10
_LISTED_LACKING = 3
_MOST_OPENED = 200
_NUMBER = re.compile(r"\d+")
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


def find_missing(sizes: Mapping[str, int]) -> list[str]:
    """Files that a complete checkpoint has and this one lacks, in words."""
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
    for kind, ranks in ranks_by_kind.items():
        if kind in _KINDS_OF_EVERY_RANK:
            missing.extend(_find_gaps(kind, ranks))
    empty = [name for name, size in sizes.items() if size == 0 and holds_state(name)]
    missing.extend(f"{name} is empty" for name in empty[:_LISTED_MISSING])
    if len(empty) > _LISTED_MISSING:
        missing.append(f"{len(empty) - _LISTED_MISSING:,} more files are empty")
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
            listed = ", ".join(map(str, absent[:_LISTED_MISSING])) + (" ..." if len(absent) > _LISTED_MISSING else "")
            missing.append(f"{series} is missing for {len(absent):,} of {expected:,} ranks: {listed}")
    return missing


def find_problems(folder: Path | None, sizes: Mapping[str, int]) -> list[str]:
    """Why a checkpoint is not complete, by its names, its sizes and the ends of its files; empty where it seems to be.

    Args:
        folder: Its folder; None where only names and sizes are known.
        sizes: The size of each of its files in bytes, by path.
    """
    problems = find_missing(sizes)
    if folder is None:
        return problems
    extents = ShardExtents()
    for name, size in itertools.islice(sizes.items(), _MOST_OPENED):
        if not size or not holds_state(name):
            continue
        try:
            if name.endswith(".safetensors"):
                extents.add(read_safetensors(folder / name))
            elif name.endswith(_TORCH_ENDINGS):
                check_end(folder / name)
        except (SafetensorsDamage, TorchDamage) as damage:
            problems.append(f"{name} {damage}")
        except OSError as error:
            problems.append(f"{name} cannot be read: {error.strerror}")
    if len(sizes) <= _MOST_OPENED and not problems:
        problems += extents.find_gaps()
    indexes = [name for name in sizes if name.endswith(_INDEX_ENDINGS)]
    return problems + [problem for name in indexes for problem in _find_absent(folder, name, sizes)]


def _find_absent(folder: Path, name: str, sizes: Mapping[str, int]) -> list[str]:
    """Files that an index lists and that are not there."""
    try:
        listed = {str(file) for file in json.loads(read_text(folder / name))["weight_map"].values()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, SourceError):
        return [f"{name} is not a complete index"]
    parent = name.rpartition("/")[0]
    absent = sorted(file for file in listed if (f"{parent}/{file}" if parent else file) not in sizes)
    return [f"{file} is missing: {name} lists it" for file in absent[:_LISTED_MISSING]]


class SeriesNames:
    """The kinds of files of a series of checkpoints, by their names without numbers."""

    def __init__(self, complete: Iterable[Mapping[str, int]]) -> None:
        counts: Counter[str] = Counter()
        self._checkpoints = 0
        for sizes in complete:
            counts.update(_kinds_of_files(sizes))
            self._checkpoints += 1
        self._common = {name: count for name, count in counts.items() if count >= self._checkpoints - 1}

    def find_lacking(self, sizes: Mapping[str, int], *, is_complete: bool) -> list[str]:
        """Kinds of files that a checkpoint lacks and that all other complete ones have, in words.

        Args:
            sizes: Its files.
            is_complete: Whether it is one of the complete ones itself.
        """
        peers = self._checkpoints - is_complete
        if not peers:
            return []
        own = _kinds_of_files(sizes)
        absent = sorted(name for name, count in self._common.items() if name not in own and count == peers)
        if not absent:
            return []
        remaining = f" and {len(absent) - _LISTED_LACKING} more" if len(absent) > _LISTED_LACKING else ""
        whose = "the other one has" if peers == 1 else "the others have"
        return [f"it lacks {', '.join(absent[:_LISTED_LACKING])}{remaining}, which {whose}"]


def _kinds_of_files(sizes: Mapping[str, int]) -> set[str]:
    return {_NUMBER.sub("#", name) for name in sizes}


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
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, SourceError):
        return [f"{name} is not a complete index"]
    absent = sorted(listed - {file.path for file in files})
    if absent:
        return [f"{file} is missing: {name} lists it" for file in absent[:_LISTED_MISSING]]
    size = sum(group.size_bytes for file in files if file.path in listed for group in file.contents or ())
    if name.endswith(".safetensors.index.json") and isinstance(stated, int) and stated != size:
        return [f"{name} states {stated:,} bytes of tensors, the headers {size:,}"]
    return []


#: Places that are looked at, the first and the last bytes among them, and bytes at each.
SAMPLES = 64
SAMPLE_BYTES = 4096
_UNIT_OF_BLOCKS = 512  # of stat, whatever the file system's own is
#: So many bytes of a file are read at most to compare storages with their checksums; more where half of it is zero.
_LARGEST_READ = 1 << 24
_LARGEST_READ_OF_ZEROS = 1 << 26
_LOCAL_HEADER = 30  # of zip, before the name and what follows it


def describe_zeros(path: Path, begin: int = 0) -> str | None:
    """What makes a file suspicious that is zero from ``begin`` on, in words; None where it is not.

    Args:
        path: The file.
        begin: The first byte that counts.

    Raises:
        OSError: It cannot be read.
    """
    with open_regular(path) as file:
        status = os.fstat(file.fileno())
        last = status.st_size - SAMPLE_BYTES
        if last <= begin:
            return None
        for number in range(SAMPLES):
            file.seek(begin + (last - begin) * number // (SAMPLES - 1))
            if file.read(SAMPLE_BYTES).strip(b"\0"):
                return None
    written = status.st_blocks * _UNIT_OF_BLOCKS
    sparse = f", and the file system has {written:,} bytes of it" if written < status.st_size // 2 else ""
    return f"is zero at all {SAMPLES} places looked at{sparse}: its data may never have been written"


def describe_zero_storages(
    path: Path, sizes: Mapping[str, int], headers: Mapping[str, int], checksums: Mapping[str, int]
) -> str | None:
    """What proves that storages of a file of ``torch.save`` were never written, in words; None where nothing does.

    Zeros alone are no proof, as moments begin as zeros; the file also has a checksum of each storage. The storages that
    are zero where they are looked at are compared with theirs, the smallest first.

    Args:
        path: The file, a zip archive.
        sizes: The bytes of each storage, by key.
        headers: Where the header of each begins in the file.
        checksums: The CRC-32 of each; 0 where there is none.

    Raises:
        OSError: It cannot be read.
    """
    keys = [key for key, size in sizes.items() if size]
    ends = list(accumulate(sizes[key] for key in keys))
    if not ends:
        return None
    zeros: dict[str, int] = {}
    damaged = 0
    with open_regular(path) as file:
        for number in range(SAMPLES):
            offset = (ends[-1] - 1) * number // (SAMPLES - 1)
            row = bisect_right(ends, offset)
            key, size = keys[row], sizes[keys[row]]
            begin = min(offset - (ends[row] - size), max(size - SAMPLE_BYTES, 0))
            file.seek(_begin_of_data(file, headers[key]) + begin)
            if not file.read(min(SAMPLE_BYTES, size)).strip(b"\0"):
                zeros[key] = zeros.get(key, 0) + 1
        places = sum(zeros.values())
        unread = _LARGEST_READ_OF_ZEROS if 2 * places >= SAMPLES else _LARGEST_READ
        for key in sorted(zeros, key=sizes.__getitem__):
            unread -= sizes[key]
            if unread < 0:
                break
            if checksums[key]:
                file.seek(_begin_of_data(file, headers[key]))
                damaged += zlib.crc32(file.read(sizes[key])) != checksums[key]
    return _describe_damaged(damaged, places) if damaged else None


def _describe_damaged(storages: int, places: int) -> str:
    if places == SAMPLES:
        return f"is zero at all {SAMPLES} places looked at, but its checksums are of other data: never written"
    of_whom = "a storage there is not that of its checksum"
    if storages > 1:
        of_whom = f"{storages:,} storages there is not that of their checksums"
    return f"is zero at {places} of {SAMPLES} places looked at, and the data of {of_whom}"


def _begin_of_data(file: IO[bytes], header: int) -> int:
    """Where the data of a member of a zip archive begins, of which the header begins at ``header``."""
    header = max(header, 0)  # a damaged archive may state less
    file.seek(header)
    text = file.read(_LOCAL_HEADER)
    return header + _LOCAL_HEADER + int.from_bytes(text[26:28], "little") + int.from_bytes(text[28:30], "little")
