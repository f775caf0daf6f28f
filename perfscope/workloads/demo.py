"""A small training on several ranks (DDP). In every fifth step it sends metrics to a server, which is slow."""

import time

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel


def send_metrics() -> None:
    """Wait for the server's answer."""
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
        send_metrics()
distributed.destroy_process_group()
