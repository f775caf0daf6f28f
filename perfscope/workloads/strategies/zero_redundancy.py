"""``ZeroRedundancyOptimizer``: DDP whose optimizer states are split over the ranks (ZeRO stage 1)."""

from __future__ import annotations

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from perfscope.workloads.tasks.job import Job, StrategyTraining


def build(job: Job) -> StrategyTraining:
    """Train on this rank's share of the batch, and update this rank's share of the weights."""
    job.join_group()
    model = DistributedDataParallel(job.model())
    job.compile(model)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=job.lr)
    save = job.save_on_every_rank(model.module, optimizer.optim)  # to collect all states on a rank takes much longer
    return StrategyTraining(job.plain_step(model, optimizer), save, (job.rank, job.world_size))
