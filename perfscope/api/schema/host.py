"""What hosts did, the budget of a step, and counted operations."""

from typing import TypedDict

from perfscope.api.schema.gpus import PrecisionData
from perfscope.api.schema.windowed import Windowed


class TermData(TypedDict):
    """A term of the budget.

    Attributes:
        kind: What kind of time: compute, communication, idle and so on.
        name: Its name, such as a class of kernels or a cause; empty where the kind says all.
        operator: The operator that launched it, where they were read.
        us: Mean over ranks and steps.
    """

    kind: str
    name: str
    operator: str | None
    us: float


class BudgetData(Windowed):
    """``results.budget``: what a mean step is made of; the terms add up to it exactly.

    Attributes:
        step_us: The mean step over ranks and steps.
        steps: Their numbers; empty where no step is marked.
        ranks: Devices, or hosts, that the means are over.
        terms: Each term.
    """

    step_us: float
    steps: list[int]
    ranks: int
    terms: list[TermData]


class NotCountedData(TypedDict):
    """An operator that multiplies and whose operations are not counted.

    Attributes:
        operator: Its name.
        calls_per_step: Calls in a step.
        share: Its share of the time of all kernels that multiply.
    """

    operator: str
    calls_per_step: float
    share: float | None


class GraphOperationsData(TypedDict):
    """Operations in CUDA graphs.

    Attributes:
        recorded_flops: Recorded while the trace was, once each.
        replayed_flops: Operations of the launches of these graphs.
        other_replays: Launches of graphs whose operations the trace does not contain.
        other_replays_share: Their share of the time of kernels that multiply.
    """

    recorded_flops: int
    replayed_flops: int
    other_replays: int
    other_replays_share: float | None


class OperatorCountData(TypedDict):
    """The operations of one operator.

    Attributes:
        operator: Its name.
        calls_per_step: Calls in a step.
        flops_per_step: Operations in a step.
    """

    operator: str
    calls_per_step: float
    flops_per_step: float


class RankOperationsData(TypedDict):
    """The operations of one rank, counted from shapes.

    Attributes:
        rank: The rank.
        steps: Training steps in the trace; 0 where it marks none.
        flops_per_step: Operations of one step; None where no shape is stated.
        tflops: ``flops_per_step`` over the mean profiled step, in 10**12 a second; None where too little is counted.
        attention_share: The share of attention in the operations.
        recomputed: The kind of activation checkpointing; None where unknown.
        recomputed_share: The share of the products of the forward pass that ran again in the backward pass.
        recomputed_weights: The same of products with weights; None where unknown.
        recomputed_attention: The same of attention; None where unknown.
        recomputed_reason: Why it is unknown; None where it is known.
        forward_alone: Whether layers also ran forward without a backward pass.
        without_shapes: Products that could not be counted.
        covered: Share of the time of kernels that multiply in what is counted.
        not_counted: What is not counted.
        graphs: Operations in CUDA graphs.
        precision: Data types of the products.
        operators: By operator.
    """

    rank: int | None
    steps: int
    flops_per_step: float | None
    tflops: float | None
    attention_share: float | None
    recomputed: str | None
    recomputed_share: float | None
    recomputed_weights: float | None
    recomputed_attention: float | None
    recomputed_reason: str | None
    forward_alone: bool
    without_shapes: int
    covered: float | None
    not_counted: list[NotCountedData]
    graphs: GraphOperationsData
    precision: PrecisionData
    operators: list[OperatorCountData]


class OperationsData(Windowed):
    """``results.operations``: how many operations a step did.

    Attributes:
        ranks: Each rank.
    """

    ranks: list[RankOperationsData]
