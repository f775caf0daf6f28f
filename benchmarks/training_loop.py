"""The training that the overhead is measured on: a GPT in plain torch, which knows nothing of perfscope."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader

from perfscope.workloads.gpt import Gpt, GptConfig


@dataclass(frozen=True)
class Size:
    """A model and its batch.

    Attributes:
        config: The model.
        batch: Sequences in a batch.
    """

    config: GptConfig
    batch: int


class Tokens:
    """Endless random tokens."""

    def __init__(self, config: GptConfig) -> None:
        self.config = config

    def __len__(self) -> int:
        return 10**9

    def __getitem__(self, _index: int) -> Any:  # noqa: ANN401 - a tensor
        return torch.randint(self.config.vocabulary, (self.config.seq_len,))


class Training:
    """The loop that is measured: ``loss.item()`` in every step, so that the device hides nothing of the host's work."""

    def __init__(self, size: Size) -> None:
        torch.manual_seed(0)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.model = Gpt(size.config).to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.load(size.batch)

    def load(self, batch: int) -> None:
        """Train on batches of another size from now on."""
        self.batches = iter(DataLoader(Tokens(self.model.config), batch_size=batch))

    def step(self) -> float:
        """Train one step; seconds of it."""
        began = time.perf_counter()
        tokens = next(self.batches).to(self.device)
        self.optimizer.zero_grad()
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
            loss = self.model(tokens)
        loss.backward()
        self.optimizer.step()
        loss.item()
        return time.perf_counter() - began
