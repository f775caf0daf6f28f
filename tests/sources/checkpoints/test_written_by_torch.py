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

    def test_tied_weights_count_once(self, tmp_path: Path) -> None:
        import torch

        shared = torch.zeros(100)
        torch.save({"module": {"embedding": shared, "head": shared}}, tmp_path / "mp_rank_00_model_states.pt")
        assert sizes_of(tmp_path).parameters == 100

    @pytest.mark.filterwarnings("ignore")
    def test_a_distributed_checkpoint(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import get_state_dict

        weights, states = get_state_dict(*trained())
        dcp.save({"model": weights, "optimizer": states}, checkpoint_id=tmp_path / "step-20")
        sizes = sizes_of(tmp_path)
        assert sizes.checkpoint.layout is Layout.TORCH_DCP
        assert sizes.parameters == 24
        roles = {one.role: one.elements for file in sizes.checkpoint.files for one in file.contents or ()}
        assert roles[Role.WEIGHTS] == 24
        assert roles[Role.MOMENTS] == 48
        shard = next((tmp_path / "step-20").glob("*.distcp"))
        shard.write_bytes(shard.read_bytes()[:-100])
        answer = run(capsys, "checkpoint", tmp_path)
        assert answer.code == 4
        assert "is cut off" in answer.err
        (tmp_path / "step-20" / ".metadata").unlink()
        assert ".metadata is missing" in run(capsys, "checkpoint", tmp_path).err
