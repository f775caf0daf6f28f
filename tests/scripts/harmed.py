"""Nine steps that end as told (60 on a full disk): alone, with DDP as a rank of torchrun, or with a DeepSpeed engine.

Every rank prints nothing but the first, which prints the loss of each step to the last bit. Where FAULTS names a file,
it trains again until the file's ``next_fault`` finds nothing more to break.
"""

import argparse
import contextlib
import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import distributed, nn
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("launcher", choices=["python", "torchrun", "deepspeed"])
parser.add_argument("how")
parser.add_argument("--when", type=int, default=7)
parser.add_argument("--disk", type=Path)
parser.add_argument("--local_rank")
arguments = parser.parse_args()
rank = int(os.environ.get("RANK", "0"))
steps = 60 if arguments.how == "full" else 9
next_fault = runpy.run_path(os.environ["FAULTS"])["next_fault"] if "FAULTS" in os.environ else lambda: False
if arguments.how == "readonly":
    subprocess.run(["mount", "-o", "remount,ro", arguments.disk], check=True)  # before any rank opens a file
if arguments.launcher == "deepspeed":
    import deepspeed
elif arguments.launcher == "torchrun":
    distributed.init_process_group("gloo")


def harm() -> None:
    if arguments.how == "raise":
        raise RuntimeError("as the test asks")
    if arguments.how == "exit":
        sys.exit(5)
    if arguments.how == "_exit":
        os._exit(3)
    if arguments.how.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, arguments.how))


def fill(step: int) -> None:
    """Leave nothing free, though a finished compression may just have freed something."""
    free = os.statvfs(arguments.disk)
    if free.f_bavail:
        with (arguments.disk / f"filler-{step}").open("wb") as filler:
            os.posix_fallocate(filler.fileno(), 0, free.f_bavail * free.f_bsize)


def train() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    if arguments.launcher == "deepspeed":
        optimizer = {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}}
        config = {"train_micro_batch_size_per_gpu": 4, "optimizer": optimizer, "zero_optimization": {"stage": 1}}
        config |= {"steps_per_print": 10**9}
        model, *_ = deepspeed.initialize(model=model, model_parameters=list(model.parameters()), config=config)
    else:
        if arguments.launcher == "torchrun":
            model = nn.parallel.DistributedDataParallel(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step, batch in enumerate(DataLoader(torch.randn(4 * steps, 8), batch_size=4), 1):
        loss = model(batch).square().mean()
        if arguments.launcher == "deepspeed":
            model.backward(loss)
            model.step()
        else:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss.item().hex()}", flush=True)
        if step == 5 and rank == 0:
            torch.save(model.state_dict(), f"saved-{os.getpid()}.pt")
        if step == arguments.when and arguments.how != "none":
            if distributed.is_initialized():
                distributed.barrier()  # no rank ends before the first one has printed
            time.sleep(3)  # records of steps are written two seconds later, and half a second later still in a window
            harm()
        if arguments.how == "full" and step >= arguments.when and rank == 0:
            with contextlib.suppress(OSError):  # a process of perfscope's may have taken the last of it
                fill(step)


train()
while next_fault():
    train()
if distributed.is_initialized():
    distributed.destroy_process_group()
