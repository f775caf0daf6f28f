"""How the training of a run is set up."""

from typing import TypedDict


class LoaderData(TypedDict):
    """A DataLoader; loaders with the same options are one entry.

    Attributes:
        workers: Processes that load.
        pin_memory: Whether batches are copied into pinned memory.
        prefetch: Batches that each worker loads ahead; None without workers.
        persistent: Whether workers outlive an epoch.
        starts: How often an iteration began.
    """

    workers: int
    pin_memory: bool
    prefetch: int | None
    persistent: bool
    starts: int


class DdpData(TypedDict):
    """What DistributedDataParallel was built with.

    Attributes:
        find_unused_parameters: Whether it searches for parameters that get no gradient.
        static_graph: Whether the graph is the same in all steps.
        bucket_bytes: Largest bucket of gradients.
        gradient_bytes: All gradients that it reduces.
        tensors: How many there are.
    """

    find_unused_parameters: bool
    static_graph: bool
    bucket_bytes: int | None
    gradient_bytes: int
    tensors: int


class OptimizerSetupData(TypedDict):
    """The optimizer that was seen to step first.

    Attributes:
        name: Its class.
        module: The module that defines the class.
        foreach: Its option ``foreach``; None where it is not set.
        fused: Its option ``fused``; likewise.
        has_fused: Whether the class has the option ``fused``.
        tensors: Parameters that it steps.
    """

    name: str
    module: str
    foreach: bool | None
    fused: bool | None
    has_fused: bool
    tensors: int


class PaddingData(TypedDict):
    """The attention masks of the first batches of data loaders.

    Attributes:
        positions: Positions in them.
        padded: Positions that hold padding.
        batches: How many batches were looked at.
    """

    positions: int
    padded: int
    batches: int


class RankSetupData(TypedDict):
    """How a rank trains.

    Attributes:
        rank: The rank.
        frameworks: Frameworks that are loaded.
        loaders: Its data loaders.
        ddp: DistributedDataParallel; None where it is not used.
        optimizer: None where none was seen.
        engine: Plain options of DeepSpeed's engine, by its own names.
        padding: None where no batch has an attention mask.
        collects_garbage: Whether Python's garbage collection was on after the first step.
        zero_stage: Stage of ZeRO.
        checkpointing: Which activations settings say are recomputed, or ``in use``; None for none.
        gradient_bytes: Size of all gradients.
        options: The options of its command line, with their values; None where that was not recorded.
    """

    rank: int
    frameworks: list[str]
    loaders: list[LoaderData]
    ddp: DdpData | None
    optimizer: OptimizerSetupData | None
    engine: dict[str, bool | int | float | str]
    padding: PaddingData | None
    collects_garbage: bool | None
    zero_stage: int | None
    checkpointing: str | None
    gradient_bytes: int | None
    options: dict[str, str] | None


class SetupData(TypedDict):
    """``results.setup``: the options that training uses.

    Attributes:
        ranks: Each rank.
        allocator: The setting of torch's allocator by the environment; None where it has none.
    """

    ranks: list[RankSetupData]
    allocator: str | None
