"""Trains a small GPT with DeepSpeed's PipelineEngine, one rank a stage, on GPUs (NCCL) or CPUs (gloo).

``deepspeed --num_gpus 4 gpt_deepspeed_pipeline.py --microbatches 8``: every stage with as many blocks, the embedding on
the first and the logits and loss on the last.
"""

from __future__ import annotations

import argparse
import statistics
import time

import deepspeed
import torch
from deepspeed.pipe import LayerSpec, PipelineModule
from torch import Tensor, nn
from torch.nn import functional

from perfscope.workloads.gpt import Block, GptConfig

_WARMUP = 3


class Embedding(nn.Module):
    """Maps tokens of (batch, positions) to states of (batch, positions, hidden)."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocabulary, config.hidden)
        self.positions = nn.Embedding(config.seq_len, config.hidden)

    def forward(self, tokens: Tensor) -> Tensor:
        """Embed tokens and their positions."""
        states: Tensor = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        return states


class Logits(nn.Sequential):
    """Maps states of (batch, positions, hidden) to logits of (batch, positions, vocabulary)."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__(nn.LayerNorm(config.hidden), nn.Linear(config.hidden, config.vocabulary, bias=False))


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean cross entropy of one micro-batch."""
    return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def main() -> None:
    """Train and print the median step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--layers", type=int, default=8)
    for name in ("hidden", "heads", "vocabulary", "seq_len"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(GptConfig(), name))
    parser.add_argument("--local_rank", type=int, default=-1)
    arguments = parser.parse_args()
    has_gpus = torch.cuda.is_available()
    if has_gpus:
        torch.cuda.set_device(arguments.local_rank)
    deepspeed.init_distributed(dist_backend="nccl" if has_gpus else "gloo")
    torch.manual_seed(0)
    config = GptConfig(
        arguments.layers, arguments.hidden, arguments.heads, arguments.vocabulary, seq_len=arguments.seq_len
    )
    stages = torch.distributed.get_world_size()
    blocks = (LayerSpec(Block, config) for _ in range(config.layers))
    module = PipelineModule(
        layers=[LayerSpec(Embedding, config), *blocks, LayerSpec(Logits, config)],  # of which a rank makes its own
        num_stages=stages,
        loss_fn=loss_of,
        partition_method="type:Block",
    )
    engine, *_ = deepspeed.initialize(
        model=module,
        model_parameters=list(module.parameters()),
        config={
            "train_micro_batch_size_per_gpu": arguments.micro_batch,
            "gradient_accumulation_steps": arguments.microbatches,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}},
            "bf16": {"enabled": has_gpus},
            "steps_per_print": 10**9,
        },
    )
    generator = torch.Generator().manual_seed(0)
    shape = (arguments.micro_batch, config.seq_len + 1)
    seconds = []
    for _ in range(arguments.steps):
        batches = [torch.randint(config.vocabulary, shape, generator=generator) for _ in range(arguments.microbatches)]
        began = time.perf_counter()
        engine.train_batch(data_iter=iter([(tokens[:, :-1], tokens[:, 1:]) for tokens in batches]))
        if has_gpus:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    if engine.global_rank == 0:
        print(f"median step {1e3 * statistics.median(seconds[_WARMUP:]):.3f} ms", flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
