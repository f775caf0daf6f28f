"""DDP for 6 steps, under whatever launched it: the rank is in that launcher's own variables."""

import os

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel


def number(*names):
    return int(next(os.environ[name] for name in names if name in os.environ))


rank = number("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
size = number("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
distributed.init_process_group("gloo", rank=rank, world_size=size)
model = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
distributed.destroy_process_group()
