"""How long the passes of a pipeline's stages take on their devices, by what they multiply with.

Stages have different work by design: layers, the embedding of the first, the head of the last. What is compared is
therefore the time of a stage's passes over the parameters that are multiplied with, all those of the last stage, whose
embedding may be its head. Passes are timed on the device, in each step, from when their inputs are there.

Stages differ by more than a device does that another process uses now and then. But micro-batches of a stage are alike:
the fastest pass of a step shows what the device does by itself, and the others how much is taken from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from perfscope.tables.model import Model
from perfscope.tables.run import Run

#: Fewer steps say nothing.
_FEWEST_STEPS = 5
#: By parameter stages differ by less than this.
SLOW_STAGE = 1.25
#: A collective beside a pass makes that one up to a quarter longer, and all passes of a step by less than this.
_SLOW_AT_TIMES = 1.1
#: Axes of parallelism whose ranks exchange nothing inside of passes.
_OUTSIDE = ("pp", "dp")
#: From this stage of ZeRO on passes gather parameters.
_FIRST_SHARDED_STAGE = 3


@dataclass(frozen=True, slots=True)
class StagePace:
    """The passes of one rank.

    Attributes:
        passes_ns: Of a step, a median.
        relative: By parameter, over the median of the other ranks; or by the fastest passes of each step, where only
            that is slow.
        limit: From which ratio on it is slow.
    """

    passes_ns: int
    relative: float
    limit: float = SLOW_STAGE


def compare_stages(run: Run) -> dict[int, StagePace]:
    """The pace of each rank of a pipeline; empty where passes were not timed, or hold exchanges."""
    times: dict[int, list[int]] = {}
    last = {record.rank for record in run.micro_batches if record.device == record.devices - 1}
    for record in run.micro_batches:
        times.setdefault(record.rank, []).append(record.busy_ns)
    models = {model.rank: model for model in run.models if model.weights}
    passes = {rank: median(ns) for rank, ns in times.items() if len(ns) >= _FEWEST_STEPS and rank in models}
    if len(passes) < 2 or _exchange_inside(run) or _differ(list(models.values())):  # noqa: PLR2004 - a pair
        return {}
    by_parameter = {
        rank: ns / multiplied
        for rank, ns in passes.items()
        if (multiplied := _multiplied(models[rank], is_last=rank in last))
    }
    stretches: dict[int, list[float]] = {}
    for record in run.micro_batches:
        if record.rank in passes and (stretch := record.stretch) is not None:
            stretches.setdefault(record.rank, []).append(stretch)
    at_times = {rank: median(values) for rank, values in stretches.items() if len(values) >= _FEWEST_STEPS}
    return {
        rank: _pace(round(passes[rank]), own / usual, at_times, rank)
        for rank, own in by_parameter.items()
        if (usual := _usual(by_parameter, rank))
    }


def _pace(passes_ns: int, relative: float, at_times: Mapping[int, float], rank: int) -> StagePace:
    usual = _usual(at_times, rank)
    if relative < SLOW_STAGE and rank in at_times and usual and at_times[rank] / usual >= _SLOW_AT_TIMES:
        return StagePace(passes_ns, at_times[rank] / usual, _SLOW_AT_TIMES)
    return StagePace(passes_ns, relative)


def _usual(by_parameter: Mapping[int, float], rank: int) -> float | None:
    others = [value for peer, value in by_parameter.items() if peer != rank]
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
