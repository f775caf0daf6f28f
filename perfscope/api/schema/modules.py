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
