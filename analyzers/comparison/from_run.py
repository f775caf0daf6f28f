"""A run of ``perfscope profile``, or traces alone, as one side of a comparison."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from perfscope.analyzers.budget.result import Budget
from perfscope.analyzers.comparison.change import Samples
from perfscope.analyzers.comparison.side import Figure, Kind, Setup, Side
from perfscope.analyzers.energy import Energy
from perfscope.analyzers.flops.trained_run import find_device, find_trained_model
from perfscope.analyzers.mfu import HEADLINE, Utilisation
from perfscope.analyzers.shared.gpu_steps import step_intervals_ns, used_gpus
from perfscope.analyzers.shared.readings import PowerCurve, read_column
from perfscope.analyzers.shared.step_selection import TOO_FEW_STEPS, UndisturbedSteps, find_undisturbed
from perfscope.analyzers.steps import StepTimes
from perfscope.constants import NS_PER_S
from perfscope.errors import MissingInput
from perfscope.tables.columns import Float64
from perfscope.tables.run import Run


def side_of_run(
    name: str,
    run: Run,
    results: Mapping[str, object],
    reasons: Mapping[str, str],
    versions: Mapping[str, str],
    damage: tuple[str, ...] = (),
) -> Side:
    """A run with the results of ``steps``, ``mfu``, ``energy`` and ``budget``, as far as there are any."""
    undisturbed = find_undisturbed(run.steps)
    times_s = undisturbed.times_s()
    steps, mfu, energy, budget = (results.get(name) for name in ("steps", "mfu", "energy", "budget"))
    budget = budget if isinstance(budget, Budget) else None
    return Side(
        name=name,
        kind=Kind.RUN,
        setup=_setup(run, steps if isinstance(steps, StepTimes) else None, mfu, versions),
        step_time_s=Samples((times_s,)) if len(times_s) else None,
        tflop_per_step=_operations(mfu, undisturbed.step_time_s()),
        memory_bytes=_memory(undisturbed),
        energy_j=_energies(run, undisturbed) if isinstance(energy, Energy) and energy.step_j is not None else None,
        budget=budget,
        reasons={
            Figure.STEP_TIME: reasons.get("steps") or TOO_FEW_STEPS,
            Figure.MEMORY: "no rank recorded the peak memory of a device",
            Figure.TFLOPS: reasons.get("mfu", "its operations are not known"),
            Figure.ENERGY: reasons.get("energy", "the energy of a GPU is not known"),
            "budget": reasons.get("budget", "it has no traces"),
        },
        damage=damage,
    )


def side_of_traces(name: str, budget: Budget | None, reason: str, damage: tuple[str, ...] = ()) -> Side:
    """Traces alone: the times of their profiled steps are all that is known."""
    times_s = None
    if budget is not None:
        periods = sum(budget.by_step.values(), np.zeros(max(len(budget.steps), 1)))
        times_s = Samples((np.asarray(periods, np.float64) / NS_PER_S,))
    why = "traces alone do not state it"
    return Side(
        name=name,
        kind=Kind.TRACES,
        setup=Setup(gpus=None if budget is None else budget.ranks),
        step_time_s=times_s,
        is_profiled=True,
        budget=budget,
        reasons={
            Figure.STEP_TIME: reason,
            "budget": reason,
            **dict.fromkeys((Figure.THROUGHPUT, Figure.TFLOPS, Figure.MEMORY, Figure.ENERGY), why),
        },
        damage=damage,
    )


def _setup(run: Run, steps: StepTimes | None, mfu: object, versions: Mapping[str, str]) -> Setup:
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
    dtype = mfu.dtype if isinstance(mfu, Utilisation) else find_device(run).precision.main
    return Setup(
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


def _operations(mfu: object, step_s: float | None) -> tuple[float, str] | None:
    if not isinstance(mfu, Utilisation) or step_s is None or mfu.headline.tflops_per_gpu is None:
        return None
    return mfu.headline.tflops_per_gpu * step_s, HEADLINE


def _memory(undisturbed: UndisturbedSteps) -> Samples | None:
    peaks = [float(table.memory_peak_bytes.max()) for table in undisturbed.tables if table.memory_peak_bytes.count()]
    return Samples((np.array([max(peaks)]),)) if peaks and max(peaks) > 0 else None


def _energies(run: Run, undisturbed: UndisturbedSteps) -> Samples | None:
    """The energy of each undisturbed step that the samples of all GPUs cover."""
    total: dict[int, list[float]] = {}
    gpus = used_gpus(run)
    for used in gpus:
        starts_ns, ends_ns, rows = step_intervals_ns(used.steps)
        power = PowerCurve(read_column(used.samples.t_ns, used.samples.power_mw))
        is_covered = power.covers(starts_ns, ends_ns) & undisturbed.mask(used.steps)[rows]
        energies_j = power.energy_j(starts_ns[is_covered], ends_ns[is_covered]).tolist()
        for step, energy_j in zip(used.steps.step[rows][is_covered].tolist(), energies_j, strict=True):
            total.setdefault(step, []).append(energy_j)
    complete = [sum(total[step]) for step in sorted(total) if len(total[step]) == len(gpus)]
    values: Float64 = np.array(complete, np.float64)
    return Samples((values,), is_mean=True) if len(values) and (values > 0).all() else None
