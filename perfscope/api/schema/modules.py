"""What the model's modules and operators cost the device."""

from __future__ import annotations

from typing import TypedDict

from perfscope.api.schema.windowed import Windowed


class PhaseTimesData(TypedDict):
    """Time of device events by what they are for.

    Attributes:
        forward: Forward passes.
        backward: Backward passes.
        recomputation: Forward passes again, inside the backward pass.
        optimizer: Optimizer steps inside the backward pass, parameter by parameter.
        communication: Collectives, and in FSDP the copies that prepare and take up what is exchanged.
    """

    forward: float
    backward: float
    recomputation: float
    optimizer: float
    communication: float


class ModuleData(TypedDict):
    """One module, by itself (self) and with the modules inside it (total); means of a step.

    Attributes:
        path: Its path in the model; ``PATH::compiled N`` for what torch.compile made of it.
        calls: Forward calls.
        self_us, total_us: Time of its device events.
        self_by_phase_us, total_by_phase_us: The same by what they are for.
        self_kernels, total_kernels: Device events.
        self_flops, total_flops: Operations; absent where the trace states no inputs of operators.
    """

    path: str
    calls: float
    self_us: float
    total_us: float
    self_by_phase_us: PhaseTimesData
    total_by_phase_us: PhaseTimesData
    self_kernels: float
    total_kernels: float
    self_flops: float | None
    total_flops: float | None


class OwnerTimeData(TypedDict):
    """Device events of an owner that is no module.

    Attributes:
        device_us: Their time.
        kernels: How many they are.
    """

    device_us: float
    kernels: float


class OutsideOperatorData(TypedDict):
    """An operator outside of modules.

    Attributes:
        operator: Its name.
        device_us: Time of what it launched.
    """

    operator: str
    device_us: float


class RankModulesData(TypedDict):
    """The modules of one rank; means of a step, or of the whole trace where it marks none.

    Attributes:
        rank: The rank.
        steps: How many steps the means are of; 0 for the whole trace.
        total_us: Time of all device events.
        modules_us: The part of it that belongs to modules.
        owned: The share of it that has a module or a named owner.
        joins_backward: Whether the trace has the numbers that join backward passes with modules.
        owners: What belongs to no module: ``optimizer``, ``data``, ``communication``, ``copies``, ``outside``,
            ``graph``, ``not_launched``.
        outside: The operators with the most time among ``outside``.
        modules: Every module, each after the one that it is in.
    """

    rank: int | None
    steps: int
    total_us: float
    modules_us: float
    owned: float | None
    joins_backward: bool
    owners: dict[str, OwnerTimeData]
    outside: list[OutsideOperatorData]
    modules: list[ModuleData]


class ModulesData(Windowed):
    """``results.modules``: what every module costs the device.

    Attributes:
        ranks: Each rank.
    """

    ranks: list[RankModulesData]


class OperatorWorkData(TypedDict):
    """The calls of an operator with inputs of the same shapes and types, or of a collective; means of a step.

    Attributes:
        operator: Its name.
        category: Its kind: ``matrix product``, ``norm``, ``elementwise`` and so on; ``other`` for an unknown one.
        inputs: Its tensors in words; absent where the trace does not state them.
        dtype: The data type that it computes in; absent where it is not known.
        calls: How often it is called.
        kernels: Device events that it launches.
        device_us: Their time.
        flops_per_call: Operations of a call; absent where they cannot be counted.
        bytes_per_call: What a call reads and writes at least, or moves over a link; absent where it cannot be counted.
        tflops, tb_s: What it attains; absent likewise.
        bound: ``compute``, ``memory`` or ``link``; absent where no ceiling is known.
        share: Attainable time over measured time; absent where it is not known or doubted.
        regain_us: Measured less attainable time; absent likewise.
        tensor_share: Share of its time in kernels that multiply on tensor cores; absent without operations.
        doubt: Why the share is doubted; absent where it is not.
    """

    operator: str
    category: str
    inputs: str | None
    dtype: str | None
    calls: float
    kernels: float
    device_us: float
    flops_per_call: float | None
    bytes_per_call: float | None
    tflops: float | None
    tb_s: float | None
    bound: str | None
    share: float | None
    regain_us: float | None
    tensor_share: float | None
    doubt: str | None


class CategoryTimeData(TypedDict):
    """Operators of one kind; means of a step.

    Attributes:
        category: The kind.
        calls: How often they are called.
        kernels: Device events that they launch.
        device_us: Their time.
    """

    category: str
    calls: float
    kernels: float
    device_us: float


class RankWorkData(TypedDict):
    """The operators of one rank; means of a step, or of the whole trace where it marks none.

    Attributes:
        rank: The rank.
        steps: How many steps the means are of; 0 for the whole trace.
        device_name: The GPU; absent where the trace does not state one.
        memory_tb_s: The ceiling of its memory; absent where none is known.
        total_us: Time of all device events.
        has_shapes: Whether the trace states inputs of operators.
        graphs_us: Time of kernels in CUDA graphs, whose operators are not known.
        categories: Operators by kind, the most time first.
        operators: Every operator, the one first that would regain the most.
    """

    rank: int | None
    steps: int
    device_name: str | None
    memory_tb_s: float | None
    total_us: float
    has_shapes: bool
    graphs_us: float
    categories: list[CategoryTimeData]
    operators: list[OperatorWorkData]


class RooflineData(Windowed):
    """``results.roofline``: how far operators are from what the GPU can do.

    Attributes:
        ceilings: ``measured`` by `perfscope ceiling`, or ``datasheet``.
        ranks: Each rank.
    """

    ceilings: str
    ranks: list[RankWorkData]
