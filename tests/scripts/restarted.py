"""Eight steps of DDP; the first process of the rank fails after the fifth, and torchrun starts it again."""

import os

import torch
from torch import distributed

distributed.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for step in range(1, 9):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    if step == 5 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        raise RuntimeError("as the test asks")
print("done")
distributed.destroy_process_group()
