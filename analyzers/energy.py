"""The energy of a training step, and the tokens per joule.

A step's energy is the power of its GPUs, integrated from the step's beginning to its end by the trapezoidal rule over
NVML's samples. NVML's power is itself a mean over up to a second. The energy of one short step is therefore smoothed
over its neighbours; the mean over many steps is not. Where most steps follow a pause within that second, power still
holds the pause, and their energy is withheld. Processors, memory and fans of the host are not in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np

from perfscope.analyzers.steps import analyze as analyze_steps
from perfscope.constants import KILO, NS_PER_S
from perfscope.errors import MissingInput
from perfscope.measures.doubt import TOLERANCE
from perfscope.measures.gpu_steps import GpuOfRanks, UsedGpu, step_intervals_ns, used_gpus
from perfscope.measures.rank_labels import rank_cell
from perfscope.measures.readings import PowerCurve, read_column
from perfscope.measures.step_selection import TOO_FEW_STEPS, UndisturbedSteps, find_undisturbed
from perfscope.report import MOST_ROWS, Section
from perfscope.result import Column, Doc, Result, Table
from perfscope.tables.columns import Bool, Int64
from perfscope.tables.gpus import GpuSamples
from perfscope.tables.run import Rank, Run

#: NVML's power is a mean over so long before it was read (on Ampere and newer, but GA100).
_AVERAGED_NS = NS_PER_S
#: A step whose last second was training for a smaller part of it follows a pause.
_MOSTLY_TRAINING = 0.8


class GpuEnergy(GpuOfRanks, frozen=True):
    """The energy of one GPU: power integrated over each step by the trapezoidal rule."""

    steps: Annotated[int, Doc("Number of undisturbed steps that the samples cover.")]
    step_j: Annotated[float | None, Doc("Mean energy of these.")]
    power_w: Annotated[float | None, Doc("Mean power in these.")]
    reason: Annotated[str | None, Doc("Why the step's energy is absent.")]
    by_step_j: Mapping[int, float]


class Energy(Result, frozen=True):
    """``results.energy``: the energy of a step."""

    step_j: Annotated[float | None, Doc("Energy of a step over all GPUs; None where one is not known.")]
    tokens_per_j: Annotated[float | None, Doc("Tokens of a step over its energy.")]
    samples_per_j: Annotated[float | None, Doc("Samples of a step over its energy.")]
    gpus: Annotated[tuple[GpuEnergy, ...], Doc("Each GPU that a rank trained on.")]
    notes: tuple[str, ...]

    TABLES = (
        Table(
            "Energy",
            "gpus",
            (
                Column("Host", "host"),
                Column("Rank", "ranks", rank_cell),
                Column("GPU", "name"),
                Column("Energy (J/step)", "step_j"),
                Column("Power (W)", "power_w"),
                Column("Steps", "steps"),
            ),
        ),
    )

    def sections(self) -> tuple[Section, ...]:
        """A row a GPU, and one for all."""
        (table,) = self.TABLES
        everything = [("all", None, None, self.step_j, None, min(gpu.steps for gpu in self.gpus))]
        of_units = (self.tokens_per_j, "tokens"), (self.samples_per_j, "samples")
        rates = [f"{rate:,.3g} {unit}/J" for rate, unit in of_units if rate is not None]
        notes = (f"Over all GPUs: {', '.join(rates)}.", *self.notes) if rates else self.notes
        return (table.section(self.gpus, notes, totals=everything if len(self.gpus) > 1 else ()),)


def analyze(run: Run) -> Energy:
    """Integrate power over the steps of every GPU that a rank trained on; MissingInput where none reported it."""
    used = used_gpus(run)
    undisturbed = find_undisturbed(run.steps)
    gpus = tuple(_integrate_steps(gpu, undisturbed) for gpu in used)
    if all(gpu.step_j is None for gpu in gpus):
        raise MissingInput(next((gpu.reason for gpu in gpus if gpu.reason), "no GPU reported its power"))
    covered = {rank for gpu in used for rank in gpu.ranks}  # those that never reported are missing, too
    uncovered = sorted(set(range(max(rank.world_size for rank in run.ranks))) - covered)
    energies_j = [gpu.step_j for gpu in gpus if gpu.step_j is not None]
    step_j = sum(energies_j) if len(energies_j) == len(gpus) and not uncovered else None
    times = analyze_steps(run)
    return Energy(
        gpus=gpus,
        step_j=step_j,
        tokens_per_j=_per_joule(times.tokens_per_step, step_j),
        samples_per_j=_per_joule(times.samples_per_step, step_j),
        notes=_notes(gpus, uncovered, run.ranks),
    )


def _integrate_steps(used: UsedGpu, undisturbed: UndisturbedSteps) -> GpuEnergy:
    power = PowerCurve(read_column(used.samples.t_ns, used.samples.power_mw))
    reason = None if used.samples.power_mw.count() else "NVML does not report the power of this GPU"
    starts_ns, ends_ns, rows = step_intervals_ns(used.steps)
    covered = power.covers(starts_ns, ends_ns) & undisturbed.mask(used.steps)[rows]
    joules = power.energy_j(starts_ns[covered], ends_ns[covered])
    if reason is None and not covered.any():
        has_steps = len(undisturbed.numbers) > 0
        reason = "no undisturbed step lies between two samples of power" if has_steps else TOO_FEW_STEPS
    reason = reason or _doubt_pauses(starts_ns, ends_ns, covered)
    seconds = float((ends_ns[covered] - starts_ns[covered]).sum()) / NS_PER_S
    power_w = float(joules.sum()) / seconds if seconds > 0 else None
    reason = reason or _doubt_power(used.samples, power_w)
    return GpuEnergy(
        *used.identity,
        steps=int(covered.sum()),
        step_j=float(joules.mean()) if reason is None else None,
        power_w=power_w if reason is None else None,
        reason=reason,
        by_step_j=dict(zip(used.steps.step[rows][covered].tolist(), joules.tolist(), strict=True)),
    )


def _doubt_pauses(starts_ns: Int64, ends_ns: Int64, covered: Bool) -> str | None:
    """Why power is not that of the steps: most follow a pause, or the first step, too soon; None where it is."""
    before_ns = _training_before_ns(starts_ns[1:], ends_ns[1:], starts_ns[covered])
    if np.median(before_ns) >= _MOSTLY_TRAINING * _AVERAGED_NS:
        return None
    return (
        "NVML's power is a mean over up to 1 s, and most undisturbed steps begin sooner than that after a pause: "
        "train for more steps"
    )


def _training_before_ns(starts_ns: Int64, ends_ns: Int64, moments_ns: Int64) -> Int64:
    edges_ns = np.concatenate([[0], np.cumsum(ends_ns - starts_ns)])

    def until(times_ns: Int64) -> Int64:
        begun = np.searchsorted(starts_ns, times_ns, side="right")
        running = np.where(begun > 0, np.minimum(times_ns - ends_ns[begun - 1], 0), 0) if len(ends_ns) else 0
        return np.asarray(edges_ns[begun] + running)

    return np.asarray(until(moments_ns) - until(moments_ns - _AVERAGED_NS))


def _doubt_power(samples: GpuSamples, power_w: float | None) -> str | None:
    """Why a mean power cannot be: it is far above the GPU's limit; None where it can."""
    limit_w = samples.power_limit_mw / KILO if samples.power_limit_mw else None
    if power_w is None or limit_w is None or power_w <= limit_w * (1 + TOLERANCE):
        return None
    return (
        f"Withheld: the mean power would be {power_w:.0f} W, above the limit of {limit_w:.0f} W, which cannot be. What "
        "may be wrong: samples of another GPU, or a clock that jumped"
    )


def _per_joule(work: float | None, step_j: float | None) -> float | None:
    return work / step_j if work is not None and step_j else None


def _notes(gpus: Sequence[GpuEnergy], uncovered: Sequence[int], ranks: Sequence[Rank]) -> tuple[str, ...]:
    notes = [
        "Energy of the GPU boards, without their hosts: NVML power, itself a mean over up to 1 s, integrated over the "
        "undisturbed steps."
    ]
    if uncovered:
        notes.append(f"No total: the energy is unknown for ranks {uncovered[:MOST_ROWS]}.")
    notes += [f"{gpu.host}, ranks {list(gpu.ranks)}: {gpu.reason}." for gpu in gpus if gpu.reason]
    if len({rank.host for rank in ranks}) > len({gpu.host for gpu in gpus}):
        notes.append("Not every host was sampled.")
    return tuple(notes)
