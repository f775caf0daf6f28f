"""Four ranks of two replicas of two tensor-parallel ranks, on processors: ``two_axes.py --out DIR CASE...``.

``tp`` makes rank 3 late in every step; ``clean`` is its twin. Data-parallel gradients are reduced by ``ddp``, whose
backward pass waits without Python, or by FSDP 2.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.parallel.ddp import _pre_dp_module_transform
from torch.nn.parallel import DistributedDataParallel

from perfscope.hooks import attach

LATE, RANKS, STEPS, DELAY_S = 3, 4, 24, 0.1
#: On a busy machine a step takes long: the late rank sleeps for so many times as long as a step takes without that.
LONGER = 4


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(64, 256)
        self.down = torch.nn.Linear(256, 64)

    def forward(self, states):
        return self.down(torch.relu(self.up(states)))


def run(name, out, rank):
    strategy, cause = name.split(".")
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(RANKS))
    torch.set_num_threads(1)
    attach(str(out / name), steps="100000", nvml_hz=0)
    # They meet by a file: no other training can be at the same port.
    meeting = f"file://{out.resolve()}/{name}.store"
    dist.init_process_group("gloo", meeting, rank=rank, world_size=RANKS, timeout=timedelta(seconds=60))
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    model = torch.nn.Sequential(Block(), Block())
    for block in model:
        parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    if strategy == "fsdp2":
        fully_shard(model, mesh=mesh["dp"])
    else:
        _pre_dp_module_transform(model)  # DDP and tensor parallelism meet here only
        model = DistributedDataParallel(model, process_group=mesh.get_group("dp"))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    began_s, slept_s = time.monotonic(), 0.0
    for step in range(STEPS if cause == "tp" else 10 * STEPS):
        if cause == "tp" and rank == LATE:
            usual_s = (time.monotonic() - began_s - slept_s) / max(step, 1)
            delay_s = max(DELAY_S, LONGER * usual_s)
            time.sleep(delay_s)
            slept_s += delay_s
        model(torch.randn(16, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    dist.destroy_process_group()


def start(name, out, rank):
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        with (out / f"{name}.{rank}.log").open("w", buffering=1) as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            run(name, out, rank)
            code = 0
    except Exception:  # noqa: BLE001 - the parent process reports it
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("cases", nargs="+")
    options = parser.parse_args()
    for name in options.cases:
        children = [start(name, options.out, rank) for rank in range(RANKS)]
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        if any(codes):
            sys.exit("".join((options.out / f"{name}.{rank}.log").read_text() for rank in range(RANKS)))


if __name__ == "__main__":
    main()
