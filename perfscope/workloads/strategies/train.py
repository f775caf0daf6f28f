"""Trains a model by a strategy: ``torchrun --nproc-per-node 2 train.py --strategy ddp --model gpt:2x128x64``.

Every rank writes what it saw into ``--result``: the losses, correct answers, and its peak of memory.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from perfscope.workloads.strategies import STRATEGIES
from perfscope.workloads.tasks.job import Job, StrategyTraining, find_job, set_rank_variables
from perfscope.workloads.tasks.task import TrainingTask, make_task

#: Pixels of a side of a synthetic image.
IMAGE_SIZE = {"cpu": 16, "cuda": 28}


def parse_options(words: Sequence[str]) -> argparse.Namespace:
    """The options of the script."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strategy", choices=STRATEGIES, default="single")
    parser.add_argument("--model", default="gpt:2x128x64", help="resnet50, gpt2-small, gpt:LxHxS or FILE.py:FUNCTION")
    parser.add_argument("--data", type=Path, help="images or tokens; else they are made")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--devices", type=int, default=1, help="devices of this process")
    parser.add_argument("--batch", type=int, default=64, help="samples of all ranks")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--result", type=Path)
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--describe", action="store_true")
    parser.add_argument("--local_rank", type=int, default=-1)
    return parser.parse_args(words)


def make_batches(task: TrainingTask, options: argparse.Namespace) -> list[tuple[Tensor, Tensor]]:
    """The batches of all steps, the same on every rank."""
    torch.manual_seed(0)  # a file's own batch may draw from torch's generator
    return [task.batch(step, options.batch) for step in range(options.steps)]


def train(job: Job, training: StrategyTraining, batches: Sequence[tuple[Tensor, Tensor]]) -> list[float | None]:
    """Train, and return the loss of each step; None where this rank does not know it."""
    number, shares = training.share
    size = job.options.batch // shares
    losses = []
    for inputs, targets in batches:
        shared = slice(number * size, (number + 1) * size)
        loss = training.step(inputs[shared].to(job.device), targets[shared].to(job.device))
        losses.append(None if loss is None else float(loss.detach()))
    return losses


def save(job: Job, training: StrategyTraining) -> int | None:
    """Save a checkpoint, and return how long that took, in ns; None where none was asked for."""
    if job.options.checkpoint is None:
        return None
    began = time.perf_counter_ns()
    training.save(job.options.checkpoint)
    if dist.is_initialized():
        dist.barrier()
    return time.perf_counter_ns() - began


def describe(task: TrainingTask, options: argparse.Namespace) -> dict[str, object]:
    """What is known of a model before it is trained."""
    with torch.device("meta"):
        layers = task.layers()
    return {
        "gpus": torch.cuda.device_count() if options.device == "cuda" else 0,
        "layers": len(layers),
        "tokens": task.tokens,
        "has_splits": bool(task.splits),
        "is_classified": task.is_classified,
        "flops_per_sample": count_flops(task),
    }


def count_flops(task: TrainingTask) -> int | None:
    """Operations of the products, forward and backward, a sample; counted on two: batch norms want more than one."""
    samples = 2
    inputs, targets = (part.to("meta") for part in task.batch(0, samples))
    with torch.device("meta"):
        model = nn.Sequential(*task.layers())
    counter = FlopCounterMode(display=False)
    try:
        with counter:
            loss: Tensor = task.loss(model(inputs), targets)
            loss.backward()
    except (RuntimeError, NotImplementedError):  # an operation that cannot be counted without values
        return None
    return int(counter.get_total_flops()) // samples


def measure_memory(job: Job) -> list[dict[str, object]]:
    """The peak of tensors on each device of this process, or of the process on CPUs, in bytes."""
    if job.device.type == "cpu":
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return [{"device": "cpu", "bytes": peak}]
    return [{"device": str(device), "bytes": torch.cuda.max_memory_allocated(device)} for device in job.devices]


def main() -> None:
    """Train, and write the result of this rank."""
    options = parse_options(sys.argv[1:])
    task = make_task(options.model, options.data, IMAGE_SIZE[options.device])
    if options.describe:
        print(json.dumps(describe(task, options)))
        return
    strategy = STRATEGIES[options.strategy]
    build = import_module(f"perfscope.workloads.strategies.{strategy.module}").build
    batches = make_batches(task, options)
    set_rank_variables()
    job = find_job(task, options)
    training = build(job, **strategy.options)
    losses = train(job, training, batches)
    memory, save_ns = measure_memory(job), save(job, training)
    if job.rank == 0:
        print(f"loss {losses[0]} to {losses[-1]}")
    training.leave()
    result = {
        "rank": job.rank,
        "world_size": job.world_size,
        "share": list(training.share),
        "losses": losses,
        "hits": [int(hits) for hits, _ in job.hits],
        "answers": [answers for _, answers in job.hits],
        "memory": measure_memory(job) if training.is_called else memory,
        "save_ns": save_ns,
    }
    if dist.is_initialized():
        dist.destroy_process_group()
    if options.result is not None:
        options.result.mkdir(parents=True, exist_ok=True)
        (options.result / f"rank-{job.rank:05}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
