"""Trains a GPT in plain torch, on random data: ``torchrun --nproc-per-node 2 gpt_torch.py --parallel ddp``."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from perfscope.workloads.gpt import Gpt, GptConfig

_BATCHES = 64


@dataclass
class Training:
    """A model with its optimizer and data.

    Attributes:
        model: What is called: the GPT, or its wrapper.
        optimizer: AdamW.
        batches: Tokens of (batches, micro-batch, positions + 1), on the host.
        device: Where it trains.
        steps: Completed steps.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    batches: Tensor
    device: torch.device
    steps: int = 0

    def step(self) -> None:
        """One training step."""
        self.optimizer.zero_grad()
        tokens = self.batches[self.steps % _BATCHES].to(self.device, non_blocking=True)
        self.model(tokens).backward()
        self.optimizer.step()
        self.steps += 1


def option_parser() -> argparse.ArgumentParser:
    """What reads the options of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=2048)
    parser.add_argument("--seq-len", type=int, default=128)
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--parallel", choices=["none", "ddp", "fsdp2"], default="none")
    parser.add_argument("--steps", type=int, default=20)
    return parser


def build(options: argparse.Namespace) -> Training:
    """Build the model on this process's device; the process group is made first where ranks train together."""
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if options.parallel != "none":
        dist.init_process_group()
    torch.manual_seed(1)
    config = GptConfig(options.layers, options.hidden, options.heads, options.vocabulary, options.seq_len)
    gpt = Gpt(config).to(device, torch.bfloat16)
    model: nn.Module = gpt
    if options.parallel == "ddp":
        model = DistributedDataParallel(gpt, device_ids=[device.index] if device.type == "cuda" else None)
    elif options.parallel == "fsdp2":
        for block in gpt.blocks:
            fully_shard(block)
        model = fully_shard(gpt)
    batches = torch.randint(0, options.vocabulary, (_BATCHES, options.micro_batch, options.seq_len + 1))
    if device.type == "cuda":
        batches = batches.pin_memory()
    return Training(model, torch.optim.AdamW(model.parameters(), lr=1e-4), batches, device)


def train() -> None:
    """Train as many steps as the command line says."""
    options = option_parser().parse_args()
    training = build(options)
    for _ in range(options.steps):
        training.step()
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    train()
