"""How fast each rank's device computes, apart from how much it has to compute.

Ranks are compared over kernels that all of them ran: of the same name and, where the trace states it, the same grid.
*Relative compute* compares how long these same kernels take: the fastest rank's time over a rank's own, each kernel
with its median and counted equally often on all ranks. *Relative work* compares how much there is to do: a rank's
kernels, each with the median of the rank on which it is fastest, over those of the rank that has least. So a slow
device lowers the first figure, and more or larger kernels raise the second one. Kernels of one name and grid need not
do the same, but called equally often on all ranks they are the same mixture: others are not compared.

Products, attention and sums of recent libraries have a grid as large as the GPU, whatever they compute. Where kernels
that all ranks launch equally often have other grids on some of them, the inputs differ in size, and those of equal
grids say nothing either. Then only kernels of the optimizer are compared, whose work is that of the parameters; a
rank's work is the time of all of its kernels at the pace of the fastest rank.

A kernel beside a collective that waits takes up to twice its time, which says nothing about the device. Where kernels
that never run while the device communicates make up a tenth of the time of the common ones on every rank, only these
are compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import groupby, islice
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from perfscope.analyzers.shared.kernel_medians import KernelMedians
from perfscope.analyzers.shared.marked_steps import common_steps
from perfscope.constants import MANY_RANKS
from perfscope.report import Json
from perfscope.tables.columns import Bool, Float64, Int64
from perfscope.tables.trace import ABSENT

#: Ranks whose kernels are computed at once.
_AT_ONCE = 256
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


class Comparison(Struct, frozen=True):
    """The paces of ranks.

    Attributes:
        paces: By rank.
        steps: The marked steps that they are compared over; empty for their whole windows.
        kernels: How many different kernels are compared.
        is_alone: Whether only their runs without communication beside them are compared.
        is_resized: Whether the inputs of the ranks differ in size.
    """

    paces: Mapping[int, Pace]
    steps: tuple[int, ...]
    kernels: int
    is_alone: bool
    is_resized: bool

    def data(self) -> dict[str, Json]:
        """``results.stragglers.compared``."""
        return {
            "steps": list(self.steps),
            "kernels": self.kernels,
            "without_communication": self.is_alone,
            "sizes_differ": self.is_resized,
        }

    def sentence(self) -> str:
        """What is compared, in words."""
        if self.is_resized:
            return (
                "The inputs of the ranks differ in size: kernels of one grid need not do the same. Relative compute "
                f"compares {self.kernels} kernels of the optimizer alone: the fastest rank's time over a rank's own. "
                "Relative work is the time of all kernels at the pace of the fastest rank, 1 for the least."
            )
        beside = "while the device did not communicate" if self.is_alone else "also beside communication"
        return (
            f"Relative compute compares the medians of {self.kernels} kernels that all ranks ran equally often, "
            f"{beside}: the fastest rank's time over a rank's own. Relative work is how much a rank has to compute, 1 "
            "for the least."
        )


class Paces(Mapping[int, Pace]):
    """The pace of each rank, as columns: of very many ranks they take a tenth of the memory of as many objects.

    Args:
        ranks: Their numbers, in any order.
        compute, work: The two figures of each; no ``compute`` where it is absent.
    """

    def __init__(self, ranks: Sequence[int], compute: Float64 | None, work: Float64) -> None:
        order = np.argsort(np.array(ranks, np.int64), kind="stable")
        self._ranks: Int64 = np.array(ranks, np.int64)[order]
        self._compute, self._work = None if compute is None else compute[order], work[order]

    def __getitem__(self, rank: int) -> Pace:
        row = int(self._ranks.searchsorted(rank))
        if row == len(self._ranks) or self._ranks[row] != rank:
            raise KeyError(rank)
        return Pace(None if self._compute is None else float(self._compute[row]), float(self._work[row]))

    def __iter__(self) -> Iterator[int]:
        return iter(self._ranks.tolist())

    def __len__(self) -> int:
        return len(self._ranks)


def compare(ranks: Sequence[int], kernels: Sequence[KernelMedians]) -> Comparison | None:
    """Compare ranks over the steps and the kernels that all of them have; None where there are none.

    The kernels are read several times, those of a few ranks at once.

    Args:
        ranks: The numbers of the ranks.
        kernels: The kernels of each.
    """
    if len(ranks) < _FEWEST_RANKS:
        return None
    steps = common_steps(medians.steps for medians in kernels)
    common = reduce(_in_both, (medians.keys for medians in kernels))
    if not steps or not len(common):
        return None
    blocks = _Blocks(kernels, steps)
    survey = _Survey(common)
    for block in blocks:
        survey.add(block)
    # Kernels of one name and grid may differ in what they do; called equally often, they are the same mixture.
    if not survey.ran_everywhere.any():
        return None
    ran_everywhere, is_resized = survey.ran_everywhere, _differ_in_size(survey.launches(), blocks)
    if is_resized:
        ran_everywhere = ran_everywhere & kernels[0].of_parameters[np.searchsorted(kernels[0].keys, common)]
    ran_alone = ran_everywhere & survey.ran_alone
    of_blocks = [_sum_up(block, common, ran_everywhere, ran_alone, survey.least) for block in blocks]
    of_everywhere, of_alone, times_alone, work, times, others = map(np.concatenate, zip(*of_blocks, strict=True))
    is_alone = bool((of_alone / np.maximum(of_everywhere, 1) >= _ENOUGH_ALONE).all())
    chosen = ran_alone if is_alone else ran_everywhere
    time = times_alone if is_alone else of_everywhere
    paces = time.min() / time if time.all() else None
    work = (times + others) * (1.0 if paces is None else paces) if is_resized else work + others
    if not work.all() or (paces is None and not is_resized):
        return None
    numbers = tuple(step for step in steps if step != ABSENT)
    return Comparison(Paces(ranks, paces, work / work.min()), numbers, int(chosen.sum()), is_alone, is_resized)


def _in_both(first: Int64, second: Int64) -> Int64:
    if np.array_equal(first, second):  # most ranks run the same kernels
        return first
    return np.intersect1d(first, second, assume_unique=True)


class _Block(NamedTuple):
    """The kernels of neighbours that have the same steps and kernels, over some steps: a row a rank, a column a kernel.

    Attributes:
        kernels: What the ranks sent.
        others: The time of all other kernels of each.
        calls: How often each kernel ran.
        times: The medians of the steps' medians.
        alone, times_alone: Both of those that ran alone.
    """

    kernels: Sequence[KernelMedians]
    others: Int64
    calls: Int64
    times: Float64
    alone: Int64
    times_alone: Float64

    def of_kernels(self, common: Int64) -> _Block:
        """The columns of some kernels."""
        keys = self.kernels[0].keys
        if len(keys) == len(common):
            return self
        columns = np.searchsorted(keys, common)
        return _Block(
            self.kernels,
            self.others,
            np.take(self.calls, columns, axis=1),
            np.take(self.times, columns, axis=1),
            np.take(self.alone, columns, axis=1),
            np.take(self.times_alone, columns, axis=1),
        )


class _Blocks(Iterable[_Block]):
    """The kernels of the ranks in their order, those of few at once: columns of very many would fill the memory."""

    def __init__(self, kernels: Sequence[KernelMedians], steps: Sequence[int]) -> None:
        self._kernels, self._steps = kernels, steps
        self._kept = None if len(kernels) > MANY_RANKS else tuple(_cut(kernels, steps))

    def __iter__(self) -> Iterator[_Block]:
        return _cut(self._kernels, self._steps) if self._kept is None else iter(self._kept)


def _cut(kernels: Iterable[KernelMedians], steps: Sequence[int]) -> Iterator[_Block]:
    for (own_steps, _), neighbours in groupby(kernels, lambda medians: (medians.steps, medians.keys.tobytes())):
        rows = [own_steps.index(step) for step in steps]
        while alike := list(islice(neighbours, _AT_ONCE)):
            yield _Block(
                alike,
                np.stack([medians.other_ns for medians in alike])[:, rows].sum(axis=1, dtype=np.int64),
                np.stack([medians.calls for medians in alike])[:, rows].sum(axis=1),
                _median_of_present(np.stack([medians.median_ns for medians in alike])[:, rows]),
                np.stack([medians.calls_alone for medians in alike])[:, rows].sum(axis=1),
                _median_of_present(np.stack([medians.median_alone_ns for medians in alike])[:, rows]),
            )


class _Survey:
    """What all ranks have in common, by the kernels that all of them have."""

    def __init__(self, common: Int64) -> None:
        self._common = common
        self._first_calls: Int64 | None = None
        self._of_pattern: dict[tuple[bytes, ...], dict[int, dict[int, int]]] = {}  # most ranks launch the same
        self.ran_everywhere = self.ran_alone = np.ones(len(common), np.bool_)
        #: The least median of each kernel on any rank, by its key.
        self.least: dict[int, float] = {}

    def add(self, block: _Block) -> None:
        """Add the ranks of a block."""
        shared = block.of_kernels(self._common)
        calls, alone = shared.calls, shared.alone
        first = calls[0] if self._first_calls is None else self._first_calls
        self._first_calls = first
        self.ran_everywhere = self.ran_everywhere & (calls > 0).all(axis=0) & (calls == first).all(axis=0)
        self.ran_alone = self.ran_alone & (alone == calls).all(axis=0)
        least = np.where(block.times > 0, block.times, np.inf).min(axis=0)
        for key, median_ns in zip(block.kernels[0].keys.tolist(), least.tolist(), strict=True):
            self.least[key] = min(median_ns, self.least.get(key, np.inf))
        for medians, of_rank in zip(block.kernels, block.calls, strict=True):
            pattern = medians.keys.tobytes(), medians.names.tobytes(), of_rank.tobytes()
            if pattern not in self._of_pattern:
                self._of_pattern[pattern] = _launches(medians, of_rank)

    def launches(self) -> list[dict[int, dict[int, int]]]:
        """How often ranks launched the kernels of each name with each grid; once for all ranks that did the same."""
        return list(self._of_pattern.values())


def _sum_up(
    block: _Block, common: Int64, ran_everywhere: Bool, ran_alone: Bool, least: Mapping[int, float]
) -> tuple[Float64 | Int64, ...]:
    """Times of each rank of a block.

    Of the kernels that all ranks ran; of those that all ran alone, beside communication and not; of all kernels by
    their least medians, and by the rank's own; and of the kernels that are not listed.
    """
    shared = block.of_kernels(common)
    medians = np.array([least[key] for key in block.kernels[0].keys.tolist()])
    medians[~np.isfinite(medians)] = 0
    own = [float((calls * times).sum()) for calls, times in zip(block.calls, block.times, strict=True)]
    return (
        (shared.calls * shared.times * ran_everywhere).sum(axis=1),
        (shared.calls * shared.times * ran_alone).sum(axis=1),
        (shared.calls * shared.times_alone * ran_alone).sum(axis=1),
        (block.calls * np.broadcast_to(medians, block.calls.shape)).sum(axis=1),
        np.array(own),
        block.others,
    )


def _differ_in_size(launches: Sequence[Mapping[int, Mapping[int, int]]], blocks: Iterable[_Block]) -> bool:
    """Whether kernels that all ranks launch equally often have other grids on some of them."""
    common = set.intersection(*(set(grids) for grids in launches))
    resized = {
        name
        for name in common
        if len({sum(grids[name].values()) for grids in launches}) == 1
        and any(grids[name] != launches[0][name] for grids in launches)
    }
    for block in blocks:
        for medians, calls, median_ns in zip(block.kernels, block.calls, block.times, strict=True):
            time = calls * median_ns
            is_resized = np.array([name in resized for name in medians.names.tolist()], np.bool_)
            if time[is_resized].sum() < _RESIZED * time.sum():
                return False
    return True


def _launches(medians: KernelMedians, calls: Int64) -> dict[int, dict[int, int]]:
    """How often the kernels of each name were launched with each grid."""
    grids: dict[int, dict[int, int]] = {}
    for key, name, count in zip(medians.keys.tolist(), medians.names.tolist(), calls.tolist(), strict=True):
        if count:
            grids.setdefault(name, {})[key] = count
    return grids


def _median_of_present(values: Int64) -> Float64:
    """The median of each rank's columns without its zeros; 0 of nothing else. Values are by rank, step and column."""
    ordered, present = np.sort(values, axis=1), (values > 0).sum(axis=1)
    steps = values.shape[1]
    first, last = steps - present, steps - 1
    places = np.stack([first + (present - 1) // 2, first + present // 2], axis=1)
    pairs = np.take_along_axis(ordered, np.minimum(places, last), axis=1)
    return np.where(present > 0, (pairs[:, 0] + pairs[:, 1]) / 2, 0.0)
