"""One process, several devices' worth of modules: nn.DataParallel, or stages that a loop feeds one after the other."""

import sys

import torch
from torch import nn

STEPS, MICRO_BATCHES = 6, 4


class Stages(nn.Module):
    """Stages in one process; what would be a copy to the next device is one to the same."""

    def __init__(self):
        super().__init__()
        self.stages = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, batch):
        waiting, done = None, []
        for part in [*batch.chunk(MICRO_BATCHES), None]:  # the second stage runs one micro-batch behind the first
            if waiting is not None:
                done.append(self.stages[1](waiting))
            waiting = None if part is None else self.stages[0](part).to("cpu")
        return torch.cat(done)


model = Stages() if sys.argv[1] == "stages" else nn.DataParallel(nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(STEPS):
    optimizer.zero_grad()
    model(torch.randn(8, 8)).square().mean().backward()
    optimizer.step()
