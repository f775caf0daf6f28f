"""DeepSeek-V3: latent attention, experts and multi-token prediction, multiplied out by hand and counted by PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from perfscope.analyzers.tflops import per_token as conventions
from perfscope.models.parameter_counts import attention_weights
from perfscope.models.transformer import Latent, Transformer
from tests.analyzers.tflops.making import answer, by_name

SEQ_LEN = 96
LATENT = Latent(q_rank=24, kv_rank=16, nope_dim=12, rope_dim=4, value_dim=10)
MODEL = Transformer(
    name="latent",
    layers=1,
    hidden=64,
    heads=4,
    kv_heads=4,
    head_dim=16,
    ffn=96,
    mlp_matrices=3,
    vocabulary=128,
    padded_vocabulary=128,
    tied=False,
    latent=LATENT,
)


class LatentAttention(nn.Module):
    """Queries, keys and values through their ranks, and a rotary part of the key that all heads share."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        latent = model.latent
        assert latent is not None
        assert latent.q_rank is not None
        self.model = model
        self.sizes = [latent.nope_dim, latent.rope_dim, latent.value_dim]
        query_dim = model.heads * (latent.nope_dim + latent.rope_dim)
        self.query_down = nn.Linear(model.hidden, latent.q_rank, bias=False)
        self.query_up = nn.Linear(latent.q_rank, query_dim, bias=False)
        self.down = nn.Linear(model.hidden, latent.kv_rank, bias=False)
        self.rope = nn.Linear(model.hidden, latent.rope_dim, bias=False)
        self.up = nn.Linear(latent.kv_rank, model.heads * (latent.nope_dim + latent.value_dim), bias=False)
        self.out = nn.Linear(model.heads * latent.value_dim, model.hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, _ = x.shape
        nope, rope, value_dim = self.sizes
        heads = self.model.heads
        query = self.query_up(self.query_down(x)).view(batch, tokens, heads, nope + rope).transpose(1, 2)
        keys_and_values = self.up(self.down(x)).view(batch, tokens, heads, nope + value_dim).transpose(1, 2)
        shared = self.rope(x).unsqueeze(1).expand(batch, heads, tokens, rope)
        key = torch.cat((keys_and_values[..., :nope], shared), -1)
        mixed = (query @ key.transpose(-1, -2)).softmax(-1) @ keys_and_values[..., nope:]
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, -1))


def counted_per_token() -> float:
    """Operations of the attention alone, forward and backward, the gradient of its input included."""
    torch.manual_seed(0)
    x = torch.randn(2, SEQ_LEN, MODEL.hidden, requires_grad=True)
    counter: Any = FlopCounterMode(display=False)
    with counter:
        LatentAttention(MODEL)(x).sum().backward()
    return float(counter.get_total_flops()) / (2 * SEQ_LEN)


def formula_per_token(model: Transformer) -> int:
    return 6 * attention_weights(model) + conventions.scores_and_values(model, SEQ_LEN)


def test_latent_attention_is_what_pytorch_counts() -> None:
    assert formula_per_token(MODEL) == counted_per_token()


@pytest.mark.parametrize("part", ["q_rank", "kv_rank", "nope_dim", "rope_dim", "value_dim"])
def test_one_wrong_part_of_the_latent_breaks_the_agreement(part: str) -> None:
    wrong = MODEL._replace(latent=LATENT._replace(**{part: getattr(LATENT, part) + 2}))
    assert formula_per_token(wrong) != pytest.approx(counted_per_token(), rel=0.01)


@pytest.mark.parametrize("modules", [0, 1])
def test_deepseek_v3_by_hand(modules: int) -> None:
    """arXiv 2412.19437, section 4.2: 61 layers, 3 of them dense; 8 of 256 experts and a shared one of 2048 each."""
    hidden, heads, q_rank, kv_rank, nope, rope, value = 7168, 128, 1536, 512, 128, 64, 128
    seq_len, vocabulary = 4096, 129280
    query = q_rank * (hidden + heads * (nope + rope) + 1)
    key_and_value = kv_rank * (hidden + heads * (nope + value) + 1) + hidden * rope
    attention = query + key_and_value + heads * value * hidden
    dense, sparse = 3 * hidden * 18432, 3 * hidden * (8 + 1) * 2048
    layers = 61 + modules
    products = layers * attention + 3 * dense + (58 + modules) * sparse
    products += modules * (3 * hidden + 2 * hidden**2) + (1 + modules) * hidden * vocabulary
    causal = layers * seq_len * (heads * (nope + rope) + heads * value) / 2
    model = f"deepseek-v3,mtp_layers={modules}" if modules else "deepseek-v3"
    document = answer("tflops", "--model", model, "--seq-len", seq_len, "--gbs", 1, "--time", 1)
    assert by_name(document)["megatron_core"]["flops_per_token"] == 6 * (products + causal)
