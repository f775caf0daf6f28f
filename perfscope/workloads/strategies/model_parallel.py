"""Manual model parallelism: one process, parts of the model on several devices, one of which works at a time."""

from __future__ import annotations

from torch import Tensor, nn

from perfscope.workloads.tasks.job import Job, StrategyTraining


class PartsInTurn(nn.Module):
    """Parts of a model, each on a device of its own."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.devices = job.devices
        parts = job.cut_layers(len(job.devices))
        self.parts = nn.ModuleList(part.to(device) for part, device in zip(parts, job.devices, strict=True))

    def forward(self, states: Tensor) -> Tensor:
        """Send the whole batch from device to device."""
        for part, device in zip(self.parts, self.devices, strict=True):
            states = part(states.to(device))
        return states


def build(job: Job) -> StrategyTraining:
    """Train on all devices of the process; the loss is computed on the last one."""
    model = PartsInTurn(job)
    job.compile(model)
    optimizer = job.optimizer(model.parameters())
    train = job.plain_step(model, optimizer)
    return StrategyTraining(
        lambda inputs, targets: train(inputs, targets.to(job.devices[-1])), job.save_on_first_rank(model, optimizer)
    )
