"""DDP, under whatever launched it: 10 steps of 2 accumulated micro-batches of 4 x 16 tokens a rank."""

import contextlib
import os

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

STEPS, ACCUMULATION = 10, 2


def number(*names):
    """The place of this rank, in its launcher's own variables."""
    return int(next(os.environ[name] for name in names if name in os.environ))


rank = number("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
size = number("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
distributed.init_process_group("gloo", rank=rank, world_size=size)
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Embedding(64, 16), nn.Linear(16, 64)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for _ in range(STEPS):
    optimizer.zero_grad()
    for micro_batch in range(ACCUMULATION):
        tokens = torch.randint(64, (4, 16))
        with model.no_sync() if micro_batch < ACCUMULATION - 1 else contextlib.nullcontext():
            loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
            loss.backward()
    optimizer.step()
if rank == 0:
    print(f"loss {loss.item():.17g}")
distributed.destroy_process_group()
