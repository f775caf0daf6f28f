"""``DistributedDataParallel``: a model on every rank; gradients are averaged while the backward pass goes on."""

from __future__ import annotations

from torch.nn.parallel import DistributedDataParallel

from perfscope.workloads.tasks.job import Job, StrategyTraining


def build(job: Job) -> StrategyTraining:
    """Train on this rank's share of the batch."""
    job.join_group()
    model = DistributedDataParallel(job.model())
    job.compile(model)
    optimizer = job.optimizer(model.parameters())
    share = (job.rank, job.world_size)
    return StrategyTraining(job.plain_step(model, optimizer), job.save_on_first_rank(model.module, optimizer), share)
