"""A pipeline over torch.distributed.rpc: rank 0 sends splits of the batch through stages that other ranks own.

Outputs travel through the host's memory, gradients by distributed autograd, updates by DistributedOptimizer. The last
stage computes the loss, so that what travels back is one number a split.
"""

from __future__ import annotations

import threading
from pathlib import Path

import torch
import torch.distributed.autograd as dist_autograd
from torch import Tensor, nn
from torch.distributed import rpc
from torch.distributed.optim import DistributedOptimizer

from perfscope.workloads.strategies import SPLIT_SIZE
from perfscope.workloads.tasks.job import Job, StrategyTraining


class Stage(nn.Module):
    """One part of the model, on the device of the rank that owns it."""

    job: Job

    def __init__(self, number: int, stages: int) -> None:
        super().__init__()
        self.part = self.job.cut_layers(stages)[number].to(self.job.device)
        self.job.compile(self.part)
        self.lock = threading.Lock()  # a stage works on one split at a time

    def forward(self, before: rpc.RRef) -> Tensor:
        """Fetch a split from the stage before, and return its outputs in the host's memory."""
        states = before.to_here().to(self.job.device)
        with self.lock:
            outputs: Tensor = self.part(states)
        return outputs.cpu()

    def loss(self, before: rpc.RRef, targets: Tensor) -> Tensor:
        """The mean loss of a split, in the host's memory, whose last outputs this stage computes."""
        states = before.to_here().to(self.job.device)
        with self.lock:
            loss = self.job.loss(self.part(states), targets.to(self.job.device))
        return loss.cpu()

    def parameter_references(self) -> list[rpc.RRef]:
        """References to the stage's parameters, for the optimizer."""
        return [rpc.RRef(parameter) for parameter in self.part.parameters()]

    def save(self, path: str) -> None:
        """Write the stage's weights."""
        torch.save(self.part.state_dict(), path)


def wait_for_calls(*_: object) -> None:
    """What a rank does whose stage is called by rank 0."""


def build(job: Job) -> StrategyTraining:
    """Drive the pipeline on rank 0; the other ranks answer calls until it ends."""
    Stage.job = job
    rpc.init_rpc(
        f"rank{job.rank}",
        rank=job.rank,
        world_size=job.world_size,
        rpc_backend_options=rpc.TensorPipeRpcBackendOptions(num_worker_threads=32),
    )
    if job.rank > 0:
        return StrategyTraining(wait_for_calls, wait_for_calls, leave=rpc.shutdown, is_called=True)
    stages = [rpc.remote(f"rank{rank}", Stage, (rank, job.world_size)) for rank in range(job.world_size)]
    parameters = [reference for stage in stages for reference in stage.rpc_sync().parameter_references()]
    optimizer = DistributedOptimizer(torch.optim.AdamW, parameters, lr=job.lr)

    def step(inputs: Tensor, targets: Tensor) -> Tensor:
        with dist_autograd.context() as context:
            losses = []
            sizes = SPLIT_SIZE
            for split, answers in zip(inputs.cpu().split(sizes), targets.cpu().split(sizes), strict=True):
                states = rpc.RRef(split)
                for stage in stages[:-1]:
                    states = stage.remote().forward(states)
                losses.append(stages[-1].rpc_async().loss(states, answers))
            weights = torch.tensor([len(answers) / len(targets) for answers in targets.split(sizes)])
            loss = torch.stack(torch.futures.wait_all(losses)).dot(weights)
            dist_autograd.backward(context, [loss])
            optimizer.step(context)
        return loss

    def save(folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for number, stage in enumerate(stages):
            stage.rpc_sync().save(str(folder / f"stage-{number}.pt"))

    return StrategyTraining(step, save, leave=rpc.shutdown)
