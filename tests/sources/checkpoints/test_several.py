"""A folder of several checkpoints: each is told apart, the newest is shown, and what is wrong with it is said."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from perfscope.errors import SourceError
from perfscope.sources.checkpoints.checkpoint import read_checkpoint
from perfscope.sources.checkpoints.selection import CheckpointName, find_units, parse_identity
from tests.commands.report_cli import run
from tests.sources.checkpoints.checkpoint_files import write_safetensors

IDENTITIES = {
    "epoch=3-step=120.ckpt": ("", 120, 3, ""),
    "epoch=4-val_loss=0.53.ckpt": ("", None, 4, ""),
    "checkpoint-500": ("", 500, None, ""),
    "global_step10": ("", 10, None, ""),
    "global_step10_universal": ("", 10, None, ""),
    "iter_0000100": ("", 100, None, ""),
    "model_epoch1.pt": ("", None, 1, ""),
    "optimizer_epoch1.pt": ("", None, 1, ""),
    "rank1_step5.pt": ("", 5, None, ""),
    "model_10000.pth": ("", 10000, None, ""),
    "best_model_epoch_3.pt": ("", None, 3, "best"),
    "last.ckpt": ("", None, None, "last"),
    "tmp-checkpoint-500": ("", 500, None, "tmp"),
    "resnet50.pth": ("resnet50", None, None, ""),
    "bert_epoch2.pt": ("bert", None, 2, ""),
    "consolidated.00.pth": ("", None, None, ""),
}


@pytest.mark.parametrize("name", IDENTITIES)
def test_a_name_says_the_step_the_epoch_and_the_series(name: str) -> None:
    assert parse_identity(name) == CheckpointName(*IDENTITIES[name])


DCP_FILES = (".metadata", "__0_0.distcp")
TRAINER_FILES = ("config.json", "model.safetensors", "latest", "trainer_state.json")
LAYOUTS = {
    "Trainer with DeepSpeed": (
        [f"checkpoint-5/{file}" for file in TRAINER_FILES]
        + [f"checkpoint-5/global_step5/zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in (0, 1)],
        {"checkpoint-5": 6},
    ),
    "DCP of model and optimizer": (
        [f"step-{step}/{part}/{file}" for step in (5, 10) for part in ("model", "optim") for file in DCP_FILES],
        {"step-5": 4, "step-10": 4},
    ),
    "the parts alone": ([f"{part}/{file}" for part in ("model", "optim") for file in DCP_FILES], {"": 4}),
    "Megatron": (
        [f"iter_00000{step}/mp_rank_0{rank}/model_optim_rng.pt" for step in (10, 20) for rank in (0, 1)],
        {"iter_0000010": 2, "iter_0000020": 2},
    ),
    "Megatron's ranks alone": ([f"mp_rank_0{rank}/model_optim_rng.pt" for rank in (0, 1)], {"": 2}),
    "the universal format alone": (
        [f"zero/layer{number}.weight/{state}.pt" for number in range(3) for state in ("fp32", "exp_avg")]
        + ["mp_rank_00_model_states.pt"],
        {"": 7},
    ),
    "Lightning, sharded": (
        [f"epoch={epoch}.ckpt/{file}" for epoch in (0, 1) for file in (".metadata", "__0_0.distcp", "meta.pt")],
        {"epoch=0.ckpt": 3, "epoch=1.ckpt": 3},
    ),
    "Lightning, versions of one step": (
        ["epoch=0-step=9.ckpt", "epoch=0-step=9-v1.ckpt"],
        {"epoch=0-step=9.ckpt": 1, "epoch=0-step=9-v1.ckpt": 1},
    ),
    "a final model beside checkpoints": (
        ["model.safetensors", "config.json", "checkpoint-5/model.safetensors"],
        {"": 2, "checkpoint-5": 1},
    ),
    "one file a rank": ([f"step5_rank{rank}.pt" for rank in range(4)], {"": 4}),
    "parts of two epochs": (
        [f"{part}_epoch{epoch}.pt" for epoch in (1, 2) for part in ("model", "optimizer", "ema")],
        {f"ema_epoch{epoch}.pt + model_epoch{epoch}.pt + optimizer_epoch{epoch}.pt": 3 for epoch in (1, 2)},
    ),
    "several runs": (
        [f"{name}/checkpoint-{step}/model.safetensors" for name in ("a", "b") for step in (1, 2)],
        {f"{name}/checkpoint-{step}": 1 for name in ("a", "b") for step in (1, 2)},
    ),
    "a pipeline of models": (["model_index.json", "unet/a.safetensors", "vae/b.safetensors"], {"": 3}),
    "model and optimizer": (["model.pt", "optimizer.pt", "scheduler.pt", "notes.txt"], {"": 4}),
    "a model of its own beside shards": (
        ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "vae.safetensors"],
        {"": 2, "vae.safetensors": 1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_folder_is_taken_apart(name: str) -> None:
    files, expected = LAYOUTS[name]
    assert {unit.name: len(unit.sizes) for unit in find_units(dict.fromkeys(files, 1))} == expected


def save(path: Path, step: int | None = None, **more: Any) -> Path:
    torch = pytest.importorskip("torch")
    path.parent.mkdir(parents=True, exist_ok=True)
    stated = {} if step is None else {"global_step": step}
    torch.save({"state_dict": {"w": torch.zeros(10, 10)}, **stated, **more}, path)
    return path


def age(path: Path, seconds: int) -> None:
    """Make a file or the files of a folder older."""
    for file in [path] if path.is_file() else path.rglob("*"):
        os.utime(file, (1_700_000_000 - seconds,) * 2)


def test_without_steps_the_time_of_modification_decides(tmp_path: Path) -> None:
    age(save(tmp_path / "best.pt"), 10)
    age(save(tmp_path / "other.pt"), 20)
    checkpoint = read_checkpoint(tmp_path)
    assert checkpoint.tag == "best.pt"
    assert checkpoint.notes == ("best.pt is the newest by its time of modification.",)


def test_the_others_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for step in (500, 1000):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        write_safetensors(folder / "model.safetensors", {"w": ("BF16", [step, 8])})
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    answer = run(capsys, "checkpoint", tmp_path)
    assert answer.code == 0
    assert "8,000 parameters" in answer.out
    assert "## Parts of" not in answer.out
    assert "checkpoint-1000 is the newest by its number." in answer.out
    data = run(capsys, "checkpoint", tmp_path, "--format", "json").data["results"]["checkpoint"]
    assert list(data["other_checkpoints"]) == ["checkpoint-500"]
    assert [(each["step"], each["complete"], each["newest"]) for each in data["checkpoints"]] == [
        (500, True, False),
        (1000, True, True),
    ]
    assert "4,000 parameters" in run(capsys, "checkpoint", tmp_path / "checkpoint-500").out


def make_series(folder: Path) -> None:
    for step in (100, 200):
        save(folder / f"step_{step}" / "model.pt")
        save(folder / f"step_{step}" / "optimizer.pt")


@pytest.mark.parametrize("damage", ["cut off", "empty", "zeros", "temporary"])
def test_a_newest_that_is_half_written_is_said_with_the_newest_complete_one(
    damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_series(tmp_path)
    assert run(capsys, "checkpoint", tmp_path).code == 0  # the clean twin
    newest = tmp_path / "step_200"
    model = newest / "model.pt"
    content = model.read_bytes()
    name = "step_200"
    match damage:
        case "cut off":
            model.write_bytes(content[: len(content) // 2])
        case "empty":
            model.write_bytes(b"")
        case "zeros":
            model.write_bytes(bytes(len(content)))
        case "temporary":
            name = "tmp-checkpoint-200"
            newest.rename(tmp_path / name)
    answer = run(capsys, "checkpoint", tmp_path)
    assert answer.code == 4
    assert f"{name} is the newest checkpoint and not complete" in answer.err
    assert "the newest complete one is step_100" in answer.err
    assert "## Parts of step_100" in answer.out
    assert "| step_100" in answer.out


def test_links_are_followed_once_and_broken_ones_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    make_series(folder)
    save(elsewhere / "model.pt")
    (folder / "latest").symlink_to("step_100")
    (folder / "step_300").symlink_to(elsewhere)
    (elsewhere / "around").symlink_to(elsewhere)
    checkpoint = read_checkpoint(folder)
    assert checkpoint.tag == "step_100"
    assert [each.name for each in checkpoint.checkpoints] == ["step_100", "step_200", "step_300"]
    assert checkpoint.notes == ("step_100 is the newest by a link.",)
    assert checkpoint.damage == ()
    (folder / "best.pt").symlink_to("nowhere.pt")
    answer = run(capsys, "checkpoint", folder)
    assert answer.code == 4
    assert "best.pt is a link to nowhere.pt, which does not exist" in answer.err
    linked = tmp_path / "linked"
    linked.symlink_to(folder / "step_200")
    assert len(read_checkpoint(linked).files) == 2


def test_nothing_is_said_to_be_nothing(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="holds no file"):
        read_checkpoint(tmp_path)
    (tmp_path / "readme.txt").write_text("x")
    with pytest.raises(SourceError, match="contains no checkpoint"):
        read_checkpoint(tmp_path)
