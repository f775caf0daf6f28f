"""The frameworks that perfscope hooks: the modules to watch for, and the step boundaries of each.

One entry stands for one file of ``hooks/frameworks``. It names the modules to watch for, because the file itself is
loaded only when the first of them is imported, and the step boundaries that the file reports.

Python loads this module by itself at the start of every process below ``perfscope profile``: it imports nothing.
"""


class StepBoundary:
    """An event that completes a training step.

    Attributes:
        name: Its name in the records of a run.
        priority: Where several are present, the highest one counts: the steps of the others are parts of its steps.
        event: What completes the step, as a report names it.
    """

    __slots__ = ("event", "name", "priority")

    def __init__(self, name: str, priority: int, event: str) -> None:
        self.name = name
        self.priority = priority
        self.event = event


class FrameworkHooks:
    """The hooks of one framework, or of one part of a large one.

    Attributes:
        file: Their module in ``perfscope.hooks.frameworks``; its ``PATCHES`` has an entry for each watched module.
        watches: The framework's modules that are patched when they are imported.
        boundaries: The step boundaries that they report.
    """

    __slots__ = ("boundaries", "file", "watches")

    def __init__(self, file: str, watches: tuple[str, ...], boundaries: tuple[StepBoundary, ...] = ()) -> None:
        self.file = file
        self.watches = watches
        self.boundaries = boundaries


FRAMEWORK_HOOKS = (
    FrameworkHooks(
        "torch",
        watches=(
            "torch",
            "torch._dynamo",
            "torch._dynamo.callback",
            "torch.amp.grad_scaler",
            "torch.autograd.profiler",
            "torch.distributed.device_mesh",
            "torch.distributed.distributed_c10d",
            "torch.distributed.optim.optimizer",
            "torch.distributed.rpc",
            "torch.distributed.tensor.parallel.api",
            "torch.optim.optimizer",
            "torch.utils.checkpoint",
            "torch.utils.data.dataloader",
        ),
        boundaries=(
            StepBoundary("optimizer", 10, "optimizer `step`"),
            StepBoundary("rpc_optimizer", 12, "`DistributedOptimizer.step`"),
            StepBoundary("grad_scaler", 15, "`GradScaler.update`"),
        ),
    ),
    FrameworkHooks(
        "torch_wrappers",
        watches=(
            "torch.distributed._composable.fsdp._fsdp_state",
            "torch.distributed.fsdp._fully_shard._fsdp_state",
            "torch.distributed.fsdp.fully_sharded_data_parallel",
            "torch.nn.parallel.data_parallel",
            "torch.nn.parallel.distributed",
        ),
    ),
    FrameworkHooks(
        "torch_pipelining", ("torch.distributed.pipelining.schedules", "torch.distributed.pipelining.stage")
    ),
    FrameworkHooks(
        "torch_saves",
        watches=(
            "torch.distributed.checkpoint.filesystem",
            "torch.distributed.checkpoint.state_dict_saver",
            "torch.serialization",
        ),
    ),
    FrameworkHooks(
        "library_saves",
        watches=(
            "accelerate.accelerator",
            "lightning.fabric.plugins.io.torch_io",
            "lightning.pytorch.loops.evaluation_loop",
            "lightning.pytorch.trainer.trainer",
            "lightning_fabric.plugins.io.torch_io",
            "pytorch_lightning.loops.evaluation_loop",
            "pytorch_lightning.trainer.trainer",
            "safetensors.numpy",
            "safetensors.torch",
            "transformers.generation.utils",
            "transformers.modeling_utils",
            "transformers.trainer",
        ),
    ),
    FrameworkHooks(
        "deepspeed",
        watches=("deepspeed.runtime.engine", "deepspeed.runtime.pipe.engine"),
        boundaries=(
            StepBoundary("deepspeed", 30, "DeepSpeed `global_steps`"),
            StepBoundary("deepspeed_pipeline", 40, "DeepSpeed `PipelineEngine.train_batch`"),
        ),
    ),
    FrameworkHooks(
        "megatron",
        watches=(
            "megatron.core.dist_checkpointing.strategies.filesystem_async",
            "megatron.core.distributed.data_parallel_base",
            "megatron.core.optimizer.optimizer",
            "megatron.core.parallel_state",
            "megatron.core.pipeline_parallel.schedules",
            "megatron.training.async_utils",
            "megatron.training.checkpointing",
            "megatron.training.training",
        ),
        boundaries=(
            StepBoundary("megatron_optimizer", 20, "Megatron optimizer `step`"),
            StepBoundary("megatron", 50, "Megatron `train_step`"),
        ),
    ),
    FrameworkHooks(
        "torchtitan",
        watches=("torchtitan.components.validate", "torchtitan.trainer"),
        boundaries=(StepBoundary("torchtitan", 45, "torchtitan `Trainer.train_step`"),),
    ),
    # A line for each further framework.
)

#: The files of hooks for each watched module, in the order in which they patch it.
WATCHED: "dict[str, tuple[str, ...]]" = {}
for _hooks in FRAMEWORK_HOOKS:
    for _module in _hooks.watches:
        WATCHED[_module] = (*WATCHED.get(_module, ()), _hooks.file)

#: Every step boundary by its name.
STEP_BOUNDARIES = {boundary.name: boundary for hooks in FRAMEWORK_HOOKS for boundary in hooks.boundaries}
