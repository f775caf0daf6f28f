"""``nn.DataParallel``: one process splits each batch over several devices, and copies the model to them every step."""

from __future__ import annotations

from torch import nn

from perfscope.workloads.tasks.job import Job, StrategyTraining


def build(job: Job) -> StrategyTraining:
    """Train on all devices of the process; on CPUs, which count as no device, torch calls the model itself."""
    device_ids = [device.index for device in job.devices] if job.device.type == "cuda" else None
    model = nn.DataParallel(job.model(), device_ids)
    job.compile(model)
    optimizer = job.optimizer(model.parameters())
    return StrategyTraining(job.plain_step(model, optimizer), job.save_on_first_rank(model.module, optimizer))
