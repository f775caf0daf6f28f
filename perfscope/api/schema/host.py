"""What hosts did, the budget of a step, and counted operations."""

from typing import TypedDict

from perfscope.api.schema.gpus import PrecisionData
from perfscope.api.schema.windowed import Windowed


class HostPartsData(TypedDict):
    """Where the host's time went: ``compute + exposed_communication + exposed_data_loading + other = window`` exactly.

    Attributes:
        window_us: The whole window.
        compute_us: Any thread is inside an operator that computes.
        communication_us: A collective is in flight, also beside compute.
        exposed_communication_us: A collective is in flight, and no operator computes.
        exposed_data_loading_us: A loader is fetching, and neither of the two goes on.
        other_us: The rest.
    """

    window_us: float
    compute_us: float
    communication_us: float
    exposed_communication_us: float
    exposed_data_loading_us: float
    other_us: float


class HostStepData(HostPartsData):
    """Where one step went.

    Attributes:
        name: The step.
    """

    name: str


class OutsideKindsData(TypedDict):
    """Time outside of operators by kind; the parts add up to ``other_us`` exactly.

    Attributes:
        sleep_us: Sleeping.
        waiting_us: Waiting for a lock, a thread or a process.
        io_us: Reading and writing.
        python_us: Running Python.
        not_attributed_us: No frame was recorded.
    """

    sleep_us: float
    waiting_us: float
    io_us: float
    python_us: float
    not_attributed_us: float


class OutsideFunctionData(TypedDict):
    """Time outside of operators of one function.

    Attributes:
        kind: ``sleep``, ``waiting``, ``I/O``, ``Python`` or ``not attributed``.
        function: The Python function, or the module.
        call: The built-in function that it called.
        us: How long.
    """

    kind: str
    function: str | None
    call: str | None
    us: float


class HostRankData(HostPartsData):
    """The host of one rank.

    Attributes:
        rank: The rank.
        trace: The file.
        damaged: Whether a part of the trace is lost.
        steps: Each step.
        has_stacks: Whether Python stacks were recorded.
        outside_operators_by_kind: What the thread of the steps did outside of operators.
        outside_operators: The same by function.
    """

    rank: int | None
    trace: str
    damaged: bool
    steps: list[HostStepData]
    has_stacks: bool
    outside_operators_by_kind: OutsideKindsData
    outside_operators: list[OutsideFunctionData]


class OperatorData(TypedDict):
    """An operator on the host, over all ranks.

    Attributes:
        name: Its name.
        calls: How often it ran.
        self_us: Its time without the operators inside it.
        total_us: Its time with them.
        communication: Whether it communicates.
    """

    name: str
    calls: int
    self_us: float
    total_us: float
    communication: bool


class HostData(Windowed):
    """``results.host``: where the host's time went, of traces without a device.

    Attributes:
        ranks: Each rank.
        operators: All operators, the most expensive first.
        notes: What a reader must know.
    """

    ranks: list[HostRankData]
    operators: list[OperatorData]
    notes: list[str]


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
