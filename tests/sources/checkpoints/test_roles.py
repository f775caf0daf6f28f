"""What counts as a parameter: neither the optimizer's counters, nor buffers, nor averaged copies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.sources.checkpoints.checkpoint_files import kinds, parts, sizes_of, write_safetensors

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture
def trained() -> tuple[Any, Any, int]:
    """A model with buffers, its optimizer with a step for each tensor, and its parameters."""
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    return model, optimizer, sum(parameter.numel() for parameter in model.parameters())


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


def test_buffers_that_deepspeed_names_are_no_parameters(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    state = {"module": {"w": torch.zeros(10), "mask": torch.zeros(5)}, "buffer_names": ["mask"]}
    torch.save(state, tmp_path / "mp_rank_00_model_states.pt")
    assert sizes_of(tmp_path).parameters == 10


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
