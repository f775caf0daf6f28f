"""Shards of the right size to which nothing was written are named, and tensors that begin as zeros are not."""

from __future__ import annotations

import os
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest

from perfscope.sources.checkpoints.checkpoint import read_checkpoint

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def save(folder: Path, value: float) -> Path:
    """A distributed checkpoint whose weights have one value and whose moments are zero."""
    import torch.distributed.checkpoint as dcp

    state = {
        "model": {f"layers.{n}.weight": torch.full((128, 256), value) for n in range(4)},
        "optimizer": {f"layers.{n}.weight": {"exp_avg": torch.zeros(128, 256)} for n in range(4)},
    }
    dcp.save(state, checkpoint_id=folder)
    return next(folder.glob("*.distcp"))


@pytest.mark.parametrize("is_sparse", [False, True])
def test_a_shard_of_zeros_is_named(tmp_path: Path, is_sparse: bool) -> None:
    shard = save(tmp_path / "step-1", 1.0)
    assert read_checkpoint(tmp_path / "step-1").damage == ()
    size = shard.stat().st_size
    if is_sparse:
        os.truncate(shard, 0)
        os.truncate(shard, size)
    else:
        shard.write_bytes(bytes(size))
    (damage,) = read_checkpoint(tmp_path / "step-1").damage
    assert damage.startswith(f"{shard.name} is zero at all 64 places looked at")
    assert ("the file system has 0 bytes of it" in damage) == is_sparse


def test_tensors_that_are_zero_are_sound(tmp_path: Path) -> None:
    save(tmp_path / "step-1", 0.0)
    assert read_checkpoint(tmp_path / "step-1").damage == ()


@pytest.mark.parametrize(("value", "is_named"), [(0.0, True), (1e-3, False)])
def test_weights_behind_a_sound_header_that_are_zero_throughout_are_named(
    tmp_path: Path, value: float, is_named: bool
) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    tensors = {"a.weight": torch.zeros(256, 256), "b.weight": torch.full((64, 256), value), "b.bias": torch.zeros(64)}
    safetensors.save_file(tensors, tmp_path / "model.safetensors")
    damage = read_checkpoint(tmp_path).damage
    assert len(damage) == is_named
    assert all("may never have been written" in text for text in damage)


def empty_storages(path: Path, share: float = 1) -> None:
    """Make the last share of every storage of a file of ``torch.save`` zero, and leave all else as it is."""
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            if "/data/" in entry.filename:
                names = content[entry.header_offset + 26 : entry.header_offset + 30]
                begin = entry.header_offset + 30 + sum(struct.unpack("<HH", names))
                zeros = int(share * entry.file_size)
                content[begin + entry.file_size - zeros : begin + entry.file_size] = bytes(zeros)
    path.write_bytes(content)


@pytest.mark.parametrize(("value", "is_named"), [(1.0, True), (0.0, False)])
def test_storages_of_torch_that_were_never_written_are_named(tmp_path: Path, value: float, is_named: bool) -> None:
    path = tmp_path / "pytorch_model.bin"
    torch.save({f"layers.{n}.weight": torch.full((64, 256), value) for n in range(4)}, path)
    assert read_checkpoint(tmp_path).damage == ()
    empty_storages(path)
    damage = read_checkpoint(tmp_path).damage
    assert len(damage) == is_named
    assert all("its checksums are of other data" in text for text in damage)


def test_a_few_numbers_among_zeros_are_sound(tmp_path: Path) -> None:
    moments = torch.zeros(256, 4096)
    moments[77, 5] = 1.0
    torch.save({"exp_avg": moments}, tmp_path / "pytorch_model.bin")
    assert read_checkpoint(tmp_path).damage == ()


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_storages_that_were_written_in_part_are_named(tmp_path: Path, share: float) -> None:
    path = tmp_path / "pytorch_model.bin"
    torch.save({f"layers.{n}.weight": torch.full((64, 1024), 1.0) for n in range(4)}, path)
    assert read_checkpoint(tmp_path).damage == ()
    empty_storages(path, share)
    (damage,) = read_checkpoint(tmp_path).damage
    assert "places looked at, and the data of 4 storages there is not that of their checksums" in damage


def test_a_storage_that_was_saved_half_zero_is_sound(tmp_path: Path) -> None:
    weights = torch.cat([torch.ones(1 << 16), torch.zeros(1 << 16)])
    torch.save({"weight": weights}, tmp_path / "pytorch_model.bin")
    assert read_checkpoint(tmp_path).damage == ()
