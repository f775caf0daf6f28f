"""Why a row cannot be measured, said before anything is started."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec

from perfscope.bench.settings import Settings, Variant
from perfscope.workloads.strategies import Batch


@dataclass(frozen=True, slots=True)
class Machine:
    """What the rows are run on, and what they train.

    Attributes:
        torch: Version of torch.
        gpus: GPUs of this host; 0 where the benchmark uses CPUs.
        layers: Layers of the model, at which a pipeline can cut it.
        parameters: Parameters of the model.
        tokens: Tokens of a sample; None where it is no sequence.
        has_splits: Whether it is known how tensor parallelism splits the model.
        is_classified: Whether there is an accuracy.
        flops_per_sample: Operations of the products of a forward and backward pass; None where they cannot be counted.
    """

    torch: str
    gpus: int
    layers: int
    parameters: int
    tokens: int | None
    has_splits: bool
    is_classified: bool
    flops_per_sample: int | None


def find_obstacle(variant: Variant, settings: Settings, machine: Machine) -> str | None:
    """Why a variant cannot be run here; None where it can."""
    obstacle = next(_list_obstacles(variant, settings, machine), None)
    return None if obstacle is None else f"skipped: {obstacle}"


def _list_obstacles(variant: Variant, settings: Settings, machine: Machine) -> Iterator[str]:
    facts, stages = variant.facts, variant.facts.stages * variant.nproc
    if facts.package is not None and not _is_installed(facts.package):
        yield f"{facts.package.partition('.')[0]} is not installed"
    if facts.needs_splits and not machine.has_splits:
        yield f"it is not known how to split the products of {settings.model}"
    if variant.nproc < facts.fewest:
        yield f"it needs at least {facts.fewest} devices"
    if variant.nproc % facts.multiple:
        yield f"{variant.nproc} devices are not a multiple of {facts.multiple}"
    if settings.device == "cuda" and settings.launcher is None and variant.nproc > machine.gpus:
        yield f"{variant.nproc} devices are asked for, and this host has {machine.gpus} GPUs"
    if stages > machine.layers:
        yield f"a model of {machine.layers} layers cannot be cut into {stages} stages"
    yield from _find_wrong_batch(variant, settings)


def _find_wrong_batch(variant: Variant, settings: Settings) -> Iterator[str]:
    batch = settings.batch_of(variant)
    parts, name = {
        Batch.WHOLE: (1, ""),
        Batch.SHARED: (variant.nproc, "devices"),
        Batch.SHARED_BY_PAIRS: (max(1, variant.nproc // 2), "pairs of devices"),
        Batch.MICRO_BATCHES: (settings.micro_batches, "micro-batches"),
    }[variant.facts.batch]
    if batch % parts:
        yield f"a batch of {batch} cannot be divided among {parts} {name}"


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # the package around it is missing
        return False
