"""Tensor parallelism with Megatron-core's layers: ColumnParallelLinear and RowParallelLinear in each block."""

from __future__ import annotations

import torch
from megatron.core import parallel_state
from megatron.core.model_parallel_config import ModelParallelConfig
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from torch import Tensor, nn

from perfscope.workloads.tasks.job import Job, StrategyTraining


class WithoutBias(nn.Module):
    """A layer of Megatron-core, which returns its outputs and a bias to be added later; here it has added it."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, states: Tensor) -> Tensor:
        """The outputs."""
        outputs: Tensor = self.layer(states.to(self.layer.weight.dtype))[0]
        return outputs


def split_product(job: Job, product: nn.Linear, split: str, config: ModelParallelConfig) -> nn.Module:
    """A layer of Megatron-core with this rank's part of a product's weights."""
    sizes = product.in_features, product.out_features
    options = {"config": config, "init_method": nn.init.zeros_, "bias": True, "skip_bias_add": False}
    if split == "columns":
        layer = ColumnParallelLinear(*sizes, gather_output=False, **options)
    else:
        layer = RowParallelLinear(*sizes, input_is_parallel=True, **options)
    dimension = 0 if split == "columns" else 1
    with torch.no_grad():
        layer.weight.copy_(product.weight.chunk(job.world_size, dimension)[job.rank])
        layer.bias.copy_(product.bias.chunk(job.world_size)[job.rank] if split == "columns" else product.bias)
    return WithoutBias(layer)


def build(job: Job) -> StrategyTraining:
    """Train on the whole batch with a part of each block."""
    job.join_group()
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=job.world_size)
    config = ModelParallelConfig(
        tensor_model_parallel_size=job.world_size,
        use_cpu_initialization=True,
        gradient_accumulation_fusion=False,
        params_dtype=torch.bfloat16 if job.is_bf16 else torch.float32,  # its products know no autocast
    )
    layers = job.layers()
    for layer in layers:
        if job.task.block is not None and isinstance(layer, job.task.block):
            for path, split in job.task.splits.items():
                parent, _, name = path.rpartition(".")
                product = layer.get_submodule(path)
                assert isinstance(product, nn.Linear)
                setattr(layer.get_submodule(parent), name, split_product(job, product, split, config))
    model = job.join_layers(layers).to(job.device)
    job.compile(model)
    optimizer = job.optimizer(model.parameters())
    return StrategyTraining(job.plain_step(model, optimizer), job.save_on_every_rank(model, optimizer))
