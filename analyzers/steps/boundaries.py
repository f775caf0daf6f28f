"""What ends a training step, in words, by the source that the hooks name in a step's record."""

from __future__ import annotations

_BOUNDARIES = {
    "deepspeed": "DeepSpeed `global_steps`",
    "deepspeed_pipeline": "DeepSpeed `PipelineEngine.train_batch`",
    "megatron": "Megatron `train_step`",
    "megatron_optimizer": "Megatron optimizer `step`",
    "rpc_optimizer": "`DistributedOptimizer.step`",
    "torchtitan": "torchtitan `Trainer.train_step`",
    "grad_scaler": "`GradScaler.update`",
    "optimizer": "optimizer `step`",
}


def describe_boundary(source: str) -> str:
    """The boundary that a source of steps detects; the source itself where it is new."""
    return _BOUNDARIES.get(source, source)
