"""Pipelined model parallelism: manual model parallelism on splits of the batch, so that several devices work at once.

The devices overlap because a host starts kernels without waiting for them; backward pass and update are as before.
"""

from __future__ import annotations

import torch
from torch import Tensor

from perfscope.workloads.strategies import SPLIT_SIZE
from perfscope.workloads.strategies.model_parallel import PartsInTurn
from perfscope.workloads.tasks.job import Job, StrategyTraining


class PartsAtOnce(PartsInTurn):
    """Parts of a model, of which each works on another split of the batch."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.split_size = SPLIT_SIZE

    def forward(self, states: Tensor) -> Tensor:
        """Move every split on by a part, the one that came first ahead; then let a new one in."""
        waiting = list(states.split(self.split_size))
        places: list[Tensor | None] = [None] * len(self.parts)  # the split that a part is to work on next
        outputs: list[Tensor] = []
        while waiting or any(place is not None for place in places):
            if places[0] is None and waiting:
                places[0] = waiting.pop(0)
            for number in reversed(range(len(self.parts))):
                split = places[number]
                if split is not None:
                    split = self.parts[number](split.to(self.devices[number], non_blocking=True))
                    places[number] = None
                    if number + 1 < len(self.parts):
                        places[number + 1] = split
                    else:
                        outputs.append(split)
        return torch.cat(outputs)


def build(job: Job) -> StrategyTraining:
    """Train on all devices of the process; the loss is computed on the last one."""
    model = PartsAtOnce(job)
    job.compile(model)
    optimizer = job.optimizer(model.parameters())
    train = job.plain_step(model, optimizer)
    return StrategyTraining(
        lambda inputs, targets: train(inputs, targets.to(job.devices[-1])), job.save_on_first_rank(model, optimizer)
    )
