"""Which files of a folder are one checkpoint, and in which layout."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from perfscope.sources.checkpoints.checkpoint import read_checkpoint
from perfscope.tables.checkpoint import Layout
from tests.commands.report_cli import run
from tests.sources.checkpoints.checkpoint_files import FIXTURES, kinds, parts, sizes_of, write_safetensors


class TestLayouts:
    def test_the_tracker_chooses_and_the_others_are_listed(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        source = (FIXTURES / "deepspeed_zero1/global_step2/mp_rank_00_model_states.pt").read_bytes()
        for tag in ("global_step9", "global_step10", "global_step100"):
            (tmp_path / tag).mkdir()
            (tmp_path / tag / "mp_rank_00_model_states.pt").write_bytes(source)
        assert read_checkpoint(tmp_path).tag == "global_step100"  # by number, not by letters
        (tmp_path / "latest").write_text("global_step10\n")
        assert read_checkpoint(tmp_path).tag == "global_step10"
        others = [each.name for each in read_checkpoint(tmp_path).checkpoints if not each.shown]
        assert others == ["global_step9", "global_step100"]
        (tmp_path / "latest").write_text("global_step11")
        answer = run(capsys, "checkpoint", tmp_path)
        assert answer.code == 4
        assert "names global_step11 as the latest checkpoint, which is missing" in answer.err

    def test_the_universal_format_holds_12_bytes_a_parameter(self, tmp_path: Path) -> None:
        import torch

        for name, count in (("a.weight", 50), ("b.bias", 10)):
            folder = tmp_path / "global_step5_universal" / "zero" / name
            folder.mkdir(parents=True)
            for state in ("fp32", "exp_avg", "exp_avg_sq"):
                torch.save({"param": torch.zeros(count)}, folder / f"{state}.pt")
        sizes = sizes_of(tmp_path)
        assert sizes.checkpoint.layout is Layout.DEEPSPEED_UNIVERSAL
        assert sizes.parameters == 60
        assert parts(sizes)["optimizer"] == 12 * 60

    def test_experts_are_counted(self, tmp_path: Path) -> None:
        import torch

        torch.save({"module": {"w": torch.zeros(10).bfloat16()}}, tmp_path / "mp_rank_00_model_states.pt")
        for expert in range(4):
            name = f"layer_0_expert_{expert}_mp_rank_00_model_states.pt"
            torch.save({"w": torch.zeros(100).bfloat16()}, tmp_path / name)
        sizes = sizes_of(tmp_path)
        assert sizes.checkpoint.mixture_of_experts
        assert sizes.parameters == 410

    def test_safetensors_with_an_index(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        for shard in (1, 2):
            write_safetensors(tmp_path / f"model-0000{shard}-of-00002.safetensors", {f"w{shard}": ("BF16", [4, 8])})
        files = {f"w{shard}": f"model-0000{shard}-of-00002.safetensors" for shard in (1, 2)}
        index = tmp_path / "model.safetensors.index.json"
        index.write_text(json.dumps({"metadata": {"total_size": 128}, "weight_map": files}))
        sizes = sizes_of(tmp_path)
        assert sizes.checkpoint.layout is Layout.HUGGING_FACE
        assert sizes.parameters == 64
        assert parts(sizes)["weights"] == 128
        assert kinds(sizes) == {"weights_only"}
        index.write_text(json.dumps({"metadata": {"total_size": 130}, "weight_map": files}))
        assert read_checkpoint(tmp_path).damage == (f"{index.name} states 130 bytes of tensors, the headers 128",)
        (tmp_path / "model-00002-of-00002.safetensors").unlink()
        answer = run(capsys, "checkpoint", tmp_path)
        assert answer.code == 4
        assert "model-00002-of-00002.safetensors is missing" in answer.err


@pytest.mark.parametrize("name", ["deepspeed_zero1", "deepspeed_zero3", "deepspeed_pipeline"])
def test_each_file_of_a_rank_of_deepspeed_is_missed(tmp_path: Path, name: str) -> None:
    whole = FIXTURES / name
    assert not read_checkpoint(whole).damage
    files = [file.relative_to(whole) for file in whole.rglob("*rank_*_states.pt")]
    assert len(files) >= 3
    for number, file in enumerate(files):
        shutil.copytree(whole, tmp_path / str(number))
        (tmp_path / str(number) / file).unlink()
        (problem,) = read_checkpoint(tmp_path / str(number)).damage
        assert "missing" in problem


@pytest.fixture
def trained() -> tuple[Any, Any, int]:
    """A model with buffers, its optimizer with a step for each tensor, and its parameters."""
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    return model, optimizer, sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("key", ["optimizer_state_dict", "optimizers", "o"])
def test_steps_and_buffers_are_no_parameters_whatever_the_key_of_the_optimizer(
    key: str, tmp_path: Path, trained: tuple[Any, Any, int]
) -> None:
    import torch

    model, optimizer, parameters = trained
    state = [optimizer.state_dict()] if key == "optimizers" else optimizer.state_dict()
    torch.save({"net": model.state_dict(), key: state}, tmp_path / "a.pt")
    sizes = sizes_of(tmp_path)
    assert sizes.parameters == parameters
    assert parts(sizes)["optimizer"] == 8 * parameters
    assert parts(sizes)["buffers"] == 2 * 16 * 4
    assert sum(parts(sizes).values()) == sizes.checkpoint.bytes


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("place", ["key", "file", "safetensors"])
def test_an_averaged_copy_is_said_and_not_counted(place: str, tmp_path: Path, trained: tuple[Any, Any, int]) -> None:
    import torch

    model, _, parameters = trained
    average = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    if place == "key":
        torch.save({"model": model.state_dict(), "ema": average}, tmp_path / "checkpoint.pt")
    elif place == "file":
        torch.save(model.state_dict(), tmp_path / "model_step5.pt")
        torch.save(average, tmp_path / "ema_step5.pt")
    else:
        parameters = 32
        write_safetensors(tmp_path / "model.safetensors", {"w": ("F32", [4, 8]), "rotary.inv_freq": ("F32", [4])})
        write_safetensors(tmp_path / "model.ema.safetensors", {"w": ("F32", [4, 8])})
    sizes = sizes_of(tmp_path)
    assert sizes.parameters == parameters
    assert parts(sizes)["EMA copy"] == 4 * parameters
    assert "ema_copy" in kinds(sizes)
    (finding,) = [finding for finding in sizes.findings if finding.kind == "ema_copy"]
    assert f"{parameters:,} elements, not counted as parameters" in finding.text


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_buffers_that_deepspeed_names_are_no_parameters(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    state = {"module": {"w": torch.zeros(10), "mask": torch.zeros(5)}, "buffer_names": ["mask"]}
    torch.save(state, tmp_path / "mp_rank_00_model_states.pt")
    assert sizes_of(tmp_path).parameters == 10


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_quantised_weights_are_parameters_and_their_scales_are_not(tmp_path: Path) -> None:
    """The names and types that torchao's Int8Tensor has in a file of torch.save and in safetensors."""
    torch = pytest.importorskip("torch")
    quantised = {
        "qdata": torch.zeros(8, 16, dtype=torch.int8),
        "scale": torch.ones(8, 1),
        "zero_point": torch.zeros(8, 1, dtype=torch.int8),
    }
    torch.save({"0.weight": quantised, "0.bias": torch.zeros(8)}, tmp_path / "quantised.pt")
    (tmp_path / "other").mkdir()
    tensors = {"0._weight_qdata": ("I8", [8, 16]), "0._weight_scale": ("F32", [8, 1]), "0.bias": ("F32", [8])}
    write_safetensors(tmp_path / "other" / "model.safetensors", tensors)
    for path in (tmp_path / "quantised.pt", tmp_path / "other"):
        sizes = sizes_of(path)
        assert sizes.parameters == 8 * 16 + 8
        assert parts(sizes)["weights"] == 8 * 16 + 4 * 8


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_masks_and_position_tables_are_no_parameters(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    state = {
        "h.0.attn.bias": torch.ones(1, 1, 16, 16),
        "h.0.attn.c_attn.bias": torch.zeros(24),
        "pos_encoder.pe": torch.zeros(16, 1, 8),
        "conv.weight": torch.zeros(1, 1, 3, 3),
    }
    torch.save({"model": state}, tmp_path / "a.pt")
    assert sizes_of(tmp_path).parameters == 24 + 9
