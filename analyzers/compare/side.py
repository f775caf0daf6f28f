"""One side of a comparison: what is known of a training, from a run, traces, a log or a saved baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import msgspec
import numpy as np
from msgspec import Struct

from perfscope.analyzers.budget import KINDS, Budget, Term
from perfscope.analyzers.compare.change import Samples
from perfscope.analyzers.energy import Energy
from perfscope.analyzers.findings import Findings
from perfscope.analyzers.logs.step_times import steady_records
from perfscope.analyzers.logs.summary import LogSummary
from perfscope.analyzers.loop import record_loop
from perfscope.analyzers.mfu import HEADLINE, Utilisation
from perfscope.analyzers.steps import StepTimes
from perfscope.analyzers.tflops.trained_run import find_device, find_trained_model
from perfscope.constants import NS_PER_S
from perfscope.errors import MissingInput, PerfscopeError
from perfscope.measures.step_selection import TOO_FEW_STEPS, UndisturbedSteps, find_undisturbed
from perfscope.report import Json
from perfscope.tables.columns import present
from perfscope.tables.run import Run

BASELINE = "perfscope/baseline/1"
_LOG_CONVENTION = "bigscience"


class Origin(StrEnum):
    """What a side was read from."""

    RUN = "run"
    TRACES = "traces"
    LOG = "log"
    BASELINE = "baseline"


class Compared(StrEnum):
    """A figure that is compared; the names are those of limits and of JSON."""

    LOOP_TIME = "loop_time"
    STEP_TIME = "step_time"
    THROUGHPUT = "throughput"
    TFLOPS = "tflops"
    MEMORY = "memory"
    ENERGY = "energy"


@dataclass(frozen=True, slots=True)
class TrainedSetup:
    """What was trained, on what; absent where it is not known. Samples and tokens are of a step over all ranks.

    ``dimensions`` are layers, hidden size and vocabulary. ``device`` is ``cpu`` where there was no GPU.
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


class Cause(Struct, frozen=True):
    """A finding of a side: ``cost`` is in words, ``cost_us`` of a step."""

    id: str
    title: str
    cost: str
    cost_us: float


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """One side; figures have a series for each run.

    Attributes:
        is_profiled: Whether its times are those of profiled steps, because nothing else is known.
        tflop_per_step: Operations of a step and GPU in 10**12, and the convention that they are counted by.
        memory_bytes: Peak memory of tensors of the rank with the largest.
        energy_j: Energy of each undisturbed step over all GPUs.
        budget: What a profiled step is made of; of several runs that of the first with traces.
        reasons: Why a figure, or ``budget``, is absent.
        loop_s: Each step of the loop with everything in it.
        causes: The findings, of several runs those of the first; None where it has no such answer.
        command: What was run.
    """

    name: str
    kind: Origin
    setup: TrainedSetup
    loop_s: Samples | None = None
    step_time_s: Samples | None = None
    is_profiled: bool = False
    tflop_per_step: tuple[float, str] | None = None
    memory_bytes: Samples | None = None
    energy_j: Samples | None = None
    budget: Budget | None = None
    causes: tuple[Cause, ...] | None = None
    command: tuple[str, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    damage: tuple[str, ...] = ()

    def why_absent(self, name: str) -> str:
        """Why a figure of this side is absent."""
        return f"{self.name}: {self.reasons.get(name, f'a {self.kind} does not state it')}"


def join_runs(name: str, sides: Sequence[Side]) -> Side:
    """One side of several runs; PerfscopeError where they did not train the same, or there is none."""
    if not sides:
        raise PerfscopeError(f"{name!r} names no run", hint="several runs of a side: A1,A2,A3")
    if len(sides) == 1:
        return replace(sides[0], name=name)
    first = sides[0]
    for side in sides[1:]:
        for fact in ("parameters", "gpus", "dimensions"):
            values = getattr(first.setup, fact), getattr(side.setup, fact)
            if None not in values and values[0] != values[1]:
                raise PerfscopeError(
                    f"{first.name} and {side.name} did not train the same: {fact} {values[0]} and {values[1]}",
                    hint="a side is one run, or several runs of the same training",
                )
    of_budget = next((side for side in sides if side.budget is not None), first)
    return replace(
        of_budget,
        name=name,
        causes=first.causes,
        loop_s=_join([side.loop_s for side in sides]),
        step_time_s=_join([side.step_time_s for side in sides]),
        memory_bytes=_join([side.memory_bytes for side in sides]),
        energy_j=_join([side.energy_j for side in sides]),
        notes=(*dict.fromkeys(note for side in sides for note in side.notes),),
        damage=tuple(f"{side.name}: {line}" for side in sides for line in side.damage),
    )


def _join(samples: Sequence[Samples | None]) -> Samples | None:
    stated = [sample for sample in samples if sample is not None]
    if not stated or len(stated) < len(samples):
        return None
    named, beside = (tuple(part for sample in stated for part in getattr(sample, name)) for name in ("named", "beside"))
    return Samples(tuple(run for sample in stated for run in sample.runs), stated[0].is_mean, named, beside)


def side_of_run(
    name: str,
    run: Run,
    results: Mapping[str, object],
    reasons: Mapping[str, str],
    versions: Mapping[str, str],
    damage: tuple[str, ...] = (),
) -> Side:
    """A run with the results of ``findings``, ``steps``, ``mfu``, ``energy`` and ``budget``, as far as it has them."""
    undisturbed = find_undisturbed(run.steps)
    times_s = undisturbed.times_s()
    steps, mfu, energy, budget = (results.get(name) for name in ("steps", "mfu", "energy", "budget"))
    budget = budget if isinstance(budget, Budget) else None
    found, (loop_s, why_no_loop) = results.get("findings"), _loop(run, undisturbed)
    tflops, step_s = mfu.tflops_per_gpu if isinstance(mfu, Utilisation) else None, undisturbed.step_time_s()
    return Side(
        name=name,
        kind=Origin.RUN,
        setup=_setup(run, steps if isinstance(steps, StepTimes) else None, mfu, versions),
        loop_s=loop_s,
        step_time_s=Samples((times_s,)) if len(times_s) else None,
        tflop_per_step=None if tflops is None or step_s is None else (tflops * step_s, HEADLINE),
        memory_bytes=_memory(undisturbed),
        energy_j=_energies(energy) if isinstance(energy, Energy) and energy.step_j is not None else None,
        budget=budget,
        causes=tuple(Cause(each.id, each.title, each.cost, each.cost_us) for each in found.findings)
        if isinstance(found, Findings)
        else None,
        command=run.command,
        reasons={
            Compared.LOOP_TIME: why_no_loop,
            Compared.STEP_TIME: reasons.get("steps") or TOO_FEW_STEPS,
            Compared.MEMORY: "no rank recorded the peak memory of a device",
            Compared.TFLOPS: reasons.get("mfu", "its operations are not known"),
            Compared.ENERGY: reasons.get("energy", "the energy of a GPU is not known"),
            "budget": reasons.get("budget", "it has no traces"),
        },
        damage=damage,
    )


def _loop(run: Run, undisturbed: UndisturbedSteps) -> tuple[Samples | None, str]:
    """The steps of its loop, or why it has none; start-up and windows are no variation of steps."""
    if not len(undisturbed.numbers):
        return None, TOO_FEW_STEPS
    try:
        record = record_loop(run)
    except MissingInput as missing:
        return None, missing.problem
    steps_s, rest_s = record.step_ns / NS_PER_S, np.maximum(record.unnamed_ns, 1) / NS_PER_S
    steps = record.steps
    is_own = (undisturbed.mask(steps) | present(steps.save_ns) | present(steps.no_grad_ns))[1:]
    named_s, whole_s = float(np.mean(steps_s - rest_s)), float(np.mean(rest_s))
    rest_s[~is_own] = np.median(rest_s[is_own])
    beside_s = whole_s - float(np.mean(rest_s))
    return Samples((rest_s,), is_mean=True, named=(named_s,), beside=(beside_s,)), ""


def side_of_traces(name: str, budget: Budget | None, reason: str, damage: tuple[str, ...] = ()) -> Side:
    """Traces alone: the times of their profiled steps are all that is known."""
    why = "traces alone do not state it"
    return Side(
        name=name,
        kind=Origin.TRACES,
        setup=TrainedSetup(gpus=None if budget is None else budget.ranks),
        step_time_s=None if budget is None else Samples((budget.period_ns / NS_PER_S,)),
        is_profiled=True,
        budget=budget,
        reasons={
            Compared.STEP_TIME: reason,
            "budget": reason,
            **{figure: why for figure in Compared if figure is not Compared.STEP_TIME},
        },
        damage=damage,
    )


def _setup(run: Run, steps: StepTimes | None, mfu: object, versions: Mapping[str, str]) -> TrainedSetup:
    model = run.models[0] if run.models else None
    parameters = model.parameters if model else None
    dimensions = None
    try:
        trained = find_trained_model(run)
        parameters = trained.parameters
        dimensions = trained.model.layers, trained.model.hidden, trained.model.vocabulary
    except MissingInput:
        pass  # what cannot be counted can still be compared by its number of parameters
    devices = {rank.device_name or rank.device_type or "" for rank in run.ranks} - {""}
    precision = (mfu if isinstance(mfu, Utilisation) else find_device(run)).precision
    dtype = precision.main if precision.shares else None
    return TrainedSetup(
        model=model.name if model else None,
        parameters=parameters,
        dimensions=dimensions,
        gpus=run.devices,
        device=", ".join(sorted(devices)) or None,
        dtype=dtype or (model.weights_dtype if model else None),
        samples=steps.samples_per_step if steps else None,
        tokens=steps.tokens_per_step if steps else None,
        versions=dict(versions),
    )


def _memory(undisturbed: UndisturbedSteps) -> Samples | None:
    peaks = [float(table.memory_peak_bytes.max()) for table in undisturbed.tables if table.memory_peak_bytes.count()]
    return Samples((np.array([max(peaks)]),)) if peaks and max(peaks) > 0 else None


def _energies(energy: Energy) -> Samples | None:
    """The energy of each step whose energy is known of all GPUs."""
    by_step = [gpu.by_step_j for gpu in energy.gpus]
    values = np.array([sum(each[step] for each in by_step) for step in sorted(set.intersection(*map(set, by_step)))])
    return Samples((values,), is_mean=True) if len(values) and (values > 0).all() else None


def side_of_log(name: str, summary: LogSummary) -> Side:
    """A log: each steady-state record counts as a step, even where it is the mean of several."""
    rows = summary.log.iterations
    times_s = np.ma.getdata(rows.wall_ns)[steady_records(rows, None)].astype(np.float64) / NS_PER_S
    times_s = times_s[times_s > 0]
    setup, median_s = summary.setup, summary.times.median_s
    tflop = summary.tflops_per_gpu * median_s if summary.tflops_per_gpu is not None and median_s else None
    memory = summary.log.memory.allocated_bytes or summary.log.memory.reserved_bytes
    spans = sorted({int(span) for span in rows.span})
    several = f"{spans[0]} to {spans[-1]}" if len(spans) > 1 else str(*spans)
    note = f"{name}: each record is the mean of {several} iterations." if spans[-1:] > [1] else ""
    return Side(
        name=name,
        kind=Origin.LOG,
        setup=TrainedSetup(
            parameters=setup.parameters,
            gpus=setup.gpus,
            samples=setup.gbs,
            tokens=setup.gbs * setup.seq_len if setup.gbs and setup.seq_len else None,
            versions={} if summary.framework is None else {"framework": summary.framework},
        ),
        step_time_s=Samples((times_s,)) if len(times_s) else None,
        tflop_per_step=None if tflop is None else (tflop, _LOG_CONVENTION),
        memory_bytes=Samples((np.array([float(memory)]),)) if memory else None,
        reasons={
            Compared.LOOP_TIME: "a log does not state the time of its steps with everything between them",
            Compared.STEP_TIME: summary.reason or "it states no step time",
            Compared.TFLOPS: "it does not state model, batch and GPUs in full",
            Compared.MEMORY: "it states no device memory",
            Compared.ENERGY: "logs state no energy",
            "budget": "a log has no traces",
        },
        notes=(note,) if note else (),
    )


_Runs = tuple[tuple[float, ...], ...] | None


class _Term(Struct):
    term: tuple[str, ...]
    ns: int
    calls: float | None = None


class _Budget(Struct):
    terms: tuple[_Term, ...]
    period_ns: tuple[float, ...] = ()
    steps: tuple[int, ...] = ()
    ranks: int = 1
    activities: str = ""


class _Baseline(Struct):
    schema: str = BASELINE
    name: str = ""
    setup: TrainedSetup | None = None
    is_profiled: bool = False
    loop_s: _Runs = None
    named_s: tuple[float, ...] = ()
    beside_s: tuple[float, ...] = ()
    causes: tuple[Cause, ...] | None = None
    command: tuple[str, ...] = ()
    step_time_s: _Runs = None
    memory_bytes: _Runs = None
    energy_j: _Runs = None
    tflop_per_step: tuple[float, str] | None = None
    budget: _Budget | None = None
    reasons: dict[str, str] = {}


def to_baseline(side: Side) -> dict[str, Json]:
    """A side as data, whole."""
    budget = None
    if side.budget is not None:
        kept = side.budget
        terms = tuple(
            _Term(term, kept.times.get(term, 0), kept.calls.get(term)) for term in {**kept.times, **kept.calls}
        )
        budget = _Budget(terms, tuple(kept.period_ns.tolist()), kept.steps, kept.ranks, kept.activities)
    data: dict[str, Json] = msgspec.to_builtins(
        _Baseline(
            name=side.name,
            setup=side.setup,
            is_profiled=side.is_profiled,
            loop_s=_lists(side.loop_s),
            named_s=side.loop_s.named if side.loop_s is not None else (),
            beside_s=side.loop_s.beside if side.loop_s is not None else (),
            causes=side.causes,
            command=side.command,
            step_time_s=_lists(side.step_time_s),
            memory_bytes=_lists(side.memory_bytes),
            energy_j=_lists(side.energy_j),
            tflop_per_step=side.tflop_per_step,
            budget=budget,
            reasons={str(name): reason for name, reason in side.reasons.items()},
        )
    )
    return data


def _lists(samples: Samples | None) -> _Runs:
    return None if samples is None else tuple(tuple(run.tolist()) for run in samples.runs)


def from_saved(name: str, data: Mapping[str, object]) -> Side:
    """A saved side; PerfscopeError where it is of another schema or version, or damaged."""
    schema = data.get("schema")
    if schema != BASELINE:
        raise PerfscopeError(
            f"{name} is {schema!r}, which this version of perfscope cannot compare: it reads {BASELINE}",
            hint="save it again: perfscope compare RUN --save FILE",
        )
    try:
        saved = msgspec.convert(data, _Baseline)
        return Side(
            name=name,
            kind=Origin.BASELINE,
            setup=saved.setup or TrainedSetup(),
            loop_s=_loop_samples(saved),
            causes=saved.causes,
            command=saved.command,
            step_time_s=_samples(saved.step_time_s),
            is_profiled=saved.is_profiled,
            tflop_per_step=saved.tflop_per_step,
            memory_bytes=_samples(saved.memory_bytes),
            energy_j=_samples(saved.energy_j, is_mean=True),
            budget=None if saved.budget is None else _budget(saved.budget),
            reasons=saved.reasons,
        )
    except (msgspec.ValidationError, TypeError, ValueError, AssertionError) as error:
        raise PerfscopeError(
            f"{name} is damaged: it is no complete {schema} ({type(error).__name__}: {error})",
            hint="save it again",
        ) from None


def _samples(runs: _Runs, *, is_mean: bool = False) -> Samples | None:
    if not runs:
        return None
    if any(not run or min(run) <= 0 for run in runs):
        raise ValueError("a figure is no list of lists of positive numbers")
    return Samples(tuple(np.asarray(run, np.float64) for run in runs), is_mean)


def _loop_samples(data: _Baseline) -> Samples | None:
    loop_s = _samples(data.loop_s, is_mean=True)
    if loop_s is None:
        return None
    if not len(loop_s.runs) == len(data.named_s) == len(data.beside_s):
        raise ValueError("the loop has not as many values as runs")
    return replace(loop_s, named=data.named_s, beside=data.beside_s)


def _budget(data: _Budget) -> Budget:
    terms = {Term(*row.term): row for row in data.terms}
    unknown = next((term.kind for term in terms if term.kind not in KINDS), None)
    if unknown is not None:
        raise ValueError(f"there is no term {unknown!r}")
    return Budget(
        times={term: row.ns for term, row in terms.items() if row.ns},
        calls={term: row.calls for term, row in terms.items() if row.calls is not None},
        period_ns=np.asarray(data.period_ns, np.float64),
        steps=data.steps,
        ranks=data.ranks,
        activities=data.activities,
    )
