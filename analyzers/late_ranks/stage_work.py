"""Which ranks of a pipeline do work that can be compared: equal work, or work that goes by their parameters.

Ranks of one stage, as data parallelism makes them, do the same work. Other stages are compared by the parameters that
they multiply with, which says little where these are few, where they have other shapes (of a convolution one is used
many times), or where they belong to experts, of which a token uses some.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from statistics import median
from typing import NamedTuple, TypeAlias

from perfscope.tables.micro_batches import MicroBatches
from perfscope.tables.model import Model, Weight
from perfscope.tables.run import Run

#: Axes of parallelism whose ranks exchange nothing inside of passes.
_OUTSIDE = ("pp", "dp")
#: From this stage of ZeRO on passes gather parameters.
_FIRST_SHARDED_STAGE = 3
#: A stage that multiplies with less than this part of what is usual spends its time with something else,
_LEAST_UNIT = 0.25
#: and so does one that looks up in so many times the parameters that it multiplies with.
_MOST_LOOKED_UP = 2
#: Shapes that another stage lacks are at most this part of what a stage multiplies with.
_MOST_OTHER_SHAPES = 0.1
#: Dimensions of a matrix, at least.
_MATRIX = 2

_Shape: TypeAlias = "tuple[int, ...]"


class Peers(NamedTuple):
    """The ranks that one is compared with.

    Attributes:
        replicas: Those of its stage.
        alike: Those of all stages whose work goes by the parameters as its own does; its replicas are among them.
    """

    replicas: tuple[int, ...]
    alike: tuple[int, ...]


class Work(NamedTuple):
    """What a stage multiplies with.

    Attributes:
        unit: Parameters that are multiplied with.
        looked_up: Those that are only looked up.
        counts: Of each shape of a matrix that is multiplied with, how many there are.
        layers: Of each of these shapes the parameters, but for those of a head.
        has_experts: Whether names say that a token uses some of them only.
    """

    unit: int
    looked_up: int
    counts: Mapping[_Shape, int]
    layers: Mapping[_Shape, int]
    has_experts: bool

    def is_like(self, other: Work) -> bool:
        """Whether its time goes by its parameters as that of another stage does."""
        if self.has_experts or other.has_experts:
            return _are_proportional(self.counts, other.counts)
        return self._has_shapes_of(other) and other._has_shapes_of(self)

    def _has_shapes_of(self, other: Work) -> bool:
        lacking = sum(elements for shape, elements in other.layers.items() if shape not in self.layers)
        return lacking <= _MOST_OTHER_SHAPES * other.unit


def has_replicas(run: Run) -> bool:
    """Whether several ranks train the same stage, also where it is unknown how they divide the work."""
    places = {record.rank: record.device for record in run.micro_batches}
    return _differs(run, "dp") or len(set(places.values())) < len(places)


def exchanges_inside(run: Run) -> bool:
    """Whether passes hold exchanges: of tensors and experts, of sharded parameters, or of DDP's gradients."""
    axes = {axis for rank in run.ranks for axis in rank.parallel} - set(_OUTSIDE)
    if any(_differs(run, axis) for axis in axes):
        return True
    if has_replicas(run) and any(setup.ddp is not None for setup in run.setups.values()):
        return True
    return any((model.zero_stage or 0) >= _FIRST_SHARDED_STAGE for model in run.models)


def _differs(run: Run, axis: str) -> bool:
    return len({rank.parallel.get(axis) for rank in run.ranks}) > 1


def describe_work(run: Run, records: Mapping[int, Collection[MicroBatches]]) -> dict[int, Work]:
    """The work of each rank that has records; empty where some stages train, or recompute, what others do not."""
    models = {model.rank: model for model in run.models if model.weights}
    if _differ(list(models.values())):
        return {}
    tables = {weight.shape for model in models.values() for weight in model.weights if weight.is_embedding}
    heads = tables | {shape[::-1] for shape in tables}
    last = {rank for rank, own in records.items() if any(_has_last_stage(record) for record in own)}
    work = {rank: _work(models[rank], heads, is_last=rank in last) for rank in records if rank in models}
    return {rank: own for rank, own in work.items() if own.unit > 0}


def _differ(models: Sequence[Model]) -> bool:
    frozen = any(model.trainable != model.parameters for model in models)
    return frozen or len({model.checkpointing for model in models}) > 1


def _has_last_stage(record: MicroBatches) -> bool:
    return any(total.stage == record.stages - 1 for total in record.totals)


def _work(model: Model, heads: Collection[_Shape], *, is_last: bool) -> Work:
    """The embedding of the last stage may be its head, where it has no other: then it is multiplied with."""
    has_head = any(weight.shape in heads and weight.count == 1 and _is_product(weight) for weight in model.weights)
    tables = [weight for weight in model.weights if weight.is_embedding and (not is_last or has_head)]
    looked_up = sum(weight.elements for weight in tables)
    counts: dict[_Shape, int] = defaultdict(int)
    layers: dict[_Shape, int] = defaultdict(int)
    for weight in model.weights:
        if _is_product(weight) or (weight.is_embedding and weight not in tables):
            counts[weight.shape] += weight.count
            if weight.shape not in heads:
                layers[weight.shape] += weight.elements
    return Work(
        unit=model.parameters - looked_up,
        looked_up=looked_up,
        counts=counts,
        layers=layers,
        has_experts=any("expert" in weight.name.lower() for weight in model.weights),
    )


def _is_product(weight: Weight) -> bool:
    return len(weight.shape) >= _MATRIX and not weight.is_embedding


def _are_proportional(counts: Mapping[_Shape, int], others: Mapping[_Shape, int]) -> bool:
    if not counts or counts.keys() != others.keys():
        return False
    some = next(iter(counts))
    return all(count * others[some] == others[shape] * counts[some] for shape, count in counts.items())


def find_peers(work: Mapping[int, Work], devices: Mapping[int, int]) -> dict[int, Peers]:
    """The ranks that each one is compared with.

    Args:
        work: The work of each rank.
        devices: Of each rank, the place of its stage in the pipeline.
    """
    usual = median(own.unit for own in work.values()) if work else 0
    groups: list[tuple[Work, list[int]]] = []
    for rank, own in work.items():
        ranks = next((ranks for other, ranks in groups if other == own), None)
        if ranks is None:
            groups.append((own, ranks := []))
        ranks.append(rank)
    peers = {}
    for own, ranks in groups:
        alike = [
            peer
            for other, others in groups
            if _goes_by_parameters(own, usual) and _goes_by_parameters(other, usual) and own.is_like(other)
            for peer in others
        ]
        for rank in ranks:
            peers[rank] = Peers(
                tuple(peer for peer in ranks if peer != rank and devices[peer] == devices[rank]),
                tuple(peer for peer in alike if peer != rank),
            )
    return peers


def _goes_by_parameters(work: Work, usual: float) -> bool:
    return work.unit >= _LEAST_UNIT * usual and work.looked_up <= _MOST_LOOKED_UP * work.unit
