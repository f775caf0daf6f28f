"""Trains the same way once, or, where FAULTS names a file, until its `next_fault` finds nothing more to break."""

import os
import runpy
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed, nn
from torch.utils.data import DataLoader

launcher = sys.argv[1]
next_fault: Callable[[], bool] | None = None
if "FAULTS" in os.environ:
    next_fault = runpy.run_path(os.environ["FAULTS"])["next_fault"]
if launcher == "deepspeed":
    import deepspeed
elif launcher == "torchrun":
    distributed.init_process_group("gloo")


def train() -> str:
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    if launcher == "deepspeed":
        settings: Any = {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}}
        config = {"train_micro_batch_size_per_gpu": 4, "optimizer": settings, "zero_optimization": {"stage": 1}}
        model, *_ = deepspeed.initialize(model=model, model_parameters=list(model.parameters()), config=config)
    else:
        if launcher == "torchrun":
            model = nn.parallel.DistributedDataParallel(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step, batch in enumerate(DataLoader(torch.randn(28, 8), batch_size=4)):
        loss = model(batch).square().mean()
        if launcher == "deepspeed":
            model.backward(loss)
            model.step()
        else:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append(loss.item().hex())
        if step == 5:
            torch.save(model.state_dict(), f"saved-{os.getpid()}.pt")
    return " ".join(losses)


print(f"\nlosses {train()}", flush=True)
while next_fault is not None and next_fault():
    print(f"\nlosses {train()}", flush=True)
if distributed.is_initialized():
    distributed.destroy_process_group()
