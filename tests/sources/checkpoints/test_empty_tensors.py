"""Checkpoints that are written completely and hold nothing: empty files, tensors and storages."""

from __future__ import annotations

import os
import zipfile
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

from perfscope.analyzers.checkpoint.check import check_checkpoint
from perfscope.sources.checkpoints.checkpoint import read_checkpoint
from tests.commands.report_cli import run
from tests.sources.checkpoints.test_crafted_files import answer_soon

NOTHING = "no element: there are names and shapes, but no values to load"


def save(path: Path, tensors: dict[str, torch.Tensor], *, legacy: bool = False) -> None:
    if path.suffix == ".safetensors":
        save_file(tensors, path)
    else:
        torch.save(tensors, path, _use_new_zipfile_serialization=not legacy)


@pytest.mark.parametrize("name", ["model.pt", "pytorch_model.bin", "model.safetensors"])
@pytest.mark.parametrize("shape", [(0,), (0, 4), (3, 0)], ids=str)
def test_tensors_without_an_element_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, shape: tuple[int, ...]
) -> None:
    save(tmp_path / name, {"w": torch.empty(shape), "v": torch.empty(shape, dtype=torch.bfloat16)})
    answer = answer_soon(partial(run, capsys, "checkpoint", tmp_path))
    assert answer.code == 4
    assert f"its 2 tensors have {NOTHING}" in answer.err
    assert "no tensor has an element, so that there is no parameter to count" in answer.out
    assert "From the tables of contents" in answer.out


def test_the_old_format_of_torch_is_no_exception(tmp_path: Path) -> None:
    save(tmp_path / "model.pt", {"w": torch.empty(0)}, legacy=True)
    assert read_checkpoint(tmp_path).damage == (f"its only tensor has {NOTHING}",)


@pytest.mark.parametrize("name", ["model.pt", "model.safetensors"])
def test_some_empty_tensors_are_no_damage(tmp_path: Path, name: str) -> None:
    save(tmp_path / name, {"w": torch.ones(3), "v": torch.empty(0)})
    checkpoint = read_checkpoint(tmp_path)
    assert checkpoint.damage == ()
    assert check_checkpoint(checkpoint).parameters == 3


@pytest.mark.parametrize("name", ["model.pt", "model.safetensors"])
def test_a_checkpoint_of_no_tensors_has_no_parameters_to_count(tmp_path: Path, name: str) -> None:
    save(tmp_path / name, {})
    checkpoint = read_checkpoint(tmp_path)
    sizes = check_checkpoint(checkpoint)
    assert checkpoint.damage == ()
    assert (sizes.parameters, sizes.read) == (None, "contents")
    assert sizes.parameters_from.startswith("no tensor has an element")


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_distributed_checkpoint_of_empty_tensors_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dcp.save({"w": torch.empty(0, 4)}, checkpoint_id=tmp_path, no_dist=True)
    answer = answer_soon(partial(run, capsys, "checkpoint", tmp_path))
    assert f"its only tensor has {NOTHING}" in answer.err


def test_a_storage_without_its_bytes_is_named(tmp_path: Path) -> None:
    save(tmp_path / "whole.pt", {"w": torch.ones(4, 4)})
    with zipfile.ZipFile(tmp_path / "whole.pt") as whole, zipfile.ZipFile(tmp_path / "model.pt", "w") as emptied:
        for name in whole.namelist():
            emptied.writestr(name, b"" if "/data/" in name else whole.read(name))
    assert read_checkpoint(tmp_path / "model.pt").damage == ("model.pt holds 0 bytes for a storage of 64",)


@pytest.mark.parametrize("name", ["model.pt", "pytorch_model.bin", "model.safetensors", "__0_0.distcp"])
def test_an_empty_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    (tmp_path / name).touch()
    answer = answer_soon(partial(run, capsys, "checkpoint", tmp_path))
    assert answer.code == 4
    assert f"{name} is empty" in answer.err


def test_a_fifo_in_the_place_of_metadata_is_not_missing_below_a_folder_of_checkpoints(tmp_path: Path) -> None:
    for step in (10, 20):
        folder = tmp_path / f"step-{step}"
        folder.mkdir()
        os.mkfifo(folder / ".metadata")
        (folder / "__0_0.distcp").write_bytes(b"x")
    assert read_checkpoint(tmp_path).damage == (
        "step-10/.metadata is a FIFO; it is not read",
        "step-20/.metadata is a FIFO; it is not read",
    )
