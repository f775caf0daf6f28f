"""How fast each rank's device computes, apart from how much it has to compute.

Ranks are compared over kernels that all of them ran: of the same name and, where the trace states it, the same grid.
*Relative compute* compares how long these same kernels take: the fastest rank's time over a rank's own. Each kernel has
its median and counts equally often on all ranks. *Relative work* compares how much there is to do: a rank's kernels
over the kernels of the rank that has least. Here each kernel has the median of the rank on which it is fastest. So a
slow device lowers the first figure, and more or larger kernels raise the second one. Kernels of one name and grid need
not do the same, but called equally often on all ranks they are the same mixture: others are not compared.

Products, attention and sums of recent libraries have a grid as large as the GPU, whatever they compute. Where kernels
that all ranks launch equally often have other grids on some of them, the inputs differ in size. Kernels of equal grids
then say nothing, either. Only kernels of the optimizer are compared, because their work depends on the parameters
alone. A rank's work is the time of all of its kernels at the pace of the fastest rank.

A kernel that runs during a collective's wait takes up to twice its time, which says nothing about the device. Some
kernels never run during communication. Only these are compared if they make up a tenth of the common kernels' time on
every rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Annotated, NamedTuple

import numpy as np
from msgspec import Struct

from perfscope.analyzers.shared.kernel_medians import KernelMedians
from perfscope.analyzers.shared.marked_steps import common_steps
from perfscope.result import Doc, Figures
from perfscope.tables.columns import Float64, Int64
from perfscope.tables.trace import ABSENT

_ENOUGH_ALONE = 0.1
_FEWEST_RANKS = 2
#: Kernels with other grids than on another rank take at least this share of its time where the inputs differ in size.
_RESIZED = 0.1


class Pace(Struct, frozen=True):
    """One rank in the comparison.

    Attributes:
        relative_compute: The fastest rank's time for the same kernels over this rank's; at most 1. Absent where the
            inputs differ in size, and no kernel of the optimizer can be compared.
        relative_work: This rank's work over that of the rank with the least; at least 1.
    """

    relative_compute: float | None
    relative_work: float


class Comparison(Figures, frozen=True):
    """How ranks are compared.

    Attributes:
        paces: By rank.
    """

    paces: Mapping[int, Pace]
    steps: Annotated[tuple[int, ...], Doc("The marked steps; empty for whole windows.")]
    kernels: Annotated[int, Doc("How many different kernels are compared.")]
    without_communication: Annotated[
        bool, Doc("Whether only their runs without communication beside them are compared.")
    ]
    sizes_differ: Annotated[
        bool, Doc("Whether the inputs of the ranks differ in size, so that only kernels of the optimizer are compared.")
    ]

    def sentence(self) -> str:
        """What is compared, in words."""
        if self.sizes_differ:
            return (
                "The inputs of the ranks differ in size: kernels of one grid need not do the same. Relative compute "
                f"compares {self.kernels} kernels of the optimizer alone: the fastest rank's time over a rank's own. "
                "Relative work is the time of all kernels at the pace of the fastest rank, 1 for the least."
            )
        beside = "while the device did not communicate" if self.without_communication else "also beside communication"
        return (
            f"Relative compute compares the medians of {self.kernels} kernels that all ranks ran equally often, "
            f"{beside}: the fastest rank's time over a rank's own. Relative work is how much a rank has to compute, 1 "
            "for the least."
        )


def compare(kernels: Mapping[int, KernelMedians]) -> Comparison | None:
    """Compare ranks over the steps and the kernels that all of them have; None where there are none.

    Args:
        kernels: The kernels of each rank.
    """
    if len(kernels) < _FEWEST_RANKS:
        return None
    steps = common_steps(medians.steps for medians in kernels.values())
    common = reduce(_in_both, (medians.keys for medians in kernels.values()))
    if not steps or not len(common):
        return None
    sums = [_Sums.of(medians, steps) for medians in kernels.values()]
    calls, times, alone, times_alone = (
        np.stack(rows) for rows in zip(*(own.take(common) for own in sums), strict=True)
    )
    # Kernels of one name and grid may differ in what they do; called equally often, they are the same mixture.
    ran_everywhere = (calls > 0).all(axis=0) & (calls == calls[0]).all(axis=0)
    if not ran_everywhere.any():
        return None
    is_resized = _differ_in_size(sums)
    if is_resized:
        first = sums[0].kernels
        ran_everywhere &= first.of_parameters[np.searchsorted(first.keys, common)]
    ran_alone = ran_everywhere & (alone == calls).all(axis=0)
    of_everywhere = (calls * times * ran_everywhere).sum(axis=1)
    of_alone = (calls * times * ran_alone).sum(axis=1)
    is_alone = bool((of_alone / np.maximum(of_everywhere, 1) >= _ENOUGH_ALONE).all())
    chosen = ran_alone if is_alone else ran_everywhere
    time = (calls * times_alone * ran_alone).sum(axis=1) if is_alone else of_everywhere
    paces = time.min() / time if time.all() else None
    others = np.array([own.other_ns for own in sums])
    if is_resized:
        own_work = np.array([float((own.calls * own.times).sum()) for own in sums])
        work = (own_work + others) * (1.0 if paces is None else paces)
    else:
        work = _work_at_the_fastest(sums) + others
    if not work.all() or (paces is None and not is_resized):
        return None
    relative = np.full(len(sums), np.nan) if paces is None else paces
    by_rank = {
        rank: Pace(None if paces is None else float(pace), float(more))
        for rank, pace, more in zip(kernels, relative, work / work.min(), strict=True)
    }
    numbers = tuple(step for step in steps if step != ABSENT)
    return Comparison(by_rank, numbers, int(chosen.sum()), is_alone, is_resized)


def _in_both(first: Int64, second: Int64) -> Int64:
    if np.array_equal(first, second):  # most ranks run the same kernels
        return first
    return np.intersect1d(first, second, assume_unique=True)


class _Sums(NamedTuple):
    """The kernels of a rank over some steps: a value a kernel.

    Attributes:
        kernels: What the rank sent.
        calls: How often each kernel ran.
        times: The medians of the steps' medians.
        alone, times_alone: Both of those that ran alone.
        other_ns: The time of all other kernels.
    """

    kernels: KernelMedians
    calls: Int64
    times: Float64
    alone: Int64
    times_alone: Float64
    other_ns: int

    @classmethod
    def of(cls, kernels: KernelMedians, steps: Sequence[int]) -> _Sums:
        rows = [kernels.steps.index(step) for step in steps]
        return cls(
            kernels,
            kernels.calls[rows].sum(axis=0),
            _median_of_present(kernels.median_ns[rows]),
            kernels.calls_alone[rows].sum(axis=0),
            _median_of_present(kernels.median_alone_ns[rows]),
            int(kernels.other_ns[rows].sum()),
        )

    def take(self, common: Int64) -> tuple[Int64, Float64, Int64, Float64]:
        """The columns of some kernels."""
        columns = np.searchsorted(self.kernels.keys, common)
        return self.calls[columns], self.times[columns], self.alone[columns], self.times_alone[columns]

    def launches(self) -> dict[int, dict[int, int]]:
        """How often the kernels of each name were launched with each grid."""
        grids: dict[int, dict[int, int]] = {}
        columns = self.kernels.keys.tolist(), self.kernels.names.tolist(), self.calls.tolist()
        for key, name, count in zip(*columns, strict=True):
            if count:
                grids.setdefault(name, {})[key] = count
        return grids


def _work_at_the_fastest(sums: Sequence[_Sums]) -> Float64:
    """The time of each rank's kernels, each with the least median that it has on any rank."""
    least: dict[int, float] = {}
    for own in sums:
        for key, time_ns in zip(own.kernels.keys.tolist(), own.times.tolist(), strict=True):
            if time_ns > 0:
                least[key] = min(time_ns, least.get(key, time_ns))
    return np.array(
        [(own.calls * np.array([least.get(key, 0.0) for key in own.kernels.keys.tolist()])).sum() for own in sums]
    )


def _differ_in_size(sums: Sequence[_Sums]) -> bool:
    """Whether kernels that all ranks launch equally often have other grids on some of them."""
    first = sums[0].launches()
    common, resized = set(first), set()
    for own in sums[1:]:
        grids = own.launches()
        common = {name for name in common if sum(grids.get(name, {}).values()) == sum(first[name].values())}
        resized |= {name for name in common if grids[name] != first[name]}
    resized &= common
    for own in sums:
        time = own.calls * own.times
        is_resized = np.array([name in resized for name in own.kernels.names.tolist()], np.bool_)
        if time[is_resized].sum() < _RESIZED * time.sum():
            return False
    return True


def _median_of_present(values: Int64) -> Float64:
    """The median of each column without its zeros; 0 of nothing else."""
    ordered, present = np.sort(values, axis=0), (values > 0).sum(axis=0)
    first, last = len(values) - present, len(values) - 1
    places = np.stack([first + (present - 1) // 2, first + present // 2])
    pairs = np.take_along_axis(ordered, np.minimum(places, last), axis=0)
    return np.where(present > 0, (pairs[0] + pairs[1]) / 2, 0.0)
