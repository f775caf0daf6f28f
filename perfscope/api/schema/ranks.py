"""What ranks do together: overlap, collectives, stragglers and clocks."""

from typing import TypedDict

from perfscope.api.schema.windowed import Windowed


class ComparedRanksData(TypedDict):
    """How the computing of ranks is compared.

    Attributes:
        steps: The marked steps; empty for whole windows.
        kernels: How many different kernels are compared.
        without_communication: Whether only their runs without communication beside them are.
        sizes_differ: Whether the inputs of the ranks differ in size, so that only kernels of the optimizer are.
    """

    steps: list[int]
    kernels: int
    without_communication: bool
    sizes_differ: bool


class WaitKindData(TypedDict):
    """A kind of operation in which a rank came last.

    Attributes:
        operation: ``all_reduce`` and so on.
        bytes: Its size.
        caused_wait_us: The wait that it caused.
    """

    operation: str | None
    bytes: int | None
    caused_wait_us: float


class GroupRankData(TypedDict):
    """One rank in one group.

    Attributes:
        rank: The rank.
        wait_us: How long it waited for others.
        communication_us: How long its operations took.
        caused_wait_us: How long the other ranks waited for it, the mean of them.
        came_last: In how many operations it arrived last.
        reason: Why it came last, in words.
        excess_us: How much longer than the mean of the others it took, by part.
    """

    rank: int | None
    wait_us: float
    communication_us: float
    caused_wait_us: float
    came_last: int
    reason: str | None
    excess_us: dict[str, float] | None


#: ``in`` is a keyword of Python, so that no class can declare it: the kinds in which the straggler came last.
_GroupWaitKinds = TypedDict("_GroupWaitKinds", {"in": list[WaitKindData]})


class GroupWaitData(_GroupWaitKinds):
    """The waits in one group. Its key ``in`` lists the kinds of operations in which the straggler came last.

    Attributes:
        group: Its name.
        description: What the framework calls it.
        axis: The axis of parallelism.
        operations: How many operations were matched.
        pipeline: Whether its ranks are stages of one pipeline, which wait for each other by design.
        straggler: The rank that caused the longest wait.
        caused_wait_us: That wait.
        ranks: Each rank.
    """

    group: str | None
    description: str | None
    axis: str | None
    operations: int
    pipeline: bool
    straggler: int | None
    caused_wait_us: float
    ranks: list[GroupRankData]


class StepWaitData(TypedDict):
    """The wait that a rank caused in a step.

    Attributes:
        step: Its number; None where steps are not marked.
        us: The wait.
    """

    step: int | None
    us: float


class RankPaceData(TypedDict):
    """One rank over all groups.

    Attributes:
        rank: The rank.
        caused_wait_us: The wait that it caused.
        wait_us: The wait that it had.
        compute_us: Its compute time in the whole window.
        relative_compute: The fastest rank's time for the same kernels over this rank's; at most 1. None where inputs
            differ in size, and no kernel of the optimizer can be compared.
        relative_work: This rank's work over that of the rank with the least; at least 1.
        caused_wait_by_step: The wait that it caused in each step.
    """

    rank: int | None
    caused_wait_us: float
    wait_us: float
    compute_us: float
    relative_compute: float | None
    relative_work: float | None
    caused_wait_by_step: list[StepWaitData]


class StragglersData(Windowed):
    """``results.stragglers``: which rank makes the others wait, and why.

    Attributes:
        straggler: The rank that caused most waiting beyond its own; None where that is below ``significant_us``.
        significant_us: The wait that makes a rank a straggler: a hundredth of the time.
        compared: How ranks are compared; None where they cannot be.
        groups: Each group, the one with the longest caused wait first.
        ranks: Each rank.
    """

    straggler: int | None
    significant_us: float
    compared: ComparedRanksData | None
    groups: list[GroupWaitData]
    ranks: list[RankPaceData]
