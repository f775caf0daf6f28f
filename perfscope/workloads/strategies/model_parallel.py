"""Manual model parallelism: one process, parts of the model on several devices.

One device works at a time, unless the batch is cut into splits. A host starts kernels without waiting for them. So a
device works on a split while the next one works on the split before it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from perfscope.workloads.tasks.job import Job, StrategyTraining


class PartsInTurn(nn.Module):
    """Parts of a model, each on a device of its own; ``split_size`` samples at once, None for the whole batch."""

    def __init__(self, job: Job, split_size: int | None) -> None:
        super().__init__()
        self.devices, self.split_size = job.devices, split_size
        parts = job.cut_layers(len(job.devices))
        self.parts = nn.ModuleList(part.to(device) for part, device in zip(parts, job.devices, strict=True))

    def forward(self, inputs: Tensor) -> Tensor:
        """Send each split from device to device."""
        outputs = [self._send(split) for split in inputs.split(self.split_size or len(inputs))]
        return torch.cat(outputs) if self.split_size else outputs[0]

    def _send(self, states: Tensor) -> Tensor:
        for part, device in zip(self.parts, self.devices, strict=True):
            states = part(states.to(device, non_blocking=True))
        return states


def build(job: Job, split_size: int | None = None) -> StrategyTraining:
    """Train on all devices of the process; the loss is computed on the last one."""
    model = PartsInTurn(job, split_size)
    job.compile(model)
    optimizer = job.optimizer(model.parameters())
    train = job.plain_step(model, optimizer)
    return StrategyTraining(
        lambda inputs, targets: train(inputs, targets.to(job.devices[-1])), job.save_on_first_rank(model, optimizer)
    )
