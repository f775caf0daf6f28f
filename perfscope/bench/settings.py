"""What a benchmark trains, on what, and which variants of which strategies are its rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import product

from perfscope.errors import UsageError
from perfscope.workloads.strategies import MICRO_BATCHES, STRATEGIES, Batch, Processes, Strategy


@dataclass(frozen=True, slots=True)
class Machine:
    """What the rows are run on, and what they train.

    ``gpus`` are of this host, 0 on CPUs. ``tokens`` are of a sample. ``flops_per_sample`` counts the products of a
    forward and backward pass; None where they cannot be counted.
    """

    gpus: int
    layers: int
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
    parts, name = {
        Batch.WHOLE: (1, ""),
        Batch.SHARED: (variant.nproc, "devices"),
        Batch.SHARED_BY_PAIRS: (max(1, variant.nproc // 2), "pairs of devices"),
        Batch.MICRO_BATCHES: (MICRO_BATCHES, "micro-batches"),
    }[variant.facts.batch]
    if settings.batch % parts:
        yield f"a batch of {settings.batch} cannot be divided among {parts} {name}"


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # the package around it is missing
        return False


#: Steps that are dropped; and steps after the measured ones: the profiler's warm-up, the profiled step, its export.
WARMUP, _STEPS_OF_WINDOW = 3, 3


@dataclass(frozen=True, slots=True)
class Settings:
    """What all rows of a benchmark have in common.

    ``batch`` is of all devices together. A CPU device is a share of the cores (``threads``), the same in every row.
    ``model_sha256`` is of the file of a model of one's own, so that all rows are of one model.
    """

    model: str
    data: str | None
    device: str
    batch: int
    steps: int
    threads: int
    launcher: str | None
    model_sha256: str | None = None

    @property
    def profiled_step(self) -> int:
        """The step that is profiled, after the measured ones."""
        return WARMUP + self.steps + 2

    @property
    def trained_steps(self) -> int:
        """All steps of a training."""
        return WARMUP + self.steps + _STEPS_OF_WINDOW


@dataclass(frozen=True, slots=True)
class Variant:
    """One row: a strategy on ``nproc`` devices."""

    strategy: str
    nproc: int
    precision: str
    recompute: bool = False
    compile: bool = False

    @property
    def facts(self) -> Strategy:
        """What is known of the strategy."""
        return STRATEGIES[self.strategy]

    @property
    def key(self) -> str:
        """A name for files, different for each variant.

        >>> Variant("ddp", 2, "bf16", recompute=True).key
        'ddp-2-bf16-recompute'
        """
        return "-".join((self.strategy, str(self.nproc), self.precision, *self.changes))

    @property
    def changes(self) -> tuple[str, ...]:
        """The options that are switched on."""
        return tuple(name for name in ("recompute", "compile") if getattr(self, name))

    @property
    def processes(self) -> int:
        """Processes that train."""
        return self.nproc if self.facts.processes is Processes.ONE_A_DEVICE else 1


OPTION_SETS = ("plain", "recompute", "compile", "recompute+compile")
_PRECISIONS = ("fp32", "bf16")


def expand_matrix(strategies: str, nproc: str, precision: str, options: str) -> tuple[Variant, ...]:
    """Every sensible combination of lists that are separated by commas, by number of devices.

    A number that is too small for a strategy gives no row. Where all are, the largest one has a row, which can state
    the reason. Raises UsageError where a strategy, a number, a precision or an option is unknown.
    """
    words = nproc.split(",")
    if not all(word.isdigit() and int(word) > 0 for word in words):
        raise UsageError(f"--nproc {nproc} is not a list of numbers", hint="write --nproc 1,2,4")
    precisions, changes = precision.split(","), options.split(",")
    for kind, names, known in (("precision", precisions, _PRECISIONS), ("option", changes, OPTION_SETS)):
        unknown = [name for name in names if name not in known]
        if unknown:
            raise UsageError(f"there is no {kind} {unknown[0]!r}", hint=f"some of: {', '.join(known)}")
    return order_variants(
        Variant(strategy, number, one, recompute="recompute" in change, compile="compile" in change)
        for one, change in product(precisions, changes)
        for strategy in choose_strategies(strategies.split(","))
        for number in _choose_nprocs(STRATEGIES[strategy], sorted(set(map(int, words))))
    )


def order_variants(variants: Iterable[Variant]) -> tuple[Variant, ...]:
    """Rows in the order of a table, each once: by devices, precision and options, then as the strategies are listed."""
    order = {name: number for number, name in enumerate(STRATEGIES)}
    return tuple(
        sorted(
            dict.fromkeys(variants),
            key=lambda row: (row.nproc, row.precision, row.changes, order.get(row.strategy, len(order))),
        )
    )


def _choose_nprocs(strategy: Strategy, nprocs: Sequence[int]) -> Iterator[int]:
    if strategy.processes is Processes.ONE:
        yield 1
    else:
        enough = [nproc for nproc in nprocs if nproc >= strategy.fewest]
        yield from enough or [max(nprocs)]


def choose_strategies(names: Sequence[str]) -> tuple[str, ...]:
    """The strategies of ``--strategies``; UsageError where there is none of a name."""
    if tuple(names) == ("all",):
        return tuple(STRATEGIES)
    for name in names:
        if name not in STRATEGIES:
            raise UsageError(f"there is no strategy {name!r}", hint=f"all, or some of: {', '.join(STRATEGIES)}")
    return tuple(dict.fromkeys(names))
