"""The strategies of ``perfscope bench``: one a module, short enough to read and to copy.

A module has ``build(job)``, which spreads the job's model and returns a ``StrategyTraining``: how a batch is trained,
and how the weights are saved. This table says how each is started, and what it asks for; it imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

#: Micro-batches of a pipeline, and samples of a split of the pipelined and the RPC strategy.
MICRO_BATCHES, SPLIT_SIZE = 4, 8


class Processes(Enum):
    """How a strategy uses the devices."""

    ONE = "one process and one device"
    ALL_DEVICES = "one process and all devices"
    ONE_A_DEVICE = "one process a device"


class Batch(Enum):
    """What a strategy does with a batch, which says by what it must be divisible."""

    WHOLE = "whole"
    SHARED = "shared among the ranks"
    SHARED_BY_PAIRS = "shared among pairs of ranks"
    MICRO_BATCHES = "cut into micro-batches"


@dataclass(frozen=True, slots=True)
class Strategy:
    """A row of the benchmark.

    ``fewest`` and ``multiple`` limit the number of devices. ``stages`` are on each device, 0 without a cut.
    """

    title: str
    module: str
    processes: Processes = Processes.ONE_A_DEVICE
    batch: Batch = Batch.SHARED
    fewest: int = 1
    multiple: int = 1
    stages: int = 0
    needs_splits: bool = False
    package: str | None = None
    options: Mapping[str, object] = field(default_factory=dict)


def _pipeline(title: str, schedule: str, stages: int) -> Strategy:
    return Strategy(
        title, "pipelining", batch=Batch.MICRO_BATCHES, fewest=2, stages=stages, options={"schedule": schedule}
    )


def _deepspeed(title: str, stage: int | None, *, offload: bool = False) -> Strategy:
    options: dict[str, object] = {} if stage is None else {"stage": stage}
    return Strategy(
        title, "deepspeed_engine", package="deepspeed", options={**options, "offload": True} if offload else options
    )


#: In the order of the table.
STRATEGIES: Mapping[str, Strategy] = {
    "single": Strategy("one device", "single", Processes.ONE, Batch.WHOLE),
    "dp": Strategy("nn.DataParallel", "data_parallel", Processes.ALL_DEVICES, Batch.SHARED, fewest=2),
    "ddp": Strategy("DistributedDataParallel", "ddp"),
    "mp": Strategy("model parallel by hand", "model_parallel", Processes.ALL_DEVICES, Batch.WHOLE, fewest=2, stages=1),
    "pmp": Strategy(
        "pipelined model parallel",
        "model_parallel",
        Processes.ALL_DEVICES,
        Batch.WHOLE,
        fewest=2,
        stages=1,
        options={"split_size": SPLIT_SIZE},
    ),
    "rpc": Strategy("RPC pipeline", "rpc_pipeline", batch=Batch.WHOLE, fewest=2, stages=1),
    "zero-ddp": Strategy("ZeroRedundancyOptimizer", "zero_redundancy", fewest=2),
    "gpipe": _pipeline("torch pipeline, GPipe", "gpipe", 1),
    "1f1b": _pipeline("torch pipeline, 1F1B", "1f1b", 1),
    "interleaved": _pipeline("torch pipeline, interleaved 1F1B", "interleaved", 2),
    "zero-bubble": _pipeline("torch pipeline, zero-bubble", "zero-bubble", 2),
    "fsdp2": Strategy("FSDP 2", "fsdp2", fewest=2),
    "fsdp2-keep": Strategy("FSDP 2 without resharding", "fsdp2", fewest=2, options={"reshard": False}),
    "tp": Strategy("DTensor tensor parallel", "tensor_parallel", batch=Batch.WHOLE, fewest=2, needs_splits=True),
    "fsdp2-tp": Strategy(
        "FSDP 2 x tensor parallel 2",
        "fsdp2_tensor_parallel",
        batch=Batch.SHARED_BY_PAIRS,
        fewest=2,
        multiple=2,
        needs_splits=True,
        options={"group": 2},
    ),
    "deepspeed": _deepspeed("DeepSpeed data parallel", None),
    "zero-0": _deepspeed("DeepSpeed ZeRO 0", 0),
    "zero-1": _deepspeed("DeepSpeed ZeRO 1", 1),
    "zero-2": _deepspeed("DeepSpeed ZeRO 2", 2),
    "zero-3": _deepspeed("DeepSpeed ZeRO 3", 3),
    "offload": _deepspeed("DeepSpeed ZeRO 2, optimizer in host memory", 2, offload=True),
    "deepspeed-pipeline": Strategy(
        "DeepSpeed pipeline",
        "deepspeed_pipeline",
        batch=Batch.MICRO_BATCHES,
        fewest=2,
        stages=1,
        package="deepspeed",
    ),
    "megatron-tp": Strategy(
        "Megatron-core tensor parallel",
        "megatron_tensor_parallel",
        batch=Batch.WHOLE,
        fewest=2,
        needs_splits=True,
        package="megatron.core",
    ),
}
