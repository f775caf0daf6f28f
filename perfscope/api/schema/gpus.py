"""GPUs by NVML, their energy and throttling, and the share of their peak that training uses."""

from typing import TypedDict

from perfscope.api.schema.windowed import Windowed


class ConventionData(TypedDict):
    """The median step by one convention of counting operations.

    Attributes:
        name: Its name in perfscope.
        tflops_per_gpu: ``flops_per_token * tokens_per_s / gpus / 10**12``; None where dimensions are missing.
        mfu: ``tflops_per_gpu`` over the dense peak, where the convention counts no recomputation.
        hfu: The same, where it counts recomputation.
        formula: Its formula.
        source: Where the formula is from.
        flops_per_token: Operations for a token.
        counts_recomputation: Whether recomputed activations count.
        printed_by: The framework that prints it.
        inputs: What went into the formula.
        reason: Why there is no figure, or what makes it doubtful.
    """

    name: str
    tflops_per_gpu: float | None
    mfu: float | None
    hfu: float | None
    formula: str
    source: str
    flops_per_token: int | None
    counts_recomputation: bool
    printed_by: str | None
    inputs: dict[str, float]
    reason: str | None


class StepUtilisationData(TypedDict):
    """An undisturbed step by the headline convention.

    Attributes:
        step: Its number.
        tflops_per_gpu: TFLOPs per GPU.
        mfu: MFU.
    """

    step: int
    tflops_per_gpu: float
    mfu: float | None


class PrecisionData(TypedDict):
    """The data types of matrix products.

    Attributes:
        shares: Share of the operations by type.
        evidence: What shows it.
    """

    shares: dict[str, float] | None
    evidence: str


class CrossCheckData(TypedDict):
    """Operations counted from shapes in traces, beside the formula.

    Attributes:
        flops_per_token: Counted.
        formula_flops_per_token: The formula's; None without dimensions.
        difference: ``flops_per_token / formula_flops_per_token - 1``.
        recomputed: What the trace shows to be recomputed.
        skipped_flops_per_token: What of the count was begun and launched no kernel: the last product of what torch's
            checkpoint recomputes.
        ranks: How many ranks were counted.
        explanation: Why they differ by more than 2 %, and what could not be counted.
    """

    flops_per_token: float
    formula_flops_per_token: float | None
    difference: float | None
    recomputed: str | None
    skipped_flops_per_token: float
    ranks: int
    explanation: list[str]


class CountedActivityData(TypedDict):
    """What NVML's counters of one GPU say of its steady-state steps.

    Attributes:
        ranks: The ranks that trained on it.
        windows: Windows of the counters in these steps.
        steps: How many steps they hold, whole ones and parts.
        duration_ns: How long they are together.
        tensor_activity: Share of cycles in which tensor cores were active.
        sm_activity: Share of multiprocessors that were active; None where not reported.
        sm_occupancy: Share of their warps; None where not reported.
        clock_mhz: Mean clock meanwhile; None where not sampled.
        power_capped: Share of the samples at which the power limit reduced the clock; None where not sampled.
        utilisation: Share of the dense peak; None where the clock of the peak is unknown.
    """

    ranks: list[int]
    windows: int
    steps: float
    duration_ns: int
    tensor_activity: float
    sm_activity: float | None
    sm_occupancy: float | None
    clock_mhz: float | None
    power_capped: float | None
    utilisation: float | None


class CounterCheckData(TypedDict):
    """The utilisation by counters beside the one by operations.

    Attributes:
        utilisation: The mean over the GPUs; None where one has none.
        counted: The share of the peak by operations that ran, in the same windows; None where unknown.
        recomputed: What recomputation has of it; None where it is unknown.
        difference: By how much the counters are above the operations; None where one is unknown.
        by_power_limit: What of that comes from the power limit, at which cycles amount to more than the operations;
            None where that was not measured for this GPU.
        unexplained: What is left of the difference; None where there is none.
        reason: Why there is none; None where there is one.
        gpus: Each GPU.
    """

    utilisation: float | None
    counted: float | None
    recomputed: float | None
    difference: float | None
    by_power_limit: float | None
    unexplained: float | None
    reason: str | None
    gpus: list[CountedActivityData]


class MfuData(Windowed):
    """``results.mfu``: MFU = operations per token x tokens/s / (GPUs x dense peak), by each convention.

    Attributes:
        convention: The headline convention: ``megatron_core``.
        mfu: MFU of steady-state steps by it.
        tflops_per_gpu: TFLOPs per GPU by it.
        conventions: The median step by every convention.
        steps: Each undisturbed step by the headline convention.
        parameters: Parameters over all pipeline stages.
        trainable_parameters: Those that have gradients.
        layers: Layers.
        hidden: Hidden size.
        vocabulary: Vocabulary.
        device: The name that the driver states.
        gpu: The GPU whose data sheet is used; None where it is not listed.
        dtype: The main data type of the products.
        precision: All of them.
        peak_tflops: The dense peak of one GPU in that type.
        doubt: What makes the headline doubtful.
        checkpointing: What was counted as recomputed; None where that is unknown, and nothing was.
        recomputed_share: The share of the products of the forward pass that ran again, as traces show it; None where
            none does.
        counted: The operations of the traces; None where they state no shapes.
        by_counters: The share of the peak that the GPUs' own counters state, and how far it is from what was counted.
        notes: What a reader must know.
    """

    convention: str
    mfu: float | None
    tflops_per_gpu: float | None
    conventions: list[ConventionData]
    steps: list[StepUtilisationData]
    parameters: int
    trainable_parameters: int
    layers: int
    hidden: int
    vocabulary: int
    device: str | None
    gpu: str | None
    dtype: str | None
    precision: PrecisionData
    peak_tflops: float | None
    doubt: str | None
    checkpointing: str | None
    recomputed_share: float | None
    counted: CrossCheckData | None
    by_counters: CounterCheckData
    notes: list[str]
