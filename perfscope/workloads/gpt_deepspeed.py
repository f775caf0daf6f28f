"""Trains a small GPT with DeepSpeed, on GPUs or on CPUs: ``deepspeed --num_gpus 2 gpt_deepspeed.py``."""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import deepspeed
import torch
from torch.utils.data import DataLoader, Dataset

from perfscope.workloads.gpt import Gpt, GptConfig

_WARMUP = 3


class RandomTokens(Dataset[torch.Tensor]):
    """Sequences that are the same in every run."""

    def __init__(self, config: GptConfig, samples: int) -> None:
        self._config = config
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(index)
        return torch.randint(self._config.vocabulary, (self._config.seq_len,), generator=generator)


def deepspeed_config(arguments: argparse.Namespace) -> dict[str, Any]:
    """The configuration of the engine."""
    return {
        "train_micro_batch_size_per_gpu": arguments.micro_batch,
        "gradient_accumulation_steps": arguments.accumulation,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": arguments.zero_stage},
        "bf16": {"enabled": torch.cuda.is_available()},
        "steps_per_print": 10**9,
    }


def train(engine: Any, batches: DataLoader[torch.Tensor], arguments: argparse.Namespace) -> tuple[float, list[float]]:  # noqa: ANN401 - DeepSpeed has no types
    """Train on all batches, and save where that is asked for; the last loss, and the seconds of each step."""
    loss = torch.zeros(())
    seconds = []
    began = time.perf_counter()
    for number, tokens in enumerate(batches, 1):
        loss = engine(tokens.to(engine.device))
        engine.backward(loss)
        engine.step()
        if number % arguments.accumulation == 0:
            seconds.append(time.perf_counter() - began)
            if arguments.save and len(seconds) % arguments.save_every == 0:
                engine.save_checkpoint(arguments.save)
            began = time.perf_counter()
    return loss.item(), seconds


def main() -> None:
    """Train and print the last loss and the median step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--zero-stage", type=int, default=1)
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--accumulation", type=int, default=2)
    for name in ("layers", "hidden", "heads", "vocabulary"):
        parser.add_argument(f"--{name}", type=int, default=getattr(GptConfig(), name))
    parser.add_argument("--seq-len", type=int, default=GptConfig().seq_len)
    parser.add_argument("--save", help="a folder for checkpoints")
    parser.add_argument("--save-every", type=int, default=8, help="steps between checkpoints")
    parser.add_argument("--local_rank", type=int, default=-1)
    arguments = parser.parse_args()
    config = GptConfig(arguments.layers, arguments.hidden, arguments.heads, arguments.vocabulary, arguments.seq_len + 1)
    torch.manual_seed(0)
    engine, _, _, _ = deepspeed.initialize(
        model=(model := Gpt(config)), model_parameters=model.parameters(), config=deepspeed_config(arguments)
    )
    micro_batches = arguments.steps * arguments.accumulation
    samples = micro_batches * arguments.micro_batch
    batches = DataLoader(RandomTokens(config, samples), batch_size=arguments.micro_batch)
    loss, seconds = train(engine, batches, arguments)
    if engine.global_rank == 0:
        print(f"last loss {loss:.6f}")
        print(f"median step {1e3 * statistics.median(seconds[_WARMUP:] or seconds):.3f} ms", flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
