"""A GPT of any size, in plain torch: the model that the workloads train."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

INITIAL_STD = 0.02  # GPT-2's: the first loss is then the logarithm of the vocabulary


@dataclass(frozen=True, slots=True)
class GptConfig:
    """The dimensions of a GPT."""

    layers: int = 2
    hidden: int = 128
    heads: int = 4
    vocabulary: int = 1024
    seq_len: int = 128


class Block(nn.Module):
    """Attention and MLP, each behind a layer norm and beside a skip connection."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.heads, self.head_size = config.heads, config.hidden // config.heads
        self.attention_norm = nn.LayerNorm(config.hidden)
        self.qkv = nn.Linear(config.hidden, 3 * config.hidden)
        self.projection = nn.Linear(config.hidden, config.hidden)
        self.mlp_norm = nn.LayerNorm(config.hidden)
        self.mlp = nn.Sequential(
            nn.Linear(config.hidden, 4 * config.hidden), nn.GELU(), nn.Linear(4 * config.hidden, config.hidden)
        )

    def forward(self, states: Tensor) -> Tensor:
        """Map states of (batch, positions, hidden) to the same shape; its products may hold a share of the heads."""
        batch, positions, _ = states.shape
        qkv = self.qkv(self.attention_norm(states)).view(batch, positions, -1, 3, self.head_size)
        query, key, value = qkv.permute(3, 0, 2, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        states = states + self.projection(attended.transpose(1, 2).reshape(batch, positions, -1))
        return states + self.mlp(self.mlp_norm(states))


class Gpt(nn.Module):
    """A decoder with learned positions and tied embeddings; its forward returns the loss."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocabulary, config.hidden)
        self.positions = nn.Embedding(config.seq_len, config.hidden)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.hidden)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=INITIAL_STD)

    def forward(self, tokens: Tensor) -> Tensor:
        """The mean cross entropy of predicting each token of (batch, positions) from those before it."""
        positions = torch.arange(tokens.shape[1] - 1, device=tokens.device)
        states = self.tokens(tokens[:, :-1]) + self.positions(positions)
        for block in self.blocks:
            states = block(states)
        logits = functional.linear(self.norm(states), self.tokens.weight)
        return functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
