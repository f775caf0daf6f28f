"""A parameter server and a trainer: 6 steps of DistributedOptimizer over parameters that the server holds."""

import os
import sys

import torch
import torch.distributed.autograd as dist_autograd
from torch.distributed import rpc
from torch.distributed.optim import DistributedOptimizer

LAYER = torch.nn.Linear(4, 4)


def weights():
    return [rpc.RRef(weight) for weight in LAYER.parameters()]


def forward(batch):
    return LAYER(batch)


rank = int(os.environ["RANK"])
rpc.init_rpc(("server", "trainer")[rank], rank=rank, world_size=2)
if rank == 1:
    optimizer = DistributedOptimizer(getattr(torch.optim, sys.argv[1]), rpc.rpc_sync("server", weights), lr=0.1)
    for _ in range(6):
        with dist_autograd.context() as context:
            loss = rpc.rpc_sync("server", forward, (torch.randn(8, 4),)).square().mean()
            dist_autograd.backward(context, [loss])
            optimizer.step(context)
rpc.shutdown()
