"""Plain DDP: 10 steps of 2 accumulated micro-batches of 4 x 16 tokens a rank."""

import contextlib

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

STEPS, ACCUMULATION = 10, 2

distributed.init_process_group("gloo")
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
if distributed.get_rank() == 0:
    print(f"loss {loss.item():.17g}")
distributed.destroy_process_group()
