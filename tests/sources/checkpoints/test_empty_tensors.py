"""Checkpoints that are written completely and hold nothing: empty files, tensors and storages."""

from __future__ import annotations

import zipfile
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from perfscope.sources.checkpoints.checkpoint import read_checkpoint
from tests.commands.report_cli import run
from tests.sources.checkpoints.test_crafted_files import answer_soon

NOTHING = "no element: there are names and shapes, but no values to load"


def save(path: Path, tensors: dict[str, torch.Tensor], *, legacy: bool = False) -> None:
    if path.suffix == ".safetensors":
        save_file(tensors, path)
    else:
        torch.save(tensors, path, _use_new_zipfile_serialization=not legacy)


@pytest.mark.parametrize("name", ["model.pt", "model.safetensors"])
def test_tensors_without_an_element_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    save(tmp_path / name, {"w": torch.empty(3, 0), "v": torch.empty(0, dtype=torch.bfloat16)})
    answer = answer_soon(partial(run, capsys, "checkpoint", tmp_path))
    assert answer.code == 4
    assert f"its 2 tensors have {NOTHING}" in answer.err
    assert "no tensor has an element, so that there is no parameter to count" in answer.out
    assert "From the tables of contents" in answer.out


def test_a_storage_without_its_bytes_is_named(tmp_path: Path) -> None:
    save(tmp_path / "whole.pt", {"w": torch.ones(4, 4)})
    with zipfile.ZipFile(tmp_path / "whole.pt") as whole, zipfile.ZipFile(tmp_path / "model.pt", "w") as emptied:
        for name in whole.namelist():
            emptied.writestr(name, b"" if "/data/" in name else whole.read(name))
    assert read_checkpoint(tmp_path / "model.pt").damage == ("model.pt holds 0 bytes for a storage of 64",)
