"""How long the passes of a pipeline's stages take on their devices, by what they multiply with.

Stages have different work by design: layers, the embedding of the first, the head of the last. What is compared is
therefore the time of a stage's passes over the parameters that are multiplied with, all those of the last stage, whose
embedding may be its head. Passes are timed on the device, in each step, from when their inputs are there.

Stages differ by more than a device does that another process uses now and then. But micro-batches of a stage are alike:
the fastest pass of a step shows what the device does by itself, and the others how much is taken from it.

A device whose host comes late waits for launches in its passes, and then it is the host that takes longer. For how long
it may have waited at most is recorded: a stage that takes longer even without that has a slow device. But a device can
work most of that time. Layers are alike and launched at an even pace: a device that waits for launches is done soon
after the last one. Where each kind of passes goes on for long after that, as behind a host that waits for its device
ahead of them, a stage that takes longer by more than its launches do has a slow device, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import NamedTuple

from perfscope.tables.micro_batches import MicroBatches
from perfscope.tables.model import Model
from perfscope.tables.run import Run

#: Fewer steps say nothing.
_FEWEST_STEPS = 5
#: By parameter stages differ by less than this.
SLOW_STAGE = 1.25
#: A collective beside a pass makes that one up to a quarter longer, and all passes of a step by less than this.
_SLOW_AT_TIMES = 1.1
#: Passes that are bound by their launches may have waited for them for more than this part.
_MOST_OF_LAUNCHES = 0.75
#: What is longer than the launches are by this ratio is longer by more than them.
_BEYOND_LAUNCHES = 1.1
#: Axes of parallelism whose ranks exchange nothing inside of passes.
_OUTSIDE = ("pp", "dp")
#: From this stage of ZeRO on passes gather parameters.
_FIRST_SHARDED_STAGE = 3


@dataclass(frozen=True, slots=True)
class StagePace:
    """The passes of one rank.

    Attributes:
        passes_ns: Of a step, a median.
        steps: In how many steps they were timed.
        relative: By parameter, over the median of the other ranks; or by the fastest passes of each step, where only
            that is slow.
        limit: From which ratio on it is slow.
        least: The least ratio that its device can have by itself; None where its waits for launches were not recorded.
    """

    passes_ns: int
    steps: int
    relative: float
    limit: float = SLOW_STAGE
    least: float | None = None

    def is_of_device(self, *, is_ahead: bool) -> bool:
        """Whether ``relative`` is that of its device, and not of its host.

        Args:
            is_ahead: Whether other steps show that the device is behind its host; asked where waits were not recorded.
        """
        return is_ahead if self.least is None else self.relative < self.limit or self.least >= self.limit


def compare_stages(run: Run) -> dict[int, StagePace]:
    """The pace of each rank of a pipeline; empty where passes were not timed, or hold exchanges."""
    records: dict[int, list[MicroBatches]] = {}
    for record in run.micro_batches:
        records.setdefault(record.rank, []).append(record)
    models = {model.rank: model for model in run.models if model.weights}
    timed = {rank: own for rank, own in records.items() if len(own) >= _FEWEST_STEPS and rank in models}
    if len(timed) < 2 or _exchange_inside(run) or _differ(list(models.values())):  # noqa: PLR2004 - a pair
        return {}
    last = {rank for rank, own in records.items() if any(record.device == record.devices - 1 for record in own)}
    multiplied = {rank: _multiplied(models[rank], is_last=rank in last) for rank in timed}
    timed = {rank: own for rank, own in timed.items() if multiplied[rank]}
    passes = _medians(timed, lambda record: record.busy_ns)
    launches = _ratios(_medians(timed, lambda record: _per(record.launch_ns, multiplied[record.rank])))
    shares = _medians(timed, lambda record: record.wait_share)
    compared = _Comparison(
        _medians(timed, lambda record: record.busy_ns / multiplied[record.rank]),
        _medians(timed, lambda record: _per(record.worked_ns, multiplied[record.rank])),
        {rank: max(1.0, ratio) for rank, ratio in launches.items() if shares.get(rank, 1.0) <= _MOST_OF_LAUNCHES},
    )
    at_times = compared._replace(
        times=_medians(timed, lambda record: _per(record.busy_ns, record.alone_ns)),
        least_times=_medians(timed, lambda record: _per(record.worked_ns, record.alone_ns)),
    )
    paces = {}
    for rank, relative in _ratios(compared.times).items():
        pace = StagePace(round(passes[rank]), len(timed[rank]), relative, least=compared.least(rank))
        stretched, least = _ratios(at_times.times).get(rank, 1.0), at_times.least(rank)
        if relative < SLOW_STAGE and min(stretched, stretched if least is None else least) >= _SLOW_AT_TIMES:
            pace = replace(pace, relative=stretched, limit=_SLOW_AT_TIMES, least=least)
        paces[rank] = pace
    return paces


class _Comparison(NamedTuple):
    """What is compared of each rank.

    Attributes:
        times: Its passes.
        least_times: The same without what its device may have waited for launches, where that is known.
        longer_launches: The ratio of its launches to those of the others, 1 for less; only where they do not bind it.
    """

    times: Mapping[int, float]
    least_times: Mapping[int, float]
    longer_launches: Mapping[int, float]

    def least(self, rank: int) -> float | None:
        """The least ratio that a rank's device can have to the others; None where that is unknown."""
        usual = _usual(self.times, rank)
        if not usual or rank not in self.least_times:
            return None
        relative, least = self.times[rank] / usual, self.least_times[rank] / usual
        longer = self.longer_launches.get(rank)
        return relative if longer is not None and relative >= _BEYOND_LAUNCHES * longer else least


def _medians(
    records: Mapping[int, Sequence[MicroBatches]], value_of: Callable[[MicroBatches], float | None]
) -> dict[int, float]:
    """The median of each rank that has the value in enough steps."""
    values = {
        rank: [value for record in own if (value := value_of(record)) is not None] for rank, own in records.items()
    }
    return {rank: median(own) for rank, own in values.items() if len(own) >= _FEWEST_STEPS}


def _per(time_ns: int | None, unit: int | None) -> float | None:
    return time_ns / unit if time_ns is not None and unit else None


def _ratios(values: Mapping[int, float]) -> dict[int, float]:
    """Of each rank, its value over the median of the others."""
    return {rank: value / usual for rank, value in values.items() if (usual := _usual(values, rank))}


def _usual(values: Mapping[int, float], rank: int) -> float | None:
    others = [value for peer, value in values.items() if peer != rank]
    return median(others) if others else None


def _multiplied(model: Model, *, is_last: bool) -> int:
    """Parameters that are not only looked up."""
    looked_up = sum(weight.elements for weight in model.weights if weight.is_embedding)
    return model.parameters - (0 if is_last else looked_up)


def _differ(models: Sequence[Model]) -> bool:
    """Whether some stages train, or recompute, what others do not."""
    frozen = any(model.trainable != model.parameters for model in models)
    return frozen or len({model.checkpointing for model in models}) > 1


def _exchange_inside(run: Run) -> bool:
    axes = {axis for rank in run.ranks for axis in rank.parallel} - set(_OUTSIDE)
    if any(len({rank.parallel.get(axis) for rank in run.ranks}) > 1 for axis in axes):
        return True
    return any((model.zero_stage or 0) >= _FIRST_SHARDED_STAGE for model in run.models)
