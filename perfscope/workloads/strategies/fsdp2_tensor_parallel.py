"""FSDP 2 over groups of two ranks that share each block by tensor parallelism."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from perfscope.workloads.strategies.tensor_parallel import group_parameters, split_blocks
from perfscope.workloads.tasks.job import Job, StrategyTraining


def build(job: Job, group: int) -> StrategyTraining:
    """Train on the share of the batch of this rank's group, with a part of each block."""
    job.join_group()
    groups = job.world_size // group
    mesh = init_device_mesh(job.device.type, (groups, group), mesh_dim_names=("dp", "tp"))
    layers = [layer.to(job.device) for layer in job.layers()]
    split_blocks(job, layers, mesh["tp"])
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if job.is_bf16 else MixedPrecisionPolicy()
    for layer in layers:
        job.compile(layer)
        fully_shard(layer, mesh=mesh["dp"], mp_policy=policy)
    model = nn.Sequential(*layers)
    fully_shard(model, mesh=mesh["dp"], mp_policy=policy)
    optimizer = job.optimizer(group_parameters(model))
    share = (mesh["dp"].get_local_rank(), groups)
    return StrategyTraining(job.plain_step(model, optimizer), job.save_on_every_rank(model, optimizer), share)
