"""Tensor parallelism with DTensor: the matrices of each block are split over the ranks, which share every sample."""

from __future__ import annotations

from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from perfscope.workloads.tasks.job import Job, ParameterGroup, StrategyTraining


def split_blocks(job: Job, layers: list[nn.Module], mesh: DeviceMesh) -> None:
    """Split the products of each block: those by columns need no communication, those by rows sum their outputs."""
    styles = {"columns": ColwiseParallel, "rows": RowwiseParallel}
    plan = {name: styles[split]() for name, split in job.task.splits.items()}
    for layer in layers:
        if job.task.block is not None and isinstance(layer, job.task.block):
            parallelize_module(layer, mesh, plan)


def group_parameters(model: nn.Module) -> list[ParameterGroup]:
    """The parameters of each mesh apart, because on GPUs an optimizer updates all of a group at once."""
    parameters = list(model.parameters())
    meshes = [parameter.device_mesh if isinstance(parameter, DTensor) else None for parameter in parameters]
    return [
        {"params": [parameter for parameter, other in zip(parameters, meshes, strict=True) if other == mesh]}
        for mesh in dict.fromkeys(meshes)
    ]


def build(job: Job) -> StrategyTraining:
    """Train on the whole batch with a part of each block."""
    job.join_group()
    layers = [layer.to(job.device) for layer in job.layers()]
    split_blocks(job, layers, init_device_mesh(job.device.type, (job.world_size,)))
    model = job.join_layers(layers)
    job.compile(model)
    optimizer = job.optimizer(group_parameters(model))
    return StrategyTraining(job.plain_step(model, optimizer), job.save_on_every_rank(model, optimizer))
