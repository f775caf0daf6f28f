"""Files of torch.save and torch.distributed.checkpoint, compared with what torch itself reads from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfscope.sources.checkpoints.torch_files import read_torch_file
from perfscope.tables.checkpoint import Layout, Role
from tests.commands.report_cli import run
from tests.sources.checkpoints.checkpoint_files import kinds, parts, sizes_of


def trained(count: int = 7) -> tuple[Any, Any]:
    """A tiny model and its AdamW after a step."""
    import torch

    model = torch.nn.Linear(count, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, count)).sum().backward()
    optimizer.step()
    return model, optimizer


class TestWrittenByTorch:
    """Files of torch.save and torch.distributed.checkpoint, against what torch itself reads from them."""

    @pytest.mark.parametrize("zipped", [True, False])
    def test_a_plain_file(self, tmp_path: Path, zipped: bool) -> None:
        import torch

        model, optimizer = trained()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "bf16": torch.ones(5).bfloat16()}
        torch.save(state, tmp_path / "step.pt", _use_new_zipfile_serialization=zipped)
        sizes = sizes_of(tmp_path / "step.pt")
        assert parts(sizes)["weights"] == 4 * 24 + 2 * 5
        assert parts(sizes)["optimizer"] == 2 * 4 * 24
        tensors = {tuple(t.path): t for t in read_torch_file(tmp_path / "step.pt").tensors}
        assert tensors["model", "weight"].shape == tuple(torch.load(tmp_path / "step.pt")["model"]["weight"].shape)

    def test_what_lightning_keeps_of_its_callbacks_is_no_weight(self, tmp_path: Path) -> None:
        import torch

        model, optimizer = trained()
        callback = "ModelCheckpoint{'monitor': None, 'mode': 'min', 'every_n_epochs': 1}"
        state = {
            "state_dict": model.state_dict(),
            "callbacks": {callback: {"kth_value": torch.tensor(float("inf")), "best_k_models": {}}},
            "optimizer_states": [optimizer.state_dict()],
            "lr_schedulers": [{"base_lrs": torch.ones(2)}],
        }
        torch.save(state, tmp_path / "epoch=0-step=4.ckpt")
        sizes = sizes_of(tmp_path / "epoch=0-step=4.ckpt")
        assert (sizes.parameters, parts(sizes)["weights"], parts(sizes)["optimizer"]) == (24, 96, 192)

    def test_three_moments_of_amsgrad_are_not_too_many(self, tmp_path: Path) -> None:
        import torch

        model = torch.nn.Linear(7, 3)
        optimizer = torch.optim.AdamW(model.parameters(), amsgrad=True)
        model(torch.ones(2, 7)).sum().backward()
        optimizer.step()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "step.pt")
        sizes = sizes_of(tmp_path / "step.pt")
        assert parts(sizes)["optimizer"] == 3 * 4 * 24
        assert kinds(sizes) == set()

    def test_a_view_that_drags_its_storage_along(self, tmp_path: Path) -> None:
        import torch

        whole = torch.zeros(10, 1000)
        for layer in range(10):
            torch.save({"weight": whole[layer]}, tmp_path / f"layer_{layer:02d}-model_00-model_states.pt")
        sizes = sizes_of(tmp_path)
        assert sizes.parameters == 10 * 1000
        assert {file.unused_bytes for file in sizes.checkpoint.files} == {4 * 9000}
        assert "unused_storage" in kinds(sizes)
        for layer in range(10):
            torch.save({"weight": whole[layer].clone()}, tmp_path / f"layer_{layer:02d}-model_00-model_states.pt")
        assert "unused_storage" not in kinds(sizes_of(tmp_path))

    @pytest.mark.filterwarnings("ignore")
    @pytest.mark.parametrize("is_tied", [True, False])
    def test_tied_weights_of_a_distributed_checkpoint_count_once(self, tmp_path: Path, is_tied: bool) -> None:
        import torch
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import get_state_dict

        model = torch.nn.ModuleDict({"emb": torch.nn.Embedding(50, 8), "head": torch.nn.Linear(8, 50, bias=False)})
        if is_tied:
            model["head"].weight = model["emb"].weight
        optimizer = torch.optim.AdamW(model.parameters())
        model["head"](model["emb"](torch.arange(4))).sum().backward()
        optimizer.step()
        weights, states = get_state_dict(model, optimizer)
        dcp.save({"model": weights, "optimizer": states}, checkpoint_id=tmp_path / "step-20")
        sizes = sizes_of(tmp_path)
        assert sizes.parameters == (400 if is_tied else 800)
        assert parts(sizes)["weights"] == 4 * sizes.parameters
        assert parts(sizes)["optimizer"] == 8 * sizes.parameters
        assert not sizes.findings
        assert ("model.head.weight is a tied weight" in sizes.parameters_from) == is_tied

    @pytest.mark.filterwarnings("ignore")
    def test_a_distributed_checkpoint(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import get_state_dict

        weights, states = get_state_dict(*trained())
        dcp.save({"model": weights, "optimizer": states}, checkpoint_id=tmp_path / "step-20")
        sizes = sizes_of(tmp_path)
        assert sizes.checkpoint.layout is Layout.TORCH_DCP
        assert sizes.parameters == 24
        roles = {one.role: one.elements for file in sizes.checkpoint.files for one in file.holds or ()}
        assert roles[Role.WEIGHTS] == 24
        assert roles[Role.MOMENTS] == 48
        shard = next((tmp_path / "step-20").glob("*.distcp"))
        shard.write_bytes(shard.read_bytes()[:-100])
        answer = run(capsys, "checkpoint", tmp_path)
        assert answer.code == 4
        assert "is cut off" in answer.err
        (tmp_path / "step-20" / ".metadata").unlink()
        assert ".metadata is missing" in run(capsys, "checkpoint", tmp_path).err
