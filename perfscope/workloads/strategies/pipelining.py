"""torch.distributed.pipelining: a stage a rank, or several, by a schedule: GPipe, 1F1B, interleaved or zero-bubble."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, schedules

from perfscope.workloads.strategies import MICRO_BATCHES
from perfscope.workloads.tasks.job import Job, StrategyTraining

#: The schedule's class, and how many stages a rank holds.
SCHEDULES = {
    "gpipe": ("ScheduleGPipe", 1),
    "1f1b": ("Schedule1F1B", 1),
    "interleaved": ("ScheduleInterleaved1F1B", 2),
    "zero-bubble": ("ScheduleInterleavedZeroBubble", 2),
}


def build(job: Job, schedule: str) -> StrategyTraining:
    """Train this rank's stages; the first rank has the inputs, the last one the loss."""
    job.join_group()
    name, stages_per_rank = SCHEDULES[schedule]
    count = stages_per_rank * job.world_size
    numbers = range(job.rank, count, job.world_size)
    parts = job.cut_layers(count)
    model = nn.ModuleList(parts[number].to(job.device) for number in numbers)
    for part in model:
        job.compile(part)
    stages = [PipelineStage(part, number, count, job.device) for part, number in zip(model, numbers, strict=True)]
    pipeline = getattr(schedules, name)(stages[0] if stages_per_rank == 1 else stages, MICRO_BATCHES, loss_fn=job.loss)
    optimizer = job.optimizer(model.parameters())
    is_first, is_last = job.rank == 0, job.rank == job.world_size - 1

    def step(inputs: Tensor, targets: Tensor) -> Tensor | None:
        losses: list[Tensor] = []
        if is_last:
            pipeline.step(*((inputs,) if is_first else ()), target=targets, losses=losses)
        else:
            pipeline.step(*((inputs,) if is_first else ()))
        optimizer.step()
        optimizer.zero_grad()
        return torch.stack(losses).mean() if is_last else None

    return StrategyTraining(step, job.save_on_every_rank(model, optimizer))
