"""DeepSpeed's PipelineEngine: a stage a rank, micro-batches by 1F1B."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path

import deepspeed
import torch
from deepspeed.pipe import PipelineModule
from torch import Tensor

from perfscope.workloads.strategies import MICRO_BATCHES
from perfscope.workloads.tasks.job import Job, StrategyTraining


def build(job: Job) -> StrategyTraining:
    """Train this rank's stage; every rank knows the loss."""
    deepspeed.init_distributed("nccl" if job.device.type == "cuda" else "gloo")
    layers = job.layers()
    for layer in layers:
        job.compile(layer)
    module = PipelineModule(layers=layers, num_stages=job.world_size, loss_fn=job.loss, partition_method="uniform")
    engine, *_ = deepspeed.initialize(
        model=module,
        optimizer=job.optimizer(module.parameters()),
        config={
            "train_micro_batch_size_per_gpu": job.options.batch // MICRO_BATCHES,
            "gradient_accumulation_steps": MICRO_BATCHES,
            "bf16": {"enabled": job.is_bf16},
            "gradient_clipping": 0.0,
            "steps_per_print": 10**9,
        },
    )

    def step(inputs: Tensor, targets: Tensor) -> Tensor:
        if job.is_bf16 and inputs.is_floating_point():
            inputs = inputs.to(torch.bfloat16)
        size = job.options.batch // MICRO_BATCHES
        loss: Tensor = engine.train_batch(cycle(zip(inputs.split(size), targets.split(size), strict=True)))
        return loss

    def save(folder: Path) -> None:
        engine.save_checkpoint(str(folder))

    return StrategyTraining(step, save)
