"""Trains, kills the NVML sampler of this process, and trains on."""

import os
import signal
import time
from pathlib import Path

import torch
from torch import nn

model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train() -> None:
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()


def samplers() -> list[int]:
    words = {path.parent.name: path.read_bytes().split(b"\0") for path in Path("/proc").glob("[0-9]*/cmdline")}
    own = str(os.getpid()).encode()
    return [int(pid) for pid, line in words.items() if own in line and any(b"sampler.py" in word for word in line)]


train()
time.sleep(0.5)
pids = samplers()
for pid in pids:
    os.kill(pid, signal.SIGKILL)
print("killed", len(pids), flush=True)
train()
print("done", flush=True)
