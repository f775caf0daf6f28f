"""Checkpoint saves of real libraries: a record a call, with all of its files, and steps without them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import SCRIPTS, profile, step_lines

pytestmark = pytest.mark.slow


def saves_of(script: str, tmp_path: Path, *arguments: str, launcher: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    (tmp_path / "out").mkdir()
    command: list[str | Path] = [sys.executable, *launcher, SCRIPTS / script, "out", *arguments]
    ended = profile(*command, cwd=tmp_path, options=["--exec"])
    assert ended.code == 0, ended.stderr
    assert "is off" not in ended.stderr
    assert "capture ends" not in ended.stderr
    return records(tmp_path)


def records(tmp_path: Path, rank: str = "00000") -> list[dict[str, Any]]:
    file = tmp_path / "RUN" / "ranks" / rank / "checkpoints.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()]


def files_in(tmp_path: Path, folder: str) -> dict[str, int]:
    return {
        str(file.relative_to(tmp_path)): file.stat().st_size
        for file in (tmp_path / folder).rglob("*")
        if file.is_file()
    }


def test_safetensors_of_torch_and_of_numpy(tmp_path: Path) -> None:
    saves = saves_of("saving.py", tmp_path, "safetensors")
    assert {save["source"] for save in saves} == {"safetensors"}
    assert [save["step"] for save in saves] == [2, 4, 4, *[6] * 8]
    assert [dict(save["files"]) for save in saves[:3]] == [
        {f"out/{name}.safetensors": (tmp_path / "out" / f"{name}.safetensors").stat().st_size}
        for name in ("file", "model", "arrays")
    ]
    written = {name: size for save in saves for name, size in save["files"]}
    assert written == {name: size for name, size in files_in(tmp_path, "out").items() if "safetensors" in name}
    steps = {line["step"]: line for line in step_lines(tmp_path / "RUN")}
    stalls_ns = {step: sum(s["end_ns"] - s["start_ns"] for s in saves if s["step"] == step - 1) for step in (3, 5, 7)}
    assert {step: line["save_ns"] for step, line in steps.items() if "save_ns" in line} == stalls_ns
    assert steps[7]["wall_ns"] < steps[7]["save_ns"]  # 512 MiB are written in it


def test_a_checkpoint_of_the_trainer_is_one_save_with_every_file_of_its_folder(tmp_path: Path) -> None:
    first, second, model, optimizer = saves_of("hf_trainer.py", tmp_path, "saving")
    for save, step in ((first, 3), (second, 6)):
        assert (save["source"], save["step"], save["path"]) == ("transformers", step, f"out/checkpoint-{step}")
        assert dict(save["files"]) == files_in(tmp_path, f"out/checkpoint-{step}")
        assert save["size_bytes"] == sum(files_in(tmp_path, f"out/checkpoint-{step}").values())
    assert len(first["files"]) == 10
    assert model["path"] == "out/final"
    shards = [name for name, _ in model["files"] if name.endswith(".safetensors")]
    assert len(shards) == 7
    assert (optimizer["source"], optimizer["path"]) == ("torch.save", "out/final/optimizer.pt")
    written = {name: size for save in (model, optimizer) for name, size in save["files"]}
    assert written == {n: size for n, size in files_in(tmp_path, "out/final").items() if "tokenizer" not in n}
    steps = {line["step"]: line for line in step_lines(tmp_path / "RUN")}
    assert steps[4]["save_ns"] == first["end_ns"] - first["start_ns"]


def test_accelerate_on_two_ranks_of_which_one_waits(tmp_path: Path) -> None:
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    state, model = saves_of("hf_accelerate.py", tmp_path, launcher=torchrun)
    other_state, other_model = records(tmp_path, "00001")
    assert [save["path"] for save in (state, model)] == ["out/state", "out/model"]
    assert {save["source"] for save in (state, model, other_state, other_model)} == {"accelerate"}
    assert {**dict(state["files"]), **dict(other_state["files"])} == files_in(tmp_path, "out/state")
    assert [name for name, _ in other_state["files"]] == ["out/state/random_states_1.pkl"]
    assert dict(model["files"]) == files_in(tmp_path, "out/model")


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_lightning_s_checkpoints_in_and_beside_training(mode: str, tmp_path: Path) -> None:
    saves = saves_of("lightning_trainer.py", tmp_path, "1", mode)
    assert [(save["source"], save["step"], save["asynchronous"]) for save in saves] == [
        ("lightning", step, mode == "async") for step in (3, 6, 9)
    ]
    for save, step in zip(saves, (3, 6, 9), strict=True):
        file = tmp_path / "out" / f"epoch=0-step={step}.ckpt"
        assert save["path"].endswith(f"out/{file.name}")
        assert save["files"] == [[save["path"], file.stat().st_size]]
        assert ("drained_ns" in save) == (mode == "async")
        assert save.get("drained_ns", save["start_ns"]) >= save["start_ns"]


def test_a_rank_of_lightning_that_only_waits_wrote_nothing(tmp_path: Path) -> None:
    saves = saves_of("lightning_trainer.py", tmp_path, "2", "sync")
    waits = records(tmp_path, "00001")
    assert [save["step"] for save in waits] == [save["step"] for save in saves] == [3, 6, 9]
    assert [(save["files"], save["size_bytes"]) for save in waits] == [([], 0)] * 3
