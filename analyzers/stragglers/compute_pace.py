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
kernels never run during communication. Only these are compared where there are any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Annotated

import numpy as np
from msgspec import Struct

from perfscope.analyzers.shared.kernel_medians import KernelMedians
from perfscope.analyzers.shared.marked_steps import common_steps
from perfscope.result import Doc, Figures
from perfscope.tables.columns import Float64
from perfscope.tables.trace import ABSENT

#: Kernels with other grids than on another rank take at least this share of its time where the inputs differ in size.
_RESIZED = 0.1


class Pace(Struct, frozen=True):
    """One rank in the comparison; ``relative_compute`` is absent where the inputs differ in size."""

    relative_compute: float | None
    relative_work: float


class PaceComparison(Figures, frozen=True):
    """How ranks are compared; ``paces`` are by rank."""

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


def compare(kernels: Mapping[int, KernelMedians]) -> PaceComparison | None:
    """Compare ranks over the kernels that all of them have; None where there are none, or no step in common."""
    ranks = list(kernels.values())
    steps = common_steps(own.steps for own in ranks)
    common = reduce(np.intersect1d, (own.keys for own in ranks)) if ranks else np.zeros(0, np.int64)
    if len(ranks) == 1 or not steps or not len(common):
        return None
    columns = [np.searchsorted(own.keys, common) for own in ranks]
    calls = np.stack([own.calls[column] / len(own.steps) for own, column in zip(ranks, columns, strict=True)])
    time = calls * np.stack([own.median_ns[column] for own, column in zip(ranks, columns, strict=True)])
    # Kernels of one name and grid may differ in what they do; called equally often, they are the same mixture.
    chosen = (calls == calls[0]).all(axis=0)
    if not chosen.any():
        return None
    is_resized = _differ_in_size(ranks)
    if is_resized:
        chosen &= ranks[0].of_parameters[columns[0]]
    alone = chosen & np.all([own.is_alone[column] for own, column in zip(ranks, columns, strict=True)], axis=0)
    is_alone = bool(alone.any())
    chosen = alone if is_alone else chosen
    times = (time * chosen).sum(axis=1)
    paces = times.min() / times if times.all() else None
    if is_resized:
        whole = np.array([float((own.calls * own.median_ns).sum() + own.other_ns) / len(own.steps) for own in ranks])
        work = whole * (1.0 if paces is None else paces)
    else:
        work = _work_at_the_fastest(ranks)
    if not work.all() or (paces is None and not is_resized):
        return None
    by_rank = {
        rank: Pace(None if paces is None else float(paces[row]), float(work[row] / work.min()))
        for row, rank in enumerate(kernels)
    }
    numbers = tuple(step for step in steps if step != ABSENT)
    return PaceComparison(by_rank, numbers, int(chosen.sum()), is_alone, is_resized)


def _work_at_the_fastest(ranks: Sequence[KernelMedians]) -> Float64:
    least: dict[int, int] = {}
    for own in ranks:
        for key, time_ns in zip(own.keys.tolist(), own.median_ns.tolist(), strict=True):
            least[key] = min(time_ns, least.get(key, time_ns))
    return np.array(
        [
            ((own.calls * np.array([least[key] for key in own.keys.tolist()])).sum() + own.other_ns) / len(own.steps)
            for own in ranks
        ]
    )


def _differ_in_size(ranks: Sequence[KernelMedians]) -> bool:
    first, *others = [_launches(own) for own in ranks]
    common = {
        name for name in first if all(sum(own.get(name, {}).values()) == sum(first[name].values()) for own in others)
    }
    resized = [name for name in common if any(own[name] != first[name] for own in others)]
    time = [own.calls * own.median_ns for own in ranks]
    return all(
        own_time[np.isin(own.names, resized)].sum() >= _RESIZED * own_time.sum()
        for own, own_time in zip(ranks, time, strict=True)
    )


def _launches(kernels: KernelMedians) -> dict[int, dict[int, float]]:
    grids: dict[int, dict[int, float]] = {}
    calls = (kernels.calls / len(kernels.steps)).tolist()
    for key, name, count in zip(kernels.keys.tolist(), kernels.names.tolist(), calls, strict=True):
        grids.setdefault(name, {})[key] = count
    return grids
