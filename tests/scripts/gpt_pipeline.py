"""Trains a small GPT cut into stages with torch.distributed.pipelining.

``torchrun --nproc-per-node 4 gpt_pipeline.py --schedule 1f1b --microbatches 8`` runs one rank a stage. Every stage has
as many blocks. The embedding is on the first stage, the logits and the loss on the last.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, schedules
from torch.nn import functional

from perfscope.workloads.gpt import Block, GptConfig

#: The schedule's class, and how many virtual stages a rank holds.
SCHEDULES = {
    "1f1b": ("Schedule1F1B", 1),
    "interleaved": ("ScheduleInterleaved1F1B", 2),
    "zbv": ("ScheduleZBVZeroBubble", 2),
}


class Part(nn.Module):
    """The blocks of one virtual stage, with the embedding in front on the first and the logits behind on the last."""

    def __init__(self, config: GptConfig, stage: int, stages: int) -> None:
        super().__init__()
        first, last = stage == 0, stage == stages - 1
        self.tokens = nn.Embedding(config.vocabulary, config.hidden) if first else None
        self.positions = nn.Embedding(config.seq_len, config.hidden) if first else None
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers // stages))
        self.norm = nn.LayerNorm(config.hidden) if last else None
        self.logits = nn.Linear(config.hidden, config.vocabulary, bias=False) if last else None

    def forward(self, states: Tensor) -> Tensor:
        """Map tokens or states of (batch, positions) or (batch, positions, hidden) to states or logits."""
        if self.tokens is not None and self.positions is not None:
            positions = torch.arange(states.shape[1], device=states.device)
            states = self.tokens(states) + self.positions(positions)
        for block in self.blocks:
            states = block(states)
        return states if self.norm is None or self.logits is None else self.logits(self.norm(states))


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean cross entropy of one micro-batch."""
    return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def train(arguments: argparse.Namespace) -> None:
    """Train the parts of the model that this rank holds."""
    name, chunks = SCHEDULES[arguments.schedule]
    rank, ranks = dist.get_rank(), dist.get_world_size()
    count = ranks * chunks
    config = GptConfig(
        arguments.layers, arguments.hidden, arguments.heads, arguments.vocabulary, seq_len=arguments.seq_len
    )
    indices = [rank, count - 1 - rank] if arguments.schedule == "zbv" else list(range(rank, count, ranks))
    parts = nn.ModuleList(Part(config, stage, count) for stage in indices)
    stages = [
        PipelineStage(part, stage, count, torch.device("cpu")) for part, stage in zip(parts, indices, strict=True)
    ]
    schedule_class = getattr(schedules, name)
    schedule = schedule_class(stages[0] if chunks == 1 else stages, arguments.microbatches, loss_fn=loss_of)
    optimizer = torch.optim.AdamW(parts.parameters(), lr=1e-4)
    for _ in range(arguments.steps):
        batch = torch.randint(
            arguments.vocabulary, (arguments.microbatches * arguments.micro_batch, arguments.seq_len + 1)
        )
        inputs = (batch[:, :-1].contiguous(),) if 0 in indices else ()
        targets = {"target": batch[:, 1:].contiguous()} if count - 1 in indices else {}
        schedule.step(*inputs, **targets)
        optimizer.step()
        optimizer.zero_grad()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedule", choices=sorted(SCHEDULES), default="1f1b")
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--layers", type=int, default=8)
    for name in ("hidden", "heads", "vocabulary", "seq_len"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(GptConfig(), name))
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    train(parser.parse_args())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
