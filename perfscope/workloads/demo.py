"""A small training on several ranks (DDP). It reports its loss in every fifth step, to a server that is slow."""

import time

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel


def report(loss: float) -> None:
    """Send the loss to the server, and wait for its answer."""
    print(f"loss {loss:.4f}")
    time.sleep(0.2)


torch.manual_seed(0)
torch.set_num_threads(1)
distributed.init_process_group("gloo")
model = DistributedDataParallel(nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)))
optimizer = torch.optim.AdamW(model.parameters())

for step in range(1, 81):
    inputs = torch.randn(128, 256)
    optimizer.zero_grad()
    loss = (model(inputs) - inputs).square().mean()
    loss.backward()
    optimizer.step()
    if step % 5 == 0:
        report(loss.item())
distributed.destroy_process_group()
