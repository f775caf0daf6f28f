"""Prints, as JSON, how often a step of a training calls each function of the hooks, far from windows."""

import json
import os
import sys
from collections import Counter
from pathlib import Path

import torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader

from perfscope import hooks

hooks.attach("run", steps="1000", nvml_hz=0)

training = sys.argv[1]
folder = str(Path(hooks.__file__).parent)
model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(12)))
if training in ("ddp", "fsdp2"):
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    distributed.init_process_group("gloo")
if training == "ddp":
    model = nn.parallel.DistributedDataParallel(model)
elif training == "fsdp2":
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", enabled=training == "scaler")
batches = iter(DataLoader(torch.randn(1000, 8), batch_size=4))
calls = Counter()


def step():
    batch = next(batches)
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    if training == "scaler":
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    else:
        loss.backward()
        optimizer.step()


def watch(frame, event, _argument):
    if event == "call" and frame.f_code.co_filename.startswith(folder):
        calls[frame.f_code.co_qualname] += 1


for _ in range(30):
    step()
sys.setprofile(watch)
step()
sys.setprofile(None)
print(json.dumps(calls), flush=True)
os._exit(0)
