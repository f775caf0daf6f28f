"""FSDP 2 (``fully_shard``): parameters, gradients and optimizer states are split over the ranks.

A block's parameters are gathered before it is used. With resharding they are dropped behind the forward pass and
gathered again for the backward pass (ZeRO stage 3); without, they stay until then (more memory, less communication).
"""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from perfscope.workloads.tasks.job import Job, StrategyTraining


def build(job: Job, *, reshard: bool = True) -> StrategyTraining:
    """Train on this rank's share of the batch."""
    job.join_group()
    layers = [layer.to(job.device) for layer in job.layers()]
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if job.is_bf16 else MixedPrecisionPolicy()
    for layer in layers:
        job.compile(layer)
        fully_shard(layer, reshard_after_forward=reshard, mp_policy=policy)
    model = nn.Sequential(*layers)
    fully_shard(model, reshard_after_forward=reshard, mp_policy=policy)
    optimizer = job.optimizer(model.parameters())
    share = (job.rank, job.world_size)
    return StrategyTraining(job.plain_step(model, optimizer), job.save_on_every_rank(model, optimizer), share)
