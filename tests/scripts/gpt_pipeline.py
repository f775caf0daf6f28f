"""Trains a small GPT cut into stages with torch.distributed.pipelining, on GPUs (NCCL) or CPUs (gloo).

``torchrun --nproc-per-node 4 gpt_pipeline.py --schedule 1f1b --microbatches 8`` runs one rank a stage. Every stage has
as many blocks. The embedding is on the first stage, the logits and the loss on the last.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from typing import Any

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
_WARMUP = 3


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


def build(arguments: argparse.Namespace, device: torch.device) -> tuple[Any, nn.ModuleList, bool, bool]:
    """The schedule of this rank, its parts of the model, and whether they hold the first and the last one."""
    name, chunks = SCHEDULES[arguments.schedule]
    rank, ranks = dist.get_rank(), dist.get_world_size()
    count = ranks * chunks
    config = GptConfig(
        arguments.layers, arguments.hidden, arguments.heads, arguments.vocabulary, seq_len=arguments.seq_len
    )
    stage_indices = [rank, count - 1 - rank] if arguments.schedule == "zbv" else list(range(rank, count, ranks))
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    with device:  # which draws the initial weights of large stages sooner than the host
        parts = nn.ModuleList(Part(config, stage, count) for stage in stage_indices).to(dtype)
    stages = [PipelineStage(part, stage, count, device) for part, stage in zip(parts, stage_indices, strict=True)]
    schedule_class = getattr(schedules, name)
    schedule = schedule_class(stages[0] if chunks == 1 else stages, arguments.microbatches, loss_fn=loss_of)
    return schedule, parts, 0 in stage_indices, count - 1 in stage_indices


def train(arguments: argparse.Namespace, device: torch.device) -> list[float]:
    """Train and return the seconds of each step."""
    schedule, parts, is_first, is_last = build(arguments, device)
    optimizer = torch.optim.AdamW(parts.parameters(), lr=1e-4)
    generator = torch.Generator().manual_seed(0)
    shape = (arguments.microbatches * arguments.micro_batch, arguments.seq_len + 1)
    seconds = []
    for _ in range(arguments.steps):
        began = time.perf_counter()
        batch = torch.randint(arguments.vocabulary, shape, generator=generator).to(device)
        inputs = (batch[:, :-1].contiguous(),) if is_first else ()
        targets = {"target": batch[:, 1:].contiguous()} if is_last else {}
        schedule.step(*inputs, **targets)
        optimizer.step()
        optimizer.zero_grad()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return seconds


def main() -> None:
    """Train and print the median step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedule", choices=sorted(SCHEDULES), default="1f1b")
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--layers", type=int, default=8)
    for name in ("hidden", "heads", "vocabulary", "seq_len"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(GptConfig(), name))
    arguments = parser.parse_args()
    torch.manual_seed(0)
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")
    seconds = train(arguments, device)
    if dist.get_rank() == 0:
        print(f"median step {1e3 * statistics.median(seconds[_WARMUP:]):.3f} ms", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
