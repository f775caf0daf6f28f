"""One side of a comparison: what is known of a training, wherever it was read from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from perfscope.analyzers.budget.result import Budget
from perfscope.analyzers.comparison.change import Samples


class Kind(StrEnum):
    """What a side was read from."""

    RUN = "run"
    TRACES = "traces"
    LOG = "log"
    ANALYSIS = "analysis"
    BASELINE = "baseline"


class Figure(StrEnum):
    """A figure that is compared; the names are those of limits and of JSON."""

    STEP_TIME = "step_time"
    THROUGHPUT = "throughput"
    TFLOPS = "tflops"
    MEMORY = "memory"
    ENERGY = "energy"
    EXPOSED_COMMUNICATION = "exposed_communication"


@dataclass(frozen=True, slots=True)
class Setup:
    """What was trained, on what; absent where it is not known.

    Attributes:
        model: Its class, or what a log calls it.
        parameters: Parameters of all of it.
        dimensions: Layers, hidden size and vocabulary.
        gpus: Ranks, or GPUs.
        device: Name of the GPU; ``cpu`` where there was none.
        dtype: Type of the products, or of the weights.
        samples, tokens: Of a step over all ranks.
        versions: Versions of software, by package.
    """

    model: str | None = None
    parameters: int | None = None
    dimensions: tuple[int, ...] | None = None
    gpus: int | None = None
    device: str | None = None
    dtype: str | None = None
    samples: float | None = None
    tokens: float | None = None
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """One side.

    Attributes:
        name: What was typed.
        kind: What it was read from.
        setup: What was trained.
        step_time_s: Times of the undisturbed steps in seconds, a series for each run; absent where unknown.
        is_profiled: Whether these are the times of profiled steps, because nothing else is known.
        tflop_per_step: Operations of a step and GPU in 10**12, and the convention that they are counted by.
        memory_bytes: Peak memory of tensors of the rank with the largest; one a run.
        energy_j: Energy of each undisturbed step over all GPUs, a series for each run.
        clock_mhz: Median clock of the GPUs' multiprocessors in training.
        budget: What a profiled step is made of; of several runs that of the first with traces.
        profiled_ns: The job's times of the steps that the budget is of, by the hosts; empty where unknown.
        reasons: Why a figure, or ``budget``, is absent.
        notes: What a reader must know.
        damage: What could not be read.
    """

    name: str
    kind: Kind
    setup: Setup
    step_time_s: Samples | None = None
    is_profiled: bool = False
    tflop_per_step: tuple[float, str] | None = None
    memory_bytes: Samples | None = None
    energy_j: Samples | None = None
    clock_mhz: float | None = None
    budget: Budget | None = None
    profiled_ns: tuple[int, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    damage: tuple[str, ...] = ()

    def why_absent(self, name: str) -> str:
        """Why a figure of this side is absent."""
        return f"{self.name}: {self.reasons.get(name, f'a {self.kind} does not state it')}"
