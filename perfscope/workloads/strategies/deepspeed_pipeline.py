"""DeepSpeed's PipelineEngine: a stage a rank, micro-batches by 1F1B."""

from __future__ import annotations

from itertools import cycle

import deepspeed
from deepspeed.pipe import PipelineModule
from torch import Tensor

from perfscope.workloads.strategies import MICRO_BATCHES
from perfscope.workloads.strategies.deepspeed_engine import engine_config
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
        config={**engine_config(job, MICRO_BATCHES), "gradient_accumulation_steps": MICRO_BATCHES},
    )

    def step(inputs: Tensor, targets: Tensor) -> Tensor:
        size = job.options.batch // MICRO_BATCHES
        splits = zip(job.in_precision(inputs).split(size), targets.split(size), strict=True)
        loss: Tensor = engine.train_batch(cycle(splits))
        return loss

    return StrategyTraining(step, lambda folder: engine.save_checkpoint(str(folder)))
