"""What ranks do together: overlap, collectives, stragglers and clocks."""

from typing import TypedDict

from perfscope.api.schema.windowed import Windowed


class CollectiveData(TypedDict):
    """One kind of collective over all groups of one axis and size.

    Attributes:
        operation: ``all_reduce`` and so on.
        axis: The axis of parallelism.
        group_size: Ranks in a group.
        ranks_seen: The fewest ranks of a group whose traces were given.
        dtype: Its element type.
        bytes: Its size.
        calls: How many times groups called it.
        duration_us: Time over all ranks.
        wait_us: How much of it was waiting for the last rank to arrive; None where operations could not be matched.
        wait_fraction: ``wait_us / duration_us``.
        transfer_us: Median over operations of the shortest duration on any rank.
        algbw_gb_s: ``bytes / transfer_us``, in 10**9 bytes a second, as in nccl-tests.
        busbw_gb_s: ``algbw_gb_s`` times what moves over the slowest link: 2(n-1)/n for all_reduce, (n-1)/n for
            all_gather, reduce_scatter, all_to_all, gather and scatter, 1 for others.
        is_lower_bound: Whether ranks of a group are missing, so that the transfer may include waiting.
        doubt: Why the bandwidth is withheld.
        overlap_fraction: Share of its time during which compute runs.
    """

    operation: str | None
    axis: str | None
    group_size: int | None
    ranks_seen: int
    dtype: str | None
    bytes: int | None
    calls: int
    duration_us: float
    wait_us: float | None
    wait_fraction: float | None
    transfer_us: float | None
    algbw_gb_s: float | None
    busbw_gb_s: float | None
    is_lower_bound: bool
    doubt: str | None
    overlap_fraction: float | None


class CollectivesData(Windowed):
    """``results.collectives``: how fast each collective is, and how much of it is waiting.

    Attributes:
        operations: The most expensive first.
        unmatched: Operations that could not be matched across ranks.
        notes: What a reader must know.
    """

    operations: list[CollectiveData]
    unmatched: int
    notes: list[str]


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


class RankClockData(TypedDict):
    """One rank's clock against the reference's.

    Attributes:
        rank: The rank.
        host: Its machine; None where not stated.
        offset_us: Its clock's time minus the reference's; None where no collective connects them.
        residual_us: The uncertainty of the offset.
        operations: The fewest collectives that a connection rests on.
        drift_us_per_s: What its clock gains in a second; None where the window is too short.
    """

    rank: int
    host: str | None
    offset_us: float | None
    residual_us: float | None
    operations: int
    drift_us_per_s: float | None


class ClockData(Windowed):
    """``results.clock``: how far the clocks of ranks are apart.

    Attributes:
        reference_rank: The rank whose clock the others are compared with.
        one_host: Whether all ranks ran on one machine; None where a trace does not name it.
        ranks: Each rank.
    """

    reference_rank: int
    one_host: bool | None
    ranks: list[RankClockData]
