"""A decoder in PyTorch, small and plain, to count the operations of; attention is written out as two products."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop
from torch.utils.flop_counter import FlopCounterMode

from perfscope.models.transformer import GATED_MATRICES, PLAIN_MATRICES, Experts, Transformer


@dataclass(frozen=True)
class Shape:
    """What the network is built from; ``experts`` of 0 means a dense MLP."""

    layers: int = 2
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 4
    head_dim: int = 16
    ffn: int = 256
    gated: bool = False
    vocabulary: int = 256
    tied: bool = True
    experts: int = 0
    top_k: int = 0
    shared_ffn: int = 0

    def described(self) -> Transformer:
        """The same shape as perfscope describes it."""
        return Transformer(
            name="network",
            layers=self.layers,
            hidden=self.hidden,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            ffn=self.ffn,
            mlp_matrices=GATED_MATRICES if self.gated else PLAIN_MATRICES,
            vocabulary=self.vocabulary,
            padded_vocabulary=self.vocabulary,
            tied=self.tied,
            experts=Experts(self.experts, self.top_k, self.ffn, self.shared_ffn, self.layers) if self.experts else None,
        )


class Mlp(nn.Module):
    """An MLP, with a gate or without."""

    def __init__(self, hidden: int, ffn: int, gated: bool) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden, ffn, bias=False) if gated else None
        self.up = nn.Linear(hidden, ffn, bias=False)
        self.down = nn.Linear(ffn, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.up(x)
        inner = inner * torch.nn.functional.silu(self.gate(x)) if self.gate else torch.relu(inner)
        return self.down(inner)


class Mixture(nn.Module):
    """Every token visits exactly top-k experts, each as a product over its own tokens."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.top_k = shape.top_k
        self.router = nn.Linear(shape.hidden, shape.experts, bias=False)
        self.experts = nn.ModuleList(Mlp(shape.hidden, shape.ffn, shape.gated) for _ in range(shape.experts))
        self.shared = Mlp(shape.hidden, shape.shared_ffn, shape.gated) if shape.shared_ffn else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.flatten(0, 1)
        weights, chosen = self.router(tokens).softmax(-1).topk(self.top_k)
        out = self.shared(tokens) if self.shared else torch.zeros_like(tokens)
        for index, expert in enumerate(self.experts):
            rows, place = torch.where(chosen == index)
            if len(rows):
                out = out.index_add(0, rows, expert(tokens[rows]) * weights[rows, place, None])
        return out.view_as(x)


class Attention(nn.Module):
    """Grouped-query attention with its two products written out."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.query = nn.Linear(shape.hidden, shape.heads * shape.head_dim, bias=False)
        self.key = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.value = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.out = nn.Linear(shape.heads * shape.head_dim, shape.hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, _ = x.shape
        shape = self.shape
        query = self.query(x).view(batch, tokens, shape.heads, shape.head_dim).transpose(1, 2)
        key = self.key(x).view(batch, tokens, shape.kv_heads, shape.head_dim).transpose(1, 2)
        value = self.value(x).view(batch, tokens, shape.kv_heads, shape.head_dim).transpose(1, 2)
        repeats = shape.heads // shape.kv_heads
        scores = query @ key.repeat_interleave(repeats, 1).transpose(-1, -2)
        mask = torch.ones(tokens, tokens, dtype=torch.bool).tril()
        mixed = scores.masked_fill(~mask, -1e9).softmax(-1) @ value.repeat_interleave(repeats, 1)
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, -1))


class Decoder(nn.Module):
    """Embedding, layers, output layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, shape.hidden)
        self.attentions = nn.ModuleList(Attention(shape) for _ in range(shape.layers))
        self.mlps = nn.ModuleList(
            Mixture(shape) if shape.experts else Mlp(shape.hidden, shape.ffn, shape.gated) for _ in range(shape.layers)
        )
        self.head = nn.Linear(shape.hidden, shape.vocabulary, bias=False)
        if shape.tied:
            self.head.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor, recompute: bool = False) -> torch.Tensor:
        x = self.embedding(ids)
        for attention, mlp in zip(self.attentions, self.mlps, strict=True):
            layer = partial(_layer, attention, mlp)
            x = checkpoint(layer, x, use_reentrant=False) if recompute else layer(x)
        return self.head(x)


def _layer(attention: nn.Module, mlp: nn.Module, x: torch.Tensor) -> torch.Tensor:
    x = x + attention(torch.nn.functional.layer_norm(x, x.shape[-1:]))
    return x + mlp(torch.nn.functional.layer_norm(x, x.shape[-1:]))


def counted_flops_per_token(shape: Shape, seq_len: int, recompute: bool = False) -> float:
    """What PyTorch's own counter sees in one forward and backward pass, per token."""
    torch.manual_seed(0)
    network = Decoder(shape)
    ids = torch.randint(shape.vocabulary, (2, seq_len))
    # PyTorch stops recomputing a layer as soon as the backward pass has all it wants; here the whole layer is repeated.
    counter: Any = FlopCounterMode(display=False)
    with counter, set_checkpoint_early_stop(False):
        network(ids, recompute).logsumexp(-1).sum().backward()
    return float(counter.get_total_flops()) / int(ids.numel())


def parameters(shape: Shape) -> int:
    """Parameters of the network, each once."""
    return sum(parameter.numel() for parameter in Decoder(shape).parameters())
