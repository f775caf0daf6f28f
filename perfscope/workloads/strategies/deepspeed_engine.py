"""DeepSpeed's engine: data parallel as it is, or with a ZeRO stage, whose states may lie in the host's memory.

Stage 1 splits the optimizer states over the ranks, stage 2 the gradients, too, stage 3 also the parameters.
"""

from __future__ import annotations

from typing import Any

import deepspeed
from deepspeed.runtime.fp16.unfused_optimizer import FP16_UnfusedOptimizer
from torch import Tensor, nn

from perfscope.workloads.tasks.job import Job, StrategyTraining


def engine_config(job: Job, parts: int) -> dict[str, Any]:
    """The configuration of an engine that gets one of so many parts of a batch at once."""
    return {
        "train_micro_batch_size_per_gpu": max(1, job.options.batch // parts),
        "bf16": {"enabled": job.is_bf16},
        "gradient_clipping": 0.0,  # DeepSpeed clips to 1.0 unless it is told not to
        "steps_per_print": 10**9,
        "zero_force_ds_cpu_optimizer": False,  # torch's AdamW, as every other strategy has it
    }


def forget_first_step(optimizer: FP16_UnfusedOptimizer) -> None:
    """Undo the step of Adam that DeepSpeed makes on zero gradients where bf16 weights are updated without ZeRO.

    It would count: the first true update would be a quarter smaller, and every loss behind it another one.
    """
    optimizer.optimizer.state.clear()
    optimizer.refresh_fp32_params()


def build(job: Job, stage: int | None = None, *, offload: bool = False) -> StrategyTraining:
    """Train on this rank's share of the batch."""
    deepspeed.init_distributed("nccl" if job.device.type == "cuda" else "gloo")
    model = nn.Sequential(*job.layers())
    job.compile(model)
    config = engine_config(job, job.world_size)
    if stage is not None:
        config["zero_optimization"] = {"stage": stage}
    if offload:
        config["zero_optimization"]["offload_optimizer"] = {"device": "cpu", "pin_memory": False}
    engine, *_ = deepspeed.initialize(model=model, optimizer=job.optimizer(model.parameters()), config=config)
    if isinstance(engine.optimizer, FP16_UnfusedOptimizer):
        forget_first_step(engine.optimizer)

    def step(inputs: Tensor, targets: Tensor) -> Tensor:
        loss = job.loss(engine(job.in_precision(inputs)), targets)
        engine.backward(loss)
        engine.step()
        return loss

    return StrategyTraining(step, lambda folder: engine.save_checkpoint(str(folder)), (job.rank, job.world_size))
