"""Checkpoints of the fixtures, their checked sizes, and safetensors files written by hand."""

from __future__ import annotations

import csv
import json
import struct
from pathlib import Path
from typing import Any

from perfscope.analyzers.checkpoint import CheckpointSizes, check_checkpoint
from perfscope.sources.checkpoints.checkpoint import read_checkpoint
from tests.conftest import ROOT

FIXTURES = ROOT / "fixtures" / "checkpoints"


def sizes_of(path: Path) -> CheckpointSizes:
    return check_checkpoint(read_checkpoint(path))


def parts(sizes: CheckpointSizes) -> dict[str, int]:
    return {share.part: share.bytes for share in sizes.parts.values()}


def kinds(sizes: CheckpointSizes) -> set[str]:
    return {finding.kind for finding in sizes.findings}


def write_safetensors(path: Path, tensors: dict[str, tuple[str, list[int]]], cut: int = 0) -> None:
    header: dict[str, Any] = {}
    end = 0
    for name, (dtype, shape) in tensors.items():
        size = {"BF16": 2, "F32": 4, "I8": 1}[dtype]
        for part in shape:
            size *= part
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(end - cut))


def write_holes(listing: str, folder: Path) -> Path:
    """Files with the names and sizes of a list of the fixtures, and nothing in them: no disk is used."""
    with (FIXTURES / f"{listing}.csv").open(newline="") as file:
        for name, size in csv.reader(file):
            if size.isdecimal() and not name.startswith("latest"):
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("wb") as hole:
                    hole.truncate(int(size))
    return folder
