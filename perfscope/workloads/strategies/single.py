"""One device, one process: what every other strategy is compared with."""

from __future__ import annotations

from perfscope.workloads.tasks.job import Job, StrategyTraining


def build(job: Job) -> StrategyTraining:
    """Train the model on the process's device."""
    model = job.model()
    job.compile(model)
    optimizer = job.optimizer(model.parameters())
    return StrategyTraining(job.plain_step(model, optimizer), job.save_on_first_rank(model, optimizer))
